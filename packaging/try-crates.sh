#!/usr/bin/env bash
# Builds the program from its .crate files in a bare Debian 12: packaging/try-crates.sh CRATES [FOLDER]
#
# CRATES is the folder that `./x package crates CRATES` filled. In there are g++, this machine's Rust, and as the source
# of all crates a folder that this machine's cargo fetched; there is no network but the loopback, no nvcc, no libclang, no
# rdma-core, no checkout. Says what it runs and how long that takes. BELLPUSH_TRY_CARGO has more arguments for
# cargo install, such as --debug. Root only. BELLPUSH_DEBIAN_MIRROR names another mirror, BELLPUSH_DEBIAN a Debian to copy.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
crates=$(realpath "$1") folder=$(realpath -m "${2:-$(mktemp -d)}")
source "$here/bare.sh"
compgen -G "$crates/bellpush-cli-*.crate" >/dev/null || die "no bellpush-cli-*.crate in $crates; ./x package crates makes it"
command -v cargo >/dev/null || die "no cargo"
inside_seconds=1500 lent=$(rustc --print sysroot)

bare_debian "$folder"
# What a registry has of a crate, as cargo wants it of a folder: its files, and the digest of the .crate file, which the
# program's Cargo.lock names.
source=$root/srv/source
mkdir "$source"
patches=()
for file in "$crates"/*.crate; do
  crate=$(basename "$file" .crate)
  tar -xzf "$file" -C "$source" --no-same-owner
  printf '{"files":{},"package":"%s"}\n' "$(sha256sum "$file" | cut -d' ' -f1)" >"$source/$crate/.cargo-checksum.json"
  patches+=(--config "patch.crates-io.${crate%-*}.path='$source/$crate'")
done
# The crates of others, in the versions of the program's Cargo.lock; a copy, since cargo writes the lock anew.
cli=$(basename "$crates"/bellpush-cli-*.crate .crate)
cp -r "$source/$cli" "$folder/cli"
patches=("${patches[@]//$source\/$cli\'/$folder/cli\'}")
# What it says to write into a configuration is written below.
vendor() { cargo vendor --quiet --versioned-dirs --manifest-path "$folder/cli/Cargo.toml" "${patches[@]}" "$folder/others" >/dev/null; }
measured "cargo vendor" vendor
mv "$folder"/others/* "$source/"
rm -r "$folder/cli" "$folder/others"
mkdir "$root/srv/.cargo"
printf '[source.crates-io]\nreplace-with = "folder"\n[source.folder]\ndirectory = "/srv/source"\n' >"$root/srv/.cargo/config.toml"

measured "apt-get update && apt-get install g++" inside '
  cd /srv
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends g++ libc6-dev >apt.log 2>&1 || { tail -n 5 apt.log; exit 1; }
  ! command -v nvcc clang pkg-config cmake python3 || exit 1
  ! find / -xdev -path /srv/source -prune -o -name "libclang*" -print -o -name verbs.h -print | grep . || exit 1'
measured "cargo install --locked bellpush-cli ${BELLPUSH_TRY_CARGO:-}" inside "
  cd /srv
  export PATH=/opt/lent/bin:\$PATH
  rustc --version
  cargo install --quiet --locked bellpush-cli ${BELLPUSH_TRY_CARGO:-}" --net
lent=
measured "bellpush --version, bellpush bench" inside '
  cd /tmp
  export PATH=/srv/.cargo/bin:$PATH
  bellpush --version
  bellpush bench --sizes 8 --messages 100 --json rows.json
  grep -q "\"verified\": *true" rows.json
  ! grep "\"verified\": *false" rows.json || exit 1
  ldd /srv/.cargo/bin/bellpush' --net
printf '== all of it went well\n'
