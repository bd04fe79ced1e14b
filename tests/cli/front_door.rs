//! `./x` and the build scripts where machines are unusual: a path with a space, a target directory elsewhere,
//! a package that this distribution does not have, an nvcc that comes later. Each function of `x` runs
//! in a copy, with programs of the test's own in front on the path.

#[allow(dead_code, reason = "cargo runs its main")]
#[path = "../../crates/cli/build.rs"]
mod commit_build;
#[allow(dead_code, reason = "cargo runs its main")]
#[path = "../../crates/gpu/build.rs"]
mod kernels_build;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A checkout in a folder with a space in its name.
struct Copy {
    _temp: TempDir,
    root: PathBuf,
    programs: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (root, programs) = (temp.path().join("a b"), temp.path().join("programs"));
        fs::create_dir_all(root.join(".tools")).unwrap();
        fs::create_dir_all(&programs).unwrap();
        fs::create_dir_all(root.join("crates/gpu")).unwrap();
        for file in ["x", "Cargo.toml", "crates/gpu/build.rs"] {
            fs::copy(
                Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file),
                root.join(file),
            )
            .unwrap();
        }
        Self { _temp: temp, root, programs }
    }

    /// A program that writes its name and each of its arguments in a line of `said`, and goes on.
    fn program(&self, name: &str, rest: &str) -> &Self {
        let path = self.programs.join(name);
        let text = format!(
            "#!/bin/bash\nprintf '%s|' {name} \"$@\" >>'{}'; echo >>'{}'\n{rest}\n",
            self.said().display(),
            self.said().display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn said(&self) -> PathBuf {
        self.root.join(".tools/said")
    }

    /// Runs lines of bash after those of `x`; its output, and what the programs were told.
    fn run(&self, lines: &str) -> (Output, String) {
        // `help` is a command that leaves the functions behind.
        let script = format!("set -- help; source ./x >/dev/null; {lines}");
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap());
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).current_dir(&self.root).env("PATH", path);
        bash.env_remove("BELLPUSH_NVCC")
            .env_remove("BELLPUSH_RDMA_CORE")
            .env_remove("BELLPUSH_CUDA_ARCHS");
        let output = bash.output().unwrap();
        (output, fs::read_to_string(self.said()).unwrap_or_default())
    }
}

#[test]
fn tests_on_a_device_start_in_any_checkout_and_target_directory() {
    let copy = Copy::new();
    copy.program("rustc", "echo 'host: x86_64-unknown-linux-gnu'").program(
        "cargo",
        r#"[[ $1 != metadata ]] || echo '{"packages":[],"target_directory":"/else where/target","version":1}'"#,
    );
    let (output, said) = copy.run("on_device");
    assert!(output.status.success(), "{output:?}");
    let wanted =
        "target.x86_64-unknown-linux-gnu.runner = ['/else where/target/debug/bellpush', 'run', ";
    let test = said.lines().find(|line| line.contains("|test|")).expect("the tests are started");
    assert!(test.contains(&format!("cargo|--config|{wanted}")), "{said}");
}

/// The whole command, with programs in the place of cargo and rustc and without root: it builds and installs nothing.
#[test]
fn what_bellpush_run_preloads_is_built_for_it_alone() {
    let copy = Copy::new();
    copy.program("cargo", "").program("rustc", "echo 'rustc 1.99.0'").program("id", "echo 1000");
    let (output, said) = copy.run("export BELLPUSH_NVCC=none; ./x run run -- ls; ./x run show");
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("cargo|")).collect();
    let object = "cargo|build|--release|--package|bellpush-shim|";
    assert_eq!((lines.len(), lines[0]), (3, object), "{said}");
    let program = "cargo|run|--release|--package|bellpush-cli|";
    assert!(lines[1..].iter().all(|line| line.starts_with(program)), "{said}");
    assert!(lines[1].ends_with("|--|run|--|ls|") && lines[2].ends_with("|--|show|"), "{said}");
}

/// `interop/faults.sh` leaves out what is not installed: `./x test --long` installs it.
#[test]
fn programs_under_faults_come_with_the_long_tests() {
    let missing = |command: &str| {
        let (output, _) =
            Copy::new().run(&format!("have() {{ false; }}; packages_missing {command}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (long, run) = (missing("long"), missing("run"));
    for package in [
        "perftest",
        "ibverbs-utils",
        "rdmacm-utils",
        "qperf",
        "fio",
        "libfabric-bin",
        "dapl2-utils",
        "libiscsi-bin",
        "ucx-utils",
        "openmpi-bin",
        "libopenmpi-dev",
        "mpich",
        "libmpich-dev",
    ] {
        assert!(long.lines().any(|line| line == package), "{package}: {long}");
        assert!(!run.lines().any(|line| line == package), "{package}: {run}");
    }
}

#[test]
fn a_package_that_is_not_to_be_had_keeps_no_other_away() {
    let copy = Copy::new();
    copy.program("id", "echo 0").program("apt-get", "[[ $* != *--simulate*' gone' ]]");
    let lines = "packages_missing() { printf '%s\\n' one gone two; }; install_packages setup";
    let (output, said) = copy.run(lines);
    assert!(output.status.success(), "{output:?}");
    let install = said.lines().filter(|line| line.contains("|install|-y|"));
    let installed: Vec<_> =
        install.map(|line| line.contains("|one|two|") && !line.contains("gone")).collect();
    assert_eq!(installed, [true], "{said}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("apt has no gone"), "{output:?}");
    assert!(copy.root.join(".tools/apt.failed").exists(), "it would be looked for at every start");
}

#[test]
fn a_clone_that_stands_still_is_given_up() {
    let copy = Copy::new();
    // Stands for a clone that `timeout` ended half-way.
    copy.program("timeout", "mkdir -p .tools/rdma-core-44.0/tests; exit 124")
        .program("git", "exit 1");
    let (output, said) = copy.run("fetch_rdma_core");
    assert!(output.status.success(), "{output:?}");
    assert!(said.starts_with("timeout|--kill-after=10|300|git|"), "{said}");
    assert!(!copy.root.join(".tools/rdma-core-44.0").exists(), "half of it is left");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no source of rdma-core"));
}

#[test]
fn licences_are_looked_at_in_ci_or_it_fails() {
    for (ci, passes, word) in [("false", true, "skipped"), ("true", false, "required in CI")] {
        let (output, _) =
            Copy::new().run(&format!("export CI={ci}; find_deny() {{ :; }}; crates_are_fit"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), passes, "CI={ci}: {said}");
        assert!(said.contains("./x setup") && said.contains(word), "CI={ci}: {said}");
        assert_eq!(said.lines().count(), 1, "CI={ci}: {said}");
    }
}

#[test]
fn an_nvcc_that_comes_or_goes_has_the_build_look_again() {
    let copy = Copy::new();
    // Whatever this machine has is out of sight: only the last of the places that x looks at counts.
    let lines = "find_nvcc() { cat .tools/found 2>/dev/null || true; }; tell_build";
    let written =
        || fs::metadata(copy.root.join("crates/gpu/build.rs")).unwrap().modified().unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH;
    let touched = || {
        let build =
            fs::File::options().append(true).open(copy.root.join("crates/gpu/build.rs")).unwrap();
        build.set_modified(old).unwrap();
        let (output, _) = copy.run(lines);
        assert!(output.status.success(), "{output:?}");
        written() != old
    };
    touched();
    assert!(!touched(), "nothing changed");
    fs::write(copy.root.join(".tools/found"), "/opt/nvcc\n").unwrap();
    assert!(touched(), "it came");
    assert!(!touched());
    fs::write(copy.root.join(".tools/found"), "/opt/new/nvcc\n").unwrap();
    assert!(touched(), "another");
    fs::remove_file(copy.root.join(".tools/found")).unwrap();
    assert!(touched(), "it went");
}

#[test]
fn a_first_table_fetches_nothing_for_a_gpu_that_is_not_there() {
    let fetches = |have_gpu: &str, lines: &str| {
        let copy = Copy::new();
        copy.program("python3", "exit 1");
        let lines = format!("find_nvcc() {{ :; }}; have_gpu() {{ {have_gpu}; }}; {lines}");
        let (output, said) = copy.run(&lines);
        assert!(output.status.success(), "{output:?}");
        !said.is_empty()
    };
    assert!(!fetches("false", "fetch_nvcc bench; fetch_nvcc run; fetch_nvcc setup"));
    assert!(!fetches("false", "packages_missing bench >/dev/null"));
    assert!(fetches("true", "fetch_nvcc bench"));
    assert!(fetches("false", "fetch_nvcc test"), "it compiles them all");
    assert!(fetches("false", "touch .tools/cuda.archs; fetch_nvcc bench"), "./x setup --cuda");
    assert!(fetches("false", "BELLPUSH_CUDA_ARCHS=90; fetch_nvcc bench"));
}

#[test]
fn kernels_are_compiled_for_the_gpus_that_are_there() {
    let archs = |listed: &str| kernels_build::capabilities(listed.as_bytes());
    assert_eq!(archs("9.0\n8.0\n9.0\n").as_deref(), Some("80,90"));
    assert_eq!(archs("12.1\n7.5\n").as_deref(), Some("121"));
    assert_eq!(archs("7.0\n"), None);
    assert_eq!(archs("No devices were found\n"), None);
}

fn git(root: &Path, args: &[&str]) {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["-c", "user.name=n", "-c", "user.email=n@example.com"]);
    let out = git.args(args).output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// What cargo watches of the checkout: a commit changes one of the files, also in a worktree; looking at
/// the checkout changes none.
#[test]
fn the_build_runs_again_after_a_commit_and_not_after_a_look() {
    if Command::new("git").arg("--version").output().is_err() {
        return println!("SKIPPED: no git");
    }
    let temp = tempfile::tempdir().unwrap();
    let (root, tree) = (temp.path().join("a b"), temp.path().join("tree"));
    fs::create_dir(&root).unwrap();
    fs::write(root.join("file"), "one").unwrap();
    git(&root, &["init", "-q"]);
    git(&root, &["add", "."]);
    git(&root, &["commit", "-q", "-m", "one"]);
    git(&root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
    for root in [&root, &tree] {
        let watched = commit_build::head_files(root);
        assert!(watched.len() >= 2, "{watched:?}");
        let contents = || watched.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>();
        let before = contents();
        fs::write(root.join("file"), "two").unwrap();
        git(root, &["status"]);
        git(root, &["add", "."]);
        assert!(contents() == before, "a look, or a change, is no commit");
        git(root, &["commit", "-q", "-m", "two"]);
        assert!(contents() != before, "{watched:?}");
    }
}

/// nvcc takes compilers and flags from variables: what was compiled under others is not taken for it.
#[test]
fn what_nvcc_is_told_by_variables_is_watched() {
    for name in ["NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
        assert!(kernels_build::NVCC_VARIABLES.contains(&name), "{name}");
    }
}

/// What is compiled again when a file changes: all that includes it, and nothing else.
#[test]
fn a_kernel_is_compiled_again_when_what_it_includes_changes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a checkout");
    let kernels = root.join("kernels").canonicalize().expect("they are there");
    let folders = [kernels.clone(), kernels.join("include")];
    let of = |file: &str| {
        let all = kernels_build::with_includes(&kernels.join(file), &folders);
        move |part: &str| all.iter().any(|path| path.ends_with(part))
    };
    let (verbs, post) = (of("entry/verbs.cu"), of("bench/post.cu"));
    // By what a header beside it includes, and by a name in angle brackets.
    for header in ["include/bellpush/impl/order.cuh", "include/bellpush/exec.cuh", "entry/args.h"] {
        assert!(verbs(header), "{header}");
    }
    assert!(post("bench/post.cuh") && post("bench/args.h") && post("impl/wqe.cuh"));
    assert!(!verbs("bench/args.h") && !post("engine/run.cuh"));
    // The compiler's own depend on nothing of ours: each of what the compiler read is among them.
    let told = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-MM", "-std=c++17", "-x", "c++"])
        .args(folders.iter().flat_map(|folder| ["-I".as_ref(), folder.as_os_str()]))
        .arg(kernels.join("bench/post.cu"))
        .output()
        .expect("a compiler");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let headers: Vec<&str> =
        told.split_whitespace().filter(|word| word.contains("kernels/")).collect();
    assert!(headers.len() > 20, "{headers:?}");
    for header in headers {
        let path = Path::new(header).canonicalize().expect("it was read");
        assert!(post(path.to_str().expect("text")), "{header}");
    }
    // As the compiler looks: by a name in quotes beside the file first, by another in the folders alone; and a folder of
    // that name is none.
    let folder = tempfile::tempdir().unwrap();
    let (beside, include) = (folder.path().join("beside"), folder.path().join("include"));
    fs::create_dir_all(beside.join("atomic")).unwrap();
    fs::create_dir_all(&include).unwrap();
    let file = beside.join("a.cu");
    fs::write(&file, "#include <x.h>\n # include \"y.h\"\n#include <atomic>\n").unwrap();
    for name in ["x.h", "y.h"] {
        fs::write(beside.join(name), "").unwrap();
        fs::write(include.join(name), "").unwrap();
    }
    let found = kernels_build::with_includes(&file, std::slice::from_ref(&include));
    assert_eq!(found, [file, include.join("x.h"), beside.join("y.h")]);
}
