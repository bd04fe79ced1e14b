//! Numbers that peers cannot guess.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where communication IDs, transaction IDs and first PSNs come from. A message shows its sender's
/// next ones, so a peer must not be able to compute those of others from them.
#[derive(Clone)]
pub struct Random(Arc<dyn Fn() -> u32 + Send + Sync>);

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    /// Numbers of a source that nobody can guess.
    pub fn of(source: impl Fn() -> u32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// Numbers that anybody can compute (splitmix64), for runs that must repeat.
    pub fn seeded(seed: u64) -> Self {
        let state = AtomicU64::new(seed);
        Self::of(move || {
            let step = 0x9e37_79b9_7f4a_7c15;
            let mut z = state.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) as u32
        })
    }

    pub(crate) fn next(&self) -> u32 {
        self.0()
    }
}
