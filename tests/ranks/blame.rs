//! Whom ranks blame where the link holds back what one of them says.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bellpush::collective::{Algorithm, Communicator, Dtype, Error, Op, Options};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
};
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::transport::Memory;

/// Bound of the ranks' waits. The grace is 0.8 s, and a queue pair sends again after 0.27 s.
const TIMEOUT: Duration = Duration::from_millis(3200);
/// How long packets are lost.
const LOST: Duration = Duration::from_millis(240);
/// RC's opcode.
const ACKNOWLEDGE: u8 = 0x11;
const NEVER: u64 = u64::MAX;
/// Requests of the lost rank that its next one receives.
const HEARD: u64 = 100;

/// Of ranks 0 and 1, which hear no requests of rank 2 after so many. Acknowledgements come as before.
struct Holds {
    inner: ShmLink,
    lost: IpAddr,
    heard: Arc<AtomicU64>,
    /// When the first packet was sent after this was 0, in the engine's ns: all are lost for a while then.
    from: Arc<AtomicU64>,
}

impl Link for Holds {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn src_port(&self) -> u16 {
        self.inner.src_port()
    }

    fn carries(&self) -> Carries {
        self.inner.carries()
    }

    fn has_icrc(&self) -> bool {
        self.inner.has_icrc()
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        if !batch.is_empty() {
            let _ = self.from.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
        }
        let from = self.from.load(Ordering::Relaxed);
        if from != NEVER && now_ns < from + LOST.as_nanos() as u64 {
            let lost = batch.len();
            batch.take(lost);
            return Ok(lost);
        }
        self.inner.send(now_ns, batch)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.inner.recv(now_ns, most, &mut |packet| {
            if packet.envelope.addresses.src() == self.lost
                && packet.bytes[0] != ACKNOWLEDGE
                && self.heard.fetch_add(1, Ordering::Relaxed) >= HEARD
            {
                return;
            }
            each(packet);
        })
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// Rank 2 is lost in the middle of a ring: rank 0 waits for it, and rank 1 for rank 0. What rank 0 says when it gives
/// up is lost at first. Its program goes as soon as it is told, and its queue pairs with it.
#[test]
fn a_rank_that_goes_has_told_the_others_whom_it_blames() {
    let net = ShmNet::anonymous(false).unwrap();
    let links: Vec<_> = (0..3).map(|_| net.attach_free().unwrap()).collect();
    let (lost, heard) = (links[2].address(), Arc::new(AtomicU64::new(0)));
    let holds = [(); 2].map(|()| Arc::new(AtomicU64::new(NEVER)));
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let place = |(rank, inner): (usize, ShmLink)| -> (Arc<Gpu>, Arc<dyn Nic>) {
        let link: Box<dyn Link> = match holds.get(rank) {
            Some(from) => Box::new(Holds { inner, lost, heard: heard.clone(), from: from.clone() }),
            None => Box::new(inner),
        };
        (gpu.clone(), SoftNic::open_on(SoftConfig::default(), link).unwrap())
    };
    let places: Vec<_> = links.into_iter().enumerate().map(place).collect();
    let mut options = Options::new("push/inband".parse().unwrap());
    (options.algorithm, options.channels, options.timeout) = (Some(Algorithm::Ring), 1, TIMEOUT);
    options.chunk_bytes = Some(256);
    let ranks = Communicator::threads(&places, &options).unwrap();
    let run = |rank: Communicator| {
        let count = 100_000;
        let (stream, memory) = (gpu.stream().unwrap(), Memory::from(gpu.alloc(4 * count).unwrap()));
        rank.all_reduce(&stream, &memory, &memory, count as u64, Dtype::F32, Op::Sum).unwrap();
        let ended = rank.synchronize(&stream).err();
        if rank.rank() == 2 {
            std::thread::sleep(2 * TIMEOUT);
        }
        ended
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| run(rank))).collect();
        std::thread::sleep(TIMEOUT * 3 / 4); // all is quiet
        holds[0].store(0, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (rank, ended) in ended.iter().enumerate().take(2) {
        // By its silence, or by its queue pair, which has failed too by then.
        let blames =
            matches!(ended, Some(Error::Silent { rank: 2, .. } | Error::Link { rank: 2, .. }));
        assert!(blames, "rank {rank}: {ended:?}");
    }
}
