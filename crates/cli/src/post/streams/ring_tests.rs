use bellpush::gpu::{Executor, HostOptions};

use super::*;

const SLOT: usize = 1024;

fn shape(mode: Mode, threads: usize) -> Shape {
    let in_order = false;
    Shape { mode, window_bytes: 8 * SLOT, slot_bytes: SLOT, blocks: 1, threads, in_order }
}

fn ring(limit: Duration) -> Ring {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    Ring::new(&gpu, None, 16 * SLOT, limit).unwrap()
}

/// What threads have when all of it has come.
fn sent(shape: &Shape, laps: usize, source: &[u8]) -> Vec<Vec<u8>> {
    let of = |thread| {
        let slots = shape.slots_of(thread, laps);
        slots.flat_map(|(lap, slot)| shape.payload_of(source, lap, slot)).copied().collect()
    };
    (0..shape.threads).map(of).collect()
}

fn compared(shape: &Shape, laps: usize, source: &[u8], got: &mut [Vec<u8>]) -> Option<Wrong> {
    let parts: Vec<&mut [u8]> = got.iter_mut().map(Vec::as_mut_slice).collect();
    compare(shape, laps, source, &parts)
}

#[test]
fn every_byte_that_comes_is_compared() {
    let source = source(SRC_BYTES + SRC_BEHIND);
    for mode in Mode::ALL {
        let (shape, laps) = (shape(mode, 3), 4);
        let mut got = sent(&shape, laps, &source);
        let payload = shape.payload();
        assert_eq!(got.iter().map(Vec::len).sum::<usize>(), laps * 8 * payload);
        assert_eq!(compared(&shape, laps, &source, &mut got), None);
        for thread in 0..3 {
            let slots: Vec<_> = shape.slots_of(thread, laps).collect();
            for (nth, &(lap, slot)) in slots.iter().enumerate() {
                assert_eq!(slot % 3, thread);
                // The first byte, one of the last line's, and the last one.
                for at in [0, payload - 5, payload - 1] {
                    let byte = &mut got[thread][nth * payload + at];
                    *byte ^= 1;
                    let wrong = compared(&shape, laps, &source, &mut got);
                    assert_eq!(wrong, Some(Wrong::Content { lap, slot }), "{mode:?}");
                    got[thread][nth * payload + at] ^= 1;
                }
            }
        }
        // What was there before: nothing, and the same slot's lap before.
        got[1][..payload].fill(POISON);
        assert_eq!(
            compared(&shape, laps, &source, &mut got),
            Some(Wrong::Content { lap: 1, slot: 1 })
        );
        got[1][..payload].copy_from_slice(shape.payload_of(&source, 1, 1));
        let second = shape.slots_of(0, laps).position(|(lap, _)| lap == 2).unwrap();
        got[0].copy_within(..payload, second * payload);
        assert_eq!(
            compared(&shape, laps, &source, &mut got),
            Some(Wrong::Content { lap: 2, slot: 0 })
        );
        // A thread that copied less.
        got[0].truncate(second * payload);
        let wrong = compared(&shape, laps, &source, &mut got);
        assert_eq!(wrong, Some(Wrong::Content { lap: 2, slot: 0 }));
    }
}

#[test]
fn each_mode_exchanges_whole_windows() {
    let mut ring = ring(Duration::from_secs(20));
    for mode in Mode::ALL {
        for threads in [1, 2] {
            for (blocks, slot_bytes, slots) in [(1, SLOT, 8), (2, SLOT / 2, 9), (1, 2 * SLOT, 8)] {
                let window_bytes = slots * slot_bytes;
                for in_order in [false, true] {
                    let shape = shape(mode, threads);
                    let shape = Shape { window_bytes, slot_bytes, blocks, in_order, ..shape };
                    let (rate, wrong) = ring.run(&shape).unwrap();
                    assert!(wrong.is_none() && rate > 0.0, "{shape:?}: {wrong:?}");
                }
            }
        }
    }
}

#[test]
fn a_run_whose_bytes_are_others_is_wrong() {
    let mut ring = ring(Duration::from_secs(20));
    let shape = shape(Mode::Lines12, 2);
    // What the fourth slot of the third lap has, as the host knows it.
    let at = (2 * 8 + 3) * shape.place_bytes();
    ring.source[at + 7] ^= 1;
    let (_, wrong) = ring.run(&shape).unwrap();
    assert_eq!(wrong, Some(Wrong::Content { lap: 3, slot: 3 }));
}

/// A slot is given back behind all before it, once, and none is left, in whatever order they were copied.
#[test]
fn slots_are_given_back_in_order() {
    let (slots, laps) = (3, 2);
    let turn = Turn::new(slots);
    let mut given = Vec::new();
    let mut copy = |lap: u32, slot: usize| {
        turn.copied[slot].0.store(lap, Ordering::SeqCst);
        let give = |lap, slot| {
            given.push((lap, slot));
            Ok(())
        };
        turn.give_in_order(give).unwrap();
        given.clone()
    };
    assert_eq!(copy(1, 2), []);
    assert_eq!(copy(1, 1), []);
    assert_eq!(copy(1, 0), [(1, 0), (1, 1), (1, 2)]);
    assert_eq!(copy(2, 1).len(), 3);
    assert_eq!(copy(2, 0)[3..], [(2, 0), (2, 1)]);
    assert_eq!(copy(2, 2).len(), slots * laps);

    // By threads at once, each for a part of the slots: nothing stays behind.
    let (slots, laps) = (8, 2000);
    let turn = Turn::new(slots);
    let count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for first in 0..2 {
            let (turn, count) = (&turn, &count);
            scope.spawn(move || {
                for (lap, slot) in
                    (1..=laps).flat_map(|lap| (first..slots).step_by(2).map(move |s| (lap, s)))
                {
                    turn.copied[slot].0.store(lap, Ordering::SeqCst);
                    let give = |_, _| {
                        count.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    };
                    turn.give_in_order(give).unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), slots * laps as usize);
}

/// Without a kernel, threads end by themselves.
#[test]
fn threads_give_up_when_nothing_comes() {
    for mode in Mode::ALL {
        let mut ring = ring(Duration::from_millis(50));
        let shape = shape(mode, 2);
        ring.reset(&shape, 3).unwrap();
        let view = |mapped: &Mapped| View::new(mapped.host(), 0, mapped.bytes()).unwrap();
        let host = Host {
            window: view(&ring.window),
            flags: view(&ring.flags),
            credits: view(&ring.credits),
            shape,
            laps: 3,
            limit: ring.limit,
            yields: true,
        };
        ring.room.resize(3 * 8 * shape.payload(), 0);
        let mut parts = parts(&shape, 3, &mut ring.room);
        let since = Instant::now();
        let wrong = exchange(&host, &mut parts, |_| None, || Ok(())).unwrap();
        assert!(matches!(wrong, Some(Wrong::Missing { lap: 1, .. })), "{wrong:?}");
        let failed =
            exchange(&host, &mut parts, |_| None, || Err(GpuError::OtherGpu { what: "stream" }));
        assert!(failed.is_err());
        assert!(since.elapsed() < Duration::from_secs(20));
    }
}

/// Without threads that copy, the kernel ends by itself, and says so.
#[test]
fn the_kernel_gives_up_when_nothing_is_copied() {
    for mode in Mode::ALL {
        let ring = ring(Duration::from_millis(50));
        let shape = Shape { blocks: 2, ..shape(mode, 1) };
        let args = ring.reset(&shape, 3).unwrap();
        let kernel = ring.kernels.kernel(mode.kernel()).unwrap();
        launch(&ring.stream, &kernel, Dims::new(2, 32), &args).unwrap();
        ring.stream.synchronize(Duration::from_secs(60)).unwrap();
        let mut raw = [0; 2 * size_of::<LinkResult>()];
        ring.results.read(0, &mut raw).unwrap();
        for raw in raw.chunks_exact(size_of::<LinkResult>()) {
            let result: LinkResult = bytemuck::pod_read_unaligned(raw);
            assert_eq!(Code::check(result.status), Err(Code::Timeout));
            assert!(result.end_ns > result.start_ns);
        }
    }
}
