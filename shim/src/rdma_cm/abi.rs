//! Structs of the kernel's ABI of `/dev/infiniband/rdma_cm`: `rdma/rdma_user_cm.h`, and of
//! `rdma/ib_user_sa.h` what they contain. A command goes by `write`: [`Header`], then its struct.

use bytemuck::{Pod, Zeroable};

use crate::abi::verbs::AhAttr;

/// Version of the ABI.
pub const VERSION: &str = "4";
/// Most private data that the ABI has room for.
pub const MAX_PRIVATE: usize = 256;

/// Commands.
pub mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// Port spaces.
pub mod space {
    pub const IPOIB: u16 = 0x0002;
    pub const IB: u16 = 0x013f;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
}

/// What [`Query`] asks for.
pub mod query {
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
}

/// Options of an identifier: level 0.
pub mod option {
    pub const LEVEL_ID: u32 = 0;
    pub const LEVEL_IB: u32 = 1;
    pub const TOS: u32 = 0;
    pub const REUSEADDR: u32 = 1;
    pub const AFONLY: u32 = 2;
    pub const ACK_TIMEOUT: u32 = 3;
}

/// Bits of [`QpAttr::mask`] (`enum ib_qp_attr_mask`).
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// No number among the devices: they are told apart by their GUIDs.
pub const NO_INDEX: u32 = u32::MAX;
/// The family of InfiniBand's own addresses, and the length of one.
pub const AF_IB: u16 = 27;
pub const SOCKADDR_IB_BYTES: usize = 48;

/// Declares structs of the ABI.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }
    )*};
}
structs! {
    /// What every command begins with: which, and the bytes of its struct and its answer.
    Header { command: u32, input: u16, output: u16, }
    CreateId { uid: u64, response: u64, space: u16, qp_type: u8, reserved: [u8; 5], }
    /// An answer of one number: an identifier, or events that were reported.
    Number { value: u32, }
    DestroyId { response: u64, id: u32, reserved: u32, }
    BindIp { response: u64, addr: [u8; 28], id: u32, }
    Bind { id: u32, size: u16, reserved: u16, addr: [u8; 128], }
    ResolveIp { source: [u8; 28], destination: [u8; 28], id: u32, timeout_ms: u32, }
    ResolveAddr {
        id: u32, timeout_ms: u32, source_size: u16, destination_size: u16, reserved: u32,
        source: [u8; 128], destination: [u8; 128],
    }
    ResolveRoute { id: u32, timeout_ms: u32, }
    Query { response: u64, id: u32, option: u32, }
    PathRec {
        dgid: [u8; 16], sgid: [u8; 16], dlid: u16, slid: u16, raw_traffic: u32, flow_label: u32,
        reversible: u32, mtu: u32, pkey: u16, hop_limit: u8, traffic_class: u8, paths: u8, sl: u8,
        mtu_selector: u8, rate_selector: u8, rate: u8, lifetime_selector: u8, lifetime: u8,
        preference: u8,
    }
    RouteAnswer {
        node_guid: [u8; 8], route: [PathRec; 2], source: [u8; 28], destination: [u8; 28], paths: u32,
        port: u8, reserved: [u8; 3], index: u32, reserved1: u32,
    }
    AddrAnswer {
        node_guid: [u8; 8], port: u8, reserved: u8, pkey: u16, source_size: u16,
        destination_size: u16, source: [u8; 128], destination: [u8; 128], index: u32,
        reserved1: u32,
    }
    /// A path as the subnet's administration words it, behind its flags.
    PathData {
        flags: u32, reserved: u32, service_id: u64, dgid: [u8; 16], sgid: [u8; 16], dlid: u16,
        slid: u16, flow_label_hop_limit: [u8; 4], traffic_class: u8, reversible_paths: u8, pkey: u16,
        qos_sl: u16, mtu: u8, rate: u8, lifetime: u8, preference: u8, reserved1: [u8; 6],
    }
    PathAnswer { paths: u32, reserved: u32, path: PathData, }
    ConnParam {
        qp_num: u32, qkey: u32, private: [u8; MAX_PRIVATE], private_len: u8, srq: u8,
        responder_resources: u8, initiator_depth: u8, flow_control: u8, retry_count: u8,
        rnr_retry_count: u8, valid: u8,
    }
    UdParam {
        qp_num: u32, qkey: u32, ah: AhAttr, private: [u8; MAX_PRIVATE], private_len: u8,
        reserved: [u8; 7],
    }
    /// Enhanced connection establishment: options of a vendor, of which there are none.
    Ece { vendor_id: u32, attr_mod: u32, }
    Connect { param: ConnParam, id: u32, reserved: u32, ece: Ece, }
    Listen { id: u32, backlog: u32, }
    Accept { uid: u64, param: ConnParam, id: u32, reserved: u32, ece: Ece, }
    Reject { id: u32, private_len: u8, reason: u8, reserved: [u8; 2], private: [u8; MAX_PRIVATE], }
    Disconnect { id: u32, }
    InitQpAttr { response: u64, id: u32, state: u32, }
    QpAttr {
        mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, ah: AhAttr,
        alt_ah: AhAttr, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32, pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8,
        sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8,
        timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8,
        reserved: [u8; 5],
    }
    Notify { id: u32, event: u32, }
    GetEvent { response: u64, }
    /// An event: `param` holds a [`UdParam`] or, in its first bytes, a [`ConnParam`].
    EventAnswer {
        uid: u64, id: u32, event: u32, status: i32, param: UdParam, reserved: u32, ece: Ece,
    }
    SetOption { value: u64, id: u32, level: u32, name: u32, bytes: u32, }
    MigrateId { response: u64, id: u32, fd: u32, }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn structs_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<PathRec>(), 64);
        assert_eq!((size_of::<RouteAnswer>(), offset_of!(RouteAnswer, index)), (208, 200));
        assert_eq!((size_of::<AddrAnswer>(), offset_of!(AddrAnswer, index)), (280, 272));
        assert_eq!(size_of::<PathData>(), 72);
        assert_eq!((size_of::<ConnParam>(), size_of::<UdParam>()), (272, 304));
        assert_eq!((size_of::<Connect>(), size_of::<Accept>()), (288, 296));
        assert_eq!((size_of::<EventAnswer>(), offset_of!(EventAnswer, ece)), (336, 328));
        assert_eq!((size_of::<ResolveAddr>(), size_of::<ResolveIp>()), (272, 64));
        assert_eq!((size_of::<BindIp>(), size_of::<Bind>()), (40, 136));
        assert_eq!((size_of::<QpAttr>(), size_of::<Reject>()), (144, 264));
    }
}
