//! The clock that processes of one host have in common, and the processor's counter beside it.

/// Nanoseconds of the system's monotonic clock (`CLOCK_MONOTONIC`), which all processes of a time namespace share.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time. The clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor's counter, where it has one; else [`monotonic_ns`]. A third of the time that this takes.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return monotonic_ns();
}

/// Whether [`ticks`] runs at one rate, alike on all cores: where the system goes by it as well.
pub fn has_steady_ticks() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read(source).is_ok_and(|name| name.trim_ascii() == b"tsc")
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The counter.
    pub ticks: u64,
    /// The clock, in nanoseconds.
    pub ns: u64,
    /// How far apart the looks before and after it were, in ticks.
    pub apart: u64,
}

impl Pair {
    /// The closest of several looks.
    pub fn sample() -> Self {
        let look = |_| {
            let (before, ns, after) = (ticks(), monotonic_ns(), ticks());
            let apart = after.wrapping_sub(before);
            Self { ticks: before.wrapping_add(apart / 2), ns, apart }
        };
        (0..32).map(look).min_by_key(|pair| pair.apart).expect("32 looks")
    }

    /// Nanoseconds of a tick, by this pair and a later one.
    pub fn ns_per_tick(&self, later: &Self) -> f64 {
        let ticks = later.ticks.wrapping_sub(self.ticks).max(1);
        later.ns.saturating_sub(self.ns) as f64 / ticks as f64
    }

    /// The time of the clock when the counter said so.
    pub fn ns_at(&self, ticks: u64, ns_per_tick: f64) -> u64 {
        let since = ticks.wrapping_sub(self.ticks) as i64 as f64 * ns_per_tick;
        self.ns.saturating_add_signed(since as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_between_two_pairs_have_their_time() {
        let first = Pair { ticks: 1000, ns: 50, apart: 0 };
        let rate = first.ns_per_tick(&Pair { ticks: 5000, ns: 2050, apart: 0 });
        assert_eq!([1000, 3000, 5000, 900].map(|at| first.ns_at(at, rate)), [50, 1050, 2050, 0]);
    }
}
