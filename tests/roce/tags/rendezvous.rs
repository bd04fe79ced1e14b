//! Many rendezvous, and what happens in the middle of one: who dies, and what goes.

use super::*;

/// What happens in the middle of a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Befalls {
    /// The sender's process is killed: nothing of it comes any more.
    SenderDies,
    /// The region of the entries, of the receiver.
    EntriesGo,
    /// The region of the payload, of the sender.
    PayloadGoes,
    /// The shared receive queue, and with it its CQ.
    QueueCloses,
    /// The CQ of the shared receive queue has no room left.
    CqIsFull,
    ReceiverResets,
    ReceiverGoes,
}

impl Tags {
    /// Two rendezvous that are under way for so many steps when something happens.
    fn in_a_rendezvous(what: Befalls, steps: u64) -> Self {
        const BYTES: u32 = 20_000;
        // 1 ms, three times: a dead peer is given up soon.
        let with = Change { timeout: Some(8), retry_cnt: Some(2), ..Change::default() };
        let mut t = Tags::new("", &with);
        t.append(5, 0, BYTES);
        t.append(6, BYTES.into(), BYTES);
        t.append(7, 2 * u64::from(BYTES), 100);
        if what == Befalls::CqIsFull {
            for _ in 0..126 {
                t.post();
                t.send(&message(NO_TAG, 0, b"x"));
            }
        }
        let a = &mut t.pair.a;
        a.buf.put(60_000, &pattern(BYTES as usize, 1));
        for tag in [5, 6] {
            let bytes = offer(tag, (a.buf.at(60_000).0, a.buf.mr.rkey.0, BYTES));
            a.host.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
        }
        let begin = t.pair.now_ns;
        let engines = &mut t.pair.engines;
        (0..steps).for_each(|n| _ = engines[n as usize % 2].step(begin + 1_000 + n / 2));
        let Pair { nics, a, b, .. } = &t.pair;
        match what {
            Befalls::SenderDies | Befalls::CqIsFull => {}
            Befalls::EntriesGo => nics[1].deregister(b.buf.mr).unwrap(),
            Befalls::PayloadGoes => nics[0].deregister(a.buf.mr).unwrap(),
            Befalls::QueueCloses => t.srq.close(),
            Befalls::ReceiverResets => b.qp.modify(QpState::Reset, &Change::default()).unwrap(),
            Befalls::ReceiverGoes => nics[1].destroy_qp(b.qp.qpn()).unwrap(),
        }
        let dead = what == Befalls::SenderDies;
        for now in 10..1_000 {
            for engine in t.pair.engines.iter_mut().skip(dead.into()) {
                engine.step(begin + now * 100_000);
            }
        }
        t.pair.now_ns = begin + 1_000 * 100_000;
        t
    }

    /// Events of B's NIC that end its queue pair.
    fn fatal(&self) -> usize {
        let all = std::iter::from_fn(|| self.pair.nics[1].next_event());
        all.filter(|event| matches!(event, bellpush::nic::soft::Event::QpFatal(_))).count()
    }
}

#[test]
fn whatever_befalls_a_rendezvous_each_entry_ends_once() {
    use Befalls::*;
    for what in
        [SenderDies, EntriesGo, PayloadGoes, QueueCloses, CqIsFull, ReceiverResets, ReceiverGoes]
    {
        let mut ended = [0; 3];
        for steps in 0..24 {
            let mut t = Tags::in_a_rendezvous(what, steps);
            let told = t.told();
            let count = |told: &[(CqeOpcode, Option<Told>, u16, u32)], what, place| {
                told.iter().filter(|it| it.1 == Some(what) && it.2 == place).count()
            };
            let case = format!("{what:?} after {steps} steps: {told:?}");
            for place in 0..2 {
                let [begun, done, none] = [Told::Consumed, Told::Expected, Told::Cancelled]
                    .map(|what| count(&told, what, place));
                assert!(done + none <= 1 && begun <= 1, "{case}");
                // A queue that is gone tells nothing, nor does one without room.
                if !matches!(what, QueueCloses | CqIsFull) {
                    assert_eq!(done + none, begun, "{case}");
                }
                if done == 1 {
                    let at = usize::from(place) * 20_000;
                    assert!(t.pair.b.buf.get(at, 20_000) == pattern(20_000, 1), "{case}");
                }
                ended[0] += done;
                ended[1] += none;
                ended[2] += 1 - begun;
            }
            assert_eq!(count(&told, Told::Consumed, 2), 0, "{case}");
            let (state, fatal) = (t.pair.b.qp.state(), t.fatal());
            let lost = count(&told, Told::Cancelled, 0) + count(&told, Told::Cancelled, 1) > 0;
            if matches!(what, SenderDies | EntriesGo | PayloadGoes) && lost {
                assert_eq!((state, fatal), (QpState::Err, 1), "{case}");
            }
            // What nobody has matched is there for others.
            if !matches!(what, QueueCloses | CqIsFull | EntriesGo) {
                let wr = SendWr::new(Opcode::Send);
                t.list.send(&wr.payload(&inline(&message(EAGER, 7, b"x")))).unwrap();
                (0..20).for_each(|n| _ = t.pair.engines[1].step(t.pair.now_ns + n * 1_000));
                assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), 2, 1)], "{case}");
            }
        }
        println!("{what:?}: done, cancelled, not begun: {ended:?}");
    }
}

#[test]
fn many_rendezvous_at_once_survive_loss() {
    for seed in 0..5 {
        let faults = format!("loss=5%,dup=5%,reorder=5%,seed={seed}");
        let mut t = Tags::new(&faults, &Change::default());
        let mut places = vec![];
        for n in 0..15u64 {
            places.push(t.append(n, n * 4000, 4000));
        }
        let a = &mut t.pair.a;
        a.buf.put(0, &pattern(60_000, seed));
        for n in 0..15u64 {
            let bytes = offer(n, (a.buf.at(n * 4000).0, a.buf.mr.rkey.0, 4000));
            a.host.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
        }
        let mut ends = 0;
        t.pair.run_until(20_000_000_000, |p| {
            while let Some(cqe) = p.a.host.poll_recv().unwrap() {
                assert_eq!(cqe.byte_cnt, 16);
                ends += 1;
                // The receives come late.
                p.a.host.rq.post(&[p.a.buf.sge(120 << 10, 64)]).unwrap();
            }
            ends == 15
        });
        let told = t.told();
        assert_eq!(ends, 15, "{seed} {told:?}");
        let done: Vec<_> =
            told.iter().filter(|t| t.1 == Some(Told::Expected)).map(|t| (t.2, t.3)).collect();
        assert_eq!(done, places.iter().map(|&p| (p, 4000)).collect::<Vec<_>>());
        assert_eq!(t.pair.b.buf.get(0, 60_000), pattern(60_000, seed));
    }
}
