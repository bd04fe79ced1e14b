#!/usr/bin/env bash
# UCX's own tests (gtest) on the preloaded device, case by case: a case that crashes or hangs loses no other.
#
#   interop/ucx.sh [-b DIR] [-t SECONDS] [-n CASES] [-e N] [-o DIR] CHECKOUT [ROW...]
#
# CHECKOUT: UCX configured with --enable-gtest and built, where it was built (test/gtest/gtest is in it); nothing is
# built here. ROW: `uct:rc_mlx5`, `ucp:dcx` and so on, or a pattern; all without one. Prints a table in Markdown, then
# what failed and what was skipped, with the reason that the test gave.
# -b: the folder with bellpush and the preloaded object (target/release). -t: seconds for a case (30); one that takes
# longer is slow. -n: cases in a process (40; 1 gives each its own). -e: every Nth case of UCP's rows, which have
# thousands (1). -o: where what was said is kept, and `cases`, a line for each case: row, passed/failed/skipped/crashed/
# slow, name, reason, with tabs between. Rows that are whole there are not run again.
# FILTER=PATTERN in the environment: of each row only these cases (a filter of gtest's).
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)

build=$root/target/release bound=30 batch=40 every=1 out=
while getopts b:t:n:e:o: option; do
  case $option in
    b) build=$(readlink -f "$OPTARG") ;;
    t) bound=$OPTARG ;;
    n) batch=$OPTARG ;;
    e) every=$OPTARG ;;
    o) out=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 ]] || { sed -n '4p' "$0" >&2; exit 2; }
gtest=$1/test/gtest/gtest
shift
patterns=("${@:-*}")
[[ -x $gtest ]] || { echo "ucx.sh: no $gtest: configure with --enable-gtest, then make" >&2; exit 2; }
[[ -x $build/bellpush ]] || { echo "ucx.sh: no $build/bellpush" >&2; exit 2; }

scratch=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null || true; rm -rf "$scratch"' EXIT
if [[ -z $out ]]; then out=$scratch; else mkdir -p "$out"; fi
touch "$out/cases" "$out/whole"

# uct: the transport alone. ucp: what is built on it; `all`: as with no UCX_TLS.
rows=(uct:rc_verbs uct:rc_mlx5 uct:dc_mlx5 uct:ud_verbs uct:ud_mlx5
  ucp:rc ucp:rcv ucp:rcx ucp:dcx ucp:ud ucp:udx ucp:ib ucp:all)

is_wanted() {
  local pattern
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

# What runs it. Not a function: what waits and signals must know the program itself.
on_device=("$build/bellpush" run -- env UCX_HANDLE_ERRORS=bt UCX_LOG_LEVEL=warn "$gtest")

record() { # ROW HOW NAME REASON
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$(tr -s '\t ' '  ' <<<"${4:0:300}")" >>"$out/cases"
}

# Runs the cases that are named, as far as the first that crashes or hangs; records how each ended.
run_some() { # ROW NAME...
  local row=$1 current='' reason='' skipped='' line status=0
  shift
  (IFS=:; echo "--gtest_filter=$*") >"$scratch/flags"
  rm -f "$scratch/pipe"
  mkfifo "$scratch/pipe"
  "${on_device[@]}" "--gtest_flagfile=$scratch/flags" >"$scratch/pipe" 2>&1 &
  pid=$!
  exec 3<"$scratch/pipe"
  while IFS= read -r -t "$bound" line <&3 || { status=$?; false; }; do
    printf '%s\n' "$line" >>"$out/${row/:/-}.log"
    case $line in
      '[ RUN '*) current=${line#*] } current=${current%% *} reason='' skipped='' ;;
      '[ '*SKIP*) skipped=${line#*] } skipped=${skipped:-(no reason)} ;;
      '[       OK'*)
        [[ -z $current ]] || record "$row" "$([[ -n $skipped ]] && echo skipped || echo passed)" "$current" "$skipped"
        current='' ;;
      '[  FAILED  ]'*) [[ -z $current ]] || record "$row" failed "$current" "$reason"; current='' ;;
      *rror* | *ailure* | *WARN* | *ssert* | *xpected* | *actual* | *Which* | *Value* | *signal* | *.cc:*)
        ((${#reason} > 250)) || reason+="$line " ;;
    esac
  done
  if ((status > 128)); then
    kill -USR2 "$pid" 2>/dev/null || true
    sleep 1
    kill "$pid" 2>/dev/null || true
    timeout 5 cat <&3 >>"$out/${row/:/-}.log" || true
    [[ -z $current ]] || record "$row" slow "$current" "$reason"
  elif [[ -n $current ]]; then
    record "$row" crashed "$current" "$reason"
  fi
  exec 3<&-
  wait "$pid" || true
  pid=
}

for row in "${rows[@]}"; do
  is_wanted "$row" && ! grep -qx "$row" "$out/whole" || continue
  prefix=${row#*:}
  "${on_device[@]}" --gtest_list_tests --gtest_filter="$prefix/${FILTER:-*}" 2>/dev/null | awk -v prefix="$prefix" '
    /^[^ ].*\.$/ { suite = index($0, prefix "/") == 1 ? $1 : ""; next }
    /^  / && suite != "" { print suite $1 }' >"$scratch/all"
  [[ $row != ucp:* ]] || awk -v every="$every" 'NR % every == 0' "$scratch/all" >"$scratch/some"
  [[ $row != ucp:* ]] || mv "$scratch/some" "$scratch/all"
  before=-1
  while :; do
    awk -F'\t' -v row="$row" 'FILENAME == ARGV[1] { if ($1 == row) seen[$3]; next } !($1 in seen)' \
      "$out/cases" "$scratch/all" >"$scratch/left"
    left=$(wc -l <"$scratch/left")
    ((left > 0)) || break
    mapfile -t some < <(head -n "$batch" "$scratch/left")
    # Nothing got on: the first does not start.
    if ((left == before)); then record "$row" crashed "${some[0]}" 'does not start'; fi
    before=$left
    run_some "$row" "${some[@]}"
  done
  echo "$row" >>"$out/whole"
  awk -F'\t' -v row="$row" '$1 == row { n[$2]++; all++ }
    END { printf "%s: %d cases, %d passed, %d failed, %d crashed, %d slow, %d skipped\n",
      row, all, n["passed"], n["failed"], n["crashed"], n["slow"], n["skipped"] }' "$out/cases" >&2
done

echo '| suite | cases | passed | failed | crashed | slow | skipped |'
echo '|---|---|---|---|---|---|---|'
for row in "${rows[@]}"; do
  is_wanted "$row" || continue
  awk -F'\t' -v row="$row" '$1 == row { n[$2]++; all++ }
    END { printf "| %s | %d | %d | %d | %d | %d | %d |\n",
      row, all, n["passed"], n["failed"], n["crashed"], n["slow"], n["skipped"] }' "$out/cases"
done
echo
awk -F'\t' '$2 != "passed" && $2 != "skipped" { printf "%s %s %s: %s\n", $2, $1, $3, $4 }' "$out/cases"
echo
awk -F'\t' '$2 == "skipped" { n[$4]++ } END { for (why in n) printf "%d skipped: %s\n", n[why], why }' "$out/cases" |
  sort -rn
