#!/usr/bin/env bash
# DeepEP's low-latency test on software devices: two processes with a GPU and a device each, as on two hosts, NVLink off.
#
#   DEEPEP=DIR [NVSHMEM=DIR] interop/deepep.sh [build] [NAME=VALUE...] [-- ARGUMENT...]
#
# DIRs: a checkout of DeepEP (v1.2.1; later ones need NCCL's device API), and what NVSHMEM's wheel unpacks to (else
# python3's own, as beside PyTorch). `build` builds alone, in the checkout. ARGUMENTs are those of
# tests/test_low_latency.py. Settings are for this run. BELLPUSH, OPTIONS and LAST as in interop/nccl.sh; LOG a directory
# for what was said (target/deepep), LIMIT the seconds that a run may take (120), NVML a folder with nvml.h.
#
# DeepEP's kernels ring the NIC themselves, so NVSHMEM's doorbell handler is the GPU. NVSHMEM keeps its queues in host
# memory: the software device reads them with the CPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

build_only=
[[ ${1:-} != build ]] || { build_only=1 && shift; }
given=()
while (($#)) && [[ $1 != -- ]]; do given+=("$1") && shift; done
(($# == 0)) || shift
arguments=("$@")
((${#arguments[@]})) || arguments=(--num-tokens 16 --hidden 2048 --num-topk 2 --num-experts 8)

deepep=$(realpath "${DEEPEP:?names a checkout of DeepEP}")
nvshmem=${NVSHMEM:-$(python3 -c 'import nvidia.nvshmem; print(nvidia.nvshmem.__path__[0])')}
log=${LOG:-target/deepep}
mkdir -p "$log"
log=$(realpath "$log")

if ! compgen -G "$deepep/deep_ep_cpp*.so" >/dev/null; then
  # setup.py names the library without its version where it is told the folder.
  mkdir -p "$log/lib"
  ln -sf "$nvshmem"/lib/libnvshmem_host.so.3 "$log/lib/libnvshmem_host.so"
  (cd "$deepep" && CPATH="${NVML:+$(realpath "$NVML"):}${CPATH:-}" LIBRARY_PATH="$log/lib:${LIBRARY_PATH:-}" \
    TORCH_CUDA_ARCH_LIST="${ARCH:-9.0}" MAX_JOBS=$(nproc) ${NVSHMEM:+env NVSHMEM_DIR="$nvshmem"} \
    python3 setup.py build_ext --inplace) >"$log/build.log" 2>&1
fi
[[ -z $build_only ]] || exit 0

bellpush=$(realpath "${BELLPUSH:-target/release/bellpush}")
settings=(
  PYTHONPATH="$deepep:$deepep/tests:${PYTHONPATH:-}" LD_LIBRARY_PATH="$nvshmem/lib:${LD_LIBRARY_PATH:-}"
  # One process on each of two hosts, as far as the test knows; NCCL, which it starts with, keeps off the device.
  WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="${PORT:-28361}" NCCL_NET=Socket NCCL_IB_DISABLE=1
  NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
  NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_DISABLE_MNNVL=1 NVSHMEM_DISABLE_NCCL=1 NVSHMEM_DISABLE_NVLS=1
  NVSHMEM_IBGDA_NIC_HANDLER=gpu NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem
  NVSHMEM_IBGDA_NUM_DCT=1 NVSHMEM_IBGDA_NUM_DCI=1 NVSHMEM_IBGDA_NUM_SHARED_DCI=1
  NVSHMEM_HCA_LIST=mlx5_0:1 NVSHMEM_ENABLE_NIC_PE_MAPPING=1 NVSHMEM_IB_GID_INDEX=0
  NVSHMEM_DISABLE_GDRCOPY=1 NVSHMEM_DISABLE_DATA_DIRECT=1 NVSHMEM_IB_DISABLE_DMABUF=1
)
ranks=()
# shellcheck disable=SC2206 # options are words
run=("$bellpush" run ${OPTIONS:---verbose} --)
for rank in 0 1; do
  # shellcheck disable=SC2206 # words
  [[ -z ${LAST:-} || $rank == 0 ]] || run=($LAST)
  env "${settings[@]}" RANK=$rank CUDA_VISIBLE_DEVICES=$rank "${given[@]}" timeout -k 5 "${LIMIT:-120}" \
    "${run[@]}" python3 "$deepep/tests/test_low_latency.py" --num-processes 1 --disable-nvlink "${arguments[@]}" \
    >"$log/rank$rank.out" 2>&1 &
  ranks+=($!)
done
failed=0
for rank in "${ranks[@]}"; do wait "$rank" || failed=$?; done
echo "DeepEP ${arguments[*]}: exit $failed"
exit "$failed"
