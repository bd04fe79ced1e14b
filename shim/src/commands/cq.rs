//! Completion channels and completion queues.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use bellpush_mem::HostMem;
use bellpush_soft_nic::{Cq, CqAttr, CqLayout, Moderation, Notify};

use super::{Command, Undo, long, word};
use crate::abi::ids::{UHW_IN, UHW_OUT, attr};
use crate::abi::mlx5::{self, CreateCq};
use crate::abi::verbs::{ModifyCq, ResizeCq};
use crate::clock;
use crate::context::Object;
use crate::device::Source;
use crate::error::Refusal;
use crate::events::{EventPipe, Reporter};
use crate::files::Kind;

/// Bytes of `struct ib_uverbs_comp_event_desc`.
const COMP_EVENT_BYTES: usize = 8;
/// Bytes of a CQ's doorbell record.
const DBR_BYTES: usize = 8;
/// `IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION`.
const TIMESTAMPS: u64 = 1 << 0;
/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u64 = 1 << 1;

/// Longest period of moderation, `cq_period`'s 12 bits.
pub const MAX_PERIOD_US: u16 = (1 << 12) - 1;

/// A completion queue.
pub struct CqObj {
    /// The NIC's.
    pub cq: Arc<Cq>,
    /// Tells its completion events.
    completions: Option<Arc<Reporter>>,
}

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`.
pub fn create_channel(c: &mut Command<'_>) -> Result<(), Refusal> {
    let (pipe, reader) = EventPipe::new(COMP_EVENT_BYTES)?;
    let reader = std::fs::File::from(reader);
    c.process.files.add(&reader, Kind::Events(Arc::new(pipe)))?;
    let fd = reader.into_raw_fd();
    c.undo = Some(Undo::Descriptor(fd));
    c.answer(&word(fd as u32));
    Ok(())
}

fn channel(c: &Command<'_>) -> Result<Option<Arc<EventPipe>>, Refusal> {
    if !c.request.has(attr::CREATE_CQ_COMP_CHANNEL) {
        return Ok(None);
    }
    let fd = c.request.fd(attr::CREATE_CQ_COMP_CHANNEL)?;
    match c.process.find(fd) {
        Some(Kind::Events(pipe)) if pipe.event_bytes() == COMP_EVENT_BYTES => Ok(Some(pipe)),
        _ => {
            let (value, must) = (fd as u64, "a completion channel");
            Err(Refusal::Value { what: "descriptor", value, must })
        }
    }
}

/// Entries of a CQ that is to hold `asked` (as the kernel's driver computes them).
fn entries(asked: u32) -> Result<u32, Refusal> {
    let entries = asked.checked_add(1).and_then(u32::checked_next_power_of_two);
    let must = "at least 1, and less than 2^22";
    let entries = entries.filter(|&entries| asked > 0 && entries <= 1 << 22);
    entries.ok_or(Refusal::Value { what: "CQ's entries", value: asked.into(), must })
}

fn entry_bytes(bytes: u32) -> Result<usize, Refusal> {
    match bytes {
        64 | 128 => Ok(bytes as usize),
        _ => Err(Refusal::Value { what: "CQE's bytes", value: bytes.into(), must: "64 or 128" }),
    }
}

/// `UVERBS_METHOD_CQ_CREATE`.
pub fn create(c: &mut Command<'_>) -> Result<(), Refusal> {
    let asked = c.request.word(attr::CREATE_CQ_CQE)?;
    let user_handle = c.request.number(attr::CREATE_CQ_USER_HANDLE)?;
    let flags = c.request.number_or(attr::CREATE_CQ_FLAGS, 0)?;
    if flags & !(TIMESTAMPS | IGNORE_OVERRUN) != 0 {
        return Err(Refusal::Unsupported("a creation flag of a CQ"));
    }
    let vector = c.request.number_or(attr::CREATE_CQ_COMP_VECTOR, 0)?;
    if vector != 0 {
        return Err(Refusal::Value { what: "completion vector", value: vector, must: "0" });
    }
    // Older libraries end before the UAR's index.
    let driver: CreateCq = c.request.input_from(UHW_IN, 24)?;
    let known = mlx5::CREATE_CQ_UAR_PAGE_INDEX | mlx5::CREATE_CQ_CQE_128B_PAD;
    if driver.cqe_comp_en != 0 || driver.flags & !known != 0 {
        return Err(Refusal::Unsupported(
            "a CQ with compressed entries, or stamped with real time",
        ));
    }
    let entry_bytes = entry_bytes(driver.cqe_size)?;
    // A card pads its entries so that its writes fill cache lines; nobody reads the padding.
    if driver.flags & mlx5::CREATE_CQ_CQE_128B_PAD != 0 && entry_bytes != 128 {
        let value = entry_bytes as u64;
        return Err(Refusal::Value { what: "padded CQE's bytes", value, must: "128" });
    }
    let page = driver.uar_page_index.into();
    let uar =
        c.objects.uars.get(&page).filter(|_| driver.flags & mlx5::CREATE_CQ_UAR_PAGE_INDEX != 0);
    let uar = uar.ok_or(Refusal::Handle { what: "UAR page", handle: page })?.clone();
    let entries = entries(asked)?;
    let completions = channel(c)?.map(|channel| Reporter::new(channel, user_handle));
    let notify = completions.clone().map(|to| Arc::new(move |_| to.completion()) as Notify);
    // SAFETY: libmlx5 keeps a CQ's buffer and record until the CQ is destroyed; the CQ, which alone
    // holds the views, is gone then. That is refused while a queue pair uses it, and reports look at
    // CQs only through queue pairs that are not destroyed.
    let (ring, dbr) = unsafe {
        let ring = HostMem::borrowed(driver.buf_addr, entries as usize * entry_bytes, true)?;
        (ring, HostMem::borrowed(driver.db_addr, DBR_BYTES, true)?)
    };
    let cq = c.context.device.nic.create_cq_with(
        &CqAttr { ring, dbr, uar, notify },
        CqLayout {
            entry_bytes,
            overrun_ignored: flags & IGNORE_OVERRUN != 0,
            timestamp: (flags & TIMESTAMPS != 0).then_some(clock::cycles as fn() -> u64),
            ..CqLayout::default()
        },
    )?;
    let number = cq.number();
    let handle = c.objects.add(Object::Cq(Arc::new(CqObj { cq, completions })));
    c.context.listen(c.objects, Source::Cq(number), user_handle);
    c.created(attr::CREATE_CQ_HANDLE, handle);
    c.request.put(attr::CREATE_CQ_RESP_CQE, &word(entries - 1));
    c.request.put(UHW_OUT, &long(number.into()));
    Ok(())
}

/// `UVERBS_METHOD_CQ_DESTROY`. Answers how many events the program got: the library waits until it
/// has acknowledged as many.
pub fn destroy(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    let cq = c.objects.cq(handle)?;
    let (completions, source) = (cq.completions.clone(), Source::Cq(cq.cq.number()));
    let async_events = c.context.destroy_with_events(c.objects, handle, source)?;
    let events = completions.map_or(0, |completions| completions.read_so_far());
    c.request.put(attr::DESTROY_RESP, bytemuck::bytes_of(&[events, async_events]));
    Ok(())
}

/// `IB_USER_VERBS_CMD_RESIZE_CQ`.
pub fn resize(c: &mut Command<'_>) -> Result<(), Refusal> {
    let ResizeCq { cq_handle, cqe, .. } = c.request.input(attr::CORE_IN)?;
    let driver: mlx5::ResizeCq = c.request.input(UHW_IN)?;
    let cq = &c.objects.cq(cq_handle)?.cq;
    let (entries, entry_bytes) = (entries(cqe)?, entry_bytes(driver.cqe_size.into())?);
    // SAFETY: libmlx5 keeps the new buffer until the CQ is destroyed or resized again; the old one
    // is not touched after this.
    let ring = unsafe { HostMem::borrowed(driver.buf_addr, entries as usize * entry_bytes, true)? };
    cq.resize(ring, entry_bytes)?;
    c.answer(bytemuck::bytes_of(&[entries - 1, 0]));
    Ok(())
}

/// `IB_USER_VERBS_EX_CMD_MODIFY_CQ`: how many completions an event tells of, and how soon.
pub fn modify(c: &mut Command<'_>) -> Result<(), Refusal> {
    const MODERATE: u32 = 1;
    let r: ModifyCq = c.request.input(attr::CORE_IN)?;
    let cq = c.objects.cq(r.cq_handle)?;
    if r.attr_mask != MODERATE {
        return Err(Refusal::Unsupported("a change of a CQ other than moderation"));
    }
    if r.cq_period > MAX_PERIOD_US {
        let (value, must) = (r.cq_period.into(), "within the device's limit");
        return Err(Refusal::Value { what: "CQ's period", value, must });
    }
    let moderation = Moderation { count: r.cq_count, period_us: r.cq_period };
    c.context.device.nic.moderate(&cq.cq, moderation);
    Ok(())
}
