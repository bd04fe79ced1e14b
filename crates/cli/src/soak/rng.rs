//! Random numbers that are the same for the same seed, round and use.

/// What numbers are drawn for: what one use draws does not move another's.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    Config = 1,
    Ops = 2,
    Bytes = 3,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64, round: u64, what: Use) -> Self {
        let mut rng = Self(seed);
        rng.0 = rng.next() ^ round.wrapping_mul(0xd6e8_feb8_6659_fd93);
        rng.0 = rng.next() ^ (what as u64) << 56;
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `low` to `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// One of `from`, each as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, from: &[(u64, T)]) -> T {
        let mut at = self.below(from.iter().map(|(weight, _)| weight).sum());
        for &(weight, value) in from {
            if at < weight {
                return value;
            }
            at -= weight;
        }
        unreachable!("what was drawn is below the sum")
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_numbers_for_the_same_seed_round_and_use() {
        let first = |seed, round, what| Rng::new(seed, round, what).next();
        assert_eq!(first(1, 2, Use::Ops), first(1, 2, Use::Ops));
        let all = [
            first(1, 2, Use::Ops),
            first(1, 2, Use::Bytes),
            first(1, 3, Use::Ops),
            first(2, 2, Use::Ops),
        ];
        assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])), "{all:x?}");
        let mut rng = Rng::new(7, 7, Use::Config);
        let drawn: Vec<_> =
            (0..500).map(|_| rng.weighted(&[(1, 'a'), (0, 'b'), (9, 'c')])).collect();
        assert!(drawn.contains(&'a') && drawn.contains(&'c') && !drawn.contains(&'b'));
        assert!((0..500).all(|_| (3..=5).contains(&rng.within(3, 5))));
    }
}
