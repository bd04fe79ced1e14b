#!/usr/bin/env bash
# What it costs a GPU to post with other libraries' device code, beside `bellpush bench --post` on the same GPU.
#
#   [NVSHMEM=dir] [UCX=dir] interop/posting.sh DOCA NCCL [BELLPUSH]
#
# DOCA: a checkout of github.com/NVIDIA-DOCA/gpunetio. NCCL: one of github.com/NVIDIA/nccl. BELLPUSH: the program, built
# with nvcc; without it the others run alone. NVSHMEM: a checkout of github.com/NVIDIA/nvshmem. UCX: one of
# github.com/openucx/ucx with its submodule (git submodule update --init). Both ask for rdma-core's
# infiniband/mlx5dv.h in the compiler's path. A line before each library's rows has the commit of its checkout.
#
# nvcc is $NVCC, or on the path. No NIC is needed: queues are plain memory, and nobody reads them. A row's check says
# whether all WQEs (descriptors) are there, and the doorbell's last index. A kernel that does not end ends its program
# after 15 s.
set -euo pipefail
usage="usage: [NVSHMEM=dir] [UCX=dir] interop/posting.sh DOCA NCCL [BELLPUSH]"
[[ $# == 2 || $# == 3 ]] || { echo "$usage" >&2; exit 2; }
doca=$1 nccl=$2 bellpush=${3:-} nvshmem=${NVSHMEM:-} ucx=${UCX:-}
here=$(cd "$(dirname "$0")/posting" && pwd)
nvcc=${NVCC:-nvcc}
wanted=("$doca/include/doca_gpunetio_device.h" "$nccl/src/include/nccl_device/gin/gpi/gin_gpi.h")
[[ -z $nvshmem ]] || wanted+=("$nvshmem/src/include/non_abi/device/pt-to-pt/ibgda_device.cuh")
[[ -z $ucx ]] || wanted+=("$ucx/src/ucp/api/device/ucp_device_impl.h"
  "$ucx/src/uct/ib/mlx5/gdaki/gpunetio/device/doca_gpunetio_dev_verbs_qp.cuh")
for file in "${wanted[@]}"; do
  [[ -r $file ]] || { echo "interop/posting.sh: no $file" >&2; exit 2; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# NCCL's own build makes nccl.h; its version is all that the headers ask of it.
sed 's/${nccl:Major}/2/; s/${nccl:Minor}/30/; s/${nccl:Patch}/0/; s/${nccl:Suffix}//; s/${nccl:Version}/23000/' \
  "$nccl/src/nccl.h.in" > "$build/nccl.h"
mkdir "$build/doca_gpunetio"
cp -r "$doca/include/." "$build/doca_gpunetio"
compile() { "$nvcc" -std=c++17 -O3 -arch="${ARCH:-sm_90}" -cudart static -w -I"$here" "$@"; }
compile -I"$doca/include" -o "$build/doca" "$here/doca.cu"
compile -DNCCL_GIN_GDAKI_ENABLE=0 -I"$build" -I"$nccl/src/include" -o "$build/gpi" "$here/gpi.cu"
# The builds of both make headers of options and versions: here all options are off, and versions are not looked at.
# NVSHMEM's device state is a symbol that its library has, so that the headers want separate compilation.
if [[ -n $nvshmem ]]; then
  mkdir -p "$build/for-nvshmem/non_abi"
  sed '/^#cmakedefine/d' "$nvshmem/src/include/non_abi/nvshmem_build_options.h.in" \
    > "$build/for-nvshmem/non_abi/nvshmem_build_options.h"
  sed 's/@INFO_BUILD_VARS@/""/; s/@[A-Z_]*@/0/' "$nvshmem/src/include/non_abi/nvshmem_version.h.in" \
    > "$build/for-nvshmem/non_abi/nvshmem_version.h"
  compile -rdc=true -cudadevrt none -DNDEBUG -I"$build/for-nvshmem" -I"$nvshmem/src/include" \
    -o "$build/nvshmem" "$here/nvshmem.cu"
fi
if [[ -n $ucx ]]; then
  mkdir -p "$build/for-ucx/uct/api"
  sed 's/@[A-Z_]*@/0/g' "$ucx/src/uct/api/version.h.in" > "$build/for-ucx/uct/api/version.h"
  compile -DHAVE_CONFIG_H -DHAVE_CUDA -DHAVE_GDA -I"$build/for-ucx" -I"$ucx/src" -o "$build/ucx" "$here/ucx.cu"
fi
# One that fails does not keep the others from running.
failed=0
rows() {
  "$@" || { failed=$?; echo "# $* ended with $failed"; }
}
# peer NAME CHECKOUT: a line with its commit, then its rows.
peer() {
  local commit=""
  [[ ! -e $2/.git ]] || commit=$(git -C "$2" rev-parse --short HEAD || true)
  echo "# $1, commit ${commit:-not known}"
  rows timeout 60 "$build/$1"
}
for round in 1 2; do
  [[ -z $bellpush ]] || rows timeout 240 "$bellpush" bench --post
  peer doca "$doca"
  peer gpi "$nccl"
  [[ -z $nvshmem ]] || peer nvshmem "$nvshmem"
  [[ -z $ucx ]] || peer ucx "$ucx"
done
exit "$failed"
