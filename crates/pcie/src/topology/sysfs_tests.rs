//! Configuration spaces byte by byte (PCIe base specification 7.5.3, 7.6.3 and 7.7.8).

use super::*;

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
    assert_eq!((pcie_capability(&whole), port_type(&whole)), (Some(0x60), Some(Port::Upstream)));
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x40), (0x40, 0x10)])), Some(0x40));
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x3c), (0x3c, 0x10)])), None, "a header's");
    assert_eq!(pcie_capability(&config(256, &[(0x34, 0x40), (0x41, 0x40)])), None, "a loop");
    assert_eq!(pcie_capability(&config(64, &list[..1])), None, "hidden");
}

#[test]
fn a_function_is_what_its_files_say() {
    let dir = tempfile::tempdir().unwrap();
    let read = |files: &[(&str, &str)], config: &[u8]| {
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        fs::write(dir.path().join("config"), config).unwrap();
        read_function(dir.path(), "0000:17:00.0".parse().unwrap())
    };
    // Device control: MPS in 7:5, MRRS in 14:12; 6 and 7 are reserved.
    for (control, mps, mrrs) in [(0x0000u16, 128, 128), (0x2050, 512, 512), (0x70ff, 4096, 4096)] {
        let [low, high] = control.to_le_bytes();
        let config = config(256, &[(0x34, 0x40), (0x40, 0x10), (0x48, low), (0x49, high)]);
        let f = read(&[], &config);
        assert_eq!((f.mps, f.mrrs), (Some(mps), Some(mrrs)), "{control:#x}");
        // Enable Relaxed Ordering is bit 4 (7.5.3.4).
        assert_eq!(f.relaxes, Some(control & 0x10 != 0), "{control:#x}");
        assert!(!f.denied && f.port == Some(Port::Endpoint) && f.redirects.is_none());
    }
    let hidden = read(&[("numa_node", "-1\n"), ("class", "0x030200\n")], &[0; 64]);
    assert!(hidden.denied && hidden.mps.is_none() && hidden.numa.is_none());
    assert_eq!(hidden.relaxes, None);
    assert_eq!(hidden.class, Some(0x0302));
}

#[test]
fn redirection_is_bit_2_of_the_acs_control() {
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
    let redirects = |control| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), acs(control)).unwrap();
        read_function(dir.path(), "0000:17:00.0".parse().unwrap()).redirects
    };
    assert_eq!((redirects(0b100), redirects(0b1111_1011)), (Some(true), Some(false)));
}

/// With ARI, virtual functions have numbers of other devices, and of further buses, which no bridge names.
#[test]
fn a_virtual_function_is_of_its_physical_ones_card() {
    use crate::topology::{Class, Distance, Kind, assign_to};
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let function = |place: &str, class: &str, vendor: &str, buses: &[(usize, u8)]| {
        let own = dir.path().join("devices/pci0000:00").join(place);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("class"), class).unwrap();
        fs::write(own.join("vendor"), vendor).unwrap();
        fs::write(own.join("config"), config(64, buses)).unwrap();
        own
    };
    for (slot, last) in [(1, 1), (2, 2), (3, 4), (5, 5)] {
        let buses = [(0x0e, 1), (0x19, slot), (0x1a, last)];
        function(&format!("0000:00:{slot:02x}.0"), "0x060400", "0x8086", &buses);
    }
    for gpu in ["0000:00:01.0/0000:01:00.0", "0000:00:02.0/0000:02:00.0"] {
        function(gpu, "0x030200", "0x10de", &[]);
    }
    let nic = |place: &str| function(place, "0x020000", "0x15b3", &[]);
    let physical = nic("0000:00:03.0/0000:03:00.0");
    for (name, text) in [("speed", "32.0 GT/s PCIe"), ("width", "16")] {
        fs::write(physical.join(format!("max_link_{name}")), text).unwrap();
    }
    let [of_slot, of_bus] = ["0000:00:03.0/0000:03:01.0", "0000:00:03.0/0000:04:00.2"].map(nic);
    symlink("../0000:03:00.0", of_slot.join("physfn")).unwrap();
    // As a recording has it.
    symlink("recorded/0000:03:00.0", of_bus.join("physfn")).unwrap();
    nic("0000:00:05.0/0000:05:00.0");
    let capture = capture_sysfs(dir.path()).unwrap();
    let at = |text: &str| text.parse::<Address>().unwrap();
    let (pf, other) = (at("0000:03:00.0"), at("0000:05:00.0"));
    let virtuals = [at("0000:03:01.0"), at("0000:04:00.2")];
    let tree = Tree::new(&capture);
    let gpus = capture.of_kind(Kind::Gpu);
    for vf in virtuals {
        assert!(capture.is_virtual(vf) && capture.physical(vf) == pf);
        assert!(capture.is_one_card(vf, pf) && !capture.is_one_card(vf, other));
        assert_eq!((tree.chain(vf), tree.link(vf)), (tree.chain(pf), tree.link(pf)), "{vf}");
        assert_eq!(tree.class(gpus[0], vf), Class::Known(Distance::Phb), "{vf}");
    }
    assert!(tree.link(pf).0.is_some() && capture.physical(pf) == pf);
    // GPUs are spread over cards first, and there are two.
    let all = assign_to(&tree, &[virtuals[0], virtuals[1], other]);
    let given: Vec<_> = all.iter().map(|own| own.nic.unwrap()).collect();
    assert_eq!(given, [virtuals[0], other]);
    let topology = tree.topology("t", Some(22.0)).unwrap();
    let node = |a: Address| topology.find(&a.to_string()).unwrap();
    assert_eq!(topology.sharing_link(node(virtuals[1])), [pf, virtuals[0], virtuals[1]].map(node));
    // Functions that name each other, or what is not there, are by themselves.
    symlink("../0000:04:00.2", physical.join("physfn")).unwrap();
    let capture = capture_sysfs(dir.path()).unwrap();
    assert!(virtuals.iter().chain([&pf]).all(|a| capture.physical(*a) == *a));
    fs::remove_dir_all(&physical).unwrap();
    let capture = capture_sysfs(dir.path()).unwrap();
    assert!(virtuals.iter().all(|a| capture.physical(*a) == *a && capture.is_virtual(*a)));
}

/// A copy of another machine has nothing of this one: a link out of it is none, whatever part of a path it is.
#[test]
fn a_copy_does_not_lead_out_of_its_root() {
    use std::os::unix::fs::symlink;
    let all = tempfile::tempdir().unwrap();
    let (own, other) = (all.path().join("own"), all.path().join("other"));
    let place = "devices/pci0000:00/0000:00:01.0";
    for root in [&own, &other] {
        for dir in [
            place,
            "devices/system/node/node0",
            "devices/system/cpu/cpu3/topology",
            "bus/pci/devices",
        ] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join(place).join("vendor"), "0x15b3\n").unwrap();
        fs::write(root.join("devices/system/node/node0/cpulist"), "3\n").unwrap();
        fs::write(root.join("devices/system/cpu/cpu3/topology/physical_package_id"), "5\n")
            .unwrap();
        symlink(root.join(place), root.join("bus/pci/devices/0000:00:01.0")).unwrap();
    }
    fs::create_dir_all(other.join(place).join("infiniband/mlx5_0")).unwrap();
    let capture = || capture_sysfs(&own);
    let address: Address = "0000:00:01.0".parse().unwrap();
    let first = capture().unwrap();
    assert_eq!((first.numa_nodes, first.packages.get(&0)), (Some(1), Some(&5)));
    let lead = |name: &str| {
        let from = own.join(name);
        let kept = own.join("kept");
        fs::rename(&from, &kept).or_else(|_| fs::create_dir(&kept)).unwrap();
        symlink(other.join(name), &from).unwrap();
        let found = capture();
        fs::remove_file(&from).unwrap();
        fs::rename(&kept, &from).unwrap();
        found
    };
    assert_eq!(lead(&format!("{place}/vendor")).unwrap().functions[&address].vendor, None);
    assert_eq!(lead(&format!("{place}/infiniband")).unwrap().functions[&address].rdma, None);
    for name in ["devices/system/node/node0", "devices/system/node", "devices/system"] {
        assert_eq!(lead(name).unwrap().numa_nodes, None, "{name}");
    }
    for name in ["cpu3/topology/physical_package_id", "cpu3/topology", "cpu3"] {
        let found = lead(&format!("devices/system/cpu/{name}")).unwrap();
        assert!(found.packages.is_empty(), "{name}");
    }
    for name in ["bus/pci/devices", "bus/pci", "bus"] {
        // The folders below `devices` say the same.
        assert_eq!(lead(name).unwrap().functions.len(), 1, "{name}");
    }
    fs::remove_dir_all(own.join("bus")).unwrap();
    assert!(lead("devices/pci0000:00").is_err() && lead("devices").is_err());
}

/// They are on no bus of the machine's, and have no link that carries their rate.
#[test]
fn functions_of_software_devices_are_left_out() {
    let root = tempfile::tempdir().unwrap();
    for function in ["0000:00:01.0", "be11:01:00.0"] {
        let dir = root.path().join("bus/pci/devices").join(function);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("vendor"), "0x15b3\n").unwrap();
        fs::write(dir.join("class"), "0x020700\n").unwrap();
    }
    let capture = capture_sysfs(root.path()).unwrap();
    let has = |address: &str| capture.get(address.parse().unwrap()).is_some();
    assert!(has("0000:00:01.0") && !has("be11:01:00.0"));
}
