//! Arrows: from a kernel's put to the doorbell that tells a NIC of it, and from a message's first packet to where it is
//! placed. Both ends are slices that say the same in an argument; time alone makes no arrow.

use std::collections::BTreeMap;

use bellpush::abi::bench::mark::TICKET_BITS;

use super::chrome::Event;
use super::timeline::DEVICES;

/// Category of the slices of puts, and of those of WQEs, which begin at their doorbell.
pub(super) const PUT: &str = "kernel";
pub(super) const WQE: &str = "wqe";
/// Category of the slices of messages that are sent, and of those that are placed.
pub(super) const FROM: &str = "wire";
pub(super) const TO: &str = "in";
/// The argument.
pub(super) const FLOW: &str = "flow";

/// What a message has in common at both ends: the receiver's queue pair, and its first PSN.
pub(super) fn name(qpn: u32, psn: u64) -> String {
    format!("{qpn:#x}/{psn}")
}

/// What a put and its last WQE have in common: the queue pair, and the ticket behind it, as far as marks say it.
pub(super) fn posted(qpn: u32, ticket: u64) -> String {
    format!("{qpn:#x}@{}", ticket & ((1 << TICKET_BITS) - 1))
}

/// An end of an arrow, or of several.
struct End {
    begins: bool,
    at: usize,
    ts: f64,
}

/// Draws an arrow where both ends are there. PSNs and tickets come again: the end that follows a beginning is its.
pub(super) fn link(events: &mut Vec<Event>) {
    // Queue pairs that kernels post on are their own process's, whose devices have its number.
    let mut ends: BTreeMap<(&str, u32, String), Vec<End>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        let (of, process, begins) = match &*event.cat {
            PUT => ("posted", event.pid % DEVICES, true),
            WQE => ("posted", event.pid % DEVICES, false),
            FROM => ("message", 0, true),
            TO => ("message", 0, false),
            _ => continue,
        };
        let Some(flow) = event.args.get(FLOW).and_then(|flow| flow.as_str()) else { continue };
        let end = End { begins, at, ts: event.ts };
        ends.entry((of, process, flow.into())).or_default().push(end);
    }
    let mut arrows: Vec<Event> = Vec::new();
    for ((of, ..), mut ends) in ends {
        ends.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.begins.cmp(&a.begins)));
        // A message that several blocks put begins on the track of each.
        let mut begun: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        for end in ends {
            if end.begins {
                begun.insert((events[end.at].pid, events[end.at].tid), end.at);
                continue;
            }
            for (_, from) in std::mem::take(&mut begun) {
                // Perfetto draws arrows whose identifier is a number, in hexadecimal where it is a string, and no
                // others.
                let number = arrows.len() / 2 + 1;
                for (ph, at) in [('s', from), ('f', end.at)] {
                    let Event { pid, tid, ts, .. } = events[at];
                    let arrow = Event::new(ph, of, (pid, tid), 0).of("flow");
                    let (id, bp) = (Some(format!("{number:#x}")), (ph == 'f').then(|| "e".into()));
                    arrows.push(Event { ts, id, bp, ..arrow });
                }
            }
        }
    }
    events.append(&mut arrows);
}
