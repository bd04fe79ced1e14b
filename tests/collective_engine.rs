//! Quick calls whose messages the engine of `kernels/engine.cuh` carries, on the host executor: what a receiver looks
//! at comes from that engine's stores.

mod world;

use std::sync::Arc;

use bellpush::collective::{Algorithm, Communicator, Dtype, Op, Options};
use bellpush::engine::{self, EngineOptions};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::Memory;
use world::{World, path, small};

const RANKS: i32 = 2;
const CALLS: u32 = 500;

/// A unit that came in parts would bring its flag with the words of the message before.
#[test]
fn units_of_quick_messages_come_whole() {
    for name in ["pull/kernel", "push/kernel", "push/blueflame", "push/inband"] {
        // Lengths that the engine moves in different ways.
        for count in [10, 60, 600] {
            let world = world(&Options { path: path(name), ..small(Algorithm::Quick) });
            for batch in 0..40 {
                chain(&world, count, &format!("{name}, {count} elements, batch {batch}"));
            }
        }
    }
}

fn world(options: &Options) -> World {
    let mut options = Options { channels: 1, threads: Some(1), ..options.clone() };
    options.window_bytes = Some(128 << 10);
    options.endpoint.slot_bytes = 16 << 10;
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let net = InProcess::new();
    let places: Vec<_> = (0..RANKS)
        .map(|_| {
            let own = EngineOptions { blocks: 1, threads: 1, ..EngineOptions::new(&gpu) };
            let offload = Some(engine::open(&gpu, &[], own).unwrap());
            let nic: Arc<dyn Nic> =
                SoftNic::open(SoftConfig { offload, ..SoftConfig::new(&net) }).unwrap();
            (gpu.clone(), nic)
        })
        .collect();
    let ranks = Communicator::threads(&places, &options).unwrap();
    World { gpu, ranks }
}

/// Calls in place, one after the other, so that each rank's messages differ from call to call.
fn chain(world: &World, count: i32, what: &str) {
    let sums = world.each(|rank, stream| {
        let memory = world.memory(count as u64);
        let first: Vec<i32> = (0..count).map(|i| i + rank.rank() as i32).collect();
        memory.write(0, bytemuck::cast_slice(&first)).unwrap();
        for _ in 0..CALLS {
            let n = count as u64;
            rank.all_reduce(stream, &memory, &memory, n, Dtype::I32, Op::Sum).unwrap();
        }
        rank.synchronize(stream).unwrap_or_else(|why| panic!("{what}: {why}"));
        read(&memory, count)
    });
    // The first call adds up, those after it multiply.
    let factor = (1..CALLS).fold(1i32, |f, _| f.wrapping_mul(RANKS));
    let right: Vec<i32> = (0..count)
        .map(|i| (0..RANKS).map(|rank| i + rank).sum::<i32>().wrapping_mul(factor))
        .collect();
    for (rank, sum) in sums.iter().enumerate() {
        assert!(*sum == right, "{what}: rank {rank} has {sum:?}");
    }
}

fn read(memory: &Memory, count: i32) -> Vec<i32> {
    let mut found = vec![0; count as usize];
    memory.read(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
    found
}
