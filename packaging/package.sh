#!/usr/bin/env bash
# Packages of what is built already; `./x package` builds it first.
#
#   packaging/package.sh prefix BUILT DIR  an installation in DIR: bin, lib, include, share
#   packaging/package.sh deb BUILT DIR     DIR/bellpush_VERSION_ARCH.deb
#   packaging/package.sh wheel BUILT DIR   DIR/bellpush-VERSION-py3-none-PLATFORM.whl
#   packaging/package.sh check KIND        says what is missing here for such a package, before minutes of building
#
# BUILT is cargo's folder with bellpush, libbellpush_shim.so and libbellpush_c.so. Nothing is fetched.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
readonly ROOT VERSION

# What is installed can be read by all.
umask 022

# A folder in $work that goes with this script.
scratch() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
}

die() {
  printf 'package: %s\n' "$*" >&2
  exit 1
}

# ---- A prefix ----------------------------------------------------------------------------------

# stage DIR LIB ZSH [PREFIX]: an installation below DIR. LIB is the folder of libraries (lib; Debian's has the
# architecture in it), ZSH the folder of zsh's completions. Without PREFIX nothing in it names its place.
stage() {
  local to=$1 lib=$1/$2 zsh=$1/$3 file page up
  up=$(sed 's|[^/]\+|..|g' <<<"$2")
  local place=${4:-\$\{pcfiledir\}/../$up}
  for file in bellpush libbellpush_shim.so libbellpush_c.so; do
    [[ -f $BUILT/$file ]] || die "there is no $BUILT/$file; './x package' builds it"
  done
  install -D -m 755 -t "$to/bin" "$BUILT/bellpush"
  # bellpush looks for it here (crates/cli/src/run.rs).
  install -D -m 644 -t "$to/lib/bellpush" "$BUILT/libbellpush_shim.so"
  # As programs ask for it: by its name with the series of the interface; linkers by the name without.
  local soname
  soname=$(objdump -p "$BUILT/libbellpush_c.so" | sed -n 's/^ *SONAME *//p')
  [[ $soname == libbellpush_c.so.?* ]] || die "$BUILT/libbellpush_c.so is '$soname', a name without a version"
  install -D -m 644 "$BUILT/libbellpush_c.so" "$lib/libbellpush_c.so.$VERSION"
  ln -s "libbellpush_c.so.$VERSION" "$lib/$soname"
  ln -s "$soname" "$lib/libbellpush_c.so"
  # Backtraces keep the functions' names.
  strip --strip-debug "$to/bin/bellpush" "$to/lib/bellpush/libbellpush_shim.so" "$lib/libbellpush_c.so.$VERSION"

  mkdir -p "$to/include"
  cp -r --no-preserve=mode "$ROOT/kernels/include/bellpush" "$to/include/"
  install -m 644 -t "$to/include" "$ROOT/capi/bellpush.h"
  # The host executor's C++ side, which a program compiles beside its kernels.
  install -D -m 644 -t "$to/share/bellpush/host" "$ROOT"/kernels/host/{exec.cpp,threads.hpp}

  mkdir -p "$lib/cmake/bellpush" "$lib/pkgconfig"
  for file in cmake/bellpushConfig.cmake cmake/bellpushConfigVersion.cmake bellpush.pc; do
    page=$lib/pkgconfig/bellpush.pc
    [[ $file != cmake/* ]] || page=$lib/cmake/bellpush/${file#cmake/}
    sed "s|@VERSION@|$VERSION|; s|@LIB@|$2|; s|@SONAME@|$soname|; s|@UP@|$up|; s|@PREFIX@|$place|" "$ROOT/packaging/$file.in" >"$page"
  done

  "$BUILT/bellpush" man "$to/share/man/man1" >/dev/null
  mkdir -p "$to/share/bash-completion/completions" "$zsh" "$to/share/fish/vendor_completions.d"
  "$BUILT/bellpush" completions bash >"$to/share/bash-completion/completions/bellpush"
  "$BUILT/bellpush" completions zsh >"$zsh/_bellpush"
  "$BUILT/bellpush" completions fish >"$to/share/fish/vendor_completions.d/bellpush.fish"

  local doc=$to/share/doc/bellpush
  mkdir -p "$doc/docs"
  install -m 644 -t "$doc" "$ROOT"/{README.md,CHANGELOG.md,LICENSE-MIT}
  install -m 644 -t "$doc/docs" "$ROOT"/docs/*.md
  "$ROOT/packaging/third-party.sh" >"$doc/THIRD-PARTY"
}

prefix() {
  [[ ! -e $TO || -d $TO ]] || die "$TO is not a folder"
  mkdir -p "$TO"
  stage "$TO" lib share/zsh/site-functions
  printf '%s\n' "$TO"
}

# ---- Debian ------------------------------------------------------------------------------------

# Packages that the objects below $1 need, with the versions whose symbols they use: what dpkg knows of the libraries
# here is what it will want there.
dependencies() {
  local tree=$1
  printf 'Source: bellpush\n\nPackage: bellpush\nArchitecture: any\n' >"$work/debian/control"
  (cd "$work" && dpkg-shlibdeps -O "$tree/usr/bin/bellpush" "$tree"/usr/lib/*/*.so) | sed -n 's/^shlibs:Depends=//p'
}

# Who maintains the package that is built here: what Debian's tools take, or git's user.
maintainer() {
  local name=${DEBFULLNAME:-$(git -C "$ROOT" config user.name || true)}
  local email=${DEBEMAIL:-$(git -C "$ROOT" config user.email || true)}
  [[ -n $name && $email == *?@?* && $name$email != *[$'\n'\<\>]* ]] ||
    die "who maintains this package? Set DEBFULLNAME and DEBEMAIL, as for Debian's tools"
  printf '%s <%s>\n' "$name" "$email"
}

check_deb() {
  local tool
  maintainer >/dev/null
  for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v "$tool" >/dev/null || die "no $tool; type: sudo apt-get install -y dpkg-dev"
  done
}

deb() {
  local tree arch triplet depends name maintainer
  check_deb
  maintainer=$(maintainer)
  arch=$(dpkg-architecture -qDEB_HOST_ARCH)
  triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  scratch
  tree=$work/debian/bellpush
  mkdir -p "$tree/DEBIAN" # by which dpkg-shlibdeps knows the tree of a package
  stage "$tree/usr" "lib/$triplet" share/zsh/vendor-completions /usr
  local doc=$tree/usr/share/doc/bellpush
  {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n'
    sed -n 's/^Copyright (c) /Copyright: /p' "$ROOT/LICENSE-MIT"
    printf 'License: MIT\n'
    # A line of its own for each paragraph's end, as the format wants it.
    sed 's/^$/./; s/^/ /' "$ROOT/LICENSE-MIT"
    printf 'Comment: THIRD-PARTY beside this file has the licences of the crates that are linked in.\n'
  } >"$doc/copyright"
  rm "$doc/LICENSE-MIT"
  gzip -9n "$doc/CHANGELOG.md" "$doc/THIRD-PARTY" "$tree"/usr/share/man/man1/*.1
  depends=$(dependencies "$tree")
  [[ -n $depends ]] || die "dpkg-shlibdeps found no dependency"
  cat >"$tree/DEBIAN/control" <<END
Package: bellpush
Version: $VERSION
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -k --summarize --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Recommends: ibverbs-providers
Suggests: perftest, ibverbs-utils
Section: net
Priority: optional
Description: GPU-initiated networking, and software mlx5 devices
 CUDA kernels write the work queue entries of an mlx5 NIC, push the payload and
 ring its doorbell.
 .
 'bellpush run PROGRAM' runs programs of rdma-core on software devices, without
 a NIC, a kernel module or root. The headers, a C library, a CMake package and a
 pkg-config file are for programs of one's own.
END
  (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
  mkdir -p "$TO"
  name=$TO/bellpush_${VERSION}_$arch.deb
  dpkg-deb --root-owner-group -Zxz --build "$tree" "$name" >/dev/null
  printf '%s\n' "$name"
}

# ---- Python ------------------------------------------------------------------------------------

check_wheel() { command -v python3 >/dev/null || die "no python3; type: sudo apt-get install -y python3"; }

wheel() {
  check_wheel
  scratch
  stage "$work" lib share/zsh/site-functions
  mkdir -p "$TO"
  python3 "$ROOT/packaging/wheel.py" "$work" "$ROOT/capi/bellpush.py" "$VERSION" "$TO"
}

case $#:$* in
  2:check\ prefix) exit 0 ;;
  2:check\ deb | 2:check\ wheel) "check_$2" ;;
  3:prefix\ * | 3:deb\ * | 3:wheel\ *)
    BUILT=$(realpath "$2")
    TO=$(realpath -m "$3")
    readonly BUILT TO
    "$1"
    ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
