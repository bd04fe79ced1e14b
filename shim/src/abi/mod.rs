//! The kernel's user ABI of verbs, as bytes: what a program passes to `ioctl` on a verbs device.
//!
//! Names, numbers and layouts are those of the headers in `/usr/include/rdma` (Linux's
//! `include/uapi/rdma`); each struct names its origin. All fields are in the machine's byte order
//! unless they say otherwise, and no struct has hidden padding.

pub mod ids;
pub mod libibverbs;
pub mod mlx5;
pub mod verbs;
