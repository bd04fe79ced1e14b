//! Numbers of objects, methods, attributes and commands (`ib_user_ioctl_cmds.h`,
//! `mlx5_user_ioctl_cmds.h`, `ib_user_verbs.h`).

/// `RDMA_IOCTL_MAGIC` (`rdma_user_ioctl_cmds.h`).
pub const IOCTL_MAGIC: u64 = 0x1b;
/// `RDMA_VERBS_IOCTL`, `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
pub const VERBS_IOCTL: u64 = 0xc018_1b01;

/// `UVERBS_ATTR_UHW_IN`: the driver's part of a command.
pub const UHW_IN: u16 = 0x1000;
/// `UVERBS_ATTR_UHW_OUT`: the driver's part of a response.
pub const UHW_OUT: u16 = 0x1001;

/// `enum uverbs_default_objects` and `enum mlx5_ib_objects`.
pub mod object {
    #![allow(missing_docs)] // the headers' names
    pub const DEVICE: u16 = 0;
    pub const PD: u16 = 1;
    pub const CQ: u16 = 3;
    pub const QP: u16 = 4;
    pub const SRQ: u16 = 5;
    pub const AH: u16 = 6;
    pub const MR: u16 = 7;
    pub const MW: u16 = 8;
    pub const XRCD: u16 = 10;
    pub const DM: u16 = 14;
    pub const ASYNC_EVENT: u16 = 16;
    pub const DEVX: u16 = 0x1000;
    pub const DEVX_OBJ: u16 = 0x1001;
    pub const DEVX_UMEM: u16 = 0x1002;
    pub const DEVX_EVENTS: u16 = 0x1005;
    pub const UAR: u16 = 0x1008;
}

/// Methods of objects.
pub mod method {
    #![allow(missing_docs)] // the headers' names
    pub const INVOKE_WRITE: u16 = 0;
    pub const QUERY_PORT: u16 = 2;
    pub const GET_CONTEXT: u16 = 3;
    pub const QUERY_CONTEXT: u16 = 4;
    pub const QUERY_GID_TABLE: u16 = 5;
    pub const QUERY_GID_ENTRY: u16 = 6;
    /// `MLX5_IB_METHOD_QUERY_PORT`.
    pub const QUERY_SWITCH_PORT: u16 = 0x1000;
    pub const PD_DESTROY: u16 = 0;
    /// `MLX5_IB_METHOD_PD_QUERY`.
    pub const PD_QUERY: u16 = 0x1000;
    pub const AH_DESTROY: u16 = 0;
    pub const MW_DESTROY: u16 = 0;
    pub const XRCD_DESTROY: u16 = 0;
    pub const CREATE: u16 = 0;
    pub const DESTROY: u16 = 1;
    pub const DM_MR_REG: u16 = 0;
    pub const MR_DESTROY: u16 = 1;
    pub const ADVISE_MR: u16 = 2;
    pub const QUERY_MR: u16 = 3;
    pub const DM_ALLOC: u16 = 0;
    pub const DM_FREE: u16 = 1;
    pub const DM_QUERY: u16 = 0x1001;
    pub const ASYNC_EVENT_ALLOC: u16 = 0;
    pub const DEVX_OTHER: u16 = 0x1000;
    pub const DEVX_QUERY_UAR: u16 = 0x1001;
    pub const DEVX_QUERY_EQN: u16 = 0x1002;
    pub const DEVX_SUBSCRIBE: u16 = 0x1003;
    pub const DEVX_EVENTS_ALLOC: u16 = 0x1000;
    pub const DEVX_OBJ_CREATE: u16 = 0x1000;
    pub const DEVX_OBJ_DESTROY: u16 = 0x1001;
    pub const DEVX_OBJ_MODIFY: u16 = 0x1002;
    pub const DEVX_OBJ_QUERY: u16 = 0x1003;
    pub const DEVX_UMEM_REG: u16 = 0x1000;
    pub const DEVX_UMEM_DEREG: u16 = 0x1001;
    pub const UAR_ALLOC: u16 = 0x1000;
    pub const UAR_DESTROY: u16 = 0x1001;
}

/// Attributes of methods.
pub mod attr {
    #![allow(missing_docs)] // the headers' names
    pub const CORE_IN: u16 = 0;
    pub const CORE_OUT: u16 = 1;
    pub const WRITE_CMD: u16 = 2;

    pub const QUERY_PORT_PORT_NUM: u16 = 0;
    pub const QUERY_PORT_RESP: u16 = 1;
    /// `MLX5_IB_ATTR_QUERY_PORT_PORT_NUM`.
    pub const QUERY_SWITCH_PORT_NUM: u16 = 0x1000;
    /// `MLX5_IB_ATTR_QUERY_PORT`.
    pub const QUERY_SWITCH_PORT_RESP: u16 = 0x1001;
    pub const GET_CONTEXT_NUM_COMP_VECTORS: u16 = 0;
    pub const GET_CONTEXT_CORE_SUPPORT: u16 = 1;
    /// `MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX`.
    pub const QUERY_CONTEXT_RESP_UCTX: u16 = 0x1000;
    pub const GID_TABLE_ENTRY_SIZE: u16 = 0;
    pub const GID_TABLE_FLAGS: u16 = 1;
    pub const GID_TABLE_RESP_ENTRIES: u16 = 2;
    pub const GID_TABLE_RESP_NUM_ENTRIES: u16 = 3;
    pub const GID_ENTRY_PORT: u16 = 0;
    pub const GID_ENTRY_GID_INDEX: u16 = 1;
    pub const GID_ENTRY_FLAGS: u16 = 2;
    pub const GID_ENTRY_RESP_ENTRY: u16 = 3;

    /// Of every destroying method without a response, and the first of those with one.
    pub const DESTROY_HANDLE: u16 = 0;
    pub const DESTROY_RESP: u16 = 1;

    pub const PD_QUERY_HANDLE: u16 = 0x1000;
    pub const PD_QUERY_RESP_PDN: u16 = 0x1001;

    pub const CREATE_CQ_HANDLE: u16 = 0;
    pub const CREATE_CQ_CQE: u16 = 1;
    pub const CREATE_CQ_USER_HANDLE: u16 = 2;
    pub const CREATE_CQ_COMP_CHANNEL: u16 = 3;
    pub const CREATE_CQ_COMP_VECTOR: u16 = 4;
    pub const CREATE_CQ_FLAGS: u16 = 5;
    pub const CREATE_CQ_RESP_CQE: u16 = 6;
    pub const CREATE_CQ_EVENT_FD: u16 = 7;

    pub const CREATE_QP_HANDLE: u16 = 0;
    pub const CREATE_QP_XRCD_HANDLE: u16 = 1;
    pub const CREATE_QP_PD_HANDLE: u16 = 2;
    pub const CREATE_QP_SRQ_HANDLE: u16 = 3;
    pub const CREATE_QP_SEND_CQ_HANDLE: u16 = 4;
    pub const CREATE_QP_RECV_CQ_HANDLE: u16 = 5;
    pub const CREATE_QP_USER_HANDLE: u16 = 7;
    pub const CREATE_QP_CAP: u16 = 8;
    pub const CREATE_QP_TYPE: u16 = 9;
    pub const CREATE_QP_FLAGS: u16 = 10;
    pub const CREATE_QP_EVENT_FD: u16 = 12;
    pub const CREATE_QP_RESP_CAP: u16 = 13;
    pub const CREATE_QP_RESP_QP_NUM: u16 = 14;

    pub const CREATE_SRQ_HANDLE: u16 = 0;
    pub const CREATE_SRQ_PD_HANDLE: u16 = 1;
    pub const CREATE_SRQ_XRCD_HANDLE: u16 = 2;
    pub const CREATE_SRQ_CQ_HANDLE: u16 = 3;
    pub const CREATE_SRQ_USER_HANDLE: u16 = 4;
    pub const CREATE_SRQ_MAX_WR: u16 = 5;
    pub const CREATE_SRQ_MAX_SGE: u16 = 6;
    pub const CREATE_SRQ_LIMIT: u16 = 7;
    pub const CREATE_SRQ_MAX_NUM_TAGS: u16 = 8;
    pub const CREATE_SRQ_TYPE: u16 = 9;
    pub const CREATE_SRQ_EVENT_FD: u16 = 10;
    pub const CREATE_SRQ_RESP_MAX_WR: u16 = 11;
    pub const CREATE_SRQ_RESP_MAX_SGE: u16 = 12;
    pub const CREATE_SRQ_RESP_SRQ_NUM: u16 = 13;

    pub const ALLOC_DM_HANDLE: u16 = 0;
    pub const ALLOC_DM_LENGTH: u16 = 1;
    pub const ALLOC_DM_ALIGNMENT: u16 = 2;
    pub const ALLOC_DM_RESP_START_OFFSET: u16 = 0x1000;
    pub const ALLOC_DM_RESP_PAGE_INDEX: u16 = 0x1001;
    pub const ALLOC_DM_REQ_TYPE: u16 = 0x1002;
    pub const QUERY_DM_REQ_HANDLE: u16 = 0x1000;
    pub const QUERY_DM_RESP_START_OFFSET: u16 = 0x1001;
    pub const QUERY_DM_RESP_PAGE_INDEX: u16 = 0x1002;
    pub const QUERY_DM_RESP_LENGTH: u16 = 0x1003;

    pub const REG_DM_MR_HANDLE: u16 = 0;
    pub const REG_DM_MR_OFFSET: u16 = 1;
    pub const REG_DM_MR_LENGTH: u16 = 2;
    pub const REG_DM_MR_PD_HANDLE: u16 = 3;
    pub const REG_DM_MR_ACCESS_FLAGS: u16 = 4;
    pub const REG_DM_MR_DM_HANDLE: u16 = 5;
    pub const REG_DM_MR_RESP_LKEY: u16 = 6;
    pub const REG_DM_MR_RESP_RKEY: u16 = 7;

    pub const ADVISE_MR_PD_HANDLE: u16 = 0;
    pub const ADVISE_MR_ADVICE: u16 = 1;
    pub const ADVISE_MR_FLAGS: u16 = 2;
    pub const ADVISE_MR_SGE_LIST: u16 = 3;

    pub const QUERY_MR_HANDLE: u16 = 0;
    pub const QUERY_MR_RESP_LKEY: u16 = 1;
    pub const QUERY_MR_RESP_RKEY: u16 = 2;
    pub const QUERY_MR_RESP_LENGTH: u16 = 3;
    pub const QUERY_MR_RESP_IOVA: u16 = 4;

    pub const ASYNC_EVENT_FD_HANDLE: u16 = 0;

    pub const UAR_ALLOC_HANDLE: u16 = 0x1000;
    pub const UAR_ALLOC_TYPE: u16 = 0x1001;
    pub const UAR_ALLOC_MMAP_OFFSET: u16 = 0x1002;
    pub const UAR_ALLOC_MMAP_LENGTH: u16 = 0x1003;
    pub const UAR_ALLOC_PAGE_ID: u16 = 0x1004;
    pub const UAR_DESTROY_HANDLE: u16 = 0x1000;

    pub const DEVX_OTHER_CMD_IN: u16 = 0x1000;
    pub const DEVX_OTHER_CMD_OUT: u16 = 0x1001;
    pub const DEVX_QUERY_UAR_USER_IDX: u16 = 0x1000;
    pub const DEVX_QUERY_UAR_DEV_IDX: u16 = 0x1001;
    pub const DEVX_QUERY_EQN_USER_VEC: u16 = 0x1000;
    pub const DEVX_QUERY_EQN_DEV_EQN: u16 = 0x1001;
    pub const DEVX_SUBSCRIBE_FD_HANDLE: u16 = 0x1000;
    pub const DEVX_SUBSCRIBE_OBJ_HANDLE: u16 = 0x1001;
    pub const DEVX_SUBSCRIBE_TYPES: u16 = 0x1002;
    pub const DEVX_SUBSCRIBE_FD_NUM: u16 = 0x1003;
    pub const DEVX_SUBSCRIBE_COOKIE: u16 = 0x1004;
    pub const DEVX_EVENT_FD_HANDLE: u16 = 0x1000;
    pub const DEVX_EVENT_FD_FLAGS: u16 = 0x1001;
    pub const DEVX_OBJ_CREATE_HANDLE: u16 = 0x1000;
    pub const DEVX_OBJ_CREATE_CMD_IN: u16 = 0x1001;
    pub const DEVX_OBJ_CREATE_CMD_OUT: u16 = 0x1002;
    /// Of the destroying, the modifying and the querying method.
    pub const DEVX_OBJ_HANDLE: u16 = 0x1000;
    pub const DEVX_OBJ_MODIFY_CMD_IN: u16 = 0x1001;
    pub const DEVX_OBJ_MODIFY_CMD_OUT: u16 = 0x1002;
    pub const DEVX_OBJ_QUERY_CMD_IN: u16 = 0x1001;
    pub const DEVX_OBJ_QUERY_CMD_OUT: u16 = 0x1002;
    pub const DEVX_UMEM_REG_HANDLE: u16 = 0x1000;
    pub const DEVX_UMEM_REG_ADDR: u16 = 0x1001;
    pub const DEVX_UMEM_REG_LEN: u16 = 0x1002;
    pub const DEVX_UMEM_REG_ACCESS: u16 = 0x1003;
    pub const DEVX_UMEM_REG_OUT_ID: u16 = 0x1004;
    pub const DEVX_UMEM_REG_PGSZ_BITMAP: u16 = 0x1005;
    pub const DEVX_UMEM_REG_DMABUF_FD: u16 = 0x1006;
    pub const DEVX_UMEM_DEREG_HANDLE: u16 = 0x1000;
}

/// `enum ib_uverbs_write_cmds`; extended ones have [`EXTENDED`] set.
pub mod command {
    #![allow(missing_docs)] // the headers' names
    /// `IB_USER_VERBS_CMD_FLAG_EXTENDED`.
    pub const EXTENDED: u32 = 0x8000_0000;
    pub const QUERY_DEVICE: u32 = 1;
    pub const ALLOC_PD: u32 = 3;
    pub const CREATE_AH: u32 = 5;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const ALLOC_MW: u32 = 14;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const RESIZE_CQ: u32 = 19;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const OPEN_XRCD: u32 = 37;
    pub const EX_QUERY_DEVICE: u32 = EXTENDED | QUERY_DEVICE;
    pub const EX_MODIFY_QP: u32 = EXTENDED | MODIFY_QP;
    pub const EX_MODIFY_CQ: u32 = EXTENDED | 57;
}
