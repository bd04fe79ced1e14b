//! A row between two processes: endpoints of one path both ways, rounds of messages, and turns.

use std::time::Duration;

use bellpush::mem::MemError;
use bellpush::transport::{Address, Endpoint, Error, Memory, MemoryPlace, Options, Path};
use sha2::{Digest, Sha256};

use super::peer::{Peer, out_of_step};
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
    bed: &'a TestBed,
    pub peer: &'a mut Peer,
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
    /// Messages that each direction was to have.
    pub n: u32,
    /// What this side sent, and what the other side found of it.
    pub mine: (Sent, Tally),
    /// What the other side sent, and what this side found of it: nothing, where it cannot know.
    pub theirs: (Sent, Tally),
    /// Whether bytes of a source changed after they were sent, at either side.
    pub source_damaged: bool,
}

/// Directions in which a side's messages go.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    pub sends: bool,
    pub receives: bool,
}

const BOTH: Ways = Ways { sends: true, receives: true };

impl<'a> Pair<'a> {
    /// Makes endpoints and connects them. The inner error says which side has no such path, and why: both go on to the
    /// next.
    pub fn new(
        bed: &'a TestBed,
        peer: &'a mut Peer,
        (path, size): (Path, usize),
        ask: &Ask,
        (mine, theirs): (&'a Payload, Option<&'a Payload>),
    ) -> Result<Result<Self, String>, CliError> {
        let made = match endpoints(bed, path, ask) {
            Err(
                why @ (Error::Unsupported { .. }
                | Error::Nic(bellpush::nic::NicError::Unsupported { .. })),
            ) => Err(why.to_string()),
            made => Ok(made.map_err(|e| transport_error(&e))?),
        };
        let said = match &made {
            Ok((sender, receivers)) => Said::Ends {
                senders: sender.endpoints.iter().map(Endpoint::address).collect(),
                receivers: receivers.iter().map(Endpoint::address).collect(),
            },
            Err(why) => Said::Unable(why.clone()),
        };
        let heard = peer.swap(&said)?;
        let (mut sender, mut receivers) = match made {
            Ok(made) => made,
            Err(why) => return Ok(Err(why)),
        };
        match heard {
            Said::Ends { senders: to_receivers, receivers: to_senders } => {
                connect(&mut sender.endpoints, &to_senders)?;
                connect(&mut receivers, &to_receivers)?;
            }
            Said::Unable(why) => return Ok(Err(format!("the other side: {why}"))),
            other => return Err(out_of_step(&other)),
        }
        peer.ready()?;
        Ok(Ok(Self { bed, peer, sender, _receivers: receivers, size, mine, theirs }))
    }

    /// Whether this side knows what comes.
    pub fn knows(&self) -> bool {
        self.theirs.is_some()
    }

    /// Largest number of messages of a round.
    pub fn most(&self) -> usize {
        (self.bed.word / stride(self.size)).clamp(1, ROUND_MESSAGES)
    }

    /// Sends and receives a round, in step with the other side. Times of this side's messages go to `latencies`.
    pub fn round(
        &mut self,
        round: Round,
        ways: Ways,
        latencies: &mut Vec<u64>,
    ) -> Result<Outcome, CliError> {
        let filled = self.prepare(round, ways)?;
        let sent = match ways.sends {
            true => self.sender.send(self.size, round.n, round.phase, latencies),
            false => Ok((0, Duration::ZERO)),
        };
        self.finish(round, &filled, sent)
    }

    /// Takes `n` turns with the other side: round trips in nanoseconds, and what came of as many messages as there are
    /// places.
    pub fn turns(&mut self, n: u32, begins: bool) -> Result<(Vec<u64>, Outcome), CliError> {
        let round = Round { n: n.min(self.most() as u32), first: 0, phase: None };
        let zero = self.bed.dst.write(self.bed.word, &[0; 8]);
        zero.map_err(|e| transport_error(&e.into()))?;
        let filled = self.prepare(round, BOTH)?;
        let (times, sent) = match self.sender.take_turns(self.size, n, round.n, begins) {
            Ok(times) => (times, Ok((round.n, Duration::ZERO))),
            Err(why) => (Vec::new(), Err((0, why))),
        };
        Ok((times, self.finish(round, &filled, sent)?))
    }

    /// Fills the source with what is sent, and poisons the destination of what is received.
    fn prepare(&mut self, round: Round, ways: Ways) -> Result<Vec<u8>, CliError> {
        let failed = |e: Error| transport_error(&e);
        let filled = match ways.sends {
            true => self.sender.fill(self.size, round.n, round.first, self.mine).map_err(failed)?,
            false => Vec::new(),
        };
        if ways.receives {
            poison(self.bed, stride(self.size) * round.n as usize).map_err(failed)?;
        }
        self.peer.ready()?;
        Ok(filled)
    }

    /// Tells what was sent and what came, and hears the same of the other side.
    fn finish(&mut self, round: Round, filled: &[u8], sent: Sent) -> Result<Outcome, CliError> {
        let failed = |e: MemError| transport_error(&e.into());
        let heard = self.tell(&sent)?;
        let count = posted(&heard);
        if count > round.n {
            return Err(out_of_step(&Said::Sent { posted: count, ns: 0, failure: None }));
        }
        let mut source = vec![0; filled.len()];
        self.bed.src.read(0, &mut source).map_err(failed)?;
        let mut got = vec![0; stride(self.size) * count as usize];
        self.bed.dst.read(0, &mut got).map_err(failed)?;
        let mut found = Tally::default();
        if let Some(expected) = self.theirs {
            // A foreign tag may belong to a message that a failed call did not count as posted.
            let all = round.first + u64::from(round.n);
            for (number, message) in (round.first..).zip(got.chunks_exact(stride(self.size))) {
                found.count(expected.look(number, all, &message[..self.size]));
            }
        }
        let damaged = source != filled;
        let sha256 = digest(&got, self.size, count);
        let said = Said::Received { tally: found, sha256, source_damaged: damaged };
        let said = self.peer.swap(&said)?;
        let Said::Received { tally, sha256, source_damaged } = said else {
            return Err(out_of_step(&said));
        };
        let own = posted(&sent);
        let same = sha256 == digest(filled, self.size, own);
        Ok(Outcome {
            n: round.n,
            mine: (sent, judged(tally, same, own.into())),
            theirs: (heard, found),
            source_damaged: damaged || source_damaged,
        })
    }

    /// Tells what this side sent, and hears what the other side did.
    fn tell(&mut self, sent: &Sent) -> Result<Sent, CliError> {
        let (posted, took, failure) = match sent {
            Ok((posted, took)) => (*posted, *took, None),
            Err((posted, why)) => (*posted, Duration::ZERO, Some(why.clone())),
        };
        let ns = took.as_nanos().min(u128::from(u64::MAX)) as u64;
        match self.peer.swap(&Said::Sent { posted, ns, failure })? {
            Said::Sent { posted, ns, failure: None } => Ok(Ok((posted, Duration::from_nanos(ns)))),
            Said::Sent { posted, failure: Some(why), .. } => {
                Ok(Err((posted, format!("the other side: {why}"))))
            }
            other => Err(out_of_step(&other)),
        }
    }
}

fn endpoints<'a>(
    bed: &'a TestBed,
    path: Path,
    ask: &Ask,
) -> Result<(Sender<'a>, Vec<Endpoint>), Error> {
    let all = |local: &Memory, options: &Options| {
        let one = |_| Endpoint::new(&bed.gpu, &bed.nic, path, local.clone(), options.clone());
        (0..Sender::endpoints(path, ask)).map(one).collect::<Result<Vec<_>, _>>()
    };
    // Nothing goes through the windows of those that receive, and a card's memory may have room for one only.
    let spared = !bed.nic.is_software() && path.has_window();
    let host = || ask.options.clone().window_place(MemoryPlace::Host);
    let receiving = if spared { host() } else { ask.options.clone() };
    let senders = all(&bed.src, &ask.options)?;
    Ok((Sender::new(bed, path, ask, senders)?, all(&bed.dst, &receiving)?))
}

fn connect(own: &mut [Endpoint], to: &[Address]) -> Result<(), CliError> {
    if own.len() != to.len() {
        let what = format!("{} endpoints here, {} at the other side", own.len(), to.len());
        return Err(CliError::new(what, "use one version at both ends"));
    }
    let connected = own.iter_mut().zip(to).try_for_each(|(end, to)| end.connect(*to));
    connected.map_err(|e| transport_error(&e))
}

/// SHA-256 of the first messages, without what lies between them.
fn digest(messages: &[u8], size: usize, count: u32) -> String {
    let mut digest = Sha256::new();
    for message in messages.chunks_exact(stride(size)).take(count as usize) {
        digest.update(&message[..size]);
    }
    digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// What is to be thought of messages of which the other side found this, and whose digest it had or not. Of a file's
/// it finds nothing: it has the digest alone. Without the digest no round is whole.
fn judged(found: Tally, same_digest: bool, sent: u64) -> Tally {
    let all_whole = found.all() == 0 || found.whole >= sent;
    match (same_digest, all_whole) {
        (true, true) => Tally { whole: sent, ..Tally::default() },
        (false, true) => Tally { corrupted: sent, ..Tally::default() },
        (_, false) => Tally {
            whole: found.whole,
            missing: found.missing.min(sent),
            overwritten: found.overwritten.min(sent),
            corrupted: found.corrupted.min(sent),
        },
    }
}

fn posted(sent: &Sent) -> u32 {
    match sent {
        Ok((posted, _)) | Err((posted, _)) => *posted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_when_the_other_side_says_so_and_has_their_digest() {
        let tally = |whole, corrupted| Tally { whole, corrupted, ..Tally::default() };
        assert_eq!(judged(tally(3, 0), true, 3), tally(3, 0));
        assert_eq!(judged(tally(0, 0), true, 3), tally(3, 0), "a file");
        for found in [tally(3, 0), tally(4, 0), tally(0, 0), tally(u64::MAX, u64::MAX)] {
            assert_eq!(judged(found, false, 3), tally(0, 3), "{found:?}");
        }
        for same in [true, false] {
            let told = Tally { whole: 2, missing: u64::MAX, ..Tally::default() };
            assert_eq!(judged(told, same, 3), Tally { whole: 2, missing: 3, ..told });
        }
    }
}
