//! The Rust wire types say what `kernels/include/bellpush/wire.h` says: every constant by name, every size.

use std::collections::BTreeMap;

use bellpush::wire::blueflame::BF_BYTES;
use bellpush::wire::cqe::{CqeBytes, CqeOpcode};
use bellpush::wire::doorbell as db;
use bellpush::wire::wqe::*;

const HEADER: &str = include_str!("../../kernels/include/bellpush/wire.h");

/// `NAME = value` of the header's enums, and the sizes that it asserts.
fn said(header: &str) -> BTreeMap<String, u64> {
    let number = |text: &str| {
        let text = text.trim().trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let mut said = BTreeMap::new();
    for line in header.lines().map(|l| l.split("//").next().unwrap_or("").trim()) {
        if let Some((name, value)) = line.split_once(" = ") {
            if let Some(value) = number(value.trim_end_matches([',', 'u'])) {
                said.insert(name.to_owned(), value);
            }
        } else if let Some(args) = line.strip_prefix("BP_ASSERT_SIZE(") {
            let (name, size) = args.trim_end_matches([')', ';']).split_once(", ").unwrap();
            said.extend(number(size).map(|size| (name.to_owned(), size)));
        }
    }
    said
}

fn ours() -> Vec<(&'static str, u64)> {
    let size = |n: usize| n as u64;
    vec![
        ("BP_WQEBB_BYTES", size(WQEBB_BYTES)),
        ("BP_DS_BYTES", size(DS_BYTES)),
        ("BP_MAX_DS", size(MAX_DS)),
        ("BP_INLINE_FLAG", INLINE_FLAG.into()),
        ("BP_INVALID_LKEY", INVALID_LKEY.0.into()),
        ("BP_OP_NOP", Opcode::Nop as u64),
        ("BP_OP_RDMA_WRITE", Opcode::RdmaWrite as u64),
        ("BP_OP_RDMA_WRITE_IMM", Opcode::RdmaWriteImm as u64),
        ("BP_OP_SEND", Opcode::Send as u64),
        ("BP_OP_SEND_IMM", Opcode::SendImm as u64),
        ("BP_OP_RDMA_READ", Opcode::RdmaRead as u64),
        ("BP_OP_ATOMIC_CS", Opcode::AtomicCs as u64),
        ("BP_OP_ATOMIC_FA", Opcode::AtomicFa as u64),
        ("BP_CTRL_SOLICITED", CTRL_SOLICITED.into()),
        ("BP_CTRL_CQ_UPDATE", CTRL_CQ_UPDATE.into()),
        ("BP_CTRL_FENCE_SMALL", CTRL_FENCE_SMALL.into()),
        ("BP_CQE_REQ", CqeOpcode::Req as u64),
        ("BP_CQE_RESP_WR_IMM", CqeOpcode::RespWrImm as u64),
        ("BP_CQE_RESP_SEND", CqeOpcode::RespSend as u64),
        ("BP_CQE_RESP_SEND_IMM", CqeOpcode::RespSendImm as u64),
        ("BP_CQE_REQ_ERR", CqeOpcode::ReqErr as u64),
        ("BP_CQE_RESP_ERR", CqeOpcode::RespErr as u64),
        ("BP_CQE_INVALID", CqeOpcode::Invalid as u64),
        ("BP_DBR_RCV", size(db::DBR_RCV_OFFSET / 4)),
        ("BP_DBR_SND", size(db::DBR_SND_OFFSET / 4)),
        ("BP_DBR_CQ_CI", size(db::DBR_CQ_CI_OFFSET / 4)),
        ("BP_DBR_CQ_ARM", size(db::DBR_CQ_ARM_OFFSET / 4)),
        ("BP_UAR_BYTES", size(db::UAR_BYTES)),
        ("BP_UAR_DOORBELL_OFFSET", size(db::UAR_DOORBELL_OFFSET)),
        ("BP_UAR_BF_BYTES", size(BF_BYTES)),
        ("bp_wqe_ctrl", size(size_of::<CtrlSeg>())),
        ("bp_wqe_raddr", size(size_of::<RaddrSeg>())),
        ("bp_wqe_data", size(size_of::<DataSeg>())),
        ("bp_wqe_inline", size(size_of::<InlineHeader>())),
        ("bp_wqe_atomic", size(size_of::<AtomicSeg>())),
        ("bp_cqe64", size(size_of::<CqeBytes>())),
    ]
}

#[test]
fn constants_and_sizes_agree() {
    let said = said(HEADER);
    for (name, value) in ours() {
        assert_eq!(said.get(name), Some(&value), "{name}");
    }
    assert_eq!(db::UAR_BF1_OFFSET, db::UAR_DOORBELL_OFFSET + BF_BYTES);
}

#[test]
fn a_changed_constant_is_noticed() {
    let said = said(&HEADER.replace("BP_OP_SEND = 0x0a", "BP_OP_SEND = 0x0c"));
    let wrong: Vec<_> = ours().into_iter().filter(|(n, v)| said.get(*n) != Some(v)).collect();
    assert_eq!(wrong, [("BP_OP_SEND", 0x0a)]);
}

#[test]
fn what_host_and_engine_share_agrees() {
    use bellpush::abi::engine as e;
    use bellpush::abi::engine::EngineArgs;
    let said = said(include_str!("../../kernels/engine/engine.h"));
    let size = |n: usize| n as u64;
    for (name, value) in [
        ("BP_ENGINE_BLOCK_QPS", size(e::BLOCK_QPS)),
        ("BP_KEY_TABLE_KEYS", size(e::TABLE_KEYS)),
        ("BP_ENGINE_CONTROL_BLOCK_BYTES", size(e::CONTROL_BLOCK_BYTES)),
        ("BP_ENGINE_SHARED_BYTES", e::SHARED_BYTES.into()),
        ("BP_RETURN_ASKED", e::Why::Asked as u64),
        ("BP_RETURN_WQE", e::Why::Wqe as u64),
        ("BP_RETURN_KEY", e::Why::Key as u64),
        ("BP_RETURN_CQ_FULL", e::Why::CqFull as u64),
        ("bp_key", size(size_of::<e::Key>())),
        ("bp_qpc_state", size(size_of::<e::State>())),
        ("bp_qpc_fixed", size(size_of::<e::Fixed>())),
        ("bp_qpc", size(e::CONTEXT_BYTES)),
        ("bp_qpc_record", size(e::RECORD_BYTES)),
        ("bp_engine_control_block", size(e::CONTROL_BLOCK_BYTES)),
        ("bp_engine_job", size(e::CONTROL_BLOCK_BYTES)),
        ("bp_engine_args", size(size_of::<EngineArgs>())),
    ] {
        assert_eq!(said.get(name), Some(&value), "{name}");
    }
}
