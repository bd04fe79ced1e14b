#!/usr/bin/env bash
# Installs the wheel in a bare Debian 12 and uses it there: packaging/try-wheel.sh WHEEL [FOLDER]
#
# Says what it runs and how long that takes. NumPy and pandas are fetched by this machine's pip; all that is Python's in
# there is without any network but the loopback. Root only. BELLPUSH_TRY_APT names packages of Debian for a wheel that
# expects libraries, BELLPUSH_DEBIAN_MIRROR another mirror, BELLPUSH_DEBIAN a Debian to copy.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")
wheel=$(realpath "$1") folder=$(realpath -m "${2:-$(mktemp -d)}")
source "$here/bare.sh"
[[ -f $wheel ]] || die "there is no $wheel"
python3 -c 'import pip' 2>/dev/null || die "no pip; type: apt-get install -y python3-pip"

bare_debian "$folder"
mkdir "$root/srv/wheels"
cp "$wheel" "$root/srv/wheels/"
cp "$here/try-tensors.py" "$root/srv/"
packages=(python3-venv ${BELLPUSH_TRY_APT:-})
measured "apt-get update && apt-get install ${packages[*]}" inside "
  cd /srv
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends ${packages[*]} >apt.log 2>&1 || { tail -n 5 apt.log; exit 1; }
  python3 --version
  ! command -v gcc g++ nvcc || exit 1"
# For the Python that is in there, whatever this machine's is.
python=$(inside 'python3 -c "import sys; print(\"%d.%d\" % sys.version_info[:2])"')
measured "pip download numpy pandas" python3 -m pip --quiet download --retries 1 --only-binary=:all: --python-version "$python" \
  --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_28_$(uname -m)" --dest "$root/srv/wheels" numpy pandas
measured "pip install bellpush[frames] numpy" inside '
  cd /srv
  python3 -m venv env
  env/bin/pip --quiet --disable-pip-version-check install --no-index --find-links wheels "bellpush[frames]" numpy
  env/bin/pip list --disable-pip-version-check 2>/dev/null | grep -E "^(bellpush|numpy|pandas) "' --net
# The page's own lines: packaging/README.md, Python.
sed -n '/^```python$/,/^```$/{/^```/d;p}' "$here/README.md" >"$root/srv/page.py"
cat >>"$root/srv/page.py" <<'END'
assert (a == b).all() and a[1] == 1, (a, b)
frame = bellpush.bench("--sizes", "8", "--messages", 100)
assert len(frame) > 5 and frame.verified.all() and frame.attrs["nic"]["software"], frame
print(frame.pivot(index="kick", columns="data", values="latency_ns_p50").round(0).to_string())
END
measured "the page's lines, and a frame of bench" inside 'cd /srv && env/bin/python -I page.py' --net
measured "try-tensors.py --executor host" inside 'cd /srv && env/bin/python -I try-tensors.py --executor host' --net
measured "the program and what it preloads" inside '
  cd /srv
  env/bin/bellpush --version
  env/bin/bellpush run -- true
  ldd env/bin/bellpush env/lib/bellpush/*.so env/lib/python3*/site-packages/bellpush/*.so >ldd.log
  ! grep "not found" ldd.log || exit 1' --net
measured "pip uninstall bellpush" inside '
  cd /srv
  env/bin/pip --quiet --disable-pip-version-check uninstall -y bellpush
  ! find env -path "*bellpush*" | grep .' --net
printf '== all of it went well\n'
