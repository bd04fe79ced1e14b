# A bare Debian for the scripts that try packages: `source` it, then `bare_debian FOLDER` and `inside COMMAND`.
#
# debootstrap's minimal Debian 12 below FOLDER, from the mirror that this machine's apt has, or BELLPUSH_DEBIAN_MIRROR;
# or a copy of the one in the folder BELLPUSH_DEBIAN. It is removed when the script ends.

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

bare_debian() {
  local folder=$1 mirror tool
  [[ $(id -u) == 0 ]] || die "a Debian is made by root alone"
  for tool in debootstrap unshare; do
    command -v "$tool" >/dev/null || die "no $tool; type: apt-get install -y debootstrap util-linux"
  done
  # Deb822's line, then the old form's.
  mirror=$(sed -n 's|^URIs: *\(http[^ ]*/debian\)/*$|\1|p; s|^deb \(http[^ ]*/debian\)/* .*|\1|p' \
    /etc/apt/sources.list.d/* /etc/apt/sources.list 2>/dev/null | head -n 1) || true
  mirror=${BELLPUSH_DEBIAN_MIRROR:-$mirror}
  [[ -n $mirror || -n ${BELLPUSH_DEBIAN:-} ]] || die "apt has no Debian mirror; name one in BELLPUSH_DEBIAN_MIRROR"
  root=$folder/debian
  [[ ! -e $root ]] || die "$root is there already"
  trap 'rm -rf --one-file-system "$root"' EXIT
  mkdir -p "$folder"
  printf '== a bare Debian: debootstrap --variant=minbase bookworm\n'
  if [[ -n ${BELLPUSH_DEBIAN:-} ]]; then
    cp -a --one-file-system "$BELLPUSH_DEBIAN" "$root"
  else
    timeout --kill-after=10 900 debootstrap --variant=minbase bookworm "$root" "$mirror" \
      >"$folder/debootstrap.log" 2>&1 || die "debootstrap: $(tail -n 1 "$folder/debootstrap.log")"
  fi
  cp /etc/resolv.conf "$root/etc/"
  # This machine's way to the mirror, if its apt goes through something.
  cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
}

# inside COMMAND [--net]: in mount and process namespaces that end with the command, and all that it left behind with
# them; --net: with no network but a loopback interface of its own. It may take `inside_seconds`, and finds at /opt/lent
# the folder of this machine that is named in `lent`.
inside_seconds=300 lent=
inside() {
  timeout --kill-after=10 "$inside_seconds" unshare --mount --propagation private --pid --fork --kill-child "${@:2}" bash -c '
    mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" || exit
    [[ -z $2 ]] || { mkdir -p "$0/opt/lent" && mount -o bind,ro "$2" "$0/opt/lent"; } || exit
    ip link set lo up 2>/dev/null
    exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv DEBIAN_FRONTEND=noninteractive \
      LANG=C.UTF-8 bash -euo pipefail -c "$1"' "$root" "$1" "$lent"
}

# measured WHAT COMMAND...: says what it is, runs it, and says how long it took.
measured() {
  local since=$EPOCHREALTIME
  printf '== %s\n' "$1"
  "${@:2}"
  took "$since"
}
took() { LC_ALL=C awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "== %.1f s\n", b - a }'; }
