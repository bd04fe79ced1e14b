//! Memory windows, keys that stand for lists and strides, and their invalidation, here and from the
//! other end, over packets.

use crate::queue_pairs::{self, Buf, Pair, attr, inline, pattern, syndromes};
use bellpush::nic::soft::{MkeyAttr, MwType, SoftNic};
use bellpush::nic::{Change, NicError, QpState, QpType, QueuePair};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::umr::{Part, Translation, Umr, mask};
use bellpush::wire::wqe::{Flags, Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Lkey, Rkey};

fn pair(faults: &str) -> Pair {
    Pair::on_packets(faults, &attr(), &attr(), &Change::default())
}

fn key(base: Rkey, tag: u8) -> Rkey {
    Rkey(base.0 & !0xff | u32::from(tag))
}

/// What libmlx5 posts for `ibv_wr_bind_mw`: a window of type 2 on `bytes` bytes at `offset` of B's
/// buffer.
fn bind(p: &Pair, tag: u8, (offset, bytes): (u64, u32), rights: u64) -> Umr {
    let addr = p.b.buf.at(offset);
    let part = Part { addr, lkey: p.b.buf.mr.lkey, bytes, stride: 0 };
    Umr {
        check_free: true,
        tag: Some(tag),
        qpn: Some(p.b.qp.qpn()),
        free: Some(false),
        start: Some(addr),
        bytes: Some(bytes.into()),
        rights: (mask::RIGHTS, rights),
        translation: Some(Translation { repeat: 1, parts: vec![part] }),
        ..Umr::default()
    }
}

/// Posts a UMR at B, settles, and takes B's completions.
fn umr_at_b(p: &mut Pair, key: Rkey, umr: &Umr) -> Vec<Cqe> {
    p.b.host.sq.post_umr(key, umr, Flags::SIGNALLED).unwrap();
    p.b.host.sq.ring().unwrap();
    p.settle();
    std::iter::from_fn(|| p.b.host.poll_send().unwrap()).collect()
}

fn window(p: &mut Pair, kind: MwType, range: (u64, u32), rights: u64) -> Rkey {
    let nic = p.nics[1].clone();
    let mw = nic.alloc_mw(nic.default_pd(), kind).unwrap();
    let umr = bind(p, 0x42, range, rights);
    let cqes = umr_at_b(p, mw, &umr);
    assert_eq!((cqes.len(), cqes[0].opcode, cqes[0].send_opcode), (1, CqeOpcode::Req, 0x25));
    key(mw, 0x42)
}

fn write(p: &mut Pair, rkey: Rkey, at: Iova, bytes: &[u8]) -> Vec<Cqe> {
    p.send(&SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&inline(bytes)))
}

#[test]
fn a_window_lets_peers_reach_its_range_and_no_more() {
    for kind in [MwType::One, MwType::Two] {
        let mut p = pair("");
        let rights = mask::REMOTE_WRITE | mask::REMOTE_READ | mask::ATOMIC;
        let rkey = window(&mut p, kind, (1000, 400), rights);
        let at = p.b.buf.at(1000);
        let data = pattern(400, 3);
        p.a.buf.put(0, &data);
        let all = [p.a.buf.data(0, 400)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(at, rkey);
        assert_eq!(syndromes(&p.send(&wr.payload(&all))), [None]);
        assert_eq!(p.b.buf.get(1000, 400), data);
        let back = [p.a.buf.data(5000, 300)];
        let wr = SendWr::new(Opcode::RdmaRead).to(Iova(at.0 + 100), rkey);
        assert_eq!(syndromes(&p.send(&wr.payload(&back))), [None]);
        assert_eq!(p.a.buf.get(5000, 300), data[100..]);
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) }.to(at, rkey);
        assert_eq!(syndromes(&p.send(&wr.payload(&[p.a.buf.data(0, 8)]))), [None]);
        // One byte more is refused, and nothing of it is written.
        p.b.buf.put(1000, &[0; 400]);
        let over = vec![7; 401];
        assert_eq!(syndromes(&write(&mut p, rkey, at, &over)), [Some(Syndrome::RemoteAccess)]);
        assert_eq!(p.b.buf.get(1000, 402), [0; 402]);
    }
}

#[test]
fn rights_and_keys_of_a_window_are_its_own() {
    let writes = |p: &mut Pair, rkey| {
        let at = p.b.buf.at(0);
        syndromes(&write(p, rkey, at, b"x"))
    };
    let refused = [Some(Syndrome::RemoteAccess)];
    let mut p = pair("");
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_READ);
    assert_eq!(writes(&mut p, rkey), refused, "it may be read only");
    let mut p = pair("");
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    assert_eq!(writes(&mut p, key(rkey, 0x43)), refused, "another key");
    let mut p = pair("");
    let nic = p.nics[1].clone();
    let free = nic.alloc_mw(nic.default_pd(), MwType::Two).unwrap();
    assert_eq!(writes(&mut p, free), refused, "not bound yet");
    let mut p = pair("");
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    assert_eq!(writes(&mut p, rkey), [None], "control");
    let cqes = umr_at_b(&mut p, rkey, &Umr::invalidate());
    assert_eq!(syndromes(&cqes), [None]);
    assert_eq!(writes(&mut p, rkey), refused, "taken back");
}

#[test]
fn a_bind_that_is_refused_ends_the_queue_pair_and_changes_nothing() {
    let mut p = pair("");
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    let over = bind(&p, 0x50, (queue_pairs::BUF_BYTES as u64 - 4, 8), mask::REMOTE_WRITE);
    let over = Umr { check_free: false, ..over };
    let cqes = umr_at_b(&mut p, rkey, &over);
    assert_eq!(syndromes(&cqes), [Some(Syndrome::MwBind)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
    // The window still is what it was: seen from another queue pair it would be refused, so look
    // at it by another bind, which finds it in use.
    let mut q = pair("");
    let bound = window(&mut q, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    let again = bind(&q, 0x51, (0, 64), mask::REMOTE_WRITE);
    assert_eq!(syndromes(&umr_at_b(&mut q, bound, &again)), [Some(Syndrome::MwBind)]);
    // A key that is a region's, one of another domain, and bytes that are no UMR.
    for bad in 0..3 {
        let mut p = pair("");
        let nic = p.nics[1].clone();
        let foreign = nic.alloc_mw(&nic.create_pd().unwrap(), MwType::Two).unwrap();
        let mine = nic.alloc_mw(nic.default_pd(), MwType::Two).unwrap();
        let umr = bind(&p, 1, (0, 8), mask::REMOTE_WRITE);
        let target = [p.b.buf.mr.rkey, foreign, mine][bad];
        p.b.host.sq.post_umr(target, &umr, Flags::SIGNALLED).unwrap();
        if bad == 2 {
            p.b.qp.queues().sq.write_u8(16, 0xff);
        }
        p.b.host.sq.ring().unwrap();
        p.settle();
        let cqe = p.b.host.poll_send().unwrap().unwrap();
        assert_eq!(syndromes(&[cqe]), [Some(Syndrome::MwBind)], "case {bad}");
        let _ = p.b.host.poll_recv();
    }
}

trait WriteByte {
    fn write_u8(&self, at: usize, byte: u8);
}

impl WriteByte for bellpush::mem::View {
    fn write_u8(&self, at: usize, byte: u8) {
        use bellpush::mem::Dma;
        self.write(at, &[byte]).unwrap();
    }
}

#[test]
fn a_umr_waits_for_what_is_before_it_and_holds_up_what_is_behind() {
    // On a lossy link, so that messages are sent again while the UMR waits.
    let mut p = pair("loss=10%,reorder=5%,seed=5");
    let nic = p.nics[1].clone();
    let attr = MkeyAttr { octowords: 4, remote_invalidate: false, tag: Some(0) };
    let list = nic.create_mkey(nic.default_pd(), attr).unwrap();
    let data = pattern(6000, 9);
    p.b.buf.put(0, &data);
    let part =
        |at: u64, bytes| Part { addr: p.b.buf.at(at), lkey: p.b.buf.mr.lkey, bytes, stride: 0 };
    let config = |parts: Vec<Part>| Umr {
        tag: Some(0),
        free: Some(false),
        bytes: Some(parts.iter().map(|p| u64::from(p.bytes)).sum()),
        rights: (mask::RIGHTS, mask::LOCAL_WRITE),
        translation: Some(Translation { repeat: 1, parts }),
        ..Umr::default()
    };
    let (first, second) =
        (config(vec![part(4000, 2000), part(0, 1000)]), config(vec![part(1000, 3000)]));
    let through = [Piece::Data(Sge { addr: Iova(0), lkey: Lkey(list.0), bytes: 3000 })];
    let write = |to| SendWr::new(Opcode::RdmaWrite).to(to, p.a.buf.mr.rkey).payload(&through);
    let sq = &mut p.b.host.sq;
    sq.post_umr(list, &first, Flags::default()).unwrap();
    sq.post(&write(p.a.buf.at(0))).unwrap();
    sq.post_umr(list, &second, Flags::default()).unwrap();
    sq.post(&write(p.a.buf.at(10_000))).unwrap();
    sq.post_umr(list, &Umr::invalidate(), Flags::SIGNALLED).unwrap();
    sq.ring().unwrap();
    let mut done = vec![];
    assert!(p.run_until(60_000_000_000, |p| {
        done.extend(std::iter::from_fn(|| p.b.host.poll_send().unwrap()));
        done.iter().any(|cqe: &Cqe| cqe.send_opcode == 0x25)
    }));
    assert!(done.iter().all(|cqe| !cqe.opcode.is_error()), "{done:?}");
    assert!(p.a.buf.get(0, 3000) == [&data[4000..6000], &data[..1000]].concat());
    assert!(p.a.buf.get(10_000, 3000) == data[1000..4000]);
    // It stands for nothing any more.
    p.b.host.send(&SendWr::new(Opcode::Send).payload(&through)).unwrap();
    p.run_until(1_000_000, |_| false);
    let last = p.b.host.poll_send().unwrap().unwrap();
    assert_eq!(syndromes(&[last]), [Some(Syndrome::LocalProt)]);
}

/// A key over B's buffer as `mlx5dv_wr_mr_interleaved` makes one.
fn interleaved(nic: &SoftNic, buf: &Buf) -> (Rkey, Umr, Vec<usize>) {
    let attr = MkeyAttr { octowords: 4, remote_invalidate: true, tag: Some(0) };
    let mkey = nic.create_mkey(nic.default_pd(), attr).unwrap();
    let part = |at| Part { addr: buf.at(at), lkey: buf.mr.lkey, bytes: 8, stride: 10 };
    let translation = Translation { repeat: 3, parts: vec![part(0), part(64)] };
    let umr = Umr {
        tag: Some(0),
        free: Some(false),
        bytes: Some(48),
        rights: (mask::RIGHTS, mask::LOCAL_WRITE | mask::REMOTE_WRITE | mask::REMOTE_READ),
        translation: Some(translation),
        ..Umr::default()
    };
    let places = [0, 64, 10, 74, 20, 84].iter().flat_map(|&at| at..at + 8).collect();
    (mkey, umr, places)
}

#[test]
fn strides_are_gathered_scattered_written_and_read() {
    let mut p = pair("");
    let (mkey, umr, places) = interleaved(&p.nics[1], &p.b.buf);
    assert_eq!(syndromes(&umr_at_b(&mut p, mkey, &umr)), [None]);
    let lkey = Lkey(mkey.0);
    let data = pattern(48, 1);
    let at_places = |p: &Pair| places.iter().map(|&at| p.b.buf.get(at, 1)[0]).collect::<Vec<_>>();
    // A receive through the key, with a byte before it and one behind it.
    let sges = [p.b.buf.sge(500, 1), Sge { addr: Iova(0), lkey, bytes: 48 }, p.b.buf.sge(501, 1)];
    p.b.host.rq.post(&sges).unwrap();
    let all = [&[0xa1], &data[..], &[0xa2]].concat();
    p.send(&SendWr::new(Opcode::Send).payload(&inline(&all)));
    assert_eq!(p.received()[0].byte_cnt, 50);
    assert_eq!((at_places(&p), p.b.buf.get(500, 2)), (data.clone(), vec![0xa1, 0xa2]));
    assert_eq!(p.b.buf.get(8, 2), [0, 0], "what lies between is let alone");
    // A WRITE and a READ from the other end, of a part in the middle.
    let part = pattern(20, 7);
    assert_eq!(syndromes(&write(&mut p, mkey, Iova(5), &part)), [None]);
    let expected = [&data[..5], &part, &data[25..]].concat();
    assert_eq!(at_places(&p), expected);
    let wr = SendWr::new(Opcode::RdmaRead).to(Iova(0), mkey);
    let payload = [p.a.buf.data(0, 48)];
    p.send(&wr.payload(&payload));
    assert_eq!(p.a.buf.get(0, 48), expected);
    // A gather.
    p.a.host.rq.post(&[p.a.buf.sge(100, 48)]).unwrap();
    let payload = [Piece::Data(Sge { addr: Iova(0), lkey, bytes: 48 })];
    p.b.host.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
    p.run_for(50_000);
    assert_eq!(syndromes(&[p.b.host.poll_send().unwrap().unwrap()]), [None]);
    assert_eq!(p.a.host.poll_recv().unwrap().unwrap().byte_cnt, 48);
    assert_eq!(p.a.buf.get(100, 48), expected);
    // An atomic needs its 8 bytes in one place.
    let atomic = Some(Operands { swap_add: 1, compare: 0 });
    let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) }.to(Iova(0), mkey);
    let cqes = p.send(&wr.payload(&[p.a.buf.data(0, 8)]));
    assert_eq!(syndromes(&cqes), [Some(Syndrome::RemoteAccess)], "no right to atomics");
}

fn send_inval(p: &mut Pair, key: Rkey) -> Vec<Cqe> {
    let payload = inline(b"take it back");
    p.send(&SendWr { imm: key.0, ..SendWr::new(Opcode::SendInval) }.payload(&payload))
}

#[test]
fn a_send_takes_a_peers_key_back() {
    let mut p = pair("");
    let (mkey, umr, _) = interleaved(&p.nics[1], &p.b.buf);
    assert_eq!(syndromes(&umr_at_b(&mut p, mkey, &umr)), [None]);
    p.b.host.rq.post(&[p.b.buf.sge(200, 64)]).unwrap();
    assert_eq!(syndromes(&send_inval(&mut p, mkey)), [None]);
    let got = p.received();
    assert_eq!((got[0].opcode, got[0].imm, got[0].byte_cnt), (CqeOpcode::RespSendInv, mkey.0, 12));
    assert_eq!(p.b.buf.get(200, 12), b"take it back");
    assert_eq!(syndromes(&write(&mut p, mkey, Iova(0), b"x")), [Some(Syndrome::RemoteAccess)]);

    // A window, by a message of several packets.
    let mut p = Pair::on_packets(
        "",
        &attr(),
        &attr(),
        &Change { path_mtu: bellpush::nic::Mtu::new(256), ..Change::default() },
    );
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    p.b.host.rq.post(&[p.b.buf.sge(1000, 1000)]).unwrap();
    let payload = [p.a.buf.data(0, 1000)];
    let wr = SendWr { imm: rkey.0, ..SendWr::new(Opcode::SendInval) };
    assert_eq!(syndromes(&p.send(&wr.payload(&payload))), [None]);
    assert_eq!(p.received()[0].opcode, CqeOpcode::RespSendInv);
    let rebound = bind(&p, 0x43, (0, 64), mask::REMOTE_WRITE);
    assert_eq!(syndromes(&umr_at_b(&mut p, rkey, &rebound)), [None], "it is free again");
}

#[test]
fn a_send_takes_back_no_other_keys() {
    let cases: [fn(&mut Pair) -> Rkey; 4] = [
        |p| p.b.buf.mr.rkey,
        |_| Rkey(0xdead_be00),
        |p| window(p, MwType::One, (0, 64), mask::REMOTE_WRITE),
        |p| {
            let nic = p.nics[1].clone();
            nic.alloc_mw(&nic.create_pd().unwrap(), MwType::Two).unwrap()
        },
    ];
    for (i, make) in cases.into_iter().enumerate() {
        let mut p = pair("");
        let rkey = make(&mut p);
        p.b.host.rq.post(&[p.b.buf.sge(200, 64)]).unwrap();
        assert_eq!(syndromes(&send_inval(&mut p, rkey)), [Some(Syndrome::RemoteAccess)], "{i}");
        assert_eq!(syndromes(&p.received()), [Some(Syndrome::WrFlush)], "{i}");
        assert_eq!(p.b.buf.get(200, 12), [0; 12], "nothing of the message is taken");
    }
    // Unreliable connections have no such SEND.
    let mut p = Pair::typed(QpType::Uc, "", &attr(), &Change::default());
    assert_eq!(syndromes(&send_inval(&mut p, Rkey(0x500))), [Some(Syndrome::LocalQpOp)]);
}

#[test]
fn an_unreliable_connection_binds_windows_too() {
    let mut p = Pair::typed(QpType::Uc, "", &attr(), &Change::default());
    let rkey = window(&mut p, MwType::Two, (0, 64), mask::REMOTE_WRITE);
    let at = p.b.buf.at(0);
    write(&mut p, rkey, at, b"through");
    assert_eq!(p.b.buf.get(0, 7), b"through");
    assert_eq!(syndromes(&umr_at_b(&mut p, rkey, &Umr::invalidate())), [None]);
    write(&mut p, rkey, at, b"nothing");
    assert_eq!(p.b.buf.get(0, 7), b"through");
}

#[test]
fn the_in_process_link_has_no_such_keys_and_says_so() {
    let mut p = Pair::new(&attr());
    let nic = p.nics[1].clone();
    let refused = nic.alloc_mw(nic.default_pd(), MwType::Two);
    assert!(matches!(refused, Err(NicError::Attribute { .. })), "{refused:?}");
    let umr = bind(&p, 1, (0, 8), mask::REMOTE_WRITE);
    let cqes = umr_at_b(&mut p, Rkey(0x500), &umr);
    assert_eq!(syndromes(&cqes), [Some(Syndrome::LocalQpOp)]);
}
