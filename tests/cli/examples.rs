//! The examples do what they say.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::transport::Path;

#[allow(dead_code)] // its main
#[path = "../../examples/peers.rs"]
mod peers;
#[allow(dead_code)] // its main
#[path = "../../examples/quickstart.rs"]
mod quickstart;

#[test]
fn peers_exchange_by_every_path_that_kernels_post() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    for path in Path::ALL.into_iter().filter(|path| path.posted_by_gpu()) {
        let told = peers::exchange(&gpu, path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(told, "4 ranks on 2 rails have 12000 bytes each", "{path}");
    }
}

#[test]
fn quickstart_delivers_by_every_path() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    for path in Path::ALL {
        let told = quickstart::put_and_look(&gpu, path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(told.starts_with("10000 bytes arrived"), "{path}: {told}");
    }
}

/// A crate of its own, with kernels of its own, built as a user would build it: both ends in one process, then in two.
#[test]
fn custom_kernel_computes_sends_and_sums() {
    let told = ended(start("custom_kernel", &["host"]));
    assert!(told.starts_with("4 pieces sent, summed and right on host"), "{told}");

    let [receiver, sender] = ["receive", "send"].map(|end| start("custom_kernel", &[end, "host"]));
    let (arrived, sent) = (ended(receiver), ended(sender));
    assert!(arrived.starts_with("4 pieces arrived, summed and right on host"), "{arrived}");
    assert!(sent.starts_with("4 pieces sent on host"), "{sent}");
}

/// The tutorial's third page is about this one: either side may come first.
#[test]
fn stencil_has_every_point_right_in_both_processes() {
    let sides = ["right", "left"].map(|side| (side, start("stencil", &[side, "host"])));
    for (side, process) in sides {
        let told = ended(process);
        let right = format!("{side}: 2048 points right after 100 steps on host");
        assert!(told.starts_with(&right), "{told}");
    }
}

fn start(package: &str, args: &[&str]) -> Child {
    Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "-p", package, "--"])
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cargo runs")
}

fn ended(mut cargo: Child) -> String {
    let since = Instant::now();
    while cargo.try_wait().unwrap().is_none() {
        if since.elapsed() > Duration::from_secs(600) {
            cargo.kill().unwrap();
            panic!("not built and run within ten minutes");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = cargo.wait_with_output().unwrap();
    let (told, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{complaint}");
    told.into_owned()
}
