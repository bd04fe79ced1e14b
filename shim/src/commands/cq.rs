//! Completion channels and completion queues.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use bellpush::mem::HostMem;
use bellpush::nic::soft::{Cq, CqAttr, Notify};

use super::{Command, Undo, long, word};
use crate::abi::ids::{UHW_IN, UHW_OUT, attr};
use crate::abi::mlx5::{self, CreateCq};
use crate::context::Object;
use crate::device::Source;
use crate::error::Refusal;
use crate::events::{EventPipe, Reporter};
use crate::process::Kind;

/// Bytes of `struct ib_uverbs_comp_event_desc`.
const COMP_EVENT_BYTES: usize = 8;
/// Bytes of a CQE, and of a CQ's doorbell record.
const CQE_BYTES: usize = 64;
const DBR_BYTES: usize = 8;

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
    c.process.add(&reader, Kind::Events(Arc::new(pipe)))?;
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

/// `UVERBS_METHOD_CQ_CREATE`.
pub fn create(c: &mut Command<'_>) -> Result<(), Refusal> {
    let asked = c.request.word(attr::CREATE_CQ_CQE)?;
    let user_handle = c.request.number(attr::CREATE_CQ_USER_HANDLE)?;
    if c.request.number_or(attr::CREATE_CQ_FLAGS, 0)? != 0 {
        return Err(Refusal::Unsupported("a CQ with timestamps, or without overrun checks"));
    }
    let vector = c.request.number_or(attr::CREATE_CQ_COMP_VECTOR, 0)?;
    if vector != 0 {
        return Err(Refusal::Value { what: "completion vector", value: vector, must: "0" });
    }
    // Older libraries end before the UAR's index.
    let driver: CreateCq = c.request.input_from(UHW_IN, 24)?;
    if driver.cqe_comp_en != 0 || driver.flags & !mlx5::CREATE_CQ_UAR_PAGE_INDEX != 0 {
        return Err(Refusal::Unsupported("a CQ with compressed or padded entries, or wall clock"));
    }
    if driver.cqe_size as usize != CQE_BYTES {
        return Err(Refusal::Unsupported("a CQ with entries of another size than 64 bytes"));
    }
    let page = driver.uar_page_index.into();
    let uar = c.objects.uars.get(&page).filter(|_| driver.flags != 0);
    let uar = uar.ok_or(Refusal::Handle { what: "UAR page", handle: page })?.clone();
    let entries = asked.checked_add(1).and_then(u32::checked_next_power_of_two);
    let must = "less than 2^22";
    let entries = entries.filter(|&entries| asked > 0 && entries <= 1 << 22);
    let entries =
        entries.ok_or(Refusal::Value { what: "CQ's entries", value: asked.into(), must })?;
    let completions = channel(c)?.map(|channel| Reporter::new(channel, user_handle));
    let notify = completions.clone().map(|to| Arc::new(move |_| to.completion()) as Notify);
    // SAFETY: libmlx5 keeps a CQ's buffer and record until the CQ is destroyed; the CQ, which alone
    // holds the views, is gone then.
    let (ring, dbr) = unsafe {
        let ring = HostMem::borrowed(driver.buf_addr, entries as usize * CQE_BYTES)?;
        (ring, HostMem::borrowed(driver.db_addr, DBR_BYTES)?)
    };
    let cq = c.context.device.nic.create_cq(&CqAttr { ring, dbr, uar, notify })?;
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
