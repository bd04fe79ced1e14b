//! Tables of peers: every rank in this process, each with a stream and NICs of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nics::{Fabric, Silent};
use crate::test_bed::*;
use bellpush::abi::entry::Scope;
use bellpush::abi::peers::{PeersArgs, PeersOp};
use bellpush::abi::wire::{Code, DevicePeers};
use bellpush::gpu::Stream;
use bellpush::nic::Nic;
use bellpush::transport::{Error, Kick, Memory, Options, Path, Peers, PeersAddress};

pub struct Rank {
    pub peers: Peers,
    region: Memory,
    pub stream: Stream,
}

/// NICs of ranks and rails.
pub struct Net {
    pub bed: TestBed,
    nics: Vec<Vec<Arc<dyn Nic>>>,
    _silent: Silent,
}

impl Net {
    /// One NIC a rail, which all ranks use: few threads.
    pub fn new(ranks: u32, rails: usize) -> Self {
        Self::on(TestBed::fibres(), ranks, rails)
    }

    fn on(bed: TestBed, ranks: u32, rails: usize) -> Self {
        let fabric = Fabric::new();
        let nics: Vec<_> = (0..rails).map(|_| fabric.open()).collect();
        let silent = Silent::of(&nics);
        Self { bed, nics: vec![nics; ranks as usize], _silent: silent }
    }

    fn rank(&self, rank: u32, path: Path, bytes: usize, options: &Options) -> Rank {
        let (region, gpu) = (self.bed.memory(bytes), &self.bed.gpu);
        let (nics, of) = (&self.nics[rank as usize], (rank, self.nics.len() as u32));
        let peers = Peers::new(gpu, nics, of, path, region.clone(), options);
        let peers = peers.unwrap_or_else(|e| panic!("{path}: {e}"));
        Rank { peers, region, stream: gpu.stream().unwrap() }
    }

    pub fn ranks(&self, path: Path, bytes: usize, options: &Options) -> Vec<Rank> {
        let mut ranks: Vec<Rank> =
            (0..self.nics.len() as u32).map(|n| self.rank(n, path, bytes, options)).collect();
        connect(&mut ranks);
        ranks
    }
}

fn addresses(ranks: &[Rank]) -> Vec<PeersAddress> {
    ranks.iter().map(|r| r.peers.address().clone()).collect()
}

pub fn connect(ranks: &mut [Rank]) {
    let all = addresses(ranks);
    ranks.iter_mut().for_each(|r| r.peers.connect(&all).unwrap());
}

pub fn small() -> Options {
    Options::default()
        .sq_blocks(64)
        .window_bytes(16 * 256)
        .slot_bytes(256)
        .timeout(Duration::from_secs(10))
}

/// A wait that is to end in vain, and that others are not to miss: more of it for NICs that take their time.
fn short(ms: u64) -> Duration {
    Duration::from_millis(if crate::ENGINE == "cpu" { ms } else { 4 * ms })
}

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|p| {
        matches!(p.kick(), Some(Kick::Kernel | Kick::Blueflame | Kick::Inband)) && p.posted_by_gpu()
    })
}

pub fn finish(ranks: &[Rank], what: &str) {
    for rank in ranks {
        rank.peers.finish(&rank.stream).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Every rank fills its chunk; afterwards each has all, step by step from what came the step before.
fn gather(ranks: &[Rank], bytes: usize, seed: u64, what: &str) {
    let chunks: Vec<Vec<u8>> = (0..ranks.len()).map(|n| pattern(seed + n as u64, bytes)).collect();
    for (n, rank) in ranks.iter().enumerate() {
        rank.region.write(0, &vec![0; bytes * ranks.len()]).unwrap();
        rank.region.write(n * bytes, &chunks[n]).unwrap();
    }
    // Nobody writes a chunk before its owner has cleared its region.
    for rank in ranks {
        rank.peers.all_gather(&rank.stream, bytes as u64).unwrap();
    }
    finish(ranks, what);
    let wanted = chunks.concat();
    for (n, rank) in ranks.iter().enumerate() {
        assert_same(&read(&rank.region, 0, wanted.len()), &wanted, &format!("{what}, rank {n}"));
    }
}

#[test]
fn what_all_ranks_put_is_there_after_a_barrier_on_every_path() {
    for (n, rails) in [(1, 1), (2, 2), (3, 1), (4, 3), (5, 1)] {
        let net = Net::new(n, rails);
        for path in paths() {
            let what = format!("{path}, {n} ranks, {rails} rails");
            let ranks = net.ranks(path, 5 * 2000, &small());
            for round in 0..3 {
                gather(&ranks, 1999, 100 * round, &what);
            }
        }
    }
}

#[test]
fn lanes_that_are_threads_meet_at_barriers() {
    let net = Net::on(TestBed::threads(), 2, 2);
    for name in ["push/inband", "pull/kernel"] {
        let ranks = net.ranks(path(name), 2 * 300, &small());
        for round in 0..5 {
            gather(&ranks, 300, round, name);
        }
    }
}

#[test]
fn every_line_format_has_barriers() {
    let net = Net::new(3, 1);
    for line in LINES {
        let ranks = net.ranks(path("push/inband"), 3 * 700, &small().line(line));
        gather(&ranks, 700, 5, &format!("{line:?}"));
    }
}

/// Many barriers without a reset, by every scope; puts of the host's among them.
#[test]
fn barriers_are_repeated_by_every_scope() {
    let net = Net::new(4, 2);
    let kernel = "bp_peers_push_kernel_strict";
    let ranks = net.ranks(path("push/kernel"), 4096, &small());
    for (round, scope) in [Scope::Block, Scope::Warp, Scope::Thread].into_iter().enumerate() {
        let (status, count) = (net.bed.memory(4096), 100 + round as u32);
        let begun = Instant::now();
        for (n, rank) in ranks.iter().enumerate() {
            let args = PeersArgs {
                peers: rank.peers.device().unwrap(),
                op: PeersOp::Sync as u32,
                scope: scope as u32,
                local: 0,
                bytes: 0,
                status: status.addr() + 8 * n as u64,
                count,
                reserved: 0,
            };
            net.bed.queue_on(&rank.stream, kernel, &args);
        }
        for rank in &ranks {
            rank.stream.synchronize(Duration::from_secs(60)).unwrap();
        }
        let each = begun.elapsed() / count;
        println!("sync_all of 4 ranks by a {scope:?}: {each:?}"); // with --nocapture
        assert_eq!(read(&status, 0, 32), [0; 32], "{scope:?}");
    }
    for round in 0..20u64 {
        for (n, rank) in ranks.iter().enumerate() {
            rank.region.write(2048, &[round as u8 + n as u8; 64]).unwrap();
            let next = (n as u32 + 1) % 4;
            let ep = rank.peers.endpoint(next, (round % 2) as u32).unwrap();
            ep.put(&rank.stream, message(2048, 64 * (round % 8), 64)).unwrap();
            rank.peers.barrier(&rank.stream).unwrap();
        }
        finish(&ranks, "a barrier");
        for (n, rank) in ranks.iter().enumerate() {
            let from = (n as u8 + 3) % 4;
            let found = read(&rank.region, 64 * (round as usize % 8), 64);
            assert_eq!(found, [round as u8 + from; 64], "rank {n}, round {round}");
        }
    }
}

/// One rank does not come: the others say so in time, and for whom they wait. When it comes, they go on.
#[test]
fn a_rank_that_does_not_come_is_waited_for_again() {
    let net = Net::new(4, 1);
    let ranks = net.ranks(path("push/inband"), 4 * 100, &small().timeout(short(200)));
    for late in 0..4usize {
        let since = Instant::now();
        let others: Vec<usize> = (0..4).filter(|&n| n != late).collect();
        for (again, &n) in (0..2).flat_map(|again| others.iter().map(move |n| (again, n))) {
            if n == others[0] {
                others.iter().for_each(|&n| ranks[n].peers.barrier(&ranks[n].stream).unwrap());
            }
            let rank = &ranks[n];
            let told = rank.peers.finish(&rank.stream);
            let Err(Error::Peers { rank: me, whom, code: Code::Timeout, .. }) = told else {
                panic!("rank {n}, call {again}: {told:?}");
            };
            assert_eq!(me as usize, n);
            // Whoever waits for it directly names it.
            let direct = (late + 1) % 4 == n;
            assert!(!direct || whom as usize == late, "rank {n} waits for {whom}, not {late}");
            assert!(whom as usize != n);
        }
        assert!(since.elapsed() < short(8000), "{:?}", since.elapsed());
        ranks.iter().for_each(|r| r.peers.barrier(&r.stream).unwrap());
        finish(&ranks, "it has come");
        gather(&ranks, 100, late as u64, "and all goes on");
    }
}

/// An end that is gone ends the barrier of those that address it; the table begins again with another in its place.
#[test]
fn a_table_begins_again_after_a_rank_was_lost() {
    let net = Net::new(3, 2);
    for path in paths() {
        let options = small().timeout(short(300));
        let mut ranks = net.ranks(path, 3 * 500, &options);
        gather(&ranks, 500, 1, "before");
        for round in 0..2 {
            let lost = ranks.remove(1);
            drop(lost);
            ranks.iter().for_each(|r| r.peers.barrier(&r.stream).unwrap());
            for rank in &ranks {
                let told = rank.peers.finish(&rank.stream);
                assert!(matches!(told, Err(Error::Peers { .. })), "{path}: {told:?}");
            }
            for rank in &mut ranks {
                let progress = rank.peers.reset().unwrap();
                assert_eq!(progress.iter().flatten().count(), 4, "{path}");
                assert!(matches!(rank.peers.device(), Err(Error::NotConnected)));
                assert!(matches!(rank.peers.barrier(&rank.stream), Err(Error::NotConnected)));
            }
            ranks.insert(1, net.rank(1, path, 3 * 500, &options));
            connect(&mut ranks);
            gather(&ranks, 500, 10 + round, &format!("{path}: after"));
        }
    }
}

#[test]
fn a_reset_waits_for_no_barrier() {
    let net = Net::new(2, 1);
    // What is gathered below has this time as well.
    let mut ranks = net.ranks(path("push/kernel"), 64, &small().timeout(short(1_000)));
    ranks[0].peers.barrier(&ranks[0].stream).unwrap();
    assert!(matches!(ranks[0].peers.reset(), Err(Error::Busy)));
    ranks[0].stream.synchronize(Duration::from_secs(30)).unwrap();
    ranks.iter_mut().for_each(|r| drop(r.peers.reset().unwrap()));
    let old = addresses(&ranks);
    ranks.iter_mut().for_each(|r| drop(r.peers.reset().unwrap()));
    assert!(addresses(&ranks).iter().zip(&old).all(|(a, b)| a != b), "another first PSN");
    connect(&mut ranks);
    gather(&ranks, 32, 3, "after");
    assert!(matches!(ranks[0].peers.connect(&old), Err(Error::AlreadyConnected)));
}

/// The table's calls and its endpoints' use the same queue pairs, which one stream alone orders.
#[test]
fn a_table_and_its_endpoints_are_on_one_stream() {
    let net = Net::new(2, 2);
    let ranks = net.ranks(path("push/kernel"), 2 * 100, &small());
    let other = net.bed.gpu.stream().unwrap();
    let refused = |told| assert!(matches!(told, Err(Error::OtherStream)), "{told:?}");
    let Rank { peers, stream, .. } = &ranks[0];
    let put = |stream| peers.endpoint(1, 1).unwrap().put(stream, message(0, 0, 8));
    put(&other).unwrap();
    refused(peers.quiet(stream));
    other.synchronize(Duration::from_secs(10)).unwrap();
    peers.quiet(stream).unwrap();
    refused(put(&other));
    put(stream).unwrap();
    peers.finish(stream).unwrap();
    put(&other).unwrap();
    other.synchronize(Duration::from_secs(10)).unwrap();
    // Its bytes go where those of the gathering go, on another queue pair.
    peers.quiet(stream).unwrap();
    gather(&ranks, 100, 3, "on one stream");
}

/// A reset that is refused because of one endpoint leaves all of them connected.
#[test]
fn a_reset_that_is_refused_changes_nothing() {
    let net = Net::new(3, 2);
    let mut ranks = net.ranks(path("push/kernel"), 3 * 100, &small());
    let Rank { peers, stream, .. } = &mut ranks[0];
    peers.endpoint(2, 1).unwrap().put(stream, message(0, 0, 8)).unwrap();
    assert!(matches!(peers.reset(), Err(Error::Busy)));
    peers.endpoint(2, 1).unwrap().quiet(stream).unwrap();
    gather(&ranks, 100, 3, "after a reset that was refused");
}

/// What is not there is refused by every verb, the rank's own entry too.
#[test]
fn a_rank_has_no_endpoint_to_itself() {
    let net = Net::new(3, 2);
    let ranks = net.ranks(path("pull/kernel"), 3 * 64, &small());
    assert!(ranks[1].peers.endpoint(1, 0).is_none() && ranks[1].peers.endpoint(3, 0).is_none());
    assert!(ranks[1].peers.endpoint(0, 2).is_none() && ranks[1].peers.endpoint(0, 1).is_some());
    // As if it were rank 0, whose next one is itself.
    let peers = DevicePeers { rank: 0, ..ranks[1].peers.device().unwrap() };
    let status = net.bed.memory(64);
    let args = PeersArgs {
        peers,
        op: PeersOp::AllGather as u32,
        scope: Scope::Block as u32,
        local: ranks[1].region.addr(),
        bytes: 64,
        status: status.addr(),
        count: 1,
        reserved: 0,
    };
    net.bed.queue_on(&ranks[1].stream, "bp_peers_pull_kernel_strict", &args);
    ranks[1].stream.synchronize(Duration::from_secs(30)).unwrap();
    assert_eq!(read(&status, 0, 8), [INVALID as u8, 0, 0, 0, 1, 0, 0, 0], "refused, of rank 1");
}

#[test]
fn addresses_that_do_not_go_together_are_refused() {
    let net = Net::new(2, 1);
    let (push, pull) = (path("push/kernel"), path("pull/kernel"));
    let mut a = net.rank(0, push, 64, &small());
    let b = net.rank(1, push, 64, &small());
    let (of_a, of_b) = (a.peers.address().clone(), b.peers.address().clone());
    let odd = net.rank(1, pull, 64, &small()).peers.address().clone();
    let mut differs = |all: &[PeersAddress]| match a.peers.connect(all) {
        Err(Error::Differs { rank, what, .. }) => (rank, what),
        other => panic!("{other:?}"),
    };
    assert_eq!(differs(std::slice::from_ref(&of_a)), (0, "a number of addresses"));
    assert_eq!(differs(&[of_b.clone(), of_a.clone()]), (0, "the number"));
    assert_eq!(differs(&[of_a.clone(), odd]), (1, "the path"));
    let other = Net::new(2, 2).rank(1, push, 64, &small()).peers.address().clone();
    assert_eq!(differs(&[of_a.clone(), other]), (1, "rails"));
    // As text, with an end that nothing can be, and without one.
    let text = serde_json::to_string(&of_b).unwrap();
    let bad = text.replace("\"mtu\":4096", "\"mtu\":4095");
    assert!(bad != text);
    let refused = serde_json::from_str::<PeersAddress>(&bad).unwrap_err();
    assert!(refused.to_string().contains("no path has that MTU"), "{refused}");
    let mut without: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(without["ends"][0].is_object());
    without["ends"][0] = serde_json::Value::Null;
    let without = serde_json::from_value(without).unwrap();
    assert_eq!(differs(&[of_a.clone(), without]), (1, "endpoints"));
    assert!(serde_json::from_str::<PeersAddress>(&text.replace("rails", "rail")).is_err());
    a.peers.connect(&[of_a, serde_json::from_str(&text).unwrap()]).unwrap();
}

#[test]
fn what_no_table_can_be_made_of_is_refused() {
    let net = Net::new(2, 1);
    let (gpu, nics) = (&net.bed.gpu, &net.nics[0]);
    let new = |nics: &[Arc<dyn Nic>], of, path: &str| {
        let region = net.bed.memory(64);
        Peers::new(gpu, nics, of, path.parse().unwrap(), region, &small()).map(drop)
    };
    let option = |told| matches!(told, Err(Error::Option { .. }));
    assert!(option(new(nics, (2, 2), "push/kernel")));
    assert!(option(new(nics, (0, 0), "push/kernel")));
    assert!(option(new(nics, (0, 4097), "push/kernel")));
    assert!(option(new(&[], (0, 2), "push/kernel")));
    for path in ["push/cpu", "tcp", "auto"] {
        assert!(matches!(new(nics, (0, 2), path), Err(Error::Unsupported { .. })), "{path}");
    }
    let ranks = net.ranks(path("push/kernel"), 4096, &small());
    let too_long = ranks[0].peers.all_gather(&ranks[0].stream, 2049);
    assert!(matches!(too_long, Err(Error::Range { which: "local", .. })), "{too_long:?}");
    let other = gpu.stream().unwrap();
    ranks[0].peers.barrier(&ranks[0].stream).unwrap();
    assert!(matches!(ranks[0].peers.barrier(&other), Err(Error::OtherStream)));
    ranks[1].peers.barrier(&ranks[1].stream).unwrap();
    finish(&ranks, "both have come");
}
