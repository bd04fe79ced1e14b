#!/usr/bin/env bash
# Speed of the preloaded device beside UCX over TCP: two processes on one machine, every row once a round.
#
#   interop/speed.sh [-r ROUNDS] [-c CORE,CORE] [-b DIR]... [ROW...]
#
# Prints a table in Markdown: for each row and link the median (lowest to highest) of its rounds, and the medians
# of the ratios to both TCP rows of the same round, UCX's put and its tagged message. ROW is a pattern of rows
# (`*_lat`, `write_bw`); all without one.
# -c: the two processes' cores (0,1). -b: a folder with bellpush and the preloaded object (target/release);
# several are measured in turns, and the ratio of each to the first is given as well.
# Needs perftest and ucx_perftest (Debian: perftest, ucx-utils). See docs/results/preloaded-speed.md.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

rounds=5 cores=0,1 builds=() port=${PORT:-34515} addresses=${ADDRESSES:-127.34.0.1,127.34.0.2}
while getopts r:c:b: option; do
  case $option in
    r) rounds=$OPTARG ;;
    c) cores=$OPTARG ;;
    b) builds+=("$OPTARG") ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
((${#builds[@]})) || builds=(target/release)
patterns=("$@")

# Name; which column of the last line to take; program and arguments. Those of TCP are bases of all of their column;
# of longer messages each size is a column.
# perftest: t_typical of latencies, the average of bandwidths. ucx_perftest: the median of latencies (half a round
# trip each), the average of bandwidths.
rows=(
  "tcp_put_lat  lat ucx tcp -t ucp_put_lat -s 8 -n 20000 -w 2000"
  "tcp_tag_lat  lat ucx tcp -t tag_lat -s 8 -n 20000 -w 2000"
  "tcp_put_bw   bw  ucx tcp -t ucp_put_bw -s 1048576 -n 500 -w 50"
  "tcp_tag_bw   bw  ucx tcp -t tag_bw -s 1048576 -n 2000 -w 100"
  "write_lat    lat perftest ib_write_lat -s 8 -n 10000"
  "send_lat     lat perftest ib_send_lat -s 8 -n 10000"
  "read_lat     lat perftest ib_read_lat -s 8 -n 5000"
  "ucx_tag_lat  lat ucx rc_x -t tag_lat -s 8 -n 20000 -w 2000"
  "ucx_put_lat  lat ucx rc_x -t ucp_put_lat -s 8 -n 20000 -w 2000"
  "write_bw     bw  perftest ib_write_bw -s 1048576 -n 2000"
  "send_bw      bw  perftest ib_send_bw -s 1048576 -n 2000"
  "tcp_tag_lat2k lat2k ucx tcp -t tag_lat -s 2048 -n 2000 -w 200"
  "ucx_tag_lat2k lat2k ucx rc_x -t tag_lat -s 2048 -n 2000 -w 200"
  "tcp_tag_lat16k lat16k ucx tcp -t tag_lat -s 16384 -n 2000 -w 200"
  "ucx_tag_lat16k lat16k ucx rc_x -t tag_lat -s 16384 -n 2000 -w 200"
  "tcp_tag_lat64k lat64k ucx tcp -t tag_lat -s 65536 -n 2000 -w 200"
  "ucx_tag_lat64k lat64k ucx rc_x -t tag_lat -s 65536 -n 2000 -w 200"
  "tcp_tag_lat256k lat256k ucx tcp -t tag_lat -s 262144 -n 2000 -w 200"
  "ucx_tag_lat256k lat256k ucx rc_x -t tag_lat -s 262144 -n 2000 -w 200"
  "read_bw      bw  perftest ib_read_bw -s 1048576 -n 2000"
)

is_wanted() {
  ((${#patterns[@]})) || return 0
  local pattern row name what
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]] && return 0
    for row in "${rows[@]}"; do
      read -r name what _ <<<"$row"
      # shellcheck disable=SC2053
      [[ $1 == tcp_*_$what && $name == $pattern ]] && return 0
    done
  done
  return 1
}

scratch=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# Until somebody listens at the port, 5 s at most.
await_listener() {
  local at i
  at=$(printf ':%04X' "$port")
  for ((i = 0; i < 100; i++)); do
    grep -qs " [0-9A-F]*$at [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 && return 0
    sleep 0.05
  done
  return 1
}

# run BUILD LINK KIND PROGRAM ARGUMENTS...: server and client of a row, the client's output in $scratch/client.
run() {
  local build=$1 link=$2 program=$4 command=() device=() one two
  if [[ $3 == ucx ]]; then
    device=(env UCX_TLS="$program,self")
    [[ $program == tcp ]] && device+=(UCX_NET_DEVICES=lo) || device+=(UCX_NET_DEVICES=mlx5_0:1)
    command=(ucx_perftest -p "$port" "${@:5}")
  else
    command=("$program" -F -p "$port" "${@:5}")
  fi
  one=() two=()
  if [[ $link != tcp ]]; then
    one=("$build/bellpush" run --link-type "$link" --address "${addresses%,*}" --)
    two=("$build/bellpush" run --link-type "$link" --address "${addresses#*,}" --)
  fi
  timeout 60 "${one[@]}" "${device[@]}" taskset -c "${cores%,*}" "${command[@]}" >"$scratch/server" 2>&1 &
  server=$!
  await_listener
  timeout 60 "${two[@]}" "${device[@]}" taskset -c "${cores#*,}" "${command[@]}" 127.0.0.1 \
    >"$scratch/client" 2>&1
  wait "$server"
  server=
}

# value WHAT: the number that the client's output ends with.
value() {
  awk -v what="$1" '
    /^Final:/ { found = what ~ /^lat/ ? $3 : $(NF - 3); next }
    /^ *[0-9]+ +[0-9]+ +[0-9.]+ / { found = what ~ /^lat/ ? $5 : $4 }
    END { if (found == "") exit 1; print found }' "$scratch/client"
}

measure() { # NAME BUILD LINK WHAT COMMAND...
  local name=$1 build=$2 link=$3 what=$4
  if run "$build" "$link" "${@:5}" && found=$(value "$what"); then
    printf '%s %s %s %s\n' "$round" "$name" "$link:$build" "$found" >>"$scratch/rows"
  else
    echo "speed.sh: $name over $link ($build) failed:" >&2
    tail -n 5 "$scratch/client" "$scratch/server" >&2
    [[ -z $server ]] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    server=
  fi
}

for build in "${builds[@]}"; do echo "$build: $("$build/bellpush" --version)"; done
echo "$(uname -sr), $(nproc) cores, cores $cores taken; load average $(cut -d' ' -f1-3 /proc/loadavg) before"
for ((round = 1; round <= rounds; round++)); do
  for row in "${rows[@]}"; do
    read -r name what kind command <<<"$row"
    is_wanted "$name" || continue
    if [[ $name == tcp_* ]]; then
      # shellcheck disable=SC2086
      measure "$name" "${builds[0]}" tcp "$what" "$kind" $command
      continue
    fi
    for link in udp shm; do
      for build in "${builds[@]}"; do
        # shellcheck disable=SC2086
        measure "$name" "$build" "$link" "$what" "$kind" $command
      done
    done
  done
done
echo "load average $(cut -d' ' -f1-3 /proc/loadavg) after, $rounds rounds; latencies in us, bandwidths in MiB/s"
echo

awk -v first="${builds[0]}" '
  function sorted(list, n,   i, j, t) {
    for (i = 2; i <= n; i++) {
      t = list[i]
      for (j = i - 1; j > 0 && list[j] > t; j--) list[j + 1] = list[j]
      list[j + 1] = t
    }
  }
  function median(list, n) {
    sorted(list, n)
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
  }
  function number(x) { return sprintf(x < 1000 ? "%.4g" : "%.0f", x) }
  function ratio(key, other,   r, n, list) {
    for (r = 1; r <= rounds; r++)
      if ((r SUBSEP key) in at && (r SUBSEP other) in at) list[++n] = at[r, key] / at[r, other]
    return n ? sprintf("%.2f", median(list, n)) : "-"
  }
  FNR == NR { what[$1] = $2; next }
  {
    key = $2 " " $3
    if (!(key in seen)) { seen[key] = 1; order[++keys] = key }
    at[$1, key] = $4
    if ($1 > rounds) rounds = $1
  }
  END {
    print "| row | link | median | lowest | highest | to TCP, put | to TCP, tag | to the first build |"
    print "|---|---|---|---|---|---|---|---|"
    for (k = 1; k <= keys; k++) {
      key = order[k]
      split(key, part, " ")
      cut = index(part[2], ":")
      link = substr(part[2], 1, cut - 1); build = substr(part[2], cut + 1)
      n = 0; delete list
      for (r = 1; r <= rounds; r++) if ((r SUBSEP key) in at) list[++n] = at[r, key]
      middle = median(list, n)
      to_first = build == first ? "" : ratio(key, part[1] " " link ":" first)
      to_put = link == "tcp" ? "" : ratio(key, "tcp_put_" what[part[1]] " tcp:" first)
      to_tag = link == "tcp" ? "" : ratio(key, "tcp_tag_" what[part[1]] " tcp:" first)
      name = build == first ? link : link " (" build ")"
      printf "| %s | %s | %s | %s | %s | %s | %s | %s |\n", part[1], name, number(middle), number(list[1]),
        number(list[n]), to_put, to_tag, to_first
    }
  }' <(printf '%s\n' "${rows[@]}" | awk '{ print $1, $2 }') "$scratch/rows"
