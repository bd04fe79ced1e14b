#!/usr/bin/env bash
# NCCL's network by kernels (GIN) on software devices: builds interop/nccl_gin.cu, or takes what PROGRAM names, and runs
# it as two processes with a GPU each. What NCCL said is looked through for the type of GIN.
#
#   NCCL_HOME=DIR interop/nccl_gin.sh [MODE] [NAME=VALUE...] [-- WORD...]
#
# DIR has include and lib of NCCL 2.30 or later (its wheel does, the library perhaps as libnccl.so.2 alone). Settings are
# for this run. Words are steps of interop/nccl_gin.cu, such as put; by default all. MODE:
#   proxy    a thread of NCCL's posts what kernels ask for (NCCL_GIN_TYPE=2; the default)
#   cpu      kernels write the work requests, and a thread of NCCL's rings for them (GDAKI, NCCL_GIN_TYPE=3)
#   gpu      kernels write the work requests and ring
# BELLPUSH, OPTIONS, LOG and LIMIT as in interop/nccl.sh; GPUS=1 has both processes on one GPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

mode=proxy
case ${1:-} in proxy | cpu | gpu) mode=$1 && shift ;; esac
given=()
while (($#)) && [[ $1 != -- ]]; do given+=("$1") && shift; done
(($# == 0)) || shift

nccl=$(realpath "${NCCL_HOME:?names include and lib of NCCL}")
bellpush=$(realpath "${BELLPUSH:-target/release/bellpush}")
log=${LOG:-target/nccl}
mkdir -p "$log"
log=$(realpath "$log")
if [[ -z ${PROGRAM:-} ]]; then
  PROGRAM=$log/nccl_gin
  [[ $PROGRAM -nt interop/nccl_gin.cu ]] ||
    nvcc -std=c++17 -O2 -arch="${ARCH:-sm_90}" -I"$nccl/include" interop/nccl_gin.cu -o "$PROGRAM" -L"$nccl/lib" \
      -l:libnccl.so.2
fi

settings=(
  LD_LIBRARY_PATH="$nccl/lib:${LD_LIBRARY_PATH:-}" NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO
  NCCL_DEBUG_SUBSYS=INIT,NET,ENV
  # Nothing by another way; any distance between GPU and NIC will do.
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0
  NCCL_NET=IB NCCL_IB_HCA=mlx5_0 NCCL_NET_GDR_LEVEL=SYS NCCL_NET_GDR_READ=1
)
case $mode in
  proxy) settings+=(NCCL_GIN_TYPE=2) type=2 ;;
  cpu) settings+=(NCCL_GIN_TYPE=3 NCCL_GIN_GDAKI_NIC_HANDLER=1) type=3 ;;
  gpu) settings+=(NCCL_GIN_TYPE=3 NCCL_GIN_GDAKI_NIC_HANDLER=2) type=3 ;;
esac

meet=$(mktemp -d)
trap 'rm -rf "$meet"' EXIT
ranks=()
rm -f "$log/gin-$mode".*
for rank in 0 1; do
  device=$((${GPUS:-2} > 1 ? rank : 0))
  # shellcheck disable=SC2086 # options are words
  env "${settings[@]}" NCCL_DEBUG_FILE="$log/gin-$mode.$rank.nccl" NCCL_HOSTID="host$rank" \
    CUDA_VISIBLE_DEVICES=$device "${given[@]}" RANK=$rank MEET="$meet" LIMIT="${STEP:-20}" \
    timeout -k 5 "${LIMIT:-120}" "$bellpush" run ${OPTIONS:-} -- "$PROGRAM" "$@" >"$log/gin-$mode.$rank.out" 2>&1 &
  ranks+=($!)
done
failed=0
for rank in "${ranks[@]}"; do wait "$rank" || failed=$?; done
for rank in 0 1; do
  grep -q "GIN type $type" "$log/gin-$mode.$rank.out" || failed=1
  grep -q 'all right' "$log/gin-$mode.$rank.out" || failed=1
done
cat "$log/gin-$mode".[01].out
printf '%-7s nccl_gin %s\n' "$mode" "$([[ $failed == 0 ]] && echo passed || echo FAILED)"
exit "$failed"
