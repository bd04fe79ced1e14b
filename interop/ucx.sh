#!/usr/bin/env bash
# UCX's own tests (gtest, ucx_perftest) on the preloaded device, case by case: one that crashes or hangs loses no other.
#
#   interop/ucx.sh [-b DIR] [-j N] [-t SECONDS] [-n CASES] [-e N] [-a SECONDS] [-s SECONDS] [-N] [-o DIR]
#                  CHECKOUT [ROW...]
#
# CHECKOUT: UCX configured with --enable-gtest and built, where it was built (test/gtest/gtest is in it); nothing is
# built here. ROW: `uct:rc_mlx5`, `ucp:dcx` and so on, or a pattern; all without one. `perf:rc_x` and so on have tests
# of src/tools/perf/ucx_perftest, one size each, in two processes; they run last. Prints a table in Markdown, then what
# failed and what was skipped, with the reason that the test gave.
# -b: the folder with bellpush and the preloaded object (target/release). -j: processes at a time (1). -t: seconds for a
# case (30); one that takes longer is slow. -n: cases in a process (40; 1 gives each its own). -e: every Nth case of
# UCP's rows, which have thousands (1). -a: when all have run, what neither passed nor skipped itself runs once again,
# each case in a process of its own, a quarter as many at a time, with so many seconds. -s: ends after so many seconds,
# with what there is by then. -N: on the network as it is; else each process has a namespace with a loopback interface
# alone, where that can be made, so that none sees another's device (test_ucp_sockaddr* need that).
# -o: where what was said is kept: `cases`, a line for each case: row, passed/failed/skipped/crashed/slow, name, reason,
# seconds, with tabs between, and a second line if it ran again; `said`, the output of those that neither passed nor
# skipped themselves; `listed`, all cases. What is in `cases` is not run again.
# UCT's rows run first, then UCP's together: an end by time leaves each of these with the same share of its cases.
# FILTER=PATTERN in the environment: of each row only these cases (a filter of gtest's).
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)

build=$root/target/release jobs=1 bound=30 batch=40 every=1 again=0 seconds=0 apart=1 out=
while getopts b:j:t:n:e:a:s:No: option; do
  case $option in
    b) build=$(readlink -f "$OPTARG") ;;
    j) jobs=$OPTARG ;;
    t) bound=$OPTARG ;;
    n) batch=$OPTARG ;;
    e) every=$OPTARG ;;
    a) again=$OPTARG ;;
    s) seconds=$OPTARG ;;
    N) apart=0 ;;
    o) out=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -ge 1 ]] || { sed -n '4,5p' "$0" >&2; exit 2; }
gtest=$1/test/gtest/gtest perftest=$1/src/tools/perf/ucx_perftest
shift
patterns=("${@:-*}")
[[ -x $build/bellpush ]] || { echo "ucx.sh: no $build/bellpush" >&2; exit 2; }

end_jobs() {
  local workers
  mapfile -t workers < <(jobs -p)
  [[ -z $pid ]] || kill "$pid" 2>/dev/null || true
  ((${#workers[@]} == 0)) || kill "${workers[@]}" 2>/dev/null || true
  wait
}

# No time to end by is one that does not come.
until=$((EPOCHSECONDS + (seconds > 0 ? seconds - 8 : 1000000000)))
scratch=$(mktemp -d)
pid=
trap 'trap - EXIT; end_jobs; rm -rf "$scratch"' EXIT
trap 'exit 143' TERM INT HUP
if [[ -z $out ]]; then out=$scratch; else mkdir -p "$out"; fi
touch "$out/cases"

# uct: the transport alone. ucp: what is built on it; `all`: as with no UCX_TLS.
rows=(uct:rc_verbs uct:rc_mlx5 uct:dc_mlx5 uct:ud_verbs uct:ud_mlx5
  ucp:rc ucp:rcv ucp:rcx ucp:dcx ucp:ud ucp:udx ucp:ib ucp:all)
# UCX_TLS, as of the environment.
perf_rows=(perf:rc_v perf:rc_x perf:dc_x perf:ud_v perf:ud_x)
perf_tests=(tag_lat tag_bw tag_sync_lat tag_sync_bw ucp_put_lat ucp_put_bw ucp_get stream_lat stream_bw ucp_am_lat
  ucp_am_bw ucp_add ucp_fadd ucp_swap ucp_cswap)

is_wanted() {
  local pattern
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

wanted=() wanted_perf=()
for row in "${rows[@]}"; do
  if is_wanted "$row"; then wanted+=("$row"); fi
done
for row in "${perf_rows[@]}"; do
  if is_wanted "$row"; then wanted_perf+=("$row"); fi
done
((${#wanted[@]} + ${#wanted_perf[@]} > 0)) ||
  { echo "ucx.sh: no such row; there are ${rows[*]} ${perf_rows[*]}" >&2; exit 2; }
((${#wanted[@]} == 0)) || [[ -x $gtest ]] ||
  { echo "ucx.sh: no $gtest: configure with --enable-gtest, then make" >&2; exit 2; }
((${#wanted_perf[@]} == 0)) || [[ -x $perftest ]] || { echo "ucx.sh: no $perftest" >&2; exit 2; }

# What runs it, as one process: what waits and signals must know bellpush itself.
alone=()
if ((apart)); then
  # shellcheck disable=SC2016
  up='ip link set lo up 2>/dev/null || python3 -c "import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack(\"16sh14x\", b\"lo\", 0x49))"; exec "$@"'
  for user in -n -rn; do
    if unshare "$user" sh -c "$up" - true 2>/dev/null; then
      alone=(unshare "$user" sh -c "$up" -)
      break
    fi
  done
  ((${#alone[@]} > 0)) || echo 'ucx.sh: no network namespaces: all processes have one network' >&2
fi
on_device=("${alone[@]}" "$build/bellpush" run -- env UCX_HANDLE_ERRORS=bt UCX_LOG_LEVEL=warn "$gtest")

record() { # HOW NAME REASON: of the row and the time that run_some knows
  local took=$((${EPOCHREALTIME/./} - began))
  printf '%s\t%s\t%s\t%s\t%d.%d\n' "$row" "$1" "$2" "$(tr -s '\t ' '  ' <<<"${3:0:300}")" \
    $((took / 1000000)) $((took / 100000 % 10)) >>"$out/cases"
  seen[$2]=1
  [[ $1 != passed && $1 != skipped ]] || return 0
  local first=$((${#said[@]} > 80 ? ${#said[@]} - 80 : 0))
  { flock 8 && printf '%s\n' "== $1 $row $2" "${said[@]:first}" >&8; } 8>>"$out/said"
}

# Runs the cases that are named, as far as the first that crashes or hangs; records how each ended.
run_some() { # BOUND NAME...
  local bound=$1 current='' reason='' skipped='' line status=0 lines=0 rest
  local deadline=$((EPOCHSECONDS + 2 * $1)) # the first has to start
  began=${EPOCHREALTIME/./} said=() ended=crashed
  shift
  (IFS=:; echo "--gtest_filter=$*") >"$mine/flags"
  rm -f "$mine/pipe"
  mkfifo "$mine/pipe"
  "${on_device[@]}" "--gtest_flagfile=$mine/flags" </dev/null >"$mine/pipe" 2>&1 &
  pid=$!
  exec 3<"$mine/pipe"
  while :; do
    rest=$(((deadline < until ? deadline : until) - EPOCHSECONDS))
    if ((rest <= 0)); then status=255 && break; fi
    IFS= read -r -t "$rest" line <&3 || { status=$?; break; }
    said+=("$line")
    if ((++lines > 400)); then said=("${said[@]:320}") lines=80; fi
    case $line in
      *'[ RUN      ] '*)
        current=${line##*'[ RUN      ] '} current=${current%% *} reason='' skipped='' began=${EPOCHREALTIME/./}
        said=("$line") lines=0 deadline=$((EPOCHSECONDS + bound)) ;;
      '[ '*SKIP*) skipped=${line#*] } skipped=${skipped:-(no reason)} ;;
      *'[       OK ] '*)
        [[ -z $current ]] || record "$([[ -n $skipped ]] && echo skipped || echo passed)" "$current" "$skipped"
        current='' ;;
      *'[  FAILED  ] '*) [[ -z $current ]] || record failed "$current" "$reason"; current='' ;;
      *rror* | *ailure* | *WARN* | *ssert* | *xpected* | *actual* | *Which* | *Value* | *signal* | *.cc:*)
        ((${#reason} > 250)) || reason+="$line " ;;
    esac
  done
  if ((status > 128)); then
    ended=slow
    if ((EPOCHSECONDS >= until)); then current=''; fi # nobody knows what it would have been
    kill -USR2 "$pid" 2>/dev/null || true
    [[ -z $current ]] || sleep 1
    kill "$pid" 2>/dev/null || true
    mapfile -t -n 300 -O "${#said[@]}" said < <(timeout 3 cat <&3)
    kill -KILL "$pid" 2>/dev/null || true # bellpush's guard ends the program
    [[ -z $current ]] || record slow "$current" "$reason"
  elif [[ -n $current ]]; then
    record crashed "$current" "$reason"
  fi
  exec 3<&-
  wait "$pid" 2>/dev/null || true
  pid=
}

# Takes lines of `todo` until there are none: a bound, a row, and names with colons between.
work() {
  local mine=$scratch/$BASHPID line number limit row names some these name ended began said
  local -A seen
  mkdir "$mine"
  trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null || true' EXIT
  trap 'exit 143' TERM
  while ((EPOCHSECONDS < until)); do
    exec 9<>"$scratch/next"
    flock 9
    read -r number <"$scratch/next"
    echo $((number + 1)) >"$scratch/next"
    exec 9>&-
    line=$(sed -n "${number}p" "$scratch/todo")
    [[ -n $line ]] || break
    IFS=$'\t' read -r limit row names <<<"$line"
    IFS=: read -r -a some <<<"$names"
    seen=()
    while ((${#some[@]} > 0 && EPOCHSECONDS < until)); do
      run_some "$limit" "${some[@]}"
      these=("${some[@]}") some=()
      for name in "${these[@]}"; do
        [[ -n ${seen[$name]-} ]] || some+=("$name")
      done
      # Nothing got on: the first does not start.
      if ((${#some[@]} == ${#these[@]} && EPOCHSECONDS < until)); then
        record "$ended" "${some[0]}" 'does not start'
        some=("${some[@]:1}")
      fi
    done
  done
}

# Runs all that is in `todo`, so many at a time; says now and then how far it is.
work_off() { # JOBS
  local worker tick=0
  echo 1 >"$scratch/next"
  ((EPOCHSECONDS < until)) && [[ -s $scratch/todo ]] || return 0
  for ((worker = 0; worker < $1; worker++)); do
    work 2>>"$out/stderr" & # bash says there what was killed
  done
  while [[ -n $(jobs -r) ]]; do
    sleep 1
    if ((++tick % 30 == 0)); then progress; fi
  done
  wait
}

# The tests of ucx_perftest over one transport. Server and client have one network.
run_perftest() { # ROW
  local row=$1 test bytes line began status said
  local -A seen
  # shellcheck disable=SC2016
  local both='port=13400; "$@" -p $port >"$0" 2>&1 & server=$!
    until grep -q ":$(printf %04X $port) .* 0A " /proc/net/tcp; do sleep 0.1; kill -0 $server || exit; done
    "$@" -p $port 127.0.0.1 -t "$TEST" -s "$BYTES" -n 100 -w 10 -f || exit; wait $server'
  for test in "${perf_tests[@]}"; do
    printf '%s\t%s\n' "$row" "$test" >>"$out/listed"
    if grep -qP "^$row\t\w+\t$test\t" "$out/cases" || ((EPOCHSECONDS >= until)); then continue; fi
    case $test in *_lat | *add | *swap) bytes=8 ;; *) bytes=65536 ;; esac
    began=${EPOCHREALTIME/./} status=0
    TEST=$test BYTES=$bytes timeout "$bound" "${alone[@]}" bash -c "$both" "$scratch/server" "$build/bellpush" run -- \
      env "UCX_TLS=${row#perf:},self" UCX_HANDLE_ERRORS=bt "$perftest" >"$scratch/client" 2>&1 </dev/null || status=$?
    mapfile -t -n 300 said < <(cat "$scratch/client" "$scratch/server")
    # Iterations, and seven numbers; it says nothing where it failed.
    if ((status == 124)); then
      record slow "$test" ''
    elif ((status > 128)); then
      record crashed "$test" "status $status"
    elif ((status == 0)) && grep -qE '^ *[0-9]+( +[0-9.]+){7}' "$scratch/client"; then
      record passed "$test" ''
    else
      line=$(grep -m 1 -hE 'ERROR|rror|WARN' "$scratch/client" "$scratch/server" || true)
      record failed "$test" "status $status $line"
    fi
  done
}

progress() {
  awk -F'\t' '{ if (!(($1, $3) in how)) all++; how[$1, $3] = $2 }
    END { for (name in how) n[how[name]]++
      printf "%s %d cases, %d passed, %d failed, %d crashed, %d slow, %d skipped\n", clock, all, n["passed"],
        n["failed"], n["crashed"], n["slow"], n["skipped"] }' clock="${SECONDS}s:" "$out/cases" >&2
}

list_cases() {
  local pattern=${FILTER:-*} filter='' row
  for row in "${wanted[@]}"; do filter+=${filter:+:}${row#*:}/${pattern%%-*}; done
  [[ $pattern != *-* ]] || filter+=-${pattern#*-}
  timeout 300 "${on_device[@]}" --gtest_list_tests --gtest_filter="$filter" </dev/null 2>"$scratch/listing" |
    awk -v rows="${wanted[*]}" -v every="$every" '
      BEGIN { split(rows, all, " "); for (i in all) row[substr(all[i], 5)] = all[i] }
      /^[A-Za-z0-9_\/]+\.$/ { suite = $1; split(suite, part, "/"); mine = index(suite, "/") ? row[part[1]] : ""; next }
      /^  / && mine != "" && (mine !~ /^ucp/ || ++seen[mine] % every == 0) { print mine "\t" suite $1 }' \
      >"$out/listed" ||
    { cat "$scratch/listing" >&2; echo 'ucx.sh: it cannot list its cases' >&2; exit 1; }
}

: >"$out/listed"
((${#wanted[@]} == 0)) || list_cases

# Batches of a row have one case each of every part of it. UCT's rows come first; within each kind those of all rows are
# mixed by how far they are in theirs.
awk -F'\t' -v batch="$batch" -v bound="$bound" '
  FILENAME == ARGV[1] { done[$1, $3]; next }
  !(($1, $2) in done) { name[$1, n[$1]++] = $2 }
  END {
    for (row in n) {
      batches = int((n[row] + batch - 1) / batch)
      for (b = 0; b < batches; b++) {
        names = ""
        for (i = b; i < n[row]; i += batches) names = names (names == "" ? "" : ":") name[row, i]
        printf "%d\t%.6f\t", (row ~ /^ucp/), (b + 0.5) / batches
        print bound "\t" row "\t" names
      }
    }
  }' "$out/cases" "$out/listed" | sort -t$'\t' -k1,1n -k2,2n -k4,4 | cut -f3- >"$scratch/todo"
work_off "$jobs"

if ((again)); then
  awk -F'\t' -v bound="$again" 'FILENAME == ARGV[1] { listed[$1, $2]; next } # what is wanted now
    ($1, $3) in listed { how[$1, $3] = $2; times[$1, $3]++; row[$1, $3] = $1; name[$1, $3] = $3 }
    END { for (i in how) if (times[i] == 1 && how[i] !~ /^(passed|skipped)$/)
      print index("crashed failed  slow", how[i]) "\t" bound "\t" row[i] "\t" name[i] }' \
    "$out/listed" "$out/cases" | sort -t$'\t' -k1,1n -k3 | cut -f2- >"$scratch/todo"
  work_off $(((jobs + 3) / 4))
fi

for row in "${wanted_perf[@]}"; do run_perftest "$row"; done

# The last time that a case ran counts.
awk -F'\t' '{ key = $1 FS $3; if (!(key in line)) order[++n] = key; else again[key]; line[key] = $0 }
  END { for (i = 1; i <= n; i++) print line[order[i]] FS (order[i] in again ? "again" : "") }' "$out/cases" \
  >"$scratch/last"
echo '| suite | cases | run | passed | of these at a second time | failed | crashed | slow | skipped |'
echo '|---|---|---|---|---|---|---|---|---|'
for row in "${wanted[@]}" "${wanted_perf[@]}"; do
  awk -F'\t' -v row="$row" 'FILENAME == ARGV[1] { listed += $1 == row; next }
    $1 == row { n[$2]++; all++; if ($2 == "passed" && $6 == "again") second++ }
    END { printf "| `%s` | %d | %d | %d | %d | %d | %d | %d | %d |\n", row, listed, all, n["passed"], second,
      n["failed"], n["crashed"], n["slow"], n["skipped"] }' "$out/listed" "$scratch/last"
done
echo
awk -F'\t' '$2 != "passed" && $2 != "skipped" { printf "%s %s %s: %s\n", $2, $1, $3, $4 }' "$scratch/last"
echo
awk -F'\t' '$2 == "skipped" { n[$4]++ } END { for (why in n) printf "%d skipped: %s\n", n[why], why }' "$scratch/last" |
  sort -rn
