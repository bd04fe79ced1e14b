#!/usr/bin/env bash
# NCCL on software devices: NVIDIA's nccl-tests, or a program of its own (interop/nccl_torch.py), as two processes or more
# with a GPU and a device each. NCCL's net_ib carries everything; what NCCL said is looked through for it.
#
#   NCCL_TESTS=DIR NCCL_HOME=DIR MPI_HOME=DIR interop/nccl.sh [MODE] [NAME=VALUE...] [-- PROGRAM [ARGUMENT...]]
#
# DIRs: a checkout of nccl-tests, or programs built with MPI=1 already; include and lib of NCCL (its wheel has them, and
# may have the library as libnccl.so.2 alone); an MPI with mpiexec of the MPICH kind. PROGRAM is a word such as
# all_reduce_perf, a path or a command; by default all of nccl-tests, from 8 B to 16 MiB. Settings are for this run.
# MODE:
#   pair     two processes, as on two hosts (the default); with GPUS=1 both on one GPU, with RANKS=N so many, of which
#            each takes the next of GPUS GPUs (2)
#   one      one process with two GPUs and one device, which talks to itself
#   gpu      pair, with the GPUs' own memory registered (GPUDirect RDMA)
#   socket   pair, by NCCL's own sockets: something to compare with
# NAME is what the files in LOG are called by, else the program (or its last argument, where it is a path's).
# BELLPUSH names the program (target/release/bellpush), OPTIONS what follows its `run`, LAST the whole command in front of
# the last rank where that is to be another one, LOG a directory for what was said (target/nccl), LIMIT the seconds that
# a program may take (60).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

mode=pair
case ${1:-} in pair | one | gpu | socket) mode=$1 && shift ;; esac
given=()
while (($#)) && [[ $1 != -- ]]; do given+=("$1") && shift; done
(($# == 0)) || shift
program=("$@")

mpi=$(realpath "${MPI_HOME:?names an MPI}")
bellpush=$(realpath "${BELLPUSH:-target/release/bellpush}")
log=${LOG:-target/nccl}
mkdir -p "$log"
log=$(realpath "$log")
path=$mpi/lib:${NCCL_HOME:+$(realpath "$NCCL_HOME")/lib:}${LD_LIBRARY_PATH:-}

# One of nccl-tests is called *_perf; another word is looked for as a shell does.
if [[ ${#program[@]} -gt 0 && ${program[0]} != */* && ${program[0]} != *_perf ]]; then
  program[0]=$(type -P "${program[0]}") || { echo "nccl.sh: no program ${program[0]}" >&2; exit 2; }
fi

# Where the programs are, or are built.
tests=
if [[ ${#program[@]} -eq 0 || ${program[0]} != */* ]]; then
  tests=$(realpath "${NCCL_TESTS:?names a checkout of nccl-tests}")
  if [[ ! -x $tests/all_reduce_perf ]]; then
    build=$PWD/target/nccl-tests
    mkdir -p "$build/home/lib"
    ln -sfn "$(realpath "${NCCL_HOME:?names include and lib of NCCL}")/include" "$build/home/include"
    ln -sf "$(realpath "$NCCL_HOME")/lib/libnccl.so.2" "$build/home/lib/libnccl.so"
    nvcc=$(command -v nvcc)
    make -C "$tests" -s -j "$(nproc)" src.build MPI=1 MPI_HOME="$mpi" NCCL_HOME="$build/home" BUILDDIR="$build" \
      CUDA_HOME="${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}" CUDARTLIB=cudart_static \
      NVCC_GENCODE="${GENCODE:--gencode=arch=compute_90,code=sm_90}" >"$log/build.log" 2>&1
    tests=$build
  fi
fi

settings=(
  LD_LIBRARY_PATH="$path" NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV
  # Nothing by another way; multicast over NVLink stays off whatever the transport.
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0
  # MPI is for the programs' start, and has no business with the device.
  UCX_TLS=self,sm
)
wanted=' via NET/IB/'
case $mode in
  socket) settings+=(NCCL_NET=Socket CUDA_MODULE_LOADING=LAZY) wanted=' via NET/Socket/' ;;
  gpu)
    # Any distance between GPU and NIC will do. CUDA loads everything at once, as `bellpush run` has it.
    settings+=(NCCL_NET=IB NCCL_IB_HCA=mlx5_0 NCCL_NET_GDR_LEVEL=SYS NCCL_NET_GDR_READ=1)
    wanted='/GDRDMA'
    ;;
  *)
    # The NIC copies memory of the host alone, which waits for no kernel: CUDA may load kernels when they are launched.
    settings+=(NCCL_NET=IB NCCL_IB_HCA=mlx5_0 NCCL_NET_GDR_LEVEL=LOC CUDA_MODULE_LOADING=LAZY)
    ;;
esac
run=("$bellpush" run)
[[ $mode != socket ]] || run=(env)
# shellcheck disable=SC2206 # options are words
[[ $mode == socket ]] || run+=(${OPTIONS:-} --)

# started NAME COMMAND...: as one process, or as several, each on a host of its own as far as NCCL knows.
started() {
  local name=$1 ranks=() rank device
  shift
  local timed=(timeout -k 5 "${LIMIT:-60}")
  if [[ $mode == one ]]; then
    "${timed[@]}" env "${settings[@]}" NCCL_DEBUG_FILE="$log/$name.0.nccl" "${given[@]}" "${run[@]}" "$@"
    return
  fi
  for ((rank = 0; rank < ${RANKS:-2}; rank++)); do
    # shellcheck disable=SC2206 # words
    [[ -z ${LAST:-} || $rank -lt $((${RANKS:-2} - 1)) ]] || run=($LAST)
    device=$((rank % ${GPUS:-2}))
    [[ $rank == 0 ]] || ranks+=(:)
    ranks+=(-n 1 env "${settings[@]}" NCCL_DEBUG_FILE="$log/$name.$rank.nccl" NCCL_HOSTID="host$rank"
      CUDA_VISIBLE_DEVICES=$device NCCL_TESTS_DEVICE=0 "${given[@]}" "${run[@]}" "$@")
  done
  LD_LIBRARY_PATH=$path "${timed[@]}" "$mpi/bin/mpiexec" "${ranks[@]}"
}

# What a program's output and NCCL's say.
judged() {
  local name=$1 code=$2 wrong ways
  # Size, count, type, operation (hypercube has none), root; then time, two rates and #wrong, twice.
  wrong=$(awk '$1 ~ /^[0-9]+$/ && NF >= 12 {
      lines++; if ($(NF-4) != "0" && $(NF-4) != "N/A" || $NF != "0" && $NF != "N/A") wrong++
    } END { printf "%d lines, %d wrong", lines, wrong }' "$log/$name.out")
  ways=$(cat "$log/$name".*.nccl 2>/dev/null | grep -o ' via [A-Za-z0-9/]*' | sort | uniq -c | tr -s ' \n' ' ')
  local verdict=passed
  [[ $code == 0 && $wrong != "0 lines"* && $wrong == *", 0 wrong" ]] || verdict=FAILED
  # Another program than nccl-tests' says by its exit what it found.
  if [[ $wrong == "0 lines"* && ${program[0]:-} == */* ]]; then
    wrong="no lines"
    [[ $code != 0 ]] || verdict=passed
  fi
  [[ $ways == *"$wanted"* && $ways != *" via P2P"* && $ways != *" via SHM"* ]] || verdict=FAILED
  printf '%-7s %-20s %-7s exit %s, %s;%s\n' "$mode" "$name" "$verdict" "$code" "$wrong" "$ways"
  [[ $verdict == passed ]]
}

failed=0
one() {
  local name code=0
  name=$(basename "${NAME:-$1}")-$mode
  shift
  rm -f "$log/$name".*
  # Apart: what the device says may come amid a row.
  started "$name" "$@" >"$log/$name.out" 2>"$log/$name.err" || code=$?
  judged "$name" "$code" || failed=1
}

sweep=(-b 8 -e 16M -f 8 -n 5 -w 1 -c 1)
[[ $mode != one ]] || sweep+=(-g 2)
if ((${#program[@]})); then
  if [[ ${program[0]} == */* ]]; then
    one "${program[-1]}" "${program[@]}"
  else
    one "${program[0]}" "$tests/${program[0]}" "${program[@]:1}"
  fi
else
  for each in all_reduce all_gather reduce_scatter broadcast reduce alltoall alltoallv sendrecv gather scatter \
    hypercube; do
    one "${each}_perf" "$tests/${each}_perf" "${sweep[@]}"
  done
fi
exit "$failed"
