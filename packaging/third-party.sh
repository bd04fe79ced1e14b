#!/usr/bin/env bash
# Prints the licences of the crates that the packaged objects contain, from cargo's own copies of their sources: each
# text once, with the crates that have it.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT

host=$(rustc -vV | sed -n 's/^host: //p')
# Lines `NAME VERSION LICENCE MANIFEST`, without our own. Offline: what was built was fetched.
of_package() {
  cargo tree --offline --locked --edges normal --target "$host" --prefix none --format '{p}|{l}' --package "$1" \
    ${2:+--features "$2"}
}
# Where the crates of verbs devices were not fetched, they were not built.
crates=$({ of_package bellpush-cli mlx5 2>/dev/null || of_package bellpush-cli; of_package bellpush-shim; of_package bellpush-c; } |
  sed 's/ (\*)$//; s/ (proc-macro)//' | grep -v '^bellpush' | sort -u)
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
printf 'bellpush contains these crates, by the first of their licences that bellpush is under or permits.\n\n'
while IFS='|' read -r crate licence; do
  name=${crate% v*} version=${crate##* v}
  printf '%s %s: %s\n' "$name" "$version" "${licence:-as its file says}"
  found=
  for file in "$sources"/*/"$name-$version"/{LICEN[CS]E,LICEN[CS]E[-.]*,COPYING*,UNLICENSE}; do
    [[ -f $file ]] || continue
    found=1
    sum=$(sha256sum <"$file" | cut -c -16)
    [[ -e $texts/$sum ]] || cp "$file" "$texts/$sum"
    printf '%s %s (%s)\n' "$name" "$version" "${file##*/}" >>"$texts/$sum.of"
  done
  # A crate whose package has no text is under the one that it names; ours is MIT's, but for who has the rights.
  if [[ -z $found ]]; then
    [[ $licence == *MIT* ]] || { printf 'no text of the licence of %s: %s\n' "$name" "$licence" >&2; exit 1; }
    sed "s/^Copyright .*/Copyright (c) the authors of $name/" LICENSE-MIT >"$texts/no-file-$name"
    printf '%s %s (MIT, without a file of its own)\n' "$name" "$version" >>"$texts/no-file-$name.of"
  fi
done <<<"$crates"
for list in "$texts"/*.of; do
  printf '\n---- '
  sort -u "$list" | paste -sd ';' | sed 's/;/; /g'
  printf '\n'
  cat "${list%.of}"
done
