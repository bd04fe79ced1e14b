#!/usr/bin/env bash
# What action.yml runs: installs the package BELLPUSH_DEB, or builds it, and has every later step's programs find the
# devices that BELLPUSH_OPTIONS describes.
set -euo pipefail
sudo=$([[ $(id -u) == 0 ]] || echo sudo)
deb=${BELLPUSH_DEB:-}
if [[ -z $deb ]]; then
  "$(dirname "$(readlink -f "$0")")/../../x" package deb "$RUNNER_TEMP/bellpush"
  deb=$(echo "$RUNNER_TEMP"/bellpush/bellpush_*.deb)
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$(realpath "$deb")" ibverbs-providers ibverbs-utils perftest >/dev/null
# On one line, as the file of the environment wants it.
options=$(tr '\n' ' ' <<<"${BELLPUSH_OPTIONS:-{\}}")
# Options that are wrong end here, and not in somebody's program.
LD_PRELOAD=/usr/lib/bellpush/libbellpush_shim.so BELLPUSH_PRELOAD=$options ibv_devinfo >/dev/null
{
  echo "LD_PRELOAD=/usr/lib/bellpush/libbellpush_shim.so${LD_PRELOAD:+:$LD_PRELOAD}"
  echo "BELLPUSH_PRELOAD=$options"
} >>"$GITHUB_ENV"
