//! The same layouts three times: libmlx5's `<infiniband/mlx5dv.h>`, `kernels/include/bellpush/wire.h` and
//! its like, and the Rust types. A C program prints what the compiler makes of the first two; each claim below
//! says which C expressions are equal, and what Rust says about it.
//!
//! Without mlx5dv.h (libibverbs-dev) the claims about it are left out, and the test says so; with
//! `CI=true` that is a failure.

use std::collections::BTreeMap;
use std::io::Write;
use std::mem::offset_of;
use std::process::Command;

use bellpush::abi::bench::{
    AutoBenchArgs, AutoOpArgs, AutoTurnsArgs, BenchArgs, BenchResult, BenchRows, BlocksBenchArgs,
    LinkChaseArgs, LinkExchangeArgs, LinkExchangeState, LinkFlagArgs, LinkLap, LinkMoveArgs,
    LinkResult, PostArgs, PostResult, StoreArgs, StreamArgs, TearArgs, Turns, TurnsArgs, mark,
};
use bellpush::abi::clock::{ClockArgs, ClockWords};
use bellpush::abi::collective::{self as coll, CollArgs, CollCall, CollStatus};
use bellpush::abi::entry::{Cmp, OpArgs, Scope, Verb, Watch, WatchArgs};
use bellpush::abi::peers::{PeersArgs, PeersOp, PeersStatus};
use bellpush::abi::wire::{
    self as abi, Choices, DeviceAutoEndpoint, DeviceEndpoint, Qp, Status, Window, tag,
};
use bellpush::collective::{Algorithm, Dtype, Op};
use bellpush::transport::Choice;
use bellpush::wire::cqe::{CQE_BYTES, CqeBytes, CqeOpcode, Syndrome};
use bellpush::wire::doorbell as db;
use bellpush::wire::umr::{self, MkeySeg, RepeatBlockSeg, RepeatEntrySeg, UmrCtrlSeg};
use bellpush::wire::wqe::{self, AtomicSeg, CtrlSeg, DataSeg, InlineHeader, Opcode, RaddrSeg};

/// C expressions that are equal to one another and to what Rust says.
#[derive(Debug, Clone)]
struct Claim {
    c: Vec<String>,
    rust: Option<u64>,
}

fn claim(c: &[&str], rust: impl Into<Option<u64>>) -> Claim {
    Claim { c: c.iter().map(|&c| c.to_owned()).collect(), rust: rust.into() }
}

/// Bytes of the field that a getter returns.
const fn field_bytes<T, F>(_: fn(&T) -> F) -> u64 {
    size_of::<F>() as u64
}

/// Claims about a structure: its size, and each field's offset and size.
///
/// `layout!(Rust = bp_name, mlx5_name { rust_field = bp_field, mlx5_field; … })`; a Rust field with
/// nothing behind it has the same name in C, and the mlx5 structure may be left out.
macro_rules! layout {
    ($rust:ty = $($c:ident),+ { $($field:ident $(= $($c_field:ident),+)?;)+ }) => {{
        let structs = [$(stringify!($c)),+];
        let expressions = |wrap: &dyn Fn(usize, &str) -> String| -> Vec<String> {
            structs.iter().enumerate().map(|(i, name)| wrap(i, name)).collect()
        };
        let mut claims = vec![Claim {
            c: expressions(&|_, name| format!("sizeof(struct {name})")),
            rust: Some(size_of::<$rust>() as u64),
        }];
        $({
            let renamed: &[&str] = &[$($(stringify!($c_field)),+)?];
            let field = |i: usize| *renamed.get(i).unwrap_or(&stringify!($field));
            claims.push(Claim {
                c: expressions(&|i, name| format!("offsetof(struct {name}, {})", field(i))),
                rust: Some(offset_of!($rust, $field) as u64),
            });
            claims.push(Claim {
                c: expressions(&|i, name| format!("sizeof(((struct {name} *)0)->{})", field(i))),
                rust: Some(field_bytes(|s: &$rust| s.$field)),
            });
        })+
        claims
    }};
}

/// The structures that the NIC defines.
fn mlx5_structures() -> Vec<Claim> {
    [
        layout!(CtrlSeg = bp_wqe_ctrl, mlx5_wqe_ctrl_seg {
            opmod_idx_opcode; qpn_ds; signature;
            dci_stream = dci_stream, dci_stream_channel_id;
            fm_ce_se; imm;
        }),
        layout!(RaddrSeg = bp_wqe_raddr, mlx5_wqe_raddr_seg { raddr; rkey; reserved; }),
        layout!(DataSeg = bp_wqe_data, mlx5_wqe_data_seg { byte_count; lkey; addr; }),
        layout!(InlineHeader = bp_wqe_inline, mlx5_wqe_inl_data_seg { byte_count; }),
        layout!(AtomicSeg = bp_wqe_atomic, mlx5_wqe_atomic_seg { swap_add; compare; }),
        layout!(CqeBytes = bp_cqe64, mlx5_cqe64 {
            srqn_uidx; imm_inval_pkey; byte_cnt; timestamp; sop_drop_qpn; wqe_counter; signature;
            op_own;
        }),
        layout!(UmrCtrlSeg = mlx5_wqe_umr_ctrl_seg {
            flags; klm_octowords; translation_offset; mkey_mask;
        }),
        layout!(MkeySeg = mlx5_wqe_mkey_context_seg {
            free; access_flags; qpn_mkey; flags_pd; start_addr; len; bsf_octword_size;
            translations_octword_size; log_page_size;
        }),
        layout!(DataSeg = mlx5_wqe_umr_klm_seg { byte_count; lkey = mkey; addr = address; }),
        layout!(RepeatEntrySeg = mlx5_wqe_umr_repeat_ent_seg { stride; byte_count; memkey; va; }),
        layout!(RepeatBlockSeg = mlx5_wqe_umr_repeat_block_seg {
            byte_count; op; repeat_count; num_ent;
        }),
        // An error CQE differs in the middle.
        vec![
            claim(&["sizeof(struct mlx5_err_cqe)", "sizeof(struct bp_cqe64)"], CQE_BYTES as u64),
            claim(
                &["offsetof(struct mlx5_err_cqe, vendor_err_synd)", "BP_CQE_VENDOR_ERR_OFFSET"],
                offset_of!(CqeBytes, timestamp) as u64 + 6,
            ),
            claim(
                &["offsetof(struct mlx5_err_cqe, syndrome)", "BP_CQE_SYNDROME_OFFSET"],
                offset_of!(CqeBytes, timestamp) as u64 + 7,
            ),
            claim(
                &["offsetof(struct mlx5_err_cqe, s_wqe_opcode_qpn)"],
                offset_of!(CqeBytes, sop_drop_qpn) as u64,
            ),
            claim(
                &["offsetof(struct mlx5_err_cqe, wqe_counter)"],
                offset_of!(CqeBytes, wqe_counter) as u64,
            ),
            claim(&["offsetof(struct mlx5_err_cqe, op_own)"], offset_of!(CqeBytes, op_own) as u64),
        ],
    ]
    .concat()
}

/// Opcodes, flags and offsets that the NIC defines.
fn mlx5_constants() -> Vec<Claim> {
    let mut claims = vec![
        claim(&["MLX5_SEND_WQE_BB", "BP_WQEBB_BYTES"], wqe::WQEBB_BYTES as u64),
        claim(&["MLX5_SEND_WQE_BB / 4", "BP_DS_BYTES"], wqe::DS_BYTES as u64),
        claim(&["BP_MAX_DS"], wqe::MAX_DS as u64),
        claim(&["MLX5_INLINE_SEG", "BP_INLINE_FLAG"], u64::from(wqe::INLINE_FLAG)),
        claim(&["MLX5_INVALID_LKEY", "BP_INVALID_LKEY"], u64::from(wqe::INVALID_LKEY.0)),
        claim(&["MLX5_WQE_CTRL_SOLICITED", "BP_CTRL_SOLICITED"], u64::from(wqe::CTRL_SOLICITED)),
        claim(&["MLX5_WQE_CTRL_CQ_UPDATE", "BP_CTRL_CQ_UPDATE"], u64::from(wqe::CTRL_CQ_UPDATE)),
        claim(
            &["MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE", "BP_CTRL_FENCE_SMALL"],
            u64::from(wqe::CTRL_FENCE_SMALL),
        ),
        claim(&["MLX5_CQE_OWNER_MASK", "BP_CQE_OWNER_MASK"], None),
        claim(&["MLX5_RCV_DBR * 4", "BP_DBR_RCV * 4"], db::DBR_RCV_OFFSET as u64),
        claim(&["MLX5_SND_DBR * 4", "BP_DBR_SND * 4"], db::DBR_SND_OFFSET as u64),
        claim(&["BP_DBR_CQ_CI * 4"], db::DBR_CQ_CI_OFFSET as u64),
        claim(&["BP_DBR_CQ_ARM * 4"], db::DBR_CQ_ARM_OFFSET as u64),
        claim(&["BP_UAR_BYTES"], db::UAR_BYTES as u64),
        claim(&["BP_UAR_DOORBELL_OFFSET"], db::UAR_DOORBELL_OFFSET as u64),
        claim(&["BP_UAR_DOORBELL_OFFSET + BP_UAR_BF_BYTES"], db::UAR_BF1_OFFSET as u64),
    ];
    claims.push(claim(&["MLX5_OPCODE_SEND_INVAL"], Opcode::SendInval as u64));
    claims.push(claim(&["MLX5_OPCODE_UMR"], Opcode::Umr as u64));
    claims.push(claim(&["MLX5_OPCODE_TAG_MATCHING"], Opcode::TagMatching as u64));
    claims.push(claim(&["MLX5_OPCODE_MMO"], Opcode::Mmo as u64));
    claims.push(claim(&["MLX5_OPCODE_ATOMIC_MASKED_CS"], Opcode::AtomicMaskedCs as u64));
    claims.push(claim(&["MLX5_OPCODE_ATOMIC_MASKED_FA"], Opcode::AtomicMaskedFa as u64));
    claims.extend(Opcode::ALL.into_iter().filter_map(|opcode| {
        let name = match opcode {
            Opcode::Nop => "NOP",
            Opcode::RdmaWrite => "RDMA_WRITE",
            Opcode::RdmaWriteImm => "RDMA_WRITE_IMM",
            Opcode::Send => "SEND",
            Opcode::SendImm => "SEND_IMM",
            Opcode::RdmaRead => "RDMA_READ",
            Opcode::AtomicCs => "ATOMIC_CS",
            Opcode::AtomicFa => "ATOMIC_FA",
            // No kernel posts these.
            Opcode::SendInval
            | Opcode::Umr
            | Opcode::TagMatching
            | Opcode::Mmo
            | Opcode::Wait
            | Opcode::Dump
            | Opcode::AtomicMaskedCs
            | Opcode::AtomicMaskedFa => {
                return None;
            }
        };
        Some(claim(&[&format!("MLX5_OPCODE_{name}"), &format!("BP_OP_{name}")], opcode as u64))
    }));
    use CqeOpcode::*;
    let opcodes = [Req, RespWrImm, RespSend, RespSendImm, ReqErr, RespErr, Invalid];
    claims.extend(opcodes.map(|opcode| {
        let name = match opcode {
            Req => "REQ",
            RespWrImm => "RESP_WR_IMM",
            RespSend => "RESP_SEND",
            RespSendImm => "RESP_SEND_IMM",
            ReqErr => "REQ_ERR",
            RespErr => "RESP_ERR",
            Invalid => "INVALID",
            RespSendInv | Resize | NoPacket => unreachable!("no kernel sees these"),
        };
        claim(&[&format!("MLX5_CQE_{name}"), &format!("BP_CQE_{name}")], opcode as u64)
    }));
    for (name, value) in [
        ("UMR_CTRL_FLAG_INLINE", umr::UMR_INLINE.into()),
        ("UMR_CTRL_FLAG_CHECK_FREE", umr::UMR_CHECK_FREE.into()),
        ("UMR_CTRL_FLAG_TRNSLATION_OFFSET", umr::UMR_TRANSLATION_OFFSET.into()),
        ("UMR_CTRL_FLAG_CHECK_QPN", umr::UMR_CHECK_QPN.into()),
        ("UMR_CTRL_MKEY_MASK_LEN", umr::mask::LEN),
        ("UMR_CTRL_MKEY_MASK_START_ADDR", umr::mask::START_ADDR),
        ("UMR_CTRL_MKEY_MASK_MKEY", umr::mask::MKEY),
        ("UMR_CTRL_MKEY_MASK_QPN", umr::mask::QPN),
        ("UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE", umr::mask::LOCAL_WRITE),
        ("UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ", umr::mask::REMOTE_READ),
        ("UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE", umr::mask::REMOTE_WRITE),
        ("UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC", umr::mask::ATOMIC),
        ("UMR_CTRL_MKEY_MASK_FREE", umr::mask::FREE),
        ("MKEY_CONTEXT_FREE", umr::MKEY_FREE.into()),
        ("MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC", umr::MKEY_ATOMIC.into()),
        ("MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE", umr::MKEY_REMOTE_WRITE.into()),
        ("MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ", umr::MKEY_REMOTE_READ.into()),
        ("MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE", umr::MKEY_LOCAL_WRITE.into()),
    ] {
        claims.push(claim(&[&format!("MLX5_WQE_{name}")], value));
    }
    claims.push(claim(&["MLX5_CQE_RESP_SEND_INV"], RespSendInv as u64));
    claims.push(claim(&["MLX5_CQE_NO_PACKET"], NoPacket as u64));
    claims.push(claim(&["MLX5_CQE_RESIZE_CQ"], Resize as u64));
    claims.extend(Syndrome::ALL.map(|syndrome| {
        let name = match syndrome {
            Syndrome::LocalLength => "LOCAL_LENGTH",
            Syndrome::LocalQpOp => "LOCAL_QP_OP",
            Syndrome::LocalProt => "LOCAL_PROT",
            Syndrome::WrFlush => "WR_FLUSH",
            Syndrome::MwBind => "MW_BIND",
            Syndrome::BadResp => "BAD_RESP",
            Syndrome::LocalAccess => "LOCAL_ACCESS",
            Syndrome::RemoteInvalReq => "REMOTE_INVAL_REQ",
            Syndrome::RemoteAccess => "REMOTE_ACCESS",
            Syndrome::RemoteOp => "REMOTE_OP",
            Syndrome::TransportRetryExc => "TRANSPORT_RETRY_EXC",
            Syndrome::RnrRetryExc => "RNR_RETRY_EXC",
            Syndrome::RemoteAborted => "REMOTE_ABORTED",
        };
        claim(&[&format!("MLX5_CQE_SYNDROME_{name}_ERR")], syndrome as u64)
    }));
    claims
}

/// The structures that Rust hands to kernels; no NIC knows them.
fn kernel_structures() -> Vec<Claim> {
    [
        layout!(Window = bp_window { va; gather_base; lkey; slot_bytes; slots; inband_seq0; }),
        layout!(abi::QpState = bp_qp_state {
            reserved; done; rung; signalled; marked; error; max_credits; fetched; look_after; pad; ring; ring_pad;
            cq_ci; cq_ci_reported; cq_lock; cq_pad;
        }),
        layout!(Status = bp_status { code; syndrome; ticket; }),
        layout!(Qp = bp_qp {
            sq; cq; dbr; cq_dbr; uar; state; ready; status; window; timeout_ns; qpn; slot_limit; sq_log;
            cq_log; credit_period; own_timeout_us;
        }),
        layout!(DeviceEndpoint = bp_endpoint {
            qp; local_va; local_iova; local_bytes; remote_iova; remote_bytes; local_lkey;
            remote_rkey; sink_iova; sink_lkey; tag;
        }),
        layout!(abi::RemoteWords = bp_remote { iova; rkey; reserved; }),
        layout!(abi::DevicePeers = bp_peers {
            endpoints; remotes; words; progress; rank; n; rails; rounds;
        }),
        layout!(abi::DeviceMarks = bp_marks { ring; begun; ring_log; reserved; }),
        layout!(abi::MarkEntry = bp_mark { ns; what; lap; value; block; thread; lap_low; }),
        layout!(ClockWords = bp_clock_words { question; pad; ns; step_ns; answered; fill; }),
        layout!(ClockArgs = bp_clock_args { words; limit_ns; questions; reserved; }),
        layout!(PeersStatus = bp_peers_status { code; whom; }),
        layout!(PeersArgs = bp_peers_args {
            peers; op; scope; local; bytes; status; count; reserved;
        }),
        layout!(OpArgs = bp_op_args {
            ep; op; scope; count; flags; remote_offset; remote_stride; local; local_stride; bytes;
            value; compare; signal_offset; status; quiet_after; others;
        }),
        layout!(WatchArgs = bp_watch_args {
            ep; watch; scope; cmp; n; words; skip; value; found; status;
        }),
        layout!(Choices = bp_choices { up_to; choice; by_class; }),
        layout!(DeviceAutoEndpoint = bp_auto_endpoint {
            bell; inband; by_thread; by_warp; by_block; tag; reserved;
        }),
        layout!(BenchRows = bp_bench_rows {
            endpoints; messages; each_quiet; ring_every; src; remote_offset; stride; bytes; ticks;
            result; marks; round;
        }),
        layout!(BenchArgs = bp_bench_args { ep; rows; }),
        layout!(AutoBenchArgs = bp_auto_bench_args { ep; rows; }),
        layout!(BlocksBenchArgs = bp_blocks_bench_args { ep; rows; state; }),
        layout!(Turns = bp_turns {
            messages; begins; src; bytes; stride; places; signal_offset; word; ticks; result;
        }),
        layout!(TurnsArgs = bp_turns_args { ep; turns; }),
        layout!(AutoTurnsArgs = bp_auto_turns_args { ep; turns; }),
        layout!(AutoOpArgs = bp_auto_op_args { ep; op; }),
        layout!(BenchResult = bp_bench_result {
            status; posted; start_ns; end_ns; start_ticks; end_ticks;
        }),
        layout!(StoreArgs = bp_store_args { window; window_bytes; src; total_bytes; result; }),
        layout!(TearArgs = bp_tear_args { lines; line_bytes; count; duration_ns; stop; }),
        layout!(LinkMoveArgs = bp_link_move_args {
            target; accesses; results; limit_ns; access_bytes; stride_bytes; laps; each_lap; value;
            lap_bytes;
        }),
        layout!(LinkResult = bp_link_result { status; laps; start_ns; end_ns; sum; }),
        layout!(LinkChaseArgs = bp_link_chase_args {
            target; span_bytes; results; limit_ns; count; stride_bytes;
        }),
        layout!(LinkFlagArgs = bp_link_flag_args {
            store_at; watch_at; results; limit_ns; rounds; answers;
        }),
        layout!(LinkExchangeArgs = bp_link_exchange_args {
            input = in; output = out; send; receive; state; limit_ns; count; most; rank; ranks;
        }),
        layout!(LinkExchangeState = bp_link_exchange_state { calls; ended; status; }),
        layout!(PostArgs = bp_post_args {
            ep; endpoints; src; results; arrived; limit_ns; calls; one_qp;
        }),
        layout!(PostResult = bp_post_result { status; reserved; start_ns; end_ns; drained_ns; }),
        layout!(StreamArgs = bp_stream_args {
            window; flags; credits; src; results; limit_ns; slots; slot_bytes; laps; places; place_bytes; reserved;
        }),
        layout!(CollCall = bp_coll_call { call; count; dtype; op; algorithm; channels; }),
        layout!(CollStatus = bp_coll_status { code; rank; own; said; }),
        layout!(CollArgs = bp_coll_args {
            input = in; output = out; count; share; dtype; op; algorithm; channels; rank; ranks;
            chunk_bytes; unwaited; early; all_channels; endpoints; channel_state; shared; status; region; reports;
            ll_slots; all_to_all_signals; ring_signals; all_to_all_slots; ring_slots; ll_stage; stage;
            piece_bytes; timeout_ns; grace_ns;
        }),
        kernel_constants(),
        collective_constants(),
    ]
    .concat()
}

fn collective_constants() -> Vec<Claim> {
    let status = "offsetof(struct bp_coll_shared, status)";
    let mut claims = vec![
        claim(&["BP_COLL_HEADER_BYTES"], coll::HEADER_BYTES),
        claim(&["BP_COLL_DEPTH"], coll::DEPTH),
        claim(&["BP_COLL_LL_BYTES"], coll::LL_BYTES),
        claim(&["BP_COLL_LL_ALL_BYTES"], coll::LL_ALL_BYTES),
        claim(&["BP_COLL_LL_SLOTS"], coll::LL_SLOTS),
        claim(&["BP_COLL_LL_SLOT_BYTES"], coll::LL_SLOT_BYTES),
        claim(&["BP_COLL_BLOCK_BYTES"], u64::from(coll::BLOCK_BYTES)),
        claim(&["sizeof(struct bp_coll_channel)"], coll::CHANNEL_BYTES as u64),
        claim(&["sizeof(struct bp_coll_shared)"], coll::SHARED_BYTES as u64),
        claim(&[status], coll::SHARED_STATUS as u64),
    ];
    let names = |all: &[(&'static str, u32)]| -> Vec<Claim> {
        all.iter().map(|&(c, rust)| claim(&[c], u64::from(rust))).collect()
    };
    claims.extend(names(&[
        ("BP_COLL_ONE_SHOT", Algorithm::OneShot as u32),
        ("BP_COLL_TWO_SHOT", Algorithm::TwoShot as u32),
        ("BP_COLL_RING", Algorithm::Ring as u32),
        ("BP_COLL_LL", Algorithm::Ll as u32),
        ("BP_COLL_F32", Dtype::F32 as u32),
        ("BP_COLL_F16", Dtype::F16 as u32),
        ("BP_COLL_BF16", Dtype::Bf16 as u32),
        ("BP_COLL_I32", Dtype::I32 as u32),
        ("BP_COLL_SUM", Op::Sum as u32),
        ("BP_COLL_MAX", Op::Max as u32),
        ("BP_COLL_MIN", Op::Min as u32),
        ("BP_COLL_MEAN", Op::Mean as u32),
    ]));
    claims
}

fn kernel_constants() -> Vec<Claim> {
    let mut claims = vec![
        claim(&["BP_BENCH_MAX_ENDPOINTS"], bellpush::abi::bench::BENCH_MAX_ENDPOINTS as u64),
        claim(
            &["BP_BENCH_MAX_AUTO_ENDPOINTS"],
            bellpush::abi::bench::BENCH_MAX_AUTO_ENDPOINTS as u64,
        ),
        claim(&["BP_MARK_ROUND_BEGINS"], u64::from(mark::ROUND_BEGINS)),
        claim(&["BP_MARK_PUT"], u64::from(mark::PUT)),
        claim(&["BP_MARK_PUT_RETURNED"], u64::from(mark::PUT_RETURNED)),
        claim(&["BP_MARK_COMPLETE"], u64::from(mark::COMPLETE)),
        claim(&["BP_MARK_ROUND_ENDS"], u64::from(mark::ROUND_ENDS)),
        claim(&["BP_MARK_OF_AUTO"], u64::from(mark::OF_AUTO)),
        claim(&["BP_POST_REMOTE_BYTES"], bellpush::abi::bench::POST_REMOTE_BYTES as u64),
        claim(&["BP_POST_SRC_BYTES"], bellpush::abi::bench::POST_SRC_BYTES as u64),
        claim(&["BP_STREAM_WORD_BYTES"], bellpush::abi::bench::STREAM_WORD_BYTES as u64),
        claim(&["BP_STREAM_UNIT_BYTES"], bellpush::abi::bench::STREAM_UNIT_BYTES as u64),
        claim(&["BP_OK"], abi::Code::check(0).is_err() as u64),
    ];
    claims.extend([
        claim(&["BP_TAG_PUSH"], u64::from(tag::PUSH)),
        claim(&["BP_TAG_PULL"], u64::from(tag::PULL)),
        claim(&["BP_TAG_KERNEL"], u64::from(tag::KERNEL)),
        claim(&["BP_TAG_BLUEFLAME"], u64::from(tag::BLUEFLAME)),
        claim(&["BP_TAG_INBAND_12_4"], u64::from(tag::INBAND_12_4)),
        claim(&["BP_TAG_INBAND_14_2"], u64::from(tag::INBAND_14_2)),
        claim(&["BP_TAG_INBAND_60_4"], u64::from(tag::INBAND_60_4)),
        claim(&["BP_TAG_SYSTEM"], u64::from(tag::SYSTEM)),
        claim(&["BP_TAG_STRICT"], u64::from(tag::STRICT)),
        claim(&["BP_TAG_AUTO"], u64::from(tag::AUTO)),
        claim(&["BP_CHOICE_RANGES"], abi::CHOICE_RANGES as u64),
        claim(&["BP_CHOICE_BITS"], u64::from(abi::CHOICE_BITS)),
        claim(&["BP_CHOICE_PUSH"], Choice::Push as u64),
        claim(&["BP_CHOICE_INBAND"], Choice::Inband as u64),
        claim(&["BP_CHOICE_INLINE"], Choice::Inline as u64),
        claim(&["BP_CHOICE_BLUEFLAME"], Choice::Blueflame as u64),
        claim(&["BP_CHOICE_PULL"], Choice::Pull as u64),
        claim(&["BP_CHOICE_PULL_BLUEFLAME"], Choice::PullBlueflame as u64),
        claim(&["BP_PEERS_WORDS"], abi::PEERS_WORDS as u64),
        claim(&["BP_PEERS_QUIET"], PeersOp::Quiet as u64),
        claim(&["BP_PEERS_SYNC"], PeersOp::Sync as u64),
        claim(&["BP_PEERS_BARRIER"], PeersOp::Barrier as u64),
        claim(&["BP_PEERS_ALL_GATHER"], PeersOp::AllGather as u64),
        claim(&["BP_VERB_PUT"], Verb::Put as u64),
        claim(&["BP_VERB_PUT_INLINE"], Verb::PutInline as u64),
        claim(&["BP_VERB_PUT_SIGNAL"], Verb::PutSignal as u64),
        claim(&["BP_VERB_GET"], Verb::Get as u64),
        claim(&["BP_VERB_FETCH_ADD"], Verb::FetchAdd as u64),
        claim(&["BP_VERB_COMPARE_SWAP"], Verb::CompareSwap as u64),
        claim(&["BP_VERB_QUIET"], Verb::Quiet as u64),
        claim(&["BP_VERB_TEST"], Verb::Test as u64),
        claim(&["BP_VERB_WAIT_SIGNAL"], Verb::WaitSignal as u64),
        claim(&["BP_VERB_PUT_LANES"], Verb::PutLanes as u64),
        claim(&["BP_VERB_PUT_BATCH"], Verb::PutBatch as u64),
        claim(&["BP_VERB_PUT_SET"], Verb::PutSet as u64),
        claim(&["BP_VERB_SIGNAL_ADD"], Verb::SignalAdd as u64),
        claim(&["BP_VERB_SIGNAL_SET"], Verb::SignalSet as u64),
        claim(&["BP_VERB_PUT_VALUE"], Verb::PutValue as u64),
        claim(&["BP_VERB_PUT_WITHIN"], Verb::PutWithin as u64),
        claim(&["BP_VERB_WAIT_WITHIN"], Verb::WaitWithin as u64),
        claim(&["BP_VERB_WAIT_LOCAL"], Verb::WaitLocal as u64),
        claim(&["BP_VERB_FENCE"], Verb::Fence as u64),
        claim(&["BP_VERB_COUNT_TICKETS"], Verb::CountTickets as u64),
        claim(&["BP_VERB_PUT_IMM"], Verb::PutImm as u64),
        claim(&["BP_VERB_SIGNAL_IMM"], Verb::SignalImm as u64),
        claim(&["BP_WATCH_TEST"], Watch::Test as u64),
        claim(&["BP_WATCH_WAIT"], Watch::Wait as u64),
        claim(&["BP_WATCH_ALL"], Watch::All as u64),
        claim(&["BP_WATCH_ANY"], Watch::Any as u64),
        claim(&["BP_WATCH_SOME"], Watch::Some as u64),
        claim(&["BP_CMP_EQ"], Cmp::Eq as u64),
        claim(&["BP_CMP_NE"], Cmp::Ne as u64),
        claim(&["BP_CMP_GT"], Cmp::Gt as u64),
        claim(&["BP_CMP_GE"], Cmp::Ge as u64),
        claim(&["BP_CMP_LT"], Cmp::Lt as u64),
        claim(&["BP_CMP_LE"], Cmp::Le as u64),
        claim(&["BP_SCOPE_THREAD"], Scope::Thread as u64),
        claim(&["BP_SCOPE_WARP"], Scope::Warp as u64),
        claim(&["BP_SCOPE_BLOCK"], Scope::Block as u64),
        claim(&["BP_LINK_RUN_ON"], LinkLap::RunOn as u64),
        claim(&["BP_LINK_FENCE_GPU"], LinkLap::FenceGpu as u64),
        claim(&["BP_LINK_FENCE_SYSTEM"], LinkLap::FenceSystem as u64),
        claim(&["BP_LINK_BARRIER"], LinkLap::Barrier as u64),
    ]);
    let codes = ["TIMEOUT", "CQE_ERROR", "DEAD", "INVALID", "PENDING"];
    let raw = |code| (1..10).find(|&raw| abi::Code::check(raw) == Err(code)).map(u64::from);
    use abi::Code::*;
    let known = [Timeout, CqeError, Dead, Invalid, Pending];
    claims.extend(codes.iter().zip(known).map(|(c, code)| claim(&[&format!("BP_{c}")], raw(code))));
    claims
}

// ---- Asking the C compiler ---------------------------------------------------------------------

const WIRE_HEADER: &str = "bellpush/wire.h";
const MLX5_HEADER: &str = "infiniband/mlx5dv.h";

fn about_mlx5(expression: &str) -> bool {
    expression.to_ascii_lowercase().contains("mlx5")
}

/// Values of C expressions, as the compiler sees them with these headers.
fn evaluate(headers: &[&str], expressions: &[&str]) -> BTreeMap<String, u64> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    let includes = headers.iter().map(|header| format!("#include <{header}>\n"));
    let prints = expressions.iter().map(|e| {
        format!("  printf(\"%s\\t%llu\\n\", \"{e}\", (unsigned long long)(uint64_t)({e}));\n")
    });
    let text = format!(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n{}int main(void) {{\n{}}}\n",
        includes.collect::<String>(),
        prints.collect::<String>()
    );
    std::fs::write(&source, text).expect("the scratch folder can be written");
    let mut cc = compiler();
    cc.arg("-I").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"));
    cc.arg("-I").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/include"));
    let built = cc.arg("-o").arg(&program).arg(&source).output().expect("cc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&program).output().expect("the program runs");
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).expect("text");
    let value = |line: &str| {
        let (name, value) = line.split_once('\t').expect("name and value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    printed.lines().map(value).collect()
}

fn compiler() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-Wall", "-Werror"]);
    cc
}

/// Claims that do not hold.
fn differences(claims: &[Claim], values: &BTreeMap<String, u64>) -> Vec<String> {
    let mut found = Vec::new();
    for claim in claims {
        let mut sides: Vec<(&str, u64)> = claim.rust.map(|v| ("Rust", v)).into_iter().collect();
        sides.extend(claim.c.iter().map(|c| (c.as_str(), values[c])));
        if sides.iter().any(|side| side.1 != sides[0].1) {
            let sides = sides.iter().map(|(name, value)| format!("{name} is {value:#x}"));
            found.push(sides.collect::<Vec<_>>().join(", but "));
        }
    }
    found
}

/// Checks claims against the compiler; returns how many values were compared.
#[track_caller]
fn check(headers: &[&str], claims: &[Claim]) -> usize {
    let expressions: Vec<&str> = claims.iter().flat_map(|c| &c.c).map(String::as_str).collect();
    let found = differences(claims, &evaluate(headers, &expressions));
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    expressions.len()
}

/// Whether mlx5dv.h is installed; its absence is a failure in CI.
fn has_mlx5_header() -> bool {
    let mut cc = compiler();
    let probe = format!("__has_include(<{MLX5_HEADER}>)");
    let dir = tempfile::tempdir().expect("a scratch folder");
    let source = dir.path().join("probe.c");
    std::fs::write(&source, format!("#if !{probe}\n#error absent\n#endif\n")).expect("written");
    let found = cc.arg("-E").arg(&source).output().expect("cc runs").status.success();
    let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(found || !ci, "<{MLX5_HEADER}> is absent: CI needs libibverbs-dev");
    found
}

#[test]
fn libmlx5_wire_h_and_rust_agree() {
    if !has_mlx5_header() {
        // Past the capture of a passing test's output.
        let said = "SKIPPED: no <infiniband/mlx5dv.h>; libibverbs-dev brings it";
        writeln!(std::io::stderr(), "{said}").expect("stderr takes a line");
        return;
    }
    let claims = [mlx5_structures(), mlx5_constants()].concat();
    assert!(check(&[MLX5_HEADER, WIRE_HEADER], &claims) > 150);
}

#[test]
fn our_headers_and_rust_agree() {
    let mut claims = [mlx5_structures(), mlx5_constants(), kernel_structures()].concat();
    claims.iter_mut().for_each(|claim| claim.c.retain(|c| !about_mlx5(c)));
    assert!(
        check(
            &[
                "entry/args.h",
                "entry/clock.h",
                "entry/peers.h",
                "bench/args.h",
                "collective/collective.h"
            ],
            &claims
        ) > 320
    );
}

/// Negative control: a wrong offset, size or constant on either side is told.
#[test]
fn a_wrong_layout_is_told() {
    let offset = "offsetof(struct bp_wqe_ctrl, imm)";
    let values = evaluate(&[WIRE_HEADER], &[offset, "BP_OP_SEND", "BP_OP_NOP"]);
    assert!(differences(&[claim(&[offset], 12)], &values).is_empty());
    let wrong = differences(&[claim(&[offset], 8)], &values);
    assert_eq!(wrong, [format!("Rust is 0x8, but {offset} is 0xc")]);
    let wrong = differences(&[claim(&["BP_OP_SEND", "BP_OP_NOP"], None)], &values);
    assert_eq!(wrong, ["BP_OP_SEND is 0xa, but BP_OP_NOP is 0x0"]);

    // A Rust type with two fields exchanged.
    #[repr(C)]
    struct Exchanged {
        lkey: u32,
        byte_count: u32,
        addr: u64,
    }
    let claims = layout!(Exchanged = bp_wqe_data { byte_count; lkey; addr; });
    let expressions: Vec<&str> = claims.iter().flat_map(|c| &c.c).map(String::as_str).collect();
    assert_eq!(differences(&claims, &evaluate(&[WIRE_HEADER], &expressions)).len(), 2);
}
