//! Numbers that nobody can guess. Keys, queue pair numbers and first PSNs are all that a packet has
//! to show (InfiniBand vol. 1, 9.7.1 and 10.6.3.3), so a peer that was told some of them must not
//! be able to compute the others.
//!
//! HMAC-SHA-256 of a counter, with a key of the system's. The process's number is in it too: a child
//! of a fork has the same key and the same counter.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use hmac::{Hmac, Mac};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// Numbers of a draw.
const DRAW: usize = 8;

/// A source of numbers.
#[derive(Debug)]
pub struct Random(Source);

enum Source {
    Keyed {
        key: [u8; 32],
        next: AtomicU64,
    },
    /// splitmix64: whoever has seen two numbers can compute all.
    Seeded(AtomicU64),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Keyed { .. } => "of the system's",
            Self::Seeded(_) => "of a seed",
        })
    }
}

impl Random {
    /// Numbers that follow from what the system gives (getrandom(2)).
    ///
    /// # Errors
    /// What the system says instead.
    pub fn system() -> io::Result<Self> {
        let (mut key, mut got) = ([0; 32], 0);
        while got < key.len() {
            match getrandom(&mut key[got..], GetRandomFlags::empty()) {
                Ok(n) => got += n,
                Err(Errno::INTR) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(Self(Source::Keyed { key, next: AtomicU64::new(0) }))
    }

    /// Numbers that anybody can compute, for runs that must repeat.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(AtomicU64::new(seed)))
    }

    /// The next number.
    pub fn number(&self) -> u32 {
        self.draw()[0]
    }

    fn draw(&self) -> [u32; DRAW] {
        match &self.0 {
            Source::Keyed { key, next } => {
                keyed(key, std::process::id(), next.fetch_add(1, Ordering::Relaxed))
            }
            Source::Seeded(state) => std::array::from_fn(|_| {
                let mut z = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
                z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                (z ^ z >> 31) as u32
            }),
        }
    }

    /// Puts things into an order that nobody knows (Fisher and Yates).
    pub(crate) fn shuffle<T>(&self, all: &mut [T]) {
        let mut drawn = [0; DRAW];
        for left in (1..all.len()).rev() {
            if left % DRAW == 0 || left == all.len() - 1 {
                drawn = self.draw();
            }
            all.swap(left, drawn[left % DRAW] as usize % (left + 1));
        }
    }
}

fn keyed(key: &[u8; 32], process: u32, number: u64) -> [u32; DRAW] {
    let mut mac: Hmac<Sha256> = Mac::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(&process.to_le_bytes());
    mac.update(&number.to_le_bytes());
    let bytes = mac.finalize().into_bytes();
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|at| bytes[4 * i + at])))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn two_sources_and_two_draws_have_nothing_in_common() {
        let sources = [Random::system().unwrap(), Random::system().unwrap()];
        let all: HashSet<u32> =
            sources.iter().flat_map(|source| (0..64).map(|_| source.number())).collect();
        // 128 of 2^32: two alike once in 500,000 runs.
        assert!(all.len() >= 127, "{}", all.len());
        let [ones, zeros] = all.iter().fold([0, 0], |[ones, zeros], n| [ones | n, zeros | !n]);
        assert_eq!([ones, zeros], [u32::MAX; 2], "every bit is used");
    }

    /// As Python's hmac says it of key, process and number.
    #[test]
    fn numbers_are_hmac_sha_256() {
        assert_eq!(keyed(&[7; 32], 100, 0)[..3], [0xc404_517f, 0x0cae_1ded, 0x6d08_8710]);
    }

    /// A child of a fork has all that its parent has but its number.
    #[test]
    fn a_child_draws_other_numbers_than_its_parent() {
        let key = [7; 32];
        assert_ne!(keyed(&key, 100, 0), keyed(&key, 101, 0));
        assert_eq!(keyed(&key, 100, 0), keyed(&key, 100, 0), "control");
        let (one, other) =
            (Source::Keyed { key, next: 5.into() }, Source::Keyed { key, next: 5.into() });
        assert_eq!(Random(one).number(), keyed(&key, std::process::id(), 5)[0]);
        assert_eq!(Random(other).draw(), keyed(&key, std::process::id(), 5));
    }

    #[test]
    fn a_shuffle_keeps_all_and_goes_everywhere() {
        let source = Random::system().unwrap();
        let mut firsts = HashSet::new();
        for _ in 0..64 {
            let mut all: Vec<u32> = (0..100).collect();
            source.shuffle(&mut all);
            firsts.insert((all[0], all[99]));
            all.sort_unstable();
            assert!(all.into_iter().eq(0..100));
        }
        assert!(firsts.len() > 55, "{} ends of 64", firsts.len());
        source.shuffle::<u8>(&mut []);
    }
}
