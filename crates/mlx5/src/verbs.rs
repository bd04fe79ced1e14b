//! The verbs that are inline functions in `infiniband/verbs.h`: they call through the context's
//! table of extended verbs.
//!
//! rdma-sys has ports of them, which compare `abi_compat` with 2³²−1 where the header compares with
//! the largest pointer; on 64-bit machines they find no extended verb at all. So we look ourselves.

use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

use libc::c_int;
use rdma_sys::{ibv_context, ibv_gid_entry, verbs_context};

unsafe extern "C" {
    /// What `ibv_query_gid_ex` calls (libibverbs 1.11); rdma-sys does not list it.
    pub(super) fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int;
}

/// The extended verbs of a context; `None` for a provider that is older than they are.
///
/// # Safety
/// The context is open, and was opened by libibverbs.
pub(super) unsafe fn extended(context: NonNull<ibv_context>) -> Option<NonNull<verbs_context>> {
    // SAFETY: an open context.
    let marker = unsafe { (*context.as_ptr()).abi_compat } as usize;
    if marker != usize::MAX {
        return None; // as `verbs_get_ctx`
    }
    // SAFETY: the marker says that the context is the last field of a `verbs_context`.
    let whole = unsafe { context.as_ptr().byte_sub(offset_of!(verbs_context, context)) };
    NonNull::new(whole.cast())
}

/// Whether a context's table reaches back to the field at this offset: it grows at its front.
///
/// # Safety
/// From [`extended`], and open.
pub(super) unsafe fn reaches(context: NonNull<verbs_context>, offset: usize) -> bool {
    // SAFETY: `sz` stands right before the context, in every version.
    unsafe { (*context.as_ptr()).sz >= size_of::<verbs_context>() - offset }
}

/// An extended verb of an open context, or [`Mlx5Error::NoVerb`](super::Mlx5Error::NoVerb).
macro_rules! verb {
    ($device:expr, $verb:ident) => {{
        let device: &$crate::device::Device = $device;
        // SAFETY: the device's context is open while the device lives, and the field is looked at
        // only where the table reaches it.
        let found = unsafe {
            $crate::verbs::extended(device.context()).and_then(|context| {
                let offset = std::mem::offset_of!(rdma_sys::verbs_context, $verb);
                let there = $crate::verbs::reaches(context, offset);
                if there { (*context.as_ptr()).$verb } else { None }
            })
        };
        found.ok_or_else(|| $crate::Mlx5Error::NoVerb {
            name: device.name.clone(),
            verb: concat!("ibv_", stringify!($verb)),
        })
    }};
}
pub(super) use verb;
