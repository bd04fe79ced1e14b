//! Queue pairs in plain memory, filled by hand: no NIC knows of them.

use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::bench::{POST_REMOTE_BYTES, POST_SRC_BYTES, POST_WORDS, PostArgs, PostResult};
use bellpush::abi::wire::{DeviceEndpoint, QP_STATE_BYTES, Qp, Status, Window, tag};
use bellpush::gpu::Gpu;
use bellpush::mem::{MemError, PAGE_BYTES};
use bellpush::transport::Memory;
use bellpush::wire::doorbell::{DBR_SND_OFFSET, UAR_BYTES, UAR_DOORBELL_OFFSET};
use bellpush::wire::inband::SCRUB_LAPS;
use bellpush::wire::wqe::WQEBB_BYTES;
use bytemuck::Zeroable;

use super::cases::{Case, Place, Size, What};
use crate::cli::CliError;

/// Number of queue pair 0.
pub const FIRST_QPN: u32 = 0x100;
/// Addresses and keys in WQEs: nobody translates them.
pub const REMOTE_IOVA: u64 = 0x1000_0000;
pub const REMOTE_RKEY: u32 = 0x66;
pub const LOCAL_LKEY: u32 = 0x55;
/// Where the NIC gathers the first byte of queue pair 0's window from.
pub const WINDOW_IOVA: u64 = 0x3000_0000;
pub const WINDOW_LKEY: u32 = 0x88;
pub const SINK_IOVA: u64 = 0x2000_0000;
pub const SINK_LKEY: u32 = 0x77;
/// Bytes of a slot, of which 8 bytes of payload fill the first half.
pub const SLOT_BYTES: usize = 128;
/// Sequence number of the window's first lap: not a scrub lap's, in which a sender writes whole slots.
pub const FIRST_SEQUENCE: u32 = SCRUB_LAPS + 1;

/// Bytes of a doorbell record's cache line.
const DBR_BYTES: usize = 64;
/// log2 of the send CQ's entries. Nobody fills it, and as no queue fills up, nobody looks.
const CQ_LOG: u32 = 6;
/// In the page beside the CQ: its doorbell record, and after it the queue pairs' status.
const STATUS: usize = 1024;
/// Places of the queue pairs' words, whole lines apart. How far a word lies from an SM depends on its address, and a
/// caller that shares a queue pair makes several trips to it.
const STATE_PLACES: usize = 16;
const STATE_STEP: usize = 1031 * 128;
/// Bytes of the list of messages.
const LIST_BYTES: usize = POST_REMOTE_BYTES / 64 * size_of::<[u64; 3]>();

/// The memory of a row's queue pairs.
pub struct Queues {
    size: Size,
    what: What,
    tag: u32,
    sq: Memory,
    dbr: Memory,
    uar: Memory,
    window: Option<Memory>,
    state: Memory,
    ready: Memory,
    cq: Memory,
    status: Memory,
    src: Memory,
    endpoints: Memory,
    results: Memory,
    arrived: Memory,
    list: Memory,
}

/// What a run has left behind.
#[derive(Debug, Clone)]
pub struct Found {
    /// The send queues, one behind the other.
    pub sq: Vec<u8>,
    /// The windows likewise; empty without any.
    pub window: Vec<u8>,
    /// The word of each doorbell record, as loaded natively.
    pub records: Vec<u32>,
    /// The last doorbell of each queue pair.
    pub doorbells: Vec<u64>,
    /// One per block.
    pub results: Vec<PostResult>,
    /// The failure that ended a queue pair.
    pub status: Status,
}

impl Queues {
    /// Allocates what a row needs; host memory on a NUMA node if one is given.
    ///
    /// # Errors
    /// One line when there is too little memory.
    pub fn new(
        gpu: &Arc<Gpu>,
        numa: Option<usize>,
        case: &Case,
        size: Size,
    ) -> Result<Self, CliError> {
        let memory = |on_host: bool, bytes: usize| -> Result<Memory, CliError> {
            Ok(match on_host {
                true => Memory::Host(gpu.alloc_mapped(bytes, numa)?),
                false => Memory::Device(gpu.alloc(bytes)?),
            })
        };
        let (qps, blocks) = (size.qps as usize, size.qps as usize * size.ring as usize);
        let on_host = case.place == Place::Hhh;
        let window = case.what.is_inband() || case.what == What::Pushed;
        let window_on_host = case.place != Place::Ggh;
        Ok(Self {
            size,
            what: case.what,
            tag: tag_of(case),
            sq: memory(on_host, blocks * WQEBB_BYTES)?,
            dbr: memory(on_host, qps * DBR_BYTES)?,
            uar: memory(true, qps * UAR_BYTES)?,
            window: window.then(|| memory(window_on_host, blocks * SLOT_BYTES)).transpose()?,
            state: memory(false, qps * QP_STATE_BYTES + STATE_PLACES * STATE_STEP)?,
            ready: memory(false, blocks * 4)?,
            cq: memory(true, 64 << CQ_LOG)?,
            status: memory(true, PAGE_BYTES)?,
            src: memory(false, POST_SRC_BYTES)?,
            endpoints: memory(false, qps * size_of::<DeviceEndpoint>())?,
            results: memory(false, size.blocks as usize * size_of::<PostResult>())?,
            arrived: memory(false, 8)?,
            list: memory(false, LIST_BYTES + POST_WORDS * 4)?,
        })
    }

    /// Makes all of it as it was before anything was posted, and returns a kernel's argument. Each run has the queue
    /// pairs' words elsewhere.
    ///
    /// # Errors
    /// When a copy fails.
    pub fn reset(&self, timeout: Duration, run: u32) -> Result<PostArgs, MemError> {
        let zeroed = [
            &self.sq,
            &self.dbr,
            &self.uar,
            &self.state,
            &self.ready,
            &self.status,
            &self.results,
            &self.arrived,
        ];
        for memory in zeroed.into_iter().chain(&self.window) {
            memory.write(0, &vec![0; memory.bytes()])?;
        }
        self.cq.write(0, &vec![0xff; self.cq.bytes()])?; // no CQE is valid
        self.src.write(0, &source())?;
        self.list.write(0, bytemuck::cast_slice(&list(self.src.addr())))?;
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let endpoints: Vec<DeviceEndpoint> =
            (0..self.size.qps).map(|qp| self.endpoint(qp, timeout_ns, run)).collect();
        self.endpoints.write(0, bytemuck::cast_slice(&endpoints))?;
        Ok(PostArgs {
            ep: endpoints[0],
            endpoints: self.endpoints.addr(),
            src: self.src.addr(),
            results: self.results.addr(),
            arrived: self.arrived.addr(),
            list: self.list.addr(),
            limit_ns: timeout_ns,
            calls: self.size.calls,
            one_qp: u32::from(self.size.qps == 1),
        })
    }

    fn endpoint(&self, qp: u32, timeout_ns: u64, run: u32) -> DeviceEndpoint {
        let place = run as usize % STATE_PLACES * STATE_STEP;
        let (nth, ring) = (u64::from(qp), u64::from(self.size.ring));
        let window = self.window.as_ref().map_or(Window::zeroed(), |window| Window {
            va: window.addr() + nth * ring * SLOT_BYTES as u64,
            gather_base: WINDOW_IOVA + nth * ring * SLOT_BYTES as u64,
            lkey: WINDOW_LKEY,
            slot_bytes: SLOT_BYTES as u32,
            slots: self.size.ring,
            inband_seq0: FIRST_SEQUENCE,
        });
        DeviceEndpoint {
            qp: Qp {
                sq: self.sq.addr() + nth * ring * WQEBB_BYTES as u64,
                cq: self.cq.addr(),
                dbr: self.dbr.addr() + nth * DBR_BYTES as u64,
                cq_dbr: self.status.addr(),
                uar: self.uar.addr() + nth * UAR_BYTES as u64,
                state: self.state.addr() + place as u64 + nth * QP_STATE_BYTES as u64,
                ready: self.ready.addr() + nth * ring * 4,
                status: self.status.addr() + STATUS as u64,
                window,
                timeout_ns,
                qpn: FIRST_QPN + qp,
                slot_limit: self.size.ring,
                sq_log: self.size.ring.ilog2(),
                cq_log: CQ_LOG,
                credit_period: self.size.ring / 4,
                own_timeout_us: 0,
            },
            local_va: self.src.addr(),
            local_iova: self.src.addr(),
            local_bytes: POST_SRC_BYTES as u64,
            remote_iova: REMOTE_IOVA,
            remote_bytes: POST_REMOTE_BYTES as u64,
            local_lkey: LOCAL_LKEY,
            remote_rkey: REMOTE_RKEY,
            sink_iova: SINK_IOVA,
            sink_lkey: SINK_LKEY,
            tag: self.tag,
        }
    }

    /// Address of the local region in WQEs.
    pub fn local_iova(&self) -> u64 {
        self.src.addr()
    }

    /// Reads everything that the kernel may have written.
    ///
    /// # Errors
    /// When a copy fails.
    pub fn found(&self) -> Result<Found, MemError> {
        let read = |memory: &Memory| {
            let mut bytes = vec![0; memory.bytes()];
            memory.read(0, &mut bytes).map(|()| bytes)
        };
        let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let dbr = read(&self.dbr)?;
        let uar = read(&self.uar)?;
        let bells = uar.chunks_exact(UAR_BYTES).map(|page| &page[UAR_DOORBELL_OFFSET..][..8]);
        let results = read(&self.results)?;
        let results = results.chunks_exact(size_of::<PostResult>());
        let status = read(&self.status)?;
        Ok(Found {
            sq: if self.what.is_inband() { Vec::new() } else { read(&self.sq)? },
            window: self.window.as_ref().map_or(Ok(Vec::new()), read)?,
            records: dbr.chunks_exact(DBR_BYTES).map(|r| word(&r[DBR_SND_OFFSET..])).collect(),
            doorbells: bells.map(bytemuck::pod_read_unaligned).collect(),
            results: results.map(bytemuck::pod_read_unaligned).collect(),
            status: bytemuck::pod_read_unaligned(&status[STATUS..][..size_of::<Status>()]),
        })
    }
}

/// The local region: no word is 0, and no two are alike.
pub fn source() -> Vec<u8> {
    let word = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes(); // an odd factor
    (1..=POST_SRC_BYTES as u64 / 8).flat_map(word).collect()
}

/// Every message that differs: its offset in the peer's region, its address and its bytes.
fn list(src: u64) -> Vec<[u64; 3]> {
    let of = |message: u64| [message * 64, src + message * 64 % POST_SRC_BYTES as u64, 64];
    (0..POST_REMOTE_BYTES as u64 / 64).map(of).collect()
}

/// What the row's kernel must be compiled for.
fn tag_of(case: &Case) -> u32 {
    let data = match case.what {
        what if what.is_inband() => tag::PUSH | tag::INBAND_12_4,
        What::Pushed => tag::PUSH | tag::KERNEL,
        _ => tag::PULL | tag::KERNEL,
    };
    // More fences than these do no harm, so strict kernels take such an endpoint too.
    data | if case.place == Place::Ggh { 0 } else { tag::SYSTEM }
}
