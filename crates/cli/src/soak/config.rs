//! What a round is made of: NICs and what lies between them, connections, sizes. Drawn from the seed alone.

use std::fmt;
use std::time::Duration;

use bellpush::nic::LineFormat;
use bellpush::nic::soft::link::Faults;
use bellpush::nic::soft::{Adversary, AdversaryKind};
use bellpush::transport::{Choice, Data, Kick, MemoryPlace, Options, Path, Range, Ranges, Tuning};

use super::faults::{Kind, Trouble};
use super::rng::{Rng, Use};

/// Bytes before and behind the connections' parts, which nobody writes.
pub const GUARD: usize = 256;
/// Words for atomics and signals at the end of a connection's part; behind them is one that flushes are made with.
pub const WORDS: usize = 16;
/// Bytes at the end of a connection's part that are not for data.
pub const TAIL: usize = (WORDS + 2) * 8;

/// What is between the two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Carrier {
    /// Copies within one NIC, or between two.
    Copies { nics: usize, engines: usize, copy_threads: usize },
    /// Copies by the engine that is a kernel.
    GpuEngine,
    /// Packets in shared memory between two NICs.
    Shm { icrc: bool, faults: Option<Faults> },
    /// Packets over UDP on the loopback interface.
    Udp { faults: Option<Faults> },
}

impl Carrier {
    pub fn has_packets(self) -> bool {
        matches!(self, Self::Shm { .. } | Self::Udp { .. })
    }

    /// Its name in what the run counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies { nics: 1, .. } => "one NIC",
            Self::Copies { .. } => "two NICs",
            Self::GpuEngine => "engine as a kernel",
            Self::Shm { .. } => "shm",
            Self::Udp { .. } => "udp",
        }
    }

    pub fn faults(self) -> Option<Faults> {
        match self {
            Self::Shm { faults, .. } | Self::Udp { faults } => faults,
            _ => None,
        }
    }
}

/// One connection.
#[derive(Debug, Clone)]
pub struct Connection {
    pub path: Path,
    pub options: Options,
    /// Many callers at once, of kernels that share it.
    pub shared: bool,
}

impl Connection {
    /// The path's part of the names of kernels that post on it.
    pub fn kernel(&self) -> Option<String> {
        use bellpush::{nic::Order, transport::Reach};
        let fixed = self.path != Path::AUTO;
        let name = self.path.kernel_name(self.options.line, Order::Later, Reach::System);
        let shared = if self.shared { "shared_" } else { "" };
        name.filter(|_| fixed).map(|name| format!("{shared}{name}"))
    }

    /// Whether there are kernels for the verbs of `kernels/entry/extra.cu`.
    pub fn has_extra(&self) -> bool {
        let blueflame_pull =
            self.path.data() == Data::Pull && self.path.kick() == Some(Kick::Blueflame);
        self.kernel().is_some() && !blueflame_pull
    }

    /// Whether the peer's memory sees what one end posts in its order.
    pub fn in_order(&self) -> bool {
        self.path != Path::AUTO
    }

    /// Slots that one call may pass through: each half of the window takes the time of a round trip.
    pub fn most_slots(&self) -> usize {
        let slots = self.options.slots() as usize;
        if self.path.has_window() { 64 * (slots / 2).max(1) } else { usize::MAX }
    }

    /// Bytes that one call may put.
    pub fn most_bytes(&self) -> usize {
        self.most_slots().saturating_mul(self.single_bytes())
    }

    /// Bytes that fit into one WQE or slot, of those that batches and lanes put.
    pub fn single_bytes(&self) -> usize {
        let slot = self.options.slot_bytes as usize;
        match (self.path.data(), self.path.kick()) {
            (Data::Pull, _) => 4096,
            (_, Some(Kick::Inband)) => {
                let line = self.options.line;
                (slot - 64) / line.line_bytes() * line.data_bytes()
            }
            _ => slot,
        }
    }
}

/// A round's configuration.
#[derive(Debug, Clone)]
pub struct Config {
    pub seed: u64,
    pub round: u64,
    /// Kernels' lanes are threads (host executor).
    pub threads: bool,
    pub carrier: Carrier,
    pub adversary: Option<Adversary>,
    pub trouble: Option<Trouble>,
    /// Bytes of a connection's part of each memory.
    pub part: usize,
    /// Whether each memory is the GPU's.
    pub on_gpu: [bool; 2],
    /// Whether each connection has a stream of its own.
    pub streams: bool,
    pub connections: Vec<Connection>,
    /// Operations.
    pub ops: usize,
    /// Bytes of all operations, about.
    pub bytes: usize,
}

impl Config {
    pub fn draw(seed: u64, round: u64) -> Self {
        let rng = &mut Rng::new(seed, round, Use::Config);
        let carrier = carrier(rng);
        let on_gpu_engine = carrier == Carrier::GpuEngine;
        let adversary = (!on_gpu_engine && rng.one_in(4)).then(|| adversary(rng));
        let ops = rng.weighted(&[(4, 12), (4, 30), (2, 60)]);
        let clean = carrier.faults().is_none() && !on_gpu_engine;
        let trouble =
            (clean && rng.one_in(4)).then(|| Trouble::draw(rng, ops as u64, carrier.has_packets()));
        let part = rng.weighted(&[(3, 4 << 10), (4, 32 << 10), (3, 256 << 10), (1, 2 << 20)]);
        let slow = is_slow(&carrier, adversary.as_ref(), trouble.as_ref());
        let part = if slow { part.min(32 << 10) } else { part };
        let bytes = match carrier {
            Carrier::Copies { .. } if adversary.is_none() => 8 << 20,
            Carrier::Udp { .. } => 1 << 20,
            _ => 2 << 20,
        };
        let timeout = timeout(&carrier, adversary.as_ref(), trouble.as_ref());
        let all_writes = adversary.is_some_and(|it| it.has(AdversaryKind::AllWrites));
        let count = rng.weighted(&[(4, 1), (3, 2), (2, 3), (1, 5)]);
        let connections =
            (0..count).map(|_| connection(rng, timeout, (all_writes, slow))).collect();
        let threads = rng.one_in(8);
        // A launch makes a thread for each lane, which meet at each barrier.
        let (ops, part) = if threads { (ops.min(12), 4 << 10) } else { (ops, part) };
        let on_gpu = [rng.one_in(2), rng.one_in(2)];
        let streams = rng.one_in(2);
        Self {
            seed,
            round,
            threads,
            carrier,
            adversary,
            trouble,
            part,
            on_gpu,
            streams,
            connections,
            ops,
            bytes,
        }
    }

    /// Whether a wait may take long: packets are lost, or pass for lost, or CQEs are.
    pub fn is_slow(&self) -> bool {
        let trouble = self.trouble.as_ref();
        is_slow(&self.carrier, self.adversary.as_ref(), trouble)
            || trouble.is_some_and(|it| matches!(it.kind, Kind::Cqe | Kind::Device))
    }

    /// Whether queue pairs may end.
    pub fn may_fail(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.kind.ends_queue_pairs())
    }

    /// Whether CQEs may be lost without an end of their queue pair: what waits for room behind them gives up.
    pub fn may_lose_cqes(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.kind == Kind::Cqe)
    }

    /// Whether what was acknowledged need not have landed: an atomic behind it tells.
    pub fn lands_late(&self) -> bool {
        self.adversary.is_some_and(|it| it.has(AdversaryKind::AllWrites))
    }

    /// Where a connection's part begins, in both memories.
    pub fn part_of(&self, connection: usize) -> usize {
        GUARD + connection * self.part
    }

    /// Bytes of each memory.
    pub fn memory_bytes(&self) -> usize {
        GUARD * 2 + self.connections.len() * self.part
    }

    /// Where data of a connection may lie, counted from its part's begin.
    pub fn data_bytes(&self) -> usize {
        self.part - TAIL
    }
}

fn carrier(rng: &mut Rng) -> Carrier {
    let nics = rng.pick(&[1, 1, 2]);
    let (engines, copy_threads) = (rng.pick(&[1, 1, 2]), rng.pick(&[0, 0, 1]));
    let faults = rng.one_in(2).then(|| link_faults(rng));
    let icrc = faults.is_some_and(|faults| faults.corrupt > 0.0) || rng.one_in(2);
    rng.weighted(&[
        (8, Carrier::Copies { nics, engines, copy_threads }),
        (1, Carrier::GpuEngine),
        (4, Carrier::Shm { icrc, faults }),
        (3, Carrier::Udp { faults }),
    ])
}

impl Config {
    /// The same with queues and windows where the NIC's engine reaches them: a CPU thread reaches no GPU's memory but
    /// that of the host's executor.
    pub fn within_reach(mut self, on_host: bool) -> Self {
        if on_host || self.carrier == Carrier::GpuEngine {
            return self;
        }
        let near = |place| if place == MemoryPlace::Gpu { MemoryPlace::Host } else { place };
        for Connection { options: o, .. } in &mut self.connections {
            *o = o
                .clone()
                .sq_place(near(o.sq_place))
                .dbr_place(near(o.dbr_place))
                .cq_place(near(o.cq_place))
                .window_place(near(o.window_place));
        }
        self
    }
}

fn link_faults(rng: &mut Rng) -> Faults {
    let mut share = || if rng.one_in(2) { 0.0 } else { rng.within(1, 20) as f64 / 1000.0 };
    let (loss, dup, reorder, corrupt) = (share(), share(), share(), share());
    let delay_ns = if rng.one_in(4) { rng.within(1_000, 100_000) } else { 0 };
    Faults { loss, dup, reorder, corrupt, delay_ns, rate: None, seed: rng.next() }
}

fn adversary(rng: &mut Rng) -> Adversary {
    let seed = rng.next();
    if rng.one_in(3) {
        return Adversary::new(seed);
    }
    let kinds: Vec<_> = AdversaryKind::ALL.into_iter().filter(|_| rng.one_in(2)).collect();
    Adversary::of(seed, &kinds)
}

/// Whether packets are lost, or pass for lost, so that a message may take long.
fn is_slow(carrier: &Carrier, adversary: Option<&Adversary>, trouble: Option<&Trouble>) -> bool {
    let kinds = [AdversaryKind::Acks, AdversaryKind::Routing];
    carrier.faults().is_some()
        || carrier.has_packets() && adversary.is_some_and(|it| kinds.iter().any(|&k| it.has(k)))
        || trouble.is_some_and(|trouble| trouble.kind == Kind::Packets)
}

/// Long enough that nothing ends by it which goes on. Where a CQE is lost, each wait takes so long.
fn timeout(
    carrier: &Carrier,
    adversary: Option<&Adversary>,
    trouble: Option<&Trouble>,
) -> Duration {
    match trouble.map(|trouble| trouble.kind) {
        Some(Kind::Cqe | Kind::Device) => Duration::from_millis(1500),
        // A lost packet, or a peer that has ended, takes an eighth of it each time.
        _ if is_slow(carrier, adversary, trouble) => Duration::from_secs(4),
        Some(_) if carrier.has_packets() => Duration::from_secs(4),
        _ => Duration::from_secs(15),
    }
}

fn connection(rng: &mut Rng, timeout: Duration, (all_writes, slow): (bool, bool)) -> Connection {
    let auto = !all_writes && rng.one_in(10);
    let path = if auto { Path::AUTO } else { rng.pick(&Path::ALL) };
    let can_share = matches!(path.kick(), Some(Kick::Kernel | Kick::Inband));
    let shared = can_share && rng.one_in(3);
    let inband = auto || path.kick() == Some(Kick::Inband);
    let slot_bytes: u32 = rng.pick(&[128, 128, 192, 256, 1024, 4096, 8192]);
    // Where each loss takes a while, not one for each slot.
    let few: &[u64] = if slow { &[8, 15, 32, 63] } else { &[1, 2, 3, 5, 8, 15, 32, 63] };
    let slots = rng.pick(few);
    let line = match path.kick() {
        Some(Kick::Inband) if !shared => {
            rng.pick(&[LineFormat::L12S4, LineFormat::L14S2, LineFormat::L60S4])
        }
        _ => LineFormat::L12S4,
    };
    let last = if line == LineFormat::L14S2 { 0xffff } else { u32::MAX };
    let receives = if path.kick().is_some() && !shared { rng.pick(&[0, 4, 16]) } else { 0 };
    let mut options = Options::default()
        .slot_bytes(slot_bytes)
        .window_bytes(slots * u64::from(slot_bytes))
        .line(line)
        .sq_blocks(rng.pick(&[64, 64, 128, 1024]))
        .receives(receives)
        .timeout(timeout);
    if inband && rng.one_in(2) {
        options = options.inband_seq0(rng.pick(&[1, last - 1, last]));
    }
    let mut place =
        || rng.pick(&[MemoryPlace::Auto, MemoryPlace::Auto, MemoryPlace::Host, MemoryPlace::Gpu]);
    // The host posts where it reaches the queues, and takes receives from them.
    let [sq, dbr, cq, window] = [place(), place(), place(), place()];
    if path.posted_by_gpu() && receives == 0 {
        let staged = path.data() == Data::Staged && window == MemoryPlace::Gpu;
        let window = if staged { MemoryPlace::Host } else { window };
        options = options.sq_place(sq).dbr_place(dbr).cq_place(cq).window_place(window);
    }
    if auto {
        options = options.tuning(Some(tuning(rng)));
    }
    Connection { path, options, shared }
}

fn tuning(rng: &mut Rng) -> Tuning {
    let ends = [rng.within(1, 200), rng.within(201, 3000), rng.within(3001, 100_000)];
    let mut ranges: Vec<Range> = ends
        .map(|end| Range { up_to: Some(end as u32), path: rng.pick(&Choice::ALL) })
        .into_iter()
        .collect();
    ranges.push(Range { up_to: None, path: rng.pick(&Choice::ALL) });
    Tuning::for_all(Ranges::new(ranges).expect("they ascend, and the last has no end"))
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies { nics, engines, copy_threads } => {
                write!(f, "{nics} NICs, {engines} engines, {copy_threads} copy threads")
            }
            Self::GpuEngine => f.write_str("engine as a kernel"),
            Self::Shm { icrc, .. } => write!(f, "shm, icrc {icrc}"),
            Self::Udp { .. } => f.write_str("udp"),
        }?;
        self.faults().map_or(Ok(()), |faults| write!(f, ", {faults}"))
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.options;
        let kind = if self.shared { " shared" } else { "" };
        write!(f, "{}{kind} sq={} slots={}x{}", self.path, o.sq_blocks, o.slots(), o.slot_bytes)?;
        write!(f, " line={} receives={}", o.line, o.receives)?;
        let places = [o.sq_place, o.dbr_place, o.cq_place, o.window_place].map(MemoryPlace::as_str);
        write!(f, " places={}", places.join("/"))
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} bytes a part, on the GPU {:?}", self.carrier, self.part, self.on_gpu)?;
        if let Some(adversary) = &self.adversary {
            write!(f, "; adversary {adversary}")?;
        }
        if let Some(trouble) = &self.trouble {
            write!(f, "; faults {:?}", trouble.script)?;
        }
        if self.threads {
            f.write_str("; lanes are threads")?;
        }
        self.connections
            .iter()
            .enumerate()
            .try_for_each(|(n, connection)| write!(f, "; connection {n}: {connection}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_the_same_each_time_and_rounds_differ() {
        let told = |seed, round| Config::draw(seed, round).to_string();
        assert_eq!(told(1, 5), told(1, 5));
        assert!(told(1, 5) != told(1, 6) && told(1, 5) != told(2, 5));
    }

    #[test]
    fn on_a_gpu_a_cpus_engine_has_nothing_in_its_memory() {
        let far = |config: &Config| {
            config.connections.iter().any(|Connection { options: o, .. }| {
                [o.sq_place, o.dbr_place, o.cq_place, o.window_place].contains(&MemoryPlace::Gpu)
            })
        };
        let all = |on_host| {
            let draw = move |round| Config::draw(9, round).within_reach(on_host);
            (0..300).map(draw).filter(far).map(|config| config.carrier == Carrier::GpuEngine)
        };
        assert!(all(true).any(|by_gpu| !by_gpu) && all(false).count() > 3);
        assert!(all(false).all(|by_gpu| by_gpu));
    }

    /// Every path, carrier, kind of fault and kind of adversary comes, and each connection's options are taken.
    #[test]
    fn everything_is_drawn_within_a_thousand_rounds() {
        let all: Vec<_> = (0..1000).map(|round| Config::draw(9, round)).collect();
        let connections: Vec<_> = all.iter().flat_map(|config| &config.connections).collect();
        for path in Path::ALL.into_iter().chain([Path::AUTO]) {
            assert!(connections.iter().any(|connection| connection.path == path), "{path}");
        }
        for connection in &connections {
            connection
                .options
                .check(connection.path)
                .unwrap_or_else(|e| panic!("{connection}: {e}"));
            assert!(connection.single_bytes() >= 48, "{connection}");
        }
        assert!(
            connections.iter().any(|connection| connection.shared && connection.kernel().is_some())
        );
        for kind in AdversaryKind::ALL {
            assert!(all.iter().any(|c| c.adversary.is_some_and(|it| it.has(kind))), "{kind}");
        }
        let carriers = |of: fn(&Carrier) -> bool| all.iter().filter(|c| of(&c.carrier)).count();
        assert!(carriers(|c| matches!(c, Carrier::GpuEngine)) > 10);
        assert!(carriers(|c| c.faults().is_some()) > 50);
        assert!(carriers(|c| matches!(c, Carrier::Udp { .. })) > 50);
        assert!(all.iter().filter(|c| c.may_fail()).count() > 50);
    }
}
