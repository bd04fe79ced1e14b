//! What a program and a NIC share (mlx5 PRM, "Send WQE Format", "Completion Queue Entry Format", "Doorbell
//! Record", "UAR Page Format"; libmlx5's `mlx5dv.h`).

use super::{Field, Layout, r8, r32, rest, w8, w16, w32, w64};

const OPCODE_WORDS: [Field; 6] = [
    w32("opmod_idx_opcode.opmod", 0x0, 31, 24),
    w32("opmod_idx_opcode.wqe_index", 0x0, 23, 8),
    w32("opmod_idx_opcode.opcode", 0x0, 7, 0),
    w32("qpn_ds.qpn", 0x4, 31, 8),
    r32(0x4, 7, 6),
    w32("qpn_ds.ds", 0x4, 5, 0),
];

/// Control segment.
pub const CTRL: Layout = Layout {
    name: "ctrl",
    bytes: 16,
    fields: &[
        OPCODE_WORDS[0],
        OPCODE_WORDS[1],
        OPCODE_WORDS[2],
        OPCODE_WORDS[3],
        OPCODE_WORDS[4],
        OPCODE_WORDS[5],
        w8("signature", 0x8, 7, 0),
        w16("dci_stream_channel_id", 0x9, 15, 0),
        w8("fm_ce_se.fm", 0xb, 7, 5),
        r8(0xb, 4, 4),
        w8("fm_ce_se.ce", 0xb, 3, 2),
        w8("fm_ce_se.se", 0xb, 1, 1),
        r8(0xb, 0, 0),
        w32("imm", 0xc, 31, 0),
    ],
};

/// Doorbell register: the first 8 bytes of a control segment.
pub const DOORBELL: Layout = Layout { name: "doorbell", bytes: 8, fields: &OPCODE_WORDS };

/// Remote address segment.
pub const RADDR: Layout = Layout {
    name: "raddr",
    bytes: 16,
    fields: &[w64("raddr", 0x0), w32("rkey", 0x8, 31, 0), r32(0xc, 31, 0)],
};

/// Atomic segment.
pub const ATOMIC: Layout =
    Layout { name: "atomic", bytes: 16, fields: &[w64("swap_add", 0x0), w64("compare", 0x8)] };

/// Masked compare and swap of 4 bytes.
pub const MASKED_CS_4: Layout = Layout {
    name: "masked_atomic",
    bytes: 16,
    fields: &[
        w32("swap_data", 0x0, 31, 0),
        w32("cmp_data", 0x4, 31, 0),
        w32("swap_mask", 0x8, 31, 0),
        w32("cmp_mask", 0xc, 31, 0),
    ],
};

/// Masked compare and swap of 8 bytes.
pub const MASKED_CS_8: Layout = Layout {
    name: "masked_atomic",
    bytes: 32,
    fields: &[
        w64("swap_data", 0x00),
        w64("cmp_data", 0x08),
        w64("swap_mask", 0x10),
        w64("cmp_mask", 0x18),
    ],
};

/// Masked fetch and add of 4 bytes.
pub const MASKED_FA_4: Layout = Layout {
    name: "masked_atomic",
    bytes: 16,
    fields: &[w32("add_data", 0x0, 31, 0), w32("field_boundary", 0x4, 31, 0), rest(0x8, 8)],
};

/// Masked fetch and add of 8 bytes.
pub const MASKED_FA_8: Layout = Layout {
    name: "masked_atomic",
    bytes: 16,
    fields: &[w64("add_data", 0x0), w64("field_boundary", 0x8)],
};

const DATA_FIELDS: [Field; 4] = [
    w32("byte_count.inline", 0x0, 31, 31),
    w32("byte_count", 0x0, 30, 0),
    w32("lkey", 0x4, 31, 0),
    w64("addr", 0x8),
];

/// Data segment.
pub const DATA: Layout = Layout { name: "data", bytes: 16, fields: &DATA_FIELDS };

/// Header of inline data.
pub const INLINE: Layout =
    Layout { name: "inline", bytes: 4, fields: &[DATA_FIELDS[0], DATA_FIELDS[1]] };

const AV_TAIL: [Field; 18] = [
    w32("dqp_dct.ext", 0x08, 31, 31),
    r32(0x08, 30, 24),
    w32("dqp_dct", 0x08, 23, 0),
    w8("stat_rate_sl.stat_rate", 0x0c, 7, 4),
    w8("stat_rate_sl.sl", 0x0c, 3, 0),
    w8("fl_mlid.fl", 0x0d, 7, 7),
    w8("fl_mlid.mlid", 0x0d, 6, 0),
    w16("rlid_udp_sport", 0x0e, 15, 0),
    r32(0x10, 31, 0),
    Field::bytes("rmac", 0x14, 6),
    w8("tclass", 0x1a, 7, 0),
    w8("hop_limit", 0x1b, 7, 0),
    r32(0x1c, 31, 31),
    w32("grh_gid_fl.grh", 0x1c, 30, 30),
    r32(0x1c, 29, 28),
    w32("grh_gid_fl.src_addr_index", 0x1c, 27, 20),
    w32("grh_gid_fl.flow_label", 0x1c, 19, 0),
    Field::bytes("rgid", 0x20, 16),
];

/// An address vector's fields: those of its key, and the others.
const fn av<const KEY: usize, const ALL: usize>(key: [Field; KEY]) -> [Field; ALL] {
    assert!(KEY + AV_TAIL.len() == ALL, "all of them");
    let mut all = [AV_TAIL[0]; ALL];
    let mut i = 0;
    while i < ALL {
        all[i] = if i < KEY { key[i] } else { AV_TAIL[i - KEY] };
        i += 1;
    }
    all
}

/// Address vector of a datagram.
pub const AV: Layout = Layout {
    name: "av",
    bytes: 48,
    fields: &av::<2, 20>([w32("qkey", 0x00, 31, 0), r32(0x04, 31, 0)]),
};

/// Address vector of an initiator of dynamic connections.
pub const AV_DC: Layout =
    Layout { name: "av", bytes: 48, fields: &av::<1, 19>([w64("dc_key", 0x00)]) };

/// XRC segment.
pub const XRC: Layout = Layout {
    name: "xrc",
    bytes: 16,
    fields: &[r32(0x0, 31, 24), w32("xrc_srqn", 0x0, 23, 0), rest(0x4, 12)],
};

/// Fields of a UMR control segment. Two bytes have the name of what they hold.
const fn umr(at_6: &'static str) -> [Field; 12] {
    [
        w8("flags.inline", 0x00, 7, 7),
        w8("flags.check_in_use", 0x00, 6, 6),
        w8("flags.check_free", 0x00, 5, 5),
        w8("flags.translation_offset", 0x00, 4, 4),
        w8("flags.check_qpn", 0x00, 3, 3),
        r8(0x00, 2, 0),
        rest(0x01, 3),
        w16("klm_octowords", 0x04, 15, 0),
        w16(at_6, 0x06, 15, 0),
        w64("mkey_mask", 0x08),
        w32("xlt_offset_47_16", 0x10, 31, 0),
        rest(0x14, 28),
    ]
}

/// UMR control segment.
pub const UMR: Layout = Layout { name: "umr_ctrl", bytes: 48, fields: &umr("translation_offset") };

/// The same of a UMR with a BSF, and so without a place in the translation.
pub const UMR_BSF: Layout = Layout { name: "umr_ctrl", bytes: 48, fields: &umr("bsf_octowords") };

/// Memory key context segment.
pub const MKEY: Layout = Layout {
    name: "mkey_context",
    bytes: 64,
    fields: &[
        r8(0x00, 7, 7),
        w8("free", 0x00, 6, 6),
        r8(0x00, 5, 5),
        w8("access_mode_4_2", 0x00, 4, 2),
        r8(0x00, 1, 0),
        r8(0x01, 7, 3),
        w8("relaxed_ordering_write", 0x01, 2, 2),
        r8(0x01, 1, 1),
        w8("small_fence_on_rdma_read_response", 0x01, 0, 0),
        w8("access_flags.umr_en", 0x02, 7, 7),
        w8("access_flags.atomic", 0x02, 6, 6),
        w8("access_flags.remote_write", 0x02, 5, 5),
        w8("access_flags.remote_read", 0x02, 4, 4),
        w8("access_flags.local_write", 0x02, 3, 3),
        w8("access_flags.local_read", 0x02, 2, 2),
        w8("access_mode_1_0", 0x02, 1, 0),
        rest(0x03, 1),
        w32("qpn_mkey.qpn", 0x04, 31, 8),
        w32("qpn_mkey.mkey", 0x04, 7, 0),
        rest(0x08, 4),
        w32("flags_pd.length64", 0x0c, 31, 31),
        w32("flags_pd.bsf_en", 0x0c, 30, 30),
        w32("flags_pd.sync_umr", 0x0c, 29, 29),
        r32(0x0c, 28, 27),
        w32("flags_pd.expected_sigerr_count", 0x0c, 26, 26),
        r32(0x0c, 25, 25),
        w32("flags_pd.en_rinval", 0x0c, 24, 24),
        w32("flags_pd.pd", 0x0c, 23, 0),
        w64("start_addr", 0x10),
        w64("len", 0x18),
        w32("bsf_octword_size", 0x20, 31, 0),
        rest(0x24, 16),
        w32("translations_octword_size", 0x34, 31, 0),
        rest(0x38, 3),
        r8(0x3b, 7, 7),
        w8("relaxed_ordering_read", 0x3b, 6, 6),
        // Bit 5 is reserved in older versions of the PRM.
        w8("log_page_size", 0x3b, 5, 0),
        rest(0x3c, 4),
    ],
};

/// Entry of a key's translation: a range.
pub const KLM: Layout = Layout {
    name: "klm",
    bytes: 16,
    fields: &[w32("byte_count", 0x0, 31, 0), w32("mkey", 0x4, 31, 0), w64("address", 0x8)],
};

/// The same of a key with pages of one size: a page and its rights (Linux, `mlx5_ifc_mtt_bits`).
pub const MTT: Layout = Layout {
    name: "mtt",
    bytes: 8,
    fields: &[
        w32("ptag_63_32", 0x0, 31, 0),
        w32("ptag_31_8", 0x4, 31, 8),
        w32("rsvd0", 0x4, 7, 2),
        w32("wr_en", 0x4, 1, 1),
        w32("rd_en", 0x4, 0, 0),
    ],
};

/// The same of a key with ranges of one length, which the key's context says.
pub const KSM: Layout = Layout {
    name: "ksm",
    bytes: 16,
    fields: &[Field::bytes("rsvd0", 0x0, 4), w32("mkey", 0x4, 31, 0), w64("address", 0x8)],
};

/// First unit of a repeated block.
pub const REPEAT: Layout = Layout {
    name: "repeat_block",
    bytes: 16,
    fields: &[
        w32("byte_count", 0x0, 31, 0),
        w32("op", 0x4, 31, 0),
        w32("repeat_count", 0x8, 31, 0),
        rest(0xc, 2),
        w16("num_ent", 0xe, 15, 0),
    ],
};

/// Entry of a repeated block.
pub const REPEAT_ENTRY: Layout = Layout {
    name: "repeat_entry",
    bytes: 16,
    fields: &[
        w16("stride", 0x0, 15, 0),
        w16("byte_count", 0x2, 15, 0),
        w32("memkey", 0x4, 31, 0),
        w64("va", 0x8),
    ],
};

/// 16 bytes of a BSF, whose format its type says: signatures, encryption, parameters of TLS.
pub const BSF: Layout =
    Layout { name: "bsf", bytes: 16, fields: &[Field::bytes("octoword", 0x0, 16)] };

/// TM segment: a change of the list of a shared receive queue that matches tags.
pub const LIST: Layout = Layout {
    name: "tm",
    bytes: 32,
    fields: &[
        w8("opcode", 0x00, 7, 4),
        r8(0x00, 3, 0),
        w8("flags.cqe_req", 0x01, 7, 7),
        w8("flags.cnt_updated", 0x01, 6, 6),
        r8(0x01, 5, 0),
        w16("index", 0x02, 15, 0),
        rest(0x04, 2),
        w16("sw_cnt", 0x06, 15, 0),
        rest(0x08, 8),
        w64("append_tag", 0x10),
        w64("append_mask", 0x18),
    ],
};

/// Metadata of a memory-to-memory operation.
pub const MMO: Layout = Layout {
    name: "mmo_metadata",
    bytes: 16,
    fields: &[
        w32("mmo_control", 0x0, 31, 0),
        w32("local_key", 0x4, 31, 0),
        w64("local_address", 0x8),
    ],
};

/// What a WAIT waits for.
pub const WAIT: Layout = Layout {
    name: "wait",
    bytes: 16,
    fields: &[
        rest(0x0, 8),
        w32("max_index", 0x8, 31, 0),
        r32(0xc, 31, 24),
        w32("qpn_cqn", 0xc, 23, 0),
    ],
};

/// First segment of a WQE of a shared receive queue.
pub const NEXT: Layout = Layout {
    name: "next",
    bytes: 16,
    fields: &[
        rest(0x0, 2),
        w16("next_wqe_index", 0x2, 15, 0),
        w8("signature", 0x4, 7, 0),
        rest(0x5, 11),
    ],
};

const CQE_TAIL: [Field; 5] = [
    w16("wqe_counter", 0x3c, 15, 0),
    w8("signature", 0x3e, 7, 0),
    w8("op_own.opcode", 0x3f, 7, 4),
    w8("op_own.cqe_format", 0x3f, 3, 2),
    w8("op_own.se", 0x3f, 1, 1),
];
const OWNER: Field = w8("op_own.owner", 0x3f, 0, 0);

/// Completion queue entry that reports success. Its first 24 bytes hold what was scattered to the entry, a header
/// of tag matching, or results of offloads.
pub const CQE: Layout = Layout {
    name: "cqe64",
    bytes: 64,
    fields: &[
        Field::bytes("inline_or_offload", 0x00, 24),
        w32("flags_rqpn.flags", 0x18, 31, 24),
        w32("flags_rqpn.rqpn", 0x18, 23, 0),
        w32("offload", 0x1c, 31, 0),
        w32("srqn_uidx", 0x20, 31, 0),
        w32("imm_inval_pkey", 0x24, 31, 0),
        w8("app", 0x28, 7, 0),
        w8("app_op", 0x29, 7, 0),
        w16("app_info", 0x2a, 15, 0),
        w32("byte_cnt", 0x2c, 31, 0),
        w64("timestamp", 0x30),
        w32("sop_drop_qpn.sop", 0x38, 31, 24),
        w32("sop_drop_qpn.qpn", 0x38, 23, 0),
        CQE_TAIL[0],
        CQE_TAIL[1],
        CQE_TAIL[2],
        CQE_TAIL[3],
        CQE_TAIL[4],
        OWNER,
    ],
};

/// A mini-CQE of sends: what of a compressed CQE differs from the one that the others are like (PRM, "CQE
/// Compression"; Linux, `mlx5_mini_cqe8`).
pub const MINI_CQE_REQ: Layout = Layout {
    name: "mini_cqe8",
    bytes: 8,
    fields: &[
        w16("wqe_counter", 0x0, 15, 0),
        w8("s_wqe_opcode", 0x2, 7, 0),
        Field::bytes("rsvd0", 0x3, 1),
        w32("byte_cnt", 0x4, 31, 0),
    ],
};

/// The same of receives. In its first word a hash, or a checksum and a stride index, as the CQ was made.
pub const MINI_CQE_RESP: Layout = Layout {
    name: "mini_cqe8",
    bytes: 8,
    fields: &[w32("rx_hash_result", 0x0, 31, 0), w32("byte_cnt", 0x4, 31, 0)],
};

/// Completion queue entry that reports an error. A NIC does not clear the bytes around its fields.
pub const CQE_ERROR: Layout = Layout {
    name: "err_cqe",
    bytes: 64,
    fields: &[
        Field::bytes("rsvd0", 0x00, 32),
        w32("srqn_uidx", 0x20, 31, 0),
        Field::bytes("rsvd1", 0x24, 16),
        w8("hw_err_synd", 0x34, 7, 0),
        w8("hw_synd_type", 0x35, 7, 0),
        w8("vendor_err_synd", 0x36, 7, 0),
        w8("syndrome", 0x37, 7, 0),
        w32("s_wqe_opcode_qpn.opcode", 0x38, 31, 24),
        w32("s_wqe_opcode_qpn.qpn", 0x38, 23, 0),
        CQE_TAIL[0],
        CQE_TAIL[1],
        CQE_TAIL[2],
        CQE_TAIL[3],
        CQE_TAIL[4],
        OWNER,
    ],
};

/// CQE of a signature error (opcode 0xc; Linux, `mlx5_sig_err_cqe`).
pub const CQE_SIG_ERR: Layout = Layout {
    name: "sig_err_cqe",
    bytes: 64,
    fields: &[
        Field::bytes("rsvd0", 0x00, 16),
        w32("expected_trans_sig", 0x10, 31, 0),
        w32("actual_trans_sig", 0x14, 31, 0),
        w32("expected_reftag", 0x18, 31, 0),
        w32("actual_reftag", 0x1c, 31, 0),
        Field::bits("syndrome", 16, 0x20, 15, 0),
        Field::bytes("rsvd22", 0x22, 2),
        w32("mkey", 0x24, 31, 0),
        w64("err_offset", 0x28),
        Field::bytes("rsvd30", 0x30, 8),
        w32("qpn", 0x38, 31, 0),
        Field::bytes("rsvd3c", 0x3c, 2),
        CQE_TAIL[1],
        CQE_TAIL[2],
        CQE_TAIL[3],
        CQE_TAIL[4],
        OWNER,
    ],
};

/// Doorbell record of a queue pair.
pub const DBR: Layout = Layout {
    name: "doorbell_record",
    bytes: 8,
    fields: &[
        r32(0x0, 31, 16),
        w32("rcv.wqe_counter", 0x0, 15, 0),
        r32(0x4, 31, 16),
        w32("snd.wqe_counter", 0x4, 15, 0),
    ],
};

const ARM: [Field; 5] = [
    r32(0x4, 31, 30),
    w32("arm.cmd_sn", 0x4, 29, 28),
    r32(0x4, 27, 25),
    w32("arm.cmd", 0x4, 24, 24),
    w32("arm.ci", 0x4, 23, 0),
];

/// Doorbell record of a CQ.
pub const CQ_DBR: Layout = Layout {
    name: "cq_doorbell_record",
    bytes: 8,
    fields: &[
        r32(0x0, 31, 24),
        w32("update_ci", 0x0, 23, 0),
        ARM[0],
        ARM[1],
        ARM[2],
        ARM[3],
        ARM[4],
    ],
};

/// Register that arms a CQ.
pub const CQ_DOORBELL: Layout = Layout {
    name: "cq_doorbell",
    bytes: 8,
    fields: &[
        r32(0x0, 31, 30),
        w32("cmd_sn", 0x0, 29, 28),
        r32(0x0, 27, 25),
        w32("cmd", 0x0, 24, 24),
        w32("ci", 0x0, 23, 0),
        r32(0x4, 31, 24),
        w32("cqn", 0x4, 23, 0),
    ],
};
