//! What libibverbs and its users know of each other (`infiniband/verbs.h`): the functions of a provider that
//! inline functions of the header call. `interop/polling.c` compares the offsets with the header's.

use std::ffi::{c_int, c_void};
#[cfg(target_arch = "x86_64")]
use std::mem::offset_of;

/// A function of the provider's, or none.
pub type Function = *mut c_void;

/// `struct ibv_context`.
#[repr(C)]
pub struct IbvContext {
    device: *mut c_void,
    /// `struct ibv_context_ops`, by the constants of [`op`].
    pub ops: [Function; 32],
    /// The device's descriptor.
    pub cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    /// [`IS_EXTENDED`] where a `struct verbs_context` lies before it.
    pub abi_compat: usize,
}

/// `__VERBS_ABI_IS_EXTENDED`.
pub const IS_EXTENDED: usize = usize::MAX;
/// Where `struct verbs_context`, which grows at its beginning, has `create_cq_ex`: so many words before the
/// context, and its size in bytes one word before.
pub const CREATE_CQ_EX: usize = 15;
/// Where it has `query_rt_values`.
pub const QUERY_RT_VALUES: usize = 16;

/// `struct ibv_values_ex`.
#[repr(C)]
pub struct IbvValuesEx {
    /// Which values are asked for, and which are told.
    pub comp_mask: u32,
    /// The device's clock: cycles, in `tv_nsec`.
    pub raw_clock: libc::timespec,
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
pub const VALUES_RAW_CLOCK: u32 = 1 << 0;

/// Places in `struct ibv_context_ops`.
pub mod op {
    /// `poll_cq`.
    pub const POLL_CQ: usize = 11;
    /// `req_notify_cq`.
    pub const REQ_NOTIFY_CQ: usize = 12;
    /// `post_send`.
    pub const POST_SEND: usize = 25;
}

/// The beginning of `struct ibv_cq_ex`.
#[repr(C)]
pub struct IbvCqEx {
    objects: [*mut c_void; 3],
    handle: u32,
    cqe: c_int,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    events: [u32; 2],
    comp_mask: u32,
    status: c_int,
    wr_id: u64,
    /// `start_poll`.
    pub start_poll: Function,
}

/// The beginning of `struct ibv_qp_ex`.
#[repr(C)]
pub struct IbvQpEx {
    /// Of the queue pair.
    pub context: *mut IbvContext,
    objects: [*mut c_void; 5],
    words: [u32; 4],
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    events_completed: u32,
    comp_mask: u64,
    wr_id: u64,
    wr_flags: u32,
    verbs: [Function; 18],
    /// `wr_complete`.
    pub wr_complete: Function,
}

#[cfg(target_arch = "x86_64")]
const _: () = {
    assert!(offset_of!(IbvContext, ops) + 8 * op::POLL_CQ == 96);
    assert!(offset_of!(IbvContext, ops) + 8 * op::REQ_NOTIFY_CQ == 104);
    assert!(offset_of!(IbvContext, ops) + 8 * op::POST_SEND == 208);
    assert!(offset_of!(IbvContext, cmd_fd) == 264);
    assert!(offset_of!(IbvContext, abi_compat) == 320);
    assert!(offset_of!(IbvCqEx, start_poll) == 144);
    assert!(offset_of!(IbvQpEx, wr_complete) == 328);
    assert!(offset_of!(IbvValuesEx, raw_clock) == 8 && size_of::<IbvValuesEx>() == 24);
};
