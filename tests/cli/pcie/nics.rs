//! What `bellpush topo` knows of NICs by their names.

use super::{captured, topo};

/// A path is advised for NICs with RDMA alone, on the wire that a port of their family has at most.
#[test]
fn topo_knows_which_nics_have_rdma_and_how_fast() {
    // NICs of 1 and 10 Gb/s without RDMA.
    let without = topo(&["--from", &captured("cmlgpu.lspci")]).unwrap();
    assert!(without.contains("2 pairs without an RDMA NIC: no advice"), "{without}");
    assert!(!without.contains("push/blueflame"), "{without}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    let file = file.to_str().unwrap();
    let of = |model: &str, more: &[&str]| {
        let text = format!(
            "[[socket]]\nid='s'\n[[root_complex]]\nid='r'\nsocket='s'\n[[gpu]]\nid='g'\n\
             parent='r'\n[[nic]]\nid='n'\nparent='r'\nmodel='{model}'\n"
        );
        std::fs::write(file, text).unwrap();
        topo(&[&[file], more].concat()).unwrap()
    };
    let rate = |text: &str| {
        let line = text.lines().find(|line| line.contains("GB/s  ")).unwrap();
        let first = line.split("staged ").last().unwrap().split(['a', 'u']).next().unwrap();
        first.parse::<f64>().unwrap()
    };
    let slow = of("MT27710 Family [ConnectX-4 Lx]", &[]);
    assert!(
        slow.contains("times are those of a ConnectX-7 (50 Gb/s, a port's most of ConnectX-4 Lx)."),
        "{slow}"
    );
    assert!(rate(&slow) < 6.25, "{slow}");
    let unknown = of("a NIC", &[]);
    assert!(unknown.contains("400 Gb/s assumed, port's rate unknown"), "{unknown}");
    assert!(unknown.contains("unknown rate: that of the NIC's port is not known, at most 57"));
    assert!(of("NetXtreme BCM5720", &[]).contains("1 pairs without an RDMA NIC"));
    let named = of("NetXtreme BCM5720", &["--nic", "cx7"]);
    assert!(named.contains("push/blueflame") && named.contains("assumed of --nic cx7"), "{named}");
}
