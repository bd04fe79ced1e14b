//! In-band slots and BlueFlame: what announces itself is sent when it is whole, and only then.

use crate::queue_pairs::{Pair, attr, inband, inline, pattern, syndromes};
use bellpush::mem::Dma;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::{Inband, LineFormat, QpAttr, QpState, QueuePair};
use bellpush::wire::blueflame;
use bellpush::wire::cqe::{CqeOpcode, Syndrome};
use bellpush::wire::doorbell::UAR_BF1_OFFSET;
use bellpush::wire::inband::slot_of;
use bellpush::wire::wqe::{Flags, Opcode, SendWr};

fn pair(cfg: &Inband) -> (Pair, HostSlots) {
    let p = Pair::new(&QpAttr { inband: Some(cfg.clone()), ..attr() });
    let slots = HostSlots::new(p.a.qp.qpn(), cfg);
    (p, slots)
}

fn write<'a>(p: &Pair, payload: &'a [bellpush::wire::wqe::Piece<'a>]) -> SendWr<'a> {
    SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(payload)
}

fn sent(p: &mut Pair, slots: &mut HostSlots) -> Vec<u16> {
    p.settle();
    let cqes = p.sent();
    for cqe in &cqes {
        assert_eq!(cqe.opcode, CqeOpcode::Req, "{cqe:?}");
        slots.retire(cqe.wqe_counter);
    }
    cqes.iter().map(|c| c.wqe_counter).collect()
}

#[test]
fn slots_of_every_size_are_sent_over_many_laps_and_wraps() {
    for line in LineFormat::ALL {
        let m = line.modulus();
        for seq0 in [1, 2, m - 3, m] {
            let cfg = inband(line, 4, 2048, seq0);
            let (mut p, mut slots) = pair(&cfg);
            let most = line.write_capacity(2048);
            for i in 0..60u64 {
                let n = [0, 1, 8, 24, 25, 500, most - 1, most][i as usize % 8];
                let data = pattern(n, i);
                let payload = inline(&data);
                let wr = write(&p, &payload);
                slots.post(&wr).unwrap();
                assert_eq!(sent(&mut p, &mut slots), [i as u16]);
                assert_eq!(p.b.buf.get(0, n), data, "{line:?} {seq0} message {i}");
            }
        }
    }
}

#[test]
fn sends_and_gathered_windows_go_in_band_too() {
    let cfg = inband(LineFormat::L12S4, 8, 512, 1);
    let (mut p, mut slots) = pair(&cfg);
    let data = pattern(400, 1);
    p.a.buf.put(0, &data);
    let payload = [p.a.buf.data(0, 300), p.a.buf.data(300, 100)];
    slots.post(&write(&p, &payload)).unwrap();
    assert_eq!(sent(&mut p, &mut slots), [0]);
    assert_eq!(p.b.buf.get(0, 400), data);
    p.b.host.rq.post(&[p.b.buf.sge(1000, 64)]).unwrap();
    slots.post(&SendWr::new(Opcode::Send).payload(&inline(b"in band"))).unwrap();
    assert_eq!(sent(&mut p, &mut slots), [1]);
    assert_eq!(p.received()[0].byte_cnt, 7);
    assert_eq!(p.b.buf.get(1000, 7), b"in band");
}

#[test]
fn the_16_bit_sequence_wraps_under_way() {
    let cfg = inband(LineFormat::L14S2, 2, 256, 40_000);
    let (mut p, mut slots) = pair(&cfg);
    let flags = Flags::default();
    for i in 0..140_000u64 {
        let data = i.to_le_bytes();
        let payload = inline(&data);
        let signalled = i % 2 == 1;
        let wr = SendWr {
            flags: if signalled { Flags::SIGNALLED } else { flags },
            ..write(&p, &payload)
        };
        slots.post(&wr).unwrap();
        if signalled {
            assert_eq!(sent(&mut p, &mut slots), [i as u16]);
            assert_eq!(p.b.buf.get(0, 8), data);
        }
    }
}

/// Writes the next slot with one line held back (not written, torn, or as another lap had it), and
/// says whether the NIC sent it before the line came.
fn hold_back(line: LineFormat, held: usize, fault: impl Fn(&mut [u8], usize)) -> bool {
    let cfg = inband(line, 2, 1024, 7);
    let (mut p, mut slots) = pair(&cfg);
    let old = pattern(300, 1);
    let payload = inline(&old);
    for _ in 0..4 {
        slots.post(&write(&p, &payload)).unwrap(); // laps 0 and 1 leave their lines behind
        sent(&mut p, &mut slots);
    }
    let mut before = vec![0; 1024];
    cfg.window.read(0, &mut before).unwrap();
    let new = pattern(300, 2);
    let payload = inline(&new);
    slots.post(&write(&p, &payload)).unwrap();
    let mut whole = vec![0; 1024];
    cfg.window.read(0, &mut whole).unwrap();
    let (at, n) = (held * line.line_bytes(), line.line_bytes());
    let mut faulty = before[at..at + n].to_vec();
    faulty[..line.data_bytes()].copy_from_slice(&whole[at..at + line.data_bytes()]);
    fault(&mut faulty, line.data_bytes());
    cfg.window.write(at, &faulty).unwrap();
    p.run_for(100_000);
    let early = !p.sent().is_empty() || p.b.buf.get(0, 300) != old;
    cfg.window.write(at, &whole[at..at + n]).unwrap();
    if !early {
        assert_eq!(sent(&mut p, &mut slots), [4], "sent when the line has come");
        assert_eq!(p.b.buf.get(0, 300), new);
    }
    early
}

#[test]
fn a_line_that_is_missing_stale_or_torn_is_waited_for() {
    for line in LineFormat::ALL {
        for held in 0..line.lines(336) {
            let clear = |l: &mut [u8], at: usize| l[at..].fill(0);
            let earlier = |l: &mut [u8], at: usize| l[at] = 7; // lap 0, two laps back
            assert!(!hold_back(line, held, |_, _| {}), "stale: {line:?} line {held}");
            assert!(!hold_back(line, held, clear), "missing: {line:?} line {held}");
            assert!(!hold_back(line, held, earlier), "older: {line:?} line {held}");
        }
        // Negative control: with the sequence that belongs there, held-back data would be sent.
        let lie = |l: &mut [u8], at: usize| {
            l[at] = 9;
            l[0] ^= 0xff;
        };
        assert!(hold_back(line, line.lines(336) - 1, lie), "control: {line:?}");
    }
}

/// Posts a message of which only the lines that short ones write have come. Whether the NIC waits for the others.
fn others_are_waited_for(p: &mut Pair, cfg: &Inband, slots: &mut HostSlots, data: &[u8]) -> bool {
    let (mut before, mut whole) = (vec![0; WINDOW], vec![0; WINDOW]);
    cfg.window.read(0, &mut before).unwrap();
    let payload = inline(data);
    let ticket = slots.post(&write(p, &payload)).unwrap();
    cfg.window.read(0, &mut whole).unwrap();
    let base = slot_of(ticket, cfg.slots).0 as usize * cfg.slot_bytes as usize;
    let come = base..base + cfg.line.lines(INBAND_HEADER + SHORT.len()) * cfg.line.line_bytes();
    cfg.window.write(0, &before).unwrap();
    cfg.window.write(base, &whole[come]).unwrap();
    p.run_for(20_000);
    let waited = p.sent().is_empty();
    cfg.window.write(0, &whole).unwrap();
    waited && sent(p, slots) == [ticket as u16] && p.b.buf.get(0, data.len()) == data
}

const WINDOW: usize = 8 * 256;
const INBAND_HEADER: usize = 36;
const SHORT: [u8; 8] = [7; 8];

#[test]
fn what_a_cycle_left_behind_is_waited_for() {
    // Slots in which the messages with sequence 1 and 2 fill all lines, or one of the next cycle's does, or none.
    let cfg = inband(LineFormat::L14S2, 8, 256, 1);
    let (mut p, mut slots) = pair(&cfg);
    let long = pattern(180, 1);
    let (long, short) = (inline(&long), inline(&SHORT));
    let (modulus, lap) = (u64::from(cfg.line.modulus()), u64::from(cfg.slots));
    for ticket in 0..modulus * lap {
        let fills = match ticket / lap {
            0 => ticket & 1 != 0,
            1 => ticket & 2 != 0,
            _ => false,
        };
        let flags = if ticket % lap == lap - 1 { Flags::SIGNALLED } else { Flags::default() };
        let wr = write(&p, if fills { &long } else { &short });
        slots.post(&SendWr { flags, ..wr }).unwrap();
        if flags == Flags::SIGNALLED {
            assert_eq!(sent(&mut p, &mut slots), [ticket as u16]);
        }
    }
    for sequence in [1, 2] {
        for slot in 0..lap {
            if sequence == 1 && slot & 4 != 0 {
                slots.post(&write(&p, &short)).unwrap();
                assert_eq!(sent(&mut p, &mut slots).len(), 1);
                continue;
            }
            let data = pattern(180, sequence * 16 + slot);
            let waited = others_are_waited_for(&mut p, &cfg, &mut slots, &data);
            assert!(waited, "slot {slot}, sequence {sequence}");
        }
    }
}

#[test]
fn lines_that_come_in_any_order_make_a_message() {
    for line in LineFormat::ALL {
        let cfg = inband(line, 2, 512, 1);
        let (mut p, mut slots) = pair(&cfg);
        let data = pattern(200, 5);
        let payload = inline(&data);
        slots.post(&write(&p, &payload)).unwrap();
        let mut whole = vec![0; 512];
        cfg.window.read(0, &mut whole).unwrap();
        cfg.window.write(0, &[0; 512]).unwrap();
        let n = line.line_bytes();
        let lines = line.lines(236);
        // 7 is coprime to every count of lines here.
        let order: Vec<usize> = (0..lines).map(|i| (i * 7 + 3) % lines).collect();
        for (i, &l) in order.iter().enumerate() {
            assert!(p.sent().is_empty(), "{line:?} after {i} lines");
            cfg.window.write(l * n, &whole[l * n..(l + 1) * n]).unwrap();
            p.run_for(5_000);
        }
        assert_eq!(sent(&mut p, &mut slots), [0]);
        assert_eq!(p.b.buf.get(0, 200), data);
    }
}

#[test]
fn a_slot_written_again_without_a_credit_is_an_error() {
    for line in LineFormat::ALL {
        let cfg = inband(line, 2, 256, line.modulus() - 1);
        let (mut p, mut slots) = pair(&cfg);
        let payload = inline(&[5; 20]);
        let wr = write(&p, &payload);
        slots.post_as(2, &wr).unwrap(); // lap 1 before lap 0
        p.settle();
        let cqes = p.sent();
        assert_eq!(syndromes(&cqes), [Some(Syndrome::LocalQpOp)], "{line:?}");
        assert_eq!(cqes[0].vendor_err, bellpush::nic::soft::Vendor::Overrun as u8);
        assert_eq!(p.a.qp.state(), QpState::Err);
        assert_eq!(p.b.buf.get(0, 20), [0; 20]);
        p.run_for(50_000);
        assert!(p.sent().is_empty(), "one error, not one a step");
    }
}

#[test]
fn what_a_slot_cannot_mean_is_an_error() {
    let cfg = inband(LineFormat::L60S4, 2, 256, 1);
    // A stream with a wrong ticket, queue pair, inline length, or a ds of 0.
    type Fault = (&'static str, fn(&mut Vec<u8>));
    let faults: [Fault; 5] = [
        ("index", |s| s[2] ^= 1),
        ("qpn", |s| s[6] ^= 1),
        ("inline length", |s| s[34] = 0xff),
        ("ds", |s| s[7] = 0),
        ("opcode", |s| s[3] = 0x25),
    ];
    for (name, fault) in faults {
        let (mut p, _) = pair(&cfg);
        let payload = inline(&[5; 20]);
        let mut stream = vec![0; 60];
        let n = write(&p, &payload).emit_stream(0, p.a.qp.qpn(), &mut stream).unwrap();
        stream.truncate(n);
        fault(&mut stream);
        let mut slot = vec![0; 256];
        cfg.line.scatter(&stream, 1, &mut slot);
        cfg.window.write(0, &slot).unwrap();
        p.settle();
        let cqes = p.sent();
        assert_eq!(cqes.len(), 1, "{name}");
        assert_eq!(cqes[0].opcode, CqeOpcode::ReqErr, "{name}");
        assert_eq!(p.a.qp.state(), QpState::Err, "{name}");
        assert_eq!(p.b.buf.get(0, 20), [0; 20], "{name}");
    }
}

#[test]
fn a_send_to_an_empty_receive_queue_waits_in_its_slot() {
    let cfg = inband(LineFormat::L60S4, 4, 256, 1);
    let (mut p, mut slots) = pair(&cfg);
    slots.post(&SendWr::new(Opcode::Send).payload(&inline(b"wait"))).unwrap();
    p.run_for(1_000_000);
    assert!(p.sent().is_empty());
    assert!(p.nics[0].counters().rnr_waits > 10);
    p.b.host.rq.post(&[p.b.buf.sge(0, 8)]).unwrap();
    p.run_for(100_000);
    assert_eq!(sent(&mut p, &mut slots), [0]);
    assert_eq!(p.b.buf.get(0, 4), b"wait");
}

#[test]
fn an_earlier_users_sequences_do_not_count() {
    let cfg = inband(LineFormat::L60S4, 4, 256, 1);
    cfg.window.write(0, &[1, 0, 0, 0].repeat(256)).unwrap(); // every line says sequence 1
    let (mut p, mut slots) = pair(&cfg);
    p.run_for(50_000);
    assert!(p.sent().is_empty());
    slots.post(&write(&p, &inline(b"mine"))).unwrap();
    assert_eq!(sent(&mut p, &mut slots), [0]);
    assert_eq!(slot_of(5, 4), (1, 1));
}

#[test]
fn blueflame_is_taken_whole_from_the_uar() {
    let mut p = Pair::new(&QpAttr { blueflame: true, ..attr() });
    for i in 0..300u64 {
        let n = [1, 12, 28, 29, 92, 100, 220][i as usize % 7];
        let data = pattern(n, i);
        let payload = inline(&data);
        let wr = write(&p, &payload);
        if i % 5 == 4 {
            p.a.host.send(&wr).unwrap(); // by the ring in between, record and doorbell
        } else {
            p.a.host.sq.post_blueflame(&wr).unwrap();
        }
        p.settle();
        assert_eq!(p.sent().len(), 1, "message {i}");
        assert_eq!(p.b.buf.get(0, n), data, "message {i}");
        assert_eq!(p.a.host.sq.free(), 64);
    }
    assert_eq!(p.nics[0].counters().blueflame, 240);
    let payload = inline(&[0; 221]);
    let too_long = write(&p, &payload);
    assert!(p.a.host.sq.post_blueflame(&too_long).is_err());
}

#[test]
fn half_a_blueflame_store_is_waited_for() {
    let mut p = Pair::new(&QpAttr { blueflame: true, ..attr() });
    let data = pattern(150, 3);
    let payload = inline(&data);
    let wr = write(&p, &payload);
    let mut wqe = [0; 256];
    let bytes = wr.emit(0, p.a.qp.qpn(), &mut wqe).unwrap() as usize * 64;
    blueflame::seal(&mut wqe[..bytes]);
    // Words in an order of no particular sense; whatever is missing, nothing is sent.
    let words = bytes / 4;
    for i in 0..words {
        let w = (i * 11 + 5) % words;
        assert!(p.sent().is_empty(), "after {i} words");
        assert_eq!(p.b.buf.get(0, 150), [0; 150]);
        p.a.qp.queues().uar.write(UAR_BF1_OFFSET + w * 4, &wqe[w * 4..w * 4 + 4]).unwrap();
        p.run_for(3_000);
    }
    assert_eq!(p.sent().len(), 1);
    assert_eq!(p.b.buf.get(0, 150), data);
    let mut cleared = [1; 64];
    p.a.qp.queues().uar.read(UAR_BF1_OFFSET, &mut cleared).unwrap();
    assert_eq!(cleared, [0; 64]);
}

#[test]
fn a_blueflame_store_that_a_doorbell_overtook_does_not_stay() {
    let mut p = Pair::new(&QpAttr { blueflame: true, ..attr() });
    let data = pattern(8, 9);
    let payload = inline(&data);
    let wr = write(&p, &payload);
    let mut wqe = [0; 64];
    wr.emit(0, p.a.qp.qpn(), &mut wqe).unwrap();
    blueflame::seal(&mut wqe);
    let uar = p.a.qp.queues().uar.clone();
    uar.write(UAR_BF1_OFFSET, &wqe).unwrap();
    p.a.host.send(&wr).unwrap(); // the same WQE by the ring, before the engine looks
    p.settle();
    assert_eq!(p.sent().len(), 1);
    let mut left = [1; 64];
    uar.read(UAR_BF1_OFFSET, &mut left).unwrap();
    assert_eq!(left, [0; 64], "it would be taken again 2^16 blocks later");
}

#[test]
fn blueflame_with_another_index_or_queue_pair_is_not_taken() {
    let mut p = Pair::new(&QpAttr { blueflame: true, ..attr() });
    let payload = inline(&[1; 8]);
    for (index, qpn) in [(1, p.a.qp.qpn()), (0xffff, p.a.qp.qpn()), (0, p.b.qp.qpn())] {
        let other = bellpush::wire::Qpn(qpn.0 + u32::from(index == 0));
        let mut wqe = [0; 64];
        write(&p, &payload).emit(index, other, &mut wqe).unwrap();
        blueflame::seal(&mut wqe);
        p.a.qp.queues().uar.write(UAR_BF1_OFFSET, &wqe).unwrap();
        p.run_for(10_000);
        assert!(p.sent().is_empty());
        assert_eq!(p.b.buf.get(0, 8), [0; 8]);
    }
}
