//! Fault scripts drawn for a round, and what they may do to its queue pairs.

use super::rng::Rng;

/// What goes wrong on the round's NICs.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    pub kind: Kind,
    /// As `bellpush run --fault` reads it.
    pub script: String,
    /// With which syndrome a struck WQE fails.
    pub syndrome: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A WQE fails, or takes its queue pair to ERR.
    Wqe,
    /// CQEs are lost, or find no room.
    Cqe,
    /// Queue pairs go to ERR at some time.
    Time,
    /// The device ends.
    Device,
    /// Packets are lost, doubled, corrupted, delayed; the port is down for some milliseconds.
    Packets,
}

impl Kind {
    /// Whether queue pairs may end. Reliable connections make up for the others.
    pub fn ends_queue_pairs(self) -> bool {
        self != Self::Packets
    }

    /// Whether a strike must have been told: the other kinds may strike what nobody waits for.
    pub fn must_be_told(self) -> bool {
        self == Self::Wqe
    }
}

/// Syndromes that a script names (InfiniBand vol. 1, 10.10.3; mlx5 PRM, "Error Syndrome").
const SYNDROMES: [(&str, u8); 6] = [
    ("local-length-error", 0x01),
    ("local-qp-operation-error", 0x02),
    ("local-protection-error", 0x04),
    ("remote-access-error", 0x13),
    ("remote-operation-error", 0x14),
    ("transport-retry-exceeded", 0x15),
];

impl Trouble {
    /// A script for a round of so many operations; `packets` where the NICs have some.
    pub fn draw(rng: &mut Rng, ops: u64, packets: bool) -> Self {
        let kinds = [
            (6, Kind::Wqe),
            (2, Kind::Cqe),
            (2, Kind::Time),
            (1, Kind::Device),
            (if packets { 8 } else { 0 }, Kind::Packets),
        ];
        let kind = rng.weighted(&kinds);
        let (mut script, mut syndrome) = (format!("seed = {}\n", rng.below(1 << 40)), None);
        match kind {
            Kind::Wqe => {
                let nth = rng.within(1, ops * 2);
                script += &format!("[[fault]]\non = \"wqe\"\nnth = {nth}\n");
                if rng.one_in(4) {
                    script += "action = \"qp-error\"\n";
                } else {
                    let (name, code) = rng.pick(&SYNDROMES);
                    script += &format!("action = \"fail\"\nsyndrome = \"{name}\"\n");
                    syndrome = Some(code);
                }
                if rng.one_in(3) {
                    let opcode = rng.pick(&["write", "write", "read", "atomic"]);
                    script += &format!("opcode = \"{opcode}\"\n");
                }
            }
            Kind::Cqe => {
                let action = rng.weighted(&[(3, "drop"), (1, "overrun")]);
                let nth = rng.within(1, ops);
                script += &format!("[[fault]]\non = \"cqe\"\naction = \"{action}\"\nnth = {nth}\n");
            }
            Kind::Time => {
                let (qp, after) = (rng.within(1, 4), rng.within(100, 60_000));
                script += &format!(
                    "[[fault]]\non = \"qp\"\naction = \"error\"\nqp = {qp}\nafter = \"{after}us\"\n"
                );
            }
            Kind::Device => {
                let nth = rng.within(1, ops * 2);
                script +=
                    &format!("[[fault]]\non = \"wqe\"\naction = \"device-fatal\"\nnth = {nth}\n");
            }
            Kind::Packets => {
                for _ in 0..rng.within(1, 3) {
                    script += &packet_fault(rng);
                }
            }
        }
        Self { kind, script, syndrome }
    }
}

fn packet_fault(rng: &mut Rng) -> String {
    if rng.one_in(6) {
        let (after, long) = (rng.within(1, 40), rng.within(1, 20));
        return format!(
            "[[fault]]\non = \"port\"\naction = \"down\"\nafter = \"{after}ms\"\nfor = \"{long}ms\"\n"
        );
    }
    let action = rng.pick(&["drop", "duplicate", "corrupt", "delay"]);
    let direction = rng.pick(&["sent", "received"]);
    let mut fault =
        format!("[[fault]]\non = \"packet\"\naction = \"{action}\"\ndirection = \"{direction}\"\n");
    if action == "delay" {
        fault += &format!("delay = \"{}us\"\n", rng.within(1, 2000));
    }
    if rng.one_in(2) {
        let kinds = ["request", "write", "read-request", "read-response", "ack", "atomic-response"];
        fault += &format!("packet = \"{}\"\n", rng.pick(&kinds));
    }
    // Few enough in a row that no queue pair runs out of retries.
    match rng.below(2) {
        0 => fault += &format!("nth = {}\n", rng.within(1, 40)),
        _ => {
            fault += &format!("share = \"{}%\"\ntimes = {}\n", rng.within(1, 5), rng.within(1, 12))
        }
    }
    fault
}

#[cfg(test)]
mod tests {
    use super::super::rng::Use;
    use super::*;
    use bellpush::nic::soft::script::Script;

    #[test]
    fn every_drawn_script_is_one() {
        let mut seen = Vec::new();
        for round in 0..2000 {
            let mut rng = Rng::new(3, round, Use::Config);
            let trouble = Trouble::draw(&mut rng, 40, round % 2 == 0);
            let script: Result<Script, _> = trouble.script.parse();
            assert!(script.is_ok(), "{}: {:?}", trouble.script, script.err());
            assert!(trouble.kind != Kind::Packets || round % 2 == 0);
            if !seen.contains(&trouble.kind) {
                seen.push(trouble.kind);
            }
        }
        assert_eq!(seen.len(), 5, "{seen:?}");
    }
}
