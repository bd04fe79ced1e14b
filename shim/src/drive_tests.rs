use std::net::IpAddr;
use std::sync::Arc;

use bellpush_soft_nic::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
};
use bellpush_soft_nic::{SoftConfig, SoftNic};
use bellpush_wire::roce::{Addresses, Bth, Envelope, Headers, Opcode, Operation, ROCE_PORT};
use bellpush_wire::{Psn, Qpn};

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

/// A link with packets at every look, that end no message or each end one.
struct Busy {
    link: ShmLink,
    ends: bool,
    looks: Arc<AtomicU32>,
}

impl Link for Busy {
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
        self.looks.fetch_add(1, Ordering::Relaxed);
        let operation = if self.ends { Operation::SendOnly } else { Operation::SendMiddle };
        let mut packet = [0; 64];
        let headers = Headers::new(Bth::new(Opcode::rc(operation), Qpn(5), Psn::new(0)));
        let bytes = headers.emit(8, &mut packet).finish(None);
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

/// One poll takes what has come of a long message, for so many steps; of short ones it makes one.
#[test]
fn a_poll_takes_what_has_come_of_a_message() {
    for (ends, expected) in [(false, POLL_STEPS), (true, 1)] {
        let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
        let looks = Arc::new(AtomicU32::new(0));
        let busy = Busy { link, ends, looks: looks.clone() };
        let (_nic, engine) = SoftNic::manual_on(&SoftConfig::default(), Box::new(busy)).unwrap();
        let driver = Driver::new(engine.helper());
        assert!(driver.poll(), "it finds packets");
        assert_eq!(looks.load(Ordering::Relaxed), expected, "ends: {ends}");
    }
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
