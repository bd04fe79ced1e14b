"""Sends that GPU kernels post, on PyTorch tensors, CuPy and NumPy arrays, whatever has DLPack, and ctypes arrays.

A thin wrapper of bellpush.h by ctypes; needs nothing but Python. The library is the one that
BELLPUSH_LIBRARY names, or the one beside this file (in a wheel), else the newest below target/ of
the checkout that this file lies in.

    context = bellpush.open(executor="cuda")   # or "host": regions in host memory
    a, b = bellpush.pair(context, "push/inband", tensor, other)
    a.put(to=0, source=0, count=4096)          # bytes of a's region to b's
    a.quiet()

    rows = bellpush.bench("--sizes", "8,4KiB")  # a pandas.DataFrame

    comm = bellpush.join(executor="cuda")      # under torchrun, mpirun or srun
    comm.all_reduce(tensor, op="mean")         # in place, ordered on torch's current stream
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sysconfig
import threading

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}
OPS = {"sum": 0, "max": 1, "min": 2, "mean": 3}
_REFUSED, _IN_USE = -1, -4  # bellpush_code
_MOST_USED = 512  # lenders of elements that a communicator keeps, until it waits for its calls
_held = []  # elements that kernels may still read or write: for good
_CTYPES = {ctypes.c_float: "float32", ctypes.c_int: "int32", ctypes.c_ubyte: "uint8", ctypes.c_char: "uint8",
           ctypes.c_double: "float64", ctypes.c_uint64: "uint64"}


class Error(RuntimeError):
    """What bellpush_error says; `code` is the header's."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def _built(name):
    """The newest file of this name below target/ of the checkout that this file lies in, or None."""
    target = pathlib.Path(__file__).resolve().parent.parent / "target"
    found = [target / profile / name for profile in ("release", "debug")]
    found = sorted((p for p in found if p.exists()), key=lambda p: p.stat().st_mtime)
    return str(found[-1]) if found else None


def _load():
    beside = pathlib.Path(__file__).resolve().parent / "libbellpush_c.so"
    path = os.environ.get("BELLPUSH_LIBRARY") or (str(beside) if beside.exists() else None)
    path = path or _built("libbellpush_c.so")
    if not path:
        raise OSError("no libbellpush_c.so: cargo build --release -p bellpush-c makes it, "
                      "or BELLPUSH_LIBRARY says where it is")
    # Read when CUDA is initialised: a stream of copies must not wait behind a kernel's that waits for it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    library = ctypes.CDLL(path)
    pointer, word, long, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p
    for name, arguments in {
        "join": [text, ctypes.POINTER(pointer)],
        "rank": [pointer],
        "ranks": [pointer],
        "all_reduce": [pointer, pointer, pointer, long, word, word, pointer],
        "synchronize": [pointer],
        "leave": [pointer],
        "open": [text, ctypes.POINTER(pointer)],
        "close": [pointer],
        "order": [pointer],
        "endpoint_new": [pointer, text, text, pointer, long, ctypes.POINTER(pointer)],
        "endpoint_address": [pointer, text, ctypes.c_size_t],
        "endpoint_connect": [pointer, text],
        "endpoint_device": [pointer, pointer, ctypes.c_size_t],
        "endpoint_reach": [pointer],
        "endpoint_close": [pointer],
        "put": [pointer, long, long, long, pointer],
        "put_signal": [pointer, long, long, long, long, long, pointer],
        "get": [pointer, long, long, long, pointer],
        "quiet": [pointer],
        "poll_immediate": [pointer, ctypes.POINTER(ctypes.c_uint32)],
    }.items():
        getattr(library, "bellpush_" + name).argtypes = arguments
    library.bellpush_leave.restype = library.bellpush_close.restype = None
    library.bellpush_error.restype = text
    return library


def _check(library, code):
    if code < 0:
        raise Error(code, library.bellpush_error().decode())
    return code


class _Handle:
    """A handle of the library that is not freed under a call: who frees it waits for calls in other
    threads, and calls that come later are refused. Each call ends within its own timeout."""

    def __init__(self, what, value):
        self._what, self._value = what, value
        self._users, self._changed, self._process = [], threading.Condition(), os.getpid()

    def __bool__(self):
        return self._value is not None

    def __enter__(self):
        # A fork's child may have the lock taken for good.
        if self._process != os.getpid():
            raise Error(_REFUSED, f"the {self._what} is of the process that forked this one")
        with self._changed:
            if self._value is None:
                raise Error(_REFUSED, f"the {self._what} is closed")
            self._users.append(threading.get_ident())
            return self._value

    def __exit__(self, *_):
        with self._changed:
            self._users.remove(threading.get_ident())
            self._changed.notify_all()

    def take(self):
        """The handle, for whoever frees it; None where it was taken before."""
        if self._process != os.getpid():
            value, self._value = self._value, None
            return value
        with self._changed:
            # A signal's handler: it would wait for the call that it interrupted.
            if threading.get_ident() in self._users:
                raise Error(_REFUSED, f"the {self._what} cannot be closed within a call of its own")
            value, self._value = self._value, None
            self._changed.wait_for(lambda: not self._users)
            return value


def open(**options):
    """A GPU with a NIC; the options are bellpush_open's."""
    return Context(options)


class Context:
    """A GPU with a NIC, on which endpoints are made."""

    def __init__(self, options):
        self._library, context = _load(), ctypes.c_void_p()
        text = json.dumps(options).encode()
        _check(self._library, self._library.bellpush_open(text, ctypes.byref(context)))
        self._context, self._host = _Handle("context", context), options.get("executor") == "host"

    def endpoint(self, path, region, **options):
        """An endpoint on a tensor or array, which it keeps; the options are bellpush_endpoint_new's."""
        return Endpoint(self, path, region, options)

    @property
    def strict(self):
        """Whether kernels for this NIC are compiled with bp::order::strict."""
        with self._context as context:
            return _check(self._library, self._library.bellpush_order(context)) == 1

    def close(self):
        """Gives the GPU and the NIC up; endpoints go on."""
        self._library.bellpush_close(self._context.take())

    def __del__(self):
        if getattr(self, "_context", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Endpoint:
    """One end of a connection; places and lengths are bytes. Close it, or use it in a `with`.

    Any thread may call and close it: close waits for the others' calls, and later ones are refused.
    """

    def __init__(self, context, path, region, options):
        self._library, end = context._library, ctypes.c_void_p()
        self._region = memory = _Memory(region, True)
        if memory.device and context._host:
            raise ValueError("the region is a GPU's memory, and the executor is the host's")
        with context._context as opened:
            _check(self._library, self._library.bellpush_endpoint_new(
                opened, path.encode(), json.dumps(options).encode(), memory.address, memory.bytes,
                ctypes.byref(end)))
        self._end = _Handle("endpoint", end)

    @property
    def address(self):
        """What the peer's connect takes: a line of JSON."""
        text = ctypes.create_string_buffer(4096)
        with self._end as end:
            _check(self._library, self._library.bellpush_endpoint_address(end, text, len(text)))
        return text.value.decode()

    def connect(self, address):
        """Connects to the peer whose address this is, once."""
        with self._end as end:
            _check(self._library, self._library.bellpush_endpoint_connect(end, address.encode()))

    def put(self, to, source, count, signal=None, add=1):
        """Queues a write of `count` bytes to offset `to` of the peer's region; `signal` is the offset of
        an 8-byte word of it, to which `add` is added behind the bytes. Ordered on torch's or CuPy's
        current stream."""
        _whole(to, source, count, *(() if signal is None else (signal, add)))
        with self._end as end:
            stream = self._region.stream()
            if signal is None:
                code = self._library.bellpush_put(end, to, source, count, stream)
            else:
                code = self._library.bellpush_put_signal(end, to, source, count, signal, add, stream)
            _check(self._library, code)

    def get(self, to, source, count):
        """Queues a read of `count` bytes at offset `source` of the peer's region to offset `to` here."""
        _whole(to, source, count)
        with self._end as end:
            stream = self._region.stream()
            _check(self._library, self._library.bellpush_get(end, to, source, count, stream))

    def quiet(self):
        """Waits until everything is complete, and raises the first failure."""
        with self._end as end:
            _check(self._library, self._library.bellpush_quiet(end))

    def poll_immediate(self):
        """The oldest immediate that the peer's kernels sent, or None."""
        value = ctypes.c_uint32()
        with self._end as end:
            code = self._library.bellpush_poll_immediate(end, ctypes.byref(value))
            return value.value if _check(self._library, code) else None

    def device(self):
        """`struct bp_endpoint` as bytes: an argument of kernels that call the device verbs."""
        device = ctypes.create_string_buffer(192)
        with self._end as end:
            _check(self._library, self._library.bellpush_endpoint_device(end, device, len(device)))
        return device.raw

    @property
    def reach(self):
        """"gpu" or "system": the bp::reach that kernels are compiled for."""
        with self._end as end:
            return ("gpu", "system")[_check(self._library, self._library.bellpush_endpoint_reach(end))]

    def close(self):
        """Ends the connection and lets go of the region."""
        end = self._end.take()
        if end is None:
            return
        code = self._library.bellpush_endpoint_close(end)
        if code == _IN_USE:
            _held.append(self._region)
        self._region = None
        _check(self._library, code)

    def __del__(self):
        # The region goes with this object: nobody may write there any more.
        if getattr(self, "_end", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def pair(context, path, a, b, **options):
    """Two endpoints of this process on two regions, connected with each other."""
    ends = context.endpoint(path, a, **options), context.endpoint(path, b, **options)
    for end, other in (ends, ends[::-1]):
        end.connect(other.address)
    return ends


def bench(*arguments, frame=True):
    """Runs `bellpush bench` with these arguments; its rows as a pandas.DataFrame with the circumstances in
    `.attrs`, or with frame=False as a list of dicts.

    The program is the one that BELLPUSH_PROGRAM names, or this environment's, or the path's, or the checkout's.
    """
    installed = pathlib.Path(sysconfig.get_path("scripts")) / "bellpush"
    program = os.environ.get("BELLPUSH_PROGRAM") or (str(installed) if installed.exists() else None)
    program = program or shutil.which("bellpush") or _built("bellpush")
    if not program:
        raise OSError("no program bellpush: cargo build --release -p bellpush-cli makes it, "
                      "or BELLPUSH_PROGRAM says where it is")
    ran = subprocess.run([program, "bench", *map(str, arguments), "--json", "-"], capture_output=True, text=True)
    if ran.returncode not in (0, 1):  # 1: rows that were not verified say so
        raise Error(-1, ran.stderr.strip() or f"bellpush bench ended with {ran.returncode}")
    result = json.loads(ran.stdout)
    if not frame:
        return result["results"]
    import pandas
    rows = pandas.DataFrame(result["results"])
    rows.attrs.update(result["meta"])
    return rows


def join(**options):
    """Joins the job of this process's launcher; the options are bellpush_join's.

    Waits join_timeout_s for all ranks; later calls wait timeout_s for each other (300 both, if not given).
    """
    return Communicator(options)


class Communicator:
    """A rank. Leave it, or use it in a `with`."""

    def __init__(self, options):
        self._library, comm = _load(), ctypes.c_void_p()
        text = json.dumps(options).encode()
        _check(self._library, self._library.bellpush_join(text, ctypes.byref(comm)))
        self._comm, self._host = _Handle("communicator", comm), options.get("executor") == "host"
        self._used = []  # what lends elements to calls that may still be queued
        self.rank = self._library.bellpush_rank(comm)
        self.ranks = self._library.bellpush_ranks(comm)

    def all_reduce(self, values, op="sum", out=None):
        """Reduces contiguous elements, in place unless `out` is given; returns where they are."""
        out = values if out is None else out
        source, target = _Memory(values, values is out), _Memory(out, True)
        for side in (source, target):
            if side.dtype not in DTYPES:
                raise TypeError(f"elements of {side.dtype}: bellpush has {', '.join(DTYPES)}")
        if (source.count, source.dtype) != (target.count, target.dtype):
            raise ValueError(f"{source} and {target} differ")
        if op not in OPS:
            raise ValueError(f"'{op}' is no operation: {', '.join(OPS)}")
        if self._host and (source.device or target.device):
            raise ValueError("the elements are in a GPU's memory, and the executor is the host's")
        with self._comm as comm:
            code = self._library.bellpush_all_reduce(
                comm, source.address, target.address, source.count, DTYPES[source.dtype], OPS[op],
                source.stream())
            if not self._host:
                # It may be queued only: what lends the elements is kept until it is done.
                self._used += [side for side in (source, target) if side.lent]
            if code == _IN_USE:
                _held.append((source, target, list(self._used)))
            _check(self._library, code)
        if len(self._used) >= _MOST_USED:
            self.synchronize()  # behind the call: what it raises finds all ranks at the same one
        return out

    def synchronize(self):
        """Waits for all calls, and raises what became of them."""
        with self._comm as comm:
            used = len(self._used)
            code = self._library.bellpush_synchronize(comm)
            if code == _IN_USE:
                _held.append(self._used)
            else:
                del self._used[:used]
            _check(self._library, code)

    def leave(self):
        """Waits for the others and frees everything."""
        self._library.bellpush_leave(self._comm.take())
        self._used = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()


def _whole(*values):
    """Refuses what C's uint64_t would take for another number."""
    for value in values:
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{value} is no offset or length")


def _contiguous(shape, strides, unit):
    """The number of elements of this shape, whose rows must follow each other; `strides` is None for those
    that do, or counts in what an element has `unit` of."""
    count = 1
    for length, stride in zip(reversed(shape), reversed(strides or [None] * len(shape))):
        if stride is not None and length > 1 and stride != count * unit:
            raise ValueError("the tensor or array is not contiguous")
        count *= length
    return count


class _Memory:
    """Address, length and type of a tensor's or array's elements, which it keeps.

    `device`: it is a GPU's memory. `lent`: what has to stay for the address to be valid, beside the values.
    """

    def __init__(self, values, written):
        self.values, self.device, self.lent = values, False, None
        if hasattr(values, "data_ptr"):  # torch
            if not values.is_contiguous():
                raise ValueError("the tensor is not contiguous")
            self.address, self.count = values.data_ptr(), values.numel()
            self.bytes = self.count * values.element_size()
            self.dtype, self.device = str(values.dtype).removeprefix("torch."), values.is_cuda
        elif hasattr(values, "__cuda_array_interface__"):  # CuPy, Numba
            self._interface(values.__cuda_array_interface__, written)
            self.device = True
        # NumPy's arrays. Its scalars have an interface, too: to a copy that is gone at once.
        elif hasattr(values, "__array_interface__") and hasattr(values, "ctypes"):
            self._interface(values.__array_interface__, written)
        elif isinstance(values, ctypes.Array) and values._type_ in _CTYPES:
            self.address, self.count = ctypes.addressof(values), len(values)
            self.bytes, self.dtype = ctypes.sizeof(values), _CTYPES[values._type_]
        elif hasattr(values, "__dlpack__"):
            self._dlpack(written)
        else:
            raise TypeError(f"{type(values).__name__} is no tensor or array that bellpush knows")

    def stream(self):
        """The stream that the elements are used on now; None for CUDA's default stream, or without CUDA."""
        if not self.device:
            return None
        if hasattr(self.values, "data_ptr"):
            import torch
            return torch.cuda.current_stream(self.values.device).cuda_stream
        if type(self.values).__module__.startswith("cupy"):
            import cupy
            return cupy.cuda.get_current_stream().ptr
        if self.lent is not None:
            # Each export has the default stream wait for the producer's.
            _export(self.values)
            return None
        return self.values.__cuda_array_interface__.get("stream")

    def _interface(self, interface, written):
        self.address, readonly = interface["data"]
        if readonly and written:
            raise ValueError("the array is read-only")
        if interface.get("mask") is not None:
            raise ValueError("the array has a mask")
        if interface["typestr"][0] == ">":
            raise ValueError("the array's numbers are big-endian")
        kind, size = interface["typestr"][1], int(interface["typestr"][2:])
        self.count = _contiguous(interface["shape"], interface.get("strides"), size)
        self.bytes = self.count * size
        self.dtype = {"f": "float", "i": "int", "u": "uint"}.get(kind, kind) + str(8 * size)

    def _dlpack(self, written):
        """dlpack.h. The capsule calls its tensor's deleter when it goes, so it is kept."""
        self.lent, name = _export(self.values)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(self.lent, name)
        if name == _VERSIONED:
            managed = _DLManagedTensorVersioned.from_address(address)
            if managed.major != 1:
                raise ValueError(f"DLPack {managed.major}.{managed.minor} is not known here")
            if written and managed.flags & _READ_ONLY:
                raise ValueError("the tensor is read-only")
            if written and managed.flags & _IS_COPIED:
                raise ValueError("the tensor lends a copy, in which nobody would see what is written")
            tensor = managed.tensor
        else:
            tensor = _DLTensor.from_address(address)
        if tensor.device_type not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
            raise ValueError(f"the tensor is on a device of DLPack's type {tensor.device_type}")
        self.device = tensor.device_type in (_CUDA, _CUDA_MANAGED)
        shape = tensor.shape[:tensor.ndim]
        self.count = _contiguous(shape, tensor.strides[:tensor.ndim] if tensor.strides else None, 1)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.bytes = self.count * tensor.bits * tensor.lanes // 8
        kinds = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
        self.dtype = (kinds.get(tensor.code, "other") if tensor.lanes == 1 else "vector") + str(tensor.bits)

    def __str__(self):
        return f"{self.count} elements of {self.dtype}"


# dlpack.h
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY, _IS_COPIED = 1, 2
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


def _export(values):
    """A capsule of the values' memory, and its name. Only DLPack 1 says what is read-only or a copy."""
    kind = values.__dlpack_device__()[0] if hasattr(values, "__dlpack_device__") else _CPU
    # 1 is CUDA's default stream, which waits for the producer's; what None means has changed.
    stream = {"stream": 1} if kind in (_CUDA, _CUDA_MANAGED) else {}
    try:
        capsule = values.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # from before version 1
        capsule = values.__dlpack__(**stream)
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    for name in (_VERSIONED, _PLAIN):
        if valid(capsule, name):
            return capsule, name
    raise TypeError(f"{type(values).__name__}.__dlpack__ gave no capsule of DLPack's")


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]
