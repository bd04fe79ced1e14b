//! Kernels that stand still where the test wants it (`kernels/bench/gate.cuh`), on a NIC that moves when it is stepped:
//! what its adversary finds is the same each time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nics::relaxed;
use crate::test_bed::*;
use bellpush::abi::bench::AutoOpArgs;
use bellpush::abi::wire::{DeviceEndpoint, RemoteWords};
use bellpush::gpu::HostOptions;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{AdversaryKind, Engine, Finding, InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Memory, Options, Path};
use bytemuck::Zeroable;

/// Lives through the engine's steps of a slow machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// An executor, and a NIC that moves when it is stepped.
pub struct Bench {
    pub bed: TestBed,
    pub nic: Arc<SoftNic>,
    pub engine: Engine,
}

impl Bench {
    /// So many steps, in which time stands still: what was looked at is mostly not due.
    pub fn stand(&mut self, steps: u32) {
        for _ in 0..steps {
            self.engine.step(1000);
        }
    }
}

/// A NIC that takes freedoms of these kinds.
pub fn manual(kinds: &str) -> Bench {
    let adversary = Some(kinds.parse().unwrap());
    let config = SoftConfig { adversary, ..SoftConfig::new(&InProcess::new()) };
    let (nic, mut engines) = SoftNic::manual(&config).unwrap();
    let bed = TestBed::new(HostOptions::default(), nic.clone());
    Bench { bed, nic, engine: engines.remove(0) }
}

/// The same, whose regions' WRITEs may land in any order.
pub fn manual_relaxed(kinds: &str) -> Bench {
    let Bench { nic, engine, .. } = manual(kinds);
    let bed = TestBed::new(HostOptions::default(), relaxed(nic.clone()));
    Bench { bed, nic, engine }
}

/// The same as `manual` with packets, so that a WQE is complete some steps after it was carried out.
pub fn with_packets(kinds: &str) -> Bench {
    let config = SoftConfig { adversary: Some(kinds.parse().unwrap()), ..SoftConfig::default() };
    let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
    let (nic, engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
    Bench { bed: TestBed::new(HostOptions::default(), nic.clone()), nic, engine }
}

pub const RING_BYTES: usize = 64 * 32;
/// Of the status, behind the gate's words.
pub const STATUS: usize = 16;

pub fn usual() -> Options {
    Options::default().sq_blocks(64).slot_bytes(1024)
}

/// What a kernel is given, and the memory that this names.
pub struct Call {
    pub pair: Pair,
    pub memory: Memory,
    pub args: AutoOpArgs,
}

impl Call {
    pub fn new(bed: &TestBed, path: Path, options: Options) -> Self {
        let pair = bed.pair(path, 8192, options);
        let memory = bed.memory(4096 + RING_BYTES);
        let mut args = AutoOpArgs::zeroed();
        let mut table = vec![0; size_of::<DeviceEndpoint>()];
        let bell = if path == Path::AUTO {
            args.ep = pair.a.auto_device().unwrap();
            args.ep.bell
        } else {
            args.op.ep = pair.a.device().unwrap();
            args.op.ep
        };
        table.extend_from_slice(bytemuck::bytes_of(&bell));
        (args.op.local, args.op.bytes) = (pair.src.addr(), 3000);
        (args.op.compare, args.op.status) = (memory.addr(), memory.addr() + STATUS as u64);
        memory.write(1024, &table).unwrap();
        // Of a barrier's words, in the peer's region.
        let (iova, rkey) = (bell.remote_iova + 4096, bell.remote_rkey);
        let words = RemoteWords { iova, rkey, reserved: 0 };
        memory.write(2048, bytemuck::bytes_of(&[words; 2])).unwrap();
        memory.write(STATUS, &UNWRITTEN.to_ne_bytes()).unwrap();
        Self { pair, memory, args }
    }

    pub fn word32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(read(&self.memory, at, 4).try_into().unwrap())
    }
}

/// Runs a kernel that stands still once it has posted, or told of what it has not, while the NIC does what `meanwhile`
/// has it do: what that found.
pub fn play(
    mut bench: Bench,
    call: &Call,
    kernel: &str,
    meanwhile: impl FnOnce(&mut Bench),
) -> Vec<Finding> {
    bench.bed.queue_on(&bench.bed.stream, kernel, &call.args);
    let begun = Instant::now();
    let until = |what: &str, done: &mut dyn FnMut() -> bool| {
        while !done() {
            assert!(begun.elapsed() < LIMIT, "{kernel}: {what}");
        }
    };
    until("does not come", &mut || call.word32(0) == 1);
    meanwhile(&mut bench);
    call.memory.write(4, &1u32.to_ne_bytes()).unwrap();
    until("does not go on", &mut || call.word32(8) == 1);
    let mut now = 1000;
    until("does not end", &mut || {
        now += 1000;
        bench.engine.step(now);
        call.word32(STATUS) != UNWRITTEN
    });
    bench.bed.stream.synchronize(LIMIT).unwrap();
    assert_eq!(call.word32(STATUS), OK, "{kernel}");
    assert!(call.pair.a.failure().is_none());
    bench.nic.findings()
}

/// The line of a source that has this text, and no other has.
pub fn line_of(source: &str, text: &str) -> u16 {
    let lines: Vec<_> = source.lines().zip(1..).filter(|(line, _)| line.contains(text)).collect();
    let [(_, line)] = lines[..] else { panic!("{text}: {} lines", lines.len()) };
    line
}

/// All findings are of this kind, and about a WQE that the line with this text posted.
#[track_caller]
pub fn all_at(findings: &[Finding], (file, source): (&str, &str), kind: AdversaryKind, text: &str) {
    assert!(!findings.is_empty(), "nothing was found");
    for finding in findings {
        let line = finding.posted_at.as_ref().unwrap_or_else(|| panic!("{finding}: no line"));
        assert_eq!((finding.kind, &*line.file, line.line), (kind, file, line_of(source, text)));
        let told = format!("(posted at {file}:{})", line.line);
        assert!(finding.to_string().contains(&told), "{finding}");
    }
}
