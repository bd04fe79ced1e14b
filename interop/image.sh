#!/bin/sh
# Makes the guest of `./x interop`: Debian 12's own kernel and RDMA programs as an initramfs.
#
# Nothing is installed on the host. Packages come from Debian's archive, checked by apt against
# Debian's keys, in an apt of their own below .tools/interop, so that the host may be any
# distribution that has apt. Makes there:
#   vmlinuz     the kernel
#   base.cpio   busybox, rdma-core, perftest, iproute2's rdma, kernel modules; /init is guest-init
#   root/       the unpacked packages, which is also the sysroot that verbs_peer.c is built against
set -eu
cd "$(dirname "$0")/.."
here=$PWD/interop
work=$PWD/.tools/interop
stamp=$work/made

KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
PACKAGES='busybox-static ibverbs-utils ibverbs-providers perftest iproute2
  libibverbs1 librdmacm1 libibumad3 libpci3 libudev1 zlib1g libnl-3-200 libnl-route-3-200
  libbpf1 libelf1 libmnl0 libbsd0 libmd0 libcap2 libselinux1 libpcre2-8-0 libc6 libgcc-s1
  libibverbs-dev libc6-dev linux-libc-dev'
PROGRAMS='bin/busybox usr/bin/rdma sbin/rdma usr/bin/ibv_devinfo
  usr/bin/ibv_rc_pingpong usr/bin/ibv_uc_pingpong usr/bin/ibv_ud_pingpong
  usr/bin/ib_write_bw usr/bin/ib_read_bw usr/bin/ib_send_bw'
MODULES='virtio_pci virtio_net crc32_generic rdma_rxe ib_uverbs'

die() {
  echo "interop: $*" >&2
  exit 1
}

if [ -e "$stamp" ] && [ -z "$(find "$here/image.sh" "$here/guest-init" -newer "$stamp")" ]; then
  exit 0
fi
for tool in apt-get dpkg-deb gcc readelf; do
  command -v "$tool" >/dev/null || die "no $tool"
done
[ -e "$KEYS" ] || die "no $KEYS (apt-get install debian-archive-keyring)"
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/debs"
: >"$work/apt/status"

cat >"$work/apt/sources.list" <<SOURCES
deb [signed-by=$KEYS] http://deb.debian.org/debian bookworm main
deb [signed-by=$KEYS] http://deb.debian.org/debian bookworm-updates main
deb [signed-by=$KEYS] http://deb.debian.org/debian-security bookworm-security main
SOURCES
own="-qq -o Dir::State=$work/apt -o Dir::State::status=$work/apt/status -o Dir::Cache=$work/apt/cache
  -o Dir::Etc::sourcelist=$work/apt/sources.list -o Dir::Etc::sourceparts=-
  -o APT::Architecture=amd64 -o Acquire::Retries=2 -o Acquire::http::Timeout=20
  -o APT::Sandbox::User="
# shellcheck disable=SC2086 # lists of words
{
  apt-get $own update
  kernel=$(apt-cache $own depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-6.*\)/\1/p')
  [ -n "$kernel" ] || die "linux-image-amd64 names no kernel"
  rm -rf "$work/debs" "$work/root" "$work/guest"
  mkdir -p "$work/debs" "$work/root" "$work/guest"
  (cd "$work/debs" && apt-get $own download "$kernel" $PACKAGES)
}
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
cp "$work"/root/boot/vmlinuz-* "$work/vmlinuz"

# put PATH: copies a file of the packages and, for a program, the libraries that it needs.
put() {
  [ ! -e "$work/guest/$1" ] || return 0
  mkdir -p "$work/guest/$(dirname "$1")"
  cp "$work/root/$1" "$work/guest/$1"
  readelf -d "$work/root/$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
  set -- $(cat "$work/needed")
  for library; do put_library "$library"; done
}
put_library() {
  for folder in lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu lib64; do
    if [ -e "$work/root/$folder/$1" ]; then
      put "$folder/$1"
      return
    fi
  done
  die "no package has $1"
}

for program in $PROGRAMS; do [ ! -e "$work/root/$program" ] || put "$program"; done
put lib64/ld-linux-x86-64.so.2
put_library libgcc_s.so.1 # pthread_exit opens it
(cd "$work/root" && ls usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so etc/libibverbs.d/rxe.driver) |
  while read -r provider; do put "$provider"; done

busybox=$work/root/bin/busybox
version=$(basename "$work"/root/lib/modules/*)
"$busybox" depmod -b "$work/root" "$version"
dep=$work/root/lib/modules/$version/modules.dep
for module in $MODULES; do
  line=$(sed -n "\|/$module\.ko:|p" "$dep")
  if [ -z "$line" ]; then
    grep -q "/$module\.ko" "$work/root/lib/modules/$version/modules.builtin" && continue
    die "kernel $version has no module $module"
  fi
  for file in $(echo "$line" | tr -d :); do put "lib/modules/$version/$file"; done
done
"$busybox" depmod -b "$work/guest" "$version"
install -m 755 "$here/guest-init" "$work/guest/init"
(cd "$work/guest" && find . | "$busybox" cpio -o -H newc >"$work/base.cpio" 2>/dev/null)
rm -rf "$work/debs" "$work/guest" "$work/needed" "$work/root/lib/modules" "$work/root/boot"
touch "$stamp"
