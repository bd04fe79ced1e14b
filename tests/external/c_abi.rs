//! The C interface, by a program in C and by the Python wrapper: two processes of a job each, on the
//! host executor.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::preloaded::alone;

const PATIENCE: Duration = Duration::from_secs(60);

const PROGRAM: &str = r#"
#include <bellpush.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) if (!(x)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, bellpush_error()); return 1; }

int main(void) {
  bellpush *comm = NULL;
  CHECK(bellpush_join("{\"executor\": \"host\", \"colour\": 1}", &comm) == BELLPUSH_REFUSED);
  CHECK(strstr(bellpush_error(), "colour") && !comm);
  CHECK(bellpush_join(NULL, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_join("{\"executor\": \"host\", \"timeout_s\": 1e19}", &comm) == BELLPUSH_REFUSED);
  const char *links[] = {"{\"executor\": \"host\", \"link\": \"shm\"}", "{\"executor\": \"host\", \"link\": \"udp\"}"};
  CHECK(bellpush_join(links[atoi(getenv("RANK"))], &comm) == BELLPUSH_REFUSED);
  CHECK(strstr(bellpush_error(), "link"));
  CHECK(bellpush_join("{\"executor\": \"host\", \"join_timeout_s\": -1}", &comm) == BELLPUSH_REFUSED);
  CHECK(strstr(bellpush_error(), "join_timeout_s"));
  CHECK(bellpush_join("{\"executor\": \"host\", \"timeout_s\": 30, \"line\": \"60+4\"}", &comm) == BELLPUSH_OK);
  const int rank = bellpush_rank(comm), ranks = bellpush_ranks(comm);
  CHECK(ranks == 2);

  static float in[5001], out[5001];
  for (int i = 0; i < 5001; i++) in[i] = (float)(i + 10000 * rank);
  CHECK(bellpush_all_reduce(comm, in, out, 5001, BELLPUSH_F32, BELLPUSH_SUM, NULL) == BELLPUSH_OK);
  for (int i = 0; i < 5001; i++) CHECK(out[i] == (float)(2 * i + 10000));
  CHECK(bellpush_all_reduce(comm, in, in, 5001, BELLPUSH_F32, BELLPUSH_MAX, NULL) == BELLPUSH_OK);
  CHECK(in[5000] == 15000.0f);
  static const float constants[1024] = {3.0f};
  CHECK(bellpush_all_reduce(comm, constants, out, 1024, BELLPUSH_F32, BELLPUSH_SUM, NULL) == BELLPUSH_OK);
  CHECK(out[0] == 6.0f && out[1] == 0.0f);

  /* Nothing of these reaches the other rank. */
  CHECK(bellpush_all_reduce(comm, in, out, 1, 4, BELLPUSH_SUM, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(comm, in, out, 1, BELLPUSH_F32, -1, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(comm, NULL, out, 1, BELLPUSH_F32, 0, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(comm, in, in + 1, 100, BELLPUSH_F32, 0, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(comm, in, out, 1, BELLPUSH_F32, 0, out) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(comm, (char *)in + 1, out, 1, BELLPUSH_F32, 0, NULL) == BELLPUSH_REFUSED);
  CHECK(bellpush_all_reduce(NULL, in, out, 1, BELLPUSH_F32, 0, NULL) == BELLPUSH_REFUSED);

  CHECK(bellpush_all_reduce(comm, in, out, 1 + rank, BELLPUSH_F32, 0, NULL) == BELLPUSH_DIFFERS);
  int32_t word[2] = {rank, 7};
  CHECK(bellpush_all_reduce(comm, word, word, 2, BELLPUSH_I32, BELLPUSH_MEAN, NULL) == BELLPUSH_OK);
  CHECK(word[0] == 0 && word[1] == 7);
  CHECK(bellpush_synchronize(comm) == BELLPUSH_OK);

  /* A child has none of it, and disturbs nobody when it ends. */
  bellpush_context *context = NULL;
  CHECK(bellpush_open("{\"executor\": \"host\"}", &context) == BELLPUSH_OK && bellpush_order(context) >= 0);
  CHECK(bellpush_rank(comm) == rank && bellpush_ranks(comm) == 2);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    CHECK(bellpush_all_reduce(comm, in, out, 1, BELLPUSH_F32, 0, NULL) == BELLPUSH_REFUSED);
    CHECK(bellpush_synchronize(comm) == BELLPUSH_REFUSED);
    CHECK(bellpush_rank(comm) == BELLPUSH_REFUSED && bellpush_ranks(comm) == BELLPUSH_REFUSED);
    CHECK(bellpush_order(context) == BELLPUSH_REFUSED);
    bellpush_close(context);
    bellpush_leave(comm);
    _exit(0);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  CHECK(bellpush_all_reduce(comm, word, word, 2, BELLPUSH_I32, BELLPUSH_SUM, NULL) == BELLPUSH_OK);
  CHECK(word[1] == 14);
  bellpush_close(context);
  bellpush_leave(comm);
  bellpush_leave(NULL);

  /* One rank stays away from a call: the other is told, again and again, and waits for nobody. */
  CHECK(bellpush_join("{\"executor\": \"host\", \"timeout_s\": 1, \"name\": \"ends\"}", &comm) == BELLPUSH_OK);
  if (rank == 0) {
    CHECK(bellpush_all_reduce(comm, in, out, 10, BELLPUSH_F32, BELLPUSH_SUM, NULL) == BELLPUSH_FAILED);
    CHECK(strstr(bellpush_error(), "rank 1"));
    for (int i = 0; i < 3; i++) {
      CHECK(bellpush_all_reduce(comm, in, out, 10, BELLPUSH_F32, BELLPUSH_SUM, NULL) == BELLPUSH_FAILED);
      CHECK(bellpush_synchronize(comm) == BELLPUSH_FAILED);
    }
  }
  bellpush_leave(comm);
  puts("right");
  return 0;
}
"#;

const SCRIPT: &str = r#"
import ctypes, bellpush
with bellpush.join(executor="host", nics=2, channels=2, timeout_s=30) as comm:
    values = (ctypes.c_float * 1000)(*[i + comm.rank for i in range(1000)])
    comm.all_reduce(values, op="mean")
    assert list(values) == [i + 0.5 for i in range(1000)], list(values)[:4]
    out = (ctypes.c_int * 3)()
    comm.all_reduce((ctypes.c_int * 3)(1, 2, 3 + comm.rank), op="max", out=out)
    assert list(out) == [1, 2, 4], list(out)
    # As a NumPy scalar: the interface is that of a copy.
    scalar = type("Scalar", (), {"__array_interface__": {"data": (4096, False)}})()
    for wrong in [(ctypes.c_double * 1)(), "text", scalar]:
        try:
            comm.all_reduce(wrong)
            raise SystemExit(f"{wrong} was taken")
        except TypeError:
            pass
    try:
        comm.all_reduce((ctypes.c_int * (1 + comm.rank))())
        raise SystemExit("ranks that differ were not told")
    except bellpush.Error as error:
        assert error.code == -2 and "sum of" in str(error), error
    comm.synchronize()
    # What lends elements is let go where a call is done when it returns.
    borrowed = bellpush._Memory.__init__
    def lent(self, *given):
        borrowed(self, *given)
        self.lent = self
    bellpush._Memory.__init__ = lent
    comm.all_reduce((ctypes.c_int * 1)())
    assert comm._used == [], comm._used
print("right")
"#;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The library, without CUDA, below the folder that this test was built in.
pub static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bellpush-c", "--no-default-features"]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.current_dir(root()).env("BELLPUSH_NVCC", "none");
    assert!(cargo.status().unwrap().success(), "the library is not built");
    profile.join("libbellpush_c.so")
});

/// Starts `command` as each rank of a job, and waits for both.
fn two(port: u16, command: impl Fn() -> Command) {
    let start = |rank: u32| -> Child {
        let mut command = command();
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("LOCAL_RANK", "0");
        command.env("BELLPUSH_ROOT", format!("127.0.0.1:{port}"));
        command.env("BELLPUSH_JOB_SECRET", "a secret of this test");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut ranks = [start(0), start(1)];
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && ranks.iter_mut().any(|r| r.try_wait().unwrap().is_none()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    for (number, mut rank) in ranks.into_iter().enumerate() {
        let _ = rank.kill(); // one that hangs
        let Output { status, stdout, stderr } = rank.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (said, why) = (text(stdout), text(stderr));
        assert!(status.success() && said == "right\n", "rank {number}: {status}: {said}{why}");
    }
}

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_c_program_reduces() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("reduce.c"), folder.path().join("reduce"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut cc = Command::new("c++");
    cc.args(["-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror"]).arg(&source);
    cc.arg("-I")
        .arg(root().join("capi"))
        .args(["-x", "none"])
        .arg(&*LIBRARY)
        .arg("-o")
        .arg(&program);
    assert!(cc.status().unwrap().success(), "the program is not built");
    // By the name with the series, which an installation has and cargo's folder has not.
    std::os::unix::fs::symlink(&*LIBRARY, folder.path().join("libbellpush_c.so.0.1")).unwrap();
    two(port(), || {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", folder.path());
        command
    });
}

#[test]
fn a_python_program_reduces() {
    let _alone = alone();
    if Command::new("python3").arg("-c").output().is_err() {
        println!("SKIPPED: no python3");
        return;
    }
    two(port(), || {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).env("PYTHONPATH", root().join("capi"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("BELLPUSH_LIBRARY", &*LIBRARY);
        command
    });
}
