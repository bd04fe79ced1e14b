//! libmlx5's direct verbs, found at run time.
//!
//! libibverbs loads libmlx5 as a plugin, and a machine may have libibverbs without it, or an old
//! one. Linked, either would be a message of the dynamic loader that ends the whole program; loaded
//! by name it is one line that says which library or symbol is missing, and only to those who want a
//! device.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rdma_sys::{
    ibv_context, ibv_cq, ibv_cq_init_attr_ex, ibv_device, ibv_dm, ibv_qp, ibv_qp_init_attr_ex,
};

use super::bindings::{self as sys, Libmlx5};
use super::error::Mlx5Error;

/// libmlx5 with every function that we call.
pub(super) struct Dv(Libmlx5);

/// The library, loaded once and never unloaded: libibverbs holds it as well.
pub(super) fn library() -> Result<&'static Dv, Mlx5Error> {
    static LIBRARY: OnceLock<Dv> = OnceLock::new();
    if let Some(dv) = LIBRARY.get() {
        return Ok(dv);
    }
    // SAFETY: loading runs libmlx5's initialisers, which register a driver with libibverbs.
    let library = unsafe { Libmlx5::new("libmlx5.so.1") }.map_err(Mlx5Error::NoLibrary)?;
    match missing(&library) {
        Some(symbol) => Err(Mlx5Error::NoSymbol { symbol }),
        None => Ok(LIBRARY.get_or_init(|| Dv(library))),
    }
}

fn missing(library: &Libmlx5) -> Option<&'static str> {
    [
        ("mlx5dv_is_supported", library.mlx5dv_is_supported.is_ok()),
        ("mlx5dv_query_device", library.mlx5dv_query_device.is_ok()),
        ("mlx5dv_create_cq", library.mlx5dv_create_cq.is_ok()),
        ("mlx5dv_create_qp", library.mlx5dv_create_qp.is_ok()),
        ("mlx5dv_init_obj", library.mlx5dv_init_obj.is_ok()),
    ]
    .into_iter()
    .find_map(|(symbol, there)| (!there).then_some(symbol))
}

/// Where a queue pair's rings and registers lie (`struct mlx5dv_qp`), as addresses.
pub(super) struct QpLayout {
    pub dbr: u64,
    pub sq: u64,
    pub sq_blocks: u32,
    pub sq_stride: u32,
    pub rq: u64,
    pub rq_wqes: u32,
    pub rq_stride: u32,
    /// The doorbell register, which is BlueFlame buffer 0 as well.
    pub register: u64,
    /// Bytes of a BlueFlame buffer; 0 where the page takes doorbells only.
    pub bf_bytes: u32,
}

/// Where a CQ lies (`struct mlx5dv_cq`).
pub(super) struct CqLayout {
    pub dbr: u64,
    pub ring: u64,
    pub cqes: u32,
    pub cqe_bytes: u32,
}

impl Dv {
    /// Whether the device is an mlx5 device.
    ///
    /// # Safety
    /// The device comes from a device list that still lives.
    pub unsafe fn is_supported(&self, device: NonNull<ibv_device>) -> bool {
        // SAFETY: the caller's promise; `library` checked that the symbol is there.
        unsafe { self.0.mlx5dv_is_supported(device.as_ptr()) }
    }

    /// Whether the device's CQEs have format version 1, which carries the user index.
    ///
    /// # Safety
    /// The context is open.
    pub unsafe fn has_cqe_v1(&self, context: NonNull<ibv_context>) -> Result<bool, i32> {
        // SAFETY: a structure of integers; all zeros ask for nothing beyond the first fields.
        let mut out: sys::mlx5dv_context = unsafe { zeroed() };
        // SAFETY: the caller's promise, and a structure of ours to fill in.
        match unsafe { self.0.mlx5dv_query_device(context.as_ptr(), &mut out) } {
            0 => Ok(out.flags & u64::from(sys::MLX5DV_CONTEXT_FLAGS_CQE_V1) != 0),
            code => Err(code),
        }
    }

    /// Creates a CQ whose entries have that many bytes: libmlx5 would else choose by the machine's
    /// cache lines, or by its environment.
    ///
    /// # Safety
    /// The context is open, and all that `attr` points to lives.
    pub unsafe fn create_cq(
        &self,
        context: NonNull<ibv_context>,
        attr: &mut ibv_cq_init_attr_ex,
        cqe_bytes: u16,
    ) -> Option<NonNull<ibv_cq>> {
        // SAFETY: a structure of integers; what `comp_mask` does not name is not read.
        let mut dv: sys::mlx5dv_cq_init_attr = unsafe { zeroed() };
        dv.comp_mask = sys::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE.into();
        dv.cqe_size = cqe_bytes;
        // SAFETY: the caller's promise. An `ibv_cq_ex` begins with an `ibv_cq`.
        NonNull::new(unsafe { self.0.mlx5dv_create_cq(context.as_ptr(), attr, &mut dv) }.cast())
    }

    /// Creates a queue pair whose receives and READs land in memory at every size: libmlx5 would
    /// else have short ones scattered into the CQE.
    ///
    /// # Safety
    /// The context is open, and all that `attr` points to lives.
    pub unsafe fn create_qp(
        &self,
        context: NonNull<ibv_context>,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Option<NonNull<ibv_qp>> {
        // SAFETY: a structure of integers and opaque bytes; what `comp_mask` does not name is not
        // read.
        let mut dv: sys::mlx5dv_qp_init_attr = unsafe { zeroed() };
        dv.comp_mask = sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into();
        dv.create_flags = sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
        // SAFETY: the caller's promise.
        NonNull::new(unsafe { self.0.mlx5dv_create_qp(context.as_ptr(), attr, &mut dv) })
    }

    /// Where a queue pair lies.
    ///
    /// # Safety
    /// The queue pair is libmlx5's, and not destroyed.
    pub unsafe fn qp(&self, qp: NonNull<ibv_qp>) -> Result<QpLayout, i32> {
        // SAFETY: a structure of integers and pointers; `comp_mask` 0 asks for the first fields.
        let mut out: sys::mlx5dv_qp = unsafe { zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { zeroed() };
        (obj.qp.in_, obj.qp.out) = (qp.as_ptr(), &mut out);
        // SAFETY: the caller's promise; both pointers are good until the call ends.
        match unsafe { self.0.mlx5dv_init_obj(&mut obj, sys::MLX5DV_OBJ_QP.into()) } {
            0 => Ok(QpLayout {
                dbr: out.dbrec as u64,
                sq: out.sq.buf as u64,
                sq_blocks: out.sq.wqe_cnt,
                sq_stride: out.sq.stride,
                rq: out.rq.buf as u64,
                rq_wqes: out.rq.wqe_cnt,
                rq_stride: out.rq.stride,
                register: out.bf.reg as u64,
                bf_bytes: out.bf.size,
            }),
            code => Err(code),
        }
    }

    /// Where a CQ lies. From now on libmlx5 leaves it to us.
    ///
    /// # Safety
    /// The CQ is libmlx5's, and not destroyed.
    pub unsafe fn cq(&self, cq: NonNull<ibv_cq>) -> Result<CqLayout, i32> {
        // SAFETY: a structure of integers and pointers; `comp_mask` 0 asks for the first fields.
        let mut out: sys::mlx5dv_cq = unsafe { zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { zeroed() };
        (obj.cq.in_, obj.cq.out) = (cq.as_ptr(), &mut out);
        // SAFETY: the caller's promise; both pointers are good until the call ends.
        match unsafe { self.0.mlx5dv_init_obj(&mut obj, sys::MLX5DV_OBJ_CQ.into()) } {
            0 => Ok(CqLayout {
                dbr: out.dbrec as u64,
                ring: out.buf as u64,
                cqes: out.cqe_cnt,
                cqe_bytes: out.cqe_size,
            }),
            code => Err(code),
        }
    }

    /// Where device memory is mapped, and its length as allocated.
    ///
    /// # Safety
    /// The memory is libmlx5's, and not freed.
    pub unsafe fn dm(&self, dm: NonNull<ibv_dm>) -> Result<(u64, u64), i32> {
        // SAFETY: a structure of integers and pointers; `comp_mask` 0 asks for the first fields.
        let mut out: sys::mlx5dv_dm = unsafe { zeroed() };
        // SAFETY: as above.
        let mut obj: sys::mlx5dv_obj = unsafe { zeroed() };
        (obj.dm.in_, obj.dm.out) = (dm.as_ptr(), &mut out);
        // SAFETY: the caller's promise; both pointers are good until the call ends.
        match unsafe { self.0.mlx5dv_init_obj(&mut obj, sys::MLX5DV_OBJ_DM.into()) } {
            0 => Ok((out.buf as u64, out.length)),
            code => Err(code),
        }
    }
}
