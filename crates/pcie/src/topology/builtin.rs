//! Built-in topologies. The bandwidth limits between sockets are those of NCCL's topology code, in
//! GB/s: Broadwell 6, Skylake 10, Sapphire Rapids 22, Emerald Rapids 40, Zen 1-2 16, Zen 3-4 24,
//! Zen 5 32.

use super::model::{Builder, Kind, RawLink, Topology};

/// Names of the topologies that [`builtin`] returns.
pub const BUILTIN_NAMES: [&str; 9] = [
    "same-switch",
    "same-root-complex",
    "two-root-complexes",
    "two-root-complexes-64b",
    "two-root-complexes-slow-reads",
    "two-sockets",
    "dgx-h100",
    "epyc-2s",
    "desktop",
];

const X16: Option<RawLink> = Some(RawLink::new(5, 16));

/// A built-in topology; `None` for a name that is not in [`BUILTIN_NAMES`].
pub fn builtin(name: &str) -> Option<Topology> {
    let mut b = Builder::new(name);
    match name {
        "same-switch" => {
            roots(&mut b, 1, 1);
            b.add("sw0", Kind::Switch, Some("rc0"), X16, None);
            b.add("gpu0", Kind::Gpu, Some("sw0"), X16, None);
            b.add("nic0", Kind::Nic, Some("sw0"), X16, None);
        }
        "same-root-complex" => {
            roots(&mut b, 1, 1);
            pair(&mut b, "rc0", "rc0");
        }
        "two-root-complexes" => {
            roots(&mut b, 1, 2);
            pair(&mut b, "rc0", "rc1");
        }
        "two-root-complexes-64b" => {
            // NCCL's "Intel" overhead: root complexes that split peer traffic into TLPs of 64 B.
            b.add("s0", Kind::Socket, None, None, None);
            for id in ["rc0", "rc1"] {
                b.add(id, Kind::RootComplex, Some("s0"), None, None).p2p.tlp_bytes = Some(64);
            }
            pair(&mut b, "rc0", "rc1");
        }
        "two-root-complexes-slow-reads" => {
            // Root complexes that limit peer reads, as NVIDIA's and MVAPICH2's guides report of
            // many. The number of reads that such a root complex keeps open is an assumption.
            b.add("s0", Kind::Socket, None, None, None);
            for id in ["rc0", "rc1"] {
                b.add(id, Kind::RootComplex, Some("s0"), None, None).p2p.read_slots = Some(8);
            }
            pair(&mut b, "rc0", "rc1");
        }
        "two-sockets" => {
            roots(&mut b, 2, 1);
            b.assumed_interconnect("s0", "s1", 22.0);
            pair(&mut b, "rc0", "rc1");
        }
        "dgx-h100" => dgx_h100(&mut b),
        "epyc-2s" => epyc(&mut b),
        "desktop" => {
            // A client CPU: it forwards peer writes only, and the NIC is behind the chipset.
            b.add("s0", Kind::Socket, None, None, None);
            b.add("rc0", Kind::RootComplex, Some("s0"), None, None).p2p.reads = Some(false);
            b.add("gpu0", Kind::Gpu, Some("rc0"), Some(RawLink::new(4, 16)), None);
            b.add("pch", Kind::Switch, Some("rc0"), Some(RawLink::new(4, 8)), None);
            b.add("nic0", Kind::Nic, Some("pch"), Some(RawLink::new(3, 4)), None);
        }
        _ => return None,
    }
    // The built-ins are this module's own data; a test builds every one.
    Some(b.finish().expect("built-in topologies are legal"))
}

fn roots(b: &mut Builder, sockets: usize, per_socket: usize) {
    for s in 0..sockets {
        let socket = format!("s{s}");
        b.add(&socket, Kind::Socket, None, None, None);
        for r in 0..per_socket {
            let id = format!("rc{}", s * per_socket + r);
            b.add(&id, Kind::RootComplex, Some(&socket), None, None);
        }
    }
}

fn pair(b: &mut Builder, gpu_root: &str, nic_root: &str) {
    b.add("rp-gpu", Kind::RootPort, Some(gpu_root), None, None);
    b.add("rp-nic", Kind::RootPort, Some(nic_root), None, None);
    b.add("gpu0", Kind::Gpu, Some("rp-gpu"), X16, None).model = "H100".into();
    b.add("nic0", Kind::Nic, Some("rp-nic"), X16, None).model = "ConnectX-7".into();
}

/// Two Sapphire Rapids sockets, four switches, each with two GPUs and two NICs.
fn dgx_h100(b: &mut Builder) {
    roots(b, 2, 2);
    b.assumed_interconnect("s0", "s1", 22.0);
    for s in 0..4 {
        let switch = format!("sw{s}");
        b.add(&switch, Kind::Switch, Some(&format!("rc{s}")), X16, None);
        for i in [2 * s, 2 * s + 1] {
            b.add(&format!("gpu{i}"), Kind::Gpu, Some(&switch), X16, None).model = "H100".into();
            let nic = b.add(&format!("nic{i}"), Kind::Nic, Some(&switch), X16, None);
            nic.model = "ConnectX-7".into();
        }
    }
}

/// Two Zen 4 sockets with four root complexes each; GPUs and NICs on root ports, no switches.
fn epyc(b: &mut Builder) {
    roots(b, 2, 4);
    b.assumed_interconnect("s0", "s1", 24.0);
    for s in 0..2 {
        for i in 0..2 {
            let (gpu, nic) = (2 * s + i, s);
            let root = format!("rc{}", 4 * s + i);
            b.add(&format!("gpu{gpu}"), Kind::Gpu, Some(&root), X16, None).model = "H100".into();
            if i == 0 {
                let root = format!("rc{}", 4 * s + 2);
                let nic = b.add(&format!("nic{nic}"), Kind::Nic, Some(&root), X16, None);
                nic.model = "ConnectX-7".into();
            }
        }
    }
}
