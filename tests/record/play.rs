//! Recordings: what is in them, what a replay notices, and what becomes of those that are damaged.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::queue_pairs::{Pair, attr, inline, make_qp, pattern};
use bellpush::nic::soft::link::{Faults, Faulty, Link, ShmNet};
use bellpush::nic::soft::record::{self, End, FirstDifference, Record, RecordingError, Replayed};
use bellpush::nic::soft::script::{Script, ScriptedFaults};
use bellpush::nic::soft::{Engine, SoftConfig, SoftNic};
use bellpush::nic::{Change, QpState, QueuePair};
use bellpush::wire::cqe::CqeOpcode;
use bellpush::wire::wqe::{Opcode, Operands, SendWr};

const MS: u64 = 1_000_000;

/// How the NICs of a test are made.
#[derive(Clone, Copy)]
pub(crate) struct Made<'a> {
    pub(crate) whole: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) faults: &'a str,
    pub(crate) script: &'a str,
    pub(crate) adversary: &'a str,
}

pub(crate) const PLAIN: Made<'_> =
    Made { whole: false, seed: None, faults: "", script: "", adversary: "" };

pub(crate) fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap()
}

pub(crate) fn replay(file: &Path) -> Result<Replayed, RecordingError> {
    record::replay(read(file))
}

fn compare(files: [&Path; 2]) -> Result<Option<FirstDifference>, (usize, RecordingError)> {
    record::compare(files.map(read))
}

pub(crate) type Nics = ([Arc<SoftNic>; 2], Vec<Engine>);

/// Two NICs that record; their files.
pub(crate) fn nics(dir: &Path, made: Made<'_>) -> (Nics, [PathBuf; 2]) {
    let net = ShmNet::anonymous(true).unwrap();
    let files = [1, 2].map(|host| dir.join(format!("{host}")));
    let mut engines = Vec::new();
    let nics = [1u8, 2].map(|host| {
        let address = IpAddr::from([127, 0, 0, host]);
        let mut link: Box<dyn Link> = Box::new(net.attach(address).unwrap());
        if !made.faults.is_empty() {
            let mut faults: Faults = made.faults.parse().unwrap();
            faults.seed += u64::from(host);
            link = Box::new(Faulty::new(link, faults).unwrap());
        }
        let its = |script: Script| ScriptedFaults::new(&script, 0, Some(address));
        let faults = (!made.script.is_empty()).then(|| its(made.script.parse().unwrap()));
        let script = (!made.script.is_empty()).then(|| (made.script.to_owned(), 0));
        let adversary = (!made.adversary.is_empty()).then(|| made.adversary.parse().unwrap());
        let path = files[usize::from(host) - 1].clone();
        let record = Some(Record { path, whole: made.whole, script });
        let seed = made.seed.map(|seed| seed + u64::from(host));
        let config = SoftConfig { seed, faults, adversary, record, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, link).unwrap();
        engines.push(engine);
        nic
    });
    ((nics, engines), files)
}

/// Two NICs that record, connected; their files.
pub(crate) fn recorded(dir: &Path, made: Made<'_>) -> (Pair, [PathBuf; 2]) {
    let (nics, files) = nics(dir, made);
    let with = Change { timeout: Some(8), ..Change::default() };
    (Pair::of(nics, &attr(), &attr(), &with), files)
}

/// Messages of every sort; bytes of their payload.
fn talk(p: &mut Pair, seed: u64, count: u64) -> u64 {
    let mut all = 0;
    for i in 0..count {
        let bytes = [8, 64, 700, 5_000, 20_000][(seed + i) as usize % 5];
        all += u64::from(bytes);
        let opcode = [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::Send, Opcode::AtomicFa]
            [(seed + i / 5) as usize % 4];
        p.a.buf.put(0, &pattern(bytes as usize, i));
        p.b.buf.put(40_000, &pattern(bytes as usize, i + 1));
        let bytes = if opcode == Opcode::AtomicFa { 8 } else { bytes };
        let payload = [p.a.buf.data(0, bytes)];
        let atomic = Some(Operands { swap_add: i, compare: 0 });
        let at = if opcode == Opcode::RdmaRead { 40_000 } else { 64 };
        let wr = SendWr { atomic, ..SendWr::new(opcode) }.to(p.b.buf.at(at), p.b.buf.mr.rkey);
        if opcode == Opcode::Send {
            p.b.host.rq.post(&[p.b.buf.sge(100_000, 25_000)]).unwrap();
        }
        p.a.host.send(&wr.payload(&payload)).unwrap();
        let mut cqes = Vec::new();
        p.run_until(2_000 * MS, |p| {
            cqes.extend(p.sent());
            !cqes.is_empty()
        });
        assert!(!cqes[0].opcode.is_error(), "{i}: {cqes:?}");
        p.received();
    }
    all
}

pub(crate) fn same(played: &Replayed) -> bool {
    played.end == End::Same
}

#[test]
fn a_replay_makes_the_same_decisions() {
    for made in [
        PLAIN,
        Made { whole: true, ..PLAIN },
        Made { faults: "loss=5%,dup=5%,reorder=5%,corrupt=3%,seed=7", ..PLAIN },
        Made { faults: "loss=5%,corrupt=3%,seed=8", whole: true, ..PLAIN },
        Made { adversary: "3", ..PLAIN },
        Made { adversary: "5,writes,cqe,packets,acks,routing", whole: true, ..PLAIN },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut p, files) = recorded(dir.path(), made);
        let bytes = talk(&mut p, 1, 60);
        drop(p);
        for file in &files {
            let played = replay(file).unwrap();
            assert!(same(&played), "{played:#?}");
            assert!(played.steps > 50 && played.events > 300, "{played:?}");
            let length = std::fs::metadata(file).unwrap().len();
            assert_eq!(length > bytes, made.whole, "{length} of {bytes}: payload is there or not");
        }
    }
}

#[test]
fn a_script_strikes_again_in_a_replay() {
    let fail = "[[fault]]\non = \"wqe\"\naction = \"fail\"\naddress = \"127.0.0.1\"\nnth = 3\n\
                syndrome = \"remote-access-error\"\n";
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), Made { script: fail, ..PLAIN });
    let payload = inline(b"12345678");
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let opcodes: Vec<_> = (0..4).flat_map(|_| p.send(&wr)).map(|cqe| cqe.opcode).collect();
    assert_eq!(opcodes[..2], [CqeOpcode::Req; 2]);
    assert_eq!(opcodes[2..], [CqeOpcode::ReqErr; 2]);
    drop(p);
    let played = replay(&files[0]).unwrap();
    assert!(same(&played), "{played:#?}");
    // Control: without the script the third WQE is carried out.
    let mut bytes = std::fs::read(&files[0]).unwrap();
    let at = bytes.windows(7).position(|part| part == b"nth = 3").unwrap();
    bytes[at + 6] = b'9';
    std::fs::write(&files[0], bytes).unwrap();
    let End::Differs(difference) = replay(&files[0]).unwrap().end else { panic!("it must differ") };
    assert!(difference.did.contains("sends RC WriteOnly"), "{difference:#?}");
}

#[test]
fn a_replay_names_the_first_thing_that_differs() {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), PLAIN);
    let payload = inline(b"the words of the first message!!");
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    drop(p);
    let bytes = std::fs::read(&files[0]).unwrap();
    let places: Vec<_> =
        (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"the words")).collect();
    assert_eq!(places.len(), 2, "in the WQE, and in the packet");
    for (place, did) in [(places[0], "sends"), (places[1], "sends")] {
        let mut changed = bytes.clone();
        changed[place] = b'T';
        std::fs::write(&files[0], changed).unwrap();
        let played = replay(&files[0]).unwrap();
        let End::Differs(difference) = played.end else { panic!("{played:#?}") };
        assert!(difference.did.contains(did), "{difference:#?}");
        assert!(difference.recorded.unwrap().contains("sends RC WriteOnly"));
    }
}

#[test]
fn a_recording_that_stops_is_the_same_so_far() {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), PLAIN);
    talk(&mut p, 1, 5);
    // As a process does that ends with its device open.
    p.nics.iter().for_each(|nic| nic.flush_recording());
    let played = replay(&files[0]).unwrap();
    assert_eq!(played.end, End::Stops { unread: 0 }, "{played:?}");
    talk(&mut p, 1, 5);
    drop(p);
    let whole = replay(&files[0]).unwrap();
    assert!(same(&whole) && whole.steps > played.steps, "{whole:?}, {played:?} before");
    // Wherever its process was killed, or the disk full.
    let bytes = std::fs::read(&files[0]).unwrap();
    for length in (200..bytes.len() - 1).step_by(bytes.len() / 80) {
        std::fs::write(&files[0], &bytes[..length]).unwrap();
        let played = replay(&files[0]).unwrap();
        let stops = matches!(played.end, End::Stops { .. });
        assert!(stops, "{length} of {} bytes: {played:?}", bytes.len());
    }
}

#[test]
fn queue_pairs_that_end_together_end_in_the_same_order_again() {
    let fatal = "[[fault]]\non = \"device\"\naction = \"fatal\"\nafter = \"1ms\"\n";
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), Made { script: fatal, ..PLAIN });
    let more: Vec<_> = (0..20).map(|_| make_qp(&p.nics[0], &attr())).collect();
    p.run_for(3 * MS);
    assert!(more.iter().all(|(qp, _)| qp.state() == QpState::Err));
    drop((p, more));
    let played = replay(&files[0]).unwrap();
    assert!(same(&played), "{played:#?}");
}

/// Whoever looks at what queue pairs are at has the engine for a moment.
#[test]
fn steps_that_find_the_engine_taken_are_not_in_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), PLAIN);
    let (nic, stop) = (p.nics[0].clone(), Arc::new(AtomicBool::new(false)));
    let helper = p.engines[0].helper();
    let (done, looks) = (stop.clone(), nic.clone());
    let looker = std::thread::spawn(move || {
        while !done.load(Ordering::Relaxed) {
            looks.reports(Duration::from_millis(1));
        }
    });
    let done = stop.clone();
    let stepper = std::thread::spawn(move || {
        let start = Instant::now();
        while !done.load(Ordering::Relaxed) {
            helper.step(start.elapsed().as_nanos() as u64 / 1_000_000);
        }
    });
    talk(&mut p, 3, 40);
    stop.store(true, Ordering::Relaxed);
    looker.join().unwrap();
    stepper.join().unwrap();
    drop((p, nic));
    let played = replay(&files[0]).unwrap();
    assert!(same(&played), "{played:#?}");
}

#[test]
fn damaged_recordings_are_refused_or_differ_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), PLAIN);
    talk(&mut p, 0, 8);
    drop(p);
    let bytes = std::fs::read(&files[1]).unwrap();
    let file = dir.path().join("damaged");
    let play = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let (played, mut out) = (replay(&file), Vec::new());
        let _ = record::show(read(&file), &mut out);
        let _ = compare([&files[0], &file]);
        played
    };
    for bad in
        [&b""[..], b"bellpush-record 1\n", b"bellpush-record 3\n", &bytes[..10], &[0xff; 100]]
    {
        assert!(play(bad).is_err());
    }
    let older = play(&[b"bellpush-record 1\n", &bytes[18..]].concat()).unwrap_err();
    assert!(older.to_string().contains("of format 1, and"), "{older}");
    // Who wrote it was ended, anywhere.
    for length in (30..bytes.len()).step_by(bytes.len() / 50) {
        let _ = play(&bytes[..length]);
    }
    let mut state = 1u64;
    let mut noticed = 0;
    for _ in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = 18 + (state >> 33) as usize % (damaged.len() - 18);
            damaged[at] ^= (state >> 8) as u8;
        }
        noticed += u32::from(!play(&damaged).is_ok_and(|played| same(&played)));
    }
    assert!(noticed > 300, "{noticed} of 400");
}

#[test]
fn two_recordings_are_compared_by_what_their_queue_pairs_did() {
    let run = |dir: &Path, seed: u64, third: u32| {
        let (mut p, files) = recorded(dir, Made { seed: Some(seed), ..PLAIN });
        for (i, bytes) in [100, 3_000, third, 50].into_iter().enumerate() {
            p.a.buf.put(0, &pattern(bytes as usize, i as u64));
            let payload = [p.a.buf.data(0, bytes)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
            assert_eq!(p.send(&wr.payload(&payload)).len(), 1);
        }
        drop(p);
        files
    };
    let dirs = [0; 3].map(|_| tempfile::tempdir().unwrap());
    let [one, other, shorter] =
        [(1, 200), (9, 200), (1, 199)].map(|(seed, n)| (seed, n)).map(|(seed, n)| {
            let dir = &dirs[usize::from(seed == 9) + 2 * usize::from(n == 199)];
            run(dir.path(), seed, n)
        });
    assert_eq!(compare([&one[0], &other[0]]).unwrap(), None, "other numbers are no difference");
    let found = compare([&one[0], &shorter[0]]).unwrap().expect("a message is shorter");
    assert_eq!(found.qp, 0);
    let [a, b] = found.did.map(|did| did.unwrap().0);
    assert!(a.contains("WriteOnly") && a.contains("200 bytes"), "{a}");
    assert!(b.contains("WriteOnly") && b.contains("199 bytes"), "{b}");
}

#[test]
fn a_recording_is_shown_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), PLAIN);
    talk(&mut p, 2, 5);
    drop(p);
    let mut out = Vec::new();
    record::show(read(&files[0]), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for part in ["call Qp(", "done: Number(", "step at", "sends RC SendOnly", "XXH3"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_nic_without_packets_does_not_record() {
    let record = Some(Record { path: "/nowhere/x".into(), whole: false, script: None });
    let config = SoftConfig { record, ..SoftConfig::default() };
    assert!(SoftNic::manual(&config).is_err_and(|e| e.to_string().contains("packet link")));
    let link = ShmNet::anonymous(true).unwrap().attach([127, 0, 0, 1].into()).unwrap();
    let refused = SoftNic::manual_on(&config, Box::new(link));
    assert!(refused.is_err_and(|e| e.to_string().contains("recording cannot be written")));
}
