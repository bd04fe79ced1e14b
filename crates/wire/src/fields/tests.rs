use proptest::prelude::*;

use super::*;
use crate::cm::{MAD_BYTES, Mad, Message, MessageKind};
use crate::cqe::{CQE_BYTES, Cqe};
use crate::doorbell::{CqArm, Doorbell};
use crate::roce::{ICRC_BYTES, Opcode as PacketOpcode, Packet};
use crate::umr::Umr;
use crate::wqe::{Ctrl, Opcode, Wqe};

const ALL: [&Layout; 53] = [
    &COOKED,
    &COOKED2,
    &CTRL,
    &DOORBELL,
    &RADDR,
    &ATOMIC,
    &MASKED_CS_4,
    &MASKED_CS_8,
    &MASKED_FA_4,
    &MASKED_FA_8,
    &DATA,
    &INLINE,
    &AV,
    &AV_DC,
    &XRC,
    &super::UMR,
    &UMR_BSF,
    &BSF,
    &MKEY,
    &KLM,
    &MTT,
    &KSM,
    &REPEAT,
    &REPEAT_ENTRY,
    &LIST,
    &MMO,
    &WAIT,
    &NEXT,
    &CQE,
    &CQE_ERROR,
    &CQE_SIG_ERR,
    &DBR,
    &CQ_DBR,
    &CQ_DOORBELL,
    &ETHERNET,
    &VLAN,
    &IPV4,
    &IPV6,
    &UDP,
    &BTH,
    &RETH,
    &ATOMIC_ETH,
    &MASKS,
    &AETH,
    &ATOMIC_ACK_ETH,
    &DETH,
    &XRCETH,
    &DCETH,
    &IMM_DT,
    &IETH,
    &CNP,
    &ICRC,
    &MAD,
];

#[test]
fn fields_cover_every_bit_once() {
    for layout in ALL {
        let mut end = 0;
        for field in layout.fields {
            let (first, last) = field.span();
            assert_eq!(first, end, "{}: {}", layout.name, field.name);
            end = last;
        }
        assert_eq!(end, layout.bytes * 8, "{}", layout.name);
    }
}

#[test]
fn names_are_of_one_field_each() {
    for layout in ALL {
        let names = layout.fields.iter().filter(|field| !field.reserved).map(|field| field.name);
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{}: {names:?}", layout.name);
    }
}

#[test]
fn a_field_says_its_bits_and_its_number() {
    let bytes = [0, 0, 0, 0, 0x12, 0x34, 0x56, 0xc3];
    assert_eq!(CTRL.number("qpn_ds.qpn", &bytes), Some(0x12_3456));
    assert_eq!(CTRL.number("qpn_ds.ds", &bytes), Some(3));
    assert_eq!(CTRL.number("fm_ce_se.fm", &bytes), None, "the bytes end before it");
    let reserved = CTRL.fields.iter().find(|field| field.reserved).unwrap();
    assert_eq!((reserved.place(), reserved.value(&bytes)), (Some((7, 6)), Some(Value::Number(3))));
    assert_eq!(RADDR.fields[0].place(), None);
    let mac = AV.fields.iter().find(|field| field.name == "rmac").unwrap();
    assert_eq!(mac.value(&[7; 48]), Some(Value::Bytes(&[7; 6])));
}

#[test]
fn inline_data_end_within_the_wqe() {
    let with = |count: u8| {
        let mut wqe = [0; 32];
        (wqe[3], wqe[7], wqe[16], wqe[19]) = (Opcode::Send as u8, 2, 0x80, count);
        walk(&wqe, Sends::Connected)
    };
    assert_eq!((with(12).segments[1].body, with(12).beyond), (Body::Inline(20, 12), None));
    assert_eq!((with(13).segments.len(), with(13).beyond), (1, Some(16)), "one byte too many");
}

/// A UMR of Linux that takes its translation from memory: relaxed ordering, offsets of 48 bits, pages.
#[test]
fn a_umr_whose_translation_is_in_memory_has_a_data_segment() {
    let mut wqe = [0; 144];
    (wqe[3], wqe[7], wqe[16 + 5]) = (Opcode::Umr as u8, 9, 64);
    let key = 64;
    (wqe[16 + 0x13], wqe[key + 1], wqe[key + 0xc], wqe[key + 0xf]) = (3, 4, 0x80, 5);
    (wqe[key + 0x3b], wqe[128 + 3]) = (0x40 | 33, 64);
    let walked = walk(&wqe, Sends::Connected);
    let layouts: Vec<_> = walked.segments.iter().map(|segment| segment.layout.name).collect();
    assert_eq!(layouts, ["ctrl", "umr_ctrl", "mkey_context", "data"]);
    assert_eq!((walked.beyond, walked.end), (None, 144));
    for (layout, name, value) in [
        (&super::UMR, "xlt_offset_47_16", 3),
        (&MKEY, "relaxed_ordering_write", 1),
        (&MKEY, "flags_pd.length64", 1),
        (&MKEY, "flags_pd.pd", 5),
        (&MKEY, "relaxed_ordering_read", 1),
        (&MKEY, "log_page_size", 33),
    ] {
        assert_eq!(number(&walked, layout, name, &wqe), value, "{name}");
    }
    let set = |segment: &Segment| {
        let bytes = &wqe[segment.at..];
        let fields = segment.layout.fields.iter();
        fields.filter(|f| f.reserved).any(|f| !f.value(bytes).unwrap().is_zero())
    };
    assert!(!walked.segments.iter().any(set), "none of them is reserved");
    assert_eq!(walk(&wqe[..128], Sends::Connected).beyond, Some(128));
}

/// The number in a field of a WQE's segment.
fn number(walk: &Walk, layout: &Layout, name: &str, bytes: &[u8]) -> u64 {
    let segment = walk.segments.iter().find(|segment| segment.layout == layout).unwrap();
    layout.number(name, &bytes[segment.at..]).unwrap()
}

proptest! {
    #[test]
    fn a_walk_finds_what_the_parser_finds(
        mut bytes in proptest::collection::vec(any::<u8>(), 16..1008),
        code in 0_u8..0x30, ds in 1_u8..12, op_mod in 8_u8..10, which in 0..4_usize,
    ) {
        (bytes[0], bytes[3], bytes[7]) = (op_mod, code, ds);
        let whole = usize::from(ds) * 16;
        let parse: fn(&[u8]) -> _ = [Wqe::parse, Wqe::parse_datagram, Wqe::parse_xrc, Wqe::parse_dc][which];
        let sends = [Sends::Connected, Sends::Datagrams, Sends::Xrc, Sends::Dynamic][which];
        let parsed = parse(&bytes);
        let walked = walk(&bytes[..whole.min(bytes.len())], sends);
        let ctrl = Ctrl::parse(&bytes).unwrap();
        prop_assert_eq!(CTRL.number("opmod_idx_opcode.wqe_index", &bytes), Some(ctrl.index.into()));
        prop_assert_eq!(CTRL.number("qpn_ds.qpn", &bytes), Some(ctrl.qpn.0.into()));
        prop_assert_eq!(CTRL.number("qpn_ds.ds", &bytes), Some(ctrl.ds.into()));
        prop_assert_eq!(CTRL.number("imm", &bytes), Some(ctrl.imm.into()));
        prop_assert_eq!(CTRL.number("dci_stream_channel_id", &bytes), Some(ctrl.stream.into()));
        prop_assert_eq!(CTRL.number("fm_ce_se.fm", &bytes) != Some(0), ctrl.flags.fence);
        prop_assert_eq!(CTRL.number("fm_ce_se.se", &bytes) != Some(0), ctrl.flags.solicited);
        let register = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let rung = Doorbell::parse(register);
        prop_assert_eq!(DOORBELL.number("qpn_ds.qpn", &bytes), Some(rung.qpn.0.into()));
        let Ok(wqe) = parsed else { return Ok(()) };
        if wqe.opcode.is_local() {
            return Ok(()); // bytes behind its segments are not looked at
        }
        prop_assert_eq!(walked.beyond, None);
        if let Some(remote) = wqe.remote {
            prop_assert_eq!(number(&walked, &RADDR, "raddr", &bytes), remote.addr.0);
            prop_assert_eq!(number(&walked, &RADDR, "rkey", &bytes), u64::from(remote.rkey.0));
        }
        if let (Some(atomic), None) = (wqe.atomic, wqe.masks) {
            prop_assert_eq!(number(&walked, &ATOMIC, "swap_add", &bytes), atomic.swap_add);
        }
        if let Some(masks) = wqe.masks {
            let (name, layout) = match (wqe.opcode, masks.bytes) {
                (Opcode::AtomicMaskedCs, 4) => ("swap_mask", &MASKED_CS_4),
                (Opcode::AtomicMaskedCs, _) => ("swap_mask", &MASKED_CS_8),
                (_, 4) => ("field_boundary", &MASKED_FA_4),
                _ => ("field_boundary", &MASKED_FA_8),
            };
            prop_assert_eq!(number(&walked, layout, name, &bytes), masks.change);
        }
        if let Some(datagram) = wqe.datagram {
            let av = walked.segments[1];
            let field = |name| av.layout.number(name, &bytes[av.at..]);
            prop_assert_eq!(field("dqp_dct"), Some(datagram.qpn.0.into()));
            prop_assert_eq!(field("rlid_udp_sport"), Some(datagram.src_port.into()));
            prop_assert_eq!(field("tclass"), Some(datagram.traffic_class.into()));
            prop_assert_eq!(field("grh_gid_fl.flow_label"), Some(datagram.flow_label.into()));
        }
        if let Some(srqn) = wqe.srqn {
            prop_assert_eq!(number(&walked, &XRC, "xrc_srqn", &bytes), u64::from(srqn));
        }
        let payload = walked.segments.iter().filter(|s| s.layout == &DATA || s.layout == &INLINE);
        prop_assert_eq!(payload.count(), wqe.pieces(&bytes).count());
    }

    #[test]
    fn any_bytes_can_be_walked(bytes in proptest::collection::vec(any::<u8>(), 0..1100), shared: bool) {
        for sends in [Sends::Connected, Sends::Datagrams, Sends::Xrc, Sends::Dynamic] {
            let walked = walk(&bytes, sends);
            let ends = walked.segments.iter().map(|s| match s.body {
                Body::None => s.at + s.layout.bytes,
                Body::Inline(at, len) => at + len,
            });
            prop_assert!(ends.clone().all(|end| end <= bytes.len()));
        }
        receives(&bytes, shared);
    }

    #[test]
    fn a_umrs_fields_are_those_that_are_parsed(
        start in 1_u64.., len in 1_u64.., qpn in 0_u32..1 << 24, tag: u8
    ) {
        let umr = Umr {
            start: Some(crate::Iova(start)), bytes: Some(len), qpn: Some(crate::Qpn(qpn)), tag: Some(tag),
            check_free: true, ..Umr::default()
        };
        let mut bytes = vec![0; umr.wqe_bytes()];
        umr.emit(7, Default::default(), (3, crate::Qpn(9)), &mut bytes).unwrap();
        let walked = walk(&bytes, Sends::Connected);
        prop_assert_eq!(number(&walked, &MKEY, "start_addr", &bytes), start);
        prop_assert_eq!(number(&walked, &MKEY, "len", &bytes), len);
        prop_assert_eq!(number(&walked, &MKEY, "qpn_mkey.qpn", &bytes), u64::from(qpn));
        prop_assert_eq!(number(&walked, &MKEY, "qpn_mkey.mkey", &bytes), u64::from(tag));
        prop_assert_eq!(number(&walked, &super::UMR, "flags.check_free", &bytes), 1);
    }

    #[test]
    fn an_entrys_fields_are_those_that_are_parsed(mut bytes: [u8; CQE_BYTES], code in 0_u8..7, error: bool) {
        bytes[63] = bytes[63] & 0xf | if error { 0xd + code % 2 } else { code } << 4;
        let cqe = Cqe::parse(&bytes).unwrap();
        let (layout, qpn) = match error {
            true => (&CQE_ERROR, "s_wqe_opcode_qpn.qpn"),
            false => (&CQE, "sop_drop_qpn.qpn"),
        };
        let field = |name| layout.number(name, &bytes);
        prop_assert_eq!(field(qpn), Some(cqe.qpn.0.into()));
        prop_assert_eq!(field("wqe_counter"), Some(cqe.wqe_counter.into()));
        prop_assert_eq!(field("op_own.se"), Some(cqe.solicited.into()));
        if error {
            prop_assert_eq!(field("syndrome"), Some(cqe.syndrome.into()));
            prop_assert_eq!(field("vendor_err_synd"), Some(cqe.vendor_err.into()));
        } else {
            prop_assert_eq!(field("byte_cnt"), Some(cqe.byte_cnt.into()));
            prop_assert_eq!(field("imm_inval_pkey"), Some(cqe.imm.into()));
            prop_assert_eq!(field("flags_rqpn.rqpn"), Some(cqe.source.0.into()));
        }
    }

    #[test]
    fn arm_words_have_the_parsers_places(word: u32) {
        let bytes = [[0; 4], word.to_be_bytes()].concat();
        let arm = CqArm::parse(word.to_be());
        prop_assert_eq!(CQ_DBR.number("arm.ci", &bytes), Some(arm.ci.into()));
        prop_assert_eq!(CQ_DBR.number("arm.cmd_sn", &bytes), Some(arm.sequence.into()));
        prop_assert_eq!(CQ_DBR.number("arm.cmd", &bytes), Some(arm.solicited_only.into()));
    }

    #[test]
    fn a_packets_headers_are_those_that_are_parsed(code: u8, head: [u8; 100]) {
        let Some(opcode) = PacketOpcode::from_code(code) else { return Ok(()) };
        let set = opcode.extensions();
        prop_assert_eq!(extensions(set).map(|layout| layout.bytes).sum::<usize>(), set.bytes());
        let mut bytes = head[..BTH.bytes + set.bytes() + ICRC_BYTES].to_vec();
        (bytes[0], bytes[1]) = (code, bytes[1] & 0xc0);
        let Ok(packet) = Packet::parse(&bytes) else { return Ok(()) };
        let (bth, ext) = (packet.headers.bth, packet.headers.ext);
        prop_assert_eq!(BTH.number("PSN", &bytes), Some(bth.psn.value().into()));
        prop_assert_eq!(BTH.number("DestQP", &bytes), Some(bth.dest.0.into()));
        prop_assert_eq!(BTH.number("A", &bytes), Some(bth.ack_req.into()));
        prop_assert_eq!(BTH.number("P_Key", &bytes), Some(bth.pkey.into()));
        let mut at = BTH.bytes;
        for layout in extensions(set) {
            let field = |name| layout.number(name, &bytes[at..]);
            if layout == &RETH {
                prop_assert_eq!(field("DMALen"), ext.reth.map(|reth| reth.bytes.into()));
            } else if layout == &DETH {
                prop_assert_eq!(field("SrcQP"), ext.deth.map(|deth| deth.source.0.into()));
            } else if layout == &IETH {
                prop_assert_eq!(field("R_Key"), ext.ieth.map(|key| key.0.into()));
            } else if layout == &IMM_DT {
                prop_assert_eq!(field("ImmDt"), ext.imm.map(u64::from));
            } else if layout == &XRCETH {
                prop_assert_eq!(field("XRCSRQ"), ext.srqn.map(u64::from));
            } else if layout == &ATOMIC_ETH {
                prop_assert_eq!(field("CmpDt"), ext.atomic.map(|atomic| atomic.compare));
            } else if layout == &AETH {
                prop_assert_eq!(field("MSN"), ext.aeth.map(|aeth| aeth.msn.into()));
            }
            at += layout.bytes;
        }
    }

    #[test]
    fn a_messages_fields_are_those_that_are_parsed(data in proptest::collection::vec(any::<u8>(), MAD_BYTES)) {
        let mut bytes: [u8; MAD_BYTES] = data.try_into().unwrap();
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, 0x10]);
        let mad = Mad::parse(&bytes).unwrap();
        prop_assert_eq!(MAD.number("TransactionID", &bytes), Some(mad.transaction));
        let Message::Req(req) = mad.message else { unreachable!() };
        let fields = MessageKind::Req.fields();
        prop_assert!(fields.windows(2).all(|two| two[0].at <= two[1].at));
        let field = |name| {
            let field = fields.iter().find(|field| field.name == name).unwrap();
            match field.value(&bytes[MAD.bytes..]).unwrap() {
                Value::Number(n) => n,
                Value::Bytes(_) => unreachable!(),
            }
        };
        prop_assert_eq!(field("service"), req.service);
        prop_assert_eq!(field("qpn"), u64::from(req.qpn));
        prop_assert_eq!(field("retry"), u64::from(req.retry));
        prop_assert_eq!(field("flow_label"), u64::from(req.path.flow_label));
        prop_assert_eq!(MessageKind::from_attribute(0x10), Some(MessageKind::Req));
        prop_assert_eq!(MessageKind::from_attribute(0x19), None);
    }
}
