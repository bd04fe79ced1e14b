#!/usr/bin/env bash
# Programs that are not ours under each fault script of interop/faults: which recover, report, hang, corrupt or crash.
#
#   interop/faults.sh [-b DIR] [-o DIR] [-p PROGRAM]... [-f FAULT]... [-t SECONDS] [-r TIMES] [--adversary SEED]
#
# -b: the folder with bellpush and the preloaded object (target/release). -o: where what was said is kept, cells.jsonl
# (a line a cell), and table.md (a new one without). -p, -f: only programs and scripts of these patterns; `-f none`: no
# fault. -t: seconds for a cell. -r: times each cell is run. --expect HOW[,HOW...]: any other outcome is an error (1).
# --list: the programs' names. A program that is not installed is named on stderr ("SKIPPED: ..."). 77: no network or
# processes of its own, or no such program is installed.
# It runs in a network and among processes of its own (unshare), so that nothing of the machine's is in its way, and
# what it started ends with it. docs/results/faults.md has a run.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

build=$here/../target/release out=
rest=()
while (($#)); do
  case $1 in
    -b) build=$2; shift 2 ;;
    -o) out=$2; shift 2 ;;
    *) rest+=("$1"); shift ;;
  esac
done
build=$(readlink -f "$build")
[[ -x $build/bellpush ]] || { echo "faults.sh: no $build/bellpush" >&2; exit 2; }
out=${out:-$(mktemp -d)}
mkdir -p "$out"
out=$(readlink -f "$out")

within='ip link set lo up && ip link add b0 type bridge && ip link set b0 up &&
  ip addr add 10.0.0.1/24 dev b0 && ip addr add 10.0.0.2/24 dev b0 || exit 77; exec python3 "$@"'
echo "faults.sh: what was said: $out" >&2
unshare -rn -pf --mount-proc true 2>/dev/null || { echo "faults.sh: no unshare -rnpf" >&2; exit 77; }
exec unshare -rn -pf --mount-proc --kill-child bash -c "$within" faults \
  "$here/faults/cells.py" -b "$build/bellpush" -o "$out" "${rest[@]}"
