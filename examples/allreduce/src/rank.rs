//! What one rank does: make its communicator, call, check every element, time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::collective::{
    BootstrapError, Communicator, Dtype, Error, Job, Member, Op, Options, RankAddress, Recording,
};

use bellpush::gpu::{DeviceMem, Gpu, Graph, Stream};
use bellpush::nic::Nic;
use bellpush::transport::Memory;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Failure;
use crate::bare::{Bare, Places};
use crate::check::{self, Kind};
use crate::meet::Meeting;
use crate::nccl::{Nccl, NcclOp, NcclType, UNIQUE_ID_BYTES};

/// What is measured, the same at every rank.
#[derive(Debug, Clone)]
pub struct Task {
    pub sizes: Vec<u64>,
    pub dtype: Dtype,
    pub op: Op,
    pub calls: Option<u32>,
    pub in_place: bool,
    /// Time batches as CUDA graphs.
    pub graph: bool,
    pub seed: u64,
}

/// One size, as one rank saw it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    pub count: u64,
    pub calls: u32,
    /// ns a call, by batch.
    pub batches: Vec<u64>,
    /// The same of NCCL, each batch after one of ours.
    pub nccl: Vec<u64>,
    digest: Vec<u8>,
    /// This rank's checked result.
    #[serde(skip)]
    right: Vec<u8>,
    /// What is wrong with this rank's result, or with its call.
    wrong: Option<String>,
    /// That was the communicator's end: no rank makes another call.
    #[serde(skip)]
    ended: bool,
}

/// Timed batches of each size.
const BATCHES: usize = 9;

pub struct Rank {
    pub gpu: Arc<Gpu>,
    pub communicator: Communicator,
    pub meeting: Meeting,
    nccl: Option<Nccl>,
    /// What is timed instead of the communicator.
    bare: Option<Bare>,
}

/// How long ranks wait for each other to join NCCL.
const NCCL_JOINS: Duration = Duration::from_secs(60);

impl Rank {
    /// Connects to all others.
    pub fn join(
        (gpu, nics): (Arc<Gpu>, Vec<Arc<dyn Nic>>),
        (rank, ranks): (u32, u32),
        mut meeting: Meeting,
        options: &Options,
        compares: bool,
        bare: Option<&Places>,
    ) -> Result<Self, Failure> {
        let member = Member::new(&gpu, &nics, rank, ranks, options)
            .inspect_err(|why| meeting.fail(&why.to_string()))?;
        let said = meeting.all_gather(&serde_json::to_vec(member.address())?)?;
        let addresses: Vec<RankAddress> =
            said.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>()?;
        let communicator = member.connect(&addresses)?;
        let bare =
            bare.map(|all| Bare::join(&gpu, all, (rank, ranks), &mut meeting)).transpose()?;
        let mut nccl = None;
        if compares {
            // All find it or none: they are one program on one machine, or say what is missing.
            let id = Nccl::unique_id()?;
            let id: [u8; UNIQUE_ID_BYTES] = meeting.all_gather(&id)?[0].as_slice().try_into()?;
            nccl = Some(Nccl::join(&gpu, id, (rank, ranks), NCCL_JOINS)?);
        }
        Ok(Self { gpu, communicator, meeting, nccl, bare })
    }

    /// All sizes; what all ranks saw of each goes to `tell`.
    pub fn run(
        &mut self,
        task: &Task,
        mut tell: impl FnMut(&Communicator, &[Measured]),
    ) -> Result<(), Failure> {
        let mine = format!("{task:?}");
        for (rank, theirs) in self.meeting.all_gather(mine.as_bytes())?.iter().enumerate() {
            if theirs != mine.as_bytes() {
                let theirs = String::from_utf8_lossy(theirs);
                return Err(format!("rank {rank} measures {theirs}, this one {mine}").into());
            }
        }
        for &bytes in &task.sizes {
            let mine = self.measure(task, (bytes / task.dtype.bytes()).max(1))?;
            if let (true, Some(why), Meeting::Processes(_)) =
                (mine.ended, &mine.wrong, &self.meeting)
            {
                // The others find out by themselves, or now; one that stands still would be waited for.
                self.meeting.fail(why);
                return Err(why.clone().into());
            }
            let said = match (self.meeting.all_gather(&serde_json::to_vec(&mine)?), &mine.wrong) {
                (Ok(said), _) => said,
                // What this rank found says more than who has left since.
                (Err(_), Some(why)) => return Err(why.clone().into()),
                (Err(why), None) => return Err(why.into()),
            };
            let all = said.iter().map(|text| serde_json::from_slice(text));
            let all = match (all.collect::<Result<Vec<Measured>, _>>(), mine.wrong) {
                (Ok(all), _) => all,
                // The others are still at it, and learn of this in together().
                (Err(_), Some(why)) => return Err(why.into()),
                (Err(why), None) => return Err(why.into()),
            };
            for (rank, one) in all.iter().enumerate() {
                if let Some(why) = &one.wrong {
                    return Err(format!("rank {rank}: {} elements: {why}", one.count).into());
                }
                if one.digest != all[0].digest {
                    let why = format!("{} elements: rank {rank} and rank 0 differ", one.count);
                    return Err(why.into());
                }
            }
            tell(&self.communicator, &all);
        }
        // Nobody leaves before all have what they need.
        self.meeting.all_gather(&[])?;
        Ok(())
    }

    /// Fails when another rank has, who would hear no more.
    fn measure(&mut self, task: &Task, count: u64) -> Result<Measured, Failure> {
        let usual = if self.gpu.is_host() { 20 } else { 200 };
        let bytes = (count * task.dtype.bytes()).max(1);
        let calls = task.calls.unwrap_or(((64u64 << 20) / bytes).clamp(2, usual) as u32).max(1);
        let mut seen = Measured {
            count,
            calls,
            batches: vec![],
            nccl: vec![],
            digest: vec![],
            right: vec![],
            wrong: None,
            ended: false,
        };
        match self.call_and_check(task, &mut seen) {
            Err(why) if why.is::<BootstrapError>() || why.is::<Elsewhere>() => return Err(why),
            Err(why) => {
                let of_call = why.downcast_ref::<Error>();
                seen.ended = of_call.is_some_and(|e| !matches!(e, Error::Mismatch { .. }));
                seen.wrong = Some(why.to_string());
            }
            Ok(()) => {}
        }
        Ok(seen)
    }

    /// One call to warm up, which is the one that is checked; then batches, timed.
    fn call_and_check(&mut self, task: &Task, seen: &mut Measured) -> Result<(), Failure> {
        let Self { gpu, communicator, meeting, nccl, bare } = self;
        let (count, dtype) = (seen.count as usize, task.dtype);
        let of = |rank| check::elements(dtype, count, Kind::Random, task.seed, rank);
        let input = gpu.alloc(count * dtype.bytes() as usize)?;
        let output = match task.in_place {
            true => input.clone(),
            false => gpu.alloc(count * dtype.bytes() as usize)?,
        };
        let stream = &gpu.stream()?;
        let calls = Calls { task, stream, input: &input, output: &output, count: seen.count };
        let inputs: Vec<_> = (0..communicator.ranks()).map(of).collect();
        let mine = &inputs[communicator.rank() as usize];
        let ours = bare.as_ref().map_or(By::Bellpush(communicator), By::Bare);
        let by: Vec<_> = [Some(ours), nccl.as_ref().map(By::Nccl)].into_iter().flatten().collect();

        let mut found = vec![0; count * dtype.bytes() as usize];
        for by in &by {
            Memory::from(input.clone()).write(0, mine)?;
            calls.beside(by, 1, || {
                calls.make(by, 1)?;
                calls.wait(by)
            })?;
            Memory::from(output.clone()).read(0, &mut found)?;
            if !matches!(by, By::Nccl(_)) {
                seen.digest = Sha256::digest(&found).to_vec();
                seen.right.clone_from(&found);
                check::check(dtype, task.op, &inputs, &found)?;
            } else if dtype == Dtype::F32 || (dtype == Dtype::I32 && task.op != Op::Mean) {
                // NCCL rounds after each addition of 16-bit elements, and says nothing of how its
                // mean of integers does.
                check::check(dtype, task.op, &inputs, &found).map_err(|e| format!("NCCL: {e}"))?;
            }
        }

        let (zeros, right) = (vec![0; found.len()], std::mem::take(&mut seen.right));
        let batches: Vec<_> =
            by.iter().map(|by| calls.batch(by, seen.calls)).collect::<Result<_, _>>()?;
        for _ in 0..BATCHES {
            for (by, batch) in by.iter().zip(&batches) {
                Memory::from(output.clone()).write(0, if task.in_place { mine } else { &zeros })?;
                let ns = calls.beside(by, seen.calls, || {
                    together(meeting)?;
                    let since = Instant::now();
                    match batch {
                        Batch::Calls => calls.make(by, seen.calls)?,
                        Batch::Recording(recording) => recording.replay()?,
                        Batch::Graph(graph) => graph.launch()?,
                    }
                    calls.wait(by)?;
                    Ok(u64::try_from(since.elapsed().as_nanos())? / u64::from(seen.calls))
                })?;
                // A batch in place goes on from what the call before left.
                Memory::from(output.clone()).read(0, &mut found)?;
                if !task.in_place && !matches!(by, By::Nccl(_)) && found != right {
                    return Err("a timed call's result is not the first one's".into());
                }
                match by {
                    By::Bellpush(_) | By::Bare(_) => seen.batches.push(ns),
                    By::Nccl(_) => seen.nccl.push(ns),
                }
            }
        }
        Ok(())
    }
}

/// Waits for all ranks, of which one may have failed meanwhile and says so instead.
fn together(meeting: &mut Meeting) -> Result<(), Failure> {
    for (rank, said) in meeting.all_gather(&[])?.into_iter().enumerate() {
        if !said.is_empty() {
            let said: Measured = serde_json::from_slice(&said)?;
            return Err(Elsewhere { rank, why: said.wrong.unwrap_or_default() }.into());
        }
    }
    Ok(())
}

/// Another rank's failure.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank}: {why}")]
struct Elsewhere {
    rank: usize,
    why: String,
}

/// Whose all-reduce it is.
enum By<'a> {
    Bellpush(&'a Communicator),
    Nccl(&'a Nccl),
    Bare(&'a Bare),
}

/// How a batch is queued: call by call, or as a graph that was recorded before.
enum Batch<'a> {
    Calls,
    Recording(Recording<'a>),
    Graph(Graph<'a>),
}

/// The same call as often as wanted.
struct Calls<'a> {
    task: &'a Task,
    stream: &'a Stream,
    input: &'a Arc<DeviceMem>,
    output: &'a Arc<DeviceMem>,
    count: u64,
}

impl<'a> Calls<'a> {
    /// Queues `calls` of them.
    fn make(&self, by: &By<'_>, calls: u32) -> Result<(), Failure> {
        let &Self { stream, input, output, count, task, .. } = self;
        match by {
            By::Bellpush(communicator) => self.make_ours(communicator, calls)?,
            By::Nccl(nccl) => {
                let kind = (nccl_type(task.dtype), nccl_op(task.op));
                for _ in 0..calls {
                    nccl.all_reduce(stream, (input, output), count, kind)?;
                }
            }
            By::Bare(bare) => {
                for _ in 0..calls {
                    bare.queue(stream, input, output, count)?;
                }
            }
        }
        Ok(())
    }

    fn make_ours(&self, communicator: &Communicator, calls: u32) -> Result<(), Error> {
        let Task { dtype, op, .. } = *self.task;
        let (from, to) = (Memory::from(self.input.clone()), Memory::from(self.output.clone()));
        for _ in 0..calls {
            communicator.all_reduce(self.stream, &from, &to, self.count, dtype, op)?;
        }
        Ok(())
    }

    fn batch(&self, by: &By<'a>, calls: u32) -> Result<Batch<'a>, Failure> {
        if !self.task.graph {
            return Ok(Batch::Calls);
        }
        Ok(match by {
            By::Bellpush(communicator) => {
                let ours = || self.make_ours(communicator, calls);
                Batch::Recording(communicator.record(self.stream, ours)?)
            }
            By::Nccl(_) | By::Bare(_) => {
                Batch::Graph(self.stream.capture(|| self.make(by, calls))?)
            }
        })
    }

    /// Does `run`, which makes and waits for so many of them, beside what they need of the host.
    fn beside<R>(
        &self,
        by: &By<'_>,
        calls: u32,
        run: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match by {
            By::Bare(bare) => bare.relay(calls, self.count, run),
            By::Bellpush(_) | By::Nccl(_) => run(),
        }
    }

    /// Until all that was queued is done.
    fn wait(&self, by: &By<'_>) -> Result<(), Failure> {
        match by {
            By::Bellpush(communicator) => communicator.synchronize(self.stream)?,
            By::Nccl(_) => self.stream.synchronize(NCCL_JOINS)?,
            By::Bare(bare) => {
                self.stream.synchronize(NCCL_JOINS)?;
                bare.check()?;
            }
        }
        Ok(())
    }
}

fn nccl_type(dtype: Dtype) -> NcclType {
    match dtype {
        Dtype::F32 => NcclType::F32,
        Dtype::F16 => NcclType::F16,
        Dtype::Bf16 => NcclType::Bf16,
        Dtype::I32 => NcclType::I32,
    }
}

fn nccl_op(op: Op) -> NcclOp {
    match op {
        Op::Sum => NcclOp::Sum,
        Op::Max => NcclOp::Max,
        Op::Min => NcclOp::Min,
        Op::Mean => NcclOp::Mean,
    }
}

/// Which of `count` GPUs is this process's.
pub fn gpu_of(job: &Job, count: usize) -> usize {
    job.local_rank as usize % count.max(1)
}
