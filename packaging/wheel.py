"""Writes a wheel of a staged installation, with nothing but Python: packaging/package.sh calls it.

    wheel.py TREE MODULE VERSION TO

The Python module goes to site-packages with the C library beside it; the program and what it preloads go to the
environment's bin and lib/bellpush. One wheel serves every Python 3.9 and later: the
library is loaded by ctypes. Its platform tag is the oldest glibc whose symbols all the objects ask for.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

# What PEP 600 lets a wheel expect of every system.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# And what whoever builds it for machines of their own knows to be there, by commas.
SYSTEM |= set(filter(None, os.environ.get("BELLPUSH_WHEEL_EXPECTS", "").split(",")))
EPOCH = (2020, 1, 1, 0, 0, 0)  # the same tree makes the same wheel


def needs(objects):
    """The newest (major, minor) of glibc that the objects ask for; ends if they want other libraries."""
    newest = (2, 17)
    for path in objects:
        text = subprocess.run(["objdump", "-p", str(path)], check=True, capture_output=True, text=True).stdout
        foreign = set(re.findall(r"NEEDED\s+(\S+)", text)) - SYSTEM
        if foreign:
            sys.exit(f"wheel: {path.name} needs {', '.join(sorted(foreign))}, which no wheel may expect: "
                     "build it without the feature mlx5, or name them in BELLPUSH_WHEEL_EXPECTS")
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", text)
        newest = max([newest, *((int(major), int(minor)) for major, minor in versions)])
    return newest


def main():
    tree, module, version, to = map(pathlib.Path, sys.argv[1:])
    program, shim = tree / "bin/bellpush", tree / "lib/bellpush/libbellpush_shim.so"
    library = tree / "lib/libbellpush_c.so"
    major, minor = needs([program, shim, library])
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    name, info = f"bellpush-{version}", f"bellpush-{version}.dist-info"
    doc = tree / "share/doc/bellpush"
    readme = (doc / "README.md").read_text()
    files = {
        "bellpush/__init__.py": (module.read_bytes(), 0o644),
        "bellpush/libbellpush_c.so": (library.read_bytes(), 0o755),
        f"{name}.data/scripts/bellpush": (program.read_bytes(), 0o755),
        f"{name}.data/data/lib/bellpush/libbellpush_shim.so": (shim.read_bytes(), 0o644),
        f"{info}/licenses/LICENSE-MIT": ((doc / "LICENSE-MIT").read_bytes(), 0o644),
        f"{info}/licenses/THIRD-PARTY": ((doc / "THIRD-PARTY").read_bytes(), 0o644),
    }
    for path in sorted((tree / "share/man/man1").iterdir()):
        files[f"{name}.data/data/share/man/man1/{path.name}"] = (path.read_bytes(), 0o644)
    metadata = f"""Metadata-Version: 2.4
Name: bellpush
Version: {version}
Summary: GPU-initiated networking, and software mlx5 devices
License-Expression: MIT
License-File: LICENSE-MIT
License-File: THIRD-PARTY
Requires-Python: >=3.9
Provides-Extra: frames
Requires-Dist: pandas; extra == 'frames'
Description-Content-Type: text/markdown

{readme}"""
    files[f"{info}/METADATA"] = (metadata.encode(), 0o644)
    wheel = f"Wheel-Version: 1.0\nGenerator: bellpush\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)

    def digest(data):
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    rows = [f"{path},sha256={digest(data)},{len(data)}" for path, (data, _) in files.items()]
    record = f"{info}/RECORD"
    files[record] = ("\n".join([*rows, f"{record},,"]).encode() + b"\n", 0o644)

    path = to / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
            archive.writestr(entry, data)
    print(path)


main()
