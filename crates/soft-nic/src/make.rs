//! What a program makes on a NIC: queue pairs, and the objects that they use.

use std::sync::Arc;

use crate::SoftNic;
use crate::objects::cq::{Cq, CqAttr, CqLayout, Notify};
use crate::objects::layout;
use crate::objects::moderation::Moderation;
use crate::objects::mr::{Pd, Reregister};
use crate::objects::qp::{Objects, Qp};
use crate::objects::srq::{Srq, SrqAttr};
use crate::objects::tags::TagAttr;
use crate::objects::xrc::{XrcSrq, Xrcd};
use crate::record::{Call, Outcome, SrqSort, hooked, outside, plainly};
use bellpush_mem::{Dma, View};
use bellpush_nic::{Access, Mr, Nic, NicError, Order, QpAttr, QpType, Queues};
use bellpush_wire::{Iova, Qpn};

impl SoftNic {
    /// Creates a queue pair, as [`Nic::create_qp`], with its own type.
    ///
    /// # Errors
    /// [`NicError::Attribute`], [`NicError::Full`], [`NicError::Memory`].
    pub fn create(&self, attr: &QpAttr, memory: &View) -> Result<Arc<Qp>, NicError> {
        self.create_on(attr, Queues { order: self.order(), ..Self::place(attr, memory)? })
    }

    /// Creates a queue pair over queues that lie anywhere; several may share a UAR page.
    ///
    /// # Errors
    /// As [`SoftNic::create`].
    pub fn create_on(&self, attr: &QpAttr, queues: Queues) -> Result<Arc<Qp>, NicError> {
        let strict = queues.order == Order::Strict;
        if strict && attr.inband.is_some() {
            let what = "in-band slots where posters keep to the order of silicon";
            return Err(NicError::Unsupported { nic: self.name().into(), what });
        }
        // BlueFlame is a doorbell there: what counts is the WQE in the ring.
        let attr = &QpAttr { blueflame: attr.blueflame && !strict, ..attr.clone() };
        layout::check(attr)?;
        layout::cqs_fit(attr, &queues)?;
        if self.device.recorder.is_some() {
            // A recording has words for CQs that others could share.
            let objects = self.shareable(attr, &queues)?;
            return self.create_with(attr, queues, objects);
        }
        self.device.create_qp(attr, queues.clone(), self.device.private(attr, &queues)?)
    }

    fn shareable(&self, attr: &QpAttr, queues: &Queues) -> Result<Objects, NicError> {
        let cq = |ring: &View, dbr: &View| {
            let (ring, dbr, uar) = (ring.clone(), dbr.clone(), queues.uar.clone());
            self.create_cq(&CqAttr { ring, dbr, uar, notify: None })
        };
        let recv = (attr.recv_cqes > 0).then(|| cq(&queues.recv_cq, &queues.recv_cq_dbr));
        Ok(Objects {
            kind: QpType::Rc,
            pd: self.default_pd().clone(),
            send_cq: cq(&queues.send_cq, &queues.send_cq_dbr)?,
            recv_cq: recv.transpose()?,
            srq: None,
            uidx: 0,
        })
    }

    /// Creates a queue pair of any type that uses objects which others may use as well. The CQs'
    /// parts of attributes and queues are not looked at.
    ///
    /// # Errors
    /// As [`SoftNic::create`].
    pub fn create_with(
        &self,
        attr: &QpAttr,
        queues: Queues,
        objects: Objects,
    ) -> Result<Arc<Qp>, NicError> {
        let recv_cqes = objects.recv_cq.as_ref().map_or(0, |cq| cq.entries());
        let attr = QpAttr { send_cqes: objects.send_cq.entries(), recv_cqes, ..attr.clone() };
        layout::check(&attr)?;
        let recorder = self.device.recorder.as_ref();
        let Some((call, queues)) =
            recorder.map(|it| hooked::qp(it, &attr, queues.clone(), &objects))
        else {
            return self.device.create_qp(&attr, queues, objects);
        };
        let create = || self.device.create_qp(&attr, queues, objects);
        outside(recorder, || call, create, |qp| Outcome::Number(qp.qpn.0))
    }

    /// Lays out queues in memory as [`SoftNic::create`] does.
    ///
    /// # Errors
    /// [`NicError::Memory`] when `memory` is shorter than [`Nic::queue_bytes`].
    pub fn place(attr: &QpAttr, memory: &View) -> Result<Queues, NicError> {
        layout::check(attr)?;
        layout::place(attr, memory)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`NicError::Full`].
    pub fn create_pd(&self) -> Result<Arc<Pd>, NicError> {
        let create = || self.device.create_pd();
        outside(
            self.device.recorder.as_ref(),
            || Call::Pd,
            create,
            |pd| Outcome::Number(pd.number()),
        )
    }

    /// The protection domain of [`Nic::register`] and [`Nic::create_qp`].
    pub fn default_pd(&self) -> &Arc<Pd> {
        &self.device.pd
    }

    /// Creates a CQ that several queue pairs may share.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for rings of the wrong size, [`NicError::Memory`].
    pub fn create_cq(&self, attr: &CqAttr) -> Result<Arc<Cq>, NicError> {
        self.create_cq_with(attr, CqLayout::default())
    }

    /// Creates a CQ whose entries lie otherwise than [`SoftNic::create_cq`]'s.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_cq_with(&self, attr: &CqAttr, layout: CqLayout) -> Result<Arc<Cq>, NicError> {
        let recorder = self.device.recorder.as_ref();
        let Some((call, attr)) = recorder.map(|it| hooked::cq(it, attr, layout)) else {
            return self.device.create_cq(attr, layout);
        };
        let create = || self.device.create_cq(&attr, layout);
        outside(recorder, || call, create, |cq| Outcome::Number(cq.number()))
    }

    /// Has the consumer of a CQ that was created without `notify` told when it has armed it, from now on. `uar` is the
    /// page that it rings then. A CQ has one way of being told.
    pub fn notify(&self, cq: &Arc<Cq>, uar: &View, notify: Notify) {
        let recorder = self.device.recorder.as_ref();
        let (place, uar) = match recorder.map(|it| hooked::view(it, uar)) {
            Some((place, uar)) => (Some(place), uar),
            None => (None, uar.clone()),
        };
        let call = place.map_or(Call::Quiesce, |uar| Call::Notify { cq: cq.number(), uar });
        plainly(recorder, call, || {
            if cq.notify_with(notify) {
                self.device.engines[0].control().watch_arming(&uar, cq);
                cq.armed();
            }
        });
    }

    /// Has the consumer of a CQ that several queue pairs may share told of several entries together
    /// (`ibv_modify_cq`), from now on.
    pub fn moderate(&self, cq: &Arc<Cq>, moderation: Moderation) {
        let Moderation { count, period_us } = moderation;
        let call = Call::Moderate { cq: cq.number(), count, period_us };
        plainly(self.device.recorder.as_ref(), call, || {
            cq.moderate(moderation);
            self.device.engines[0].control().watch_moderated(cq);
        });
    }

    /// Creates a shared receive queue whose WQEs come in the order of its ring. Completions count them:
    /// `wqe_counter` is not the place in the ring, but goes on.
    ///
    /// # Errors
    /// As [`SoftNic::create_srq`].
    pub fn create_cyclic_srq(&self, attr: &SrqAttr) -> Result<Arc<Srq>, NicError> {
        self.create_plain_srq(attr, true)
    }

    fn create_plain_srq(&self, attr: &SrqAttr, cyclic: bool) -> Result<Arc<Srq>, NicError> {
        let sort = if cyclic { SrqSort::Cyclic } else { SrqSort::Plain };
        self.record_srq(attr, sort, |attr| match cyclic {
            true => self.device.create_cyclic_srq(attr),
            false => self.device.create_srq(attr, None),
        })
    }

    fn record_srq(
        &self,
        attr: &SrqAttr,
        sort: SrqSort,
        create: impl FnOnce(&SrqAttr) -> Result<Arc<Srq>, NicError>,
    ) -> Result<Arc<Srq>, NicError> {
        let recorder = self.device.recorder.as_ref();
        let Some((call, attr)) = recorder.map(|it| hooked::srq(it, attr, sort)) else {
            return create(attr);
        };
        outside(recorder, || call, || create(&attr), |srq| Outcome::Number(srq.number()))
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<Srq>, NicError> {
        self.create_plain_srq(attr, false)
    }

    /// Creates an XRC domain.
    pub fn create_xrcd(&self) -> Arc<Xrcd> {
        let Some(recorder) = &self.device.recorder else { return Arc::default() };
        let number = recorder.number_xrcd();
        plainly(Some(recorder), Call::Xrcd { number }, || {});
        Xrcd::numbered(number)
    }

    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`].
    pub fn create_xrc_srq(&self, attr: &SrqAttr, xrc: XrcSrq) -> Result<Arc<Srq>, NicError> {
        if xrc.uidx > Qpn::MAX {
            let (value, must) = (xrc.uidx.into(), "24 bits");
            return Err(NicError::Attribute { what: "user index", value, must });
        }
        let (xrcd, cq, uidx) = (xrc.xrcd.number, xrc.cq.number(), xrc.uidx);
        self.record_srq(attr, SrqSort::Xrc { xrcd, cq, uidx }, |attr| {
            let xrcd = xrc.xrcd.clone();
            let srq = self.device.create_srq(attr, Some(xrc))?;
            xrcd.add(&srq);
            Ok(srq)
        })
    }

    /// Creates a shared receive queue that matches tags.
    ///
    /// # Errors
    /// As [`SoftNic::create_cq`]; [`NicError::Attribute`] also on the in-process link, and for a list that is too long.
    pub fn create_tag_srq(&self, attr: &SrqAttr, tags: TagAttr) -> Result<Arc<Srq>, NicError> {
        let refuse = |what, value, must| Err(NicError::Attribute { what, value, must });
        if self.carries().is_none() {
            return refuse("shared receive queue that matches tags", 1, "on a packet link");
        }
        if tags.uidx > Qpn::MAX {
            return refuse("user index", tags.uidx.into(), "24 bits");
        }
        let (cq, TagAttr { uidx, tags: places, cyclic, .. }) = (tags.cq.number(), tags.clone());
        let sort = SrqSort::Tags { cq, uidx, tags: places, cyclic };
        self.record_srq(attr, sort, |attr| self.device.create_tag_srq(attr, tags))
    }

    /// Creates the receiving end of an XRC connection, which has no queues of its own. The sending
    /// end is made by [`SoftNic::create_with`], without receives.
    ///
    /// # Errors
    /// [`NicError::Attribute`] on the in-process link, [`NicError::Full`], [`NicError::Memory`].
    pub fn create_xrc_recv(&self, xrcd: &Arc<Xrcd>) -> Result<Arc<Qp>, NicError> {
        let create = || self.device.create_xrc_recv(xrcd);
        let call = || Call::XrcRecv { xrcd: xrcd.number };
        let recorder = self.device.recorder.as_ref();
        outside(recorder, call, create, |qp| Outcome::Number(qp.qpn.0))
    }

    /// Registers memory in a protection domain.
    ///
    /// # Errors
    /// As [`Nic::register`].
    pub fn register_in(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        iova: Iova,
        access: Access,
    ) -> Result<Mr, NicError> {
        self.register_as(pd, mem, (iova, access), None)
    }

    pub(crate) fn register_as(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        (iova, access): (Iova, Access),
        tag: Option<u8>,
    ) -> Result<Mr, NicError> {
        let register = |mem| self.device.mrs.register(pd, mem, (iova, access), tag);
        let recorder = self.device.recorder.as_ref();
        let Some(recorder) = recorder else { return register(mem) };
        let (call, mem) = hooked::region(recorder, pd.number(), mem, (iova, access), tag);
        let keys = |mr: &Mr| Outcome::Keys(mr.lkey.0, mr.rkey.0);
        outside(Some(recorder), || call, || register(mem), keys)
    }

    /// Registers memory under a key whose low byte the caller chooses, as a DEVX program does.
    ///
    /// # Errors
    /// As [`Nic::register`].
    pub fn register_with_tag(
        &self,
        pd: &Arc<Pd>,
        mem: Arc<dyn Dma>,
        (iova, access): (Iova, Access),
        tag: u8,
    ) -> Result<Mr, NicError> {
        self.register_as(pd, mem, (iova, access), Some(tag))
    }

    /// Changes a registration, whose keys stay as they are (`ibv_rereg_mr`). Accesses that are under
    /// way come before, later ones find what it is then.
    ///
    /// # Errors
    /// [`NicError::NoSuchRegion`], and as [`Nic::register`]; nothing has changed then.
    pub fn reregister(&self, mr: Mr, change: Reregister) -> Result<Mr, NicError> {
        let recorder = self.device.recorder.as_ref();
        let Some((call, change)) = recorder.map(|it| hooked::changed(it, &mr, change.clone()))
        else {
            return self.device.mrs.reregister(mr, change);
        };
        let keys = |mr: &Mr| Outcome::Keys(mr.lkey.0, mr.rkey.0);
        outside(recorder, || call, || self.device.mrs.reregister(mr, change), keys)
    }
}
