//! Counters of devices and queue pairs, for people and for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

use bellpush::nic::soft::trace::{DeviceTrace, Kind};

/// Kinds of events that are counters, with their names in Prometheus.
const KINDS: [(Kind, &str); 16] = [
    (Kind::Doorbell, "doorbells"),
    (Kind::Fetched, "wqes_fetched"),
    (Kind::Done, "wqes_done"),
    (Kind::Sent, "messages_sent"),
    (Kind::Placed, "messages_placed"),
    (Kind::Cqe, "cqes"),
    (Kind::Resent, "packets_resent"),
    (Kind::Timeout, "timeouts"),
    (Kind::RnrGot, "rnr_naks_received"),
    (Kind::RnrSent, "rnr_naks_sent"),
    (Kind::NakGot, "naks_received"),
    (Kind::NakSent, "naks_sent"),
    (Kind::State, "state_changes"),
    (Kind::Connected, "connections"),
    (Kind::Arrived, "long_messages_begun"),
    (Kind::SentLast, "long_messages_sent"),
];

/// What each counter of devices counts.
const OF_DEVICES: [(&str, &str); 20] = [
    ("wqes", "Send WQEs carried out without error"),
    ("bytes", "Bytes of payload of the WQEs in wqes: what was posted here, not what came"),
    ("inband", "WQEs among wqes that came through in-band slots"),
    ("blueflame", "WQEs among wqes that came through BlueFlame"),
    ("receives", "Receives completed without error"),
    ("offloaded", "WQEs among wqes that the engine on a GPU carried out"),
    (
        "returned",
        "Queue pairs that the engine on a GPU gave back to the host: errors, rare operations",
    ),
    ("doorbells", "UAR registers seen to change"),
    ("rnr_waits", "Times that a peer's receive queue was empty"),
    ("cq_overruns", "Completions that found their CQ full"),
    ("tx_packets", "Packets given to the link"),
    ("tx_bytes", "Bytes of the packets sent, BTH to ICRC"),
    ("rx_packets", "Packets that the link handed out"),
    ("rx_bytes", "Bytes of the packets received, BTH to ICRC"),
    ("retransmitted", "Packets among tx_packets that were sent before"),
    ("timeouts", "Times that nothing was acknowledged for the local ACK timeout"),
    ("sequence_naks", "NAKs of a sequence error received"),
    ("link_errors", "Times that the link failed"),
    ("errors", "Error CQEs written"),
    ("drops", "Packets received and not used: malformed, out of sequence, for no queue pair"),
];

/// The same of queue pairs.
const OF_QPS: [(&str, &str); 18] = [
    ("doorbells", "Doorbells seen"),
    ("wqes_fetched", "Send WQEs read"),
    ("wqes_done", "Send WQEs completed"),
    ("messages_sent", "Messages of which the first packet was sent"),
    ("messages_placed", "Messages received and placed whole"),
    ("cqes", "CQEs written"),
    ("packets_resent", "Packets sent again"),
    ("timeouts", "Times that nothing was acknowledged for the local ACK timeout"),
    ("rnr_naks_received", "RNR NAKs received: the peer had no receive posted"),
    ("rnr_naks_sent", "RNR NAKs sent: no receive was posted"),
    ("naks_received", "Other NAKs received"),
    ("naks_sent", "Other NAKs sent"),
    ("state_changes", "Changes of the queue pair's state"),
    ("connections", "Times that the queue pair was connected"),
    ("long_messages_begun", "Messages of several packets of which the first came"),
    ("long_messages_sent", "Messages of several packets of which the last was sent"),
    ("bytes", "Bytes of payload of send WQEs: what was posted here, not what came"),
    ("error_cqes", "CQEs with an error"),
];

/// What a counter counts, by its name in Prometheus without `bellpush_` and `_total`.
pub(super) fn help(name: &str) -> Option<&'static str> {
    let of = |all: &[(&str, &'static str)], name| {
        all.iter().find(|(known, _)| *known == name).map(|(_, help)| *help)
    };
    match (name, name.strip_prefix("qp_")) {
        ("devices_uncounted", _) => Some("Devices that found no place to count in"),
        ("qp_events_uncounted", _) => {
            Some("Events of queue pairs that have no counters of their own")
        }
        (_, Some(name)) => of(&OF_QPS, name),
        (_, None) => of(&OF_DEVICES, name),
    }
}

fn device_name(device: &DeviceTrace) -> String {
    let DeviceTrace { program, pid, index, place, .. } = device;
    format!("{program} {pid}, mlx5_{index} ({place})")
}

/// What devices and queue pairs count, but for zeros; and how many devices found no place to count in.
pub fn text(devices: &[DeviceTrace], refused: u64) -> String {
    let mut text = String::new();
    let mut line = |head: &str, counters: &[(&str, u64)]| {
        let counted = counters.iter().filter(|(_, n)| *n > 0);
        let words: Vec<_> =
            counted.map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
        let words = if words.is_empty() { "nothing".into() } else { words.join(", ") };
        writeln!(text, "{head}: {words}").expect("a string takes all");
    };
    for device in devices {
        line(&device_name(device), &device.counters);
        if device.lost[2] > 0 {
            let uncounted = [("events", device.lost[2])];
            line("  queue pairs beyond those that have counters", &uncounted);
        }
        for qp in &device.qps {
            let mut counters: Vec<_> =
                KINDS.iter().map(|&(kind, name)| (name, qp.of(kind))).collect();
            counters.extend([("bytes", qp.bytes), ("error_cqes", qp.errors)]);
            line(&format!("  QP {:#x}", qp.qpn), &counters);
        }
    }
    if refused > 0 {
        let first = devices.len();
        writeln!(text, "{refused} devices beyond the first {first} are not counted")
            .expect("a string takes all");
    }
    text
}

/// A label's value (Prometheus, "Exposition formats").
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Samples by their labels. A device that is closed and opened again counts in another place under the same labels,
/// which no two samples may have: their sum goes on from what it was.
fn summed(samples: Vec<(String, u64)>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (labels, value) in samples {
        let sum = sums.entry(labels).or_insert(0_u64);
        *sum = sum.saturating_add(value);
    }
    sums
}

/// What devices and queue pairs count, as Prometheus reads it.
pub fn prometheus(devices: &[DeviceTrace], refused: u64) -> String {
    let mut text = String::new();
    let mut family = |name: &str, samples: Vec<(String, u64)>| {
        if samples.is_empty() {
            return;
        }
        if let Some(help) = help(name) {
            writeln!(text, "# HELP bellpush_{name}_total {help}.").expect("a string takes all");
        }
        writeln!(text, "# TYPE bellpush_{name}_total counter").expect("a string takes all");
        for (labels, value) in summed(samples) {
            writeln!(text, "bellpush_{name}_total{{{labels}}} {value}")
                .expect("a string takes all");
        }
    };
    let labels = |device: &DeviceTrace| {
        let DeviceTrace { program, pid, index, .. } = device;
        format!("program=\"{}\",pid=\"{pid}\",device=\"mlx5_{index}\"", quoted(program))
    };
    family("devices_uncounted", vec![(String::new(), refused)]);
    let uncounted = |device: &DeviceTrace| (labels(device), device.lost[2]);
    family("qp_events_uncounted", devices.iter().map(uncounted).collect());
    let names: Vec<_> = devices.first().map_or(Vec::new(), |device| device.counters.clone());
    for (nth, (name, _)) in names.iter().enumerate() {
        let of = |device: &DeviceTrace| (labels(device), device.counters[nth].1);
        family(name, devices.iter().map(of).collect());
    }
    let mut of_qps = |name: &str, value: &dyn Fn(&bellpush::nic::soft::trace::QpCounts) -> u64| {
        let all = devices.iter().flat_map(|device| device.qps.iter().map(move |qp| (device, qp)));
        let sample = |(device, qp): (&DeviceTrace, &bellpush::nic::soft::trace::QpCounts)| {
            (format!("{},qp=\"{:#x}\"", labels(device), qp.qpn), value(qp))
        };
        family(&format!("qp_{name}"), all.map(sample).collect());
    };
    for (kind, name) in KINDS {
        of_qps(name, &|qp| qp.of(kind));
    }
    of_qps("bytes", &|qp| qp.bytes);
    of_qps("error_cqes", &|qp| qp.errors);
    text
}
