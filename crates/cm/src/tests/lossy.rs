//! Networks that lose, double, delay and reorder; peers that fall silent.

use proptest::prelude::*;

use super::*;
use crate::IdError;

#[test]
fn whatever_is_lost_once_is_sent_again() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    assert_eq!(w.lose(), [MessageKind::Req]);
    w.pass(SECOND);
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.accept(1, b, b"");
    assert_eq!(w.lose(), [MessageKind::Rep]);
    w.pass(SECOND);
    w.settle();
    w.expect(0, EventKind::ConnectResponse);
    w.establish(0, a);
    assert_eq!(w.lose(), [MessageKind::Rtu]);
    w.pass(SECOND);
    w.settle();
    w.expect(1, EventKind::Established);
    w.disconnect(0, a);
    assert_eq!(w.lose(), [MessageKind::Dreq]);
    w.pass(SECOND);
    w.settle();
    w.expect(1, EventKind::Disconnected);
    w.disconnect(1, b);
    assert_eq!(w.lose(), [MessageKind::Drep]);
    w.now_ns += SECOND / 10; // within the peer's TIMEWAIT
    w.hosts[0].poll(w.now_ns + SECOND);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Disconnected).status, 0);
}

#[test]
fn a_lost_rtu_is_made_up_for_by_data() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.accept(1, b, b"");
    w.settle();
    w.establish(0, a);
    w.lose();
    w.hosts[1].is_in_use(0, CHANNEL, b).unwrap();
    w.expect(1, EventKind::Established);
    assert_eq!(w.hosts[1].is_in_use(0, CHANNEL, b), Err(IdError::Established));
}

/// Passes time until nothing is due any more; how long that took.
fn exhaust(w: &mut World, n: usize) -> u64 {
    let begin = w.now_ns;
    for _ in 0..1000 {
        let Some(due) = w.hosts[n].due_ns() else { return w.now_ns - begin };
        w.now_ns = w.now_ns.max(due);
        w.hosts[n].poll(w.now_ns);
        w.lose();
    }
    panic!("it never ends");
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    for space in [Space::Tcp, Space::Udp] {
        let mut w = World::new(1);
        w.connect(0, 5, space, b"");
        let waited = exhaust(&mut w, 0);
        assert!((5 * SECOND..20 * SECOND).contains(&waited), "{waited}");
        assert_eq!(w.expect(0, EventKind::Unreachable).status, -110);
        assert_eq!(w.sent.len(), 16);
    }
}

#[test]
fn a_peer_that_falls_silent_ends_every_wait() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.accept(1, b, b"");
    w.lose();
    exhaust(&mut w, 1);
    assert_eq!(w.expect(1, EventKind::Unreachable).status, -110);

    let mut w = World::new(2);
    let (a, _) = w.connected();
    w.disconnect(0, a);
    exhaust(&mut w, 0);
    assert_eq!(w.expect(0, EventKind::Disconnected).status, -110);
    w.expect(0, EventKind::TimewaitExit);
}

#[test]
fn what_a_destroyed_identifier_owes_its_peer_is_sent_again_and_ends() {
    let mut w = World::new(2);
    let (a, _) = w.connected();
    w.destroy(0, a);
    w.lose();
    w.pass(SECOND);
    w.settle();
    w.expect(1, EventKind::Disconnected);
    exhaust(&mut w, 0);
    assert!(w.hosts[0].detach_idle());
}

#[test]
fn a_program_may_take_its_time() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    // Longer than all retries would take.
    for _ in 0..40 {
        w.pass(SECOND);
        w.settle();
    }
    assert_eq!(w.sent.iter().filter(|&&kind| kind == MessageKind::Mra).count(), 1);
    assert!(w.event(0).is_none());
    w.accept(1, b, b"");
    w.settle();
    w.expect(0, EventKind::ConnectResponse);
    for _ in 0..40 {
        w.pass(SECOND);
        w.settle();
    }
    assert!(w.event(1).is_none());
    w.establish(0, a);
    w.settle();
    w.expect(1, EventKind::Established);
}

#[test]
fn a_peer_that_begins_anew_replaces_what_it_had() {
    let mut w = World::new(2);
    let (_, b) = w.connected();
    // Its process ended without a word, and the next one has the same queue pair's number.
    let mut anew = World::new(2);
    std::mem::swap(&mut w.hosts[0], &mut anew.hosts[0]);
    w.hosts[0].create(CHANNEL, 0, Space::Tcp).unwrap();
    let a = w.connect(0, 1, Space::Tcp, b"");
    let _ = w.hosts[0].next_changed();
    // Another communication ID than the first one's.
    let first = w.lose();
    assert_eq!(first, [MessageKind::Req]);
    w.destroy(0, a);
    w.lose();
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    assert_eq!(w.expect(1, EventKind::Disconnected).id, b);
    assert_eq!(w.expect(0, EventKind::Rejected).status, 10);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    w.expect(1, EventKind::ConnectRequest);
}

/// A connection is made and ended over a network that does what it likes for a while: both programs
/// do what they are to do as events come.
fn session(choices: &[u8]) {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    let mut b = None;
    let mut seen = [vec![], vec![]];
    let mut choices = choices.iter();
    let mut disconnected = false;
    for round in 0..2000 {
        w.collect();
        match choices.next() {
            // Lost, doubled, put last, late.
            Some(0) => drop(w.net.pop_front()),
            Some(1) => w.net.extend(w.net.front().cloned()),
            Some(2) => w.net.rotate_left(w.net.len().min(1)),
            Some(3) => w.pass(SECOND),
            Some(4) => w.pass(SECOND / 20),
            _ => match w.net.pop_front() {
                Some(message) => w.deliver(&message),
                None => w.pass(SECOND / 4),
            },
        }
        for (n, seen) in seen.iter_mut().enumerate() {
            while let Some(event) = w.hosts[n].next_event(CHANNEL) {
                // A copy of the request that was longer under way than the end waited for.
                if event.kind == EventKind::ConnectRequest
                    && seen.contains(&EventKind::TimewaitExit)
                {
                    w.hosts[n].destroy(w.now_ns, CHANNEL, event.id).unwrap();
                    continue;
                }
                assert!(!seen.contains(&event.kind), "{:?} twice at {n}", event.kind);
                seen.push(event.kind);
                match event.kind {
                    EventKind::ConnectRequest => {
                        b = Some(event.id);
                        let with = parameters(0x201, b"");
                        w.hosts[n].accept(w.now_ns, CHANNEL, event.id, Some((9, &with))).unwrap();
                    }
                    EventKind::ConnectResponse => {
                        w.hosts[n].accept(w.now_ns, CHANNEL, a, None).unwrap();
                    }
                    EventKind::Established => {
                        disconnected = true;
                        w.hosts[n].disconnect(w.now_ns, CHANNEL, event.id).unwrap();
                    }
                    EventKind::Disconnected => {
                        w.hosts[n].disconnect(w.now_ns, CHANNEL, event.id).unwrap();
                    }
                    EventKind::TimewaitExit => {}
                    other => panic!("{other:?} in round {round} at {n}: {:?}", w.sent),
                }
            }
        }
    }
    assert!(disconnected && b.is_some());
    let end = [EventKind::Disconnected, EventKind::TimewaitExit];
    assert!(seen.iter().all(|seen| seen.ends_with(&end)), "{seen:?}");
    assert!(w.hosts.iter().all(|ids| ids.due_ns().is_none()), "something is still to come");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]
    #[test]
    fn a_connection_survives_what_a_network_does(choices in prop::collection::vec(0_u8..12, 0..60)) {
        session(&choices);
    }
}
