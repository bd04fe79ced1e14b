#!/usr/bin/env bash
# A server and a client that were built elsewhere, on a software device each, and how each of them ends.
#
#   interop/known/pair.sh [-b DIR] [-t SECONDS] [-w SECONDS] [-s OPTIONS] [-c OPTIONS] SERVER CLIENT
#
# SERVER and CLIENT are command lines of a shell. Their devices are at 10.0.0.1 and 10.0.0.2, which are addresses of
# the interface b0 as well. -b: the folder with bellpush and the preloaded object (target/release). -t: seconds that the
# client has (10); the server has half of that again after it. -w: seconds from the server's start to the client's (1).
# -s, -c: options of the server's and the client's `bellpush run`, such as `--fault FILE`.
# Says the last lines of each, then "client: status 0 after 0.7 s"; "hangs" where it had to be killed. The status is the
# client's, or else the server's; 77: no network or processes of its own. docs/results/known-bugs.md has what it found.
set -euo pipefail
build=target/release limit=10 wait=1 server= client=
while getopts b:t:w:s:c: option; do
  case $option in
    b) build=$OPTARG ;;
    t) limit=$OPTARG ;;
    w) wait=$OPTARG ;;
    s) server=$OPTARG ;;
    c) client=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
(($# == 2)) || { sed -n 's/^# \{0,1\}//; 2,5p' "$0" >&2; exit 2; }
build=$(readlink -f "$build")
[[ -x $build/bellpush ]] || { echo "pair.sh: no $build/bellpush" >&2; exit 2; }

[[ $limit$wait =~ ^[0-9]+$ ]] || { echo "pair.sh: -t and -w take whole seconds" >&2; exit 2; }

# The first process of a space of its own, and nobody's network.
if (($$ != 1)); then
  unshare -rn -pf --mount-proc true 2>/dev/null || { echo "pair.sh: no unshare -rnpf" >&2; exit 77; }
  exec unshare -rn -pf --mount-proc --kill-child "$0" \
    -b "$build" -t "$limit" -w "$wait" -s "$server" -c "$client" "$@"
fi
ip link set lo up && ip link add b0 type bridge && ip link set b0 up &&
  ip addr add 10.0.0.1/24 dev b0 && ip addr add 10.0.0.2/24 dev b0 || exit 77
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT

# The end of what one of them has said, and how it ended.
tell() {
  local who=$1 status=$2 from=$3 how="status $2"
  tail -n "${LINES_TOLD:-6}" "$said/$who" | cut -c1-300 | sed "s/^/$who| /"
  ((status == 137)) && how=hangs
  ((status > 128 && status < 160 && status != 137)) && how="ends by signal $((status - 128))"
  awk -v how="$how" -v who="$who" -v from="$from" -v to="$(date +%s.%N)" \
    'BEGIN { printf "%s: %s after %.1f s\n", who, how, to - from }'
}

begin=$(date +%s.%N)
# shellcheck disable=SC2086 # options are words
timeout -s KILL "$((limit + (limit + 1) / 2 + wait))" "$build/bellpush" run --address 10.0.0.1 $server -- \
  bash -c "$1" >"$said/server" 2>&1 &
peer=$!
sleep "$wait"
status=0 other=0 start=$(date +%s.%N)
# shellcheck disable=SC2086
{ timeout -s KILL "$limit" "$build/bellpush" run --address 10.0.0.2 $client -- bash -c "$2" \
  >"$said/client" 2>&1 || status=$?; } 2>/dev/null # a shell tells of what is killed
tell client "$status" "$start"
{ wait "$peer" || other=$?; } 2>/dev/null
tell server "$other" "$begin"
((status == 0)) || exit "$status"
exit "$other"
