//! What barriers of a table of peers and resets cost: docs/peers.md has it.

use std::time::{Duration, Instant};

use crate::peers::{Net, Rank, connect, finish, small};
use crate::test_bed::*;
use bellpush::abi::entry::Scope;
use bellpush::abi::peers::{PeersArgs, PeersOp};

/// Runs of a row, of which the median counts.
const RUNS: usize = 5;

/// All ranks make `count` calls of `op`, each by one kernel of a block; until the last one ends.
fn run(net: &Net, ranks: &[Rank], kernel: &str, op: PeersOp, count: u32) -> Duration {
    let status = net.bed.memory(4096);
    let begun = Instant::now();
    for (n, rank) in ranks.iter().enumerate() {
        let args = PeersArgs {
            peers: rank.peers.device().unwrap(),
            op: op as u32,
            scope: Scope::Block as u32,
            local: 0,
            bytes: 0,
            status: status.addr() + 8 * n as u64,
            count,
            reserved: 0,
        };
        net.bed.queue_block_on(&rank.stream, kernel, threads(net, ranks), &args);
    }
    for rank in ranks {
        rank.stream.synchronize(Duration::from_secs(60)).unwrap();
    }
    let all = begun.elapsed();
    assert_eq!(read(&status, 0, 8 * ranks.len()), vec![0; 8 * ranks.len()], "{op:?}");
    all
}

/// As many as a call of the host's has: a warp for each endpoint.
fn threads(net: &Net, ranks: &[Rank]) -> u32 {
    32 * if net.bed.gpu.is_host() { 2 } else { ranks.len() as u32 }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Nanoseconds of a call by what `many` calls take beyond a few: no launch, and no wait for its end, is in it.
fn each(net: &Net, ranks: &[Rank], kernel: &str, op: PeersOp) -> f64 {
    let many = if net.bed.gpu.is_host() { 300 } else { 2000 };
    let few = many / 10;
    let one = |_| {
        let (few_took, many_took) =
            (run(net, ranks, kernel, op, few), run(net, ranks, kernel, op, many));
        (many_took.as_secs_f64() - few_took.as_secs_f64()) * 1e9 / f64::from(many - few)
    };
    median((0..RUNS).map(one).collect())
}

#[test]
#[ignore = "measures: docs/peers.md"]
fn what_barriers_cost() {
    for n in [2, 4, 8] {
        let net = Net::new(n, 1);
        for (name, kernel) in [
            ("push/inband", "bp_peers_push_inband_12_4"),
            ("push/kernel", "bp_peers_push_kernel_strict"),
            ("pull/kernel", "bp_peers_pull_kernel_strict"),
        ] {
            let ranks = net.ranks(path(name), 4096, &small());
            let [quiet, sync, barrier] = [PeersOp::Quiet, PeersOp::Sync, PeersOp::Barrier]
                .map(|op| each(&net, &ranks, kernel, op));
            println!(
                "{name}, {n} ranks: quiet_all {quiet:.0} ns, sync_all {sync:.0}, barrier_all {barrier:.0}"
            );
            assert!(sync > quiet, "a barrier waits for its peers");
        }
    }
}

#[test]
#[ignore = "measures: docs/peers.md"]
fn what_resets_cost() {
    for n in [2, 8] {
        let net = Net::new(n, 1);
        let mut ranks = net.ranks(path("push/kernel"), 4096, &small());
        let (mut resets, mut connects) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let begun = Instant::now();
            ranks.iter_mut().for_each(|rank| drop(rank.peers.reset().unwrap()));
            resets.push(begun.elapsed().as_secs_f64() * 1e6);
            let begun = Instant::now();
            connect(&mut ranks);
            connects.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        let endpoints = f64::from(n * (n - 1));
        let [reset, connect] = [resets, connects].map(|all| median(all) / endpoints);
        println!("{n} ranks: {reset:.0} us to reset an endpoint, {connect:.0} to connect it");
        // They are what they were: a barrier of all passes.
        ranks.iter().for_each(|rank| rank.peers.barrier(&rank.stream).unwrap());
        finish(&ranks, "a barrier after the resets");
    }
}
