//! The path `auto`: two queue pairs to one peer, and a table that says which way a message goes.
//!
//! `bell` is an endpoint of `push/kernel` (of `push/blueflame`, where the table has BlueFlame), and its queue pair takes
//! WQEs of every data path: a ticket that has no slot passes one by, as a get's does. `inband` is one of `push/inband`.

use std::sync::{Arc, Mutex, PoisonError};

use super::kernel_posted::{KernelPosted, WARP_BYTES};
use super::{
    Address, Choice, CompareSwap, Data, Error, FetchAdd, Get, Kick, Machine, Memory, Options, Path,
    Progress, Put, Reach, Tuning,
};
use crate::abi::entry::{Scope, Verb};
use crate::abi::wire::{Code, DeviceAutoEndpoint, DeviceEndpoint, tag};
use crate::gpu::{Gpu, Kernel, Module, Stream};
use crate::nic::{LineFormat, Nic, NicError, Order, QpAddress};

pub(super) struct AutoPosted {
    pub bell: KernelPosted,
    inband: Option<KernelPosted>,
    /// Without what cannot be done here.
    tuning: Tuning,
    /// By the number of a choice of `bell`'s: the kernel of its verbs, and their tag.
    verbs: [Option<(Kernel, u32)>; Choice::ALL.len()],
    line: LineFormat,
    order: Order,
    /// Held while a call looks at both queue pairs' streams and queues on one.
    turn: Mutex<()>,
}

impl AutoPosted {
    pub fn new(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        local: Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut tuning = match &options.tuning {
            Some(given) => given.clone(),
            None => Tuning::of(&Machine::of(gpu, nic, &local, options)?)?,
        };
        let made = |kick| {
            let path = Path::new(Data::Push, kick)?;
            KernelPosted::new(gpu, nic, path, local.clone(), options)
        };
        // What the NIC cannot take goes by doorbell.
        let made_if_taken = |kick| match made(kick) {
            Err(Error::Unsupported { .. } | Error::Nic(NicError::Unsupported { .. })) => Ok(None),
            other => other.map(Some),
        };
        let mut bell = made(Kick::Kernel)?;
        // A doorbell behind a BlueFlame store needs a fence of system scope. Where one of GPU scope is enough for
        // everything else, that would cost all others more than BlueFlame saves.
        let flames = bell.reach == Reach::System && tuning.has(Choice::is_blueflame);
        match if flames { made_if_taken(Kick::Blueflame)? } else { None } {
            Some(blueflame) => bell = blueflame,
            None => tuning.replace(by_doorbell),
        }
        // Whatever the table has: the peer's may have it.
        let mut inband = made_if_taken(Kick::Inband)?;
        if let Some(inband) = &mut inband {
            inband.fail_with(&bell);
        }
        let (line, order) = (options.line, nic.order());
        let mut verbs: [Option<(Kernel, u32)>; Choice::ALL.len()] = Default::default();
        let module = gpu.load(&Module::builtin())?;
        for (choice, verb) in Choice::ALL.into_iter().zip(&mut verbs) {
            let (data, kick) = match choice {
                Choice::Push | Choice::Inline => (Data::Push, Kick::Kernel),
                Choice::Blueflame => (Data::Push, Kick::Blueflame),
                Choice::Pull => (Data::Pull, Kick::Kernel),
                Choice::PullBlueflame => (Data::Pull, Kick::Blueflame),
                Choice::Inband => continue,
            };
            let path = Path::new(data, kick)?;
            if let Some(name) = path.kernel_name(line, order, bell.reach) {
                let kernel = module.kernel(&format!("bp_verb_{name}"))?;
                *verb = Some((kernel, path.tag(line, order, bell.reach)));
            }
        }
        let mut posted = Self { bell, inband, tuning, verbs, line, order, turn: Mutex::new(()) };
        posted.replace_inband();
        Ok(posted)
    }

    /// Takes the in-band queue pair out of the table where there is none.
    fn replace_inband(&mut self) {
        if self.inband.is_none() {
            let push = |choice| if choice == Choice::Inband { Choice::Push } else { choice };
            self.tuning.replace(push);
        }
    }

    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    pub fn address(&self) -> Address {
        let bell = self.bell.rdma.qp.address();
        let inband = self.inband.as_ref().map(|posted| posted.rdma.qp.address());
        Address { link: super::Link::Auto { bell, inband }, ..self.bell.rdma.address() }
    }

    /// Connects both queue pairs; if the peer has no in-band one, the first alone.
    pub fn connect(
        &mut self,
        peer: &Address,
        bell: QpAddress,
        inband: Option<QpAddress>,
    ) -> Result<(), Error> {
        self.bell.rdma.qp.connect(bell)?;
        self.bell.set_peer(peer);
        match (&mut self.inband, inband) {
            // It stays where it cannot connect: after a reset it may.
            (Some(ours), Some(theirs)) => {
                ours.rdma.qp.connect(theirs)?;
                ours.set_peer(peer);
            }
            _ => self.inband = None,
        }
        self.replace_inband();
        Ok(())
    }

    pub fn device(&self) -> DeviceAutoEndpoint {
        let mut ep: DeviceAutoEndpoint = bytemuck::Zeroable::zeroed();
        let path = |kick| Path::new(Data::Push, kick).expect("push goes with every kick");
        let bell_tag = path(Kick::Kernel).tag(self.line, self.order, self.bell.reach);
        ep.bell = DeviceEndpoint { tag: bell_tag, ..self.bell.device };
        ep.tag = tag::AUTO | bell_tag & (tag::SYSTEM | tag::STRICT);
        // Where no length goes in-band, waits of kernels need not look at that queue pair: its state is a read more.
        let is_taken = self.tuning.has(|choice| choice == Choice::Inband);
        if let Some(inband) = self.inband.as_ref().filter(|_| is_taken) {
            ep.inband = inband.device;
            ep.tag |= inband.device.tag & (tag::INBAND_12_4 | tag::INBAND_14_2 | tag::INBAND_60_4);
        }
        [ep.by_thread, ep.by_warp, ep.by_block] = self.tuning.device();
        ep
    }

    /// How a put goes. A GPU's memory that this one's kernels may not read is pulled, whatever its length.
    fn choice(&self, bytes: u64) -> Choice {
        if self.bell.payload().is_err() {
            return Choice::Pull;
        }
        // As `KernelPosted` launches it.
        let scope = if bytes <= WARP_BYTES { Scope::Warp } else { Scope::Block };
        match self.tuning.ranges(scope).choice(bytes) {
            Choice::Inline | Choice::Blueflame if bytes > MAX_INLINE_BYTES => Choice::Push,
            Choice::Pull | Choice::PullBlueflame if bytes > 1 << 30 => Choice::Push,
            choice => choice,
        }
    }

    /// Takes a call's turn on this stream.
    fn turn(&self, stream: &Stream) -> Result<impl Drop + '_, Error> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.bell.admit(stream)?;
        if let Some(inband) = &self.inband {
            inband.admit(stream)?;
        }
        Ok(turn)
    }

    pub fn put(&self, stream: &Stream, put: Put) -> Result<(), Error> {
        let _turn = self.turn(stream)?;
        let choice = self.choice(put.bytes);
        let (verb, name) = match (put.signal, choice) {
            (Some(_), _) => (Verb::PutSignal, "put_signal"),
            (None, Choice::Inline) => (Verb::PutInline, "put_inline"),
            (None, _) => (Verb::Put, "put"),
        };
        if let (Choice::Inband, Some(inband)) = (choice, &self.inband) {
            return inband.put(stream, put);
        }
        let verb_of = self.verbs[choice as usize].as_ref();
        let (kernel, tag) = verb_of.expect("the table has what there are kernels for");
        let mut op = self.bell.op(verb, Some(put.from), put.to, put.bytes);
        op.ep.tag = *tag;
        if let Some(signal) = put.signal {
            (op.signal_offset, op.value) = (signal.word.0, signal.add);
        }
        self.bell.call_by(kernel, stream, name, &op)
    }

    pub fn get(&self, stream: &Stream, get: Get) -> Result<(), Error> {
        let _turn = self.turn(stream)?;
        self.bell.get(stream, get)
    }

    pub fn fetch_add(&self, stream: &Stream, add: FetchAdd) -> Result<(), Error> {
        let _turn = self.turn(stream)?;
        self.bell.fetch_add(stream, add)
    }

    pub fn compare_swap(&self, stream: &Stream, swap: CompareSwap) -> Result<(), Error> {
        let _turn = self.turn(stream)?;
        self.bell.compare_swap(stream, swap)
    }

    /// Waits on both, also where one has failed. The failure that flushed the calls of the other is told.
    pub fn quiet(&self, stream: &Stream) -> Result<(), Error> {
        let _turn = self.turn(stream)?;
        let bell = self.bell.quiet(stream);
        let inband = self.inband.as_ref().map_or(Ok(()), |posted| posted.quiet(stream));
        match bell {
            Err(Error::Verb { code: Code::Flushed, .. }) if inband.is_err() => inband,
            bell => bell.and(inband),
        }
    }

    pub fn ended(&self) -> Result<(), Error> {
        self.bell.ended()?;
        self.inband.as_ref().map_or(Ok(()), KernelPosted::ended)
    }

    /// As [`super::endpoint::Endpoint::end`].
    pub fn end(&self) {
        self.bell.rdma.end();
        if let Some(inband) = &self.inband {
            inband.rdma.end();
        }
    }

    /// Takes both queue pairs back to their beginning, or neither; what is said of them is the sum.
    pub fn reset(&mut self) -> Result<Progress, Error> {
        let Self { bell, inband, .. } = self;
        if bell.is_busy() || inband.as_ref().is_some_and(KernelPosted::is_busy) {
            return Err(Error::Busy);
        }
        let mut all = bell.reset()?;
        if let Some(inband) = inband {
            let Progress { posted, complete } = inband.reset()?;
            all = Progress { posted: all.posted + posted, complete: all.complete + complete };
        }
        Ok(all)
    }

    pub fn max_credits_in_use(&self) -> Result<u32, Error> {
        let inband = self.inband.as_ref().map_or(Ok(0), KernelPosted::max_credits_in_use)?;
        Ok(self.bell.max_credits_in_use()?.max(inband))
    }
}

/// `bp::max_inline_bytes`.
const MAX_INLINE_BYTES: u64 = 220;

fn by_doorbell(choice: Choice) -> Choice {
    match choice {
        Choice::Blueflame => Choice::Inline,
        Choice::PullBlueflame => Choice::Pull,
        other => other,
    }
}
