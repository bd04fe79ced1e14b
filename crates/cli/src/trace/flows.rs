//! Arrows from a message's first packet to where it is placed, between two queue pairs of one trace.

use std::collections::BTreeMap;

use super::chrome::Event;

/// Category of the slices that arrows begin at, and of those that they end at. Both name the message in `flow`.
pub(super) const FROM: &str = "wire";
pub(super) const TO: &str = "in";
/// The argument.
pub(super) const FLOW: &str = "flow";

/// What a message has in common at both ends: the receiver's queue pair, and its first PSN.
pub(super) fn name(qpn: u32, psn: u64) -> String {
    format!("{qpn:#x}/{psn}")
}

/// Draws an arrow where both ends of a message are there. PSNs come again: the end that follows a beginning is its.
pub(super) fn link(events: &mut Vec<Event>) {
    let mut ends: BTreeMap<String, Vec<(f64, bool, usize)>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        let begins = match &*event.cat {
            FROM => true,
            TO => false,
            _ => continue,
        };
        let Some(flow) = event.args.get(FLOW).and_then(|flow| flow.as_str()) else { continue };
        ends.entry(flow.into()).or_default().push((event.ts, begins, at));
    }
    let mut arrows: Vec<Event> = Vec::new();
    for mut ends in ends.into_values() {
        ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        for pair in ends.windows(2) {
            let [(_, true, from), (_, false, to)] = *pair else { continue };
            // Perfetto draws arrows whose identifier is a number, in hexadecimal where it is a string, and no others.
            let number = arrows.len() / 2 + 1;
            for (ph, at) in [('s', from), ('f', to)] {
                let Event { pid, tid, ts, .. } = events[at];
                let arrow = Event::new(ph, "message", (pid, tid), 0).of("flow");
                let (id, bp) = (Some(format!("{number:#x}")), (ph == 'f').then(|| "e".into()));
                arrows.push(Event { ts, id, bp, ..arrow });
            }
        }
    }
    events.append(&mut arrows);
}
