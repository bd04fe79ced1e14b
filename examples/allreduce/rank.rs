//! What one rank does: make its communicator, call, check every element, time.

use std::sync::Arc;
use std::time::Instant;

use bellpush::collective::{Communicator, Dtype, Job, Member, Op, Options, RankAddress};
use bellpush::gpu::{Gpu, Stream};
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
}

impl Rank {
    /// Connects to all others.
    pub fn join(
        (gpu, nic): (Arc<Gpu>, Arc<dyn Nic>),
        (rank, ranks): (u32, u32),
        mut meeting: Meeting,
        options: &Options,
    ) -> Result<Self, Failure> {
        let member = Member::new(&gpu, &nic, rank, ranks, options)?;
        let said = meeting.all_gather(&serde_json::to_vec(member.address())?)?;
        let addresses: Vec<RankAddress> =
            said.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, _>>()?;
        let communicator = member.connect(&addresses)?;
        Ok(Self { gpu, communicator, meeting })
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
            Measured { count, calls, batches: Vec::new(), digest: Vec::new(), wrong: None };
        if let Err(why) = self.call_and_check(task, &mut seen) {
            seen.wrong = Some(why.to_string());
        }
        seen
    }

    /// One call to warm up, which is the one that is checked; then batches, timed.
    fn call_and_check(&mut self, task: &Task, seen: &mut Measured) -> Result<(), Failure> {
        let (count, dtype) = (seen.count as usize, task.dtype);
        let of = |rank| check::elements(dtype, count, Kind::Random, task.seed, rank);
        let input = Memory::from(self.gpu.alloc(count * dtype.bytes() as usize)?);
        let output = match task.in_place {
            true => input.clone(),
            false => self.gpu.alloc(count * dtype.bytes() as usize)?.into(),
        };
        input.write(0, &of(self.communicator.rank()))?;
        let stream = self.gpu.stream()?;
        self.call(task, (&stream, &input, &output), seen.count, 1)?;

        let mut found = vec![0; count * dtype.bytes() as usize];
        output.read(0, &mut found)?;
        seen.digest = Sha256::digest(&found).to_vec();
        let inputs: Vec<_> = (0..self.communicator.ranks()).map(of).collect();
        check::check(dtype, task.op, &inputs, &found)?;

        for _ in 0..BATCHES {
            self.meeting.all_gather(&[])?;
            let ns = self.call(task, (&stream, &input, &output), seen.count, seen.calls)?;
            seen.batches.push(ns / u64::from(seen.calls));
        }
        Ok(())
    }

    /// ns of `calls` calls in a row.
    fn call(
        &self,
        task: &Task,
        (stream, input, output): (&Stream, &Memory, &Memory),
        count: u64,
        calls: u32,
    ) -> Result<u64, Failure> {
        let since = Instant::now();
        for _ in 0..calls {
            self.communicator.all_reduce(stream, input, output, count, task.dtype, task.op)?;
        }
        self.communicator.synchronize(stream)?;
        Ok(u64::try_from(since.elapsed().as_nanos())?)
    }
}

/// Which of `count` GPUs is this process's.
pub fn gpu_of(job: &Job, count: usize) -> usize {
    job.local_rank as usize % count.max(1)
}
