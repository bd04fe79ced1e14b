//! Two processes, a software NIC each: RDMA WRITE of 8 B and of 1 MiB over the UDP and the
//! shared-memory link, beside `ucx_perftest` over TCP and a plain memcpy, in turns in one run.
//!
//! `cargo bench --bench two_process -- [--rounds N]`, or the program itself with `--bench`, on a
//! machine without cargo. It starts itself as the second process.
//!
//! *complete*: from the post of a WRITE of 8 B to its CQE. *ping-pong*: half of the time from a
//! post to the other side's answer, a WRITE, in memory, which is ucp_put_lat. Both are medians.
//! 1 MiB: several WRITEs outstanding, every page of each stamped, every byte of the last of each
//! slot compared.
//!
//! Aims: messages of 1 MiB at a fifth of memcpy over shared memory, a twentieth over UDP; ping-pong in
//! 2 µs over shared memory, 20 µs over UDP. (With fewer cores than the processes want, latencies are the
//! scheduler's.)

#[path = "../aim/mod.rs"]
mod aim;
mod end;
mod ucx;

use std::hint::black_box;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bellpush::mem::{Dma, HostMem, PAGE_BYTES, View};

use self::end::{End, Lines, SLOT, SLOTS, Way, word};

const ROUNDS: usize = 5;
const PINGS: u64 = 10_000;
const WARM: u64 = 1_000;
/// Messages of 1 MiB on their way.
const WINDOW: u64 = 8;
const RUN: Duration = Duration::from_secs(1);

/// Byte of a slot between stamps.
fn pattern(slot: usize, at: usize) -> u8 {
    (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ slot as u8
}

/// Marks every page of a slot with the message's number.
fn stamp(slots: &View, slot: usize, message: u64) {
    for at in (0..SLOT).step_by(PAGE_BYTES) {
        slots.write(slot * SLOT + at, &message.to_ne_bytes()).expect("a stamp");
    }
}

fn fill(slots: &View) {
    for slot in 0..SLOTS {
        let bytes: Vec<u8> = (0..SLOT).map(|at| pattern(slot, at)).collect();
        slots.write(slot * SLOT, &bytes).expect("a slot");
    }
}

/// Whether the slots hold the last of so many messages; else what is wrong.
fn check(slots: &View, messages: u64) -> Result<(), String> {
    let mut bytes = vec![0; SLOT];
    for message in messages.saturating_sub(SLOTS as u64)..messages {
        let slot = message as usize % SLOTS;
        slots.read(slot * SLOT, &mut bytes).expect("a slot");
        for (at, &is) in bytes.iter().enumerate() {
            let stamp = message.to_ne_bytes();
            let want = stamp.get(at % PAGE_BYTES).copied().unwrap_or_else(|| pattern(slot, at));
            if is != want {
                return Err(format!("byte {at} of message {message} is {is}, not {want}"));
            }
        }
    }
    Ok(())
}

/// The second process: does what the first one's lines say.
fn answer(way: Way, name: &str) {
    let mut end = End::open(way, name);
    let mut lines = Lines::new(std::io::stdin(), std::io::stdout());
    lines.say(end.introduce());
    let Some(peer) = lines.hear(&mut end) else { return };
    end.meet(&peer);
    lines.say("ready");
    while let Some(line) = lines.hear(&mut end) {
        let mut words = line.split(' ');
        match words.next() {
            Some("pong") => {
                let (first, count) = (word::<u64>(&mut words), word::<u64>(&mut words));
                for value in first..first + count {
                    volley(&mut end, value, |end| end.ping(value));
                }
            }
            Some("check") => match check(&end.slots().1, word(&mut words)) {
                Ok(()) => lines.say("right"),
                Err(wrong) => lines.say(wrong),
            },
            _ => panic!("what is {line:?}?"),
        }
    }
}

/// Waits for a ping, answers it, and takes the answer's completion afterwards.
fn volley(end: &mut End, value: u64, answer: impl FnOnce(&mut End)) {
    let came = end.until("ping", |end| Some(end.pinged()).filter(|&is| is + 1 != value));
    assert_eq!(came, value, "a ping");
    answer(end);
    end.until("completion", |end| end.completed().then_some(()));
}

struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has no more to do
        let _ = self.0.wait();
    }
}

/// A connection to a second process, and what it measures.
struct Pair {
    end: End,
    lines: Lines,
    _second: Second,
}

impl Pair {
    fn open(way: usize) -> Self {
        let name = format!("two-process-{}", std::process::id());
        let program = std::env::current_exe().expect("this program");
        let mut second = Command::new(program)
            .args(["--second", &way.to_string(), &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let (come, go) = (second.stdout.take(), second.stdin.take());
        let mut lines = Lines::new(come.expect("its output"), go.expect("its input"));
        let _second = Second(second);
        let mut end = End::open(Way::ALL[way], &name);
        let peer = lines.hear(&mut end).expect("a second process");
        end.meet(&peer);
        lines.say(end.introduce());
        assert_eq!(lines.hear(&mut end).as_deref(), Some("ready"));
        Self { end, lines, _second }
    }

    /// Median in µs from a post of 8 B to its CQE.
    fn complete(&mut self) -> f64 {
        let end = &mut self.end;
        let once = |_| {
            let start = Instant::now();
            end.ping(0);
            end.until("completion", |end| end.completed().then_some(()));
            start.elapsed()
        };
        median_us((0..WARM + PINGS).map(once))
    }

    /// Median of half of a round trip in µs.
    fn ping_pong(&mut self) -> f64 {
        let (end, lines) = (&mut self.end, &mut self.lines);
        lines.say(format_args!("pong 1 {}", WARM + PINGS));
        let once = |value| {
            let start = Instant::now();
            end.ping(value);
            let came = end.until("pong", |end| Some(end.pinged()).filter(|&is| is + 1 != value));
            let taken = start.elapsed();
            assert_eq!(came, value, "a pong");
            end.until("completion", |end| end.completed().then_some(()));
            taken / 2
        };
        median_us((1..=WARM + PINGS).map(once))
    }

    /// Bytes a second of messages of 1 MiB.
    fn stream(&mut self) -> f64 {
        let end = &mut self.end;
        let (out, _) = end.slots();
        fill(&out);
        let (start, mut sent, mut done) = (Instant::now(), 0, 0);
        while start.elapsed() < RUN {
            while sent - done < WINDOW {
                let slot = sent as usize % SLOTS;
                stamp(&out, slot, sent);
                end.send_slot(slot);
                sent += 1;
            }
            end.until("completion", |end| end.completed().then_some(()));
            done += 1;
        }
        while done < sent {
            end.until("completion", |end| end.completed().then_some(()));
            done += 1;
        }
        let rate = sent as f64 * SLOT as f64 / start.elapsed().as_secs_f64();
        self.lines.say(format_args!("check {sent}"));
        let verdict = self.lines.hear(&mut self.end);
        assert_eq!(verdict.as_deref(), Some("right"));
        rate
    }
}

/// Median behind the first [`WARM`].
fn median_us(samples: impl Iterator<Item = Duration>) -> f64 {
    median(samples.skip(WARM as usize).map(|time| time.as_secs_f64() * 1e6).collect())
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Bytes a second of memcpy between as many slots.
fn memcpy() -> f64 {
    let (from, mut to) = (vec![1u8; SLOTS * SLOT], vec![2u8; SLOTS * SLOT]);
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        for at in (0..from.len()).step_by(SLOT) {
            to[at..at + SLOT].copy_from_slice(black_box(&from[at..at + SLOT]));
        }
        black_box(&mut to);
        bytes += from.len();
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// What the rounds gave for one row; µs, µs, bytes a second.
#[derive(Default)]
struct Row {
    complete: Vec<f64>,
    ping_pong: Vec<f64>,
    rate: Vec<f64>,
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [first, way, name] = &args[..]
        && first == "--second"
    {
        answer(Way::ALL[way.parse::<usize>().expect("a way")], name);
        return ExitCode::SUCCESS;
    }
    if !args.iter().any(|arg| arg == "--bench") {
        checker_finds_what_is_wrong(); // `cargo test` runs benches, too
        return ExitCode::SUCCESS;
    }
    let asked = args.iter().skip_while(|arg| *arg != "--rounds").nth(1);
    let rounds = asked.map_or(ROUNDS, |n| n.parse().expect("a number of rounds"));
    let mut rows = [const { Vec::new() }; Way::ALL.len()].map(|_: Vec<f64>| Row::default());
    let (mut ucx, mut copies) = (Row::default(), Vec::new());
    let version = ucx::version();
    println!("load before: {}", load());
    for round in 0..rounds {
        copies.push(memcpy());
        for (way, row) in rows.iter_mut().enumerate() {
            let mut pair = Pair::open(way);
            if round == 0 {
                println!("{}", pair.end.describe());
            }
            row.complete.push(pair.complete());
            row.ping_pong.push(pair.ping_pong());
            row.rate.push(pair.stream());
        }
        if version.is_some()
            && let Some((latency, rate)) = ucx::put()
        {
            ucx.ping_pong.push(latency);
            ucx.rate.push(rate);
        }
    }
    println!("load after: {}", load());
    println!("medians of {rounds} rounds in turns (lowest to highest)\n");
    let (copy, ucx_us, ucx_rate) =
        (median(copies), median(ucx.ping_pong.clone()), median(ucx.rate.clone()));
    println!(
        "| way | complete µs | ping-pong µs | 1 MiB GB/s | µs ÷ UCX | GB/s ÷ UCX | GB/s ÷ memcpy |"
    );
    println!("|---|---|---|---|---|---|---|");
    let print = |name: &str, row: Row| {
        let spread = |samples: &[f64], unit: f64| {
            let (low, high) =
                samples.iter().fold((f64::MAX, 0.0), |(low, high): (f64, f64), &x| {
                    (low.min(x / unit), high.max(x / unit))
                });
            let middle = median(samples.to_vec()) / unit;
            if samples.is_empty() {
                "".into()
            } else {
                format!("{middle:.2} ({low:.2} to {high:.2})")
            }
        };
        let (complete, half) = (spread(&row.complete, 1.0), spread(&row.ping_pong, 1.0));
        let (us, rate) = (median(row.ping_pong), median(row.rate.clone()));
        let gb = spread(&row.rate, 1e9);
        // Without UCX there is nothing to divide by.
        let ratio = |x: f64| if x.is_finite() { format!("{x:.2}") } else { String::new() };
        let [a, b, c] = [us / ucx_us, rate / ucx_rate, rate / copy].map(ratio);
        println!("| {name} | {complete} | {half} | {gb} | {a} | {b} | {c} |");
    };
    let mut measured = Vec::new();
    for (way, row) in Way::ALL.into_iter().zip(rows) {
        measured.push((way, median(row.ping_pong.clone()), median(row.rate.clone()) / copy));
        print(&format!("{}, engine by {}", way.link, way.drive()), row);
    }
    match version {
        Some(version) => print(&format!("UCX {version} over TCP"), ucx),
        None => println!("\nucx_perftest is not installed (ucx-utils): no ratios to UCX"),
    }
    println!("\nmemcpy of 1 MiB pieces: {:.2} GB/s", copy / 1e9);
    let mut aims = aim::Aims::default();
    for (way, us, ratio) in measured {
        let (wanted, most_us) = if way.link == "shm" { (0.2, 2.0) } else { (0.05, 20.0) };
        let name = format!("{}, engine by {}", way.link, way.drive());
        aims.at_least(&name, Some(ratio), wanted, "of memcpy");
        aims.at_most(&format!("{name}, ping-pong"), Some(us), most_us, "µs");
    }
    aims.end()
}

/// The control of what the second process checks.
fn checker_finds_what_is_wrong() {
    let mem = HostMem::alloc(SLOTS * SLOT).expect("memory");
    let slots = View::new(&mem, 0, SLOTS * SLOT).expect("all of it");
    fill(&slots);
    let messages = 2 * SLOTS as u64 + 3;
    for message in 0..messages {
        stamp(&slots, message as usize % SLOTS, message);
    }
    assert_eq!(check(&slots, messages), Ok(()));
    assert!(check(&slots, messages - 1).is_err(), "a message too many");
    assert!(check(&slots, messages + 1).is_err(), "a message that did not come");
    let mut byte = [0];
    slots.read(5 * SLOT + 12345, &mut byte).expect("a byte");
    slots.write(5 * SLOT + 12345, &[byte[0] ^ 1]).expect("a byte");
    assert!(check(&slots, messages).is_err(), "a bit flipped");
}
