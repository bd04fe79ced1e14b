#!/usr/bin/env bash
# What it costs a GPU to post with other libraries' device code, beside `bellpush bench --post` on the same GPU.
#
#   interop/posting.sh DOCA NCCL [BELLPUSH]
#
# DOCA: a checkout of github.com/NVIDIA-DOCA/gpunetio. NCCL: one of github.com/NVIDIA/nccl. BELLPUSH: the program, built
# with nvcc; without it the others run alone. nvcc is $NVCC, or on the path. No NIC is needed: queues are plain memory,
# and nobody reads them. A row's check says whether all WQEs (descriptors) are there, and the doorbell's last index.
set -euo pipefail
[[ $# == 2 || $# == 3 ]] || { echo "usage: interop/posting.sh DOCA NCCL [BELLPUSH]" >&2; exit 2; }
doca=$1 nccl=$2 bellpush=${3:-}
here=$(cd "$(dirname "$0")/posting" && pwd)
nvcc=${NVCC:-nvcc}
for file in "$doca/include/doca_gpunetio_device.h" "$nccl/src/include/nccl_device/gin/gpi/gin_gpi.h"; do
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
for round in 1 2; do
  [[ -z $bellpush ]] || timeout 120 "$bellpush" bench --post
  timeout 60 "$build/doca"
  timeout 60 "$build/gpi"
done
