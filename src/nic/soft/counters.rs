//! What a NIC has done, readable while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::cqe::Syndrome;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Default)]
        pub(super) struct Live {
            $(pub(super) $name: AtomicU64,)*
            errors: [AtomicU64; Syndrome::ALL.len()],
        }

        /// What a NIC has done so far. The values are read one by one, while the NIC runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Error CQEs written, by syndrome in the order of [`Syndrome::ALL`].
            pub errors: [u64; Syndrome::ALL.len()],
        }

        impl Live {
            pub(super) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    errors: std::array::from_fn(|i| self.errors[i].load(Ordering::Relaxed)),
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
    /// UAR registers seen to change.
    doorbells,
    /// Times that a peer's receive queue was empty.
    rnr_waits,
    /// Completions that found their CQ full.
    cq_overruns,
}

impl Live {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        if n != 0 {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(super) fn error(&self, syndrome: Syndrome) {
        let index = Syndrome::ALL.iter().position(|&s| s == syndrome);
        Self::add(&self.errors[index.expect("every syndrome is in ALL")], 1);
    }
}

impl Counters {
    /// Error CQEs written with a syndrome.
    pub fn error(&self, syndrome: Syndrome) -> u64 {
        Syndrome::ALL.iter().position(|&s| s == syndrome).map_or(0, |i| self.errors[i])
    }
}
