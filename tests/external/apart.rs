//! `bellpush bench` between two processes whose NICs are software devices behind unmodified libibverbs and libmlx5: the
//! code for a card, at both ends.

use crate::preloaded::{Running, alone, bellpush, free_port, run, there};

#[test]
fn two_processes_measure_through_libmlx5() {
    let _alone = alone();
    if !there("ibv_devinfo") {
        return;
    }
    let (options, place) = (["--link-type", "shm"], format!("127.0.0.1:{}", free_port()));
    let side = [bellpush(), "bench", "--gpu", "host", "--nic", "mlx5_0"];
    let server = Running::start(&options, &[&side[..], &["--listen", &place]].concat());
    let paths = ["--data", "push,pull,staged,tcp", "--sizes", "8,5000", "--both-ways"];
    let short = ["--messages", "40", "--seconds", "0.1", "--connect", &place];
    let client = run(&options, &[&side[..], &paths, &short].concat());
    let server = server.end();
    if client.text.contains("feature") && client.text.contains("mlx5") && client.code == Some(2) {
        println!("SKIPPED: built without the feature mlx5");
        return;
    }
    assert_eq!((server.code, client.code), (Some(0), Some(0)), "{} {}", server.text, client.text);
    // BlueFlame the device does not have.
    assert_eq!(client.text.matches('✓').count(), 2 * 10, "{}", client.text);
}
