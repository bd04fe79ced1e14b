//! The side that listens: it does what the other side says, and has a verdict of its own.

use super::Measured;
use super::pair::{Outcome, Pair, Round, Ways};
use super::peer::{Peer, out_of_step};
use super::said::{self, Said, Way, odd};
use crate::bench::measure::Sent;
use crate::bench::payload::{Payload, Tags, Tally};
use crate::bench::runs;
use crate::bench::test_bed::{Devices, ROUND_MESSAGES};
use crate::cli::CliError;
use crate::plan::BenchPlan;

pub fn measure(peer: &mut Peer, own: &BenchPlan, devices: Devices) -> Result<Measured, CliError> {
    let mine = Way::of(own);
    let (theirs, wanted) = match peer.swap(&Said::Here(mine.clone()))? {
        Said::Hello(way, wanted) => (way, wanted),
        other => return Err(out_of_step(&other)),
    };
    let plan = wanted.plan(own)?;
    let (bed, here, theirs) = super::open(peer, &plan, devices, (&mine, &theirs))?;
    let sends = Payload::Tags(Tags::of_the_other_side(plan.seed));
    let expects = Payload::Tags(Tags::new(plan.seed));
    let meta = super::meta(&plan, &bed, &sends, &theirs)?;
    let mut rows = Vec::new();
    let mut measured = || -> Result<(), CliError> {
        let mut said = peer.swap(&Said::Ready)?;
        while let Said::Row { path, size } = &said {
            let (path, size) = said::path_and_size(path, *size, plan.largest_bytes())?;
            let ask = super::ask(&plan, &bed, path, here);
            let sides = (&sends, (!wanted.file).then_some(&expects));
            // Why a path is left out, the other side says.
            let Ok(pair) = Pair::new(&bed, peer, (path, size), &ask, sides)? else {
                said = peer.swap(&Said::Ready)?;
                continue;
            };
            let (answer, all_whole) = rounds(pair, wanted.both_ways)?;
            let Said::Done(mut row) = answer else { return Err(out_of_step(&answer)) };
            if (row.data, row.kick, row.size_bytes) != (path.data(), path.kick(), size as u64) {
                return Err(odd("another row than was measured"));
            }
            // Whatever the other side says.
            row.verified &= all_whole;
            runs::insert(&mut rows, *row);
            said = peer.swap(&Said::Ready)?;
        }
        if let Said::End = said { Ok(()) } else { Err(out_of_step(&said)) }
    };
    let ended = measured();
    Ok(Measured { meta, rows, ended })
}

/// Does what the other side says of a row, up to the first thing that is neither a round nor turns; and whether all
/// was as it should be.
fn rounds(mut pair: Pair<'_>, both_ways: bool) -> Result<(Said, bool), CliError> {
    let ways = Ways { sends: both_ways, receives: true };
    let (mut all_whole, mut any) = (true, false);
    loop {
        let (outcome, sends) = match pair.peer.swap(&Said::Ready)? {
            Said::Round { n, first, phase } => {
                if !(1..=pair.most()).contains(&(n as usize)) || first > u64::MAX >> 32 {
                    return Err(odd(&format!("{n} messages at once, from number {first} on")));
                }
                (pair.round(Round { n, first, phase }, ways, &mut Vec::new())?, both_ways)
            }
            Said::Turns { n } => {
                if !(1..=ROUND_MESSAGES).contains(&(n as usize)) {
                    return Err(odd(&format!("{n} turns")));
                }
                (pair.turns(n, false)?.1, true)
            }
            other => return Ok((other, any && all_whole)),
        };
        any = true;
        all_whole &= is_whole(&outcome, sends, pair.knows());
    }
}

fn is_whole(outcome: &Outcome, sends: bool, knows: bool) -> bool {
    let sent = |way: &(Sent, Tally)| matches!(way.0, Ok((posted, _)) if posted == outcome.n);
    let whole = |way: &(Sent, Tally)| sent(way) && way.1.whole == u64::from(outcome.n);
    let came = if knows { whole(&outcome.theirs) } else { sent(&outcome.theirs) };
    came && !outcome.source_damaged && (!sends || whole(&outcome.mine))
}
