//! What a program's time depends on, as text: its steps, the channels of its ways in both
//! directions, the limits of its endpoints, what is refused. A parameter that changes none of them
//! has a derivative of zero, and needs no simulation.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use super::{EndpointId, Program, Sim, Step};

impl Sim {
    /// Texts are equal where results are.
    pub(super) fn imprint(&self, program: &Program) -> String {
        self.imprint_of(program, None)
    }

    /// The same of so many runs at once, without what cannot limit these: more tags than reads that
    /// are ever open, requests larger than what is read.
    pub(super) fn imprint_at_once(&self, program: &Program, at_once: u32) -> String {
        self.imprint_of(program, Some(at_once))
    }

    fn imprint_of(&self, program: &Program, at_once: Option<u32>) -> String {
        let mut text = String::new();
        let mut ways: BTreeSet<(u32, u32, bool)> = BTreeSet::new();
        let mut open: HashMap<u32, u32> = HashMap::new();
        for task in &program.tasks {
            let mut step = task.step;
            if let (Step::Read { by, bytes, addr, request_bytes, .. }, Some(runs)) =
                (&mut step, at_once)
            {
                let requests = bytes.div_ceil(*request_bytes) + 1;
                let all = open.entry(by.0).or_default();
                *all = all.saturating_add(requests.saturating_mul(runs));
                // One request, whatever its largest size.
                if *addr % u64::from(*request_bytes) == 0 && bytes <= request_bytes {
                    *request_bytes = *bytes;
                }
            }
            let _ = write!(text, "{step:?}{:?}{}{:?}", task.then, task.waits_for, task.mark);
            let _ = write!(text, "{:?}{};", task.segment, task.is_first);
            match task.step {
                Step::Write { from, to, .. } => _ = ways.insert((from.0, to.0, false)),
                Step::Read { by, at, .. } => _ = ways.insert((by.0, at.0, true)),
                _ => {}
            }
        }
        for (from, to, is_read) in ways {
            let most = open.get(&from).copied().filter(|_| is_read).unwrap_or(u32::MAX);
            self.way_imprint(EndpointId(from), EndpointId(to), is_read.then_some(most), &mut text);
        }
        text
    }

    /// The same of one way: of writes, or of at most so many reads at once.
    fn way_imprint(&self, from: EndpointId, to: EndpointId, reads: Option<u32>, text: &mut String) {
        let is_read = reads.is_some();
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let allowed = if is_read { self.readable(from, to) } else { self.writable(from, to) };
        let _ = write!(text, "\n{from:?}{to:?}{}{allowed}", self.is_peer(from, to));
        let spec = self.iotlb(from, to).map(|i| self.iotlbs[i].spec);
        let _ = write!(text, "{spec:?}");
        if !is_read {
            let _ = write!(text, "{:?}", self.drain_of(from, to));
        }
        for (a, b) in [(from, to), (to, from)] {
            for (_, channel) in self.hops(node(a), node(b)).unwrap_or_default() {
                let _ = write!(text, " {:?}", self.fabric.specs_of(channel));
            }
        }
        if let Some(most) = reads {
            let spec = |e: EndpointId| self.endpoints[e.0 as usize].spec;
            let tags = spec(from).tags.min(most);
            let _ = write!(text, "{tags}{:?}{:?}", spec(to).completer, self.order(from));
        }
    }
}
