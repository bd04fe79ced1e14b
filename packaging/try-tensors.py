#!/usr/bin/env python3
"""Tries the Python module on tensors: two endpoints of this process, data both ways, and what has to be refused.

    python3 packaging/try-tensors.py                   # tensors of PyTorch and arrays of CuPy on GPU 0
    python3 packaging/try-tensors.py --executor host   # of PyTorch, NumPy and ctypes in host memory

A line for each case: ok, FAILED with why, or skipped where a library is not there. Status 0: everything that was tried
is right; 1: something is wrong; 2: there was nothing to try. It ends by itself within five minutes.
"""

import argparse
import ctypes
import faulthandler
import importlib
import os
import sys

import bellpush

PATHS = "push/inband push/kernel push/blueflame pull/kernel pull/blueflame staged/cpu".split()
BYTES = 64 * 1024


def library(name):
    """A module, or None where it is not there, or does not start."""
    try:
        return importlib.import_module(name)
    except Exception:  # whatever a broken installation raises
        return None


class Torch:
    """Tensors of PyTorch, on a GPU or the CPU."""

    def __init__(self, torch, device):
        self.torch, self.device, self.name = torch, device, f"torch {torch.__version__} on {device}"

    def of(self, data):
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).to(self.device)

    def data(self, region):
        return bytes(region.cpu().tolist())

    def bad(self):
        """Regions that have to be refused: what, the region, the exception, a word of it."""
        wide = self.torch.zeros((64, 64), dtype=self.torch.uint8, device=self.device)
        yield "a column", wide[:, 1], ValueError, "not contiguous"
        yield "a transposed tensor", wide[:, :8].t(), ValueError, "not contiguous"
        yield "an expanded tensor", wide[:1].expand(64, 64), ValueError, "not contiguous"
        yield "no elements", wide[:0], bellpush.Error, "no bytes"
        yield "a column by DLPack", Lends(wide[:, 1]), ValueError, "not contiguous"
        if self.device == "cpu":
            return
        yield "a CPU tensor", self.torch.zeros(64), bellpush.Error, "memory"
        pinned = self.torch.zeros(64).pin_memory()
        yield "a pinned CPU tensor", pinned, bellpush.Error, "memory"
        yield "read-only memory", ReadOnly(wide), ValueError, "read-only"
        yield "a longer interface than memory", Longer(wide), bellpush.Error, "memory"


class Cupy:
    """Arrays of CuPy."""

    def __init__(self, cupy):
        self.cupy, self.device, self.name = cupy, "cuda", f"cupy {cupy.__version__}"

    def of(self, data):
        return self.cupy.array(list(data), dtype="u1")

    def data(self, region):
        return bytes(region.get())

    def bad(self):
        wide = self.cupy.zeros((64, 64), dtype="u1")
        yield "a column", wide[:, 1], ValueError, "not contiguous"
        yield "read-only memory", ReadOnly(wide), ValueError, "read-only"


class Numpy:
    """Arrays of NumPy."""

    def __init__(self, numpy):
        self.numpy, self.device, self.name = numpy, "cpu", f"numpy {numpy.__version__}"

    def of(self, data):
        return self.numpy.frombuffer(bytearray(data), dtype="u1")

    def data(self, region):
        return region.tobytes()

    def bad(self):
        wide = self.numpy.zeros((64, 64), dtype="u1")
        yield "a column", wide[:, 1], ValueError, "not contiguous"
        wide.setflags(write=False)
        yield "read-only memory", wide, ValueError, "read-only"
        # NumPy 2 says so in the capsule, older ones lend nothing.
        yield "read-only memory by DLPack", Lends(wide), (ValueError, BufferError), "read"


class Arrays:
    """Arrays of ctypes."""

    device, name = "cpu", "ctypes"

    def of(self, data):
        return (ctypes.c_ubyte * len(data))(*data)

    def data(self, region):
        return bytes(region)

    def bad(self):
        yield "bytes, which nobody may write", b"abc", TypeError, "no tensor"


class Lends:
    """Nothing but DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Interface:
    """Nothing but CUDA's array interface, of a contiguous tensor of bytes, with its strides."""

    readonly, times = False, 1

    def __init__(self, tensor):
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self):
        told = self.tensor.__cuda_array_interface__
        length = self.times
        for count in told["shape"]:
            length *= count
        return {**told, "data": (told["data"][0], self.readonly), "shape": (length,), "strides": (1,)}


class ReadOnly(Interface):
    readonly = True


class Longer(Interface):
    times = 1 << 40


class Cases:
    """What was tried, a line each."""

    def __init__(self):
        self.right, self.wrong, self.skipped = 0, 0, 0

    def case(self, name, what):
        try:
            said = what()
        except Exception as error:  # every one is what this looks for
            self.wrong += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
        else:
            self.right += 1
            print(f"ok      {name}{f': {said}' if said else ''}", flush=True)

    def skip(self, name):
        self.skipped += 1
        print(f"skipped {name}", flush=True)


def refused(what, kind, word):
    """Runs what has to raise; what it said."""
    try:
        what()
    except kind as error:
        if word not in str(error):
            raise AssertionError(f"'{error}' does not say '{word}'") from error
        return str(error)
    raise AssertionError("it was taken")


def same(found, wanted, where):
    if found != wanted:
        at = next(i for i, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1])
        raise AssertionError(f"{where}: byte {at} is {found[at]}, not {wanted[at]}")


def both_ways(kind, context, path, wrap=lambda region: region):
    """Halves to each other, a read back, an addition behind bytes; every byte is compared."""
    half = BYTES // 2
    one, two = bytes(i * 7 % 251 for i in range(half)), bytes(i * 11 % 241 for i in range(half))
    a, b = kind.of(one + bytes(half)), kind.of(bytes(half) + two)
    near, far = bellpush.pair(context, path, wrap(a), wrap(b), timeout_s=30)
    with near, far:
        near.put(to=0, source=0, count=half)
        far.put(to=half, source=half, count=half)
        near.quiet()
        far.quiet()
        same(kind.data(a), one + two, "a")
        same(kind.data(b), one + two, "b")
        near.get(to=8, source=half, count=1001)
        near.quiet()
        same(kind.data(a)[8:1009], two[:1001], "what was read")
        far.put(to=3, source=half + 5, count=777, signal=BYTES - 8, add=3)
        far.quiet()
        before = int.from_bytes(two[-8:], "little")
        same(kind.data(a)[3:780], two[5:782], "what was written at an odd place")
        word = int.from_bytes(kind.data(a)[-8:], "little")
        if word != (before + 3) % (1 << 64):
            raise AssertionError(f"the signal's word is {word}, not {before} + 3")


def on_a_stream(torch, context):
    """A put begins after what the current stream was given, which takes a while."""
    a = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
    b = torch.zeros_like(a)
    big = torch.ones((4096, 4096), device="cuda")
    torch.cuda.synchronize()
    near, far = bellpush.pair(context, "push/inband", a, b, timeout_s=30)
    with near, far, torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            big = big @ big * 1e-4
        a.fill_(7)
        near.put(to=0, source=0, count=BYTES)
        near.quiet()
    if int((b == 7).sum()) != BYTES:
        raise AssertionError(f"{int((b == 7).sum())} of {BYTES} bytes are what the stream wrote before the put")


def closed(kind, context):
    near, far = bellpush.pair(context, "push/inband", kind.of(bytes(64)), kind.of(bytes(64)))
    near.close()
    near.close()
    said = refused(lambda: near.put(0, 0, 8), bellpush.Error, "closed")
    refused(near.quiet, bellpush.Error, "closed")
    far.close()
    return said


def wrong_calls(kind, context):
    near, far = bellpush.pair(context, "push/inband", kind.of(bytes(64)), kind.of(bytes(64)))
    with near, far:
        refused(lambda: near.put(0, 0, 65), bellpush.Error, "")
        refused(lambda: near.put(-1, 0, 8), ValueError, "no offset")
        refused(lambda: context.endpoint("push/pigeon", kind.of(bytes(64))), bellpush.Error, "pigeon")
        near.put(0, 0, 64)
        near.quiet()


def tensors(cases, kind, executor, paths):
    """All cases of one library."""
    with bellpush.open(executor=executor) as context:
        for path in paths:
            cases.case(f"{kind.name}, {path}: both ways", lambda: both_ways(kind, context, path))
        if hasattr(kind.of(bytes(8)), "__dlpack__"):
            lends = lambda: both_ways(kind, context, "push/inband", Lends)
            cases.case(f"{kind.name}, by DLPack: both ways", lends)
        if kind.device == "cuda":
            interface = lambda: both_ways(kind, context, "push/inband", Interface)
            cases.case(f"{kind.name}, by CUDA's array interface with strides: both ways", interface)
        for what, region, error, word in kind.bad():
            bad = lambda: refused(lambda: context.endpoint("push/inband", region), error, word)
            cases.case(f"{kind.name}, {what} is refused", bad)
        cases.case(f"{kind.name}, a closed endpoint is refused", lambda: closed(kind, context))
        cases.case(f"{kind.name}, wrong calls are refused", lambda: wrong_calls(kind, context))
    if kind.device == "cuda":
        with bellpush.open(executor="host") as context:
            host = lambda: refused(lambda: context.endpoint("push/inband", kind.of(bytes(64))), ValueError, "GPU's")
            cases.case(f"{kind.name}, a GPU's memory for the host executor is refused", host)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--executor", choices=("cuda", "host"), default="cuda")
    options.add_argument("--path", action="append", choices=PATHS, help="one of the paths, instead of all")
    given = options.parse_args()
    faulthandler.dump_traceback_later(300, exit=True)
    # As bellpush sets it, and before torch has CUDA begin.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    cases, paths, on_gpu = Cases(), given.path or PATHS, given.executor == "cuda"
    torch, cupy, numpy = library("torch"), library("cupy"), library("numpy")
    if not torch:
        cases.skip("torch: not there")
    elif on_gpu and not torch.cuda.is_available():
        cases.skip("torch: finds no GPU")
    else:
        tensors(cases, Torch(torch, "cuda" if on_gpu else "cpu"), given.executor, paths)
        if on_gpu:
            with bellpush.open(executor="cuda") as context:
                cases.case("torch, in the current stream's order", lambda: on_a_stream(torch, context))
    if on_gpu:
        if cupy:
            tensors(cases, Cupy(cupy), given.executor, paths)
        else:
            cases.skip("cupy: not there")
    else:
        if numpy:
            tensors(cases, Numpy(numpy), given.executor, paths)
        else:
            cases.skip("numpy: not there")
        tensors(cases, Arrays(), given.executor, paths)
    print(f"{cases.right} right, {cases.wrong} wrong, {cases.skipped} skipped")
    sys.exit(1 if cases.wrong else 0 if cases.right else 2)


main()
