//! One round: its operations, one after the other, and what memory must hold at their ends.

mod recovery;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::gpu::Gpu;
use bellpush::transport::Path;
use bellpush::wire::cqe::Syndrome;

use super::Watch;
use super::bed::{Bed, Refused};
use super::calls::{Ended, Trouble};
use super::config::{Config, GUARD, WORDS};
use super::immediates::{Immediates, Unexpected};
use super::model::{Model, Place, Who};
use super::ops::{self, Op, What};
use super::rng::{Rng, Use};
use super::tally::Tally;

/// How long anything may take that nothing has ended: far longer than it does on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is not as it should be.
#[derive(Debug)]
pub struct Finding(pub String);

type Found<T = ()> = Result<T, Finding>;

fn finding<T>(what: impl Into<String>) -> Found<T> {
    Err(Finding(what.into()))
}

pub struct Round<'a> {
    config: &'a Config,
    bed: Bed,
    model: Model,
    tally: &'a mut Tally,
    watch: &'a Watch,
    /// The last operation of each end, as far as nobody has waited for it.
    last: HashMap<(usize, usize), Op>,
    /// Immediates that are to come.
    immediates: HashMap<(usize, usize), Immediates>,
    /// Queue pairs whose end was told, and with which syndromes.
    told: u64,
    syndromes: Vec<u8>,
    resets: u64,
    /// Ends of which a call gave up since they were connected, and how often that was told.
    gave_up: HashSet<(usize, usize)>,
    given_up: u64,
    /// A device has ended: nothing goes on.
    over: bool,
}

/// Runs a round; `spoil`: with one byte of the target flipped before the last comparison.
pub fn run(
    gpu: &Arc<Gpu>,
    config: &Config,
    spoil: bool,
    tally: &mut Tally,
    watch: &Watch,
) -> Found {
    watch.at("making NICs and endpoints".into());
    let bed = match Bed::new(gpu, config) {
        Ok(bed) => bed,
        Err(Refused::Cannot(why)) => {
            tally.left_out(&why);
            return Ok(());
        }
        Err(Refused::Failed(why)) => return finding(why),
    };
    let mut rng = Rng::new(config.seed, config.round, Use::Bytes);
    let mut random = || {
        let mut bytes = vec![0; config.memory_bytes()];
        rng.fill(&mut bytes);
        bytes
    };
    let (a, b) = (random(), random());
    bed.write(0, 0, &a).and_then(|()| bed.write(1, 0, &b)).map_err(Finding)?;
    let mut round = Round {
        config,
        bed,
        model: Model::new(a, b),
        tally,
        watch,
        last: HashMap::new(),
        immediates: HashMap::new(),
        told: 0,
        syndromes: Vec::new(),
        resets: 0,
        gave_up: HashSet::new(),
        given_up: 0,
        over: false,
    };
    let done = round.all(spoil);
    if done.is_err() && !round.is_idle() {
        // Kernels go on: nothing of what they reach may be let go before the process ends.
        std::mem::forget(round);
    }
    done
}

impl Round<'_> {
    fn all(&mut self, spoil: bool) -> Found {
        for (number, op) in ops::draw(self.config).into_iter().enumerate() {
            self.watch.at(format!("operation {number}: {op:?}"));
            let done = self.step(&op);
            done.map_err(|Finding(what)| Finding(format!("operation {number}, {op:?}: {what}")))?;
            self.tally.operation(&op);
            if self.over {
                break;
            }
        }
        self.watch.at("the end".into());
        if spoil {
            self.spoil()?;
        }
        if !self.over {
            self.look()?;
        }
        self.close()
    }

    fn is_idle(&self) -> bool {
        let soon = Duration::from_millis(100);
        self.bed.streams.iter().all(|stream| stream.synchronize(soon).is_ok())
    }

    /// The negative control.
    fn spoil(&self) -> Found {
        let at = GUARD + self.config.data_bytes() / 2;
        let byte = self.bed.read(1, at, 1).map_err(Finding)?[0];
        self.bed.write(1, at, &[byte ^ 0x10]).map_err(Finding)
    }

    fn step(&mut self, op: &Op) -> Found {
        let who = op.who;
        match &op.what {
            What::Quiet => {
                self.quiet(who)?;
                self.count_tickets(who)
            }
            What::Look => self.look(),
            What::Await { by_kernel } => self.await_signal(who, *by_kernel),
            &What::Fill { at, bytes, seed } => self.fill(who, at, bytes, seed),
            What::Reset => {
                self.resets += 1;
                self.recover(who.connection, false)
            }
            &What::Refused(wrong) => match self.bed.refused(who, self.config, wrong) {
                Ok(()) => Ok(()),
                Err(trouble) => self.failed(who, trouble),
            },
            _ => self.post(op),
        }
    }

    fn post(&mut self, op: &Op) -> Found {
        let (who, effects) = (op.who, op.effects(self.config));
        // A call that gives up has others behind it that do not: what they fetch, nobody knows.
        let in_order =
            self.config.connections[who.connection].in_order() && !self.config.may_lose_cqes();
        for other in self.model.in_the_way(who, &effects, in_order) {
            self.quiet(other)?;
        }
        let immediate = match &op.what {
            What::Device(device) => device.immediate(),
            _ => None,
        };
        if immediate.is_some() {
            let receives = self.config.connections[who.connection].options.receives as usize;
            if self.immediates(who).is_some_and(|sent| !sent.has_room(receives)) {
                self.quiet(who)?;
            }
        }
        if self.over {
            return Ok(());
        }
        let posted = self.call(op);
        self.model.apply(who, &effects);
        self.last.insert((who.connection, who.side), op.clone());
        if let Some(value) = immediate {
            self.immediates.entry((who.connection, who.side)).or_default().sent(value);
        }
        posted.or_else(|trouble| self.failed(who, trouble))
    }

    /// An endpoint's call that gives up has posted nothing, or data alone that may be put again.
    fn call(&mut self, op: &Op) -> Result<(), Trouble> {
        let (begin, since) = (self.config.part_of(op.who.connection), Instant::now());
        loop {
            match self.bed.post(op, begin) {
                Err(Trouble::Ended { what: Ended::Wait, .. })
                    if !matches!(op.what, What::Device(_))
                        && self.may_go_on(op.who)
                        && since.elapsed() < self.bound(op.who) =>
                {
                    self.tally.waited_again += 1;
                }
                other => return other,
            }
        }
    }

    fn immediates(&self, who: Who) -> Option<&Immediates> {
        self.immediates.get(&(who.connection, who.side))
    }

    /// A call has failed: by a fault, after which both ends begin anew, or by nothing that is known.
    fn failed(&mut self, who: Who, trouble: Trouble) -> Found {
        match trouble {
            Trouble::Wrong(why) => finding(why),
            Trouble::Ended { why, .. } if self.is_tcp(who) => {
                finding(format!("{why}, and no fault ends a TCP connection"))
            }
            Trouble::Ended { why, .. } if !self.config.may_fail() => {
                finding(format!("{why}, and no fault of this round does that"))
            }
            Trouble::Ended { why, .. } if self.bed.struck() == 0 => {
                finding(format!("{why}, before any fault has struck"))
            }
            Trouble::Ended { syndrome, what, .. } => {
                self.told += 1;
                self.note(who, syndrome, what);
                self.recover(who.connection, true)
            }
        }
    }

    fn note(&mut self, who: Who, syndrome: Option<u8>, what: Ended) {
        self.syndromes.extend(syndrome);
        if what == Ended::Call {
            self.gave_up.insert((who.connection, who.side));
            self.given_up += 1;
        }
    }

    /// Waits for all of one end.
    fn quiet(&mut self, who: Who) -> Found {
        self.take_immediates(who, self.patience())?;
        if !self.over && self.config.lands_late() {
            self.flush(who)?;
        }
        // Either may have been the first that was told of the device's end.
        if self.over {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            match self.bed.quiet(who) {
                Ok(()) => break,
                // A wait may end where the machine is busy; what was called goes on.
                Err(Trouble::Ended { what: Ended::Wait, .. })
                    if since.elapsed() < self.bound(who) && self.may_go_on(who) =>
                {
                    self.tally.waited_again += 1;
                }
                Err(trouble) => return self.failed(who, trouble),
            }
        }
        self.model.settle(who);
        self.last.remove(&(who.connection, who.side));
        self.take_immediates(who, PATIENCE)
    }

    /// How long to wait for what does not come where a queue pair has ended: a quiet then tells why.
    fn patience(&self) -> Duration {
        if self.config.may_fail() { PATIENCE / 30 } else { PATIENCE }
    }

    /// Whether a wait that gave up may yet end well. One of tcp may: its stream may have waited behind kernels of a
    /// connection that has ended.
    fn may_go_on(&self, who: Who) -> bool {
        !self.config.may_fail() || self.bed.struck() == 0 || self.is_tcp(who)
    }

    fn is_tcp(&self, who: Who) -> bool {
        self.config.connections[who.connection].path == Path::TCP
    }

    /// For how long calls that give up are made again.
    fn bound(&self, who: Who) -> Duration {
        if self.is_tcp(who) { self.longest(who.connection) } else { PATIENCE }
    }

    /// How long a stream's work may take, some of which waits in vain.
    fn longest(&self, connection: usize) -> Duration {
        self.config.connections[connection].options.timeout * 8 + PATIENCE
    }

    /// An atomic that brings about what was put before it, where an acknowledgement does not tell of that.
    fn flush(&mut self, who: Who) -> Found {
        let connection = &self.config.connections[who.connection];
        if connection.path == Path::TCP || !self.model.is_pending(who) {
            return Ok(());
        }
        let word = self.config.data_bytes() + WORDS * 8;
        let old = word + 8;
        let what = if connection.shared {
            What::Device(ops::shared_add(word))
        } else {
            What::FetchAdd { word, add: 1, old }
        };
        let op = Op { who, what };
        let effects = op.effects(self.config);
        let posted = self.call(&op);
        self.model.apply(who, &effects);
        posted.or_else(|trouble| self.failed(who, trouble))
    }

    /// All that was posted is complete where nothing is pending. A fault may end the queue pair behind all that quiet
    /// waits for, and before the NOP that quiet has posted for that: its CQE is an error then.
    fn count_tickets(&mut self, who: Who) -> Found {
        if self.over || !self.config.connections[who.connection].has_extra() {
            return Ok(());
        }
        let since = Instant::now();
        loop {
            let [posted, complete] = match self.bed.tickets(who) {
                Ok(tickets) => tickets,
                Err(trouble) => return self.failed(who, trouble),
            };
            let may_fail = self.config.may_fail();
            if posted == complete || may_fail && self.bed.has_ended(who) {
                return Ok(());
            }
            if !may_fail || since.elapsed() > self.patience() {
                let what = format!("behind a quiet {complete} of {posted} tickets are complete");
                return finding(what);
            }
        }
    }

    /// Waits for all, and compares both memories.
    fn look(&mut self) -> Found {
        for connection in 0..self.config.connections.len() {
            for side in 0..2 {
                self.quiet(Who { connection, side })?;
                if self.over {
                    return Ok(());
                }
            }
        }
        for memory in 0..2 {
            self.compare(memory, 0, self.config.memory_bytes())?;
        }
        for connection in 0..self.config.connections.len() {
            for side in 0..2 {
                self.no_immediate(Who { connection, side })?;
            }
        }
        Ok(())
    }

    fn compare(&mut self, memory: usize, at: usize, bytes: usize) -> Found {
        let difference = self.difference(memory, at, bytes)?;
        difference.map_or(Ok(()), |told| self.mismatch(told))
    }

    fn difference(&mut self, memory: usize, at: usize, bytes: usize) -> Found<Option<String>> {
        let seen = self.bed.read(memory, at, bytes).map_err(Finding)?;
        self.tally.compared += bytes as u64;
        Ok(self.model.compare(memory, at, &seen).map(|difference| {
            let address = self.bed.memory[memory].addr() + difference.at as u64;
            format!("{difference}, from address {address:#x} on")
        }))
    }

    fn mismatch(&mut self, what: String) -> Found {
        self.tally.mismatches += 1;
        finding(what)
    }

    /// The peer's memory, where a word or an immediate has told of all that was posted before it: not of a call that
    /// gave up because CQEs were lost, which a quiet then says.
    fn compare_peers_part(&mut self, who: Who) -> Found {
        let (at, bytes) = (self.config.part_of(who.connection), self.config.part);
        let Some(difference) = self.difference(1 - who.side, at, bytes)? else { return Ok(()) };
        let given_up = self.given_up;
        if self.config.may_lose_cqes() && self.bed.struck() > 0 {
            self.quiet(who)?;
        }
        if self.given_up > given_up { Ok(()) } else { self.mismatch(difference) }
    }

    /// Waits for the word that the last operation changed, and compares what was put before it.
    fn await_signal(&mut self, who: Who, by_kernel: bool) -> Found {
        let key = (who.connection, who.side);
        let Some(at) = self.last.get(&key).and_then(Op::tells_by) else { return self.quiet(who) };
        let connection = &self.config.connections[who.connection];
        // A word that is set is a WRITE, which may land before others where only atomics bring them about.
        let is_set = self.last.get(&key).is_some_and(Op::sets);
        if !connection.in_order() || self.config.lands_late() && is_set {
            return self.quiet(who);
        }
        if self.model.is_peer_writing(who) {
            self.quiet(Who { side: 1 - who.side, ..who })?;
            if self.over || !self.last.contains_key(&key) {
                return Ok(());
            }
        }
        let at = self.config.part_of(who.connection) + at;
        let place = Place { memory: 1 - who.side, at };
        let value = self.model.word(place);
        // A kernel that waits in vain takes all of the endpoint's time, and nothing fails at its end.
        let seen = if by_kernel && connection.kernel().is_some() && !self.config.may_fail() {
            match self.bed.watch(who, at, value) {
                Ok(()) => true,
                Err(trouble) => return self.failed(who, trouble),
            }
        } else {
            self.poll_word(place, value)?
        };
        if !seen {
            self.quiet(who)?; // which tells why
            if self.config.may_fail() {
                return Ok(());
            }
        }
        self.compare_peers_part(who)
    }

    fn poll_word(&mut self, place: Place, value: u64) -> Found<bool> {
        let patience = self.patience();
        let since = Instant::now();
        loop {
            let seen = self.bed.read(place.memory, place.at, 8).map_err(Finding)?;
            if seen == value.to_ne_bytes() {
                return Ok(true);
            }
            if since.elapsed() > patience {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }

    /// Takes the immediates that are to come, in their order, and compares what came before the last one.
    /// Some may not have come when the patience ends.
    fn take_immediates(&mut self, who: Who, patience: Duration) -> Found {
        let key = (who.connection, who.side);
        let receiver = Who { side: 1 - who.side, ..who };
        let (since, mut has_last) = (Instant::now(), false);
        while let Some(value) = self.immediates(who).and_then(Immediates::next) {
            let polled = self.bed.end(receiver).poll_immediate();
            // Behind the poll: a CQE that was dropped before one that has come is counted.
            let lost = self.bed.lost_receives(receiver);
            let sent = self.immediates.entry(key).or_default();
            match polled {
                Ok(Some(seen)) => match sent.came(seen, lost) {
                    Ok(is_last) => {
                        has_last = is_last;
                        self.tally.immediates += 1;
                    }
                    Err(Unexpected(_)) => {
                        return finding(format!("immediate {seen:#x} has come, not {value:#x}"));
                    }
                },
                Ok(None) if sent.rest_is_lost(lost) => has_last = false,
                Ok(None) if since.elapsed() < patience => std::thread::yield_now(),
                Ok(None) if patience < PATIENCE => return Ok(()),
                Ok(None) => return finding(format!("immediate {value:#x} has not come")),
                Err(error) => return self.failed(receiver, error.into()),
            }
        }
        let is_last = |op: &Op| matches!(&op.what, What::Device(it) if it.immediate().is_some());
        let tells = self.last.get(&key).is_some_and(is_last);
        if has_last && tells && !self.model.is_peer_writing(who) {
            self.compare_peers_part(who)?;
        }
        Ok(())
    }

    fn no_immediate(&mut self, who: Who) -> Found {
        if self.config.connections[who.connection].options.receives == 0 {
            return Ok(());
        }
        match self.bed.end(who).poll_immediate() {
            Ok(None) => Ok(()),
            Ok(Some(value)) => finding(format!("immediate {value:#x} has come that nobody sent")),
            Err(error) => self.failed(who, error.into()),
        }
    }

    fn fill(&mut self, who: Who, at: usize, bytes: usize, seed: u64) -> Found {
        for side in 0..2 {
            if self.model.is_pending(Who { side, ..who }) {
                self.quiet(Who { side, ..who })?;
            }
        }
        if self.over {
            return Ok(());
        }
        let mut new = vec![0; bytes];
        Rng::new(seed, 0, Use::Bytes).fill(&mut new);
        let place = Place { memory: who.side, at: self.config.part_of(who.connection) + at };
        self.bed.write(place.memory, place.at, &new).map_err(Finding)?;
        self.model.written_by_host(place, &new);
        Ok(())
    }

    /// What faults and adversary have to say.
    fn close(&mut self) -> Found {
        let struck = self.bed.struck();
        self.tally.close(&self.bed, struck);
        let mut found = self.bed.nics.iter().flat_map(|nic| nic.findings());
        if let Some(first) = found.next() {
            return finding(format!("the adversary found {} times: {first}", 1 + found.count()));
        }
        let Some(trouble) = &self.config.trouble else { return Ok(()) };
        if struck > 0 && trouble.kind.must_be_told() && self.told == 0 && self.resets == 0 {
            return finding("a WQE was struck, and no call has failed");
        }
        // The other end may be the first that is told: its peer does not answer any more.
        let known = trouble.syndrome.is_none_or(|wanted| {
            self.syndromes.contains(&wanted)
                || self.syndromes.contains(&(Syndrome::TransportRetryExc as u8))
        });
        if self.told > 0 && !known && self.resets == 0 {
            let seen = &self.syndromes;
            return finding(format!(
                "the struck WQE's syndrome is not among those seen: {seen:x?}"
            ));
        }
        Ok(())
    }
}
