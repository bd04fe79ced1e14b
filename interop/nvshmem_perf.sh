#!/usr/bin/env bash
# NVSHMEM's own perftest programs (device/pt-to-pt and device/coll), by IBGDA on software devices: two processes with a
# GPU each. They compare few bytes (interop/nvshmem.cu compares all); what counts is that each comes to its end.
#
#   NVSHMEM=DIR PERFTEST=DIR MPI_HOME=DIR interop/nvshmem_perf.sh [build] [NAME=VALUE...] [-- PROGRAM [ARGUMENT...]]
#
# DIRs: what NVSHMEM's wheel (nvidia-nvshmem-cu13) unpacks to; perftest of NVSHMEM's source, or a folder of programs
# built before; an MPI with mpiexec of the MPICH kind, whose processes NVSHMEM asks by PMI. PROGRAM is a word such as
# shmem_put_bw; by default all. `build` builds alone, into target/nvshmem-perf. Settings are for this run, such as
# NVSHMEM_IBGDA_NUM_RC_PER_PE=0 (DC instead of RC). BELLPUSH, OPTIONS, LOG and LIMIT as in interop/nccl.sh; NVML names a
# folder with nvml.h, and CUDA_STUBS one with libcuda.so, where the compiler finds none.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

build_only=
[[ ${1:-} != build ]] || { build_only=1 && shift; }
given=()
while (($#)) && [[ $1 != -- ]]; do given+=("$1") && shift; done
(($# == 0)) || shift
program=("$@")

lib=$(realpath "${NVSHMEM:?names what the wheel unpacks to}/lib")
perftest=$(realpath "${PERFTEST:?names perftest of the source of NVSHMEM, or its programs}")
log=${LOG:-target/nvshmem-perf}
mkdir -p "$log"
log=$(realpath "$log")

if [[ -d $perftest/common ]]; then
  build=$PWD/target/nvshmem-perf
  mkdir -p "$build"
  flags=(-std=c++17 -O2 -rdc=true -arch="${ARCH:-sm_90}" -I"$NVSHMEM/include" -I"$perftest/common" ${NVML:+-I"$NVML"})
  [[ $build/utils.o -nt $perftest/common/utils.cu ]] ||
    nvcc "${flags[@]}" -c "$perftest/common/utils.cu" -o "$build/utils.o"
  for source in "$perftest"/device/{pt-to-pt,coll}/*.cu; do
    [[ $source != */redmaxloc_latency.cu ]] || continue # does not compile, and NVIDIA's own makefiles leave it out
    to=$build/$(basename "$source" .cu)
    [[ $to -nt $source ]] || printf '%s\n' -I"$(dirname "$source")" "$source" -o "$to"
  done | xargs -r -n 4 -P "$(nproc)" nvcc "${flags[@]}" "$build/utils.o" -L"$lib" -l:libnvshmem_host.so.3 \
    -lnvshmem_device ${CUDA_STUBS:+-L"$CUDA_STUBS"} -Xlinker --no-as-needed -lcuda \
    -Xlinker --unresolved-symbols=ignore-in-object-files
  perftest=$build
fi
[[ -z $build_only ]] || exit 0

mpi=$(realpath "${MPI_HOME:?names an MPI}")
bellpush=$(realpath "${BELLPUSH:-target/release/bellpush}")
path=$lib:$mpi/lib:${LD_LIBRARY_PATH:-}
settings=(
  LD_LIBRARY_PATH="$path" NVSHMEM_BOOTSTRAP=PMI
  # As in interop/nvshmem.sh: everything by IBGDA, with what the software device has.
  NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_DISABLE_P2P=1 NVSHMEM_DISABLE_MNNVL=1
  NVSHMEM_DISABLE_NCCL=1 NVSHMEM_DISABLE_NVLS=1
  NVSHMEM_IBGDA_NIC_HANDLER=cpu_host_memory NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem
  NVSHMEM_IBGDA_NUM_DCT=1 NVSHMEM_IBGDA_NUM_DCI=1 NVSHMEM_IBGDA_NUM_SHARED_DCI=1 NVSHMEM_IBGDA_NUM_RC_PER_PE=1
  NVSHMEM_HCA_LIST=mlx5_0:1 NVSHMEM_ENABLE_NIC_PE_MAPPING=1 NVSHMEM_IB_GID_INDEX=0
  NVSHMEM_DISABLE_GDRCOPY=1 NVSHMEM_DISABLE_DATA_DIRECT=1 NVSHMEM_IB_DISABLE_DMABUF=1 NVSHMEM_SYMMETRIC_SIZE=256M
)

failed=0
one() {
  local name=$1 code=0 verdict=passed
  # shellcheck disable=SC2086 # options are words
  env "${settings[@]}" "${given[@]}" timeout -k 5 "${LIMIT:-60}" "$mpi/bin/mpiexec" -n 2 \
    "$bellpush" run ${OPTIONS:-} --verbose -- "$perftest/$name" "${@:2}" >"$log/$name${SUFFIX:-}.out" 2>&1 || code=$?
  if [[ $code != 0 ]]; then verdict=FAILED failed=1; fi
  printf '%-36s %s, exit %s; %s\n' "$name" "$verdict" "$code" \
    "$(grep -E '^ *\|? *[0-9]+ *[| ]' "$log/$name${SUFFIX:-}.out" | tail -1 | tr -s ' ')"
}

if ((${#program[@]})); then
  one "${program[@]}"
else
  # All but shmem_st_bw, which stores to the peer's memory itself, and shmem_atomic_ping_pong_latency, which ends by
  # SIGSEGV at its fourth type on NVLink as well. shmem_p_ping_pong_latency sends a message for each 4 bytes.
  for each in "$perftest"/shmem_*_{bw,latency}; do
    most=1048576
    case $each in
      */shmem_st_bw | */shmem_atomic_ping_pong_latency) continue ;;
      */shmem_p_ping_pong_latency) most=4096 ;;
    esac
    [[ ! -x $each ]] || one "$(basename "$each")" -b 8 -e $most -f 8 -n 20 -w 2 -c 1 -t 256
  done
  for each in alltoall barrier bcast fcollect reducescatter reduction sync; do
    [[ ! -x $perftest/${each}_latency ]] || one "${each}_latency" -b 8 -e 65536 -f 8 -n 20 -w 2
  done
fi
exit "$failed"
