//! Operations as calls: of `Endpoint`, and of kernels that call the device verbs.

use std::time::Duration;

use bellpush::abi::entry::{Cmp, OpArgs, Scope, Verb, Watch, WatchArgs};
use bellpush::abi::wire::Code;
use bellpush::gpu::{Dims, GpuError, KernelArgs};
use bellpush::transport::{
    CompareSwap, Endpoint, Error, FetchAdd, Get, Local, Put, Remote, Signal,
};

use super::bed::{Bed, SCRATCH};
use super::config::{Config, WORDS};
use super::model::Who;
use super::ops::{Device, Op, What, Wrong};
use crate::launch::launch;

/// A status that no kernel writes.
const UNWRITTEN: u32 = 0xa5a5_a5a5;
/// How long a launch may take beside the waits of its verbs.
const LAUNCH: Duration = Duration::from_secs(30);

/// Why a call did not do what it should.
#[derive(Debug)]
pub enum Trouble {
    /// What a fault may do.
    Ended { why: String, syndrome: Option<u8>, what: Ended },
    /// What no fault explains.
    Wrong(String),
}

/// What has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    QueuePair,
    /// A wait: what is waited for goes on.
    Wait,
    /// A call that found no room in time: it has posted a part, or nothing, and the queue pair goes on. Calls of the
    /// host behind it are flushed; kernels that the soak launches itself are not.
    Call,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let why = error.to_string();
        let ended = |syndrome, what| Self::Ended { why: why.clone(), syndrome, what };
        match &error {
            Error::Completion { syndrome, code, .. } => {
                ended((*code == Code::CqeError).then_some(*syndrome), Ended::QueuePair)
            }
            Error::Timeout { .. }
            | Error::Verb { verb: "quiet", code: Code::Timeout }
            | Error::Gpu(GpuError::Timeout { .. }) => ended(None, Ended::Wait),
            Error::Verb { code: Code::Timeout, .. } => ended(None, Ended::Call),
            Error::Verb { code: Code::CqeError | Code::Dead, .. } | Error::Nic(_) => {
                ended(None, Ended::QueuePair)
            }
            _ => Self::Wrong(why),
        }
    }
}

impl Bed {
    /// Makes the call of an operation that posts. `begin`: where the connection's part begins.
    pub fn post(&self, op: &Op, begin: usize) -> Result<(), Trouble> {
        let (ends, end) = (&self.connections[op.who.connection], self.end(op.who));
        let stream = &self.streams[ends.stream];
        let local = |at: usize| Local((begin + at) as u64);
        let remote = |at: usize| Remote((begin + at) as u64);
        match op.what {
            What::Put { from, to, bytes, signal } => {
                let signal = signal.map(|(word, add)| Signal { word: remote(word), add });
                let (from, to, bytes) = (local(from), remote(to), bytes as u64);
                Ok(end.put(stream, Put { from, to, bytes, signal })?)
            }
            What::Get { from, to, bytes } => {
                let (from, to, bytes) = (remote(from), local(to), bytes as u64);
                Ok(end.get(stream, Get { from, to, bytes })?)
            }
            What::FetchAdd { word, add, old } => {
                let (word, old) = (remote(word), local(old));
                Ok(end.fetch_add(stream, FetchAdd { word, add, old })?)
            }
            What::CompareSwap { word, compare, with, old } => {
                let (word, old, swap) = (remote(word), local(old), with);
                Ok(end.compare_swap(stream, CompareSwap { word, compare, swap, old })?)
            }
            What::Device(device) => self.device(op.who, device, begin),
            _ => Ok(()),
        }
    }

    pub fn end(&self, who: Who) -> &Endpoint {
        &self.connections[who.connection].ends[who.side]
    }

    /// Waits for all of one end.
    pub fn quiet(&self, who: Who) -> Result<(), Trouble> {
        let ends = &self.connections[who.connection];
        if !ends.connection.shared {
            return Ok(self.end(who).quiet(&self.streams[ends.stream])?);
        }
        let mut args = self.args(who)?;
        args.op = Verb::Quiet as u32;
        self.launch(who.connection, &self.kernel(who.connection, false), (1, 32), 1, |status| {
            OpArgs { status, ..args }
        })
    }

    fn kernel(&self, connection: usize, extra: bool) -> String {
        let path =
            self.connections[connection].connection.kernel().expect("a kernel posts on this path");
        format!("bp_{}_{path}", if extra { "extra" } else { "verb" })
    }

    fn args(&self, who: Who) -> Result<OpArgs, Trouble> {
        let mut args: OpArgs = bytemuck::Zeroable::zeroed();
        args.ep = self.end(who).device()?;
        (args.count, args.scope) = (1, Scope::Block as u32);
        Ok(args)
    }

    fn device(&self, who: Who, it: Device, begin: usize) -> Result<(), Trouble> {
        let mut args = self.args(who)?;
        (args.op, args.scope, args.count) = (it.verb as u32, it.scope as u32, it.count);
        args.flags = it.flags;
        args.remote_offset = (begin + it.to) as u64;
        args.remote_stride = it.remote_stride as u64;
        let has_source = it.verb != Verb::FetchAdd;
        args.local =
            if has_source { self.memory[who.side].addr() + (begin + it.from) as u64 } else { 0 };
        args.local_stride = it.local_stride as u64;
        (args.bytes, args.value, args.compare) = (it.bytes as u64, it.value, it.compare);
        args.signal_offset = (begin + it.word) as u64;
        let kernel = self.kernel(who.connection, it.is_extra());
        let posts = |status| OpArgs { status, ..args };
        let done = self.launch(who.connection, &kernel, it.dims, it.callers(), posts);
        done.map_err(|trouble| match trouble {
            // One of its calls: it makes them one after the other, whatever became of those before.
            Trouble::Ended { why, syndrome, what: Ended::Wait } => {
                Trouble::Ended { why, syndrome, what: Ended::Call }
            }
            other => other,
        })
    }

    /// Launches a kernel, waits for it, and looks at its callers' statuses.
    fn launch<A: KernelArgs>(
        &self,
        connection: usize,
        kernel: &str,
        (grid, block): (u32, u32),
        callers: usize,
        args: impl FnOnce(u64) -> A,
    ) -> Result<(), Trouble> {
        let wrong = |e: &dyn std::fmt::Display| Trouble::Wrong(format!("{kernel}: {e}"));
        let ends = &self.connections[connection];
        let stream = &self.streams[ends.stream];
        // The statuses are everybody's; only one launch at a time has them.
        let unwritten = UNWRITTEN.to_ne_bytes().repeat(callers);
        self.status.write(0, &unwritten).map_err(|e| wrong(&e))?;
        let loaded = self.kernels.kernel(kernel).map_err(|e| wrong(&e))?;
        launch(stream, &loaded, Dims::new(grid, block), &args(self.status.addr()))
            .map_err(|e| wrong(&e))?;
        let limit = ends.connection.options.timeout * 8 + LAUNCH;
        stream.synchronize(limit).map_err(|e| wrong(&e))?;
        let mut raw = vec![0; callers * 4];
        self.status.read(0, &mut raw).map_err(|e| wrong(&e))?;
        let words = raw.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().expect("four")));
        for (caller, status) in words.enumerate() {
            let why = || format!("{kernel}: status {status:#x} of caller {caller}");
            let ended = |syndrome, what| Err(Trouble::Ended { why: why(), syndrome, what });
            match status {
                _ if Code::check(status).is_ok() && status == 0 => {}
                1 => return ended(None, Ended::Wait),
                2 | 3 => {
                    let syndrome = ends.ends.iter().find_map(|end| match end.failure() {
                        Some(Error::Completion { syndrome, .. }) => Some(syndrome),
                        _ => None,
                    });
                    return ended(syndrome, Ended::QueuePair);
                }
                _ => return Err(Trouble::Wrong(why())),
            }
        }
        Ok(())
    }

    /// Whether a queue pair of that end is known to have ended.
    pub fn has_ended(&self, who: Who) -> bool {
        self.end(who).failure().is_some()
    }

    /// Tickets that were taken, and those that are complete, of a connection whose kernels count them.
    pub fn tickets(&self, who: Who) -> Result<[u64; 2], Trouble> {
        let mut args = self.args(who)?;
        args.op = Verb::CountTickets as u32;
        args.local = self.status.addr() + SCRATCH as u64;
        let kernel = self.kernel(who.connection, true);
        self.launch(who.connection, &kernel, (1, 32), 1, |status| OpArgs { status, ..args })?;
        let mut raw = [0; 16];
        self.status.read(SCRATCH, &mut raw).map_err(|e| Trouble::Wrong(e.to_string()))?;
        Ok([0, 8].map(|at| u64::from_ne_bytes(raw[at..at + 8].try_into().expect("eight bytes"))))
    }

    /// A kernel at the receiving end waits until a word of its memory is `value`.
    pub fn watch(&self, sender: Who, at: usize, value: u64) -> Result<(), Trouble> {
        let receiver = Who { side: 1 - sender.side, ..sender };
        let mut args: WatchArgs = bytemuck::Zeroable::zeroed();
        args.ep = self.end(receiver).device()?;
        (args.watch, args.scope) = (Watch::Wait as u32, Scope::Block as u32);
        (args.cmp, args.n, args.value) = (Cmp::Eq as u32, 1, value);
        args.words = self.memory[receiver.side].addr() + at as u64;
        args.found = self.status.addr() + SCRATCH as u64;
        let kernel = "bp_watch_signals";
        self.launch(sender.connection, kernel, (1, 32), 1, |status| WatchArgs { status, ..args })
    }

    /// Makes a call that must be refused; what it said if it was not, or not for its reason.
    pub fn refused(&self, who: Who, config: &Config, wrong: Wrong) -> Result<(), Trouble> {
        let ends = &self.connections[who.connection];
        // Whole pages, which may be more than was asked for.
        let [here, there] = [who.side, 1 - who.side].map(|n| self.memory[n].bytes() as u64);
        let stream = &self.streams[ends.stream];
        let begin = config.part_of(who.connection) as u64;
        let put = Put { from: Local(begin), to: Remote(begin), bytes: 8, signal: None };
        let word = Remote(begin + (config.part - WORDS * 8) as u64 + 4);
        let put = match wrong {
            Wrong::Empty => Put { bytes: 0, ..put },
            Wrong::BehindLocal => Put { from: Local(here - 7), ..put },
            Wrong::BehindRemote => Put { to: Remote(there - 7), ..put },
            Wrong::Misaligned => Put { signal: Some(Signal { word, add: 1 }), ..put },
        };
        let told = self.end(who).put(stream, put);
        let is_right = match wrong {
            Wrong::Empty => matches!(told, Err(Error::Empty)),
            Wrong::BehindLocal | Wrong::BehindRemote => matches!(told, Err(Error::Range { .. })),
            Wrong::Misaligned => matches!(told, Err(Error::Misaligned { .. })),
        };
        match is_right {
            true => Ok(()),
            false => Err(Trouble::Wrong(format!("{wrong:?} was not refused as such: {told:?}"))),
        }
    }
}
