//! A step of an engine: doorbells, state changes, packets, work, counters.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Core, NOBODY, Progress, Queues, activate};
use crate::counters::{DropReason, Live};
use crate::device::Device;
use crate::link::port::Port;
use crate::queue::uar::{ArmPage, Rung};
use crate::script::ScriptedFaults;
use crate::service::payload::Domain;
use crate::service::requester::{Requester, StepContext, Tally, Visit};
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::Qpn;
use bellpush_wire::cm::GSI_QPN;
use bellpush_wire::doorbell::Doorbell;
use bellpush_wire::roce::{Opcode, Operation};

/// Every partition key that the one partition's matches, but for the membership bit on top.
const PKEY_BASE: u16 = 0x7fff;
/// Bytes of a READ that is perhaps a part of one, since long ones are asked for in parts.
const LONG_READ: u32 = 32 << 10;
/// Packets that there should be room for when a queue pair is visited.
const VISIT_ROOM: usize = 64;

impl Core {
    /// One bounded round.
    pub(super) fn step(
        &mut self,
        device: &Device,
        now_ns: u64,
        attention: &AtomicBool,
        live: &Live,
    ) -> Progress {
        let mut tally = Tally::default();
        let returned = device.offload.as_ref().is_some_and(|it| self.offload(it, &mut tally));
        // Of two who step the engine, the one that looked at the clock first may come second.
        let now_ns = now_ns.max(self.now_ns);
        let Self { queues, workspace, port, now_ns: last } = self;
        *last = now_ns;
        let next = device.faults.as_ref().and_then(|faults| begin_script(device, faults, now_ns));
        let mut cx = StepContext {
            now_ns,
            timers: device.timers,
            scratch: &mut workspace.scratch,
            coalesced: &mut workspace.coalesced,
            copiers: workspace.copiers.as_mut(),
            counters: &device.counters,
            tally,
            port: None,
            inproc_capture: device.inproc_capture(),
        };
        if let Some(adversary) = &device.adversary {
            adversary.begin(now_ns);
        }
        let mut progress = Progress { more: returned, next_ns: next, ..Progress::default() };
        let (rung, more) = queues.take_doorbells();
        cx.tally.doorbells += rung;
        progress.more |= more;
        queues.take_state_changes(attention);
        if let Some(port) = port {
            progress.more |= queues.receive(port, device, &mut cx);
            if device.gsi.has_something() {
                queues.acknowledge(port);
                device.gsi.send(port);
            }
            cx.port = Some(port);
        }
        queues.work(&mut cx, &mut progress);
        if let Some(at) = device.adversary.as_ref().and_then(|it| it.step(now_ns)) {
            note(Visit::Later(at), &mut progress);
        }
        count(&cx.tally, live, &mut progress);
        progress
    }
}

impl Queues {
    /// Looks at the doorbells; says how many pages were rung, and whether there is more to be looked at.
    fn take_doorbells(&mut self) -> (u64, bool) {
        let (mut rung_count, mut more) = (0, false);
        let Self { slots, active, by_qpn, .. } = self;
        for uar in &mut self.uars {
            if uar.qps.iter().all(|&slot| slots[slot].as_ref().is_some_and(|r| r.is_out())) {
                continue; // an engine elsewhere looks at them
            }
            if let Some(rung) = uar.poll() {
                rung_count += u64::from(rung.iter().any(Option::is_some));
                // Of a crowd those first whose doorbells are still there to be read.
                let words = rung.into_iter().flatten().filter(|_| uar.is_crowded());
                for qpn in words.map(|word| Doorbell::parse(word).qpn) {
                    let Some(&slot) = by_qpn.get(&qpn.0) else { continue };
                    let is_here = |r: &Requester| uar.is(&r.qp().queues.uar);
                    if slots[slot].as_deref().is_some_and(is_here) {
                        look(slots, active, slot, rung);
                    }
                }
                uar.sweep(rung);
            }
            for (slot, rung) in uar.swept() {
                look(slots, active, slot, rung);
            }
            more |= uar.has_more();
        }
        for &slot in &self.by_record {
            if let Some(requester) = &mut slots[slot] {
                requester.sq.glance();
                if requester.sq.has_work() {
                    activate(requester, slot, active);
                }
            }
        }
        self.arm_pages.iter_mut().for_each(ArmPage::poll);
        (rung_count, more)
    }

    /// Looks at state changes that other threads made.
    fn take_state_changes(&mut self, attention: &AtomicBool) {
        if attention.load(Ordering::Relaxed) && attention.swap(false, Ordering::Acquire) {
            for (slot, requester) in self.slots.iter_mut().enumerate() {
                let Some(requester) = requester else { continue };
                if QueuePair::state(&**requester.qp()) == QpState::Err {
                    if let Some(leased) = &requester.leased {
                        leased.lease.ask_back();
                    }
                    if requester.is_out() {
                        if !self.failed.contains(&slot) {
                            self.failed.push(slot);
                        }
                        continue;
                    }
                    requester.sq.ring(Rung::default());
                    activate(requester, slot, &mut self.active);
                    if !self.failed.contains(&slot) {
                        self.failed.push(slot);
                    }
                }
            }
        }
    }

    /// Hands the packets that came to their queue pairs; says whether there were any.
    fn receive(&mut self, port: &mut Port, device: &Device, cx: &mut StepContext<'_>) -> bool {
        port.begin(cx.now_ns);
        let regions = device.mrs.read();
        let came = port.receive(|arrived| {
            let bth = &arrived.packet.headers.bth;
            let opcode = arrived.packet.opcode();
            match opcode.operation() {
                Operation::Acknowledge => cx.tally.acknowledgements += 1,
                operation => {
                    cx.tally.arrivals += 1;
                    let asked = arrived.packet.headers.ext.reth.map_or(0, |reth| reth.bytes);
                    let is_part = operation == Operation::ReadRequest && asked >= LONG_READ;
                    let ends = operation.position().ends();
                    cx.tally.under_way = is_part || !ends;
                    let is_seen = operation.is_request() && operation != Operation::ReadRequest;
                    cx.tally.messages += u64::from(ends && is_seen);
                }
            }
            if opcode == Opcode::CNP {
                return device.counters.dropped(DropReason::Congestion);
            }
            if bth.pkey & PKEY_BASE != PKEY_BASE {
                return device.counters.dropped(DropReason::Pkey);
            }
            let found = self.by_qpn.get(&bth.dest.0);
            let Some((slot, requester)) =
                found.and_then(|&slot| Some((slot, self.slots[slot].as_deref_mut()?)))
            else {
                return match bth.dest {
                    Qpn(GSI_QPN) => device.gsi.on_packet(arrived, &device.counters),
                    _ => device.counters.dropped(DropReason::NoSuchQp),
                };
            };
            self.visited = slot;
            let domain = Domain::of(requester.qp(), &regions);
            match &mut requester.transport {
                Some(transport) => {
                    transport.on_packet(&requester.sq, cx, domain, arrived);
                    activate(requester, slot, &mut self.active);
                }
                None => device.counters.dropped(DropReason::State),
            }
        });
        self.visited = NOBODY;
        came > 0
    }

    /// Says what is to be acknowledged, ahead of a management datagram. A card's acknowledgements leave as messages come; a
    /// peer that hears first that it is disconnected moves its queue pair to ERR, with what it has sent.
    #[cold]
    fn acknowledge(&mut self, port: &mut Port) {
        for requester in self.slots.iter_mut().flatten() {
            let Requester { sq, transport, .. } = &mut **requester;
            if let Some(transport) = transport {
                transport.acknowledge(&sq.qp, port);
            }
        }
    }

    /// Visits the queue pairs that have work, or may have; sends what they built.
    fn work(&mut self, cx: &mut StepContext<'_>, progress: &mut Progress) {
        for &slot in &self.inband {
            if let Some(requester) = &mut self.slots[slot]
                && !requester.is_out()
            {
                self.visited = slot;
                note(requester.visit(cx), progress);
            }
        }
        let mut i = 0;
        let mut unserved = None;
        while let Some(&slot) = self.active.get(i) {
            // Without room there are still timers to be looked at.
            if unserved.is_none() && !has_room(cx) {
                unserved = Some(i);
            }
            self.visited = slot;
            let requester = self.slots[slot].as_deref_mut();
            let visit = requester.map_or(Visit::Idle, |r| {
                let visit = r.visit(cx);
                r.listed = visit != Visit::Idle;
                visit
            });
            note(visit, progress);
            if visit == Visit::Idle {
                self.active.swap_remove(i);
            } else {
                i += 1;
            }
        }
        if let Some(first) = unserved {
            // Those that were not served come first next time.
            let first = first.min(self.active.len());
            self.active.rotate_left(first);
            progress.more = true;
        }
        for &slot in &self.failed {
            self.visited = slot;
            if self.slots[slot].as_ref().is_some_and(|r| r.flush_receives()) {
                cx.tally.errors += 1;
            }
        }
        self.visited = NOBODY;
        if let Some(port) = &mut cx.port {
            port.flush();
            progress.more |= port.is_full();
            progress.link_holds = port.holds();
            if let Some(at) = port.poll_at() {
                note(Visit::Later(at), progress);
            }
        }
        if let Some(capture) = cx.inproc_capture {
            capture.pass();
        }
        for cq in self.moderated.iter().filter_map(Weak::upgrade) {
            if let Some(at) = cq.release(cx.now_ns) {
                note(Visit::Later(at), progress);
            }
        }
    }
}

/// Looks at what a queue pair's doorbell and record say, and whether they differ. One that has nothing costs no more
/// than this.
#[inline]
fn look(slots: &mut [Option<Box<Requester>>], active: &mut Vec<usize>, slot: usize, rung: Rung) {
    let Some(requester) = &mut slots[slot] else { return };
    requester.sq.ring(rung);
    if requester.sq.has_work() {
        activate(requester, slot, active);
    }
}

/// Moves queue pairs to ERR whose time a script says has come; when it does something next.
#[cold]
fn begin_script(device: &Device, faults: &ScriptedFaults, now_ns: u64) -> Option<u64> {
    let next = faults.begin_step(now_ns);
    if faults.ends_some() {
        let mut live = device.qps_of_all();
        let lives = |state| !matches!(state, QpState::Reset | QpState::Err);
        live.retain(|qp| lives(QueuePair::state(&**qp)));
        device.end_qps(faults.take_ends(live));
    }
    next
}

/// Adds a step's counts to those that others read.
fn count(tally: &Tally, live: &Live, progress: &mut Progress) {
    for (counter, n) in [
        (&live.bytes, tally.bytes),
        (&live.inband, tally.inband),
        (&live.blueflame, tally.blueflame),
        (&live.doorbells, tally.doorbells),
        (&live.offloaded, tally.offloaded),
        (&live.returned, tally.returned),
        // Last, and read first: who sees a WQE here sees it in the others.
        (&live.wqes, tally.wqes),
    ] {
        Live::add(counter, n);
    }
    (progress.wqes, progress.bytes, progress.errors) = (tally.wqes, tally.bytes, tally.errors);
    (progress.doorbells, progress.arrivals) = (tally.doorbells, tally.arrivals);
    (progress.messages, progress.acknowledgements) = (tally.messages, tally.acknowledgements);
    progress.under_way = tally.under_way;
}

/// Whether the packet link, if there is one, has room for a visit's packets.
fn has_room(cx: &mut StepContext<'_>) -> bool {
    let Some(port) = &mut cx.port else { return true };
    if port.room() < VISIT_ROOM {
        port.flush();
    }
    port.room() > 0
}

fn note(visit: Visit, progress: &mut Progress) {
    match visit {
        Visit::Idle => {}
        Visit::More => progress.more = true,
        Visit::Later(at) => progress.next_ns = Some(progress.next_ns.map_or(at, |n| n.min(at))),
    }
}
