//! What a NIC has done, readable while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use bellpush_wire::cqe::Syndrome;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Default)]
        pub(crate) struct Live {
            $(pub(crate) $name: AtomicU64,)*
            errors: [AtomicU64; Syndrome::ALL.len()],
            drops: [AtomicU64; DropReason::ALL.len()],
        }

        /// What a NIC has done so far. The values are read one by one, while the NIC runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Error CQEs written, by syndrome in the order of [`Syndrome::ALL`].
            pub errors: [u64; Syndrome::ALL.len()],
            /// Packets dropped, by reason in the order of [`DropReason::ALL`].
            pub drops: [u64; DropReason::ALL.len()],
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.errors.iter_mut().zip(other.errors).for_each(|(a, b)| *a += b);
                self.drops.iter_mut().zip(other.drops).for_each(|(a, b)| *a += b);
            }
        }

        impl Counters {
            /// Its counters by name, but for errors and drops, which are summed up.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                let sums = [
                    ("errors", self.errors.iter().sum()),
                    ("drops", self.drops.iter().sum()),
                ];
                [$((stringify!($name), self.$name),)*].into_iter().chain(sums).collect()
            }
        }

        impl Live {
            pub(crate) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Ordering::Acquire),)*
                    errors: std::array::from_fn(|i| self.errors[i].load(Ordering::Relaxed)),
                    drops: std::array::from_fn(|i| self.drops[i].load(Ordering::Relaxed)),
                }
            }
        }
    };
}

counters! {
    /// Send WQEs carried out, without error.
    wqes,
    /// Bytes of their payload.
    bytes,
    /// Those of them that came through in-band slots.
    inband,
    /// Those of them that came through BlueFlame.
    blueflame,
    /// Receives completed, without error.
    receives,
    /// Those of them that the engine on a GPU carried out.
    offloaded,
    /// Queue pairs that it gave back on its own account: errors, and what it leaves to the host.
    returned,
    /// UAR registers seen to change.
    doorbells,
    /// Times that a peer's receive queue was empty.
    rnr_waits,
    /// Completions that found their CQ full.
    cq_overruns,
    /// Packets given to the link.
    tx_packets,
    /// Their bytes, BTH to ICRC.
    tx_bytes,
    /// Packets that the link handed out.
    rx_packets,
    /// Their bytes, BTH to ICRC.
    rx_bytes,
    /// Those of the packets sent that were sent before.
    retransmitted,
    /// Times that nothing was acknowledged for as long as the local ACK timeout.
    timeouts,
    /// NAKs of a sequence error that came.
    sequence_naks,
    /// Times that the link failed.
    link_errors,
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// Shorter than its headers, or with more payload than its opcode or the path MTU allows.
    Length,
    /// A transport version other than 0.
    Version,
    /// An opcode that is reserved, or of another service than its queue pair's.
    Opcode,
    /// A reserved AETH syndrome.
    Syndrome,
    /// A pad count that does not fit.
    Pad,
    /// A wrong ICRC.
    Icrc,
    /// Another partition.
    Pkey,
    /// Another queue key.
    Qkey,
    /// No queue pair of that number.
    NoSuchQp,
    /// A queue pair that is not in a state to receive.
    State,
    /// From an address that the queue pair is not connected to.
    Source,
    /// A request that came too early: something before it is missing.
    Gap,
    /// A request that was carried out before, and for which nothing is left to be said.
    Duplicate,
    /// A response to nothing that is outstanding.
    Response,
    /// A packet in the middle of a message that began with a lost one (UC).
    Message,
    /// A message for which no receive is posted (UC, UD), or that comes before its RNR timer.
    NoReceive,
    /// A request that the receiver refuses without an answer (UC, UD).
    Refused,
    /// A congestion notification, which changes nothing here.
    Congestion,
    /// The port was down.
    PortDown,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Length,
        Self::Version,
        Self::Opcode,
        Self::Syndrome,
        Self::Pad,
        Self::Icrc,
        Self::Pkey,
        Self::Qkey,
        Self::NoSuchQp,
        Self::State,
        Self::Source,
        Self::Gap,
        Self::Duplicate,
        Self::Response,
        Self::Message,
        Self::NoReceive,
        Self::Refused,
        Self::Congestion,
        Self::PortDown,
    ];
}

impl Live {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        if n != 0 {
            // Release, and acquire in read(): who sees a count sees those that were added before it.
            counter.fetch_add(n, Ordering::Release);
        }
    }

    pub(crate) fn dropped(&self, reason: DropReason) {
        Self::add(&self.drops[reason as usize], 1);
    }

    pub(crate) fn error(&self, syndrome: Syndrome) {
        let index = Syndrome::ALL.iter().position(|&s| s == syndrome);
        Self::add(&self.errors[index.expect("every syndrome is in ALL")], 1);
    }
}

impl Counters {
    /// Error CQEs written with a syndrome.
    pub fn error(&self, syndrome: Syndrome) -> u64 {
        Syndrome::ALL.iter().position(|&s| s == syndrome).map_or(0, |i| self.errors[i])
    }

    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
