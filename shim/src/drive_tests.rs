use std::net::IpAddr;
use std::sync::Arc;

use bellpush_soft_nic::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
};
use bellpush_soft_nic::{SoftConfig, SoftNic};
use bellpush_wire::roce::{
    Addresses, AtomicEth, Bth, Envelope, Headers, Opcode, Operation, ROCE_PORT, Reth,
};
use bellpush_wire::{Iova, Psn, Qpn, Rkey};

use super::*;

#[test]
fn an_engine_that_is_left_to_its_thread_has_no_step_of_a_poll() {
    let (_nic, engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
    let driver = Driver::new(engines[0].helper());
    for polls in [true, false] {
        driver.polled_ns.store(0, Ordering::Relaxed);
        (0..ENOUGH).for_each(|_| _ = driver.poll());
        assert_eq!(driver.is_polled(Duration::ZERO), polls);
        assert_eq!(driver.polled_ns.load(Ordering::Relaxed) != 0, polls);
        driver.keep_to_thread();
    }
}

/// A link that has a packet at a look, or none, as is said for each.
struct Busy<F> {
    link: ShmLink,
    has: F,
    looks: Arc<AtomicU32>,
}

impl<F: Fn(u32) -> Option<Operation> + Send> Link for Busy<F> {
    fn address(&self) -> IpAddr {
        self.link.address()
    }
    fn mtu(&self) -> usize {
        self.link.mtu()
    }
    fn src_port(&self) -> u16 {
        self.link.src_port()
    }
    fn carries(&self) -> Carries {
        self.link.carries()
    }
    fn has_icrc(&self) -> bool {
        false
    }
    fn send(&mut self, now: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.link.send(now, batch)
    }
    fn recv(
        &mut self,
        _: u64,
        _: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        let Some(operation) = (self.has)(look) else { return Ok(0) };
        let mut packet = [0; 64];
        let mut headers = Headers::new(Bth::new(Opcode::rc(operation), Qpn(5), Psn::new(0)));
        let is_fetch = !operation.has_payload();
        if operation == Operation::ReadRequest {
            headers.ext.reth = Some(Reth { addr: Iova(0), rkey: Rkey(0), bytes: 8 });
        } else if is_fetch {
            let (addr, rkey) = (Iova(0), Rkey(0));
            headers.ext.atomic = Some(AtomicEth { addr, rkey, swap_add: 1, compare: 0 });
        }
        let bytes = headers.emit(if is_fetch { 0 } else { 8 }, &mut packet).finish(None);
        let addresses = Addresses::new([127, 0, 0, 2].into(), [127, 0, 0, 1].into()).unwrap();
        let envelope = Envelope::new(addresses, ROCE_PORT);
        each(&Received { envelope, bytes: &packet[..bytes], checked: false });
        Ok(1)
    }
    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
    fn describe(&self) -> String {
        self.link.describe()
    }
}

/// A NIC on such a link and its driver, and the looks so far.
fn on_a_link(
    has: impl Fn(u32) -> Option<Operation> + Send + 'static,
) -> (Arc<SoftNic>, Engine, Driver, Arc<AtomicU32>) {
    let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
    let looks = Arc::new(AtomicU32::new(0));
    let busy = Busy { link, has, looks: looks.clone() };
    let (nic, engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(busy)).unwrap();
    let driver = Driver::new(engine.helper());
    (nic, engine, driver, looks)
}

/// One poll takes what has come of a long message, for so many steps; of short ones it makes one.
#[test]
fn a_poll_takes_what_has_come_of_a_message() {
    for (operation, expected) in [(Operation::SendMiddle, POLL_STEPS), (Operation::SendOnly, 1)] {
        let (_nic, _engine, driver, looks) = on_a_link(move |_| Some(operation));
        assert!(driver.poll(), "it finds packets");
        assert_eq!(looks.load(Ordering::Relaxed), expected, "{operation:?}");
    }
}

/// A doorbell is caught; how often the thread that rang looked at the link.
fn looks_of_a_ring(driver: &Driver, looks: &AtomicU32) -> u32 {
    let before = looks.load(Ordering::Relaxed);
    driver.catches();
    driver.ring(true);
    looks.load(Ordering::Relaxed) - before
}

/// The program takes its turns as it does: so many doorbells, so many messages.
fn train(driver: &Driver, rings: u32, messages: u64) {
    for _ in 0..3 {
        (0..rings).for_each(|_| _ = driver.catches());
        driver.rings.turns.came(messages);
    }
    (0..2).for_each(|_| driver.rings.answers.came_soon());
}

/// The step of the doorbell itself brings the first message.
#[test]
fn who_rings_looks_on_until_the_whole_answer_has_come() {
    for messages in [1, 3, 7] {
        let (_nic, _engine, driver, looks) = on_a_link(|_| Some(Operation::SendOnly));
        train(&driver, 1, messages.into());
        assert_eq!(looks_of_a_ring(&driver, &looks), messages.max(2));
    }
}

#[test]
fn who_rings_looks_on_after_the_last_of_several_doorbells() {
    let (_nic, _engine, driver, looks) = on_a_link(|_| Some(Operation::SendMiddle));
    train(&driver, 3, 1);
    assert_eq!(looks_of_a_ring(&driver, &looks), 1);
    assert_eq!(looks_of_a_ring(&driver, &looks), 1);
    assert!(looks_of_a_ring(&driver, &looks) > 2, "it waits for the end of a message");
}

/// What a peer reads is none of the program's affair; a word that it adds to may be waited for.
#[test]
fn what_a_peer_reads_is_no_answer() {
    for last in [Operation::SendLast, Operation::FetchAdd] {
        let has = move |look| Some(if look < 20 { Operation::ReadRequest } else { last });
        let (_nic, _engine, driver, looks) = on_a_link(has);
        train(&driver, 1, 1);
        assert_eq!(looks_of_a_ring(&driver, &looks), 21, "{last:?}");
    }
}

/// A server's four clients once asked together; since then one of them takes its time, and the others need not wait.
#[test]
fn a_message_that_has_come_is_not_kept_for_one_that_may() {
    const PAUSE: Duration = Duration::from_micros(500);
    let shortest = (0..10).map(|_| {
        let start = Instant::now();
        let (_nic, _engine, driver, looks) = on_a_link(move |look| {
            (look == 0 || start.elapsed() > PAUSE).then_some(Operation::SendOnly)
        });
        train(&driver, 1, 4);
        let start = Instant::now();
        looks_of_a_ring(&driver, &looks);
        start.elapsed()
    });
    let shortest = shortest.min().unwrap();
    assert!(shortest < Duration::from_nanos(3 * LINGER_NS), "{shortest:?}");
}

/// The engine's thread would stay out for the other doorbell, and for the answer.
#[test]
fn a_doorbell_that_may_be_the_last_leaves_the_answer_to_the_thread() {
    let (_nic, _engine, driver, looks) = on_a_link(|_| None);
    let polls = || {
        driver.empty.store(ENOUGH, Ordering::Relaxed);
        driver.polled_ns.store(driver.now_ns() + 1_000_000_000, Ordering::Relaxed);
        assert!(driver.is_polled(driver.now()));
    };
    train(&driver, 2, 1);
    polls();
    assert_eq!(looks_of_a_ring(&driver, &looks), 1);
    assert!(!driver.is_polled(driver.now()));
    polls();
    driver.leave_to_thread();
    assert!(!driver.is_polled(driver.now()));
}

#[test]
fn acknowledgements_that_nobody_looked_for_do_not_pay() {
    let (_nic, _engine, driver, looks) = on_a_link(|_| Some(Operation::SendOnly));
    let acknowledgements = &driver.rings.acknowledgements;
    (0..4).for_each(|_| acknowledgements.in_vain());
    train(&driver, 1, 1);
    looks_of_a_ring(&driver, &looks);
    (0..2).for_each(|_| acknowledgements.came_soon());
    assert!(!acknowledgements.is_due(), "it was in vain, and takes four now");
}

/// A packet at each of the first looks hides whether messages are unacknowledged.
#[test]
fn who_waits_for_acknowledgements_looks_on_for_them() {
    for (is_waited_for, expected) in [(false, 2), (true, 11)] {
        let (_nic, _engine, driver, looks) =
            on_a_link(|look| (look < 10).then_some(Operation::SendOnly));
        train(&driver, 1, 1);
        let posted = Progress { next_ns: Some(1), ..Progress::default() };
        driver.rings.saw(&posted, 0, false);
        assert!(driver.rings.is_outstanding());
        if is_waited_for {
            (0..2).for_each(|_| driver.rings.acknowledgements.came_soon());
        }
        assert_eq!(looks_of_a_ring(&driver, &looks), expected);
    }
}

/// A peer that sends for ever keeps no thread for ever.
#[test]
fn looking_on_has_an_end() {
    let (_nic, _engine, driver, looks) = on_a_link(|_| Some(Operation::SendMiddle));
    train(&driver, 1, 1);
    let start = Instant::now();
    assert!(looks_of_a_ring(&driver, &looks) > 1);
    assert!(start.elapsed() >= Duration::from_nanos(MOST_LINGER_NS));
    let (_nic, _engine, driver, looks) = on_a_link(|_| None);
    train(&driver, 1, 1);
    let start = Instant::now();
    assert!(looks_of_a_ring(&driver, &looks) > 1);
    assert!(start.elapsed() >= Duration::from_nanos(LINGER_NS));
}

#[test]
fn who_is_inside_does_not_come_in_again() {
    let inside = Inside::enter().unwrap();
    assert!(Inside::enter().is_none());
    assert!(Inside::enter().is_none(), "as little the second time");
    drop(inside);
    assert!(Inside::enter().is_some());
}

/// Another thread that polls has a device's slot most of the time, and the engine's thread is waited for all the same.
#[test]
fn a_process_that_ends_waits_beside_threads_that_poll() {
    let (_nic, mut engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
    let driver = Arc::new(Driver::new(engines[0].helper()));
    let drivers = Drivers::new(1);
    drivers.add(0, &driver);
    let steps = || driver.steps.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let held = drivers.all[0].lock().unwrap();
        let leaves = scope.spawn(|| drivers.take_leave());
        std::thread::sleep(Duration::from_millis(5));
        drop(held);
        while !leaves.is_finished() {
            driver.step_for_thread(&mut engines[0], driver.now());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(steps() >= LAST_STEPS, "{}", steps());
}
