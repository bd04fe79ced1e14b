#!/usr/bin/env bash
# Runs the instructions of the Dockerfile beside it in a bare Debian, where there is no docker:
# packaging/docker/try.sh DEB [FOLDER]
#
# FROM is debootstrap's minimal Debian 12; COPY, RUN, ENV, USER and WORKDIR do what docker does with them, for the forms
# that this file has; another instruction ends it. Root only. BELLPUSH_DEBIAN_MIRROR names another mirror.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
deb=$(realpath "$1") folder=$(realpath -m "${2:-$(mktemp -d)}")
source "$here/../bare.sh"
bare_debian "$folder"

user=root workdir=/ environment=()
begin=$EPOCHREALTIME
while read -r word rest; do
  case $word in
    FROM) [[ $rest == debian:bookworm-slim ]] || die "FROM $rest is not the Debian that is made here" ;;
    COPY) cp "$deb" "$root${rest##* }" ;;
    ENV) environment+=("$rest") ;;
    USER) user=$rest ;;
    WORKDIR) workdir=$rest ;;
    CMD) ;;
    RUN)
      printf '== RUN %s\n' "$rest"
      inside "cd $workdir && exec setpriv --reuid=$user --regid=$user --init-groups env HOME=$workdir ${environment[*]} sh -c '${rest//\'/\'\\\'\'}'"
      ;;
    *) die "instruction $word is not known here" ;;
  esac
# Continued lines joined, comments and empty lines gone.
done < <(sed -e '/^#/d; /^$/d' -e ':a; /\\$/{N; s/\\\n//; ba}' "$here/Dockerfile")
printf '== CMD ibv_devinfo\n'
inside "cd $workdir && exec setpriv --reuid=$user --regid=$user --init-groups env HOME=$workdir ${environment[*]} ibv_devinfo" --net
LC_ALL=C awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "== all of it went well, in %.1f s\n", b - a }'
