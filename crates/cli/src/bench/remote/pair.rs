//! A row between two processes: endpoints of one path both ways, rounds of messages, and turns.

use std::time::Duration;

use bellpush::transport::{Address, Endpoint, Error, Memory, MemoryPlace, Options, Path};
use sha2::{Digest, Sha256};

use super::line::{Line, out_of_step};
use super::said::Said;
use crate::bench::measure::{Ask, Sent, poison};
use crate::bench::payload::{Payload, Tally};
use crate::bench::sender::{Phase, Sender, stride};
use crate::bench::test_bed::{ROUND_MESSAGES, TestBed};
use crate::bench::transport_error;
use crate::cli::CliError;

/// Endpoints of one path, connected with the other side's: some send from the source, some receive into the
/// destination.
pub struct Pair<'a> {
    pub bed: &'a TestBed,
    pub line: &'a mut Line,
    pub sender: Sender<'a>,
    _receivers: Vec<Endpoint>,
    size: usize,
    /// What this side sends, and what it expects; `None` where it cannot know.
    mine: &'a Payload,
    theirs: Option<&'a Payload>,
}

/// A round of this many messages, of which the first has this number.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    pub n: u32,
    pub first: u64,
    pub phase: Option<Phase>,
}

/// What came of a round.
pub struct Outcome {
    /// What this side sent, and what the other side found of it.
    pub mine: (Sent, Tally),
    /// What the other side sent, and what this side found of it.
    pub theirs: (Sent, Tally),
    /// Whether source bytes changed after they were sent.
    pub source_damaged: bool,
}

/// Directions in which a side's messages go.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    pub sends: bool,
    pub receives: bool,
}

impl<'a> Pair<'a> {
    /// Makes endpoints and connects them. The inner error says which side cannot have the path, and why: both go on to
    /// the next.
    pub fn new(
        bed: &'a TestBed,
        line: &'a mut Line,
        (path, size): (Path, usize),
        ask: &Ask,
        (mine, theirs): (&'a Payload, Option<&'a Payload>),
    ) -> Result<Result<Self, String>, CliError> {
        let made = Self::endpoints(bed, path, ask);
        let said = match &made {
            Ok((senders, receivers)) => {
                let of = |all: &[Endpoint]| all.iter().map(Endpoint::address).collect();
                Said::Ends { senders: of(senders), receivers: of(receivers) }
            }
            Err(why) => Said::Unable(why.to_string()),
        };
        let heard = line.swap(&said)?;
        let (mut senders, mut receivers) = match made {
            Ok(made) => made,
            Err(why) => return Ok(Err(why.to_string())),
        };
        let connected = match heard {
            Said::Ends { senders: to_receivers, receivers: to_senders } => {
                connect(&mut senders, &to_senders)
                    .and_then(|()| connect(&mut receivers, &to_receivers))
            }
            Said::Unable(why) => return Ok(Err(format!("the other side: {why}"))),
            other => return Err(out_of_step(&other)),
        };
        let sender = connected
            .and_then(|()| Sender::new(bed, path, ask, senders).map_err(|e| e.to_string()));
        let said = sender.as_ref().map_or_else(|why| Said::Unable(why.clone()), |_| Said::Ready);
        match (line.swap(&said)?, sender) {
            (_, Err(why)) => Ok(Err(why)),
            (Said::Unable(why), _) => Ok(Err(format!("the other side: {why}"))),
            (Said::Ready, Ok(sender)) => {
                Ok(Ok(Self { bed, line, sender, _receivers: receivers, size, mine, theirs }))
            }
            (other, _) => Err(out_of_step(&other)),
        }
    }

    fn endpoints(
        bed: &TestBed,
        path: Path,
        ask: &Ask,
    ) -> Result<(Vec<Endpoint>, Vec<Endpoint>), Error> {
        let all = |local: &Memory, options: &Options| {
            let one = |_| Endpoint::new(&bed.gpu, &bed.nic, path, local.clone(), options.clone());
            (0..Sender::endpoints(path, ask)).map(one).collect::<Result<Vec<_>, _>>()
        };
        // Nothing goes through the windows of those that receive, and a card's memory may have room for one only.
        let spared = !bed.nic.is_software() && path.has_window();
        let host = || ask.options.clone().window_place(MemoryPlace::Host);
        let receiving = if spared { host() } else { ask.options.clone() };
        Ok((all(&bed.src, &ask.options)?, all(&bed.dst, &receiving)?))
    }

    /// Largest number of messages of a round.
    pub fn most(&self) -> usize {
        most(self.bed, self.size)
    }

    /// Sends and receives a round, in step with the other side. Times of this side's messages go to `latencies`.
    pub fn round(
        &mut self,
        Round { n, first, phase }: Round,
        ways: Ways,
        latencies: &mut Vec<u64>,
    ) -> Result<Outcome, CliError> {
        let filled = self.prepare(n, first, ways)?;
        let sent = match ways.sends {
            true => self.sender.send(self.size, n, phase, latencies),
            false => Ok((0, Duration::ZERO)),
        };
        let heard = self.tell(&sent)?;
        let (tally, source_damaged) = self.look(&filled, first, (posted(&sent), posted(&heard)))?;
        Ok(Outcome { mine: (sent, tally.0), theirs: (heard, tally.1), source_damaged })
    }

    /// Takes turns with the other side. Round trips in nanoseconds, unless a side failed, or had other bytes than it
    /// should at the end.
    pub fn turns(&mut self, n: u32, begins: bool) -> Result<Result<Vec<u64>, String>, CliError> {
        let zero = self.bed.dst.write(self.bed.word, &[0; 8]);
        zero.map_err(|e| transport_error(&e.into()))?;
        let filled = self.prepare(1, 0, Ways { sends: true, receives: true })?;
        let times = self.sender.take_turns(self.size, n, begins);
        let sent = match &times {
            Ok(_) => Ok((1, Duration::ZERO)),
            Err((_, why)) => Err((0, why.clone())),
        };
        let heard = self.tell(&sent)?;
        let ((mine, theirs), damaged) = self.look(&filled, 0, (1, 1))?;
        Ok(match (times, heard) {
            (Err((_, why)), _) => Err(why),
            (_, Err((_, why))) => Err(format!("the other side: {why}")),
            _ if damaged || mine.whole != 1 || theirs.whole != theirs.all() => {
                Err("bytes changed on their way".into())
            }
            (Ok(times), Ok(_)) => Ok(times),
        })
    }

    /// Fills the source with what is sent, and poisons the destination of what is received.
    fn prepare(&mut self, n: u32, first: u64, ways: Ways) -> Result<Vec<u8>, CliError> {
        let failed = |e: Error| transport_error(&e);
        let filled = match ways.sends {
            true => self.sender.fill(self.size, n, first, self.mine).map_err(failed)?,
            false => Vec::new(),
        };
        if ways.receives {
            poison(self.bed, stride(self.size) * n as usize).map_err(failed)?;
        }
        match self.line.swap(&Said::Ready)? {
            Said::Ready => Ok(filled),
            other => Err(out_of_step(&other)),
        }
    }

    /// Tells what this side sent, and hears what the other side did.
    fn tell(&mut self, sent: &Sent) -> Result<Sent, CliError> {
        let (posted, took, failure) = match sent {
            Ok((posted, took)) => (*posted, *took, None),
            Err((posted, why)) => (*posted, Duration::ZERO, Some(why.clone())),
        };
        let ns = took.as_nanos().min(u128::from(u64::MAX)) as u64;
        match self.line.swap(&Said::Sent { posted, ns, failure })? {
            Said::Sent { posted, ns, failure: None } => Ok(Ok((posted, Duration::from_nanos(ns)))),
            Said::Sent { posted, failure: Some(why), .. } => Ok(Err((posted, why))),
            other => Err(out_of_step(&other)),
        }
    }

    /// Looks at what came, and hears what the other side found of what this side sent: both tallies, and whether the
    /// source has changed.
    fn look(
        &mut self,
        filled: &[u8],
        first: u64,
        (sent, heard): (u32, u32),
    ) -> Result<((Tally, Tally), bool), CliError> {
        let failed = |e: bellpush::mem::MemError| transport_error(&e.into());
        let stride = stride(self.size);
        // What the other side says that it sent is no more than fits.
        let heard = (heard as usize).min(self.most());
        let mut got = vec![0; stride * heard];
        self.bed.dst.read(0, &mut got).map_err(failed)?;
        let mut found = Tally::default();
        if let Some(expected) = self.theirs {
            for (i, message) in got.chunks_exact(stride).enumerate() {
                let number = first + i as u64;
                let all = first + heard as u64;
                found.count(expected.look(number, all, &message[..self.size]));
            }
        }
        let said = Said::Received { tally: found, sha256: self.digest(&got, heard) };
        let heard = self.line.swap(&said)?;
        let Said::Received { tally, sha256 } = heard else { return Err(out_of_step(&heard)) };
        let same = sha256 == self.digest(filled, sent as usize);
        let mut source = vec![0; filled.len()];
        self.bed.src.read(0, &mut source).map_err(failed)?;
        Ok(((judged(tally, same, sent.into()), found), source != filled))
    }

    /// SHA-256 of the first messages.
    fn digest(&self, messages: &[u8], count: usize) -> String {
        let mut digest = Sha256::new();
        for message in messages.chunks_exact(stride(self.size)).take(count) {
            digest.update(&message[..self.size]);
        }
        digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// What is to be thought of messages of which the other side found this, and whose digest it had or not. Of a file's
/// it finds nothing: it has the digest alone.
fn judged(found: Tally, same_digest: bool, sent: u64) -> Tally {
    let all_whole = found.all() == 0 || found.whole == sent;
    match (same_digest, all_whole) {
        (true, true) => Tally { whole: sent, ..Tally::default() },
        (false, true) => Tally { corrupted: sent, ..Tally::default() },
        (_, false) => found,
    }
}

pub fn posted(sent: &Sent) -> u32 {
    match sent {
        Ok((posted, _)) | Err((posted, _)) => *posted,
    }
}

fn connect(own: &mut [Endpoint], to: &[Address]) -> Result<(), String> {
    if own.len() != to.len() {
        return Err(format!("{} endpoints here, {} there", own.len(), to.len()));
    }
    own.iter_mut().zip(to).try_for_each(|(end, to)| end.connect(*to)).map_err(|e| e.to_string())
}

/// Largest number of messages of a round.
fn most(bed: &TestBed, size: usize) -> usize {
    (bed.word / stride(size)).clamp(1, ROUND_MESSAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_when_the_other_side_says_so_and_has_their_digest() {
        let tally = |whole, corrupted| Tally { whole, corrupted, ..Tally::default() };
        assert_eq!(judged(tally(3, 0), true, 3), tally(3, 0));
        assert_eq!(judged(tally(0, 0), true, 3), tally(3, 0), "a file");
        for (found, same) in [(tally(3, 0), false), (tally(0, 0), false), (tally(2, 1), true)] {
            assert_ne!(judged(found, same, 3).whole, 3, "{found:?}");
        }
    }
}
