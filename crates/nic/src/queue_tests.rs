//! Rings, records and windows as a NIC finds them, and credits against a model.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::slots::HostSlots;
use crate::{Inband, LineFormat, Mtu, NicAddress, NicError, QpAddress, QpState};
use bellpush_mem::HostMem;
use bellpush_wire::cqe::{CqeOpcode, OP_OWN_INIT};
use bellpush_wire::doorbell::{DBR_BYTES, UAR_BYTES};
use bellpush_wire::inband::slot_of;
use bellpush_wire::wqe::{Opcode, Piece};
use bellpush_wire::{Iova, Lkey, Psn};

const QPN: Qpn = Qpn(0x12_3456);

fn view(bytes: usize) -> View {
    View::new(&HostMem::alloc(bytes.max(64)).unwrap(), 0, bytes).unwrap()
}

fn queues(sq_blocks: usize, rq_bytes: usize, rq_stride_log: u32, cqes: usize) -> Queues {
    let cq = || {
        let cq = view(cqes * CQE_BYTES);
        (0..cqes).for_each(|i| cq.write(i * CQE_BYTES + CQE_BYTES - 1, &[OP_OWN_INIT]).unwrap());
        cq
    };
    Queues {
        sq: view(sq_blocks * WQEBB_BYTES),
        rq: view(rq_bytes),
        rq_stride_log,
        dbr: view(DBR_BYTES),
        uar: view(UAR_BYTES),
        order: Order::Strict,
        send_cq: cq(),
        send_cq_dbr: view(DBR_BYTES),
        recv_cq: cq(),
        recv_cq_dbr: view(DBR_BYTES),
    }
}

fn bytes(view: &View, at: usize, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    view.read(at, &mut all).unwrap();
    all
}

/// Inline bytes for a WQE of so many blocks.
fn inline(blocks: u32) -> Vec<u8> {
    (0..blocks as usize * WQEBB_BYTES - 36).map(|i| i as u8).collect()
}

fn write<'a>(payload: &'a [Piece<'a>]) -> SendWr<'a> {
    SendWr::new(Opcode::RdmaWrite).to(Iova(0x1000), Rkey(7)).payload(payload)
}

#[test]
fn blocks_come_back_when_their_wqe_is_reported() {
    const BLOCKS: u32 = 8;
    let q = queues(BLOCKS as usize, 0, 4, 0);
    let mut sq = HostSq::new(QPN, &q);
    let mut posted: VecDeque<(u64, u32)> = VecDeque::new();
    let mut next = 0;
    let mut random = 7u32;
    // Past the wrap of the index on the wire.
    while next < 3 << 16 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let used: u32 = posted.iter().map(|wqe| wqe.1).sum();
        assert_eq!((sq.free(), sq.producer()), (BLOCKS - used, next));
        let need = 1 + (random >> 20) % 3;
        if random >> 30 != 0 {
            let data = inline(need);
            let payload = [Piece::Inline(&data)];
            let wr = write(&payload);
            if need > BLOCKS - used {
                let error = sq.post(&wr).unwrap_err();
                let QueueError::Full { need: n, free } = error else { panic!("{error}") };
                assert_eq!((n, free), (need, BLOCKS - used));
                continue;
            }
            assert_eq!(sq.post(&wr).unwrap(), next);
            let mut wqe = vec![0; need as usize * WQEBB_BYTES];
            wr.emit(next as u16, QPN, &mut wqe).unwrap();
            for (i, block) in wqe.chunks(WQEBB_BYTES).enumerate() {
                let at = (next as usize + i) % BLOCKS as usize * WQEBB_BYTES;
                assert_eq!(bytes(&q.sq, at, WQEBB_BYTES), block, "block {i} of {next}");
            }
            posted.push_back((next, need));
            next += u64::from(need);
            let bell = sq.bell();
            assert_eq!(
                (bell.dbr, bell.uar),
                (dbr_word(next as u16), register_of(wqe.first_chunk().unwrap()))
            );
        } else {
            // Counters of what is not posted free nothing.
            let first = next - u64::from(used);
            for nobodys in [next, next + 1, next + u64::from(BLOCKS), first.wrapping_sub(1)] {
                sq.retire(nobodys as u16);
                assert_eq!(sq.free(), BLOCKS - used, "{nobodys} of {first} to {next}");
            }
            // One completion reports all before it.
            let take = (random >> 10) as usize % (posted.len() + 1);
            if let Some(last) = posted.drain(..take).next_back() {
                sq.retire(last.0 as u16);
            }
        }
    }
}

#[test]
fn a_bell_is_stored_where_the_nic_looks() {
    let q = queues(4, 0, 4, 0);
    let mut sq = HostSq::new(QPN, &q);
    let (index, bell) = sq.prepare(&write(&[])).unwrap();
    assert_eq!((index, bell.dbr_addr, bell.uar_addr), (0, q.dbr.addr() + 4, q.uar.addr() + 0x800));
    assert_eq!(bytes(&q.uar, 0x800, 8), [0; 8], "somebody else rings");
    sq.ring().unwrap();
    assert_eq!(bytes(&q.dbr, 0, 8), [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes(&q.uar, 0x800, 8), [0, 0, 0, 8, 0x12, 0x34, 0x56, 2]);
    assert_eq!(bell.uar.to_ne_bytes()[..], bytes(&q.uar, 0x800, 8));
}

#[test]
fn a_umr_takes_its_blocks() {
    let q = queues(8, 0, 4, 0);
    let mut sq = HostSq::new(QPN, &q);
    let umr = Umr::invalidate();
    assert_eq!(sq.post_umr(Rkey(0x501), &umr, Flags::SIGNALLED).unwrap(), 0);
    assert_eq!((sq.free(), sq.producer()), (6, 2));
    assert_eq!(bytes(&q.sq, 0, 16), [0, 0, 0, 0x25, 0x12, 0x34, 0x56, 8, 0, 0, 0, 8, 0, 0, 5, 1]);
    sq.post_umr(Rkey(0x501), &umr, Flags::SIGNALLED).unwrap();
    sq.post_umr(Rkey(0x501), &umr, Flags::SIGNALLED).unwrap();
    sq.post_umr(Rkey(0x501), &umr, Flags::SIGNALLED).unwrap();
    let full = sq.post_umr(Rkey(0x501), &umr, Flags::SIGNALLED);
    assert!(matches!(full, Err(QueueError::Full { need: 2, free: 0 })));
    sq.retire(4);
    assert_eq!(sq.free(), 6);
}

#[test]
fn blueflame_is_for_one_wqe_at_a_time() {
    let q = queues(8, 0, 4, 0);
    let mut sq = HostSq::new(QPN, &q);
    let data = [4, 5].map(inline);
    let [longest, over] = [[Piece::Inline(&data[0])], [Piece::Inline(&data[1])]];
    let full = sq.post_blueflame(&write(&over));
    assert!(matches!(full, Err(QueueError::Full { need: 5, free: 4 })));
    assert_eq!((sq.post_blueflame(&write(&longest)).unwrap(), sq.producer()), (0, 4));
    let mut wqe = [0; BF_BYTES];
    write(&longest).emit(0, QPN, &mut wqe).unwrap();
    blueflame::seal(&mut wqe);
    assert_eq!(bytes(&q.uar, UAR_BF1_OFFSET, BF_BYTES), wqe);
    assert_eq!(bytes(&q.sq, 0, 8 * WQEBB_BYTES), [0; 8 * WQEBB_BYTES], "the ring is not written");
    let full = sq.post_blueflame(&write(&[]));
    assert!(matches!(full, Err(QueueError::Full { need: 1, free: 0 })), "one is outstanding");
    let full = sq.post_blueflame(&write(&longest));
    assert!(matches!(full, Err(QueueError::Full { need: 4, free: 0 })));
    sq.retire(0);
    assert_eq!((sq.free(), sq.post_blueflame(&write(&[])).unwrap()), (8, 4));
}

fn entry(bytes: u32) -> Sge {
    Sge { addr: Iova(0x2000), lkey: Lkey(9), bytes }
}

#[test]
fn receives_end_where_their_entries_do() {
    let q = queues(1, 4 * 32, 5, 0);
    let mut rq = HostRq::new(&q);
    let segment = |bytes| bytemuck::bytes_of(&entry(bytes).emit()).to_vec();
    let end = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let kinds: [(&[Sge], [Vec<u8>; 2]); 3] = [
        (&[entry(5), entry(6)], [segment(5), segment(6)]),
        (&[entry(0), entry(7)], [segment(7), end.clone()]),
        (&[], [end.clone(), vec![0; 16]]),
    ];
    let too_many = rq.post(&[entry(1), entry(2), entry(0), entry(3)]);
    assert!(matches!(too_many, Err(QueueError::Entries { have: 3, most: 2 })));
    rq.retire();
    assert_eq!(rq.free(), 4, "nothing was there to retire");
    let mut index = 0;
    for _ in 0..30_000 {
        for (entries, want) in &kinds {
            let at = index as usize % 4 * 32;
            q.rq.fill(at, 32, 0).unwrap();
            assert_eq!(rq.post(entries).unwrap(), index);
            index += 1;
            assert_eq!(bytes(&q.rq, at, 32), want.concat());
            assert_eq!(bytes(&q.dbr, 2, 2), (index as u16).to_be_bytes());
        }
        assert_eq!(rq.free(), 1);
        // Full, and the last of the ring: nothing may come behind it.
        rq.post(&[entry(8), entry(9)]).unwrap();
        assert_eq!(bytes(&q.rq, index as usize % 4 * 32 + 16, 16), segment(9));
        index += 1;
        assert!(matches!(rq.post(&[]), Err(QueueError::Full { need: 1, free: 0 })));
        (0..4).for_each(|_| rq.retire());
        assert_eq!(rq.free(), 4);
    }
}

fn complete(cq: &View, entries: u32, index: u64, cqe: &Cqe) {
    let at = (index % u64::from(entries)) as usize * CQE_BYTES;
    cq.write(at, &cqe.emit(owner_bit(index, entries))).unwrap();
}

#[test]
fn completions_are_taken_once_in_each_lap() {
    let q = queues(1, 0, 4, 4);
    let mut cq = HostCq::new(&q.send_cq, &q.send_cq_dbr);
    for index in 0..50 {
        assert_eq!((cq.consumer(), cq.poll().unwrap()), (index, None), "entry {index}");
        let cqe = Cqe::requester(QPN, 8, index as u16, 0);
        complete(&q.send_cq, 4, index, &cqe);
        assert_eq!(cq.poll().unwrap(), Some(cqe));
        assert_eq!(bytes(&q.send_cq_dbr, 0, 4), (index as u32 + 1).to_be_bytes());
    }
    // One that cannot be read is passed over, and its entry is free.
    let mut unknown = Cqe::requester(QPN, 8, 1, 0).emit(owner_bit(50, 4));
    unknown[63] |= 0x70;
    q.send_cq.write(2 * CQE_BYTES, &unknown).unwrap();
    assert!(matches!(cq.poll(), Err(QueueError::Cqe(CqeOpcodeError(7)))));
    assert_eq!((cq.consumer(), bytes(&q.send_cq_dbr, 3, 1)), (51, vec![51]));
    let later = HostCq::at(&q.send_cq, &q.send_cq_dbr, 0x100_0003);
    later.report().unwrap();
    assert_eq!((later.consumer(), bytes(&q.send_cq_dbr, 0, 4)), (0x100_0003, vec![0, 0, 0, 3]));
    assert_eq!(HostCq::new(&view(0), &q.send_cq_dbr).poll().unwrap(), None, "no CQ");
}

#[test]
fn a_slots_credit_comes_back_with_its_ticket() {
    const SLOTS: u32 = 3;
    const BYTES: usize = 128;
    for line in LineFormat::ALL {
        let window = view(SLOTS as usize * BYTES);
        let (slot_bytes, seq0) = (BYTES as u32, line.modulus() - 1);
        let cfg = Inband { window: window.clone(), slot_bytes, slots: SLOTS, line, seq0 };
        let mut slots = HostSlots::new(QPN, &cfg);
        let longest: Vec<u8> = (0..line.write_capacity(BYTES)).map(|i| i as u8).collect();
        let payload = [Piece::Inline(&longest)];
        let (mut ticket, mut done) = (0u64, 0u64);
        while ticket < 70_000 {
            while ticket - done < u64::from(SLOTS) {
                assert_eq!(u64::from(slots.credits()), u64::from(SLOTS) - (ticket - done));
                assert_eq!(slots.post(&write(&payload)).unwrap(), ticket);
                let (slot, lap) = slot_of(ticket, SLOTS);
                let mut stream = vec![0; line.capacity(BYTES)];
                let n = write(&payload).emit_stream(ticket, QPN, &mut stream).unwrap();
                let mut out = vec![0; n];
                let slot = bytes(&window, slot as usize * BYTES, BYTES);
                assert_eq!(line.gather(&slot, line.seq(seq0, lap), &mut out), Ok(()), "{ticket}");
                assert_eq!(out, stream[..n]);
                ticket += 1;
            }
            let full = slots.post(&write(&payload));
            assert!(matches!(full, Err(QueueError::Full { need: 1, free: 0 })));
            for nobodys in [ticket, ticket + 1, done.wrapping_sub(1)] {
                slots.retire(nobodys as u16);
                assert_eq!(slots.credits(), 0, "{nobodys}");
            }
            // One ticket, or two together.
            done += 1 + ticket % 2;
            slots.retire((done - 1) as u16);
        }
        let over = vec![0; longest.len() + 1];
        assert!(matches!(slots.post(&write(&[Piece::Inline(&over)])), Err(QueueError::Wqe(_))));
        assert_eq!(u64::from(slots.credits()), u64::from(SLOTS) - (ticket - done), "none is lost");
    }
}

struct Fixed(Queues);

impl QueuePair for Fixed {
    fn qpn(&self) -> Qpn {
        QPN
    }
    fn queues(&self) -> &Queues {
        &self.0
    }
    fn address(&self) -> QpAddress {
        let nic = NicAddress::InProcess(1);
        QpAddress { nic, qpn: QPN, psn: Psn::new(0), mtu: Mtu::MAX, rd_atomic: 16 }
    }
    fn state(&self) -> QpState {
        QpState::Rts
    }
    fn connect(&self, _: QpAddress) -> Result<(), NicError> {
        Ok(())
    }
    fn fail(&self) {}
    fn reset(&self) -> Result<(), NicError> {
        Ok(())
    }
}

#[test]
fn what_completes_is_free_again() {
    let qp: Arc<dyn QueuePair> = Arc::new(Fixed(queues(4, 4 * 16, 4, 4)));
    let q = qp.queues();
    let mut host = HostQp::new(&*qp);
    assert_eq!((host.send(&write(&[])).unwrap(), host.send(&write(&[])).unwrap()), (0, 1));
    assert_eq!(bytes(&q.dbr, 4, 4), [0, 0, 0, 2], "it rings");
    host.rq.post(&[]).unwrap();
    assert_eq!((host.poll_send().unwrap(), host.poll_recv().unwrap()), (None, None));
    assert_eq!((host.sq.free(), host.rq.free()), (2, 3));
    let sent = Cqe::requester(QPN, 8, 1, 0);
    let received = Cqe { opcode: CqeOpcode::RespSend, ..Cqe::requester(QPN, 0, 0, 0) };
    complete(&q.send_cq, 4, 0, &sent);
    complete(&q.recv_cq, 4, 0, &received);
    assert_eq!(host.wait_send(Duration::ZERO).unwrap(), sent);
    assert_eq!(host.wait_recv(Duration::ZERO).unwrap(), received);
    assert_eq!((host.sq.free(), host.rq.free(), host.send_cq().consumer()), (4, 4, 1));
    let short = Duration::from_millis(20);
    let start = Instant::now();
    let late = host.wait_recv(short).unwrap_err();
    assert!(matches!(late, QueueError::Timeout(within) if within == short));
    assert!(start.elapsed() >= short);
    // After a reset WQEs begin at 0, and the CQs go on.
    host.send(&write(&[])).unwrap();
    host.begin_again(&*qp);
    assert_eq!((host.sq.producer(), host.sq.free(), host.send_cq().consumer()), (0, 4, 1));
}
