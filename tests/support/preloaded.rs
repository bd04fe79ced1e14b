//! What tests of programs on the preloaded device share: starting them, waiting for them.

#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds every program.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// One test at a time: the programs poll, and machines have few cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The checkout, for tests of any of its packages.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("x").is_file()).expect("a checkout")
}

/// The program. Cargo names it to the tests of its own package; for others' it is built, with verbs devices.
pub fn bellpush() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        if let Some(program) = option_env!("CARGO_BIN_EXE_bellpush") {
            return program.into();
        }
        let test = std::env::current_exe().unwrap(); // target/debug/deps/NAME
        let folder = test.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "bellpush-cli", "--features", "mlx5"]);
        cargo.arg("--target-dir").arg(folder.parent().unwrap()).current_dir(root());
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        // This may be a program on a software device, and cargo is none.
        assert!(
            cargo.env_remove("LD_PRELOAD").status().unwrap().success(),
            "bellpush is not built"
        );
        folder.join("bellpush").to_str().unwrap().into()
    });
    &PROGRAM
}

/// Builds the preloaded object beside the program. `cargo test` builds one package's tests.
pub static OBJECT: LazyLock<()> = LazyLock::new(|| {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bellpush-shim"]);
    let folder = Path::new(bellpush()).parent().unwrap();
    cargo.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.current_dir(root()).env("BELLPUSH_NVCC", "none");
    assert!(cargo.status().unwrap().success(), "the preloaded object is not built");
});

/// Whether a program is there.
pub fn there(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !found {
        println!("SKIPPED: no {program} (./x setup installs it)");
    }
    found
}

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub text: String,
}

/// A program on its way; killed if it is not waited for.
pub struct Running(Child);

impl Running {
    /// `bellpush run OPTIONS -- COMMAND`.
    pub fn start(options: &[&str], command: &[&str]) -> Self {
        LazyLock::force(&OBJECT);
        let mut run = Command::new(bellpush());
        run.arg("run").args(options).arg("--").args(command);
        Self::spawn(&mut run)
    }

    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// A program that writes into a file of its own.
    pub fn spawn_into(command: &mut Command, file: &File) -> Self {
        let (out, err) = (file.try_clone().unwrap(), file.try_clone().unwrap());
        Self(command.stdout(out).stderr(err).spawn().unwrap())
    }

    /// Waits; how it ended.
    pub fn wait(&mut self, patience: Duration) -> Option<i32> {
        match self.within(patience) {
            Some(status) => status.code(),
            None => panic!("not done in time: {:?}", self.kill()),
        }
    }

    /// Waits; how it ended, if it did.
    pub fn within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            let status = self.0.try_wait().unwrap();
            if status.is_some() || Instant::now() >= until {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a program that says no more than a pipe holds.
    pub fn end(mut self) -> Ended {
        let code = self.wait(PATIENCE);
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        Ended { code, text }
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) -> std::io::Result<()> {
        self.0.kill()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.0.wait();
    }
}

pub fn run(options: &[&str], command: &[&str]) -> Ended {
    Running::start(options, command).end()
}

#[track_caller]
pub fn succeeds(options: &[&str], command: &[&str]) -> String {
    let ended = run(options, command);
    assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.text);
    ended.text
}

/// A TCP port that nobody listens on.
pub fn free_port() -> String {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port().to_string()
}

/// State of a TCP socket in `/proc/net/tcp`.
pub const LISTEN: &str = " 0A ";

/// Waits until a socket with that local port is in that state.
pub fn wait_for(port: &str, state: &str) {
    let until = Instant::now() + PATIENCE;
    let wanted = format!(":{:04X} ", port.parse::<u16>().unwrap());
    // Number, local address, remote address, state.
    let matches = |line: &str| {
        line.split_once(": ").is_some_and(|(_, line)| {
            line.find(&wanted).is_some_and(|at| at < 40) && line.contains(state)
        })
    };
    let there = |file: &&str| fs::read_to_string(file).is_ok_and(|text| text.lines().any(matches));
    while !["/proc/net/tcp", "/proc/net/tcp6"].iter().any(there) {
        assert!(Instant::now() < until, "TCP port {port} is not in state {state}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program's server and client, each on a device of its own; what both said.
#[track_caller]
pub fn pair(options: &[&str], command: &[&str]) -> [Ended; 2] {
    let port = free_port();
    let common = [command, &["-p", &port]].concat();
    let server = Running::start(options, &common);
    // A connection to see whether it listens would take the client's place.
    wait_for(&port, LISTEN);
    let client = run(options, &[&common[..], &["127.0.0.1"]].concat());
    [server.end(), client]
}

#[track_caller]
pub fn pair_succeeds(options: &[&str], command: &[&str]) -> [String; 2] {
    pair(options, command).map(|ended| {
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.text);
        ended.text
    })
}

/// Runs a case of a program of `interop/` over each link.
#[track_caller]
pub fn over_each_link(program: Option<&Path>, case: &str) {
    let _alone = alone();
    let Some(program) = program else { return };
    for link in ["udp", "shm"] {
        succeeds(&["--link-type", link], &[program.to_str().unwrap(), case]);
    }
}

/// A program of `interop/`, compiled.
pub fn compiled(name: &str) -> Option<PathBuf> {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = root().join(format!("interop/{name}.c"));
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-g", "-rdynamic", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&to)
        .arg(source);
    let output = compiler.args(["-libverbs", "-lmlx5"]).output().ok()?;
    if output.status.success() {
        return Some(to);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("infiniband/"), "{text}");
    println!("SKIPPED: no libibverbs-dev (./x setup installs it)");
    None
}
