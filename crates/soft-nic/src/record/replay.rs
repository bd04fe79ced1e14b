//! The same decisions again: calls and steps of a recording, on a NIC that has nothing else.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::event::{Call, CqCall, Event, Outcome, Place, QpCall, RegisterCall, SrqCall, SrqSort};
use super::reader::{Recording, RecordingError, broken};
use super::stage::{Prop, PropLink, Stage};
use crate::config::SoftConfig;
use crate::engine::Engine;
use crate::objects::cq::{Cq, CqAttr, CqLayout};
use crate::objects::mkey::{MkeyAttr, PartsAttr};
use crate::objects::moderation::Moderation;
use crate::objects::mr::{Pd, Reregister};
use crate::objects::qp::{Objects, Qp};
use crate::objects::srq::{Srq, SrqAttr};
use crate::objects::tags::TagAttr;
use crate::objects::xrc::{XrcSrq, Xrcd};
use crate::script::{Script, ScriptedFaults};
use crate::{Adversary, SoftNic};
use bellpush_mem::{Dma, Hooked, View};
use bellpush_nic::{Nic, NicError, QpAttr, QueuePair, Queues};
use bellpush_wire::{Iova, Qpn, Rkey};

/// Where a replay and its recording part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Steps before it.
    pub step: u64,
    /// Events before it.
    pub event: u64,
    /// Time of the step, in ns of the engine's clock.
    pub now_ns: u64,
    /// What was recorded; `None`: nothing more.
    pub recorded: Option<String>,
    /// What the NIC did.
    pub did: String,
}

/// How a replay ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// At the recording's end, without a difference.
    Same,
    /// Where the recording stops although its device was not closed, without a difference before: a process that ended
    /// or was ended, or a full disk.
    Stops {
        /// Bytes that are there of an event that is not whole, or whose length is damaged.
        unread: usize,
    },
    /// At a call that recordings have no words for; without a difference before it.
    Beyond(String),
    /// At a difference.
    Differs(Difference),
}

/// What was played of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Steps of the engine.
    pub steps: u64,
    /// Calls, accesses, packets and asynchronous events.
    pub events: u64,
    /// How it ended.
    pub end: End,
}

/// Plays a recording.
///
/// # Errors
/// [`RecordingError`].
pub fn replay(recording: Vec<u8>) -> Result<Replayed, RecordingError> {
    Player::new(&Recording::of(recording)?)?.play()
}

fn clock() -> u64 {
    0
}

struct Player {
    stage: Arc<Stage>,
    nic: Arc<SoftNic>,
    engine: Engine,
    pds: HashMap<u32, Arc<Pd>>,
    cqs: HashMap<u32, Arc<Cq>>,
    srqs: HashMap<u32, Arc<Srq>>,
    xrcds: HashMap<u32, Arc<Xrcd>>,
    qps: HashMap<u32, Arc<Qp>>,
}

enum Next {
    Call(Call),
    Step(u64),
    Closed,
}

/// A call that makes no sense of what came before it.
fn odd(what: &str) -> NicError {
    NicError::Device(format!("a call of the recording makes no sense: {what}").into())
}

impl Player {
    fn new(recording: &Recording) -> Result<Self, RecordingError> {
        let header = &recording.header;
        let refuse = |error: &dyn std::fmt::Display| RecordingError::Nic(error.to_string());
        let mut config = SoftConfig { seed: Some(header.seed), ..SoftConfig::default() };
        if let Some((text, device)) = &header.script {
            let script: Script = text.parse().map_err(|error| refuse(&error))?;
            config.faults = Some(ScriptedFaults::new(&script, *device, Some(header.address)));
        }
        if let Some(text) = &header.adversary {
            let adversary: Adversary = text.parse().map_err(|error| refuse(&error))?;
            config.adversary = Some(adversary);
        }
        let stage = Stage::new(recording);
        let link = Box::new(PropLink::new(stage.clone(), header.clone()));
        let made = SoftNic::manual_on(&config, link);
        let (nic, engine) = made.map_err(|error| refuse(&error))?;
        let told = stage.clone();
        nic.tell_events(Box::new(move |event| told.told(event)));
        let (cqs, srqs, xrcds, qps) = Default::default();
        let pds = HashMap::from([(nic.default_pd().number(), nic.default_pd().clone())]);
        Ok(Self { stage, nic, engine, pds, cqs, srqs, xrcds, qps })
    }

    fn play(mut self) -> Result<Replayed, RecordingError> {
        let end = loop {
            let next = self.stage.state().take(|event| match event {
                Event::Call(call) => Some(Next::Call(call.clone())),
                Event::Step { now_ns } => Some(Next::Step(*now_ns)),
                Event::Closed => Some(Next::Closed),
                _ => None,
            });
            match next {
                Some(Next::Call(Call::Other(what))) => break End::Beyond(what),
                Some(Next::Call(call)) => self.make(call)?,
                Some(Next::Step(now_ns)) => self.step(now_ns),
                Some(Next::Closed) => break End::Same,
                None => self.stage.state().differ("nothing more in this step or call".into()),
            }
            let mut state = self.stage.state();
            if let Some(error) = state.broken.take() {
                return Err(error);
            }
            if let Some(difference) = state.difference.take() {
                break End::Differs(difference);
            }
            if state.cut {
                break End::Stops { unread: state.unread() };
            }
            let gone = std::mem::take(&mut state.gone);
            drop(state);
            gone.into_iter().for_each(|number| self.forget(number));
        };
        let state = self.stage.state();
        let (steps, events) = (state.steps, state.events);
        drop(state);
        Ok(Replayed { steps, events, end })
    }

    fn forget(&mut self, number: u32) {
        self.cqs.remove(&number);
        self.srqs.remove(&number);
        self.pds.remove(&number);
    }

    fn step(&mut self, now_ns: u64) {
        let mut state = self.stage.state();
        (state.now_ns, state.steps) = (now_ns, state.steps + 1);
        state.begin();
        drop(state);
        let stepped = catch_unwind(AssertUnwindSafe(|| self.engine.step(now_ns)));
        if stepped.is_err() {
            self.stage.state().differ("panics".into());
        }
    }

    fn make(&mut self, call: Call) -> Result<(), RecordingError> {
        self.stage.state().begin();
        if let Call::Gone { number } = call {
            self.forget(number);
            return Ok(());
        }
        let outcome = match self.carry_out(call) {
            Ok(outcome) => outcome,
            // What was refused when it was recorded is refused again; what makes no sense here made none there.
            Err(NicError::Device(odd)) => {
                return Err(broken(self.stage.state().place(), odd));
            }
            Err(_) => Outcome::Refused,
        };
        self.stage.done(outcome);
        Ok(())
    }

    fn carry_out(&mut self, call: Call) -> Result<Outcome, NicError> {
        match call {
            Call::Pd => {
                let pd = self.nic.create_pd()?;
                let number = pd.number();
                self.pds.insert(number, pd);
                return Ok(Outcome::Number(number));
            }
            Call::Cq(call) => return self.make_cq(&call),
            Call::Srq(call) => return self.make_srq(&call),
            Call::Qp(call) => return self.make_qp(&call),
            Call::Register(call) => return self.register(&call),
            Call::Mkey { pd, octowords, remote_invalidate, tag } => {
                let octowords = octowords as usize;
                let attr = MkeyAttr { octowords, remote_invalidate, tag };
                let key = self.nic.create_mkey(self.pd(pd)?, attr)?;
                return Ok(Outcome::Number(key.0));
            }
            Call::DestroyMkey { key } => self.nic.destroy_mkey(Rkey(key))?,
            Call::ResizeCq { cq, ring, entry_bytes } => {
                let (view, cq) = (self.view(&ring)?, self.cq(cq)?);
                if cq.is_stamped() {
                    self.stage.state().stamp(ring.region);
                }
                cq.resize(view, entry_bytes as usize)?;
            }
            Call::Notify { cq, uar } => {
                let uar = self.view(&uar)?;
                self.nic.notify(self.cq(cq)?, &uar, Arc::new(|_| {}));
            }
            Call::Moderate { cq, count, period_us } => {
                self.nic.moderate(self.cq(cq)?, Moderation { count, period_us });
            }
            Call::ArmLimit { srq, limit } => self.srq(srq)?.arm_limit(limit)?,
            Call::CloseSrq { srq } => self.srq(srq)?.close(),
            Call::Modify { qpn, to, change } => self.qp(qpn)?.modify(to, &change)?,
            Call::Fail { qpn } => self.qp(qpn)?.fail(),
            Call::DestroyQp { qpn } => {
                self.qps.remove(&qpn);
                self.nic.destroy_qp(Qpn(qpn))?;
            }
            Call::Deregister(region) => self.nic.deregister(region.into())?,
            Call::Parts { pd, iova, access, tag, parts } => {
                let attr = PartsAttr { iova: Iova(iova), access, tag, parts };
                let key = self.nic.create_parts(self.pd(pd)?, attr)?;
                return Ok(Outcome::Number(key.0));
            }
            Call::Reregister { region, pd, memory, access } => {
                let pd = pd.map(|pd| self.pd(pd).cloned()).transpose()?;
                let memory = match memory {
                    Some((number, addr, bytes, iova)) => {
                        let memory = self.memory((number, None), (addr, bytes));
                        Some((memory as Arc<dyn Dma>, Iova(iova)))
                    }
                    None => None,
                };
                let change = Reregister { pd, memory, access };
                let mr = self.nic.reregister(region.into(), change)?;
                return Ok(Outcome::Keys(mr.lkey.0, mr.rkey.0));
            }
            Call::Xrcd { number } => {
                self.xrcds.insert(number, Arc::default());
            }
            Call::XrcRecv { xrcd } => {
                let qp = self.nic.create_xrc_recv(self.xrcd(xrcd)?)?;
                let qpn = qp.qpn.0;
                self.qps.insert(qpn, qp);
                return Ok(Outcome::Number(qpn));
            }
            Call::DcKey { qpn, key } => self.qp(qpn)?.set_dc_key(key),
            Call::Streams { qpn, most_in_error } => self.qp(qpn)?.set_streams(most_in_error),
            Call::ResetStream { qpn, stream } => self.qp(qpn)?.reset_stream(stream)?,
            Call::TellMads => {
                self.nic.tell_mads(Box::new(|_, _| {}));
            }
            Call::Mad { to, bytes } => {
                let mad = bytes.try_into().map_err(|_| odd("a datagram of another length"))?;
                self.nic.send_mad(to, mad)?;
            }
            Call::Notice(notice) => self.nic.notice(notice.into()),
            Call::Port { up } => self.nic.set_port(up),
            Call::Quiesce => self.nic.quiesce(),
            Call::Gone { .. } | Call::Other(_) => {}
        }
        Ok(Outcome::Done)
    }

    fn pd(&self, number: u32) -> Result<&Arc<Pd>, NicError> {
        self.pds.get(&number).ok_or_else(|| odd("no such protection domain"))
    }

    fn cq(&self, number: u32) -> Result<&Arc<Cq>, NicError> {
        self.cqs.get(&number).ok_or_else(|| odd("no such CQ"))
    }

    fn srq(&self, number: u32) -> Result<&Arc<Srq>, NicError> {
        self.srqs.get(&number).ok_or_else(|| odd("no such SRQ"))
    }

    fn xrcd(&self, number: u32) -> Result<&Arc<Xrcd>, NicError> {
        self.xrcds.get(&number).ok_or_else(|| odd("no such XRC domain"))
    }

    fn qp(&self, qpn: u32) -> Result<&Arc<Qp>, NicError> {
        self.qps.get(&qpn).ok_or_else(|| odd("no such queue pair"))
    }

    /// Memory that answers from the recording.
    fn memory(
        &self,
        (region, queue): (u32, Option<u32>),
        (addr, bytes): (u64, u64),
    ) -> Arc<Hooked> {
        let prop = Prop { stage: self.stage.clone(), region, queue };
        Hooked::new(addr, bytes as usize, Box::new(prop))
    }

    fn view(&self, place: &Place) -> Result<View, NicError> {
        let queue = self.stage.state().number_queue();
        let memory = self.memory((place.region, Some(queue)), (place.addr, place.bytes));
        let view = View::hooked(memory, place.offset as usize, place.len as usize);
        view.map_err(|_| odd("memory that is nowhere"))
    }

    fn make_cq(&mut self, call: &CqCall) -> Result<Outcome, NicError> {
        let [ring, dbr, uar] = [&call.ring, &call.dbr, &call.uar].map(|it| self.view(it));
        let notify: Option<crate::Notify> = if call.notify { Some(Arc::new(|_| {})) } else { None };
        let attr = CqAttr { ring: ring?, dbr: dbr?, uar: uar?, notify };
        if call.timestamp {
            self.stage.state().stamp(call.ring.region);
        }
        let layout = CqLayout {
            entry_bytes: call.entry_bytes as usize,
            collapsed: call.collapsed,
            overrun_ignored: call.overrun_ignored,
            timestamp: if call.timestamp { Some(clock) } else { None },
        };
        let cq = self.nic.create_cq_with(&attr, layout)?;
        let number = cq.number();
        self.cqs.insert(number, cq);
        Ok(Outcome::Number(number))
    }

    fn make_srq(&mut self, call: &SrqCall) -> Result<Outcome, NicError> {
        let (ring, dbr) = (self.view(&call.ring)?, self.view(&call.dbr)?);
        let (stride_log, limit) = (call.stride_log, call.limit);
        let attr = SrqAttr { pd: self.pd(call.pd)?.clone(), ring, stride_log, dbr, limit };
        let srq = match call.sort {
            SrqSort::Cyclic => self.nic.create_cyclic_srq(&attr)?,
            SrqSort::Plain => self.nic.create_srq(&attr)?,
            SrqSort::Xrc { xrcd, cq, uidx } => {
                let (xrcd, cq) = (self.xrcd(xrcd)?.clone(), self.cq(cq)?.clone());
                self.nic.create_xrc_srq(&attr, XrcSrq { xrcd, cq, uidx })?
            }
            SrqSort::Tags { cq, uidx, tags, cyclic } => {
                let tags = TagAttr { cq: self.cq(cq)?.clone(), uidx, tags, cyclic };
                self.nic.create_tag_srq(&attr, tags)?
            }
        };
        let number = srq.number();
        self.srqs.insert(number, srq);
        Ok(Outcome::Number(number))
    }

    fn make_qp(&mut self, call: &QpCall) -> Result<Outcome, NicError> {
        let [sq, rq, dbr, uar] =
            [&call.sq, &call.rq, &call.dbr, &call.uar].map(|place| self.view(place));
        let (sq, dbr) = (sq?, dbr?);
        let queues = Queues {
            // The CQs' are not looked at.
            send_cq: sq.clone(),
            send_cq_dbr: dbr.clone(),
            recv_cq: sq.clone(),
            recv_cq_dbr: dbr.clone(),
            sq,
            rq: rq?,
            rq_stride_log: call.rq_stride_log,
            dbr,
            uar: uar?,
            order: call.order,
        };
        let attr = QpAttr {
            sq_blocks: call.sq_blocks,
            rq_wqes: call.rq_wqes,
            rq_sges: call.rq_sges,
            send_cqes: 0,
            recv_cqes: 0,
            rnr_retry: call.rnr_retry,
            ack_timeout: call.ack_timeout,
            inband: None,
            blueflame: false,
        };
        let objects = Objects {
            kind: call.kind,
            pd: self.pd(call.pd)?.clone(),
            send_cq: self.cq(call.send_cq)?.clone(),
            recv_cq: call.recv_cq.map(|cq| self.cq(cq).cloned()).transpose()?,
            srq: call.srq.map(|srq| self.srq(srq).cloned()).transpose()?,
            uidx: call.uidx,
        };
        let qp = self.nic.create_with(&attr, queues, objects)?;
        let qpn = qp.qpn.0;
        self.qps.insert(qpn, qp);
        Ok(Outcome::Number(qpn))
    }

    fn register(&mut self, call: &RegisterCall) -> Result<Outcome, NicError> {
        let memory = self.memory((call.region, None), (call.addr, call.bytes));
        let at = (Iova(call.iova), call.access);
        let mr = self.nic.register_as(self.pd(call.pd)?, memory, at, call.tag)?;
        Ok(Outcome::Keys(mr.lkey.0, mr.rkey.0))
    }
}
