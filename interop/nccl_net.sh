#!/usr/bin/env bash
# NCCL's own network code (net_ib) on software devices, without a GPU: builds interop/nccl_net.cc with NCCL's
# source, and runs it as two processes, or as one that talks to itself.
#
#   NCCL=DIR interop/nccl_net.sh [one] [NAME=VALUE...] [-- WORD...]
#
# DIR is a checkout of NCCL, 2.28 or later; its headers want CUDA's, in CUDA_HOME/include. Settings are for this run,
# such as NCCL_IB_QPS_PER_CONNECTION=4. Words are as in interop/nccl_net.cc; by default IB check. The word gdaki alone is
# for interop/nccl_gdaki.cc (NCCL 2.30). BELLPUSH names the program (target/release/bellpush), OPTIONS what follows its
# `run`.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

src=$(realpath "${NCCL:?names a checkout of NCCL}/src")
cuda=$(realpath "${CUDA_HOME:-/usr/local/cuda}/include")
bellpush=$(realpath "${BELLPUSH:-target/release/bellpush}")
eval "$(sed -n 's/^NCCL_\([A-Z]*\)[ \t]*:= *\([0-9]*\)$/\1=\2/p' "$src/../makefiles/version.mk")"
build=target/nccl-net/$MAJOR.$MINOR.$PATCH
mkdir -p "$build"
code=$((MAJOR * 10000 + MINOR * 100 + PATCH))
sed "s/\${nccl:Major}/$MAJOR/; s/\${nccl:Minor}/$MINOR/; s/\${nccl:Patch}/$PATCH/; s/\${nccl:Suffix}//
  s/\${nccl:Version}/$code/" "$src/nccl.h.in" >"$build/nccl.h"

settings=(NCCL_SOCKET_IFNAME=lo NCCL_IB_HCA=mlx5)
ranks=(0 1) words=(IB check)
while (($#)); do
  case $1 in
    one) ranks=('') ;;
    --) shift && words=("$@") && break ;;
    *) settings+=("$1") ;;
  esac
  shift
done
program=nccl_net
[[ ${words[*]} != gdaki ]] || program=nccl_gdaki words=()

# The network, sockets, libibverbs and libmlx5 by dlopen, settings, messages.
sources=("$src"/transport/net_ib.cc "$src"/transport/net_ib/*.cc "$src"/transport/net_socket.cc
  "$src"/misc/{ibvwrap,ibvsymbols,mlx5dvwrap,mlx5dvsymbols,socket,utils,param}.cc "$src"/os/linux.cc "$src"/debug.cc
  "$src"/param/{param,param_registry,c_api}.cc "interop/$program.cc")
[[ $program == nccl_net ]] ||
  sources+=("$src"/transport/net_ib/gdaki/*.cc "$src"/transport/net_ib/gdaki/doca-gpunetio/src/*.cpp)
flags=(-std=c++17 -O2 -g -w -I"$build" -I"$src/include" -I"$src/include/plugin" -I"$src/transport/net_ib"
  -I"$src/transport/net_ib/gdaki/doca-gpunetio/include" -I"$cuda" -I"$cuda/cccl" -DNCCL_OS_LINUX
  -DDOCA_VERBS_USE_CUDA_WRAPPER -DDOCA_VERBS_USE_NET_WRAPPER)
objects=() work=()
for source in "${sources[@]}"; do
  [[ -e $source ]] || continue # the one or the other, by version
  # CUDA's driver is interop/nccl_gdaki.cc itself.
  [[ $source != */doca_verbs_cuda_wrapper.cpp ]] || continue
  name=$(basename "$source")
  object=$build/$(basename "$(dirname "$source")")-${name%.c*}.o
  objects+=("$object")
  [[ $object -nt $source ]] || work+=(-o "$object" -c "$source")
done
((${#work[@]} == 0)) || printf '%s\n' "${work[@]}" | xargs -n 4 -P "$(nproc)" g++ "${flags[@]}"
# CUDA and the rest of NCCL stay undefined, since nobody calls them.
g++ -o "$build/$program" "${objects[@]}" -pthread -ldl -no-pie -Wl,--unresolved-symbols=ignore-all

meet=$(mktemp -d)
trap 'rm -rf "$meet"' EXIT
started=()
for rank in "${ranks[@]}"; do
  # shellcheck disable=SC2086 # options are words
  env "${settings[@]}" ${rank:+RANK=$rank} MEET="$meet" timeout -s KILL 120 \
    "$bellpush" run ${OPTIONS:-} -- "$build/$program" "${words[@]}" &
  started+=($!)
done
failed=0
for pid in "${started[@]}"; do wait "$pid" || failed=1; done
exit "$failed"
