//! Mailboxes of device commands (mlx5 PRM, "Command Reference"): big-endian structs, whose fields
//! are named by where they lie. Names and places are those of `mlx5_ifc.h`.

/// A field: its first bit within its struct, counted from the most significant bit of the first
/// byte, and its width of at most 64 bits. None crosses a boundary of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    bit: usize,
    bits: usize,
}

/// The field at a byte, the bit below that byte's most significant one, and its width.
pub const fn field(byte: usize, bit: usize, bits: usize) -> Field {
    Field { bit: byte * 8 + bit, bits }
}

impl Field {
    /// The field of a struct that lies so many bytes into another.
    pub const fn within(self, bytes: usize) -> Self {
        Self { bit: self.bit + bytes * 8, bits: self.bits }
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Where the 64 bits that hold the field begin, and how far it lies from their end.
    fn place(self) -> (usize, usize) {
        let wide = self.bits > 32;
        let unit = if wide { 64 } else { 32 };
        let byte = self.bit / 32 * 4;
        (byte, unit - (self.bit - byte * 8) - self.bits)
    }
}

/// A command's mailbox, or its answer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox(Vec<u8>);

impl Mailbox {
    /// Bytes as a program gave them, already copied.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// An answer of so many zero bytes.
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A field's value; bytes that the mailbox does not have are 0.
    pub fn get(&self, field: Field) -> u64 {
        let (byte, shift) = field.place();
        let unit = if field.bits > 32 { 8 } else { 4 };
        let have = |at| u64::from(self.0.get(at).copied().unwrap_or(0));
        let word = (byte..byte + unit).fold(0, |word, at| word << 8 | have(at));
        word >> shift & field.mask()
    }

    /// A field of at most 32 bits.
    pub fn word(&self, field: Field) -> u32 {
        self.get(field) as u32
    }

    /// A field of one bit.
    pub fn flag(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    /// The 16 bytes at an offset.
    pub fn gid(&self, byte: usize) -> [u8; 16] {
        std::array::from_fn(|i| self.0.get(byte + i).copied().unwrap_or(0))
    }

    /// Sets a field; what lies behind the mailbox's end is left out.
    pub fn set(&mut self, field: Field, value: u64) {
        let (byte, shift) = field.place();
        let unit = if field.bits > 32 { 8 } else { 4 };
        let (clear, bits) = (field.mask() << shift, (value & field.mask()) << shift);
        for (i, at) in (byte..byte + unit).enumerate() {
            let down = (unit - 1 - i) * 8;
            if let Some(slot) = self.0.get_mut(at) {
                *slot = *slot & !((clear >> down) as u8) | (bits >> down) as u8;
            }
        }
    }

    /// Sets 16 bytes at an offset.
    pub fn set_gid(&mut self, byte: usize, gid: [u8; 16]) {
        for (i, value) in gid.into_iter().enumerate() {
            if let Some(slot) = self.0.get_mut(byte + i) {
                *slot = value;
            }
        }
    }
}

/// Headers of all commands and answers.
pub mod header {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    pub const OPCODE: Field = field(0, 0, 16);
    pub const OP_MOD: Field = field(6, 0, 16);
    /// The object that a command names: QPN, CQN or mkey index.
    pub const NUMBER: Field = field(9, 0, 24);
    pub const STATUS: Field = field(0, 0, 8);
    pub const SYNDROME: Field = field(4, 0, 32);
    pub const OUT_BYTES: usize = 16;
}

/// `enum mlx5_cmd_op`: `MLX5_CMD_OP_*`.
pub mod op {
    #![allow(missing_docs)] // the header's names
    pub const QUERY_HCA_CAP: u16 = 0x100;
    pub const CREATE_MKEY: u16 = 0x200;
    pub const CREATE_CQ: u16 = 0x400;
    pub const CREATE_QP: u16 = 0x500;
    pub const CREATE_DCT: u16 = 0x710;
    pub const CREATE_XRQ: u16 = 0x717;
    pub const CREATE_RMP: u16 = 0x90c;
    pub const CREATE_GENERAL_OBJECT: u16 = 0xa00;
    pub const MODIFY_GENERAL_OBJECT: u16 = 0xa01;
    pub const RST2INIT_QP: u16 = 0x502;
    pub const INIT2RTR_QP: u16 = 0x503;
    pub const RTR2RTS_QP: u16 = 0x504;
    pub const RTS2RTS_QP: u16 = 0x505;
    pub const QP_2ERR: u16 = 0x507;
    pub const QP_2RST: u16 = 0x50a;
    pub const QUERY_QP: u16 = 0x50b;
    pub const QUERY_ROCE_ADDRESS: u16 = 0x760;
    pub const QUERY_LAG: u16 = 0x842;
    pub const INIT2INIT_QP: u16 = 0x50e;
}

/// `query_roce_address_in`, `query_roce_address_out` and its `roce_addr_layout`.
pub mod roce_address {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    pub const ROCE_ADDRESS_INDEX: Field = field(8, 0, 16);
    pub const VHCA_PORT_NUM: Field = field(0xb, 4, 4);
    pub const OUT_BYTES: usize = SOURCE_L3_ADDRESS + 0x20;
    pub const SOURCE_L3_ADDRESS: usize = super::header::OUT_BYTES;
    pub const ROCE_L3_TYPE: Field = field(0x1a, 4, 4).within(SOURCE_L3_ADDRESS);
    pub const ROCE_VERSION: Field = field(0x1b, 0, 8).within(SOURCE_L3_ADDRESS);
}

/// `create_dct_in` and `dctc`.
pub mod dct {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const DCTC: usize = 0x10;
    pub const IN_BYTES: usize = DCTC + 0x40;
    pub const USER_INDEX: Field = field(5, 0, 24).within(DCTC);
    pub const CQN: Field = field(9, 0, 24).within(DCTC);
    pub const RRE: Field = field(0xd, 4, 1).within(DCTC);
    pub const RWE: Field = field(0xd, 5, 1).within(DCTC);
    pub const RAE: Field = field(0xd, 6, 1).within(DCTC);
    pub const MIN_RNR_NAK: Field = field(0x12, 3, 5).within(DCTC);
    pub const SRQN: Field = field(0x15, 0, 24).within(DCTC);
    pub const PD: Field = field(0x19, 0, 24).within(DCTC);
    pub const TCLASS: Field = field(0x1c, 0, 8).within(DCTC);
    pub const FLOW_LABEL: Field = field(0x1d, 4, 20).within(DCTC);
    pub const DC_ACCESS_KEY: Field = field(0x20, 0, 64).within(DCTC);
    pub const MTU: Field = field(0x28, 5, 3).within(DCTC);
    pub const PORT: Field = field(0x29, 0, 8).within(DCTC);
    pub const PKEY_INDEX: Field = field(0x2a, 0, 16).within(DCTC);
    pub const MY_ADDR_INDEX: Field = field(0x2d, 0, 8).within(DCTC);
    pub const HOP_LIMIT: Field = field(0x2f, 0, 8).within(DCTC);
    pub const DSCP: Field = field(0x37, 2, 6).within(DCTC);
}

/// `create_rmp_in`, `rmpc` and `wq`.
pub mod rmp {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const RMPC: usize = 0x20;
    pub(super) const WQ: usize = RMPC + 0x30;
    pub const IN_BYTES: usize = WQ + 0xc0;
    pub const BASIC_CYCLIC: Field = field(4, 0, 1).within(RMPC);
    pub const WQ_TYPE: Field = field(0, 0, 4).within(WQ);
    pub const PAGE_OFFSET: Field = field(5, 3, 5).within(WQ);
    pub const LWM: Field = field(6, 0, 16).within(WQ);
    pub const PD: Field = field(9, 0, 24).within(WQ);
    pub const DBR_ADDR: Field = field(0x10, 0, 64).within(WQ);
    pub const LOG_WQ_STRIDE: Field = field(0x21, 4, 4).within(WQ);
    pub const LOG_WQ_SZ: Field = field(0x23, 3, 5).within(WQ);
    pub const DBR_UMEM_ID: Field = field(0x28, 0, 32).within(WQ);
    pub const WQ_UMEM_ID: Field = field(0x2c, 0, 32).within(WQ);
    pub const WQ_UMEM_OFFSET: Field = field(0x30, 0, 64).within(WQ);
}

/// `create_xrq_in` and `xrqc`.
pub mod xrq {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const XRQC: usize = 0x10;
    const TOPOLOGY_CONTEXT: usize = XRQC + 0x20;
    const WQ: usize = XRQC + 0x80;
    pub const IN_BYTES: usize = WQ + 0xc0;
    /// How much later its `wq` lies than an RMP's.
    pub const WQ_SHIFT: usize = WQ - super::rmp::WQ;
    pub const TOPOLOGY: Field = field(2, 4, 4).within(XRQC);
    pub const OFFLOAD: Field = field(3, 4, 4).within(XRQC);
    pub const USER_INDEX: Field = field(5, 0, 24).within(XRQC);
    pub const CQN: Field = field(9, 0, 24).within(XRQC);
    pub const DC: Field = field(0xf, 7, 1).within(XRQC);
    pub const LOG_MATCHING_LIST_SZ: Field = field(0, 0, 4).within(TOPOLOGY_CONTEXT);
}

/// `general_obj_in_cmd_hdr`, and the objects that follow it.
pub mod general {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const OBJECT: usize = 0x10;
    pub const OBJ_TYPE: Field = super::header::OP_MOD;
    pub const OBJ_ID: Field = field(8, 0, 32);
    pub const LOG_OBJ_RANGE: Field = field(0xc, 3, 5);
    /// `create_reserved_qpn_in`.
    pub const RESERVED_QPN_BYTES: usize = OBJECT + 0x10;
    /// `create_av_qp_mapping_in`.
    pub const AV_QP_MAPPING_BYTES: usize = AV + 0x30;
    const AV: usize = OBJECT + 0x10;
    pub const QPN: Field = field(0xc, 0, 32).within(OBJECT);
    pub const SRC_ADDR_INDEX: Field = field(0x1c, 4, 8).within(AV);
    pub const RGID_OR_RIP: usize = AV + 0x20;
    /// `create_sched_elem_in`.
    pub const SCHED_ELEM_BYTES: usize = OBJECT + 0x80;
    pub const MODIFY_FIELD_SELECT: Field = field(0, 0, 64).within(OBJECT);
    pub const SCHEDULING_HIERARCHY: Field = field(8, 0, 8).within(OBJECT);
    const SCHED_CONTEXT: usize = OBJECT + 0x20;
    pub const ELEMENT_TYPE: Field = field(0, 0, 8).within(SCHED_CONTEXT);
    pub const TSAR_TYPE: Field = field(5, 0, 8).within(SCHED_CONTEXT);
    pub const PARENT_ELEMENT_ID: Field = field(8, 0, 32).within(SCHED_CONTEXT);
    pub const BW_SHARE: Field = field(0x14, 0, 32).within(SCHED_CONTEXT);
    pub const MAX_AVERAGE_BW: Field = field(0x18, 0, 32).within(SCHED_CONTEXT);
}

/// `create_cq_in` and `cqc`.
pub mod cq {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const CQC: usize = 0x10;
    pub const IN_BYTES: usize = 0x60;
    pub const UMEM_OFFSET: Field = field(0x50, 0, 64);
    pub const UMEM_ID: Field = field(0x58, 0, 32);
    pub const DBR_UMEM_ID: Field = field(4, 0, 32).within(CQC);
    pub const DBR_ADDR: Field = field(0x38, 0, 64).within(CQC);
    pub const CQE_SZ: Field = field(1, 0, 3).within(CQC);
    pub const CC: Field = field(1, 3, 1).within(CQC);
    pub const OI: Field = field(1, 6, 1).within(CQC);
    pub const CQE_COMP_EN: Field = field(2, 1, 1).within(CQC);
    pub const LOG_CQ_SIZE: Field = field(0xc, 3, 5).within(CQC);
    pub const UAR_PAGE: Field = field(0xd, 0, 24).within(CQC);
    pub const C_EQN: Field = field(0x17, 0, 8).within(CQC);
    pub const PAGE_OFFSET: Field = field(0xa, 4, 6).within(CQC);
    pub const CQ_PERIOD: Field = field(0x10, 4, 12).within(CQC);
    pub const CQ_MAX_COUNT: Field = field(0x12, 0, 16).within(CQC);
}

/// `create_qp_in`, the modifying commands, `query_qp_out` (whose `qpc` all lie at the same place),
/// `qpc` and its `ads`.
pub mod qp {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    pub const QPC: usize = 0x18;
    const ADS: usize = QPC + 0x18;
    pub const QPC_BYTES: usize = 0xe8;
    pub const IN_BYTES: usize = 0x110;
    pub const OPT_PARAM_MASK: Field = field(0x10, 0, 32);
    pub const WQ_UMEM_OFFSET: Field = field(0x100, 0, 64);
    pub const WQ_UMEM_ID: Field = field(0x108, 0, 32);
    /// Of INIT2INIT and RTS2RTS, whose `qpc_data_ext` lies behind it.
    pub const OPT_PARAM_MASK_95_32: Field = field(0x108, 0, 64);
    pub const DCI_STREAM_CHANNEL_ID: Field = field(0x112, 0, 16);
    pub const QUEUE_GROUP_REQUESTER: Field = field(0x114, 0, 32);
    pub const QUEUE_GROUP_RESPONDER: Field = field(0x118, 0, 32);
    pub const EXT_END: usize = 0x11c;
    pub const QPC_EXT: Field = field(8, 0, 1);
    pub const STATE: Field = field(0, 0, 4).within(QPC);
    pub const ST: Field = field(1, 0, 8).within(QPC);
    pub const PM_STATE: Field = field(2, 3, 2).within(QPC);
    pub const PD: Field = field(5, 0, 24).within(QPC);
    pub const MTU: Field = field(8, 0, 3).within(QPC);
    pub const LOG_MSG_MAX: Field = field(8, 3, 5).within(QPC);
    pub const LOG_RQ_SIZE: Field = field(9, 1, 4).within(QPC);
    pub const LOG_RQ_STRIDE: Field = field(9, 5, 3).within(QPC);
    pub const NO_SQ: Field = field(0xa, 0, 1).within(QPC);
    pub const LOG_SQ_SIZE: Field = field(0xa, 1, 4).within(QPC);
    pub const UAR_PAGE: Field = field(0xd, 0, 24).within(QPC);
    pub const SEND_DBR_MODE: Field = field(0x10, 0, 2).within(QPC);
    pub const USER_INDEX: Field = field(0x11, 0, 24).within(QPC);
    pub const REMOTE_QPN: Field = field(0x15, 0, 24).within(QPC);
    pub const LOG_SRA_MAX: Field = field(0x71, 0, 3).within(QPC);
    pub const RETRY_COUNT: Field = field(0x71, 5, 3).within(QPC);
    pub const RNR_RETRY: Field = field(0x72, 0, 3).within(QPC);
    pub const NEXT_SEND_PSN: Field = field(0x79, 0, 24).within(QPC);
    pub const CQN_SND: Field = field(0x7d, 0, 24).within(QPC);
    pub const LOG_RRA_MAX: Field = field(0x91, 0, 3).within(QPC);
    pub const RRE: Field = field(0x92, 0, 1).within(QPC);
    pub const RWE: Field = field(0x92, 1, 1).within(QPC);
    pub const RAE: Field = field(0x92, 2, 1).within(QPC);
    pub const PAGE_OFFSET: Field = field(0x92, 4, 6).within(QPC);
    pub const MIN_RNR_NAK: Field = field(0x94, 3, 5).within(QPC);
    pub const NEXT_RCV_PSN: Field = field(0x95, 0, 24).within(QPC);
    pub const CQN_RCV: Field = field(0x9d, 0, 24).within(QPC);
    pub const DBR_ADDR: Field = field(0xa0, 0, 64).within(QPC);
    pub const Q_KEY: Field = field(0xa8, 0, 32).within(QPC);
    pub const RQ_TYPE: Field = field(0xac, 5, 3).within(QPC);
    pub const SRQN: Field = field(0xad, 0, 24).within(QPC);
    pub const DBR_UMEM_ID: Field = field(0xe4, 0, 32).within(QPC);
    pub const PKEY_INDEX: Field = field(2, 0, 16).within(ADS);
    pub const ACK_TIMEOUT: Field = field(8, 0, 5).within(ADS);
    pub const SRC_ADDR_INDEX: Field = field(9, 0, 8).within(ADS);
    pub const HOP_LIMIT: Field = field(0xb, 0, 8).within(ADS);
    pub const TCLASS: Field = field(0xc, 4, 8).within(ADS);
    pub const FLOW_LABEL: Field = field(0xd, 4, 20).within(ADS);
    pub const RGID: usize = ADS + 0x10;
    pub const DSCP: Field = field(0x21, 2, 6).within(ADS);
    pub const UDP_SPORT: Field = field(0x22, 0, 16).within(ADS);
    pub const VHCA_PORT_NUM: Field = field(0x25, 0, 8).within(ADS);
}

/// `create_mkey_in` and `mkc`.
pub mod mkey {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const MKC: usize = 0x10;
    pub const IN_BYTES: usize = 0x110;
    pub const UMEM_ID: Field = field(0x64, 0, 32);
    pub const UMEM_OFFSET: Field = field(0x68, 0, 64);
    pub const FREE: Field = field(0, 1, 1).within(MKC);
    pub const ACCESS_MODE_4_2: Field = field(0, 3, 3).within(MKC);
    pub const RELAXED_WRITE: Field = field(1, 5, 1).within(MKC);
    pub const UMR_EN: Field = field(2, 0, 1).within(MKC);
    pub const A: Field = field(2, 1, 1).within(MKC);
    pub const RW: Field = field(2, 2, 1).within(MKC);
    pub const RR: Field = field(2, 3, 1).within(MKC);
    pub const LW: Field = field(2, 4, 1).within(MKC);
    pub const LR: Field = field(2, 5, 1).within(MKC);
    pub const ACCESS_MODE_1_0: Field = field(2, 6, 2).within(MKC);
    pub const QPN: Field = field(4, 0, 24).within(MKC);
    pub const MKEY_7_0: Field = field(7, 0, 8).within(MKC);
    pub const LENGTH64: Field = field(0xc, 0, 1).within(MKC);
    pub const BSF_EN: Field = field(0xc, 1, 1).within(MKC);
    pub const EN_RINVAL: Field = field(0xc, 7, 1).within(MKC);
    pub const PD: Field = field(0xd, 0, 24).within(MKC);
    pub const START_ADDR: Field = field(0x10, 0, 64).within(MKC);
    pub const LEN: Field = field(0x18, 0, 64).within(MKC);
    pub const TRANSLATIONS_OCTWORD_SIZE: Field = field(0x34, 0, 32).within(MKC);
    pub const LOG_ENTITY_SIZE: Field = field(0x3b, 3, 5).within(MKC);
    pub const INPUT_MKEY_INDEX: Field = field(9, 0, 24);
    pub const TRANSLATIONS_OCTWORD_ACTUAL_SIZE: Field = field(0x60, 0, 32);
    // klm_pas_mtt: entries of 16 bytes behind IN_BYTES
    pub const KLM_BYTES: usize = 16;
    pub const KLM_MKEY: Field = field(4, 0, 32);
    pub const KLM_ADDRESS: Field = field(8, 0, 64);
}

/// `query_hca_cap_out`: the capabilities' structs lie behind the header.
pub mod cap {
    #![allow(missing_docs)] // the header's names
    use super::{Field, field};
    const AT: usize = super::header::OUT_BYTES;
    // qos_cap
    pub const NIC_BW_SHARE: Field = field(1, 1, 1).within(AT);
    pub const NIC_RATE_LIMIT: Field = field(1, 2, 1).within(AT);
    pub const NIC_SQ_SCHEDULING: Field = field(1, 0, 1).within(AT);
    pub const NIC_QP_SCHEDULING: Field = field(4, 1, 1).within(AT);
    pub const NIC_ELEMENT_TYPE: Field = field(0x20, 0, 16).within(AT);
    pub const NIC_TSAR_TYPE: Field = field(0x22, 0, 16).within(AT);
    // cmd_hca_cap_2
    pub const LOG_RESERVED_QPN_GRANULARITY: Field = field(0x12, 3, 5).within(AT);
    // roce_cap
    pub const ROCE_L3_TYPE: Field = field(0x11, 4, 4).within(AT);
    pub const ROCE_VERSION: Field = field(0x13, 0, 8).within(AT);
    pub const R_ROCE_DEST_UDP_PORT: Field = field(0x16, 0, 16).within(AT);
    pub const R_ROCE_MAX_SRC_UDP_PORT: Field = field(0x18, 0, 16).within(AT);
    pub const R_ROCE_MIN_SRC_UDP_PORT: Field = field(0x1a, 0, 16).within(AT);
    pub const ROCE_ADDRESS_TABLE_SIZE: Field = field(0x1e, 0, 16).within(AT);
    // cmd_hca_cap
    pub const HCA_CAP_2: Field = field(4, 0, 1).within(AT);
    pub const GENERAL_OBJ_TYPES: Field = field(0x80, 0, 64).within(AT);
    pub const LOG_MAX_SRQ_SZ: Field = field(0x10, 0, 8).within(AT);
    pub const LOG_MAX_QP_SZ: Field = field(0x11, 0, 8).within(AT);
    pub const LOG_MAX_QP: Field = field(0x13, 3, 5).within(AT);
    pub const LOG_MAX_SRQ: Field = field(0x15, 3, 5).within(AT);
    pub const LOG_MAX_CQ_SZ: Field = field(0x19, 0, 8).within(AT);
    pub const LOG_MAX_CQ: Field = field(0x1b, 3, 5).within(AT);
    pub const LOG_MAX_MKEY: Field = field(0x1d, 2, 6).within(AT);
    pub const FIXED_BUFFER_SIZE: Field = field(0x21, 0, 1).within(AT);
    pub const LOG_MAX_RA_REQ_QP: Field = field(0x29, 2, 6).within(AT);
    pub const LOG_MAX_RA_RES_QP: Field = field(0x2b, 2, 6).within(AT);
    pub const LOG_MAX_RA_REQ_DC: Field = field(0x25, 2, 6).within(AT);
    pub const LOG_MAX_RA_RES_DC: Field = field(0x27, 2, 6).within(AT);
    pub const LOG_DMA_MMO_MAX_SIZE: Field = field(0xd, 3, 5).within(AT);
    pub const QPC_EXTENSION: Field = field(0x24, 2, 1).within(AT);
    pub const RTS2RTS_QP_UDP_SPORT: Field = field(0x2a, 1, 1).within(AT);
    pub const DMA_MMO_SQ: Field = field(0x2a, 3, 1).within(AT);
    pub const DCT: Field = field(0x43, 2, 1).within(AT);
    pub const MAX_WQE_SZ_SQ_DC: Field = field(0x5a, 0, 16).within(AT);
    pub const PORT_TYPE: Field = field(0x36, 6, 2).within(AT);
    pub const NUM_PORTS: Field = field(0x37, 0, 8).within(AT);
    pub const LOG_MAX_MSG: Field = field(0x38, 3, 5).within(AT);
    pub const CQE_VERSION: Field = field(0x3f, 4, 4).within(AT);
    pub const QOS: Field = field(0x43, 3, 1).within(AT);
    pub const ROCE: Field = field(0x43, 5, 1).within(AT);
    pub const ATOMIC: Field = field(0x43, 6, 1).within(AT);
    pub const CQ_OI: Field = field(0x44, 0, 1).within(AT);
    pub const UD: Field = field(0x47, 5, 1).within(AT);
    pub const UC: Field = field(0x47, 6, 1).within(AT);
    pub const RC: Field = field(0x47, 7, 1).within(AT);
    pub const UAR_4K: Field = field(0x48, 0, 1).within(AT);
    pub const LOG_PG_SZ: Field = field(0x4b, 0, 8).within(AT);
    pub const LOG_BF_REG_SIZE: Field = field(0x4d, 3, 5).within(AT);
    pub const MAX_WQE_SZ_SQ: Field = field(0x52, 0, 16).within(AT);
    pub const MAX_WQE_SZ_RQ: Field = field(0x56, 0, 16).within(AT);
    pub const LOG_MAX_RMP: Field = field(0x70, 3, 5).within(AT);
    pub const LOG_MAX_PD: Field = field(0x65, 3, 5).within(AT);
    // odp_cap
    pub const ODP_SIG: Field = field(8, 0, 1).within(AT);
    pub const ODP_RC: Field = field(0x10, 0, 32).within(AT);
    pub const ODP_UC: Field = field(0x14, 0, 32).within(AT);
    pub const ODP_UD: Field = field(0x18, 0, 32).within(AT);
    pub const ODP_XRC: Field = field(0x1c, 0, 32).within(AT);
    pub const ODP_DC: Field = field(0x20, 0, 32).within(AT);
    // atomic_caps
    pub const REQ_8B_ENDIANNESS_MODE: Field = field(8, 0, 2).within(AT);
    pub const SUPPORTED_REQ_8B_ENDIANNESS_MODE_1: Field = field(8, 6, 1).within(AT);
    pub const ATOMIC_OPERATIONS: Field = field(0x12, 0, 16).within(AT);
    pub const ATOMIC_SIZE_QP: Field = field(0x16, 0, 16).within(AT);
    pub const ATOMIC_SIZE_DC: Field = field(0x1a, 0, 16).within(AT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_set_and_read_where_they_lie_and_nowhere_else() {
        for background in [0u8, 0xff] {
            for (f, bytes) in [
                (qp::STATE, 0x18..0x19),
                (qp::USER_INDEX, 0x29..0x2c),
                (qp::DBR_ADDR, 0xb8..0xc0),
                (qp::LOG_SQ_SIZE, 0x22..0x23),
                (qp::FLOW_LABEL, 0x3d..0x40),
                (header::NUMBER, 9..12),
            ] {
                let mut mailbox = Mailbox::of(vec![background; qp::IN_BYTES]);
                let value = 0x5a5a_5a5a_5a5a_5a5a & f.mask();
                mailbox.set(f, value);
                assert_eq!(mailbox.get(f), value, "{f:?}");
                let changed = |at: &usize| mailbox.bytes()[*at] != background;
                let first_and_last = (0..mailbox.len()).filter(changed);
                assert!(first_and_last.into_iter().all(|at| bytes.contains(&at)), "{f:?}");
                mailbox.set(f, u64::from(background) * 0x0101_0101_0101_0101);
                assert!(mailbox.bytes().iter().all(|&byte| byte == background), "{f:?}");
            }
        }
    }

    #[test]
    fn what_a_short_mailbox_does_not_say_is_zero() {
        let mut short = Mailbox::of(vec![0xff; 0x20]);
        assert_eq!(short.get(qp::DBR_ADDR), 0);
        assert_eq!(short.get(qp::USER_INDEX), 0);
        short.set(qp::DBR_ADDR, 7);
        assert_eq!(short.bytes(), [0xff; 0x20]);
        assert_eq!(short.gid(0x18)[..8], [0xff; 8]);
        assert_eq!(short.gid(0x18)[8..], [0; 8]);
    }

    #[test]
    fn known_bytes_mean_what_the_manual_says() {
        // RST2INIT_QP of queue pair 0x123456 with RWE, on port 1.
        let mut bytes = vec![0; qp::IN_BYTES];
        bytes[..12].copy_from_slice(&[5, 2, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56]);
        bytes[qp::QPC + 0x92] = 0x40;
        bytes[qp::QPC + 0x18 + 0x25] = 1;
        let mailbox = Mailbox::of(bytes);
        assert_eq!(mailbox.get(header::OPCODE), u64::from(op::RST2INIT_QP));
        assert_eq!(mailbox.get(header::NUMBER), 0x12_3456);
        assert_eq!((mailbox.flag(qp::RRE), mailbox.flag(qp::RWE)), (false, true));
        assert_eq!(mailbox.get(qp::VHCA_PORT_NUM), 1);
    }
}
