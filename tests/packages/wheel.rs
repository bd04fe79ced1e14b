//! The wheel in a fresh environment: the module, the program, what it preloads.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{BUILT, root, run, said};

/// Needs nothing but Python.
const SCRIPT: &str = r#"
import ctypes, bellpush
assert bellpush.__file__.startswith(__import__("sys").prefix), bellpush.__file__
def sends(path, a, b, view):
    with bellpush.open(executor="host") as context:
        near, far = bellpush.pair(context, path, a, b, timeout_s=30)
        near.put(to=512, source=0, count=1000, signal=4088)
        near.quiet()
        assert bytes(view(b))[512:1512] == bytes(view(a))[:1000]
        assert int.from_bytes(bytes(view(b))[4088:], "little") == 1
        near.get(to=2048, source=512, count=1000)
        near.quiet()
        assert bytes(view(a))[2048:3048] == bytes(view(a))[:1000]
        for wrong in [lambda: near.put(0, 0, 5000), lambda: near.connect("{}"), lambda: near.poll_immediate()]:
            try:
                wrong()
                raise SystemExit("a wrong call was taken")
            except bellpush.Error as error:
                assert error.code == -1, error
        try:
            near.put(1 << 64, 0, 8)
            raise SystemExit("an offset of more than 64 bits was taken")
        except ValueError:
            pass
        if path == "push/kernel":
            assert len(near.device()) == 192 and near.reach == "system" and not context.strict
        near.close()
        left = far.address
        del far  # closes it: its region goes with it
        try:
            context.endpoint(path, kind()).connect(left)
            raise SystemExit("an endpoint that is gone can be reached")
        except bellpush.Error as error:
            assert error.code == -1 and "queue pair" in str(error), error

kind = ctypes.c_ubyte * 4096
for path in ("push/inband", "push/kernel", "pull/kernel", "staged/cpu"):
    sends(path, kind(*[i % 251 for i in range(2000)]), kind(), lambda region: region)
odd = (ctypes.c_ubyte * 4088).from_buffer(kind(), 1)
with bellpush.open(executor="host") as context:
    near, far = bellpush.pair(context, "push/kernel", kind(), odd, timeout_s=30)
    try:
        near.put(to=0, source=0, count=8, signal=8)
        raise SystemExit("a word at an odd address was taken")
    except bellpush.Error as error:
        assert error.code == -1 and "multiple of 8" in str(error), error
    near.put(to=0, source=0, count=8, signal=15)
    near.quiet()
    near.close()
    far.close()
rows = bellpush.bench("--sizes", "8", "--messages", "50", frame=False)
assert all(row["verified"] for row in rows) and len(rows) > 5, rows
try:
    bellpush.bench("--sizes", "pigeon", frame=False)
    raise SystemExit("a wrong size was taken")
except bellpush.Error as error:
    assert "pigeon" in str(error), error
print("right")
"#;

/// With NumPy and pandas.
const FRAMES: &str = r#"
import numpy, bellpush
class Lends:  # nothing but DLPack
    def __init__(self, array): self.array = array
    def __dlpack__(self, **options): return self.array.__dlpack__(**options)
    def __dlpack_device__(self): return self.array.__dlpack_device__()
for wrap in (lambda array: array, Lends):
    a, b = numpy.arange(1024, dtype=numpy.float32), numpy.zeros(1024, dtype=numpy.float32)
    with bellpush.open(executor="host") as context:
        near, far = bellpush.pair(context, "push/inband", wrap(a), wrap(b), timeout_s=30)
        with near, far:
            near.put(to=0, source=0, count=a.nbytes)
            near.quiet()
    assert (a == b).all()
try:
    bellpush.open(executor="host").endpoint("push/inband", numpy.zeros((8, 8))[:, 1])
    raise SystemExit("a column was taken")
except ValueError:
    pass
frame = bellpush.bench("--sizes", "8,64", "--messages", 50)
assert set(frame.size_bytes) == {8, 64} and frame.verified.all(), frame
assert frame.attrs["nic"]["software"] and frame.groupby("data").latency_ns_p50.min().notna().all()
print("right")
"#;

/// A fresh environment with the wheel; `None` without Python's venv.
fn environment(temp: &Path) -> Option<PathBuf> {
    let ready = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    if !ready.is_ok_and(|out| out.status.success()) {
        println!("SKIPPED: no python3 with venv");
        return None;
    }
    // A build for real NICs wants libraries that not every machine has. Which build lies there is not for this
    // test's features to say: `./x package wheel`, which another test runs, leaves one for none.
    let mut script = Command::new(root().join("packaging/package.sh"));
    script.arg("wheel").arg(&*BUILT).arg(temp);
    let wanted = said(Command::new("objdump").arg("-p").arg(BUILT.join("bellpush")));
    if wanted.contains("libibverbs.so.1") {
        let refused = run(&mut script);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("needs libibverbs.so.1"));
        script.env("BELLPUSH_WHEEL_EXPECTS", "libibverbs.so.1,libmlx5.so.1");
    }
    let wheel = said(&mut script);
    assert!(wheel.contains("-py3-none-manylinux_2_"), "{wheel}");
    let bin = temp.join("env/bin");
    said(Command::new("python3").args(["-m", "venv"]).arg(temp.join("env")));
    let mut pip = Command::new(bin.join("python"));
    said(pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel.trim()]));
    Some(bin)
}

fn python(bin: &Path, script: &str) -> String {
    let mut python = Command::new(bin.join("python"));
    python.args(["-I", "-c", script]).env_remove("BELLPUSH_LIBRARY").env_remove("BELLPUSH_PROGRAM");
    said(python.current_dir(bin))
}

#[test]
fn a_wheel_is_all_that_python_needs() {
    let temp = tempfile::tempdir().unwrap();
    let Some(bin) = environment(temp.path()) else { return };
    assert_eq!(python(&bin, SCRIPT), "right\n");
    said(Command::new(bin.join("bellpush")).args(["run", "--", "true"]));
}

#[test]
#[ignore = "fetches NumPy and pandas"]
fn arrays_and_frames_are_numpys_and_pandas() {
    let temp = tempfile::tempdir().unwrap();
    let Some(bin) = environment(temp.path()) else { return };
    let mut pip = Command::new(bin.join("python"));
    said(pip.args(["-m", "pip", "install", "--quiet", "--retries", "1", "numpy", "pandas"]));
    assert_eq!(python(&bin, FRAMES), "right\n");
}
