//! On-demand paging: regions whose memory need not be there before it is accessed.
//!
//! All memory is looked up at each access here, so what distinguishes such a region is that nothing
//! is looked at when it is registered. A page that is not there is faulted in by the access; one that
//! cannot be is an error completion.

use bellpush_mem::UserMem;

use super::Command;
use super::memory::UserRange;
use crate::abi::ids::attr;
use crate::abi::verbs::Sge;
use crate::context::Object;
use crate::error::Refusal;

/// `enum ib_uverbs_odp_general_cap_bits`: explicit and implicit regions.
pub const GENERAL_CAPS: u64 = 0b11;
/// `enum ib_uverbs_odp_transport_cap_bits`: SEND, RECV, WRITE, READ, ATOMIC, SRQ_RECV.
pub const RC_CAPS: u32 = 0b11_1111;
/// Of UC, which has neither READ, atomics nor SRQs.
pub const UC_CAPS: u32 = 0b00_0111;
/// Of UD, which has messages alone.
pub const UD_CAPS: u32 = 0b10_0011;
/// Of XRC, which receives from SRQs.
pub const XRC_CAPS: u32 = 0b11_1111;

/// Bytes of the list of an advice: an attribute's length has 16 bits.
const MAX_LIST: usize = 1 << 16;

/// Whether a region stands for the whole address space (`ibv_reg_mr` of `NULL` and `SIZE_MAX`).
pub fn is_implicit(range: &UserRange) -> bool {
    range.on_demand && range.start == 0 && range.length == u64::MAX
}

/// Memory that a region is to stand for once it is accessed.
pub fn memory(start: u64, length: u64) -> Result<UserMem, Refusal> {
    let fault = Refusal::Fault { addr: start, bytes: usize::MAX };
    let bytes = usize::try_from(length).map_err(|_| fault)?;
    if bytes == 0 || start.checked_add(length).is_none() {
        let must = "at least 1, and end below 2^64";
        return Err(Refusal::Value { what: "region's length", value: length, must });
    }
    // SAFETY: the program registers the range: what the NIC writes there, it wants written.
    Ok(unsafe { UserMem::unchecked(start, bytes) })
}

/// `UVERBS_METHOD_ADVISE_MR`: prefetches are carried out at once, whether the program waits or not.
/// Who does not wait is told of no fault (`mlx5_ib_advise_mr_prefetch`).
pub fn advise(c: &mut Command<'_>) -> Result<(), Refusal> {
    const PREFETCH_WRITE: u64 = 1;
    const PREFETCH_NO_FAULT: u64 = 2;
    const FLUSH: u64 = 1;
    let pd = c.objects.pd(c.request.handle(attr::ADVISE_MR_PD_HANDLE)?)?;
    let advice = c.request.number(attr::ADVISE_MR_ADVICE)?;
    if advice > PREFETCH_NO_FAULT {
        return Err(Refusal::Unsupported("an advice other than prefetches"));
    }
    let flags = c.request.number(attr::ADVISE_MR_FLAGS)?;
    if flags & !FLUSH != 0 {
        return Err(Refusal::Unsupported("an advice's flag"));
    }
    let list = c.request.bytes(attr::ADVISE_MR_SGE_LIST, MAX_LIST)?;
    if list.is_empty() || list.len() % size_of::<Sge>() != 0 {
        let (value, must) = (list.len() as u64, "some entries of 16 bytes");
        return Err(Refusal::Value { what: "advice's list", value, must });
    }
    for entry in list.chunks_exact(size_of::<Sge>()) {
        let Sge { addr, length, lkey } = bytemuck::pod_read_unaligned(entry);
        let found = c.objects.all().find_map(|object| match object {
            Object::Mr(mr) if mr.mr.lkey.0 == lkey => mr.user.filter(|u| u.on_demand).zip(Some(mr)),
            _ => None,
        });
        let (range, mr) = found.ok_or(Refusal::Handle { what: "on-demand key", handle: lkey })?;
        let write = advice == PREFETCH_WRITE;
        if !std::sync::Arc::ptr_eq(pd, &mr.pd) || write && !range.write {
            return Err(Refusal::Denied("prefetch of a key of another domain, or without rights"));
        }
        if advice == PREFETCH_NO_FAULT {
            continue; // pages that are there need nothing
        }
        let fault = Refusal::Fault { addr, bytes: length as usize };
        let offset = addr.checked_sub(mr.mr.iova.0).ok_or(fault)? as usize;
        let populated = memory(range.start, range.length)?.populate(offset, length as usize, write);
        if flags & FLUSH != 0 && length > 0 {
            populated.map_err(|_| Refusal::Fault { addr, bytes: length as usize })?;
        }
    }
    Ok(())
}
