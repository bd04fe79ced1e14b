//! Forms of `lspci`, `nvidia-smi topo -m` and sysfs, each by a machine small enough to read: what
//! each shows, what it lacks, and how it is refused.

use std::fs;
use std::path::Path;

use bellpush_pcie::Origin;
use bellpush_pcie::topology::{
    Address, Capture, Class, Collapse, Distance, Kind, Matrix, Rate, Tree, assign, assign_topology,
    builtin, capture_sysfs, from_lspci, survey_text, to_text, unknowns, write_fans,
};

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

fn kinds(capture: &Capture, kind: Kind) -> Vec<String> {
    capture.of_kind(kind).iter().map(ToString::to_string).collect()
}

fn class(capture: &Capture, a: &str, b: &str) -> String {
    Tree::new(capture).class(at(a), at(b)).to_string()
}

/// A switch behind a switch, a device without names, a VMD's domain, a bridge with nothing below.
const TREE: &str = r"
$ lspci -t
-+-[10000:e0]-+-02.0-[e1]----00.0
 |            \-03.0-[e2]--
 +-[0000:40]-+-00.0
 |           \-01.1-[41-48]----00.0-[42-48]--+-00.0-[43]----00.0
 |                                           +-01.0-[44]--+-00.0
 |                                           |            \-00.1
 |                                           \-02.0-[45-48]----00.0-[46-48]--+-00.0-[47]----00.0
 |                                                                           \-01.0-[48]----00.0
 \-[0000:00]-+-00.0
             \-01.1-[01]----00.0
";

const NAMES: &str = "\
43:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
44:00.0 Ethernet controller [0200]: Mellanox Technologies MT2892 Family [ConnectX-6 Dx] [15b3:101d]
44:00.1 Ethernet controller [0200]: Mellanox Technologies MT2892 Family [ConnectX-6 Dx] [15b3:101d]
47:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
48:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
01:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics Family [1a03:2000]
10000:e1:00.0 Non-Volatile memory controller [0108]: Intel Corporation NVMe SSD [8086:0b60]
";

#[test]
fn a_tree_without_names_and_the_names_beside_it() {
    let mut capture = from_lspci(TREE).unwrap();
    assert_eq!(kinds(&capture, Kind::Gpu), [""; 0]);
    assert!(unknowns(&Tree::new(&capture))[0].contains("lspci -nn beside it"));
    capture.merge(from_lspci(NAMES).unwrap());
    let gpus = kinds(&capture, Kind::Gpu);
    assert_eq!(gpus, ["0000:43:00.0", "0000:47:00.0", "0000:48:00.0"]);
    assert_eq!(kinds(&capture, Kind::Nic), ["0000:44:00.0", "0000:44:00.1"]);
    assert_eq!(class(&capture, "43:00.0", "44:00.0"), "PIX");
    assert_eq!(class(&capture, "44:00.0", "44:00.1"), "PIX");
    assert_eq!(class(&capture, "47:00.0", "48:00.0"), "PIX");
    assert_eq!(class(&capture, "43:00.0", "48:00.0"), "PXB");
    assert_eq!(class(&capture, "43:00.0", "01:00.0"), "NODE|SYS");
    assert_eq!(class(&capture, "43:00.0", "10000:e1:00.0"), "NODE|SYS");
    let tree = Tree::new(&capture);
    assert_eq!(tree.top(at("10000:e1:00.0")).to_string(), "pci10000:e0");
    assert_eq!(tree.chain(at("48:00.0")).len(), 5);
    // All as near: the ports of one card are shared out, and the third GPU shares.
    let all = assign(&tree);
    assert_eq!(all[0].class, Class::Known(Distance::Pix));
    assert_eq!(all.iter().filter(|a| a.shared_with.is_empty()).count(), 1);
    assert!(all.iter().all(|a| a.ties.len() == 1));
    // The topology's distances are these classes.
    let t = tree.topology("t", Some(22.0)).unwrap();
    let node = |id: &str| t.find(id).unwrap();
    assert_eq!(t.distance(node("0000:43:00.0"), node("0000:48:00.0")), Distance::Pxb);
    assert!(survey_text(&tree, None).contains("link unknown"));
    let lacks = unknowns(&tree).join("\n");
    for said in ["fastest link of 5 of 5", "NUMA node of 5", "ACS of", "alternate below"] {
        assert!(lacks.contains(said), "{said}: {lacks}");
    }
}

#[test]
fn a_tree_with_names_is_read_by_names() {
    let text = r"
-[0000:00]-+-00.0  Intel Corporation Device 0998
           +-02.0-[10-14]----00.0-[11-14]--+-00.0-[12]--+-00.0  NVIDIA Corporation Device 2bb5
           |                               |            \-00.1  NVIDIA Corporation Device 22e8
           |                               +-01.0-[13]----00.0  Mellanox Technologies SoC Management Interface
           |                               \-02.0-[14]----00.0  NVIDIA Corporation Device 22a3
           +-03.0-[15]----00.0  Intel Corporation Ethernet Controller E810-C for QSFP
           +-04.0-[16]----00.0  Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct]
           \-05.0-[17]----00.0  Matrox Electronics Systems Ltd. G200eR2
";
    let capture = from_lspci(text).unwrap();
    // Neither sound, nor an NVSwitch, nor a BMC, nor what else is on a NIC.
    assert_eq!(kinds(&capture, Kind::Gpu), ["0000:12:00.0", "0000:16:00.0"]);
    assert_eq!(kinds(&capture, Kind::Nic), ["0000:15:00.0"]);
}

#[test]
fn classes_and_vendors_tell_gpus_and_nics() {
    let line = |class: &str, id: &str| format!("20:00.0 {class}: {id} (rev 01)\n");
    let kind = |class, id| from_lspci(&line(class, id)).unwrap().get(at("20:00.0")).unwrap().kind();
    for (class, id) in [
        ("0302", "10de:20f1"),
        ("0300", "10de:2684"),
        ("0380", "1002:740f"),
        ("1200", "1002:74a1"),
        ("0380", "8086:0bd5"),
        ("0300", "8086:56a0"),
    ] {
        assert_eq!(kind(class, id), Some(Kind::Gpu), "{class} {id}");
    }
    for (class, id) in [
        ("0200", "15b3:1021"),
        ("0207", "15b3:1021"),
        ("0208", "8086:24f0"), // Omni-Path
        ("0200", "1d0f:efa2"),
    ] {
        assert_eq!(kind(class, id), Some(Kind::Nic), "{class} {id}");
    }
    let omni = "Intel Corporation Omni-Path HFI Silicon 100 Series [discrete]";
    let named = from_lspci(&format!("20:00.0 Fabric controller: {omni} (rev 11)\n")).unwrap();
    let t = Tree::new(&named).topology("t", Some(22.0)).unwrap();
    let family = t.nic_family(t.find("0000:20:00.0").unwrap()).unwrap();
    assert_eq!((family.driver, family.gbps), (Some("hfi1"), Some(100)));
    for (class, id) in [
        ("0300", "1a03:2000"), // ASPEED
        ("0300", "102b:0536"), // Matrox
        ("0300", "1002:164e"), // inside a Ryzen
        ("0403", "10de:22e8"), // sound
        ("0680", "10de:22a3"), // NVSwitch
        ("0801", "15b3:c2d5"), // BlueField's management
        ("0280", "8086:2725"), // Wi-Fi
    ] {
        assert_eq!(kind(class, id), None, "{class} {id}");
    }
    let inside = from_lspci("00:02.0 0300: 8086:4680\n").unwrap();
    assert_eq!(kinds(&inside, Kind::Gpu), [""; 0]);
}

const DETAILS: &str = "\
16:00.0 PCI bridge: Intel Corporation Device 347a (rev 04) (prog-if 00 [Normal decode])
\tNUMA node: 1
\tIOMMU group: 7
\tBus: primary=16, secondary=17, subordinate=18, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #5, Speed 16GT/s, Width x8, ASPM L1, Exit Latency L1 <16us
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (ok)
\tCapabilities: [150 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

17:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)
\tNUMA node: 1
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevCtl:\tCorrErr- NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-
\t\t\tMaxPayload 128 bytes, MaxReadReq 4096 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)

18:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]
\tNUMA node: 1
\tCapabilities: <access denied>

99:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
";

#[test]
fn details_are_read_and_what_is_denied_is_unknown() {
    let capture = from_lspci(DETAILS).unwrap();
    let tree = Tree::new(&capture);
    // Both ends limit the link, whatever it does while idle.
    let rate = |generation, lanes| Some(Rate { generation, lanes });
    assert_eq!(tree.link(at("17:00.0")), (rate(4, 8), rate(1, 8)));
    assert_eq!(capture.get(at("17:00.0")).unwrap().mrrs, Some(4096));
    let root = capture.get(at("16:00.0")).unwrap();
    assert_eq!((root.redirects, root.iommu_group), (Some(true), Some(7)));
    // The bridge above the last GPU is not in the capture, so its class is not either.
    assert_eq!(class(&capture, "17:00.0", "99:00.0"), "?");
    let text = survey_text(&tree, None);
    assert!(text.contains("Gen4 x8 (now Gen1 x8)") && text.contains("redirects peer"), "{text}");
    let lacks = unknowns(&tree).join("\n");
    assert!(lacks.contains("bridges above of 2 of 3"), "{lacks}");
    assert!(lacks.contains("1 of 4 functions: their capabilities were hidden"), "{lacks}");
    // A topology takes no link that was not seen.
    let t = tree.topology("t", Some(22.0)).unwrap();
    assert_eq!(t.node(t.find("0000:18:00.0").unwrap()).link, None);
    // Relaxed ordering where it was read; elsewhere it is unknown.
    let relaxed = |id: &str| t.node(t.find(id).unwrap()).relaxed_ordering;
    assert_eq!((relaxed("0000:17:00.0"), relaxed("0000:18:00.0")), (Some(true), None));
    assert!(lacks.contains("relaxed ordering of 2 of 3"), "{lacks}");
    assert!(text.contains("RlxdOrd+") && to_text(&t).contains("relaxed ordering"), "{text}");
    let off = from_lspci(&DETAILS.replace("RlxdOrd+", "RlxdOrd-")).unwrap();
    let t = Tree::new(&off).topology("t", Some(22.0)).unwrap();
    assert_eq!(t.node(t.find("0000:17:00.0").unwrap()).relaxed_ordering, Some(false));
}

/// A device's functions are set to the same packets, and share one link.
#[test]
fn a_function_whose_packets_are_hidden_has_its_devices() {
    let port = |function: u32, details: &str| {
        format!(
            "17:00.{function} Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n\
             \tNUMA node: 1\n\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n{details}\
             \t\tLnkCap:\tPort #0, Speed 16GT/s, Width x8, ASPM not supported\n"
        )
    };
    let set = "\t\tDevCtl:\tCorrErr- NonFatalErr+ FatalErr+ UnsupReq-\n\t\t\tMaxPayload 512 bytes, MaxReadReq 4096 bytes\n";
    let (root, _) = DETAILS.split_once("\n\n").unwrap();
    let capture = from_lspci(&format!("{root}\n\n{}\n{}", port(0, ""), port(1, set))).unwrap();
    let t = Tree::new(&capture).topology("t", Some(22.0)).unwrap();
    let packets = |id: &str| {
        let node = t.node(t.find(id).unwrap());
        let link = node.link.unwrap();
        (link.mps.bytes(), node.link_origin.mps, link.mrrs, node.link_origin.mrrs)
    };
    let (first, second) = (packets("0000:17:00.0"), packets("0000:17:00.1"));
    assert_eq!((first.0, second.0), (512, 512));
    assert_eq!([first.1, second.1], [Origin::Read; 2]);
    // What it asks for at once is a function's own.
    assert_eq!([first.3, second.3], [Origin::Assumed, Origin::Read]);
}

#[test]
fn virtual_functions_are_told() {
    let text = "\
3b:00.0 Ethernet controller [0200]: Mellanox Technologies MT2892 [ConnectX-6 Dx] [15b3:101d]
\tCapabilities: [180 v1] Single Root I/O Virtualization (SR-IOV)
\t\tInitial VFs: 8, Total VFs: 8, Number of VFs: 2, Function Dependency Link: 00
\t\tVF offset: 2, stride: 1, Device ID: 101e
3b:00.2 Ethernet controller [0200]: Mellanox Technologies Device 101e [15b3:101e]
\t\t\tRlxdOrd- ExtTag- PhantFunc- AuxPwr- NoSnoop- FLReset-
3b:00.3 Ethernet controller [0200]: Mellanox Technologies Device 101e [15b3:101e]
3b:00.4 Ethernet controller [0200]: Mellanox Technologies mlx5 Virtual Function [15b3:1018]
3c:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1]
";
    let capture = from_lspci(text).unwrap();
    let is_virtual = |f| capture.is_virtual(at(&format!("3b:00.{f}")));
    assert_eq!([0, 2, 3, 4].map(is_virtual), [false, true, true, true]);
    let tree = Tree::new(&capture);
    assert_eq!(assign(&tree)[0].nic, Some(at("3b:00.0")));
    assert!(survey_text(&tree, None).contains("virtual function"));
    // Their own register says nothing (SR-IOV 1.1, 3.5.4).
    let t = tree.topology("t", Some(22.0)).unwrap();
    assert_eq!(t.node(t.find("0000:3b:00.2").unwrap()).relaxed_ordering, None);
}

/// A hypervisor's GPUs are those that nvidia-smi numbers, and a guest's are what it was given.
#[test]
fn virtual_functions_of_a_gpu_are_none_beside_it() {
    let gpu = |function: u32| {
        format!("3b:00.{function} 3D controller [0302]: NVIDIA Corporation GA100 [10de:20f1]\n")
    };
    let capability = "\tCapabilities: [bcc v1] Single Root I/O Virtualization (SR-IOV)\n\
        \t\tInitial VFs: 16, Total VFs: 16, Number of VFs: 2, Function Dependency Link: 00\n\
        \t\tVF offset: 4, stride: 1, Device ID: 20f1\n";
    let guest = [gpu(4), gpu(5)].concat();
    let count = |text: &str| {
        let capture = from_lspci(text).unwrap();
        let tree = Tree::new(&capture);
        let t = tree.topology("t", Some(22.0)).unwrap();
        let given = assign(&tree).len();
        (capture.of_kind(Kind::Gpu).len(), t.of_kind(Kind::Gpu).len(), given)
    };
    assert_eq!(count(&format!("{}{capability}{guest}", gpu(0))), (1, 1, 1));
    assert_eq!(count(&guest), (2, 2, 2));
}

/// What looks at every pair ends soon: no host has so many.
#[test]
fn captures_of_too_much_have_no_topology() {
    let of = |devices: usize, nodes: usize| {
        let line = |i: usize| {
            let (bus, slot, node) = (i / 32 + 1, i % 32, i % nodes);
            let name = "3D controller: NVIDIA Corporation GA100";
            format!("{bus:02x}:{slot:02x}.0 {name}\n\tNUMA node: {node}\n")
        };
        let text: String = (0..devices).map(line).collect();
        Tree::new(&from_lspci(&text).unwrap()).topology("t", None).map(|t| t.nodes().count())
    };
    let refused = |devices, nodes| of(devices, nodes).unwrap_err().to_string();
    assert!(of(64, 64).is_ok());
    assert_eq!(refused(65, 65), "65 NUMA nodes of GPUs and NICs: at most 64");
    assert_eq!(refused(1025, 1), "1025 GPUs and NICs: at most 1024");
}

/// As a hypervisor has them.
#[test]
fn virtual_functions_beside_their_cards_are_not_too_many() {
    let nic = |number: usize| {
        let (bus, slot, function) = (number >> 8, number >> 3 & 31, number & 7);
        let name = "Ethernet controller [0200]: Mellanox Technologies MT2892 [15b3:101d]";
        format!("{bus:02x}:{slot:02x}.{function} {name}\n")
    };
    let capability = "\tCapabilities: [180 v1] Single Root I/O Virtualization (SR-IOV)\n\
        \t\tInitial VFs: 2000, Total VFs: 2000, Number of VFs: 1100, Function Dependency Link: 00\n\
        \t\tVF offset: 1, stride: 1, Device ID: 101e\n";
    let text: String = (0x101..0x101 + 1100).map(nic).collect();
    let capture = from_lspci(&format!("{}{capability}{text}", nic(0x100))).unwrap();
    let t = Tree::new(&capture).topology("t", None).unwrap();
    assert_eq!(t.of_kind(Kind::Nic).len(), 1101);
}

#[test]
fn refusals_name_the_line() {
    let refused = |text: &str| from_lspci(text).unwrap_err().to_string();
    assert_eq!(refused(""), "line 1: no device: lspci's output names some");
    assert_eq!(refused("hello\nworld\n"), "line 2: no device: lspci's output names some");
    for (text, said) in [
        ("-[0000:00]-+-00.0\n  +-01.0\n", "line 2: no branch of the tree above is in column 3"),
        ("-[0000:00]-+-00.0\nhello\n", "line 2: no line of lspci's tree"),
        ("-[0000:00]-+-0x.0\n", "line 1: \"0x.0\" is no device and function"),
        ("-[0000:00]-+-20.0\n", "line 1: \"20.0\" is no device and function"),
        ("-[0000:00-\n", "line 1: a bus without its ]"),
        ("-[zz]-00.0\n", "line 1: [zz] is no bus"),
        ("01:00.0 VGA\n", "line 1: 01:00.0: no class and name"),
        ("01:00.0 VGA: x\n\tNUMA node: one\n", "line 2: \"one\" is no number"),
        ("01:00.0 VGA: x\n\tBus: primary=00, secondary=1ff, subordinate=2\n", "line 2: 1ff is no"),
        ("01:00.0 VGA: x\nhello\n", "line 2: neither a device nor a line of one"),
    ] {
        let e = refused(text);
        assert!(e.starts_with(said), "{text:?}: {e}");
    }
    let refused = |text: &str| Matrix::parse(text).unwrap_err().to_string();
    let head = "\tGPU0\tGPU1\tCPU Affinity\n";
    for (text, said) in [
        ("", "line 1: no header with GPU0"),
        (head, "line 1: the row of GPU0 is missing"),
        ("\tGPU0\tGPU0\tCPU Affinity\n", "line 1: GPU0 stands twice"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU1\t X \tSYS\t0\n", "line 2: row 1 of 2 must be that of"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t\n", "line 2: GPU0 has 1 classes of 2"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tFOO\n", "line 2: \"FOO\" is no class"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tSYS\tSYS\n", "line 2: GPU0 and GPU0: X stands for"),
        ("\tGPU0\tCPU Affinity\nGPU0\tX\t1\t2\t3\t4\n", "line 2: GPU0 has more columns"),
    ] {
        let e = refused(text);
        assert!(e.starts_with(said), "{text:?}: {e}");
    }
}

#[test]
fn an_old_or_contradictory_matrix() {
    let text = "\u{1b}[4m\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\u{1b}[0m\nGPU0\tX\tSOC\tPHB\t0-7\n\
        GPU1\tSOC\tX\tSOC\t8-15\nmlx5_0\tPHB\tNODE\tX\t\n";
    let m = Matrix::parse(text).unwrap();
    assert_eq!(m.class(0, 1), Some(Distance::Sys));
    assert_eq!(m.asymmetries(), [(1, 2)]);
    assert_eq!(Matrix::parse(&m.to_text()), Ok(m));
}

/// Two packages of two NUMA nodes each (NPS2), a node of memory alone, a VMD below a root bus.
fn numa_machine(root: &Path) {
    let write = |path: &str, text: &str| {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    };
    for (node, cpus, cpu, package) in
        [(0, "0-7", 0, 0), (1, "8-15", 8, 0), (2, "16-23", 16, 1), (3, "24-31", 24, 1)]
    {
        write(&format!("devices/system/node/node{node}/cpulist"), &format!("{cpus}\n"));
        let path = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        write(&path, &format!("{package}\n"));
        for (bus, class, vendor) in [(1, "0x030200", "0x10de"), (2, "0x020700", "0x15b3")] {
            let dir =
                format!("devices/pci0000:{node}0/0000:{node}0:0{bus}.0/0000:{node}{bus}:00.0");
            write(&format!("{dir}/class"), class);
            write(&format!("{dir}/vendor"), vendor);
            write(&format!("{dir}/numa_node"), &node.to_string());
            write(&format!("{dir}/max_link_speed"), "32.0 GT/s PCIe\n");
            write(&format!("{dir}/max_link_width"), "16\n");
            write(&format!("{dir}/current_link_speed"), "2.5 GT/s PCIe\n");
            write(&format!("{dir}/current_link_width"), "16\n");
        }
    }
    write("devices/system/node/node4/cpulist", "\n");
    let vmd = "devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0";
    write(&format!("{vmd}/class"), "0x010802");
    fs::create_dir_all(root.join("devices/pci0000:00/0000:00:0e.0/infiniband/mlx5_0")).unwrap();
}

#[test]
fn numa_nodes_are_not_packages() {
    let dir = tempfile::tempdir().unwrap();
    numa_machine(dir.path());
    let capture = capture_sysfs(dir.path()).unwrap();
    let packages: Vec<_> = (0..5).map(|n| capture.package(n)).collect();
    assert_eq!(packages, [Some(0), Some(0), Some(1), Some(1), None]);
    // As nvidia-smi has it, NUMA nodes make SYS.
    assert_eq!(class(&capture, "01:00.0", "11:00.0"), "SYS");
    assert_eq!(class(&capture, "01:00.0", "02:00.0"), "PHB");
    let tree = Tree::new(&capture);
    assert_eq!(tree.top(at("10000:e1:00.0")).to_string(), "pci10000:e0");
    let t = tree.topology("nps2", Some(22.0)).unwrap();
    // Within a package no limit is known, between packages there is one link.
    let rates: Vec<f64> = t.interconnects().iter().map(|l| l.gb_per_s).collect();
    assert_eq!(rates.iter().filter(|&&rate| rate == 22.0).count(), 1, "{rates:?}");
    assert_eq!(rates.len(), 3);
    let text = survey_text(&tree, None);
    assert!(text.contains("NUMA node 3 of package 1"), "{text}");
    let link = t.node(t.find("0000:01:00.0").unwrap()).link.unwrap();
    assert_eq!(link.speed.generation().number(), 5);
}

#[test]
fn built_in_topologies_share_their_nics_out() {
    let t = builtin("dgx-h100").unwrap();
    let all = assign_topology(&t);
    let id = |n| t.node(n).id.as_str();
    for (i, own) in all.iter().enumerate() {
        assert_eq!(id(own.nic.unwrap())[3..], id(own.gpu)[3..], "{i}");
        assert_eq!((own.ties.len(), own.shared_with.len()), (1, 0));
    }
}

/// Three root ports, each with a PEX890xx and two GPUs; the ports' device as given.
fn three_switches(root_port: &str) -> String {
    let one = |i: u32| {
        format!(
            "{i}0:01.1 0604: {root_port}\n\tBus: primary={i}0, secondary={i}1, subordinate={i}3\n\
             {i}1:00.0 0604: 1000:c030\n\tBus: primary={i}1, secondary={i}2, subordinate={i}3\n\
             {i}2:00.0 0604: 1000:c030\n\tBus: primary={i}2, secondary={i}3, subordinate={i}3\n\
             {i}3:00.0 0302: 10de:2bb5\n{i}3:01.0 0302: 10de:2bb5\n"
        )
    };
    [1, 2, 3].map(one).concat()
}

#[test]
fn the_collapse_is_reported_of_one_platform_alone() {
    for (root_port, is_reported) in [("1022:153e", true), ("8086:352a", false)] {
        let capture = from_lspci(&three_switches(root_port)).unwrap();
        let all = write_fans(&Tree::new(&capture));
        assert_eq!(all.len(), 3, "{root_port}");
        assert!(all.iter().all(|c| c.known.is_some() == is_reported && c.roots.len() == 2));
        let text = survey_text(&Tree::new(&capture), None);
        assert_eq!(text.contains("on this platform is unknown"), !is_reported, "{text}");
        // The simulation knows what the drawing does.
        let topology = Tree::new(&capture).topology("t", Some(22.0)).unwrap();
        assert_eq!(matches!(topology.collapse(), Collapse::Seen(c) if c.roots == 2), is_reported);
        assert!(text.contains("(Broadcom PEX890xx)"), "{text}");
    }
    // Of one GPU below each switch it was seen nowhere.
    let one = three_switches("1022:153e");
    let one = (1..4).fold(one, |all, i| all.replace(&format!("{i}3:01.0 0302: 10de:2bb5\n"), ""));
    assert_eq!(write_fans(&Tree::new(&from_lspci(&one).unwrap())), []);
    // Two root ports: each has one other.
    let two = three_switches("1022:153e");
    let two = from_lspci(&two[..two.find("30:01.1").unwrap()]).unwrap();
    assert_eq!(write_fans(&Tree::new(&two)), []);
}

/// What no machine has is refused where it stands, not drawn.
#[test]
fn bridges_that_contradict_each_other_are_refused() {
    let bridge = |at: &str, buses: &str| {
        format!(
            "{at} PCI bridge [0604]: A [8086:0001]\n\tBus: primary=00, {buses}, sec-latency=0\n"
        )
    };
    let refused = |text: &str| from_lspci(text).unwrap_err().to_string();
    let one = bridge("00:01.0", "secondary=01, subordinate=02");
    assert!(from_lspci(&one).is_ok());
    let two = one.clone() + &bridge("00:02.0", "secondary=01, subordinate=01");
    assert_eq!(refused(&two), "line 4: both 0000:00:01.0 and 0000:00:02.0 lead to bus 01");
    let own = bridge("01:00.0", "secondary=01, subordinate=01");
    assert_eq!(refused(&own), "line 2: 0000:01:00.0 leads to buses 01-01, not above its own");
    let cycle = one.clone() + &bridge("01:00.0", "secondary=00, subordinate=01");
    assert!(refused(&cycle).starts_with("line 4: 0000:01:00.0 leads to buses 00-01"));
    let backwards = bridge("00:01.0", "secondary=05, subordinate=04");
    assert!(refused(&backwards).starts_with("line 2: "));
    assert!(from_lspci(&bridge("00:01.0", "secondary=00, subordinate=00")).is_ok());
    let tree = "-[0000:00]-+-01.0-[01]----00.0\n           \\-02.0-[01]----00.0\n";
    assert_eq!(refused(tree), "line 2: both 0000:00:01.0 and 0000:00:02.0 lead to bus 01");
    // The same bridge, told twice, is one.
    assert!(from_lspci(&(one.clone() + &one)).is_ok());
    let mut merged = from_lspci(&one).unwrap();
    merged.merge(from_lspci(&bridge("00:02.0", "secondary=01, subordinate=01")).unwrap());
    assert!(merged.contradiction().unwrap().contains("lead to bus 01"));
    assert_eq!(from_lspci(&one).unwrap().contradiction(), None);
}
