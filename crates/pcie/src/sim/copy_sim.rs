//! The rows of `copy_rows.rs` as the model has them.

use super::copies::{At, Copied, CopyMachine, CopyQuestion, CopyRow, End};
use super::copy_order::{CopyStream, simulate_in_order};
use super::first::{shares_an_engine, without_turns};
use super::flows::{flows_imprint, simulate_batch, simulate_beside};
use super::{Flow, MOVED, Move, Params, SimError, flow_latency_ns, simulate_flows};
use crate::topology::{
    Builder, Collapse, KNOWN_COLLAPSES, Kind, NodeId, P2p, RawLink, Topology, known_of,
};

/// Rules without which a row is asked what it was asked before they were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    /// Sizes of packets: of GPUs, and of what Intel's root complexes forward.
    pub packets: bool,
    /// What root complexes have to the other socket.
    pub sockets: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Self = Self { packets: true, sockets: true };

    /// Those that had been written when a machine's rows were read; `first.rs` counts them.
    pub fn before(machine: &CopyMachine) -> Self {
        let written = machine.rules_before;
        Self { packets: written >= 4, sockets: written >= 5 }
    }
}

/// What is known of a machine's root complexes by its CPU, but for what the machine `without` was seen
/// to do.
fn limits(cpu: &str, without: &str, rules: Rules) -> P2p {
    let mut known = known_of(cpu, P2p::default(), without).0;
    if !rules.packets {
        known.tlp_bytes = None;
    }
    if !rules.sockets {
        (known.far_read_gb_per_s, known.far_write_gb_per_s) = (None, None);
    }
    known
}

/// The machine of a row, with the packets that its devices are known to send or with MPS for all.
fn topology(machine: &CopyMachine, p2p: P2p, rules: Rules) -> Topology {
    let mut b = Builder::new(machine.name);
    let sockets = machine.roots.iter().map(|s| s + 1).max().unwrap_or(1);
    for s in 0..sockets {
        b.add(&format!("s{s}"), Kind::Socket, None, None, None);
    }
    for s in 1..sockets {
        b.unknown_interconnect("s0", &format!("s{s}"));
    }
    for (i, socket) in machine.roots.iter().enumerate() {
        let socket = format!("s{socket}");
        b.add(&format!("rc{i}"), Kind::RootComplex, Some(&socket), None, None).p2p = p2p;
    }
    if machine.collapses {
        b.collapse(Collapse::Seen(KNOWN_COLLAPSES[0].seen()));
    }
    let parent = |at| match at {
        At::Root(n) => format!("rc{n}"),
        At::Switch(n) => format!("sw{n}"),
    };
    let mut chips: Vec<&str> = machine.switches.iter().map(|s| s.chip).collect();
    chips.sort_unstable();
    chips.dedup();
    for chip in chips.into_iter().filter(|c| !c.is_empty()) {
        b.chip(chip, Some(true));
    }
    for (i, s) in machine.switches.iter().enumerate() {
        let link = RawLink { generation: s.generation, ..machine.link };
        let above = parent(s.at);
        let node = b.add(&format!("sw{i}"), Kind::Switch, Some(&above), Some(link), None);
        node.chip = Some(s.chip.to_owned()).filter(|c| !c.is_empty());
    }
    for (i, d) in machine.devices.iter().enumerate() {
        let link = RawLink { lanes: d.lanes, ..machine.link };
        let node = b.add(&format!("dev{i}"), d.kind, Some(&parent(d.at)), Some(link), None);
        node.packet_bytes = Some(d.packet_bytes).filter(|bytes| rules.packets && *bytes > 0);
    }
    b.finish().expect("legal by construction")
}

/// Machine and streams of a row. What the machine itself was seen to do is no part of its prediction.
fn asked(row: &CopyRow, rules: Rules) -> (Topology, Vec<Flow>) {
    asked_of(row, limits(row.machine.cpu, row.machine.name, rules), rules)
}

fn asked_of(row: &CopyRow, p2p: P2p, rules: Rules) -> (Topology, Vec<Flow>) {
    let t = topology(row.machine, p2p, rules);
    let end = |end| -> NodeId {
        let id = match end {
            End::Device(n) => format!("dev{n}"),
            End::Near => "s0".to_owned(),
            End::Far => "s1".to_owned(),
        };
        t.find(&id).expect("the row's machine has it")
    };
    let flow = |c: &Copied| Flow { from: end(c.from), to: end(c.to), by: c.by };
    let flows = match row.question {
        CopyQuestion::Alone(c) => vec![flow(&c)],
        CopyQuestion::Beside(a, b) | CopyQuestion::Longer(a, b, _) => vec![flow(&a), flow(&b)],
        CopyQuestion::Together(all) => all.iter().map(flow).collect(),
        CopyQuestion::EachToEach(from, to, by) => {
            let pairs = from.iter().flat_map(|&a| to.iter().map(move |&b| (a, b)));
            let copied = |(a, b)| flow(&Copied { from: End::Device(a), to: End::Device(b), by });
            pairs.filter(|(a, b)| a != b).map(copied).collect()
        }
    };
    (t, flows)
}

/// Simulates a row: GB/s, or ns.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_copy_row(params: &Params, row: &CopyRow) -> Result<f64, SimError> {
    simulate(params, row, asked(row, Rules::ALL), is_in_order(row))
}

/// The same of a row between devices, with root complexes limited as the machine itself was seen to
/// limit them too; `None` where that moves nothing.
///
/// # Errors
/// As [`simulate_flows`].
pub(super) fn simulate_with_own_limits(
    params: &Params,
    row: &CopyRow,
) -> Result<Option<f64>, SimError> {
    let own = limits(row.machine.cpu, "", Rules::ALL);
    let bed = asked_of(row, own, Rules::ALL);
    let imprint = |(t, flows): &(Topology, Vec<Flow>)| flows_imprint(t, params, flows, None);
    if imprint(&bed) == imprint(&asked(row, Rules::ALL)) {
        return Ok(None);
    }
    let without = simulate_copy_row(params, row)?;
    let with = simulate(params, row, bed, is_in_order(row))?;
    Ok(Some(with).filter(|with| (with / without - 1.0).abs() > MOVED))
}

/// Whether a stream of a row crosses sockets: between devices, or with memory that is said to be the
/// other socket's. Of several devices at once sources do not say whose memory each has; the model has
/// all of it on the first socket.
pub fn crosses_sockets(row: &CopyRow) -> bool {
    let (t, flows) = asked(row, Rules::ALL);
    let first = t.find("s0");
    let is_said = |f: &&Flow| first != Some(f.from) && first != Some(f.to);
    flows.iter().filter(is_said).any(|f| t.route(f.from, f.to).is_far(&t))
}

/// The same without the rules that were written since the first rows were read: all engines of a
/// device share one queue, no copy waits for another, packets have MPS, and sockets limit nothing.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_copy_row_first(params: &Params, row: &CopyRow) -> Result<f64, SimError> {
    let none = Rules { packets: false, sockets: false };
    simulate(&without_turns(params), row, asked(row, none), false)
}

/// The same with some of the rules of packets and of sockets, and all others.
pub(super) fn simulate_by(params: &Params, row: &CopyRow, rules: Rules) -> Result<f64, SimError> {
    simulate(params, row, asked(row, rules), is_in_order(row))
}

/// Whether the rule of sockets can have a part in a row: a machine of another source says what its
/// CPU's root complexes have to the other socket, and a stream goes there.
pub(super) fn is_limited_far(row: &CopyRow) -> bool {
    let [with, without] =
        [true, false].map(|sockets| asked(row, Rules { packets: true, sockets }).0);
    with != without && crosses_sockets(row)
}

/// The same with all rules, but that the engines of a device share one queue.
pub(super) fn simulate_one_queue(params: &Params, row: &CopyRow) -> Result<f64, SimError> {
    simulate(&without_turns(params), row, asked(row, Rules::ALL), is_in_order(row))
}

/// Whether a rule that was written since the row was read can have a part in it: copies that wait,
/// or two streams with one end.
pub(super) fn is_ruled(row: &CopyRow) -> bool {
    let (t, flows) = asked(row, Rules::ALL);
    is_in_order(row) || shares_an_engine(&t, &flows)
}

/// Simulates a row whose copies wait for each other, or all run at once.
fn simulate(
    params: &Params,
    row: &CopyRow,
    (t, flows): (Topology, Vec<Flow>),
    in_order: bool,
) -> Result<f64, SimError> {
    let most = row.machine.device_gb_per_s;
    Ok(match row.question {
        CopyQuestion::Alone(_) => simulate_flows(&t, params, &flows)?[0].min(most),
        CopyQuestion::Beside(..) => simulate_beside(&t, params, &flows)?.min(most),
        CopyQuestion::Together(_) | CopyQuestion::EachToEach(..) if in_order => {
            let ends: Vec<_> = flows.iter().map(|f| (f.from, f.to)).collect();
            let stream = match flows[0].by {
                Move::Write => CopyStream::Source,
                Move::Read => CopyStream::Destination,
            };
            let rate = simulate_in_order(&t, &ends, stream, row.machine.torch_rounds);
            rate.expect("the ends are devices of the machine, and nothing refuses")
        }
        CopyQuestion::Together(_) | CopyQuestion::EachToEach(..) => {
            simulate_batch(&t, params, &flows)?.min(most * flows.len() as f64)
        }
        CopyQuestion::Longer(_, _, bytes) => {
            flow_latency_ns(&t, params, flows[0], bytes)?
                - flow_latency_ns(&t, params, flows[1], bytes)?
        }
    })
}

/// Whether the copies of a row wait for each other: several between devices, by PyTorch.
pub(super) fn is_in_order(row: &CopyRow) -> bool {
    let is_device = |end| matches!(end, End::Device(_));
    row.machine.torch_rounds > 0
        && match row.question {
            CopyQuestion::Together(all) => all.iter().all(|c| is_device(c.from) && is_device(c.to)),
            CopyQuestion::EachToEach(..) => true,
            _ => false,
        }
}

/// What a row depends on.
pub(super) fn copy_imprint(params: &Params, row: &CopyRow) -> String {
    if is_in_order(row) {
        return String::new();
    }
    let (t, flows) = asked(row, Rules::ALL);
    flows_imprint(&t, params, &flows, None)
}

#[cfg(test)]
mod tests {
    use super::super::{
        COLLAPSE_ROWS, COPY_ROWS, Metric, NFP_SIZES, NfpHost, SECOND_COPY_ROWS, THIRD_COPY_ROWS,
        copy_rows, simulate_host_row,
    };
    use super::*;

    const RESULTS: &str = include_str!("../../../../docs/results/pcie.md");

    /// How many are within 5, 10 and 15 %, of how many.
    fn near(errors: &[f64]) -> String {
        let within = |most: f64| errors.iter().filter(|e| e.abs() <= most).count();
        let (all, a, b, c) = (errors.len(), within(0.05), within(0.1), within(0.15));
        format!("{all} rows, {a} within 5 %, {b} within 10 %, {c} within 15 %")
    }

    #[test]
    fn rows_keep_to_their_criterion() {
        for r in copy_rows().chain(&COLLAPSE_ROWS) {
            let m = r.machine;
            assert!(!m.name.is_empty() && !m.source.is_empty() && !m.said.is_empty(), "{m:?}");
            let (t, flows) = asked(r, Rules::ALL);
            assert!(!flows.is_empty() && r.measured > 0.0, "{r:?}");
            // What the links at a stream's ends carry raw, a row that is taken does not exceed.
            if let CopyQuestion::Alone(_) | CopyQuestion::Beside(..) = r.question {
                let links = [flows[0].from, flows[0].to].map(|n| t.node(n).link);
                let raw = links.into_iter().flatten().map(|l| l.speed.raw_gbps() / 8.0);
                assert!(raw.fold(f64::MAX, f64::min) > r.measured, "{r:?}");
            }
        }
        let mut twice: Vec<_> =
            copy_rows().chain(&COLLAPSE_ROWS).map(|r| (r.machine.name, r.what)).collect();
        twice.sort_unstable();
        assert!(twice.windows(2).all(|w| w[0] != w[1]), "a row is there twice");
    }

    /// CUDA's `bandwidthTest` divided 1,024 times the bytes by ms of 2²⁰: its MB is neither 10⁶ nor 2²⁰ B.
    #[test]
    fn an_mb_of_bandwidth_test_is_1024000_bytes() {
        let unit = "(MB/s of 1024000 B";
        let mut checked = 0;
        for r in copy_rows().filter(|r| r.machine.said.contains(unit)) {
            let said = r.machine.said.split(|c: char| !c.is_ascii_digit() && c != '.');
            let said: Vec<f64> =
                said.filter(|s| s.contains('.')).filter_map(|s| s.parse().ok()).collect();
            // Two pages print each GPU apart: their rows are medians, and `said` has no number.
            if said.is_empty() {
                continue;
            }
            let is_its = |mb: &f64| (mb * 1.024e-3 / r.measured - 1.0).abs() < 5e-5;
            assert!(
                said.iter().any(is_its),
                "{}: {} is none of {said:?}",
                r.machine.name,
                r.measured
            );
            checked += 1;
        }
        assert_eq!(checked, 10);
    }

    /// A row of one stream of each machine is in its page's table as the model has it now: a guard of the
    /// tables that takes seconds. The long tests hold their totals.
    #[test]
    fn one_row_of_each_machine_is_as_its_page_says() {
        const PAGES: [&str; 3] = [
            include_str!("../../../../docs/results/pcie-copies.md"),
            include_str!("../../../../docs/results/pcie-copies-second.md"),
            include_str!("../../../../docs/results/pcie-packets.md"),
        ];
        let mut asked: Vec<&str> = Vec::new();
        for r in copy_rows().filter(|r| matches!(r.question, CopyQuestion::Alone(_))) {
            if asked.contains(&r.machine.name) {
                continue;
            }
            asked.push(r.machine.name);
            let start = format!("| {} | {}", r.machine.name, r.what);
            let is_row = |line: &&str| {
                let rest = line.strip_prefix(&start).map(|rest| rest.trim_start_matches(", GB/s"));
                rest.is_some_and(|rest| rest.starts_with(" |"))
            };
            let line = PAGES.iter().flat_map(|page| page.lines()).find(is_row);
            let line = line.unwrap_or_else(|| panic!("no page has {start}"));
            let said: f64 = line.split('|').nth(4).unwrap().trim().parse().unwrap();
            let model = simulate_copy_row(&Params::default(), r).unwrap();
            assert!((said / model - 1.0).abs() < 1e-3, "{model:.4} now: {line}");
        }
        assert!(asked.len() > 50, "{}", asked.len());
    }

    /// No row is fitted, and none is left out because it is missed.
    #[test]
    #[ignore = "a minute"]
    fn copies_of_other_machines_are_as_the_page_says() {
        let params = Params::default();
        let error = |r: &CopyRow| simulate_copy_row(&params, r).unwrap() / r.measured - 1.0;
        for rows in [&COPY_ROWS[..], &SECOND_COPY_ROWS[..], &THIRD_COPY_ROWS[..]] {
            let said = near(&rows.iter().map(error).collect::<Vec<_>>());
            assert!(RESULTS.contains(&said), "docs/results/pcie.md does not say: {said}");
        }
    }

    #[test]
    #[ignore = "a minute"]
    fn sizes_of_the_sweep_are_as_the_page_says() {
        let mut errors = Vec::new();
        for (bytes, reads, writes) in NFP_SIZES {
            for (metric, measured) in [(Metric::ReadGbps, reads), (Metric::WriteGbps, writes)] {
                let hosts = [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL];
                for (host, measured) in hosts.iter().zip(measured.into_iter().flatten()) {
                    errors.push(simulate_host_row(host, metric, bytes).unwrap() / measured - 1.0);
                }
            }
        }
        let said = near(&errors);
        assert!(RESULTS.contains(&said), "docs/results/pcie.md does not say: {said}");
    }

    fn of(machine: &str, what: &str) -> CopyRow {
        *copy_rows().find(|r| r.machine.name == machine && r.what == what).expect("a row")
    }

    const SWITCHTEC: &str = "Threadripper PRO 7955WX, four Switchtec";

    #[test]
    fn a_machines_links_are_those_of_its_row() {
        let row = of(
            "Threadripper PRO 7955WX, two Switchtec, an uplink at Gen2",
            "one writes, across switches",
        );
        let (t, _) = asked(&row, Rules::ALL);
        let link = |t: &Topology, id| t.node(t.find(id).unwrap()).link.unwrap().speed;
        assert_eq!(["sw0", "sw1"].map(|id| link(&t, id).generation().number()), [2, 5]);
        let ssd = copy_rows().find(|r| r.machine.devices.iter().any(|d| d.lanes == 4)).unwrap();
        let narrow = ssd.machine.devices.iter().position(|d| d.lanes == 4).unwrap();
        assert_eq!(link(&asked(ssd, Rules::ALL).0, &format!("dev{narrow}")).lanes(), 4);
    }

    #[test]
    fn rows_across_sockets_say_so() {
        for r in copy_rows() {
            let says = ["two sockets", "other socket"].iter().any(|end| r.what.contains(end));
            assert_eq!(crosses_sockets(r), says, "{}: {}", r.machine.name, r.what);
        }
        assert_eq!(copy_rows().filter(|r| crosses_sockets(r)).count(), 13);
    }

    #[test]
    fn copies_wait_for_each_other_between_devices_of_pytorch_alone() {
        use super::super::copies::{down, read, write};
        const CHAIN: &[Copied] = &[read(0, 1), read(1, 0)];
        const WITH_HOST: &[Copied] = &[write(0, 1), down(1)];
        let row = of(SWITCHTEC, "one writes, one switch");
        let asks = |question| CopyRow { question, ..row };
        assert!(!is_in_order(&row) && !is_ruled(&row));
        assert!(!is_in_order(&asks(CopyQuestion::Together(WITH_HOST))));
        let chain = asks(CopyQuestion::Together(CHAIN));
        assert!(is_in_order(&chain) && is_ruled(&chain));
        // On NULL streams there and back are one after the other.
        let rate = simulate_copy_row(&Params::default(), &chain).unwrap();
        assert!((rate / 57.6 - 1.0).abs() < 0.02, "{rate}");
        let meets = asks(CopyQuestion::Beside(read(0, 1), write(1, 0)));
        assert!(!is_in_order(&meets) && is_ruled(&meets));
    }

    /// A latency waits for no other copy, and turns of engines do not change it.
    #[test]
    fn how_much_longer_is_a_difference() {
        let row = of(
            "Threadripper PRO 7955WX, two Switchtec",
            "a read of 128 B longer across switches, ns",
        );
        let params = Params::default();
        let (now, first) =
            (simulate_copy_row(&params, &row), simulate_copy_row_first(&params, &row));
        let (now, first) = (now.unwrap(), first.unwrap());
        // Two switches' and a root complex's latencies more, there and back.
        assert!(
            (400.0..1000.0).contains(&now) && (first / now - 1.0).abs() < 0.01,
            "{now} {first}"
        );
    }
}
