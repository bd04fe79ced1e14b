//! Device memory (MEMIC): pages of the device's file, which the program maps.

use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError};

use bellpush_mem::{PAGE_BYTES, View};
use bellpush_wire::Iova;

use super::memory::{MrObj, rights};
use super::{Command, long, word};
use crate::abi::ids::attr;
use crate::abi::verbs::access;
use crate::commands::device::MAX_DM_BYTES;
use crate::context::{Object, Objects, dm_page, map, punch};
use crate::device::Device;
use crate::error::Refusal;

/// Pages that one allocation's index can count up through.
const ROW: u32 = 256;

/// Device memory.
pub struct DmObj {
    /// Index of its first page.
    pub first_page: u32,
    view: View,
    bytes: u64,
    /// What it takes of the device's, whole pages.
    taken: u64,
}

impl DmObj {
    /// Gives its share of the device's memory back.
    pub fn give_back(&self, device: &Device) {
        *device.dm_left.lock().unwrap_or_else(PoisonError::into_inner) += self.taken;
    }
}

/// The first of so many pages in a row that are free.
fn free_pages(objects: &Objects, pages: u32) -> Option<u32> {
    let free = |first: u32| {
        let overlaps = |&(at, n): &(u32, u32)| at < first + pages && first < at + n;
        !objects.dm_pages.iter().any(overlaps)
    };
    let ends = objects.dm_pages.iter().map(|&(at, n)| at + n);
    let mut starts: Vec<u32> = ends.chain((0..ROW).map(|row| row * ROW)).collect();
    starts.sort_unstable();
    starts.into_iter().find(|&first| first % ROW + pages <= ROW && first < 1 << 16 && free(first))
}

fn take(device: &Device, bytes: u64) -> Result<(), Refusal> {
    let mut left = device.dm_left.lock().unwrap_or_else(PoisonError::into_inner);
    *left = left.checked_sub(bytes).ok_or(Refusal::Room("device memory"))?;
    Ok(())
}

fn lay_out(objects: &Objects, fd: RawFd, bytes: u64) -> Result<(u32, View), Refusal> {
    let pages = bytes.div_ceil(PAGE_BYTES as u64);
    let first = free_pages(objects, pages as u32).ok_or(Refusal::Room("device memory"))?;
    punch(fd, dm_page(first), pages);
    Ok((first, map(fd, dm_page(first), bytes as usize)?))
}

/// `UVERBS_METHOD_DM_ALLOC`.
pub fn alloc(c: &mut Command<'_>) -> Result<(), Refusal> {
    let bytes = c.request.number(attr::ALLOC_DM_LENGTH)?;
    let log_align = c.request.number_or(attr::ALLOC_DM_ALIGNMENT, 0)?;
    if c.request.number_or(attr::ALLOC_DM_REQ_TYPE, 0)? != 0 {
        return Err(Refusal::Unsupported("device memory of a type other than MEMIC"));
    }
    if bytes == 0 || bytes > MAX_DM_BYTES {
        let must = "1 to the device's max_dm_size";
        return Err(Refusal::Value { what: "device memory's length", value: bytes, must });
    }
    if log_align > PAGE_BYTES.ilog2().into() {
        let must = "at most a page's (log2)";
        return Err(Refusal::Value { what: "device memory's alignment", value: log_align, must });
    }
    let taken = bytes.next_multiple_of(PAGE_BYTES as u64);
    take(&c.context.device, taken)?;
    let laid_out = lay_out(c.objects, c.fd, bytes);
    let (first_page, view) = laid_out.inspect_err(|_| {
        *c.context.device.dm_left.lock().unwrap_or_else(PoisonError::into_inner) += taken;
    })?;
    c.objects.dm_pages.push((first_page, (taken / PAGE_BYTES as u64) as u32));
    let dm = DmObj { first_page, view, bytes, taken };
    let handle = c.objects.add(Object::Dm(Arc::new(dm)));
    c.created(attr::ALLOC_DM_HANDLE, handle);
    c.request.put(attr::ALLOC_DM_RESP_START_OFFSET, &long(0));
    c.request.put(attr::ALLOC_DM_RESP_PAGE_INDEX, &(first_page as u16).to_ne_bytes());
    Ok(())
}

/// `UVERBS_METHOD_DM_FREE`.
pub fn free(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    c.objects.dm(handle)?;
    c.context.destroy(c.objects, handle)
}

/// `MLX5_IB_METHOD_DM_QUERY`: device memory that is imported by its handle.
pub fn query(c: &mut Command<'_>) -> Result<(), Refusal> {
    let dm = c.objects.dm(c.request.handle(attr::QUERY_DM_REQ_HANDLE)?)?.clone();
    c.request.put(attr::QUERY_DM_RESP_START_OFFSET, &long(0));
    c.request.put(attr::QUERY_DM_RESP_PAGE_INDEX, &(dm.first_page as u16).to_ne_bytes());
    c.request.put(attr::QUERY_DM_RESP_LENGTH, &long(dm.bytes));
    Ok(())
}

/// `UVERBS_METHOD_DM_MR_REG`: a region of device memory is zero-based.
pub fn register(c: &mut Command<'_>) -> Result<(), Refusal> {
    let pd = c.objects.pd(c.request.handle(attr::REG_DM_MR_PD_HANDLE)?)?.clone();
    let dm = c.objects.dm(c.request.handle(attr::REG_DM_MR_DM_HANDLE)?)?.clone();
    let offset = c.request.number(attr::REG_DM_MR_OFFSET)?;
    let length = c.request.number(attr::REG_DM_MR_LENGTH)?;
    let flags = c.request.word(attr::REG_DM_MR_ACCESS_FLAGS)?;
    if flags & access::ZERO_BASED == 0 {
        let must = "zero-based";
        return Err(Refusal::Value { what: "access", value: flags.into(), must });
    }
    if offset.checked_add(length).is_none_or(|end| end > dm.bytes) {
        let must = "within the device memory";
        return Err(Refusal::Value { what: "region's end", value: offset, must });
    }
    let access = rights(flags)?;
    let mem = Arc::new(dm.view.part(offset as usize, length as usize)?);
    let mr = c.context.device.nic.register_in(&pd.pd, mem, Iova(0), access)?;
    let region = MrObj { mr, pd, user: None, _dm: Some(dm) };
    let handle = c.objects.add(Object::Mr(region));
    c.created(attr::REG_DM_MR_HANDLE, handle);
    c.request.put(attr::REG_DM_MR_RESP_LKEY, &word(mr.lkey.0));
    c.request.put(attr::REG_DM_MR_RESP_RKEY, &word(mr.rkey.0));
    Ok(())
}
