"""All-reduce with sends that GPU kernels post, on PyTorch tensors, NumPy arrays and ctypes arrays.

A thin wrapper of bellpush.h by ctypes; needs nothing but Python. The library is the one that
BELLPUSH_LIBRARY names, else the newest below target/ of the checkout that this file lies in.

    comm = bellpush.join(executor="cuda")      # under torchrun, mpirun or srun
    comm.all_reduce(tensor, op="mean")         # in place, ordered on torch's current stream
"""

import ctypes
import json
import os
import pathlib

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}
OPS = {"sum": 0, "max": 1, "min": 2, "mean": 3}
_IN_USE = -4  # bellpush_code
_held = []  # elements that kernels may still read or write: for good
_CTYPES = {ctypes.c_float: "float32", ctypes.c_int: "int32"}


class Error(RuntimeError):
    """What bellpush_error says; `code` is the header's."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def _load():
    path = os.environ.get("BELLPUSH_LIBRARY")
    if not path:
        target = pathlib.Path(__file__).resolve().parent.parent / "target"
        found = [target / profile / "libbellpush_c.so" for profile in ("release", "debug")]
        found = sorted((p for p in found if p.exists()), key=lambda p: p.stat().st_mtime)
        if not found:
            raise OSError("no libbellpush_c.so: cargo build --release -p bellpush-c makes it, "
                          "or BELLPUSH_LIBRARY says where it is")
        path = str(found[-1])
    library = ctypes.CDLL(path)
    pointer, word = ctypes.c_void_p, ctypes.c_int
    library.bellpush_join.argtypes = [ctypes.c_char_p, ctypes.POINTER(pointer)]
    library.bellpush_rank.argtypes = [pointer]
    library.bellpush_ranks.argtypes = [pointer]
    library.bellpush_all_reduce.argtypes = [pointer, pointer, pointer, ctypes.c_uint64, word, word,
                                            pointer]
    library.bellpush_synchronize.argtypes = [pointer]
    library.bellpush_leave.argtypes = [pointer]
    library.bellpush_leave.restype = None
    library.bellpush_error.restype = ctypes.c_char_p
    return library


def join(**options):
    """Joins the job of this process's launcher; the options are bellpush_join's.

    Waits join_timeout_s for all ranks; later calls wait timeout_s for each other (300 both, if not given).
    """
    # Read when CUDA is initialised: a stream of copies must not wait behind a kernel's that waits for it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    return Communicator(options)


class Communicator:
    """A rank. Leave it, or use it in a `with`."""

    def __init__(self, options):
        self._library = _load()
        self._comm = ctypes.c_void_p()
        text = json.dumps(options).encode()
        self._check(self._library.bellpush_join(text, ctypes.byref(self._comm)))
        self.rank = self._library.bellpush_rank(self._comm)
        self.ranks = self._library.bellpush_ranks(self._comm)

    def _check(self, code):
        if code < 0:
            raise Error(code, self._library.bellpush_error().decode())

    def all_reduce(self, values, op="sum", out=None):
        """Reduces contiguous elements, in place unless `out` is given; returns where they are."""
        out = values if out is None else out
        source, target = _Elements(values, values is out), _Elements(out, True)
        if (source.count, source.dtype) != (target.count, target.dtype):
            raise ValueError(f"{source} and {target} differ")
        if op not in OPS:
            raise ValueError(f"'{op}' is no operation: {', '.join(OPS)}")
        dtype = DTYPES[source.dtype]
        code = self._library.bellpush_all_reduce(
            self._comm, source.address, target.address, source.count, dtype, OPS[op],
            source.stream)
        if code == _IN_USE:
            _held.append((values, out))
        self._check(code)
        return out

    def synchronize(self):
        """Waits for all calls, and raises what became of them."""
        self._check(self._library.bellpush_synchronize(self._comm))

    def leave(self):
        """Waits for the others and frees everything."""
        self._library.bellpush_leave(self._comm)
        self._comm = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._comm:
            self.leave()


class _Elements:
    """Address, number and type of a tensor's or array's elements."""

    def __init__(self, values, written):
        self.stream = None
        if hasattr(values, "data_ptr"):  # torch
            if not values.is_contiguous():
                raise ValueError("the tensor is not contiguous")
            self.address, self.count = values.data_ptr(), values.numel()
            self.dtype = str(values.dtype).removeprefix("torch.")
            if values.is_cuda:
                import torch
                self.stream = torch.cuda.current_stream(values.device).cuda_stream
        # NumPy's arrays. Its scalars have an interface, too: to a copy that is gone at once.
        elif hasattr(values, "__array_interface__") and hasattr(values, "ctypes"):
            interface = values.__array_interface__
            if interface.get("strides") is not None:
                raise ValueError("the array is not contiguous")
            self.address, readonly = interface["data"]
            if readonly and written:
                raise ValueError("the array is read-only")
            self.count, self.dtype = values.size, str(values.dtype)
        elif isinstance(values, ctypes.Array) and values._type_ in _CTYPES:
            self.address, self.count = ctypes.addressof(values), len(values)
            self.dtype = _CTYPES[values._type_]
        else:
            raise TypeError(f"{type(values).__name__} is no tensor or array that bellpush knows")
        if self.dtype not in DTYPES:
            raise TypeError(f"elements of {self.dtype}: bellpush has {', '.join(DTYPES)}")

    def __str__(self):
        return f"{self.count} elements of {self.dtype}"
