//! Captures of real machines (`tests/fixtures/topo`, sources in its SOURCES.md): what is read of
//! them, and whether the classes equal those that nvidia-smi printed on the same machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bellpush_pcie::Origin;
use bellpush_pcie::sim::{Flow, Params, copy_rows, simulate_copy_row, simulate_flows};
use bellpush_pcie::topology::{
    Address, Capture, Class, Distance, Kind, Matrix, Port, Rate, Topology, Tree, assign,
    assign_matrix, capture_sysfs, compare, from_lspci, from_toml, loads, matrix_text, survey_text,
    to_toml, to_tree, unknowns, write_fans,
};
use proptest::prelude::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/topo")
}

fn text(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn names(extension: &str) -> Vec<String> {
    let all = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<String> = all
        .map(|name| name.into_string().unwrap())
        .filter(|name| name.ends_with(extension))
        .collect();
    names.sort();
    names
}

fn matrix(name: &str) -> Matrix {
    Matrix::parse(&text(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn lspci(files: &[&str]) -> Capture {
    let mut all = Capture::default();
    for name in files {
        all.merge(from_lspci(&text(name)).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
    all
}

fn at(text: &str) -> Address {
    text.parse().unwrap()
}

#[test]
fn every_capture_has_its_source() {
    let sources = text("SOURCES.md");
    let all = [names(".smi"), names(".lspci"), names(".tree"), names(".sysfs")].concat();
    assert!(all.len() >= 20, "{}", all.len());
    for name in all {
        assert!(sources.contains(&format!("| {name} | ")), "{name}");
    }
}

/// The matrix printed again is the same, the coarse topology has its classes, and every GPU has
/// one of its nearest NICs.
#[test]
fn matrices_survive_printing_and_give_their_classes_back() {
    for name in names(".smi") {
        let m = matrix(&name);
        assert_eq!(Matrix::parse(&m.to_text()).as_ref(), Ok(&m), "{name}");
        assert_eq!(m.asymmetries(), [], "{name}");
        let t = m.topology(&name, Some(22.0)).unwrap();
        let node = |i: usize| t.find(&m.rows()[i].name).unwrap();
        let n = m.rows().len();
        for (a, b) in (0..n).flat_map(|a| (0..a).map(move |b| (a, b))) {
            if let Some(class) = m.class(a, b) {
                assert_eq!(t.distance(node(a), node(b)), class, "{name}: {a} {b}");
            }
        }
        let nics = m.of_kind(Kind::Nic);
        for own in assign_matrix(&m) {
            let nearest = nics.iter().filter_map(|&nic| m.class(own.gpu, nic)).min();
            let class = own.nic.and_then(|nic| m.class(own.gpu, nic));
            assert_eq!(class, nearest, "{name}: {}", own.gpu);
        }
        assert!(matrix_text(&m).contains("Not known"), "{name}");
    }
}

fn given(name: &str) -> Vec<String> {
    let m = matrix(name);
    let label = |i: usize| m.rows()[i].name.clone();
    let all = assign_matrix(&m).into_iter();
    all.map(|a| format!("{} {}", a.nic.map_or("none".into(), label), a.class)).collect()
}

#[test]
fn nics_of_matrices() {
    assert_eq!(given("esc8000a-e12.smi"), ["NIC0 NODE", "NIC1 NODE", "NIC2 NODE", "NIC3 NODE"]);
    assert_eq!(given("miss-alignment-106.smi")[2..], ["NIC0 NODE", "NIC1 NODE"]);
    assert_eq!(given("ucx-3386.smi"), ["mlx5_0 SYS", "mlx5_1 SYS", "mlx5_0 NODE", "mlx5_1 NODE"]);
    assert_eq!(given("vllm-19607.smi"), ["NIC6 PXB", "NIC7 PXB"]);
    assert_eq!(given("quda-669.smi")[4..], ["mlx5_0 PHB"; 4]);
    assert_eq!(given("horovod-893.smi")[4..], ["mlx4_0 PIX"; 4]);
    assert_eq!(given("gpuallocator-17.smi")[6], "NIC0 PHB");
    // No NIC in the matrix.
    assert_eq!(given("nccl-1439.smi"), ["none ?"; 8]);
}

/// Every pair whose class both show is the same, and there are as many as there should be.
fn equals(files: &[&str], smi: &str, compared: usize, exact: bool) {
    let (capture, m) = (lspci(files), matrix(smi));
    let tree = Tree::new(&capture);
    let c = compare(&tree, &m);
    assert_eq!(c.differences, [], "{files:?}: {:?}", c.remarks);
    assert_eq!(c.compared, compared, "{files:?}: {:?}", c.remarks);
    let address = |i: usize| c.devices.iter().find(|(name, _)| *name == m.rows()[i].name);
    for (a, b) in (0..m.rows().len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let (Some((_, x)), Some((_, y))) = (address(a), address(b)) else { continue };
        let (class, printed) = (tree.class(*x, *y), m.class(a, b).unwrap());
        assert!(class.allows(printed), "{files:?}: {a} {b}: {class} {printed}");
        assert!(!exact || class == Class::Known(printed), "{files:?}: {a} {b}: {class}");
    }
}

#[test]
fn classes_equal_nvidia_smis() {
    equals(&["esc8000a-e13p.lspci"], "esc8000a-e13p.smi", 28, true);
    equals(&["esc8000a-e12.tree", "esc8000a-e12.lspci"], "esc8000a-e12.smi", 28, true);
    // lspci's tree shows no NUMA nodes: NODE and SYS look alike.
    equals(&["esc8000a-e12.tree"], "esc8000a-e12.smi", 28, false);
    equals(&["wrx90.tree"], "wrx90.smi", 6, false);
    // Every machine of which both are there.
    let trees = [names(".lspci"), names(".tree")].concat();
    let stem = |name: &String| name.split_once('.').map(|(stem, _)| stem.to_owned());
    let trees: Vec<String> = trees.iter().filter_map(stem).collect();
    let both: Vec<String> =
        names(".smi").iter().filter_map(stem).filter(|name| trees.contains(name)).collect();
    assert_eq!(both, ["esc8000a-e12", "esc8000a-e13p", "wrx90"], "compare the new one above");
    // Another machine's matrix: what differs is said.
    let capture = lspci(&["esc8000a-e13p.lspci"]);
    let tree = Tree::new(&capture);
    let other = compare(&tree, &matrix("nccl-1439.smi"));
    assert!(other.differences.iter().any(|d| d.a == "GPU0" && d.printed == Distance::Phb));
    let text = survey_text(&tree, Some(&matrix("nccl-1439.smi")));
    assert!(text.contains("GPU0 GPU2: NODE here, PHB of nvidia-smi"), "{text}");
    let fewer = compare(&tree, &matrix("nccl-667.smi"));
    assert_eq!(fewer.compared, 0);
    assert!(fewer.remarks[0].contains("8 GPUs of NVIDIA captured, 4 in"), "{:?}", fewer.remarks);
}

#[test]
fn links_switches_acs_and_the_collapse_of_the_turin_machine() {
    let capture = lspci(&["esc8000a-e13p.lspci"]);
    let tree = Tree::new(&capture);
    let (fast, idle) = (Rate { generation: 5, lanes: 16 }, Rate { generation: 1, lanes: 16 });
    assert_eq!(tree.link(at("06:00.0")), (Some(fast), Some(idle)));
    assert_eq!(capture.get(at("01:00.0")).unwrap().port, Some(Port::Upstream));
    assert_eq!(tree.redirects(at("01:00.0")), Some(false));
    // The BMC's VGA is no GPU.
    assert_eq!(capture.of_kind(Kind::Gpu).len(), 8);
    let all = write_fans(&tree);
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|c| c.known.is_some() && c.roots.len() == 3 && c.sources.len() == 2));
    let text = survey_text(&tree, None);
    for said in ["Gen5 x16 (now Gen1 x16)", "PEX890xx, 6 downstream ports", "together get 2.7 GB/s"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    // 01:00.0 and 71:00.0 are of one chip, in whose writes nothing collapses, and no capture shows it.
    assert!(
        text.contains("\n  Unless both switches are of one chip, which may carry such"),
        "{text}"
    );
    let t = tree.topology("e13p", Some(22.0)).unwrap();
    let link = t.node(t.find("0000:06:00.0").unwrap()).link.unwrap();
    assert_eq!(link.speed.generation().number(), 5);
    // No pattern where GPUs are on root ports alone.
    let plain = lspci(&["esc8000a-e12.tree"]);
    assert_eq!(write_fans(&Tree::new(&plain)), []);
}

#[test]
fn nics_of_captures() {
    let capture = lspci(&["esc8000a-e12.tree", "esc8000a-e12.lspci"]);
    let all = assign(&Tree::new(&capture));
    let nics: Vec<String> = all.iter().map(|a| a.nic.unwrap().to_string()).collect();
    // The X710s have no RDMA and are nobody's.
    assert_eq!(nics, ["0000:21:00.0", "0000:21:00.1", "0000:81:00.0", "0000:81:00.1"]);
    assert!(all.iter().all(|a| a.class == Class::Known(Distance::Node) && a.ties.len() == 1));
    // The second port has the first one's link and NUMA node.
    let tree = Tree::new(&capture);
    assert_eq!(tree.link(at("21:00.1")), tree.link(at("21:00.0")));
    assert_eq!(
        (tree.link(at("21:00.1")).0.unwrap().generation, tree.numa(at("81:00.1"))),
        (5, Some(1))
    );
    let capture = lspci(&["cmlgpu.lspci"]);
    let all = assign(&Tree::new(&capture));
    assert_eq!(all[0].nic, Some(at("01:00.0")));
    assert_eq!(all[1].nic, Some(at("83:00.0")));
    assert_eq!(all[1].class, Class::Known(Distance::Phb));
}

/// Makes the tree that a list of functions describes, as `/sys` has it.
fn make_sysfs(root: &Path, list: &str) {
    let devices = root.join("bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    for line in list.lines() {
        let mut words = line.split(' ');
        let place = words.next().unwrap();
        if place.starts_with("node") {
            let node = root.join("devices/system/node").join(place);
            fs::create_dir_all(&node).unwrap();
            let cpus = line.split("cpulist=").nth(1).unwrap().split(' ').next().unwrap();
            let package = line.split("package=").nth(1).unwrap();
            fs::write(node.join("cpulist"), cpus).unwrap();
            let cpu = format!("devices/system/cpu/cpu{}/topology", cpus.split('-').next().unwrap());
            fs::create_dir_all(root.join(&cpu)).unwrap();
            fs::write(root.join(&cpu).join("physical_package_id"), package).unwrap();
            continue;
        }
        let dir = root.join("devices").join(place);
        fs::create_dir_all(&dir).unwrap();
        let mut config = vec![0u8; 64];
        for (key, value) in words.map(|word| word.split_once('=').unwrap()) {
            if key == "buses" {
                let bus = |text: &str| u8::from_str_radix(text, 16).unwrap();
                let (first, last) = value.split_once('-').unwrap();
                config[0x0e] = 1;
                (config[0x19], config[0x1a]) = (bus(first), bus(last));
            } else {
                fs::write(dir.join(key), value.replace('_', " ") + "\n").unwrap();
            }
        }
        fs::write(dir.join("config"), config).unwrap();
        symlink(&dir, devices.join(dir.file_name().unwrap())).unwrap();
    }
}

#[test]
fn sysfs_of_unprivileged_readers() {
    let dir = tempfile::tempdir().unwrap();
    make_sysfs(dir.path(), &text("hwloc-ve.sysfs"));
    let capture = capture_sysfs(dir.path()).unwrap();
    let tree = Tree::new(&capture);
    let (a, b) = (at("1a:00.0"), at("3e:00.0"));
    assert_eq!(tree.class(a, b), Class::Known(Distance::Node));
    assert_eq!((tree.numa(a), capture.package(1)), (Some(0), Some(1)));
    assert_eq!(tree.redirects(at("18:00.0")), None);
    let told = survey_text(&tree, None);
    for said in ["PLX PEX 9797", "ACS unknown", "of package 0", "their capabilities were hidden"] {
        assert!(told.contains(said), "{said}: {told}");
    }
    // A copy without its links: the bridges' bus numbers say the same.
    let flat = tempfile::tempdir().unwrap();
    fs::create_dir_all(flat.path().join("bus/pci/devices")).unwrap();
    for f in capture.functions() {
        let from = dir.path().join("bus/pci/devices").join(f.address.to_string());
        let to = flat.path().join("bus/pci/devices").join(f.address.to_string());
        fs::create_dir_all(&to).unwrap();
        for name in ["class", "vendor", "device", "config", "numa_node"] {
            // A bridge that the list lacks has no files.
            let _ = fs::copy(from.join(name), to.join(name));
        }
    }
    let copy = capture_sysfs(flat.path()).unwrap();
    let copied = Tree::new(&copy);
    assert_eq!(copied.class(a, b), Class::Known(Distance::Node));
    assert_eq!(copied.chain(a), tree.chain(a));
    // A copy without `bus`: the folders below `devices` are walked.
    fs::remove_dir_all(dir.path().join("bus")).unwrap();
    assert_eq!(capture_sysfs(dir.path()).unwrap(), capture);

    let dir = tempfile::tempdir().unwrap();
    make_sysfs(dir.path(), &text("hwloc-mic.sysfs"));
    let capture = capture_sysfs(dir.path()).unwrap();
    assert_eq!(capture.of_kind(Kind::Gpu), []);
    assert_eq!(capture.of_kind(Kind::Nic).len(), 2);
    assert!(unknowns(&Tree::new(&capture)).iter().any(|line| line.starts_with("fastest link")));
}

/// The first flow's rate alone, GB/s.
fn copied(t: &Topology, flow: Flow) -> f64 {
    simulate_flows(t, &Params::default(), &[flow]).unwrap()[0]
}

fn listed(machine: &str, what: &str) -> f64 {
    let row = copy_rows().find(|r| r.machine.name == machine && r.what == what).unwrap();
    simulate_copy_row(&Params::default(), row).unwrap()
}

/// What drawings, loads and the simulation have of a recorded A100 is what the rows of A100s have.
#[test]
fn a_captured_a100_moves_packets_of_128_bytes() {
    let dir = tempfile::tempdir().unwrap();
    make_sysfs(dir.path(), &text("perlmutter-a100.sysfs"));
    let capture = capture_sysfs(dir.path()).unwrap();
    let t = Tree::new(&capture).topology("perlmutter", None).unwrap();
    let (gpu, memory) = (t.find("0000:03:00.0").unwrap(), t.find("s3").unwrap());
    assert_eq!(t.packets_of(gpu), Some((128, Origin::Assumed)));
    let drawn = to_tree(&t);
    assert!(drawn.contains("MRRS 512 (assumed) packets 128 (assumed)"), "{drawn}");
    // 128 B of 152 in place of 256 of 280, Gen4 x16.
    let raw = 32.0 * 128.0 / 130.0;
    let load = loads(&t, &"0000:03:00.0>s3".parse().unwrap()).unwrap()[0].gb_per_s();
    assert!((load / (raw * 128.0 / 152.0) - 1.0).abs() < 0.001, "{load}");
    for (flow, what) in [
        (Flow::write(gpu, memory), "to host memory"),
        (Flow::read(memory, gpu), "from host memory"),
    ] {
        let (rate, row) = (copied(&t, flow), listed("A100", what));
        assert!((rate / row - 1.0).abs() < 0.001, "{what}: {rate}, the row {row}");
        assert!(rate < 27.0, "{what}: {rate}");
    }
    // What a NIC writes into it keeps MPS, what it answers does not.
    let nic = t.find("0000:01:00.0").unwrap();
    assert!(copied(&t, Flow::write(nic, gpu)) > 28.5);
    assert!(copied(&t, Flow::read(gpu, nic)) < 27.5);
    // A file that says otherwise goes before, and a saved one says what is assumed.
    let saved = to_toml(&t);
    let own =
        saved.replace("model = \"NVIDIA GPU before Hopper", "packet_bytes = 256\nmodel = \"x");
    for (file, packets) in
        [(&saved, Some((128, Origin::Assumed))), (&own, Some((256, Origin::Read)))]
    {
        let t = from_toml(file).unwrap();
        let gpu = t.find("0000:03:00.0").unwrap();
        assert_eq!(t.packets_of(gpu), packets);
        let rate = copied(&t, Flow::write(gpu, t.find("s3").unwrap()));
        assert_eq!(rate > 28.5, packets == Some((256, Origin::Read)), "{rate}");
    }
}

/// Root ports of Intel show whose the root complexes are: they cut what peers send, as in the rows.
#[test]
fn captured_root_complexes_of_intel_cut_peers_packets() {
    let capture = lspci(&["cmlgpu.lspci"]);
    let t = Tree::new(&capture).topology("cmlgpu", None).unwrap();
    let [a, b] = ["0000:04:00.0", "0000:82:00.0"].map(|id| t.find(id).unwrap());
    let root = t.find("pci0000:00").unwrap();
    assert_eq!(t.cut_of(root), Some((64, Origin::Assumed)));
    assert_eq!(t.p2p_of(root).0.tlp_bytes, Some(64));
    let drawn = to_tree(&t);
    assert!(drawn.contains("root complex pci0000:00  Intel  peer TLPs 64 B (assumed)"), "{drawn}");
    let raw = 16.0 * 128.0 / 130.0;
    let load = loads(&t, &"0000:04:00.0>0000:82:00.0".parse().unwrap()).unwrap()[0].gb_per_s();
    assert!((load / (raw * 64.0 / 88.0) - 1.0).abs() < 0.001, "{load}");
    // GPUs at Gen3 x16, as those of the W-2123; here on two sockets, whose rate nobody knows.
    let (rate, row) = (copied(&t, Flow::write(a, b)), listed("Xeon W-2123, WX 8100", "one writes"));
    assert!((rate / row - 1.0).abs() < 0.01, "{rate}, the row {row}");
    let notes = t.route(a, b).notes(&t).join("; ");
    assert!(notes.contains("cut peers' packets to 64 B (assumed; NVIDIA/nccl"), "{notes}");
    assert!(notes.contains("0000:04:00.0 moves 128 B a packet (assumed; NVIDIA/DCGM"), "{notes}");
    assert!(notes.contains("the rate between s0 and s1: unknown, taken as no limit"), "{notes}");
    // Host memory is no peer. The same root complexes of AMD cut nothing.
    assert!(copied(&t, Flow::write(a, t.find("s0").unwrap())) > 13.0);
    let amd =
        text("cmlgpu.lspci").replace("Intel Corporation", "Advanced Micro Devices, Inc. [AMD]");
    let t = Tree::new(&from_lspci(&amd).unwrap()).topology("amd", None).unwrap();
    let [a, b] = ["0000:04:00.0", "0000:82:00.0"].map(|id| t.find(id).unwrap());
    assert!(copied(&t, Flow::write(a, b)) > 13.0);
    // The named CPU's own limits come beside the cut.
    let mut named = Tree::new(&capture).topology("named", None).unwrap();
    assert!(named.name_cpu("Intel(R) Xeon(R) CPU E5-2650 v4 @ 2.20GHz"));
    let p2p = named.p2p_of(root).0;
    assert_eq!((p2p.tlp_bytes, p2p.write_gb_per_s), (Some(64), Some(7.1)));
}

/// Nothing that a file may hold makes a reader panic, and what is refused is refused in one line
/// with its number.
fn reads(text: &str) {
    if let Err(e) = Matrix::parse(text) {
        let line = e.to_string();
        assert!(line.starts_with("line ") && !line.contains('\n'), "{line:?}");
    }
    match from_lspci(text) {
        Ok(capture) => {
            let tree = Tree::new(&capture);
            survey_text(&tree, None);
            tree.topology("any", Some(22.0)).unwrap_or_else(|e| panic!("{e}: {text}"));
        }
        Err(e) => {
            let line = e.to_string();
            assert!(line.starts_with("line ") && !line.contains('\n'), "{line:?}");
        }
    }
}

/// Letters of all forms.
const EDIT: &str = "[-+|\\\\\\[\\]:. a-fX0-9\u{1b}\n]{0,4}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_change_of_a_capture_panics(
        file in 0usize..5,
        edits in proptest::collection::vec((any::<usize>(), 0u8..4, EDIT), 1..6),
    ) {
        let files =
            ["wrx90.tree", "esc8000a-e12.lspci", "nccl-667.smi", "quda-669.smi", "cmlgpu.lspci"];
        let mut chars: Vec<char> = text(files[file]).chars().take(4000).collect();
        for (place, what, new) in edits {
            let place = place % (chars.len() + 1);
            match what {
                0 => drop(chars.splice(place..place, new.chars())),
                1 => drop(chars.drain(place..(place + 7).min(chars.len()))),
                2 => chars.truncate(place),
                _ => {
                    let end = (place + new.chars().count()).min(chars.len());
                    drop(chars.splice(place..end, new.chars()));
                }
            }
        }
        reads(&chars.into_iter().collect::<String>());
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        reads(&text);
    }
}
