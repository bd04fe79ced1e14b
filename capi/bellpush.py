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

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}
OPS = {"sum": 0, "max": 1, "min": 2, "mean": 3}
_IN_USE = -4  # bellpush_code
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


def open(**options):
    """A GPU with a NIC; the options are bellpush_open's."""
    return Context(options)


class Context:
    """A GPU with a NIC, on which endpoints are made."""

    def __init__(self, options):
        self._library = _load()
        self._context = ctypes.c_void_p()
        text = json.dumps(options).encode()
        _check(self._library, self._library.bellpush_open(text, ctypes.byref(self._context)))

    def endpoint(self, path, region, **options):
        """An endpoint on a tensor or array, which it keeps; the options are bellpush_endpoint_new's."""
        return Endpoint(self, path, region, options)

    @property
    def strict(self):
        """Whether kernels for this NIC are compiled with bp::order::strict."""
        return _check(self._library, self._library.bellpush_order(self._context)) == 1

    def close(self):
        """Gives the GPU and the NIC up; endpoints go on."""
        context, self._context = self._context, None
        self._library.bellpush_close(context)

    def __del__(self):
        if getattr(self, "_context", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Endpoint:
    """One end of a connection; places and lengths are bytes. Close it, or use it in a `with`."""

    def __init__(self, context, path, region, options):
        self._library, self._end, self._region = context._library, ctypes.c_void_p(), region
        memory = _Memory(region, True)
        _check(self._library, self._library.bellpush_endpoint_new(
            context._context, path.encode(), json.dumps(options).encode(), memory.address,
            memory.bytes, ctypes.byref(self._end)))

    @property
    def address(self):
        """What the peer's connect takes: a line of JSON."""
        text = ctypes.create_string_buffer(4096)
        _check(self._library, self._library.bellpush_endpoint_address(self._end, text, len(text)))
        return text.value.decode()

    def connect(self, address):
        """Connects to the peer whose address this is, once."""
        _check(self._library, self._library.bellpush_endpoint_connect(self._end, address.encode()))

    def put(self, to, source, count, signal=None, add=1):
        """Queues a write of `count` bytes to offset `to` of the peer's region; `signal` is the offset of
        an 8-byte word of it, to which `add` is added behind the bytes. Ordered on torch's or CuPy's
        current stream."""
        stream = _Memory(self._region, True).stream
        _whole(to, source, count, 0 if signal is None else signal)
        if signal is None:
            code = self._library.bellpush_put(self._end, to, source, count, stream)
        else:
            code = self._library.bellpush_put_signal(self._end, to, source, count, signal, add, stream)
        _check(self._library, code)

    def get(self, to, source, count):
        """Queues a read of `count` bytes at offset `source` of the peer's region to offset `to` here."""
        stream = _Memory(self._region, True).stream
        _whole(to, source, count)
        _check(self._library, self._library.bellpush_get(self._end, to, source, count, stream))

    def quiet(self):
        """Waits until everything is complete, and raises the first failure."""
        _check(self._library, self._library.bellpush_quiet(self._end))

    def poll_immediate(self):
        """The oldest immediate that the peer's kernels sent, or None."""
        value = ctypes.c_uint32()
        code = self._library.bellpush_poll_immediate(self._end, ctypes.byref(value))
        return value.value if _check(self._library, code) else None

    def device(self):
        """`struct bp_endpoint` as bytes: an argument of kernels that call the device verbs."""
        device = ctypes.create_string_buffer(192)
        _check(self._library, self._library.bellpush_endpoint_device(self._end, device, len(device)))
        return device.raw

    @property
    def reach(self):
        """"gpu" or "system": the bp::reach that kernels are compiled for."""
        code = _check(self._library, self._library.bellpush_endpoint_reach(self._end))
        return ("gpu", "system")[code]

    def close(self):
        """Ends the connection and lets go of the region."""
        end, self._end = self._end, None
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
        if self._end:
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
        self._library = _load()
        self._comm = ctypes.c_void_p()
        text = json.dumps(options).encode()
        _check(self._library, self._library.bellpush_join(text, ctypes.byref(self._comm)))
        self.rank = self._library.bellpush_rank(self._comm)
        self.ranks = self._library.bellpush_ranks(self._comm)

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
        dtype = DTYPES[source.dtype]
        code = self._library.bellpush_all_reduce(
            self._comm, source.address, target.address, source.count, dtype, OPS[op],
            source.stream)
        if code == _IN_USE:
            _held.append((values, out))
        _check(self._library, code)
        return out

    def synchronize(self):
        """Waits for all calls, and raises what became of them."""
        _check(self._library, self._library.bellpush_synchronize(self._comm))

    def leave(self):
        """Waits for the others and frees everything."""
        self._library.bellpush_leave(self._comm)
        self._comm = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._comm:
            self.leave()


def _whole(*values):
    """Refuses what C's uint64_t would take for another number."""
    for value in values:
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{value} is no offset or length")


class _Memory:
    """Address, length and type of a tensor's or array's elements, and the stream that they are used on."""

    def __init__(self, values, written):
        self.stream = None
        if hasattr(values, "data_ptr"):  # torch
            if not values.is_contiguous():
                raise ValueError("the tensor is not contiguous")
            self.address, self.count = values.data_ptr(), values.numel()
            self.bytes = self.count * values.element_size()
            self.dtype = str(values.dtype).removeprefix("torch.")
            if values.is_cuda:
                import torch
                self.stream = torch.cuda.current_stream(values.device).cuda_stream
        elif hasattr(values, "__cuda_array_interface__"):  # CuPy, Numba
            self._interface(values.__cuda_array_interface__, written)
            self.stream = values.__cuda_array_interface__.get("stream")
            if type(values).__module__.startswith("cupy"):
                import cupy
                self.stream = cupy.cuda.get_current_stream().ptr
        # NumPy's arrays. Its scalars have an interface, too: to a copy that is gone at once.
        elif hasattr(values, "__array_interface__") and hasattr(values, "ctypes"):
            self._interface(values.__array_interface__, written)
        elif isinstance(values, ctypes.Array) and values._type_ in _CTYPES:
            self.address, self.count = ctypes.addressof(values), len(values)
            self.bytes, self.dtype = ctypes.sizeof(values), _CTYPES[values._type_]
        elif hasattr(values, "__dlpack__"):
            self._dlpack(values.__dlpack__())
        else:
            raise TypeError(f"{type(values).__name__} is no tensor or array that bellpush knows")

    def _interface(self, interface, written):
        if interface.get("strides") is not None:
            raise ValueError("the array is not contiguous")
        self.address, readonly = interface["data"]
        if readonly and written:
            raise ValueError("the array is read-only")
        if interface["typestr"][0] == ">":
            raise ValueError("the array's numbers are big-endian")
        kind, size = interface["typestr"][1], int(interface["typestr"][2:])
        self.count = 1
        for length in interface["shape"]:
            self.count *= length
        self.bytes = self.count * size
        self.dtype = {"f": "float", "i": "int", "u": "uint"}.get(kind, kind) + str(8 * size)

    def _dlpack(self, capsule):
        """dlpack.h's DLManagedTensor, which the capsule frees; the values keep what it points to."""
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
        shape = [tensor.shape[i] for i in range(tensor.ndim)]
        step = 1
        for i in reversed(range(tensor.ndim)):
            if tensor.strides and shape[i] > 1 and tensor.strides[i] != step:
                raise ValueError("the tensor is not contiguous")
            step *= shape[i]
        self.address, self.count = (tensor.data or 0) + tensor.byte_offset, step
        self.bytes = step * tensor.bits // 8 * tensor.lanes
        kinds = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
        self.dtype = kinds.get(tensor.code, "other") + str(tensor.bits)

    def __str__(self):
        return f"{self.count} elements of {self.dtype}"


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]
