#!/usr/bin/env bash
# NVSHMEM's IBGDA transport on software devices: builds interop/nvshmem.cu, or takes what PROGRAM names,
# and runs it as two processes with a GPU each.
#
#   NVSHMEM=DIR interop/nvshmem.sh [NAME=VALUE...]
#
# DIR is what NVSHMEM's wheel (nvidia-nvshmem-cu13) unpacks to: include, lib. Arguments are settings for
# this run, such as NVSHMEM_IBGDA_NUM_RC_PER_PE=4. BELLPUSH, OPTIONS (--verbose) and LAST as in interop/nccl.sh. Needs
# nvcc unless PROGRAM is given. See docs/devx.md.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

lib=$(realpath "${NVSHMEM:?names what the wheel unpacks to}/lib")
build=target/nvshmem
mkdir -p "$build"
if [[ -z ${PROGRAM:-} ]]; then
  PROGRAM=$build/nvshmem
  nvcc -std=c++17 -O2 -rdc=true -arch="${ARCH:-sm_90}" -I"$NVSHMEM/include" interop/nvshmem.cu -o "$PROGRAM" \
    -L"$lib" -l:libnvshmem_host.so.3 -lnvshmem_device
fi

settings=(
  LD_LIBRARY_PATH="$lib:${LD_LIBRARY_PATH:-}"
  # Two processes of one machine find each other without a launcher.
  NVSHMEM_BOOTSTRAP=UID NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo
  NVSHMEM_BOOTSTRAP_UID_PLUGIN="$lib/nvshmem_bootstrap_uid.so.3"
  # Everything by IBGDA.
  NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_DISABLE_P2P=1 NVSHMEM_DISABLE_MNNVL=1
  NVSHMEM_DISABLE_NCCL=1 NVSHMEM_DISABLE_NVLS=1
  # What the software device has, see docs/devx.md.
  NVSHMEM_IBGDA_NIC_HANDLER=cpu_host_memory NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem
  NVSHMEM_IBGDA_NUM_DCT=1 NVSHMEM_IBGDA_NUM_DCI=1 NVSHMEM_IBGDA_NUM_SHARED_DCI=1 NVSHMEM_IBGDA_NUM_RC_PER_PE=1
  NVSHMEM_HCA_LIST=mlx5_0:1 NVSHMEM_ENABLE_NIC_PE_MAPPING=1 NVSHMEM_IB_GID_INDEX=0
  NVSHMEM_DISABLE_GDRCOPY=1 NVSHMEM_DISABLE_DATA_DIRECT=1 NVSHMEM_IB_DISABLE_DMABUF=1
  NVSHMEM_SYMMETRIC_SIZE=64M
)

meet=$(mktemp -d)
trap 'rm -rf "$meet"' EXIT
ranks=()
# shellcheck disable=SC2206 # options are words
run=("${BELLPUSH:-target/release/bellpush}" run ${OPTIONS:---verbose} --)
for rank in 0 1; do
  # shellcheck disable=SC2206 # words
  [[ -z ${LAST:-} || $rank == 0 ]] || run=($LAST)
  env "${settings[@]}" "$@" RANK=$rank MEET="$meet" timeout -s KILL 120 "${run[@]}" "$PROGRAM" &
  ranks+=($!)
done
failed=0
for rank in "${ranks[@]}"; do wait "$rank" || failed=1; done
exit "$failed"
