//! Structs of the mlx5 driver (`mlx5-abi.h`).

#![allow(missing_docs)] // the header's names

use bytemuck::{Pod, Zeroable};

/// `struct mlx5_ib_alloc_ucontext_req_v2`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AllocUcontextReq {
    pub total_num_bfregs: u32,
    pub num_low_latency_bfregs: u32,
    pub flags: u32,
    pub comp_mask: u32,
    pub max_cqe_version: u8,
    pub reserved: [u8; 7],
    pub lib_caps: u64,
}

/// `MLX5_LIB_CAP_DYN_UAR`: the library allocates UARs as objects.
pub const LIB_CAP_DYN_UAR: u64 = 1 << 1;

/// `struct mlx5_ib_alloc_ucontext_resp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AllocUcontextResp {
    pub qp_tab_size: u32,
    pub bf_reg_size: u32,
    pub tot_bfregs: u32,
    pub cache_line_size: u32,
    pub max_sq_desc_sz: u16,
    pub max_rq_desc_sz: u16,
    pub max_send_wqebb: u32,
    pub max_recv_wr: u32,
    pub max_srq_recv_wr: u32,
    pub num_ports: u16,
    pub flow_action_flags: u16,
    pub comp_mask: u32,
    pub response_length: u32,
    pub cqe_version: u8,
    pub cmds_supp_uhw: u8,
    pub eth_min_inline: u8,
    pub clock_info_versions: u8,
    pub hca_core_clock_offset: u64,
    pub log_uar_size: u32,
    pub num_uars_per_page: u32,
    pub num_dyn_bfregs: u32,
    pub dump_fill_mkey: u32,
}

/// `MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS`.
pub const UCONTEXT_SQD2RTS: u32 = 1 << 3;
/// `MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE` and `_CREATE_AH`.
pub const CMDS_SUPP_UHW: u8 = 3;
/// `MLX5_USER_INLINE_MODE_NONE`.
pub const INLINE_MODE_NONE: u8 = 1;

/// `struct mlx5_ib_query_device_resp`, of which all but the length, the flags and the streams is 0: the
/// caps are those of raw packets, compression and pacing.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct QueryDeviceResp {
    pub comp_mask: u32,
    pub response_length: u32,
    /// Of TSO, receive hashing, compressed CQEs, packet pacing and multi-packet WQEs.
    pub caps: [u32; 13],
    pub flags: u32,
    /// Of parsing and striding receive queues.
    pub receive_caps: [u32; 8],
    pub tunnel_offloads_caps: u32,
    pub dci_streams_caps: [u8; 2],
    pub reserved: u16,
}

/// `MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD`.
pub const QUERY_DEV_CQE_128B_PAD: u32 = 1 << 1;

/// `struct mlx5_ib_create_cq`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CreateCq {
    pub buf_addr: u64,
    pub db_addr: u64,
    pub cqe_size: u32,
    pub cqe_comp_en: u8,
    pub cqe_comp_res_format: u8,
    pub flags: u16,
    pub uar_page_index: u16,
    pub reserved0: u16,
    pub reserved1: u32,
}

/// `MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD`.
pub const CREATE_CQ_CQE_128B_PAD: u16 = 1 << 0;
/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`.
pub const CREATE_CQ_UAR_PAGE_INDEX: u16 = 1 << 1;

/// `struct mlx5_ib_resize_cq`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct ResizeCq {
    pub buf_addr: u64,
    pub cqe_size: u16,
    pub reserved0: u16,
    pub reserved1: u32,
}

/// `struct mlx5_ib_create_qp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CreateQp {
    pub buf_addr: u64,
    pub db_addr: u64,
    pub sq_wqe_count: u32,
    pub rq_wqe_count: u32,
    pub rq_wqe_shift: u32,
    pub flags: u32,
    pub uidx: u32,
    pub bfreg_index: u32,
    /// Of a DC target its access key; of raw packets the send queue's address.
    pub access_key: u64,
    pub ece_options: u32,
    /// Logarithms of its streams, and of those that may be in error.
    pub dci_streams: [u8; 2],
    pub reserved: u16,
}

/// `MLX5_QP_FLAG_SCATTER_CQE`: a wish that need not be granted.
pub const QP_FLAG_SCATTER_CQE: u32 = 1 << 1;
/// `MLX5_QP_FLAG_BFREG_INDEX`.
pub const QP_FLAG_BFREG_INDEX: u32 = 1 << 3;
/// `MLX5_QP_FLAG_ALLOW_SCATTER_CQE`.
pub const QP_FLAG_ALLOW_SCATTER_CQE: u32 = 1 << 8;
/// `MLX5_QP_FLAG_TYPE_DCT`.
pub const QP_FLAG_TYPE_DCT: u32 = 1 << 4;
/// `MLX5_QP_FLAG_TYPE_DCI`.
pub const QP_FLAG_TYPE_DCI: u32 = 1 << 5;
/// `MLX5_QP_FLAG_DCI_STREAM`.
pub const QP_FLAG_DCI_STREAM: u32 = 1 << 11;
/// `MLX5_QP_FLAG_UAR_PAGE_INDEX`.
pub const QP_FLAG_UAR_PAGE_INDEX: u32 = 1 << 10;

/// `struct mlx5_ib_create_qp_resp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CreateQpResp {
    pub bfreg_index: u32,
    pub ece_options: u32,
    pub comp_mask: u32,
    pub tirn: u32,
    pub tisn: u32,
    pub rqn: u32,
    pub sqn: u32,
    pub reserved1: u32,
    pub tir_icm_addr: u64,
}

/// `struct mlx5_ib_create_srq`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CreateSrq {
    pub buf_addr: u64,
    pub db_addr: u64,
    pub flags: u32,
    pub reserved0: u32,
    pub uidx: u32,
    pub reserved1: u32,
}

/// `struct mlx5_ib_create_ah_resp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CreateAhResp {
    pub response_length: u32,
    pub dmac: [u8; 6],
    pub reserved: [u8; 6],
}

/// `struct mlx5_ib_clock_info`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct ClockInfo {
    pub sign: u32,
    pub resv: u32,
    pub nsec: u64,
    pub cycles: u64,
    pub frac: u64,
    pub mult: u32,
    pub shift: u32,
    pub mask: u64,
    pub overflow_period: u64,
}

/// `1 << MLX5_IB_CLOCK_INFO_V1`.
pub const CLOCK_INFO_VERSIONS: u8 = 1;
/// `MLX5_IB_MMAP_CLOCK_INFO`: command of a mapping of the clock's page.
pub const MMAP_CLOCK_INFO: u64 = 7;
/// `MLX5_IB_MMAP_DEVICE_MEM`: command of a mapping of device memory.
pub const MMAP_DEVICE_MEM: u64 = 8;

const _: () = {
    assert!(size_of::<AllocUcontextReq>() == 32 && size_of::<AllocUcontextResp>() == 72);
    assert!(size_of::<QueryDeviceResp>() == 104);
    assert!(size_of::<CreateCq>() == 32 && size_of::<CreateSrq>() == 32);
    assert!(size_of::<CreateQp>() == 56 && size_of::<CreateQpResp>() == 40);
    assert!(size_of::<CreateAhResp>() == 16);
};
