//! The Python module on what lends memory, and with threads: by stand-ins for tensors, so that it takes nothing but
//! Python.

use std::process::Command;

use crate::c_abi::LIBRARY;
use crate::preloaded::{alone, root};

/// What has to be refused by an exception that says so.
const REFUSED: &str = r#"
import bellpush, ctypes, gc, threading, time
def refused(what, kind, text):
    try:
        what()
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error!r}"
    else:
        raise SystemExit(f"not refused: {text}")
"#;

/// A capsule of DLPack's on memory that is overwritten when it is given back.
const LENDER: &str = r#"
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
class Tensor(ctypes.Structure):  # dlpack.h's DLTensor
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]
class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]
class Lender:
    def __init__(self, flags=None, shape=(64, 64), strides=None, device=1):
        self.back, self.flags, self.device = 0, flags, device
        self.memory = (ctypes.c_ubyte * 4096)()
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(strides))(*strides)
        def given_back(_):
            self.back += 1
            ctypes.memset(self.memory, 0xa5, 4096)
        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(given_back)
    def __dlpack__(self, **options):
        if self.flags is None and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        strides = ctypes.addressof(self.strides) if self.strides else None
        tensor = Tensor(ctypes.addressof(self.memory), self.device, 0, len(self.shape), 1, 8, 1,
                        ctypes.addressof(self.shape), strides, 0)
        if self.flags is None:
            self.managed, name = tensor, b"dltensor"
        else:
            assert options["max_version"][0] >= 1, options
            self.managed, name = Versioned(1, 0, None, None, self.flags, tensor), b"dltensor_versioned"
        return new(ctypes.addressof(self.managed), name, ctypes.cast(self.destructor, ctypes.c_void_p))
"#;

fn python(script: &str) {
    let _alone = alone();
    if Command::new("python3").arg("-c").output().is_err() {
        return println!("SKIPPED: no python3");
    }
    let mut command = Command::new("timeout");
    command.args(["60", "python3", "-c"]).arg([REFUSED, LENDER, script].concat());
    command.env("PYTHONPATH", root().join("capi")).env("BELLPUSH_LIBRARY", &*LIBRARY);
    let out = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(out.status.success() && out.stdout == b"right\n", "{out:?}");
}

#[test]
fn arrays_of_the_libraries_that_are_here_send_and_are_refused() {
    let _alone = alone();
    if Command::new("python3").arg("-c").output().is_err() {
        return println!("SKIPPED: no python3");
    }
    let mut command = Command::new("python3");
    command.arg(root().join("packaging/try-tensors.py")).args(["--executor", "host"]);
    command.env("PYTHONPATH", root().join("capi")).env("BELLPUSH_LIBRARY", &*LIBRARY);
    let out = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    assert!(said.contains("ok      ctypes, push/inband: both ways\n"), "{said}");
}

#[test]
fn what_dlpack_lends_is_kept_as_long_as_it_is_used() {
    python(
        r#"
for flags in (None, 0):
    lender, plain = Lender(flags), (ctypes.c_ubyte * 4096)(*range(200))
    with bellpush.open(executor="host") as context:
        near, far = bellpush.pair(context, "push/inband", plain, lender, timeout_s=30)
        assert lender.back == 0, "given back while an endpoint is on it"
        near.put(to=0, source=0, count=200)
        near.quiet()
        assert bytes(lender.memory[:200]) == bytes(range(200)), bytes(lender.memory[:8])
        near.close()
        far.close()
        gc.collect()
        assert lender.back == 1, f"given back {lender.back} times"
print("right")
"#,
    );
}

#[test]
fn what_dlpack_lends_for_reading_or_scattered_is_refused() {
    python(
        r#"
with bellpush.open(executor="host") as context:
    on = lambda region: context.endpoint("push/inband", region)
    refused(lambda: on(Lender(1)), ValueError, "read-only")
    refused(lambda: on(Lender(2)), ValueError, "a copy")
    refused(lambda: on(Lender(0, strides=(1, 64))), ValueError, "not contiguous")
    refused(lambda: on(Lender(None, strides=(128, 1))), ValueError, "not contiguous")
    refused(lambda: on(Lender(0, device=10)), ValueError, "type 10")
    refused(lambda: on(Lender(0, device=2)), ValueError, "GPU's memory")
    for right in (Lender(0, strides=(64, 1)), Lender(None, (1, 4096), (7, 1))):
        on(right).close()
print("right")
"#,
    );
}

#[test]
fn strides_of_arrays_are_looked_at() {
    python(
        r#"
memory = (ctypes.c_ubyte * 4096)()
class Array:
    def __init__(self, **other):
        self.interface = {"data": (ctypes.addressof(memory), False), "typestr": "<f4", "shape": (8, 4), **other}
    ctypes = property(lambda self: None)
class Here(Array):
    __array_interface__ = property(lambda self: self.interface)
class There(Array):
    __cuda_array_interface__ = property(lambda self: self.interface)
for kind in (Here, There):
    of = lambda **other: bellpush._Memory(kind(**other), True)
    for strides in (None, (16, 4)):
        assert (of(strides=strides).count, of(strides=strides).bytes) == (32, 128)
    assert of(shape=(1, 4), strides=(9, 4)).count == 4  # of one row nobody steps on
    for strides in ((4, 32), (32, 4), (-16, 4), (0, 4), (16, 8)):
        refused(lambda: of(strides=strides), ValueError, "not contiguous")
    refused(lambda: of(data=(64, True)), ValueError, "read-only")
    refused(lambda: of(mask=Here()), ValueError, "mask")
with bellpush.open(executor="host") as context:
    refused(lambda: context.endpoint("push/inband", There()), ValueError, "GPU's memory")
print("right")
"#,
    );
}

#[test]
fn close_waits_for_calls_of_other_threads() {
    python(
        r#"
import os, signal
class Slow:
    """The library; quiet takes its time, and notes whether the endpoint was freed under it."""
    def __init__(self, library):
        self.library, self.inside, self.freed, self.early = library, threading.Event(), False, False
    def __getattr__(self, name):
        return getattr(self.library, name)
    def bellpush_quiet(self, end):
        self.inside.set()
        time.sleep(0.3)
        self.early |= self.freed
        return 0 if self.freed else self.library.bellpush_quiet(end)
    def bellpush_endpoint_close(self, end):
        self.freed = True
        return self.library.bellpush_endpoint_close(end)
regions = [(ctypes.c_ubyte * 64)() for _ in range(2)]
with bellpush.open(executor="host") as context:
    near, far = bellpush.pair(context, "push/inband", *regions, timeout_s=30)
    near._library = slow = Slow(near._library)
    thread = threading.Thread(target=near.quiet)
    thread.start()
    slow.inside.wait()
    near.close()
    thread.join()
    assert slow.freed and not slow.early, "an endpoint was freed under a call"
    refused(near.quiet, bellpush.Error, "the endpoint is closed")
    near.close()  # twice is once
    # A signal's handler within a call would wait for itself.
    far._library = slow = Slow(far._library)
    seen = []
    def handler(*_):
        try:
            far.close()
        except bellpush.Error as error:
            seen.append(str(error))
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    far.quiet()
    assert seen == ["the endpoint cannot be closed within a call of its own"], seen
    # A child has none of it, whatever other threads of its parent did.
    slow.inside.clear()
    thread = threading.Thread(target=far.quiet)
    thread.start()
    slow.inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        refused(far.quiet, bellpush.Error, "forked")
        far.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    far.close()
refused(lambda: context.endpoint("push/inband", regions[0]), bellpush.Error, "the context is closed")
print("right")
"#,
    );
}
