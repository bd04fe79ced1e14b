//! Configuration spaces byte by byte (PCIe base specification 7.5.3, 7.6.3 and 7.7.8).

use super::*;

fn function(class: u32, config: &[u8], dir: &Path) -> Function {
    let chain = ["pci0000:00", "0000:00:01.0", "0000:01:00.0"].map(str::to_owned).into();
    Function { chain, class, config: config.to_vec(), dir: dir.to_owned() }
}

/// Bytes of a configuration space at their offsets.
fn config(bytes: usize, at: &[(usize, u8)]) -> Vec<u8> {
    let mut config = vec![0; bytes];
    for &(at, byte) in at {
        config[at] = byte;
    }
    config
}

#[test]
fn capabilities_are_a_list() {
    // Two low bits of a pointer are reserved; a power management capability comes before.
    let list = [(0x34, 0x41), (0x40, 0x01), (0x41, 0x63), (0x60, 0x10), (0x62, 0x52)];
    let whole = config(256, &list);
    assert_eq!((pcie_capability(&whole), port_type(&whole)), (Some(0x60), Some(5)));
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x40), (0x40, 0x10)])), Some(0x40));
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x3c), (0x3c, 0x10)])), None, "a header's");
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x40), (0x41, 0x40)])), None, "a loop");
    assert_eq!(pcie_capability(&config(64, &list[..1])), None, "hidden");
}

#[test]
fn ports_are_told_by_their_type_or_by_their_depth() {
    let port = |kind: u8| config(256, &[(0x34, 0x40), (0x40, 0x10), (0x42, kind << 4 | 2)]);
    let hidden = config(64, &[(0x34, 0x40)]);
    let kind = |class: u32, config: &[u8], depth: usize| {
        bridge_kind(&function(class, config, Path::new("/")), depth)
    };
    let (root, switch) = (Some(Kind::RootPort), Some(Kind::Switch));
    for (of, is) in [(4, root), (5, switch), (6, None), (0, None)] {
        assert_eq!(kind(0x06_0400, &port(of), 2), is, "port of type {of}");
    }
    let by_depth = [1, 2, 3, 4, 5].map(|depth| kind(0x06_0400, &hidden, depth));
    assert_eq!(by_depth, [root, switch, None, switch, None]);
    assert_eq!(kind(0x06_0100, &port(4), 1), None, "no bridge to PCI");
}

#[test]
fn links_are_as_fast_and_wide_as_the_files_say() {
    let dir = tempfile::tempdir().unwrap();
    let link = |speed: &str, width: &str, config: &[u8]| {
        fs::write(dir.path().join("current_link_speed"), speed).unwrap();
        fs::write(dir.path().join("current_link_width"), width).unwrap();
        link_of(&function(0x03_0200, config, dir.path()))
    };
    for (speed, generation) in [
        ("2.5 GT/s PCIe\n", 1),
        ("5.0 GT/s PCIe\n", 2),
        ("8.0 GT/s PCIe\n", 3),
        ("16.0 GT/s PCIe\n", 4),
        ("32.0 GT/s PCIe\n", 5),
        ("64.0 GT/s PCIe\n", 6),
        ("Unknown\n", 3),
    ] {
        assert_eq!(link(speed, "4\n", &[]).generation, generation, "{speed}");
    }
    let hidden = link("32.0 GT/s PCIe\n", "8\n", &[0; 64]);
    assert_eq!((hidden.lanes, hidden.mps, hidden.mrrs), (8, 256, 512));
    assert_eq!(link("", "-1\n", &[]).lanes, 16);
    // Device control: MPS in 7:5, MRRS in 14:12; 6 and 7 are reserved.
    for (control, mps, mrrs) in [(0x0000u16, 128, 128), (0x2050, 512, 512), (0x70ff, 4096, 4096)] {
        let [low, high] = control.to_le_bytes();
        let config = config(256, &[(0x34, 0x40), (0x40, 0x10), (0x48, low), (0x49, high)]);
        let link = link("", "16\n", &config);
        assert_eq!((link.mps, link.mrrs), (mps, mrrs), "{control:#x}");
    }
}

#[test]
fn redirection_is_bit_2_of_the_acs_control_of_a_port_below() {
    // Extended capabilities: error reporting at 0x100, then ACS at 0x140.
    let acs = |control: u8| {
        let list = [(0x100, 1), (0x102, 1), (0x103, 0x14), (0x140, 0x0d), (0x146, control)];
        config(0x200, &list)
    };
    assert_eq!(acs_control(&acs(0x5d)), Some(0x5d));
    assert_eq!(acs_control(&config(0x200, &[(0x100, 0x0d), (0x106, 4)])), Some(4), "the first");
    // An end of the list is no way back into the header, whose first word may be anything.
    assert_eq!(acs_control(&config(0x200, &[(0, 0x0d), (6, 4), (0x100, 1)])), None);
    assert_eq!(acs_control(&config(0x200, &[(0x100, 1), (0x103, 0x10)])), None, "a loop");
    assert_eq!(acs_control(&[0; 256]), None, "hidden");
    let redirects = |control: u8, upstream: &str| {
        let below = function(0x06_0400, &acs(control), Path::new("/"));
        switch_redirects(&BTreeMap::from([("0000:01:00.0".to_owned(), below)]), upstream)
    };
    assert!(redirects(0b100, "0000:00:01.0"));
    assert!(!redirects(0b1111_1011, "0000:00:01.0"), "other controls");
    assert!(!redirects(0b100, "0000:01:00.0") && !redirects(0b100, "pci0000:00"), "another port");
}
