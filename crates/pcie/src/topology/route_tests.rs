use super::*;

/// Two chips, one a socket, of two virtual switches with two GPUs each.
pub(crate) const MACHINE: &str = include_str!("../../machines/esc8000a-e13p.toml");

/// The machine with some of its text replaced.
fn with(changes: &[(&str, &str)]) -> Topology {
    let text = changes.iter().fold(MACHINE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    from_toml(&text).unwrap()
}

/// Chips whose switches reach each other through the root complexes alone.
const APART: (&str, &str) = ("crosses = true", "crosses = false");

fn way(t: &Topology, a: &str, b: &str) -> (Distance, String) {
    let route = t.route(t.find(a).unwrap(), t.find(b).unwrap());
    (route.class, route.text(t))
}

fn notes(t: &Topology, a: &str, b: &str) -> String {
    t.route(t.find(a).unwrap(), t.find(b).unwrap()).notes(t).join("; ")
}

#[test]
fn a_chip_crosses_inside_only_where_it_is_known_to() {
    let t = with(&[]);
    assert_eq!(way(&t, "gpu0", "gpu1"), (Distance::Pix, "gpu0 > vs-a0 > gpu1".into()));
    assert_eq!(way(&t, "gpu0", "gpu2"), (Distance::Pxb, "gpu0 > vs-a0 > vs-a1 > gpu2".into()));
    let route = t.route(t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
    assert!(route.in_chip && route.tree == Distance::Node, "{route:?}");
    let long = "gpu0 > vs-a0 > rp0 > rc0 > s0 > rc1 > rp1 > vs-a1 > gpu2";
    let unknown = with(&[("crosses = true\n", "")]);
    assert_eq!(way(&unknown, "gpu0", "gpu2"), (Distance::Node, long.into()));
    assert!(
        notes(&unknown, "gpu0", "gpu2").contains("chip A crosses inside: unknown, taken as no")
    );
    let never = with(&[APART]);
    assert_eq!(way(&never, "gpu0", "gpu2").1, long);
    assert!(!notes(&never, "gpu0", "gpu2").contains("chip"));
}

/// As its source found: with an uplink at Gen2 GPU 0 and 2 keep their rate, GPU 0 and 4 do not.
#[test]
fn the_machines_chips_are_one_a_socket() {
    let t = with(&[]);
    let gpu = |n: usize| t.find(&format!("gpu{n}")).unwrap();
    for (a, b) in (0..8).flat_map(|a| (0..8).filter(move |&b| b != a).map(move |b| (a, b))) {
        let route = t.route(gpu(a), gpu(b));
        assert_eq!(route.class == Distance::Sys, a / 4 != b / 4, "{a} {b}: {route:?}");
        assert_eq!(route.in_chip, a / 4 == b / 4 && a / 2 != b / 2, "{a} {b}: {route:?}");
    }
}

#[test]
fn acs_of_the_port_it_comes_in_by_redirects() {
    let up = "gpu0 > vs-a0 > rp0 > rc0 > rp0 > vs-a0 > gpu1";
    let whole = with(&[("parent = \"rp0\"\n", "parent = \"rp0\"\nacs = true\n")]);
    assert_eq!(way(&whole, "gpu0", "gpu1"), (Distance::Phb, up.into()));
    // One port of the switch: there and back take different ways.
    let one = with(&[("id = \"gpu0\"\n", "id = \"gpu0\"\nport_acs = true\n")]);
    assert_eq!(way(&one, "gpu0", "gpu1").1, up);
    assert_eq!(way(&one, "gpu1", "gpu0").1, "gpu1 > vs-a0 > gpu0");
    assert!(notes(&one, "gpu0", "gpu1").contains("ACS in the port above gpu0"));
    let there = |t: &Topology| t.route(t.find("gpu1").unwrap(), t.find("gpu0").unwrap());
    assert_eq!(there(&one).other_back(&one).map(|back| back.text(&one)), Some(up.into()));
    assert_eq!(there(&whole).other_back(&whole), None);
    // It keeps the chip's own way from being taken, too.
    assert_eq!(way(&one, "gpu0", "gpu2").0, Distance::Node);
    assert_eq!(way(&one, "gpu2", "gpu0").0, Distance::Pxb);
    // A port may be spared.
    let spared = with(&[
        ("parent = \"rp0\"\n", "parent = \"rp0\"\nacs = true\n"),
        ("id = \"gpu0\"\n", "id = \"gpu0\"\nport_acs = false\n"),
    ]);
    assert_eq!(way(&spared, "gpu0", "gpu1").0, Distance::Pix);
    assert_eq!(way(&spared, "gpu1", "gpu0").0, Distance::Phb);
}

#[test]
fn an_iommu_that_translates_sends_peer_traffic_up() {
    let t = with(&[("id = \"rc0\"\n", "id = \"rc0\"\niommu = \"translates\"\n")]);
    assert_eq!(way(&t, "gpu0", "gpu1").0, Distance::Phb);
    assert!(notes(&t, "gpu0", "gpu1").contains("the IOMMU of rc0 translates"));
    assert_eq!(way(&t, "gpu2", "gpu3").0, Distance::Pix);
    let off = with(&[("id = \"rc0\"\n", "id = \"rc0\"\niommu = \"off\"\n")]);
    assert_eq!(way(&off, "gpu0", "gpu1").0, Distance::Pix);
}

#[test]
fn a_devices_order_is_read_and_told() {
    let order = |value: &str| {
        let field = format!("id = \"gpu0\"\nrelaxed_ordering = {value}\n");
        let t = with(&[("id = \"gpu0\"\n", &field)]);
        let node = t.node(t.find("gpu0").unwrap()).relaxed_ordering;
        (node, notes(&t, "gpu0", "gpu1"))
    };
    let (strict, relaxed) = (order("false"), order("true"));
    assert_eq!((strict.0, relaxed.0), (Some(false), Some(true)));
    assert!(strict.1.contains("gpu0 keeps its writes in order"), "{}", strict.1);
    assert!(relaxed.1.contains("gpu0 relaxes the order"), "{}", relaxed.1);
    let t = with(&[]);
    assert_eq!(t.node(t.find("gpu0").unwrap()).relaxed_ordering, None);
    assert!(!notes(&t, "gpu0", "gpu1").contains("order"));
    // The question sets devices alone.
    let all = t.with(super::Knob::RelaxedOrdering, 0.0).unwrap();
    let set = all.nodes().filter(|(_, n)| n.relaxed_ordering == Some(false)).count();
    assert_eq!(set, all.of_kind(Kind::Gpu).len() + all.of_kind(Kind::Nic).len());
}

#[test]
fn numa_nodes_part_a_socket() {
    let nps = with(&[
        APART,
        (
            "[[chip]]\nid = \"A\"",
            "[[numa]]\nid = \"n0\"\nsocket = \"s0\"\n[[numa]]\nid = \"n1\"\nsocket = \"s0\"\n\
             [[chip]]\nid = \"A\"",
        ),
        ("id = \"rc0\"\n", "id = \"rc0\"\nnuma = \"n0\"\n"),
        ("id = \"rc1\"\n", "id = \"rc1\"\nnuma = \"n1\"\n"),
    ]);
    assert_eq!(way(&with(&[APART]), "gpu0", "gpu2").0, Distance::Node);
    let (class, text) = way(&nps, "gpu0", "gpu2");
    assert_eq!(class, Distance::Sys);
    assert!(text.contains("rc0 > n0 > s0 > n1 > rc1"), "{text}");
    let gpu = nps.find("gpu0").unwrap();
    assert_eq!(nps.memory_of(gpu), nps.find("n0"));
}

#[test]
fn what_roots_refuse_and_what_is_unknown_is_told() {
    let t = with(&[
        APART,
        ("id = \"rc0\"\n", "id = \"rc0\"\np2p_reads = false\np2p_writes = true\n"),
        ("id = \"rc1\"\n", "id = \"rc1\"\np2p_reads = true\np2p_writes = true\n"),
    ]);
    let notes = notes(&t, "gpu0", "gpu2");
    assert!(notes.contains("rc0 refuses peer reads"), "{notes}");
    assert!(!notes.contains("unknown, taken"), "{notes}");
    assert!(!notes.contains("Turin"), "the file's own: {notes}");
    assert!(notes.contains("rc0, rc1 writes: limit unknown, 56.6 GB/s were seen"), "{notes}");
    let route = t.route(t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
    assert_eq!(route.refuses_reads(&t), t.find("rc0"));
    assert_eq!(route.refuses_writes(&t), None);
    let text = to_text(&with(&[]));
    assert!(text.contains("of chip A"), "{text}");
}

#[test]
fn a_cpu_fills_in_what_the_file_leaves_unknown() {
    let cpu = |name: &str| with(&[APART, ("AMD EPYC 9575F 64-Core Processor", name)]);
    let ends = |t: &Topology| (t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
    let turin = cpu("AMD EPYC 9575F");
    let told = notes(&turin, "gpu0", "gpu2");
    assert!(told.contains("rc1 writes (Turin: ") && !told.contains("unknown, taken"), "{told}");
    assert!(told.contains("rc0, rc1 writes: limit unknown, 56.6 GB/s were seen"), "{told}");
    let naples = cpu("AMD EPYC 7261");
    let told = notes(&naples, "gpu0", "gpu2");
    assert!(told.contains("rc0, rc1 writes: at most 7.03 to 7.056 GB/s, as seen on EPYC 7261"));
    assert!(told.contains("taken as allowed: rc0 reads"), "{told}");
    let client = cpu("Intel(R) Core(TM) Ultra 9 285K");
    let (a, b) = ends(&client);
    assert_eq!(client.route(a, b).refuses_reads(&client), client.find("rc0"));
    assert_eq!(client.route(a, b).refuses_writes(&client), None);
    let nobody = cpu("Some CPU");
    assert!(notes(&nobody, "gpu0", "gpu2").contains("unknown, taken as allowed: rc0 reads"));
}

fn refused(from: &str, to: &str) -> String {
    assert!(MACHINE.contains(from), "{from}");
    from_toml(&MACHINE.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn faults_of_the_new_fields_have_their_line() {
    let line = |text: &str| {
        let at = MACHINE.find(text).unwrap();
        MACHINE[..at].matches('\n').count() + 1
    };
    let rc = line("id = \"rc0\"");
    let root = |field: &str| refused("id = \"rc0\"\n", &format!("id = \"rc0\"\n{field}\n"));
    // The field stands a line below the id.
    let at = |n| format!("line {n}: ");
    assert_eq!(
        root("p2p_read_bytes = 48"),
        at(rc + 1) + "rc0: p2p_read_bytes of 48 must be a power of two from 32 to 4096"
    );
    assert!(root("numa = \"n9\"").starts_with(&(at(rc + 1) + "rc0: unknown device \"n9 in s0\"")));
    assert!(root("iommu = \"maybe\"").starts_with(&(at(rc + 1) + "unknown variant `maybe`")));
    assert!(root("p2p_writes = 1").starts_with(&at(rc + 1)));
    assert!(root("mesh_gb_per_s = 0.0").contains("rc0: mesh_gb_per_s of 0"));
    let socket = |field: &str| refused("id = \"s0\"\n", &format!("id = \"s0\"\n{field}\n"));
    for (value, said) in [("0.0", "0"), ("-3.5", "-3.5"), ("inf", "inf"), ("nan", "NaN")] {
        for field in ["memory_read_gb_per_s", "memory_write_gb_per_s"] {
            let text = socket(&format!("{field} = {value}"));
            assert!(text.contains(&format!("s0: {field} of {said} must be")), "{text}");
        }
    }
    assert!(socket("memory_read_gb_per_s = \"fast\"").contains("invalid type: string"));
    let parts = |socket: &str, numa: &str| {
        from_toml(&format!(
            "name = \"n\"\n[[socket]]\nid = \"s0\"\n{socket}\n[[numa]]\nid = \"n0\"\n\
             socket = \"s0\"\n{numa}\n[[root_complex]]\nid = \"rc0\"\nsocket = \"s0\"\n"
        ))
    };
    assert!(parts("", "memory_read_gb_per_s = 9.0").is_ok());
    let twice = parts("memory_read_gb_per_s = 9.0", "").unwrap_err().to_string();
    assert!(twice.starts_with("line 3: s0: its memory is that of its NUMA nodes"), "{twice}");
    assert!(root("p2p_write_gb_per_s = -1.0").contains("rc0: p2p_write_gb_per_s of -1"));
    assert!(refused("chip = \"A\"", "chip = \"C\"").contains("vs-a0: unknown device \"C\""));
    let gpu = refused("id = \"gpu0\"\n", "id = \"gpu0\"\nchip = \"A\"\n");
    assert!(gpu.contains("gpu0: a GPU is no part of a chip of switches"), "{gpu}");
    assert!(gpu.starts_with(&at(line("id = \"gpu0\"") + 1)), "{gpu}");
    assert!(refused("id = \"B\"", "id = \"A\"").contains("A: this name is taken"));
    let field = "relaxed_ordering = true";
    let switch = refused("id = \"vs-a0\"\n", &format!("id = \"vs-a0\"\n{field}\n"));
    assert!(switch.contains("vs-a0: a switch makes no requests to relax"), "{switch}");
    assert!(switch.starts_with(&at(line("id = \"vs-a0\"") + 1)), "{switch}");
}

#[test]
fn a_slot_has_no_more_lanes_than_it_has() {
    let text = |lanes| {
        let ports = ["rp0", "rp1"].map(|p| (p, format!("id = \"{p}\"\nslot = \"x\"\n")));
        let text = ports.iter().fold(MACHINE.to_owned(), |text, (p, to)| {
            text.replacen(&format!("id = \"{p}\"\n"), to, 1)
        });
        let slot = "[[slot]]\nid = \"x\"\nlanes = 16\n[[chip]]\nid = \"A\"\n";
        let text = text.replacen("[[chip]]\nid = \"A\"\n", slot, 1);
        ["rp0", "rp1"].iter().fold(text, |text, p| {
            let port = format!("parent = \"{p}\"\ngen = 5\nlanes = ");
            text.replacen(&format!("{port}16\n"), &format!("{port}{lanes}\n"), 1)
        })
    };
    assert!(from_toml(&text(8)).is_ok());
    let error = from_toml(&text(16)).unwrap_err().to_string();
    assert!(error.contains("the root ports of slot x have 32 lanes in use, of 16"), "{error}");
    assert!(error.starts_with("line "), "{error}");
}
