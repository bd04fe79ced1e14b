//! What the tests of all-reduce share: a world of ranks that are threads of this process, on the host executor, and
//! calls by all of them, checked element by element.

#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../examples/allreduce/src/check.rs"]
pub mod check;

use std::sync::Arc;
use std::time::Duration;

use crate::nics::{Fabric, Silent};
use bellpush::collective::{Algorithm, Buffer, Communicator, Dtype, Op, Options};
use bellpush::gpu::{Executor, Gpu, HostOptions, Stream};
use bellpush::nic::Nic;
use bellpush::transport::{Memory, Options as EndpointOptions, Path};
use check::{Kind, check, elements};

/// Long enough for a loaded machine.
pub const PATIENT: Duration = Duration::from_secs(30);

pub fn path(name: &str) -> Path {
    name.parse().unwrap()
}

/// Many small messages, so that slots are used again and again.
pub fn small(algorithm: Algorithm) -> Options {
    Options::new(path("push/inband"))
        .algorithm(Some(algorithm))
        .channels(2)
        .channel_bytes(1024)
        .chunk_bytes(Some(256))
        .message_bytes(64)
        .timeout(PATIENT)
        .window_bytes(Some(16 << 10))
        .endpoint(EndpointOptions::default().slot_bytes(1024).sq_blocks(64))
}

/// Ranks that are threads of this process, on the host executor.
pub struct World {
    pub gpu: Arc<Gpu>,
    pub ranks: Vec<Communicator>,
    pub _silent: Silent,
}

impl World {
    pub fn new(ranks: u32, options: &Options) -> Self {
        let nic = Fabric::new().open_for_answers();
        Self::on((0..ranks).map(|_| nic.clone()).collect(), options)
    }

    pub fn on(nics: Vec<Arc<dyn Nic>>, options: &Options) -> Self {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let silent = Silent::of(&nics);
        let places: Vec<_> = nics.into_iter().map(|nic| (gpu.clone(), nic)).collect();
        let ranks = Communicator::threads(&places, options).unwrap();
        Self { gpu, ranks, _silent: silent }
    }

    /// Runs something on a thread for each rank, each with a stream of its own.
    pub fn each<R: Send>(&self, run: impl Fn(&Communicator, &Stream) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .ranks
                .iter()
                .map(|rank| {
                    let (gpu, run) = (&self.gpu, &run);
                    scope.spawn(move || run(rank, &gpu.stream().unwrap()))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    /// One call by all ranks, checked element by element.
    pub fn reduce(&self, dtype: Dtype, op: Op, count: usize, kind: Kind, in_place: bool) {
        let seed = count as u64 * 31 + op as u64 * 7 + dtype as u64;
        let n = self.ranks.len() as u32;
        let inputs: Vec<_> = (0..n).map(|r| elements(dtype, count, kind, seed, r)).collect();
        let outputs = self.each(|rank, stream| {
            let mine = &inputs[rank.rank() as usize];
            // One element on either side: nothing beside the result changes.
            let edge = dtype.bytes() as usize;
            let around = vec![0xa5; mine.len() + 2 * edge];
            let memory = |bytes: &[u8]| {
                let memory = Memory::from(self.gpu.alloc(bytes.len()).unwrap());
                memory.write(0, bytes).unwrap();
                memory
            };
            let output = memory(&around);
            let input = if in_place { output.clone() } else { memory(&around) };
            input.write(edge, mine).unwrap();
            let (from, to) = (Buffer::at(&input, edge as u64), Buffer::at(&output, edge as u64));
            rank.all_reduce(stream, from, to, count as u64, dtype, op).unwrap();
            rank.synchronize(stream).unwrap();
            let mut found = around.clone();
            output.read(0, &mut found).unwrap();
            for at in [0, edge + mine.len()] {
                assert_eq!(found[at..at + edge], around[..edge], "beside the result");
            }
            found[edge..edge + mine.len()].to_vec()
        });
        let plan = self.ranks[0].plan(count as u64, dtype, op);
        for (rank, output) in outputs.iter().enumerate() {
            check(dtype, op, &inputs, output)
                .unwrap_or_else(|why| panic!("{n} ranks, {plan}, rank {rank}: {why}"));
            assert!(*output == outputs[0], "{n} ranks, {plan}: rank {rank} has other bits");
        }
    }

    /// Memory of so many elements of four bytes.
    pub fn memory(&self, count: u64) -> Memory {
        Memory::from(self.gpu.alloc(count as usize * 4).unwrap())
    }
}
