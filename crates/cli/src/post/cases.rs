//! The rows of `bellpush bench --post`: which kernel, from how many threads, on which queues.

/// Memory of the queues. The first letter is the send queue's place, the second the doorbell record's, the third the
/// doorbell's: `g` this GPU's memory, `h` pinned host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// As with a NIC that reads this GPU's memory.
    Ggh,
    /// As with the software NIC's engine on a CPU.
    Hhh,
    /// In-band: the window in host memory is all that is written.
    Window,
}

impl Place {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ggh => "ggh",
            Self::Hhh => "hhh",
            Self::Window => "window-h",
        }
    }
}

/// What a call leaves in the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// RDMA WRITEs of 64 bytes, which the NIC would read.
    Put,
    /// The same, gathered from a window's slot each.
    Pushed,
    /// The same, an addition to a signal word after each.
    Signal,
    /// The same, a signal word that is set to the message's number + 1 after each.
    PutSet,
    /// The additions alone.
    AddAlone,
    /// The words that are set alone.
    SetAlone,
    /// RDMA WRITEs of 8 bytes within the WQE.
    Inline,
    /// RDMA WRITEs of 64 bytes with an immediate, the message's number.
    Imm,
    /// The same of no bytes, to the peer's first.
    ImmAlone,
    /// RDMA READs of 64 bytes.
    Get,
    /// Additions of 1 whose old value is fetched.
    FetchAdd,
    /// Swaps of the message's number for the next one, if it is there.
    CompareSwap,
    /// Slots with 8 bytes.
    Inband,
    /// The same, an addition to a signal word in a slot after each.
    InbandSignal,
    /// The same, an immediate in a slot after each: the message's number.
    InbandImm,
    /// The additions alone, in slots.
    InbandAdd,
    /// The words that are set alone, in slots.
    InbandSet,
    /// RDMA READs of 64 bytes, in slots.
    InbandGet,
    /// Additions of 1 whose old value is fetched, in slots.
    InbandFetchAdd,
    /// Nothing.
    Nothing,
}

impl What {
    /// WQEs of each message.
    pub fn wqes(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Signal | Self::PutSet | Self::InbandSignal | Self::InbandImm => 2,
            _ => 1,
        }
    }

    /// Whether it lies in a window's slots.
    pub fn is_inband(self) -> bool {
        use What::{
            Inband, InbandAdd, InbandFetchAdd, InbandGet, InbandImm, InbandSet, InbandSignal,
        };
        matches!(
            self,
            Inband | InbandSignal | InbandImm | InbandAdd | InbandSet | InbandGet | InbandFetchAdd
        )
    }
}

/// Who makes one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Thread,
    Warp,
    Block,
}

/// What a row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds a put; of batches, a WQE.
    Ns,
    /// Millions of puts a second.
    PerSecond,
}

/// Threads and calls of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// A block on each SM; otherwise one block.
    pub every_sm: bool,
    pub threads: u32,
    pub caller: Caller,
    /// All blocks post on one queue pair; otherwise each has its own.
    pub one_qp: bool,
    pub calls: u32,
    /// Puts of each call.
    pub each: u32,
    /// Whether the queue's order follows from the calls'.
    pub in_order: bool,
    pub unit: Unit,
}

/// One caller, again and again.
const ONE: Shape = Shape {
    every_sm: false,
    threads: 1,
    caller: Caller::Thread,
    one_qp: true,
    calls: 4000,
    each: 1,
    in_order: true,
    unit: Unit::Ns,
};
const WARP: Shape = Shape { threads: 32, caller: Caller::Warp, ..ONE };
const BLOCK: Shape = Shape { threads: 128, caller: Caller::Block, ..ONE };
const BATCHES: Shape = Shape { calls: 120, each: BATCH, ..ONE };
const WARP_BATCHES: Shape = Shape { calls: 120, each: BATCH, ..WARP };
/// As before, a WQE of each batch by each lane.
const LANE_BATCHES: Shape = Shape { in_order: false, ..WARP_BATCHES };
/// A thread of each SM, on its own queue pair.
const THREADS: Shape =
    Shape { every_sm: true, one_qp: false, calls: 1000, unit: Unit::PerSecond, ..ONE };
/// A warp of each SM with batches, on its own queue pair.
const WARPS: Shape = Shape { threads: 32, caller: Caller::Warp, calls: 30, each: BATCH, ..THREADS };
/// A warp whose lanes call together, counted as a batch.
const WARP_LANES: Shape = Shape { threads: 32, calls: 120, in_order: false, ..ONE };
/// A warp whose lanes share a queue pair.
const SHARED_BY_WARP: Shape =
    Shape { threads: 32, calls: 62, in_order: false, unit: Unit::PerSecond, ..ONE };
/// Blocks of 128 threads, each of which shares a queue pair.
const SHARED_BY_BLOCK: Shape = Shape { threads: 128, calls: 7, in_order: false, ..THREADS };
/// All of these threads on one queue pair.
const SHARED_BY_ALL: Shape = Shape { calls: 1, one_qp: true, ..SHARED_BY_BLOCK };

/// WQEs of a batch (`batch` in `kernels/bench/post.cuh`).
const BATCH: u32 = 32;

/// Stores and fences that a row cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    kernel: &'static str,
    /// Its threads and calls, where not the row's.
    shape: Option<Shape>,
}

const fn floor(kernel: &'static str) -> Floor {
    Floor { kernel, shape: None }
}
const fn floor_of(kernel: &'static str, shape: Shape) -> Floor {
    Floor { kernel, shape: Some(shape) }
}
const THREAD: Floor = floor("bp_post_floor_thread");
const THREAD_SYSTEM: Floor = floor("bp_post_floor_thread_system");
/// Four lanes store a WQE, whatever the scope.
const LANES: Floor = floor_of("bp_post_floor_lanes", WARP);
const LANES_SYSTEM: Floor = floor_of("bp_post_floor_lanes_system", WARP);
const BATCH_BY_WARP: Floor = floor_of("bp_post_floor_batch_warp", WARP_BATCHES);
const PUSH: Floor = floor("bp_post_floor_push");
const PUSH_SYSTEM: Floor = floor("bp_post_floor_push_system");
const BATCH_BY_WARP_SYSTEM: Floor = floor_of("bp_post_floor_batch_warp_system", WARP_BATCHES);
const SLOT: Floor = floor_of("bp_post_floor_inband", ONE);
const SLOTS: Floor = floor("bp_post_floor_inband");
/// Every thread stores WQEs of its own, and rings for them.
const ALL: Floor = floor("bp_post_floor_all");

/// Each warp of a shape stores a WQE a lane, and rings once for them.
const fn by_warps(shape: Shape) -> Floor {
    floor_of("bp_post_floor_batch_warp", Shape { caller: Caller::Warp, each: BATCH, ..shape })
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub name: &'static str,
    pub kernel: &'static str,
    pub place: Place,
    pub what: What,
    pub shape: Shape,
    pub floor: Option<Floor>,
}

const fn case(
    name: &'static str,
    kernel: &'static str,
    place: Place,
    what: What,
    shape: Shape,
    floor: Floor,
) -> Case {
    Case { name, kernel, place, what, shape, floor: Some(floor) }
}

use Place::{Ggh, Hhh, Window};
use What::{
    AddAlone, CompareSwap, FetchAdd, Get, Imm, ImmAlone, Inband, InbandAdd, InbandFetchAdd,
    InbandGet, InbandImm, InbandSet, InbandSignal, Inline, Nothing, Pushed, Put, PutSet, SetAlone,
    Signal,
};

/// All rows.
pub fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(PUSHES).chain(SIGNALS).chain(BY_LANES)
}

/// Rows of puts that are pulled or in-band. A name says whose the queue pair is (`exclusive`, `shared`), the verb where
/// it is not put, and who calls.
#[rustfmt::skip] // a table
pub const CASES: &[Case] = &[
    case("exclusive thread", "bp_post_put_thread", Ggh, Put, ONE, THREAD),
    case("exclusive thread strict", "bp_post_put_thread_strict", Ggh, Put, ONE, floor("bp_post_floor_thread_strict")),
    case("exclusive thread, endpoint by reference", "bp_post_put_thread_memory", Ggh, Put, ONE, THREAD),
    case("exclusive thread, endpoint copied", "bp_post_put_thread_copied", Ggh, Put, ONE, THREAD),
    case("exclusive warp", "bp_post_put_warp", Ggh, Put, WARP, LANES),
    case("exclusive block", "bp_post_put_block", Ggh, Put, BLOCK, LANES),
    case("exclusive thread", "bp_post_put_thread_system", Hhh, Put, ONE, THREAD_SYSTEM),
    case("exclusive thread strict", "bp_post_put_thread_system_strict", Hhh, Put, ONE,
         floor("bp_post_floor_thread_system_strict")),
    case("exclusive warp", "bp_post_put_warp_system", Hhh, Put, WARP, LANES_SYSTEM),
    case("exclusive block", "bp_post_put_block_system", Hhh, Put, BLOCK, LANES_SYSTEM),
    case("exclusive put_signal thread", "bp_post_signal", Ggh, Signal, ONE, THREAD),
    case("exclusive put_signal thread", "bp_post_signal_system", Hhh, Signal, ONE, THREAD_SYSTEM),
    case("exclusive put_inline 8 B thread", "bp_post_inline", Ggh, Inline, ONE, THREAD),
    case("exclusive put_inline 8 B thread", "bp_post_inline_system", Hhh, Inline, ONE, THREAD_SYSTEM),
    case("exclusive in-band 8 B thread", "bp_post_inband_thread", Window, Inband, ONE, SLOT),
    case("exclusive in-band 8 B warp", "bp_post_inband_warp", Window, Inband, WARP, SLOT),
    case("exclusive in-band 8 B block", "bp_post_inband_block", Window, Inband, BLOCK, SLOT),
    case("exclusive, a thread an SM, endpoint by reference", "bp_post_put_thread_memory", Ggh, Put, THREADS, THREAD),
    case("exclusive, a thread an SM, endpoint copied", "bp_post_put_thread_copied", Ggh, Put, THREADS, THREAD),
    case("exclusive, a thread an SM, endpoint by reference", "bp_post_put_thread_system_memory", Hhh, Put, THREADS,
         THREAD_SYSTEM),
    case("exclusive, a thread an SM, endpoint copied", "bp_post_put_thread_system_copied", Hhh, Put, THREADS,
         THREAD_SYSTEM),
    case("exclusive batch of 32 thread", "bp_post_deferred_thread", Ggh, Put, BATCHES,
         floor("bp_post_floor_batch_thread")),
    case("exclusive batch of 32 warp", "bp_post_deferred_warp", Ggh, Put, WARP_BATCHES, BATCH_BY_WARP),
    case("shared thread", "bp_post_put_shared", Ggh, Put, ONE, THREAD),
    case("shared thread", "bp_post_put_shared_system", Hhh, Put, ONE, THREAD_SYSTEM),
    case("shared thread strict", "bp_post_put_shared_strict", Ggh, Put, ONE, floor("bp_post_floor_thread_strict")),
    case("shared thread strict", "bp_post_put_shared_system_strict", Hhh, Put, ONE,
         floor("bp_post_floor_thread_system_strict")),
    case("shared in-band 8 B thread", "bp_post_inband_shared", Window, Inband, ONE, SLOT),
    case("shared batch of 32, a put a lane", "bp_post_deferred_shared", Ggh, Put, LANE_BATCHES, BATCH_BY_WARP),
    case("shared by a warp", "bp_post_put_shared", Ggh, Put, SHARED_BY_WARP, ALL),
    case("shared in-band 8 B by a warp", "bp_post_inband_shared", Window, Inband, SHARED_BY_WARP, SLOTS),
    case("shared by a block each, endpoint copied", "bp_post_put_shared_copied", Ggh, Put, SHARED_BY_BLOCK, ALL),
    case("shared by all threads", "bp_post_put_shared", Ggh, Put, SHARED_BY_ALL, ALL),
    case("shared in-band 8 B by all threads", "bp_post_inband_shared", Window, Inband, SHARED_BY_ALL, SLOTS),
    case("stores of a WQE and a ring, no fence", "bp_post_floor_thread_none", Ggh, Put, ONE, THREAD),
    case("stores of a WQE, its ticket and a ring in turn", "bp_post_floor_ticket", Ggh, Put, ONE, THREAD),
    case("stores of a WQE, its ticket and a ring in turn", "bp_post_floor_ticket_system", Hhh, Put, ONE, THREAD_SYSTEM),
    case("stores of WQEs, a ticket a warp and a ring in turn", "bp_post_floor_tickets", Ggh, Put, SHARED_BY_WARP, ALL),
    case("stores of WQEs, a ticket a warp and a ring in turn, ns", "bp_post_floor_tickets", Ggh, Put, WARP_LANES,
         by_warps(WARP_LANES)),
    case("stores of a slot, and its ticket", "bp_post_floor_ticket_inband", Window, Inband, ONE, SLOT),
    case("stores of slots, a ticket a warp", "bp_post_floor_tickets_inband", Window, Inband, SHARED_BY_WARP, SLOTS),
    case("stores of a WQE by counters in memory, and a ring", "bp_post_floor_counted", Ggh, Put, ONE, THREAD),
    case("stores of a WQE by counters in memory, and a ring", "bp_post_floor_counted_system", Hhh, Put, ONE,
         THREAD_SYSTEM),
    case("stores of a WQE by counters in memory, a thread an SM", "bp_post_floor_counted", Ggh, Put, THREADS, THREAD),
    case("stores of a WQE by counters in memory, a thread an SM", "bp_post_floor_counted_system", Hhh, Put, THREADS,
         THREAD_SYSTEM),
];

/// Rows of puts by way of a slot and a doorbell, the window beside the send queue; and in-band what is no put.
#[rustfmt::skip] // a table
const PUSHES: &[Case] = &[
    case("exclusive push thread", "bp_post_push_thread", Ggh, Pushed, ONE, PUSH),
    case("exclusive push thread", "bp_post_push_thread_system", Hhh, Pushed, ONE, PUSH_SYSTEM),
    case("exclusive push warp", "bp_post_push_warp", Ggh, Pushed, WARP, LANES),
    case("exclusive push warp", "bp_post_push_warp_system", Hhh, Pushed, WARP, LANES_SYSTEM),
    case("shared push thread", "bp_post_push_shared", Ggh, Pushed, ONE, PUSH),
    case("shared push thread", "bp_post_push_shared_system", Hhh, Pushed, ONE, PUSH_SYSTEM),
    case("exclusive push put_batch of 32 warp", "bp_post_push_batch_warp", Ggh, Pushed, WARP_BATCHES, BATCH_BY_WARP),
    case("exclusive push put_batch of 32 warp", "bp_post_push_batch_warp_system", Hhh, Pushed, WARP_BATCHES,
         BATCH_BY_WARP_SYSTEM),
    case("exclusive in-band put_inline 8 B thread", "bp_post_inline_inband", Window, Inband, ONE, SLOT),
    case("exclusive in-band get thread", "bp_post_get_inband", Window, InbandGet, ONE, SLOT),
    case("exclusive in-band fetch_add thread", "bp_post_fetch_add_inband", Window, InbandFetchAdd, ONE, SLOT),
    case("exclusive in-band put_batch of 32, 8 B, thread", "bp_post_batch_inband", Window, Inband, BATCHES, SLOT),
    case("exclusive in-band put_batch of 32, 8 B, warp", "bp_post_batch_warp_inband", Window, Inband, WARP_BATCHES, SLOT),
];

/// Rows of signals and values, of puts that do not wait, and of what posts nothing.
#[rustfmt::skip] // a table
const SIGNALS: &[Case] = &[
    case("exclusive put_signal set thread", "bp_post_put_set", Ggh, PutSet, ONE, THREAD),
    case("exclusive put_signal set thread", "bp_post_put_set_system", Hhh, PutSet, ONE, THREAD_SYSTEM),
    case("shared put_signal thread", "bp_post_signal_shared", Ggh, Signal, ONE, THREAD),
    case("shared put_signal thread", "bp_post_signal_shared_system", Hhh, Signal, ONE, THREAD_SYSTEM),
    case("shared put_inline 8 B thread", "bp_post_inline_shared", Ggh, Inline, ONE, THREAD),
    case("exclusive signal add alone thread", "bp_post_signal_alone", Ggh, AddAlone, ONE, THREAD),
    case("exclusive signal set alone thread", "bp_post_set_alone", Ggh, SetAlone, ONE, THREAD),
    case("exclusive signal set alone thread", "bp_post_set_alone_system", Hhh, SetAlone, ONE, THREAD_SYSTEM),
    case("shared signal set alone thread", "bp_post_set_alone_shared", Ggh, SetAlone, ONE, THREAD),
    case("exclusive put_value 8 B thread", "bp_post_value", Ggh, Inline, ONE, THREAD),
    case("exclusive put_value 8 B thread", "bp_post_value_system", Hhh, Inline, ONE, THREAD_SYSTEM),
    case("shared put_value 8 B thread", "bp_post_value_shared", Ggh, Inline, ONE, THREAD),
    case("exclusive in-band put_value 8 B thread", "bp_post_value_inband", Window, Inband, ONE, SLOT),
    case("shared in-band put_value 8 B thread", "bp_post_value_inband_shared", Window, Inband, ONE, SLOT),
    case("exclusive in-band put_signal 8 B thread", "bp_post_signal_inband", Window, InbandSignal, ONE, SLOT),
    case("shared in-band put_signal 8 B thread", "bp_post_signal_inband_shared", Window, InbandSignal, ONE, SLOT),
    case("exclusive in-band put_imm 8 B thread", "bp_post_imm_inband", Window, InbandImm, ONE, SLOT),
    case("shared in-band put_imm 8 B thread", "bp_post_imm_inband_shared", Window, InbandImm, ONE, SLOT),
    case("exclusive in-band signal add alone thread", "bp_post_signal_alone_inband", Window, InbandAdd, ONE, SLOT),
    case("exclusive in-band signal set alone thread", "bp_post_set_alone_inband", Window, InbandSet, ONE, SLOT),
    case("shared in-band signal add alone thread", "bp_post_signal_alone_inband_shared", Window, InbandAdd, ONE, SLOT),
    case("exclusive thread, without waiting", "bp_post_try", Ggh, Put, ONE, THREAD),
    case("shared thread, without waiting", "bp_post_try_shared", Ggh, Put, ONE, THREAD),
    case("test_signal thread", "bp_post_test_signal", Ggh, Nothing, ONE, floor("bp_post_floor_look")),
    case("exclusive thread, with a bound of its own", "bp_post_bounded", Ggh, Put, ONE, THREAD),
    case("exclusive put_imm thread", "bp_post_imm", Ggh, Imm, ONE, THREAD),
    case("exclusive put_imm thread", "bp_post_imm_system", Hhh, Imm, ONE, THREAD_SYSTEM),
    case("shared put_imm thread", "bp_post_imm_shared", Ggh, Imm, ONE, THREAD),
    case("exclusive signal imm alone thread", "bp_post_imm_alone", Ggh, ImmAlone, ONE, THREAD),
    case("exclusive get thread", "bp_post_get", Ggh, Get, ONE, THREAD),
    case("exclusive get thread", "bp_post_get_system", Hhh, Get, ONE, THREAD_SYSTEM),
    case("shared get thread", "bp_post_get_shared", Ggh, Get, ONE, THREAD),
    case("exclusive fetch_add thread", "bp_post_fetch_add", Ggh, FetchAdd, ONE, THREAD),
    case("exclusive fetch_add thread", "bp_post_fetch_add_system", Hhh, FetchAdd, ONE, THREAD_SYSTEM),
    case("shared fetch_add thread", "bp_post_fetch_add_shared", Ggh, FetchAdd, ONE, THREAD),
    case("exclusive compare_swap thread", "bp_post_compare_swap", Ggh, CompareSwap, ONE, THREAD),
    case("exclusive compare_swap thread", "bp_post_compare_swap_system", Hhh, CompareSwap, ONE, THREAD_SYSTEM),
    case("shared compare_swap thread", "bp_post_compare_swap_shared", Ggh, CompareSwap, ONE, THREAD),
    case("wait_signal_all of 32 words warp", "bp_post_watch_all", Ggh, Nothing, WARP, floor("bp_post_floor_look")),
    case("wait_signal_any of 32 words warp", "bp_post_watch_any", Ggh, Nothing, WARP, floor("bp_post_floor_look")),
    case("wait_signal_some of 32 words warp", "bp_post_watch_some", Ggh, Nothing, WARP, floor("bp_post_floor_look")),
    case("exclusive test of what is complete thread", "bp_post_test", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("shared test of what is complete thread", "bp_post_test_shared", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("exclusive completed, nothing is out, thread", "bp_post_completed", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
    case("shared completed, nothing is out, thread", "bp_post_completed_shared", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
    case("exclusive posted thread", "bp_post_posted", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("exclusive ring, nothing waits for it, thread", "bp_post_ring", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
    case("shared ring, nothing waits for it, thread", "bp_post_ring_shared", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
    case("shared fence, nothing is out, thread", "bp_post_fence_shared", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("exclusive fence, nothing is out, thread", "bp_post_fence", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("exclusive fence of two, nothing is out, thread", "bp_post_fence_two", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
    case("exclusive wait for what is complete thread", "bp_post_wait", Ggh, Nothing, ONE, floor("bp_post_floor_state")),
    case("shared wait for what is complete thread", "bp_post_wait_shared", Ggh, Nothing, ONE,
         floor("bp_post_floor_state")),
];

/// Rows of the verbs for lanes and batches.
#[rustfmt::skip] // a table
const BY_LANES: &[Case] = &[
    case("exclusive put_batch of 32 thread", "bp_post_batch_thread", Ggh, Put, BATCHES,
         floor("bp_post_floor_batch_thread")),
    case("exclusive put_batch of 32 warp", "bp_post_batch_warp", Ggh, Put, WARP_BATCHES, BATCH_BY_WARP),
    case("exclusive put_batch of 32 warp", "bp_post_batch_warp_system", Hhh, Put, WARP_BATCHES, BATCH_BY_WARP_SYSTEM),
    case("exclusive put_strided of 32 thread", "bp_post_strided_thread", Ggh, Put, BATCHES,
         floor("bp_post_floor_batch_thread")),
    case("exclusive put_strided of 32 warp", "bp_post_strided_warp", Ggh, Put, WARP_BATCHES, BATCH_BY_WARP),
    case("exclusive put_vector of 32 thread", "bp_post_vector_thread", Ggh, Put, BATCHES,
         floor("bp_post_floor_batch_thread")),
    case("exclusive put_vector of 32 warp", "bp_post_vector_warp", Ggh, Put, WARP_BATCHES, BATCH_BY_WARP),
    case("exclusive put_batch of 32, a warp an SM, endpoint copied", "bp_post_batch_warp_copied", Ggh, Put, WARPS,
         floor("bp_post_floor_batch_warp")),
    case("exclusive put_batch of 32, a warp an SM, endpoint copied", "bp_post_batch_warp_system_copied", Hhh, Put, WARPS,
         floor("bp_post_floor_batch_warp_system")),
    case("shared put_batch of 32 thread", "bp_post_batch_shared_thread", Ggh, Put, BATCHES,
         floor("bp_post_floor_batch_thread")),
    case("shared put_batch of 32 warp", "bp_post_batch_shared_warp", Ggh, Put, WARP_BATCHES, BATCH_BY_WARP),
    case("shared lanes of a warp, ns", "bp_post_lanes_shared", Ggh, Put, WARP_LANES, by_warps(WARP_LANES)),
    case("shared lanes of a warp", "bp_post_lanes_shared", Ggh, Put, SHARED_BY_WARP, by_warps(SHARED_BY_WARP)),
    case("shared lanes of a warp, in-band 8 B", "bp_post_lanes_inband", Window, Inband, SHARED_BY_WARP, SLOTS),
    case("shared lanes of a block each, endpoint copied", "bp_post_lanes_shared_copied", Ggh, Put, SHARED_BY_BLOCK,
         by_warps(SHARED_BY_BLOCK)),
    case("shared lanes of all warps", "bp_post_lanes_shared", Ggh, Put, SHARED_BY_ALL, by_warps(SHARED_BY_ALL)),
    case("shared lanes of all warps, in-band 8 B", "bp_post_lanes_inband", Window, Inband, SHARED_BY_ALL, SLOTS),
];

impl Case {
    /// Name and place: what `--only` looks at.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.name, self.place.name())
    }

    /// The stores and fences alone, by the same number of blocks and in the same place.
    pub fn floor_case(&self) -> Option<Case> {
        let Floor { kernel, shape } = self.floor?;
        Some(Case {
            name: "floor",
            kernel,
            what: match self.what {
                Nothing => Nothing,
                what if what.is_inband() => Inband,
                Pushed if kernel.contains("push") => Pushed,
                _ => Put,
            },
            shape: shape.unwrap_or(self.shape),
            floor: None,
            ..*self
        })
    }

    /// Whether the last doorbell rung is the last one stored: not where each thread of a floor rings as it goes.
    pub fn rings_in_order(&self) -> bool {
        self.shape.in_order || self.floor.is_some()
    }
}

/// A shape on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub blocks: u32,
    pub threads: u32,
    pub calls: u32,
    pub qps: u32,
    /// Puts on each queue pair.
    pub puts: u32,
    /// WQEs, or slots, on each queue pair.
    pub wqes: u32,
    /// Length of each queue: longer than what is posted, so that nobody waits for a completion.
    pub ring: u32,
}

/// Threads and calls on the host executor, which shows that rows work and no more.
const HOST_BLOCKS: u32 = 2;
const HOST_THREADS: u32 = 64;
const HOST_CALLS: u32 = 4;

impl Case {
    /// Its threads and queues on a GPU of `sms` multiprocessors; `None` for the host executor.
    pub fn size(&self, sms: Option<u32>) -> Size {
        let s = self.shape;
        let blocks = if s.every_sm { sms.unwrap_or(HOST_BLOCKS) } else { 1 };
        let (threads, calls) = match sms {
            Some(_) => (s.threads, s.calls),
            None => (s.threads.min(HOST_THREADS), s.calls.min(HOST_CALLS)),
        };
        let callers = match s.caller {
            Caller::Thread => threads,
            Caller::Warp => threads / 32,
            Caller::Block => 1,
        };
        let (qps, callers) = if s.one_qp { (1, callers * blocks) } else { (blocks, callers) };
        let puts = callers * calls * s.each;
        let wqes = self.what.wqes() * puts;
        let ring = (wqes + 1).next_power_of_two().max(128);
        Size { blocks, threads, calls, qps, puts, wqes, ring }
    }
}
