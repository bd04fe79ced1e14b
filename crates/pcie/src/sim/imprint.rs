//! What a program's time depends on, as text: its steps, the channels of its ways in both
//! directions and which of them are the same, the limits of its endpoints, what is refused. A
//! parameter that changes none of them has a derivative of zero, and needs no simulation; nor does
//! a topology that differs from another in nothing of it.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use super::{ChannelSpec, EndpointId, Program, Sim, Step};

/// Channels in the order in which ways name them: their numbers are those of no topology.
type Named = Vec<u32>;

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
        let mut named = Named::new();
        for (from, to, is_read) in ways {
            let most = open.get(&from).copied().filter(|_| is_read).unwrap_or(u32::MAX);
            let ends = [EndpointId(from), EndpointId(to)];
            self.way_imprint(ends, is_read.then_some(most), &mut named, &mut text);
        }
        text
    }

    /// The same of one way: of writes, or of at most so many reads at once.
    fn way_imprint(
        &self,
        [from, to]: [EndpointId; 2],
        reads: Option<u32>,
        named: &mut Named,
        text: &mut String,
    ) {
        let is_read = reads.is_some();
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let allowed = if is_read { self.readable(from, to) } else { self.writable(from, to) };
        let peer = self.is_forwarded(from, to);
        let packets = [from, to].map(|e| self.endpoints[e.0 as usize].packet_bytes);
        let _ = write!(text, "\n{from:?}{to:?}{peer}{allowed}{packets:?}");
        let spec = self.iotlb(from, to).map(|i| (i, self.iotlbs[i].spec));
        let _ = write!(text, "{spec:?}");
        if !is_read {
            let _ = write!(text, "{:?}", self.drain_of(from, to));
        }
        for (a, b) in [(from, to), (to, from)] {
            for (_, channel) in self.hops(node(a), node(b)).unwrap_or_default() {
                self.channel_imprint(channel, peer, named, text);
            }
        }
        if let Some(most) = reads {
            let spec = |e: EndpointId| self.endpoints[e.0 as usize].spec;
            let tags = spec(from).tags.min(most);
            let _ = write!(text, "{tags}{:?}{:?}", spec(to).completer, self.order(from));
        }
    }

    /// The same of one channel, and of what its DLLPs delay on the other direction of its link.
    fn channel_imprint(&self, channel: u32, peer: bool, named: &mut Named, text: &mut String) {
        let mut place = |channel: u32| {
            named.iter().position(|&c| c == channel).unwrap_or_else(|| {
                named.push(channel);
                named.len() - 1
            })
        };
        let mut spec = *self.fabric.spec_of(channel);
        if !peer {
            // What a root complex cuts and caps is peer traffic.
            let none = [0.0; 3];
            spec = ChannelSpec { cut_bytes: 0, peer_gb_per_s: none, far_gb_per_s: none, ..spec };
        }
        let _ = write!(text, " {}{spec:?}", place(channel));
        if let Some(back) = self.fabric.reverse_of(channel).filter(|_| spec.dllp_bytes > 0) {
            let _ = write!(text, "{}{}", place(back), self.fabric.spec_of(back).gb_per_s);
        }
    }
}
