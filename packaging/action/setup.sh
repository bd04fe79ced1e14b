#!/usr/bin/env bash
# What action.yml runs: installs the package BELLPUSH_DEB, or builds it, and gives later steps `with-mlx5 PROGRAM...`,
# whose programs find the devices that BELLPUSH_OPTIONS describes.
set -euo pipefail
sudo=$([[ $(id -u) == 0 ]] || echo sudo)
deb=${BELLPUSH_DEB:-}
if [[ -z $deb ]]; then
  # The package of this job is the job's.
  export DEBFULLNAME=${DEBFULLNAME:-${GITHUB_ACTOR:-runner}} DEBEMAIL=${DEBEMAIL:-runner@localhost}
  "$(dirname "$(readlink -f "$0")")/../../x" package deb "$RUNNER_TEMP/bellpush"
  deb=$(echo "$RUNNER_TEMP"/bellpush/bellpush_*.deb)
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$(realpath "$deb")" ibverbs-providers ibverbs-utils perftest >/dev/null
readonly OBJECT=/usr/lib/bellpush/libbellpush_shim.so
# On one line, as the file of outputs wants it.
options=$(tr '\n' ' ' <<<"${BELLPUSH_OPTIONS:-{\}}")
# Options that are wrong end here, and not in somebody's program.
LD_PRELOAD=$OBJECT BELLPUSH_PRELOAD=$options ibv_devinfo >/dev/null

folder=$RUNNER_TEMP/bellpush-bin
mkdir -p "$folder"
cat >"$folder/with-mlx5" <<END
#!/usr/bin/env bash
# Runs a program that finds an mlx5 device in software: with-mlx5 PROGRAM [ARGUMENT]...
export BELLPUSH_PRELOAD=$(printf '%q' "$options")
LD_PRELOAD=$OBJECT\${LD_PRELOAD:+:\$LD_PRELOAD} exec "\$@"
END
chmod 755 "$folder/with-mlx5"
printf '%s\n' "$folder" >>"$GITHUB_PATH"
printf 'preload=%s\noptions=%s\n' "$OBJECT" "$options" >>"$GITHUB_OUTPUT"
