//! A round's operations, drawn before it begins, and what each does to memory.

use bellpush::abi::entry::{Scope, Verb};
use bellpush::transport::Path;

use super::config::{Config, Connection, WORDS};
use super::model::{Change, Effect, Place, Who};
use super::rng::{Rng, Use};

pub const DEFER_RING: u32 = 1;
pub const UNSIGNALLED: u32 = 2;

/// One operation of one end. Offsets count from the begin of the connection's part.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    pub who: Who,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// `Endpoint::put`, with a word and what is added to it.
    Put { from: usize, to: usize, bytes: usize, signal: Option<(usize, u64)> },
    /// `Endpoint::get`.
    Get { from: usize, to: usize, bytes: usize },
    /// `Endpoint::fetch_add`.
    FetchAdd { word: usize, add: u64, old: usize },
    /// `Endpoint::compare_swap`.
    CompareSwap { word: usize, compare: u64, with: u64, old: usize },
    /// A verb of device code, by one caller or many.
    Device(Device),
    /// What the endpoint must refuse without doing anything.
    Refused(Wrong),
    /// Waits for all of one end.
    Quiet,
    /// Waits for one end by the word that its last operation changed, on the host or in a kernel.
    Await { by_kernel: bool },
    /// Waits for all, and compares both memories.
    Look,
    /// The host writes, in the memory of this end.
    Fill { at: usize, bytes: usize, seed: u64 },
    /// Both ends are taken back to their beginning, with what is under way.
    Reset,
}

/// A call that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Empty,
    BehindLocal,
    BehindRemote,
    Misaligned,
}

/// A launch: as `OpArgs`, with offsets for addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub verb: Verb,
    pub scope: Scope,
    pub dims: (u32, u32),
    pub count: u32,
    pub from: usize,
    pub local_stride: usize,
    pub to: usize,
    pub remote_stride: usize,
    pub bytes: usize,
    pub value: u64,
    pub compare: u64,
    pub word: usize,
    pub flags: u32,
}

impl Device {
    /// Whether it is one of `kernels/entry/extra.cu`.
    pub fn is_extra(&self) -> bool {
        self.verb as u32 > Verb::PutBatch as u32
    }

    /// Statuses that it writes.
    pub fn callers(&self) -> usize {
        let (grid, block) = (self.dims.0 as usize, self.dims.1 as usize);
        match self.scope {
            _ if self.verb == Verb::PutLanes => grid * block,
            Scope::Thread => grid * block,
            Scope::Warp => grid * block.div_ceil(32),
            Scope::Block => grid,
        }
    }

    /// The number that comes to the peer, if one does.
    pub fn immediate(&self) -> Option<u32> {
        matches!(self.verb, Verb::PutImm | Verb::SignalImm).then_some(self.value as u32)
    }

    /// The messages: offsets from the connection's part.
    fn messages(&self) -> Vec<(usize, usize, usize)> {
        let calls = self.callers() * self.count as usize;
        let rows = if self.verb == Verb::PutBatch { calls * self.value as usize } else { calls };
        let row = |n: usize| {
            let thread = n / self.count as usize % 32;
            let each_thread = self.verb == Verb::PutLanes;
            let longer = if each_thread { thread * self.compare as usize } else { 0 };
            let bytes = self.bytes + longer;
            let active = !each_thread || self.value >> thread & 1 == 1;
            active.then_some((
                self.from + n * self.local_stride,
                self.to + n * self.remote_stride,
                bytes,
            ))
        };
        (0..rows).filter_map(row).collect()
    }

    fn effects(&self, place: impl Fn(usize, usize) -> Place, side: usize) -> Vec<Effect> {
        let peer = 1 - side;
        let word = |at, change| Effect::Word { at: place(peer, at), change, old: None };
        let copies = || {
            let copy = |(from, to, bytes)| Effect::Copy {
                from: place(side, from),
                to: place(peer, to),
                bytes,
            };
            self.messages().into_iter().map(copy)
        };
        let calls = self.callers() * self.count as usize;
        match self.verb {
            Verb::Put | Verb::PutInline | Verb::PutWithin | Verb::PutLanes | Verb::PutBatch => {
                copies().collect()
            }
            Verb::PutImm => copies().collect(),
            Verb::PutSignal => {
                copies().flat_map(|copy| [copy, word(self.word, Change::Add(self.value))]).collect()
            }
            Verb::PutSet => {
                copies().flat_map(|copy| [copy, word(self.word, Change::Set(self.value))]).collect()
            }
            Verb::SignalAdd | Verb::FetchAdd => {
                (0..calls).map(|_| word(self.to, Change::Add(self.value))).collect()
            }
            Verb::SignalSet => (0..calls).map(|_| word(self.to, Change::Set(self.value))).collect(),
            Verb::PutValue => {
                let all = [self.value.to_le_bytes(), self.compare.to_le_bytes()].concat();
                let value = |(_, to, bytes): (usize, usize, usize)| Effect::Value {
                    to: place(peer, to),
                    bytes: all[..bytes].to_vec(),
                };
                self.messages().into_iter().map(value).collect()
            }
            Verb::SignalImm => Vec::new(),
            other => unreachable!("{other:?} is not drawn"),
        }
    }
}

impl Op {
    /// What it does to memory.
    pub fn effects(&self, config: &Config) -> Vec<Effect> {
        let (side, begin) = (self.who.side, config.part_of(self.who.connection));
        let place = |memory, at| Place { memory, at: begin + at };
        let (here, there) = (|at| place(side, at), |at| place(1 - side, at));
        match self.what {
            What::Put { from, to, bytes, signal } => {
                let copy = Effect::Copy { from: here(from), to: there(to), bytes };
                let signal = signal.map(|(word, add)| Effect::Word {
                    at: there(word),
                    change: Change::Add(add),
                    old: None,
                });
                [Some(copy), signal].into_iter().flatten().collect()
            }
            What::Get { from, to, bytes } => {
                vec![Effect::Copy { from: there(from), to: here(to), bytes }]
            }
            What::FetchAdd { word, add, old } => {
                let (at, old) = (there(word), Some(here(old)));
                vec![Effect::Word { at, change: Change::Add(add), old }]
            }
            What::CompareSwap { word, compare, with, old } => {
                let (at, old) = (there(word), Some(here(old)));
                vec![Effect::Word { at, change: Change::Swap { compare, with }, old }]
            }
            What::Device(device) => device.effects(place, side),
            _ => Vec::new(),
        }
    }

    /// The word that tells of it, if one does.
    pub fn tells_by(&self) -> Option<usize> {
        match &self.what {
            What::Put { signal, .. } => signal.map(|(word, _)| word),
            What::Device(it) if it.flags & DEFER_RING == 0 => match it.verb {
                Verb::PutSignal => Some(it.word),
                Verb::SignalAdd => Some(it.to),
                // What is set again by a later call tells of the first.
                Verb::PutSet if it.count == 1 => Some(it.word),
                Verb::SignalSet if it.count == 1 => Some(it.to),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether its word is written, and no atomic's.
    pub fn sets(&self) -> bool {
        matches!(&self.what, What::Device(it) if matches!(it.verb, Verb::PutSet | Verb::SignalSet))
    }

    /// Its name in what the run counts.
    pub fn name(&self) -> String {
        match &self.what {
            What::Put { signal: None, .. } => "put".into(),
            What::Put { .. } => "put with signal".into(),
            What::Get { .. } => "get".into(),
            What::FetchAdd { .. } => "fetch_add".into(),
            What::CompareSwap { .. } => "compare_swap".into(),
            What::Device(it) if it.callers() > 1 && it.verb != Verb::PutLanes => {
                format!("shared {:?}", it.verb)
            }
            What::Device(it) => format!("device {:?}", it.verb),
            What::Refused(_) => "refused call".into(),
            What::Quiet => "quiet".into(),
            What::Await { .. } => "wait for a signal".into(),
            What::Look => "comparison".into(),
            What::Fill { .. } => "fill by the host".into(),
            What::Reset => "reset under way".into(),
        }
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> usize {
        match &self.what {
            What::Put { bytes, .. } | What::Get { bytes, .. } => *bytes,
            What::FetchAdd { .. } | What::CompareSwap { .. } => 8,
            What::Device(it) => it.messages().iter().map(|(.., bytes)| bytes).sum(),
            _ => 0,
        }
    }
}

/// An addition of 1 to a word by a caller that shares its queue pair.
pub fn shared_add(word: usize) -> Device {
    Device {
        verb: Verb::FetchAdd,
        scope: Scope::Block,
        dims: (1, 32),
        count: 1,
        from: 0,
        local_stride: 0,
        to: word,
        remote_stride: 0,
        bytes: 8,
        value: 1,
        compare: 0,
        word: 0,
        flags: 0,
    }
}

/// All operations of a round.
pub fn draw(config: &Config) -> Vec<Op> {
    let mut rng = Rng::new(config.seed, config.round, Use::Ops);
    let (mut ops, mut bytes) = (Vec::new(), 0);
    while ops.len() < config.ops && bytes < config.bytes {
        let connection = rng.below(config.connections.len() as u64) as usize;
        let side = usize::from(rng.one_in(4));
        let drawn = one(&mut rng, config, &config.connections[connection]);
        let op = Op { who: Who { connection, side }, what: drawn };
        let tells = op.tells_by().is_some();
        bytes += op.bytes();
        ops.push(op);
        if tells && rng.one_in(2) {
            let by_kernel = rng.one_in(2);
            ops.push(Op { who: Who { connection, side }, what: What::Await { by_kernel } });
        }
    }
    ops
}

fn one(rng: &mut Rng, config: &Config, connection: &Connection) -> What {
    let data = config.data_bytes();
    match rng.below(100) {
        0..8 => return What::Quiet,
        8..12 => return What::Look,
        12..17 => {
            let (at, bytes) = range(rng, data);
            return What::Fill { at, bytes, seed: rng.next() };
        }
        17 if connection.path != Path::TCP => return What::Reset,
        18..21 if !connection.shared => {
            let all = [Wrong::Empty, Wrong::BehindLocal, Wrong::BehindRemote, Wrong::Misaligned];
            return What::Refused(rng.pick(&all));
        }
        _ => {}
    }
    if connection.shared {
        return What::Device(many(rng, connection, (data, config.is_slow())));
    }
    if connection.kernel().is_some() && rng.one_in(2) {
        return What::Device(single(rng, connection, data));
    }
    host(rng, connection, data)
}

/// A word's offset in a connection's part.
fn word(rng: &mut Rng, data: usize) -> usize {
    data + rng.below(WORDS as u64) as usize * 8
}

/// Mostly short; of any length now and then, up to all.
fn length(rng: &mut Rng, most: usize) -> usize {
    let most = most as u64;
    let up_to = rng.weighted(&[(5, 300), (3, 2_000), (2, 20_000), (1, 200_000), (1, u64::MAX)]);
    let near_a_power = rng.one_in(6);
    let drawn = rng.within(1, most.min(up_to));
    let power = (drawn.next_power_of_two() + rng.below(3)).saturating_sub(1);
    (if near_a_power { power } else { drawn }).clamp(1, most) as usize
}

/// A range of a part's data: at the ends, at round offsets, anywhere.
fn range(rng: &mut Rng, data: usize) -> (usize, usize) {
    let bytes = length(rng, data);
    (place(rng, data, bytes), bytes)
}

fn place(rng: &mut Rng, data: usize, bytes: usize) -> usize {
    let room = (data - bytes) as u64;
    let at = match rng.below(8) {
        0 => 0,
        1 => room,
        2 => rng.below(room + 1) & !4095,
        3 => rng.below(room + 1) & !63,
        _ => rng.below(room + 1),
    };
    at as usize
}

/// Calls of `Endpoint`.
fn host(rng: &mut Rng, connection: &Connection, data: usize) -> What {
    let tcp = connection.path == Path::TCP;
    let kind = rng.weighted(&[
        (6, 0),
        (3, 1),
        (if tcp { 0 } else { 3 }, 2),
        (if tcp { 0 } else { 2 }, 3),
        (if tcp { 0 } else { 2 }, 4),
    ]);
    let bytes = length(rng, data.min(connection.most_bytes()));
    let (from, to) = (place(rng, data, bytes), place(rng, data, bytes));
    let old = place(rng, data, 8);
    match kind {
        0 => What::Put { from, to, bytes, signal: None },
        1 => What::Put { from, to, bytes, signal: Some((word(rng, data), rng.next() | 1)) },
        2 => What::Get { from, to, bytes },
        3 => What::FetchAdd { word: word(rng, data), add: rng.next() | 1, old },
        // Few values, so that some comparisons hold.
        _ => {
            let (compare, with) = (rng.below(3), rng.below(3));
            What::CompareSwap { word: word(rng, data), compare, with, old }
        }
    }
}

/// A verb of device code by the one caller that an endpoint has.
fn single(rng: &mut Rng, connection: &Connection, data: usize) -> Device {
    let extra = connection.has_extra();
    let imm = extra && connection.options.receives > 0;
    let each_thread = connection.options.line.line_bytes() == 16;
    let verb = rng.weighted(&[
        (2, Verb::PutInline),
        (2, Verb::PutBatch),
        (if each_thread { 2 } else { 0 }, Verb::PutLanes),
        (1, Verb::Put),
        (1, Verb::PutSignal),
        (if extra { 2 } else { 0 }, Verb::PutSet),
        (if extra { 1 } else { 0 }, Verb::SignalAdd),
        (if extra { 1 } else { 0 }, Verb::SignalSet),
        (if extra { 2 } else { 0 }, Verb::PutValue),
        (if extra { 1 } else { 0 }, Verb::PutWithin),
        (if imm { 4 } else { 0 }, Verb::PutImm),
        (if imm { 2 } else { 0 }, Verb::SignalImm),
    ]);
    let threads = if verb == Verb::PutLanes { 32 } else { rng.pick(&[32, 32, 45, 128]) };
    let count = if verb == Verb::PutImm || verb == Verb::SignalImm { 1 } else { rng.within(1, 3) };
    let dims = (1, threads);
    let mut it = device(rng, connection, data, (verb, Scope::Block, dims, count as u32));
    let tells = matches!(verb, Verb::PutImm | Verb::SignalImm);
    if !tells && rng.one_in(4) {
        it.flags = rng.within(1, 3) as u32;
    }
    it
}

/// Verbs of many callers at once on a queue pair that they share.
fn many(rng: &mut Rng, connection: &Connection, (data, slow): (usize, bool)) -> Device {
    let verb = rng.weighted(&[
        (4, Verb::Put),
        (2, Verb::PutInline),
        (2, Verb::PutSignal),
        (1, Verb::FetchAdd),
        (1, Verb::PutBatch),
        (if slow { 0 } else { 2 }, Verb::PutLanes),
        (2, Verb::PutValue),
        (1, Verb::SignalAdd),
    ]);
    // Callers wait for each other's slots as well: few, where each loss takes a while.
    let (scope, dims, count) = if slow {
        (rng.pick(&[Scope::Warp, Scope::Block]), (rng.within(1, 3) as u32, 32), 1)
    } else {
        let scope = rng.pick(&[Scope::Thread, Scope::Warp, Scope::Block]);
        (scope, (rng.within(1, 3) as u32, rng.pick(&[32, 64])), rng.within(1, 3) as u32)
    };
    let mut it = device(rng, connection, data, (verb, scope, dims, count));
    if rng.one_in(4) {
        it.flags = UNSIGNALLED;
    }
    it
}

/// Fewer callers and calls until their messages have room, each at a place of its own.
fn device(
    rng: &mut Rng,
    connection: &Connection,
    data: usize,
    (verb, scope, dims, count): (Verb, Scope, (u32, u32), u32),
) -> Device {
    let value = match verb {
        Verb::PutBatch => rng.within(1, 20),
        Verb::PutLanes => rng.pick(&[0xffff_ffff, 0xffff_ffff, 0x0f0f_0ff1, 1]),
        Verb::PutImm | Verb::SignalImm => rng.below(1 << 32),
        _ => rng.next() | 1,
    };
    let (from, to, at_word) = (0, 0, word(rng, data));
    let compare = match verb {
        Verb::PutLanes => rng.below(2),
        Verb::PutWithin => 20_000_000_000, // ns
        _ => rng.next(),
    };
    let mut it = Device {
        verb,
        scope,
        dims,
        count,
        from,
        local_stride: 0,
        to,
        remote_stride: 0,
        bytes: 0,
        value,
        compare,
        word: at_word,
        flags: 0,
    };
    let calls = it.callers() * count as usize;
    let rows = if verb == Verb::PutBatch { calls * value as usize } else { calls };
    let room = data / rows;
    if room < 64 || rows > connection.most_slots() {
        // One caller is left.
        (it.dims, it.count, it.scope) = ((1, 32), 1, Scope::Block);
        return device_of_size(rng, connection, data, it);
    }
    device_of_size(rng, connection, data, it)
}

fn device_of_size(rng: &mut Rng, connection: &Connection, data: usize, mut it: Device) -> Device {
    let calls = it.callers() * it.count as usize;
    let rows = if it.verb == Verb::PutBatch { calls * it.value as usize } else { calls };
    let room = (data / rows).min(connection.most_bytes() / rows).max(16);
    let single = connection.single_bytes();
    it.bytes = match it.verb {
        Verb::PutValue => rng.pick(&[1, 2, 4, 8, 16]),
        Verb::PutInline => length(rng, room.min(220)),
        Verb::PutBatch => length(rng, room.min(single)),
        Verb::PutLanes => {
            // The last connection's has up to 31 bytes more.
            length(rng, room.min(single).saturating_sub(31).max(1))
        }
        Verb::SignalAdd | Verb::SignalSet | Verb::FetchAdd | Verb::SignalImm => 8,
        _ => length(rng, room.min(if rows > 32 { 400 } else { 100_000 })),
    };
    let longest = it.bytes + if it.verb == Verb::PutLanes { 31 * it.compare as usize } else { 0 };
    it.remote_stride =
        longest + rng.below((room.saturating_sub(longest) as u64).clamp(1, 100)) as usize;
    // Sources may be one and the same.
    it.local_stride = if rng.one_in(5) { 0 } else { it.remote_stride };
    let spread = |stride: usize| (rows - 1) * stride + longest;
    it.from = place(rng, data, spread(it.local_stride));
    it.to = place(rng, data, spread(it.remote_stride));
    if matches!(it.verb, Verb::SignalAdd | Verb::SignalSet | Verb::FetchAdd) {
        (it.to, it.remote_stride) = (word(rng, data), 0);
    }
    it
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All operations of many rounds touch their connection's part alone, and none of the guards.
    #[test]
    fn operations_stay_within_their_lanes_parts() {
        let mut names = std::collections::BTreeSet::new();
        for round in 0..600 {
            let config = Config::draw(11, round);
            for op in draw(&config) {
                names.insert(op.name());
                let begin = config.part_of(op.who.connection);
                let data = begin..begin + config.data_bytes();
                let words = data.end..begin + config.part;
                let check = |place: Place, bytes: usize, is_word: bool| {
                    let within = if is_word { &words } else { &data };
                    let fits = place.at >= within.start && place.at + bytes <= within.end;
                    assert!(fits, "round {round}: {op:?}");
                };
                for effect in op.effects(&config) {
                    match effect {
                        Effect::Copy { from, to, bytes } => {
                            assert!(bytes > 0, "round {round}: {op:?}");
                            check(from, bytes, false);
                            check(to, bytes, false);
                        }
                        Effect::Value { to, bytes } => check(to, bytes.len(), false),
                        Effect::Word { at, old, .. } => {
                            check(at, 8, true);
                            old.into_iter().for_each(|old| check(old, 8, false));
                        }
                    }
                }
            }
        }
        assert!(names.len() >= 28, "{names:?}");
    }

    #[test]
    fn the_same_operations_come_each_time() {
        let config = Config::draw(4, 8);
        assert_eq!(draw(&config), draw(&config));
    }
}
