//! What a program's time depends on, as text: its steps, the channels of its ways in both
//! directions, the limits of its endpoints, what is refused. A parameter that changes none of them
//! has a derivative of zero, and needs no simulation.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{EndpointId, Program, Sim, Step};

impl Sim {
    /// Texts are equal where results are.
    pub(super) fn imprint(&self, program: &Program) -> String {
        let mut text = String::new();
        let mut ways: BTreeSet<(u32, u32, bool)> = BTreeSet::new();
        for task in &program.tasks {
            let _ = write!(text, "{:?}{:?}{}{:?}", task.step, task.then, task.waits_for, task.mark);
            let _ = write!(text, "{:?}{};", task.segment, task.is_first);
            match task.step {
                Step::Write { from, to, .. } => _ = ways.insert((from.0, to.0, false)),
                Step::Read { by, at, .. } => _ = ways.insert((by.0, at.0, true)),
                _ => {}
            }
        }
        for (from, to, is_read) in ways {
            self.way_imprint(EndpointId(from), EndpointId(to), is_read, &mut text);
        }
        text
    }

    fn way_imprint(&self, from: EndpointId, to: EndpointId, is_read: bool, text: &mut String) {
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
        if is_read {
            let spec = |e: EndpointId| self.endpoints[e.0 as usize].spec;
            let _ =
                write!(text, "{}{:?}{:?}", spec(from).tags, spec(to).completer, self.order(from));
        }
    }
}
