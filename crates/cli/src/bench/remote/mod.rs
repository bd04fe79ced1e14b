//! `bellpush bench --listen` and `--connect`: the two ends of a path in two processes, of one host or of two. The side
//! that connects says what is measured, and has the rows; the side that listens looks at what comes to it with
//! expectations and a digest of its own.

mod line;
mod pair;
mod said;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Instant;

use bellpush::transport::Path;
use bellpush_cli::report::{self, Results, Row};

use self::line::{Line, out_of_step};
use self::pair::{Pair, Round, Ways};
use self::said::{Hello, Said};
use super::measure::{Ask, Callers, Running, Seen, row as measure};
use super::payload::{Payload, Tags};
use super::test_bed::TestBed;
use super::{options, progress, row};
use crate::cli::{self, CliError};
use crate::plan::{BenchPlan, Remote};

/// Turns before those that count.
const WARM_UP: u32 = 16;

/// Measures as one of two sides.
pub fn run(plan: &BenchPlan, remote: &Remote, payload: &Payload) -> Result<ExitCode, CliError> {
    let (mut line, results) = match remote {
        Remote::Listen(place) => {
            let mut line = Line::listen(place)?;
            let results = listens(&mut line, plan);
            (line, results)
        }
        Remote::Connect { to, both_ways } => {
            let mut line = Line::connect(to)?;
            let results = connects(&mut line, plan, payload, *both_ways);
            (line, results)
        }
    };
    let results = results.inspect_err(|why| line.fail(why))?;
    cli::emit(&results, plan.json.as_deref(), plan.report.as_deref())
}

/// This host's address on the way to another, from its table of routes; nothing is sent.
fn towards(there: SocketAddr) -> Result<IpAddr, CliError> {
    let any: SocketAddr = match there {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let found = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(there)?;
        socket.local_addr()
    });
    found.map(|here| here.ip()).map_err(|e| {
        CliError::new(format!("no address here leads to {there}: {e}"), "give --address")
    })
}

fn connects(
    line: &mut Line,
    plan: &BenchPlan,
    payload: &Payload,
    both_ways: bool,
) -> Result<Results, CliError> {
    let root = line.root;
    let here = towards(root)?;
    let wire = (plan.nic == "soft").then(|| plan.link.unwrap_or_default().wire());
    line.swap(&Said::Hello(Box::new(Hello::of(plan, here, wire, both_ways))))?;
    let bed = TestBed::apart(plan, &place(plan, here, root.port()))?;
    ready(line)?;
    let theirs = Payload::Tags(Tags::new(plan.seed.wrapping_add(1)));
    let bar = progress(plan.paths.len() * plan.sizes_bytes.len());
    let (mut rows, mut refused) = (Vec::new(), None);
    'paths: for &path in &plan.paths {
        let ask = ask(plan, &bed, path, here);
        for &size in &plan.sizes_bytes {
            bar.set_message(format!("{path} {}", report::size::print(size)));
            line.swap(&Said::Row { path: path.to_string(), size })?;
            let sides = (payload, Some(&theirs));
            let mut pair = match Pair::new(&bed, line, (path, size as usize), &ask, sides)? {
                Ok(pair) => pair,
                Err(why) => {
                    bar.suspend(|| eprintln!("bellpush: {path} is left out: {why}"));
                    bar.inc(plan.sizes_bytes.len() as u64);
                    refused = Some(why);
                    continue 'paths;
                }
            };
            let measured = between(&mut pair, &ask, size as usize, payload, both_ways)?;
            for why in measured.failures() {
                bar.suspend(|| eprintln!("bellpush: {path}, {size} B ended early: {why}"));
            }
            let row = measured.row(&bed, plan, path, size);
            line.swap(&Said::Done(Box::new(row.clone())))?;
            rows.push(row);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    line.swap(&Said::End)?;
    if let (true, Some(why)) = (rows.is_empty(), refused) {
        return Err(CliError::new(why, "take another path"));
    }
    Ok(Results { meta: meta(plan, &bed), results: rows })
}

/// What both sides saw of a row.
struct Measured {
    mine: Seen,
    /// Messages of the other side, where they go both ways.
    theirs: Option<Seen>,
    /// Round trips.
    turns: Result<Option<report::stats::Samples>, String>,
}

/// The rounds and turns of a row, on the side that connects.
fn between(
    pair: &mut Pair<'_>,
    ask: &Ask,
    size: usize,
    payload: &Payload,
    both_ways: bool,
) -> Result<Measured, CliError> {
    let mut theirs = Running::default();
    let most = pair.most();
    let ways = Ways { sends: true, receives: both_ways };
    let mut mine = measure(ask, size, most, payload, |n, phase, row| {
        let round = Round { n, first: row.seen.posted, phase };
        pair.line.swap(&Said::Round { n, first: round.first, phase })?;
        let outcome = pair.round(round, ways, row.latencies())?;
        row.sent(phase, outcome.mine.0);
        row.seen.tally.add(outcome.mine.1);
        row.seen.source_damaged |= outcome.source_damaged;
        theirs.sent(phase, outcome.theirs.0);
        theirs.seen.tally.add(outcome.theirs.1);
        if let Some(why) = &theirs.seen.failure {
            row.seen.failure.get_or_insert_with(|| format!("the other side: {why}"));
        }
        Ok::<(), CliError>(())
    })?;
    mine.reach = pair.sender.reach;
    mine.max_credits = pair.sender.max_credits().map_err(|e| super::transport_error(&e))?;
    // A queue pair that blocks have shared is theirs: its turns would be another row's.
    let turns = match mine.failure {
        None if ask.blocks == 1 => turns(pair, ask)?,
        _ => Ok(None),
    };
    Ok(Measured { mine, theirs: both_ways.then_some(theirs.seen), turns })
}

/// Round trips, in turns that grow until they take a tenth of the row's time.
fn turns(
    pair: &mut Pair<'_>,
    ask: &Ask,
) -> Result<Result<Option<report::stats::Samples>, String>, CliError> {
    let most = (ask.messages / 4).clamp(1, super::test_bed::ROUND_MESSAGES as u64) as u32;
    let (since, mut all, mut n, mut counts) =
        (Instant::now(), Vec::new(), WARM_UP.min(most), false);
    while all.is_empty() || (all.len() < most as usize && since.elapsed() < ask.limit / 2) {
        pair.line.swap(&Said::Turns { n })?;
        let begun = Instant::now();
        match pair.turns(n, true)? {
            Ok(times) if counts => all.extend(times),
            Ok(_) => {}
            Err(why) => return Ok(Err(why)),
        }
        if counts && begun.elapsed() < ask.limit / 10 {
            n *= 2;
        }
        counts = true;
        n = n.min(most - (all.len() as u32).min(most - 1));
    }
    Ok(Ok(Some(report::stats::Samples::new(all))))
}

impl Measured {
    fn failures(&self) -> impl Iterator<Item = &String> {
        self.mine.failure.iter().chain(self.turns.as_ref().err())
    }

    fn row(&self, bed: &TestBed, plan: &BenchPlan, path: Path, size: u64) -> Row {
        let mut row = row(bed, plan, path, size, &self.mine, None);
        // Half of a round trip.
        let one_way = |percent| {
            let times = self.turns.as_ref().ok()?.as_ref()?;
            times.percentile(percent).map(|ns| ns as f64 / 2.0)
        };
        row.one_way_ns_p50 = one_way(50.0);
        row.one_way_ns_p99 = one_way(99.0);
        row.processes = Some(2);
        row.both_ways = Some(self.theirs.is_some());
        row.verified &= self.turns.is_ok();
        if let Some(theirs) = &self.theirs {
            let seconds = theirs.streaming.as_secs_f64();
            let per_s = if seconds > 0.0 { theirs.streamed as f64 / seconds } else { 0.0 };
            row.messages += theirs.posted;
            row.messages_per_s += per_s;
            row.bandwidth_gb_s += per_s * size as f64 / 1e9;
            row.verified &= theirs.is_whole();
            row.dropped += theirs.tally.missing;
            row.overwritten += theirs.tally.overwritten;
            row.corrupted += theirs.tally.corrupted;
        }
        row
    }
}

fn listens(line: &mut Line, own: &BenchPlan) -> Result<Results, CliError> {
    let refused =
        |why: String| CliError::new(format!("the other side asks for {why}"), "see --help");
    let hello = match line.swap(&Said::Ready)? {
        Said::Hello(hello) => hello,
        other => return Err(out_of_step(&other)),
    };
    let mut plan = hello.plan(own).map_err(refused)?;
    plan.follow(hello.wire)?;
    let root = line.root;
    let here = towards(SocketAddr::new(hello.here, root.port()))?;
    let bed = TestBed::apart(&plan, &place(&plan, here, root.port()))?;
    ready(line)?;
    let mine = Payload::Tags(Tags::new(plan.seed.wrapping_add(1)));
    let theirs = (!hello.file).then(|| Payload::Tags(Tags::new(plan.seed)));
    let mut rows = Vec::new();
    let mut said = line.swap(&Said::Ready)?;
    while let Said::Row { path, size } = &said {
        let (path, size) = said::row(path, *size, plan.largest_bytes()).map_err(refused)?;
        let ask = ask(&plan, &bed, path, here);
        let sides = (&mine, theirs.as_ref());
        let made = Pair::new(&bed, line, (path, size), &ask, sides)?;
        said = match made {
            Ok(pair) => answers(pair, hello.both_ways)?,
            Err(_) => line.swap(&Said::Ready)?, // which the other side says
        };
        if let Said::Done(row) = said {
            rows.push(*row);
            said = line.swap(&Said::Ready)?;
        }
    }
    match said {
        Said::End if rows.is_empty() => {
            Err(CliError::new("no path could be measured", "see what the other side says"))
        }
        Said::End => Ok(Results { meta: meta(&plan, &bed), results: rows }),
        other => Err(out_of_step(&other)),
    }
}

/// Does what the other side says of a row, up to the first thing that is not of it.
fn answers(mut pair: Pair<'_>, both_ways: bool) -> Result<Said, CliError> {
    let too_long =
        |n| CliError::new(format!("the other side asks for a round of {n}"), "see --help");
    let ways = Ways { sends: both_ways, receives: true };
    loop {
        match pair.line.swap(&Said::Ready)? {
            Said::Round { n, first, phase } => {
                if !(1..=pair.most()).contains(&(n as usize)) || first > u64::MAX >> 32 {
                    return Err(too_long(n));
                }
                pair.round(Round { n, first, phase }, ways, &mut Vec::new())?;
            }
            Said::Turns { n } => {
                if !(1..=super::test_bed::ROUND_MESSAGES).contains(&(n as usize)) {
                    return Err(too_long(n));
                }
                // What failed is told to the other side.
                let _ = pair.turns(n, false)?;
            }
            other => return Ok(other),
        }
    }
}

fn ready(line: &mut Line) -> Result<(), CliError> {
    match line.swap(&Said::Ready)? {
        Said::Ready => Ok(()),
        other => Err(out_of_step(&other)),
    }
}

fn ask(plan: &BenchPlan, bed: &TestBed, path: Path, here: IpAddr) -> Ask {
    Ask {
        options: options(plan, bed, path).tcp_listen(here),
        qps: plan.qps as usize,
        messages: plan.messages,
        in_flight: plan.in_flight,
        blocks: plan.blocks,
        callers: Callers::BySize,
        limit: plan.row_limit,
    }
}

/// Where this side's NIC is, and the name of what both share in memory.
fn place(plan: &BenchPlan, here: IpAddr, port: u16) -> super::test_bed::Apart {
    super::test_bed::Apart {
        address: plan.address.or((!here.is_loopback()).then_some(here)),
        name: format!("bench-{port}"),
    }
}

fn meta(plan: &BenchPlan, bed: &TestBed) -> report::Meta {
    let nic = report::Nic { name: bed.nic.name().into(), software: bed.nic.is_software() };
    let mut meta = report::machine::meta(nic, &bed.gpu.describe().to_string(), plan.seed);
    if bed.gpu.is_host() {
        meta.gpu = None; // a GPU may be present, but the run does not use it
    }
    meta.notes.extend(bed.link.clone());
    meta.notes.push(
        "two processes: one-way is half a round trip, from the put to the signal that the other \
         side sees; p50 and p99 are from the post to the completion at the sender"
            .into(),
    );
    meta
}
