#!/usr/bin/env bash
# Installs the Debian package in a bare Debian 12 and uses it there: packaging/try-chroot.sh DEB [FOLDER]
#
# Says what it runs and how long that takes. All but apt's part is without any network but the loopback. Root only.
# BELLPUSH_DEBIAN_MIRROR names another mirror, BELLPUSH_DEBIAN a Debian to copy.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
deb=$(realpath "$1") folder=$(realpath -m "${2:-$(mktemp -d)}")
source "$here/bare.sh"
python3 -c 'import yaml' 2>/dev/null || die "no PyYAML; type: apt-get install -y python3-yaml"
[[ -f $deb ]] || die "there is no $deb"
name=$(basename "$deb")

bare_debian "$folder"
cp "$deb" "$root/srv/"
begin=$EPOCHREALTIME
measured "apt-get update && apt-get install ./$name perftest" inside "
  cd /srv
  apt-get update -qq
  apt-get install -qq -y ./$name perftest >apt.log 2>&1 || { tail -n 5 apt.log; exit 1; }"
measured 'bellpush run -- ib_write_bw & bellpush run -- ib_write_bw 127.0.0.1' inside '
  cd /tmp
  bellpush run -- ib_write_bw -F >server.log 2>&1 &
  server=$!
  for _ in $(seq 100); do
    timeout 60 bellpush run -- ib_write_bw -F 127.0.0.1 >client.log 2>&1 && break
    grep -q "Couldn.t connect" client.log || break
    sleep 0.1
  done
  grep "BW average" -A 1 client.log || { cat server.log client.log; exit 1; }
  wait $server' --net
printf '== both: '
took "$begin" | tail -c +4

measured "the rest of the package" inside '
  bellpush --version
  cd /tmp
  bellpush bench --sizes 8 --messages 100 --json rows.json >/dev/null && grep -q inband rows.json
  test -f /usr/share/man/man1/bellpush-run.1.gz -a -f /usr/share/bash-completion/completions/bellpush ||
    { cat /etc/dpkg/dpkg.cfg.d/*; exit 1; }
  zcat /usr/share/doc/bellpush/THIRD-PARTY.gz | grep "^clap "
  ldd /usr/bin/bellpush /usr/lib/*/libbellpush_c.so /usr/lib/bellpush/*.so >ldd.log
  ! grep "not found" ldd.log || exit 1
  dpkg --verify bellpush' --net
mkdir "$root/srv/try"
cp "$here"/example/* "$root/srv/try/"
measured "apt-get install g++ cmake make pkg-config" inside '
  cd /srv
  apt-get install -qq -y --no-install-recommends g++ cmake make pkg-config libc6-dev >apt.log 2>&1 ||
    { tail -n 5 apt.log; exit 1; }'
measured "packaging/example by pkg-config and CMake" inside '
  cd /srv/try
  cc -Wall -Werror endpoint.c $(pkg-config --cflags --libs bellpush) -o by-pkg-config
  ./by-pkg-config
  cmake -S . -B build >/tmp/log && cmake --build build >/tmp/log || { cat /tmp/log; exit 1; }
  build/endpoint && build/kernel' --net
measured "apt-get purge bellpush" inside '
  apt-get purge -qq -y bellpush >/dev/null 2>&1
  ! find /usr /etc /opt -name "*bellpush*" | grep .' --net
# A job of its own, with what GitHub gives the steps of packaging/action/workflow.yml.
mkdir "$root/srv/action" "$root/srv/job"
cp "$here/action/setup.sh" "$root/srv/action/"
cp "$deb" "$root/srv/job/bellpush.deb"
python3 "$here/action/play.py" "$here/action/workflow.yml" /srv/action >"$root/srv/job.sh"
measured "packaging/action/workflow.yml, step by step" inside "
  mkdir /tmp/runner
  cd /srv/job
  RUNNER_TEMP=/tmp/runner bash /srv/job.sh"
printf '== all of it went well\n'
