//! What one rank does: make its communicator, call, check every element, time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::collective::{Communicator, Dtype, Job, Member, Op, Options, RankAddress};
use bellpush::gpu::nccl::{Nccl, NcclOp, NcclType, UNIQUE_ID_BYTES};
use bellpush::gpu::{DeviceMem, Gpu, Stream};
use bellpush::nic::Nic;
use bellpush::transport::Memory;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Failure;
use crate::check::{self, Kind};
use crate::meet::Meeting;

/// What is measured, the same at every rank.
#[derive(Debug, Clone)]
pub struct Task {
    pub sizes: Vec<u64>,
    pub dtype: Dtype,
    pub op: Op,
    pub calls: Option<u32>,
    pub in_place: bool,
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
    /// What is wrong with this rank's result, or with its call.
    wrong: Option<String>,
}

/// Timed batches of each size.
const BATCHES: usize = 5;

pub struct Rank {
    pub gpu: Arc<Gpu>,
    pub communicator: Communicator,
    pub meeting: Meeting,
    nccl: Option<Nccl>,
}

/// How long ranks wait for each other to join NCCL.
const NCCL_JOINS: Duration = Duration::from_secs(60);

impl Rank {
    /// Connects to all others.
    pub fn join(
        (gpu, nic): (Arc<Gpu>, Arc<dyn Nic>),
        (rank, ranks): (u32, u32),
        mut meeting: Meeting,
        options: &Options,
        compares: bool,
    ) -> Result<Self, Failure> {
        let member = Member::new(&gpu, &nic, rank, ranks, options)?;
        let said = meeting.all_gather(&serde_json::to_vec(member.address())?)?;
        let addresses: Vec<RankAddress> =
            said.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>()?;
        let communicator = member.connect(&addresses)?;
        let mut nccl = None;
        if compares {
            // All find it or none: they are one program on one machine, or say what is missing.
            let id = Nccl::unique_id()?;
            let id: [u8; UNIQUE_ID_BYTES] = meeting.all_gather(&id)?[0].as_slice().try_into()?;
            nccl = Some(Nccl::join(&gpu, id, rank, ranks, NCCL_JOINS)?);
        }
        Ok(Self { gpu, communicator, meeting, nccl })
    }

    /// All sizes; what all ranks saw of each goes to `tell`.
    pub fn run(
        &mut self,
        task: &Task,
        mut tell: impl FnMut(&Communicator, &[Measured]),
    ) -> Result<(), Failure> {
        for &bytes in &task.sizes {
            let mine = self.measure(task, (bytes / task.dtype.bytes()).max(1));
            let said = self.meeting.all_gather(&serde_json::to_vec(&mine)?)?;
            let all: Vec<Measured> =
                said.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>()?;
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

    fn measure(&mut self, task: &Task, count: u64) -> Measured {
        let usual = if self.gpu.is_host() { 20 } else { 200 };
        let bytes = (count * task.dtype.bytes()).max(1);
        let calls = task.calls.unwrap_or(((64u64 << 20) / bytes).clamp(2, usual) as u32).max(1);
        let mut seen =
            Measured { count, calls, batches: vec![], nccl: vec![], digest: vec![], wrong: None };
        if let Err(why) = self.call_and_check(task, &mut seen) {
            seen.wrong = Some(why.to_string());
        }
        seen
    }

    /// One call to warm up, which is the one that is checked; then batches, timed.
    fn call_and_check(&mut self, task: &Task, seen: &mut Measured) -> Result<(), Failure> {
        let (count, dtype) = (seen.count as usize, task.dtype);
        let of = |rank| check::elements(dtype, count, Kind::Random, task.seed, rank);
        let input = self.gpu.alloc(count * dtype.bytes() as usize)?;
        let output = match task.in_place {
            true => input.clone(),
            false => self.gpu.alloc(count * dtype.bytes() as usize)?,
        };
        let places = Places { stream: &self.gpu.stream()?, input: &input, output: &output };
        let inputs: Vec<_> = (0..self.communicator.ranks()).map(of).collect();
        let mine = &inputs[self.communicator.rank() as usize];

        let mut found = vec![0; count * dtype.bytes() as usize];
        for by in [Some(By::Bellpush), self.nccl.as_ref().map(By::Nccl)].into_iter().flatten() {
            Memory::from(input.clone()).write(0, mine)?;
            self.call(&by, task, &places, seen.count, 1)?;
            Memory::from(output.clone()).read(0, &mut found)?;
            if matches!(by, By::Bellpush) {
                seen.digest = Sha256::digest(&found).to_vec();
                check::check(dtype, task.op, &inputs, &found)?;
            } else if dtype == Dtype::F32 || (dtype == Dtype::I32 && task.op != Op::Mean) {
                // NCCL rounds after each addition of 16-bit elements, and says nothing of how its
                // mean of integers does.
                check::check(dtype, task.op, &inputs, &found).map_err(|e| format!("NCCL: {e}"))?;
            }
        }

        for _ in 0..BATCHES {
            self.meeting.all_gather(&[])?;
            let ns = self.call(&By::Bellpush, task, &places, seen.count, seen.calls)?;
            seen.batches.push(ns / u64::from(seen.calls));
            if let Some(nccl) = &self.nccl {
                self.meeting.all_gather(&[])?;
                let ns = self.call(&By::Nccl(nccl), task, &places, seen.count, seen.calls)?;
                seen.nccl.push(ns / u64::from(seen.calls));
            }
        }
        Ok(())
    }

    /// ns of `calls` calls in a row, and of the wait for the last.
    fn call(
        &self,
        by: &By<'_>,
        task: &Task,
        places: &Places<'_>,
        count: u64,
        calls: u32,
    ) -> Result<u64, Failure> {
        let &Places { stream, input, output } = places;
        let (from, to) = (Memory::from(input.clone()), Memory::from(output.clone()));
        let (dtype, op) = (task.dtype, task.op);
        let since = Instant::now();
        for _ in 0..calls {
            match by {
                By::Bellpush => {
                    self.communicator.all_reduce(stream, &from, &to, count, dtype, op)?;
                }
                By::Nccl(nccl) => {
                    let (dtype, op) = (nccl_type(dtype), nccl_op(op));
                    nccl.all_reduce(stream, input, output, count, dtype, op)?;
                }
            }
        }
        match by {
            By::Bellpush => self.communicator.synchronize(stream)?,
            By::Nccl(_) => stream.synchronize(NCCL_JOINS)?,
        }
        Ok(u64::try_from(since.elapsed().as_nanos())?)
    }
}

/// Whose all-reduce it is.
enum By<'a> {
    Bellpush,
    Nccl(&'a Nccl),
}

struct Places<'a> {
    stream: &'a Stream,
    input: &'a Arc<DeviceMem>,
    output: &'a Arc<DeviceMem>,
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
