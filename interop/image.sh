#!/bin/sh
# Makes the guest of `./x interop`: Debian 12's own kernel and RDMA programs as an initramfs.
#
# Nothing is installed on the host. Packages come from Debian's archive, checked by apt against
# Debian's keys, in an apt of their own below .tools/interop, so that the host may be any
# distribution that has apt. Makes there:
#   root/       the unpacked packages, also the sysroot that verbs_peer.c is built against
#   base.cpio   busybox, rdma-core, perftest, qperf, fio, libfabric's fi_pingpong, iproute2's rdma, kernel modules;
#               /init is guest-init
#   vmlinuz     the kernel
#   initrd      base.cpio and verbs_peer
# What is newer than its sources is left alone.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/interop
work=$PWD/.tools/interop
root=$work/root
guest=$work/guest
libraries=usr/lib/x86_64-linux-gnu

KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
PACKAGES='busybox-static ibverbs-utils ibverbs-providers rdmacm-utils perftest iproute2 qperf fio
  libfabric-bin libfabric1 libatomic1
  libibverbs1 librdmacm1 libibumad3 libpci3 libudev1 zlib1g libnl-3-200 libnl-route-3-200
  libbpf1 libelf1 libmnl0 libxtables12 libbsd0 libmd0 libcap2 libselinux1 libpcre2-8-0 libc6 libgcc-s1
  libibverbs-dev libc6-dev linux-libc-dev'
PROGRAMS='bin/busybox usr/bin/rdma sbin/tc usr/bin/ibv_devinfo
  usr/bin/ibv_rc_pingpong usr/bin/ibv_uc_pingpong usr/bin/ibv_ud_pingpong
  usr/bin/ib_write_bw usr/bin/ib_read_bw usr/bin/ib_send_bw usr/bin/ib_atomic_bw
  usr/bin/ib_write_lat usr/bin/ib_read_lat usr/bin/ib_send_lat
  usr/bin/rping usr/bin/udaddy usr/bin/ucmatose usr/bin/rdma_server usr/bin/rdma_client
  usr/bin/rdma_xserver usr/bin/rdma_xclient usr/bin/rstream usr/bin/riostream usr/bin/rcopy
  usr/bin/qperf usr/bin/fio usr/bin/fi_pingpong'
MODULES='virtio_pci virtio_net crc32_generic ib_uverbs rdma_rxe rdma_ucm sch_netem'

die() {
  echo "interop: $*" >&2
  exit 1
}

# stale FILE SOURCE...: whether FILE must be made again.
stale() {
  file=$1
  shift
  [ ! -e "$file" ] || [ -n "$(find "$@" -newer "$file")" ]
}

# ---- Packages --------------------------------------------------------------------------------

# shellcheck disable=SC2086 # lists of words
unpack_packages() {
  [ -e "$KEYS" ] || die "no $KEYS (apt-get install debian-archive-keyring)"
  rm -rf "$work/debs" "$root"
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/debs" "$root"
  : >"$work/apt/status"
  cat >"$work/apt/sources.list" <<SOURCES
deb [signed-by=$KEYS] http://deb.debian.org/debian bookworm main
deb [signed-by=$KEYS] http://deb.debian.org/debian bookworm-updates main
deb [signed-by=$KEYS] http://deb.debian.org/debian-security bookworm-security main
SOURCES
  own="-qq -o Dir::State=$work/apt -o Dir::State::status=$work/apt/status
    -o Dir::Cache=$work/apt/cache -o Dir::Etc::sourcelist=$work/apt/sources.list
    -o Dir::Etc::sourceparts=- -o APT::Architecture=amd64 -o APT::Sandbox::User=
    -o Acquire::Retries=2 -o Acquire::http::Timeout=20"
  apt-get $own update
  kernel=$(apt-cache $own depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-6.*\)/\1/p')
  [ -n "$kernel" ] || die "linux-image-amd64 names no kernel"
  (cd "$work/debs" && apt-get $own download "$kernel" $PACKAGES)
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
  rm -rf "$work/debs"
}

# ---- The guest's files -----------------------------------------------------------------------

# put PATH: copies a file of the packages and, for a program, the libraries that it needs.
put() {
  [ ! -e "$guest/$1" ] || return 0
  mkdir -p "$guest/$(dirname "$1")"
  cp "$root/$1" "$guest/$1"
  readelf -d "$root/$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
  # shellcheck disable=SC2046 # a list of words; a call has its own positional parameters
  set -- $(cat "$work/needed")
  for library; do put_library "$library"; done
}

# stub FILE LIBRARY...: one object in the place of libraries that a file is linked to and no case uses. fio's of
# storage (librbd, librados, libgfapi, ...) are 12 MB and bring as much again that they need; libfabric's of other
# fabrics want devices. Every function of the object fails.
stub() {
  file=$root/$1
  shift
  readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
  for library; do
    grep -qxF "$library" "$work/needed" || die "$file does not need $library"
    grep -vxF "$library" "$work/needed" >"$work/kept" || true
    mv "$work/kept" "$work/needed"
  done
  while read -r library; do
    readelf --dyn-syms --wide "$(find "$root/" -name "$library" | head -n 1)"
  done <"$work/needed" | awk '$7 != "UND" { sub("@.*", "", $8); print $8 }' >"$work/kept"
  readelf --dyn-syms --wide "$file" |
    awk 'NR == FNR { kept[$1]; next }
      $5 == "GLOBAL" && $7 == "UND" { split($8, name, "@"); if (!(name[1] in kept)) print name[1], name[2] }' \
      "$work/kept" - >"$work/symbols"
  awk '{ print "long " $1 "(void) { return -1; }" }' "$work/symbols" >"$work/stub.c"
  awk '$2 { of[$2] = of[$2] " " $1 ";" } END { for (v in of) print v " {" of[v] " };" }' \
    "$work/symbols" >"$work/stub.map"
  mkdir -p "$guest/$libraries"
  gcc --sysroot="$root" -shared -nostdlib -w -Wl,--version-script="$work/stub.map" \
    -o "$guest/$libraries/$1" "$work/stub.c"
  object=$1
  shift
  for library; do ln -s "$object" "$guest/$libraries/$library"; done
  rm "$work/kept" "$work/symbols" "$work/stub.c" "$work/stub.map"
}

put_library() {
  [ ! -e "$guest/$libraries/$1" ] || return 0 # it has a stub
  for folder in lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu lib64; do
    if [ -e "$root/$folder/$1" ]; then
      put "$folder/$1"
      return
    fi
  done
  die "no package has $1"
}

put_modules() {
  version=$(basename "$root"/lib/modules/*)
  "$busybox" depmod -b "$root" "$version"
  for module in $MODULES; do
    # `kernel/…/a.ko: kernel/…/b.ko …`, all that it depends on
    line=$(sed -n "\|/$module\.ko:|p" "$root/lib/modules/$version/modules.dep")
    [ -n "$line" ] || die "kernel $version has no module $module"
    for file in $(echo "$line" | tr -d :); do put "lib/modules/$version/$file"; done
  done
  "$busybox" depmod -b "$guest" "$version"
}

# archive FOLDER: as the kernel unpacks it.
archive() { (cd "$1" && find . | "$busybox" cpio -o -H newc 2>/dev/null); }

# ----------------------------------------------------------------------------------------------

busybox=$root/bin/busybox
for tool in apt-get awk dpkg-deb gcc readelf; do
  command -v "$tool" >/dev/null || die "no $tool"
done

if stale "$work/base.cpio" "$here/image.sh" "$here/guest-init"; then
  unpack_packages
  rm -rf "$guest"
  mkdir -p "$guest"
  stub usr/bin/fio libaio.so.1 libgfapi.so.0 libnbd.so.0 libnuma.so.1 libpmem.so.1 libpmemblk.so.1 \
    librados.so.2 librbd.so.1
  stub $libraries/libfabric.so.1 libpsm_infinipath.so.1 libpsm2.so.2
  for program in $PROGRAMS; do put "$program"; done
  put lib64/ld-linux-x86-64.so.2
  put_library libgcc_s.so.1 # pthread_exit opens it
  for provider in "$root"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so \
    "$root/etc/libibverbs.d/rxe.driver"; do
    put "${provider#"$root/"}"
  done
  put_modules
  install -m 755 "$here/guest-init" "$guest/init"
  archive "$guest" >"$work/base.new"
  cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
  rm -rf "$guest" "$work/needed" "$root/lib/modules" "$root/boot"
  mv "$work/base.new" "$work/base.cpio"
fi

if stale "$work/initrd" "$work/base.cpio" "$here/verbs_peer.c"; then
  rm -rf "$guest"
  mkdir -p "$guest/bin"
  gcc --sysroot="$root" -O2 -std=gnu11 -Wall -Wextra -Werror \
    -o "$guest/bin/verbs_peer" "$here/verbs_peer.c" -libverbs
  # The kernel unpacks one archive after the other.
  { cat "$work/base.cpio" && archive "$guest"; } >"$work/initrd.new"
  rm -rf "$guest"
  mv "$work/initrd.new" "$work/initrd"
fi
