//! The side that connects: it says what is measured, and has the rows.

use std::time::Instant;

use bellpush::transport::Path;
use bellpush_cli::report::Row;
use bellpush_cli::report::human::printable;
use bellpush_cli::report::stats::Samples;

use super::Measured;
use super::pair::{Outcome, Pair, Round, Ways};
use super::peer::{Peer, out_of_step};
use super::said::{Has, Said, Wanted, Way};
use crate::bench::measure::{self, Ask, Running, Seen, Sent};
use crate::bench::payload::{Payload, Tags, Tally};
use crate::bench::test_bed::{Devices, ROUND_MESSAGES, TestBed};
use crate::bench::turns::WARM_UP;
use crate::bench::{row, runs, transport_error};
use crate::cli::CliError;
use crate::plan::BenchPlan;

pub fn measure(
    peer: &mut Peer,
    plan: &BenchPlan,
    devices: Devices,
    payload: &Payload,
    both_ways: bool,
) -> Result<Measured, CliError> {
    let mine = Way::of(plan);
    let wanted = Box::new(Wanted::of(plan, both_ways));
    let theirs = match peer.swap(&Said::Hello(mine.clone(), wanted))? {
        Said::Here(way) => way,
        other => return Err(out_of_step(&other)),
    };
    let (bed, here, theirs) = super::open(peer, plan, devices, (&mine, &theirs))?;
    let meta = super::meta(plan, &bed, payload, &theirs)?;
    let run = Run { bed: &bed, plan, payload, both_ways, theirs: &theirs };
    let (rows, ended) = runs::measure(plan, |path, size, bar| {
        let ask = super::ask(plan, &bed, path, here);
        match run.row(peer, path, size, &ask)? {
            Ok((row, failures)) => {
                for why in failures {
                    let why = printable(&why);
                    bar.suspend(|| eprintln!("bellpush: {path}, {size} B ended early: {why}"));
                }
                Ok(Some(row))
            }
            Err(why) => {
                let why = printable(&why);
                bar.suspend(|| eprintln!("bellpush: {path} is left out: {why}"));
                Ok(None)
            }
        }
    });
    let ended = ended.and_then(|()| peer.swap(&Said::End).map(drop));
    Ok(Measured { meta, rows, ended })
}

/// What is the same for all rows.
struct Run<'a> {
    bed: &'a TestBed,
    plan: &'a BenchPlan,
    payload: &'a Payload,
    both_ways: bool,
    theirs: &'a Has,
}

impl Run<'_> {
    /// A row, and what ended parts of it early. The inner error says why the path cannot be measured.
    fn row(
        &self,
        peer: &mut Peer,
        path: Path,
        size: u64,
        ask: &Ask,
    ) -> Result<Result<(Row, Vec<String>), String>, CliError> {
        peer.swap(&Said::Row { path: path.to_string(), size })?;
        let theirs = Payload::Tags(Tags::of_the_other_side(self.plan.seed));
        let sides = (self.payload, Some(&theirs));
        let mut pair = match Pair::new(self.bed, peer, (path, size as usize), ask, sides)? {
            Ok(pair) => pair,
            Err(why) => return Ok(Err(why)),
        };
        let (mine, theirs) = self.rounds(&mut pair, ask, size as usize)?;
        // Blocks that put together have no turns; nor is a queue pair that has failed of use.
        let turns = match mine.failure {
            None if ask.blocks == 1 => turns(&mut pair, ask)?,
            _ => Ok(None),
        };
        let mut failures: Vec<String> = mine.failure.iter().cloned().collect();
        failures.extend(turns.as_ref().err().cloned());
        let mut row = row(self.bed, self.plan, path, size, &mine, None);
        row.processes = Some(2);
        row.both_ways = Some(self.both_ways);
        row.dest = Some(self.theirs.dest);
        row.verified &= turns.is_ok();
        if let Ok(Some(times)) = &turns {
            // Half of a round trip.
            let one_way = |percent| times.percentile(percent).map(|ns| ns as f64 / 2.0);
            (row.one_way_ns_p50, row.one_way_ns_p99) = (one_way(50.0), one_way(99.0));
        }
        if self.both_ways {
            add(&mut row, &mine, &theirs, size);
        }
        pair.peer.swap(&Said::Done(Box::new(row.clone())))?;
        Ok(Ok((row, failures)))
    }

    /// The rounds of a row: what was seen of this side's messages, and of the other's.
    fn rounds(
        &self,
        pair: &mut Pair<'_>,
        ask: &Ask,
        size: usize,
    ) -> Result<(Seen, Seen), CliError> {
        let mut theirs = Running::default();
        let most = pair.most();
        let ways = Ways { sends: true, receives: self.both_ways };
        let mut mine = measure::rounds(ask, size, most, self.payload, |n, phase, row| {
            let round = Round { n, first: row.seen.posted, phase };
            pair.peer.swap(&Said::Round { n, first: round.first, phase })?;
            let outcome = pair.round(round, ways, row.latencies())?;
            row.sent(phase, outcome.mine.0);
            row.seen.tally.add(outcome.mine.1);
            row.seen.source_damaged |= outcome.source_damaged;
            theirs.sent(phase, outcome.theirs.0);
            theirs.seen.tally.add(outcome.theirs.1);
            if let Some(why) = &theirs.seen.failure {
                row.seen.failure.get_or_insert_with(|| why.clone());
            }
            Ok::<(), CliError>(())
        })?;
        mine.reach = pair.sender.reach;
        mine.max_credits = pair.sender.max_credits().map_err(|e| transport_error(&e))?;
        Ok((mine, theirs.seen))
    }
}

/// Adds the messages of the other side. Both rates are over the longer of the two times: the two sides do not begin and
/// end at once.
fn add(row: &mut Row, mine: &Seen, theirs: &Seen, size: u64) {
    let seconds = mine.streaming.max(theirs.streaming).as_secs_f64();
    let streamed = mine.streamed.saturating_add(theirs.streamed) as f64;
    row.messages_per_s = if seconds > 0.0 { streamed / seconds } else { 0.0 };
    row.bandwidth_gb_s = row.messages_per_s * size as f64 / 1e9;
    row.messages += theirs.posted;
    row.verified &= theirs.is_whole();
    row.dropped += theirs.posted.saturating_sub(theirs.tally.all() - theirs.tally.missing);
    row.overwritten += theirs.tally.overwritten;
    row.corrupted += theirs.tally.corrupted;
}

/// Round trips, in calls of ever more turns until one takes a tenth of the row's time.
fn turns(pair: &mut Pair<'_>, ask: &Ask) -> Result<Result<Option<Samples>, String>, CliError> {
    let wanted = (ask.messages / 4).max(1) as usize;
    let most = ROUND_MESSAGES - WARM_UP as usize;
    let (since, mut all, mut counted) = (Instant::now(), Vec::new(), 1);
    while all.is_empty() || (all.len() < wanted && since.elapsed() < ask.limit / 2) {
        let begun = Instant::now();
        let n = counted as u32 + WARM_UP;
        pair.peer.swap(&Said::Turns { n })?;
        let (times, outcome) = pair.turns(n, true)?;
        if let Some(why) = failed(&outcome) {
            return Ok(Err(why));
        }
        all.extend(times);
        if begun.elapsed() < ask.limit / 10 {
            counted *= 2;
        }
        counted = counted.min(most).min(wanted.saturating_sub(all.len()).max(1));
    }
    Ok(Ok(Some(Samples::new(all))))
}

fn failed(outcome: &Outcome) -> Option<String> {
    let ended = [&outcome.mine.0, &outcome.theirs.0].into_iter().find_map(|it| it.as_ref().err());
    let whole = |found: &(Sent, Tally)| found.1.whole == u64::from(outcome.n);
    match ended {
        Some((_, why)) => Some(why.clone()),
        None if outcome.source_damaged || !whole(&outcome.mine) || !whole(&outcome.theirs) => {
            Some("bytes of a round trip changed on their way".into())
        }
        None => None,
    }
}
