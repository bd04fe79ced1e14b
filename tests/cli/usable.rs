//! `bellpush doctor`: which NIC a GPU should take, what is told as fine, and what is mended by hand.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::diagnoses::{json, machine, on};
use crate::doctor::findings_of;
use crate::recorded::names;

/// A GPU's number, and the name of the NIC that it should take.
fn stars(root: &Path) -> Vec<String> {
    let report = json(root);
    let placement = report["placement"].as_array().unwrap();
    let gpus: BTreeSet<&str> = placement.iter().map(|p| p["gpu"].as_str().unwrap()).collect();
    let name = |p: &Value| {
        let n = gpus.iter().position(|gpu| p["gpu"] == **gpu).unwrap();
        format!("GPU{n} {}", p["name"].as_str().unwrap())
    };
    placement.iter().filter(|p| p["assigned"] == true).map(name).collect()
}

/// Why GPUs should take none, in the text and in the JSON.
fn without(root: &Path) -> [String; 2] {
    let (report, text) = (json(root), on(root, &[]).1);
    let lines = text.lines().filter_map(|line| line.strip_prefix("  no star  "));
    let why = report["without_nic"].as_array().unwrap().iter();
    let why = why.map(|own| format!("{} {}", own["gpu"], own["why"]).replace('"', ""));
    [lines.collect::<Vec<_>>().join("; "), why.collect::<Vec<_>>().join("; ")]
}

/// A star is of a GPU and a NIC that can be used, whatever PCI shows beside them.
#[test]
fn a_star_is_of_what_can_be_used() {
    let address = "port mlx5_2:1 gid2=v2,::ffff:10.10.0.9";
    let virtual_alone: [&[&str]; 3] = [
        // In a container with a network of its own; the physical port is down, or has no address.
        &["drop sys/class/infiniband/mlx5_0", address],
        &["port mlx5_0:1 state=DOWN", address],
        &["port mlx5_0:1 gid1=v1,fe80::1 gid3=v1,::ffff:10.10.0.1", address],
    ];
    for more in virtual_alone {
        let dir = machine("vf-spare", more);
        assert_eq!(stars(dir.path()), ["GPU0 mlx5_2", "GPU1 mlx5_1"], "{more:?}");
        assert_eq!(without(dir.path()), ["", ""], "{more:?}");
    }
    assert_eq!(stars(machine("vf-spare", &[]).path()), ["GPU0 mlx5_0", "GPU1 mlx5_1"]);
    // What can be used of the container's: its GPUs, its cards.
    let dir = machine("ib-container", &["drop proc/driver/nvidia/gpus/0000:9b"]);
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_0"]);
    let why = "not given to this container";
    assert_eq!(without(dir.path()), [format!("GPU1: {why}"), format!("0000:9b:00.0 {why}")]);
    let dir = machine("ib-container", &["drop dev/nvidia1"]);
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_0"]);
    assert_eq!(without(dir.path())[0], format!("GPU1: {why}"));
    let dir = machine("ib-container", &["drop sys/class/infiniband/mlx5_1"]);
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_0", "GPU1 mlx5_0"]);
    // Without one that can be used there is no star.
    let dir = machine("gpu-lost", &[]);
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_0"]);
    assert_eq!(without(dir.path())[0], "GPU1: it cannot be used (gpu)");
    for (name, by) in
        [("port-down", "rdma-port"), ("rxe", "rdma-device"), ("no-uverbs", "rdma-nodes")]
    {
        let dir = machine(name, &[]);
        assert!(stars(dir.path()).is_empty(), "{name}");
        assert_eq!(
            without(dir.path())[0],
            format!("GPU0, GPU1: no card can be used ({by})"),
            "{name}"
        );
    }
}

/// Under ARI a virtual function may have the number of another bus, which no bridge names.
#[test]
fn a_virtual_function_of_another_bus_is_of_its_card() {
    let own = [
        "pci 0000:00:03.1 buses=02-03",
        "pci pci0000:00/0000:00:03.1/0000:03:00.2 class=0x020000 vendor=0x15b3 device=0x101e",
        "pci 0000:03:00.2 numa_node=0 driver=mlx5_core physfn=0000:02:00.0 group=13:identity",
        "rdma mlx5_2 at=0000:03:00.2",
        "port mlx5_2:1 gid2=v2,::ffff:10.10.0.9",
    ];
    let names = |root: &Path| -> BTreeSet<String> {
        let report = json(root);
        let pairs = report["placement"].as_array().unwrap().iter();
        pairs.map(|pair| pair["name"].as_str().unwrap().to_owned()).collect()
    };
    let dir = machine("vf-spare", &own);
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_0", "GPU1 mlx5_1"]);
    assert!(!names(dir.path()).contains("mlx5_2"), "{:?}", names(dir.path()));
    let dir = machine("vf-spare", &[&own[..], &["drop sys/class/infiniband/mlx5_0"]].concat());
    assert_eq!(stars(dir.path()), ["GPU0 mlx5_2", "GPU1 mlx5_1"]);
    // One IOMMU group of one card is none of several.
    let group = ["pci 0000:03:00.2 group=2:identity"];
    let all = findings_of(machine("vf-spare", &[&own[..], &group].concat()).path()).unwrap();
    assert!(!all.iter().any(|f| f[0] == "iommu-group" && f[1] == "note"), "{all:#?}");
}

/// A card without an RDMA device is no GPU's NIC. That it is nearer than the NIC is told where its driver makes devices.
#[test]
fn a_gpus_nic_has_an_rdma_device() {
    let said = |name: &str, more: &[&str]| -> Vec<String> {
        let all = findings_of(machine(name, more).path()).unwrap().into_iter();
        let own = all.filter(|f| f[0] == "nic-of-gpu");
        own.map(|[_, severity, subject, found]| format!("{severity} {subject}: {found}")).collect()
    };
    const ETHERNET: &str = "class=0x020000 vendor=0x8086 device=0x1572 driver=i40e";
    let plain = ["0000:18:00.0", "0000:9a:00.0"].map(|at| format!("pci {at} {ETHERNET}"));
    let without = "drop sys/class/infiniband/mlx5_1";
    // Devices of software: on the interface of a ConnectX, and beside plain Ethernet.
    for (name, more) in [("siw", &[][..]), ("siw", &[&*plain[0]]), ("rxe", &[&plain[0], &plain[1]])]
    {
        assert!(said(name, more).is_empty(), "{name} {more:?}: {:?}", said(name, more));
    }
    let first = "fine GPU0 mlx5_0: PIX".to_owned();
    let far = "warning GPU1 0000:9b:00.0: mlx5_0, SYS".to_owned();
    let bare = "warning GPU1 0000:9b:00.0: 0000:9a:00.0, PIX, has no RDMA device".to_owned();
    for (more, last) in [
        (&[without][..], &bare),
        (&[without, &plain[1]], &far),
        // For a virtual machine.
        (&[without, "pci 0000:9a:00.0 driver=vfio-pci"], &far),
        // One that does not answer has no device for that reason.
        (&[without, "pci 0000:9a:00.0 dead=1"], &far),
    ] {
        assert_eq!(said("ib-switches", more), [&first, last].map(Clone::clone), "{more:?}");
    }
    // Of two that are as near, the one that has a device.
    let switch = "pci0000:97/0000:97:01.0/0000:98:00.0";
    let beside = [
        "pci 0000:97:01.0 buses=98-9c".to_owned(),
        "pci 0000:98:00.0 buses=99-9c".to_owned(),
        format!("pci {switch}/0000:99:08.0 class=0x060400 vendor=0x1000 port=down buses=9c-9c"),
        format!("pci {switch}/0000:99:08.0/0000:9c:00.0 class=0x020700 vendor=0x15b3"),
        "pci 0000:9c:00.0 device=0x1021 driver=mlx5_core numa_node=1".to_owned(),
        "rdma mlx5_1 at=0000:9c:00.0".to_owned(),
    ];
    let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
    assert_eq!(said("ib-switches", &beside), [first, "fine GPU1 mlx5_1: PIX".to_owned()]);
    // A device whose function is not shown may be the card's.
    let hidden = said("ib-switches", &["drop sys/class/infiniband/mlx5_1/device"]);
    assert_eq!(hidden, ["unseen : PCI functions of mlx5_1"]);
    // So may one of which nothing shows that it is of software.
    let hidden = said("siw", &["drop sys/class/infiniband/siw0/node_type"]);
    assert_eq!(hidden, ["unseen : whether these are of cards or of software: siw0"]);
}

/// What a container is not given is asked for nothing, and blames nobody.
#[test]
fn gpus_of_others_are_not_asked() {
    let dir = machine("ib-container", &["drop dev/nvidia1"]);
    let report = json(dir.path());
    let pairs = report["verdicts"].as_array().unwrap().iter();
    let pairs = pairs.flat_map(|v| v["pairs"].as_array().unwrap());
    let gpus: BTreeSet<&str> = pairs.map(|p| p["gpu"].as_str().unwrap()).collect();
    assert_eq!(gpus, BTreeSet::from(["0000:19:00.0"]));
    assert_eq!(report["status"], 0, "{}", on(dir.path(), &[]).1);
    // Its nearest NIC is no matter of this container.
    let far = ["drop proc/driver/nvidia/gpus/0000:9b", "file .dockerenv = -"];
    let far = json(machine("far-nics", &far).path());
    let of_nic = |f: &&Value| f["check"] == "nic-of-gpu" && f["severity"] == "warning";
    let told: Vec<&Value> = far["findings"].as_array().unwrap().iter().filter(of_nic).collect();
    let note = far["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["found"] == "not given to this container");
    let gpu = note.expect("a GPU of others")["subject"].clone();
    assert!(told.iter().all(|f| f["subject"] != gpu), "{told:?}");
}

/// The text and the JSON say the same of what is fine, what is left out and what is wrong.
#[test]
fn the_json_is_the_text() {
    let mut left = 0;
    for name in names() {
        let dir = machine(&name, &[]);
        let (report, text) = (json(dir.path()), on(dir.path(), &[]).1);
        let findings = report["findings"].as_array().unwrap();
        let count = |severity: &str| findings.iter().filter(|f| f["severity"] == severity).count();
        let [p, w, u, fine] = ["prevents", "warning", "unseen", "fine"].map(count);
        let wanted = format!(
            "  findings {p} prevent something, {w} warnings, {u} not to be seen, {fine} fine\n"
        );
        assert!(text.contains(&wanted), "{name}: {wanted} {text}");
        let out = report["left_out"].as_array().unwrap();
        let listed = |own: &Value| format!("{} ({})", own["device"], own["check"]).replace('"', "");
        let listed: Vec<String> = out.iter().map(listed).collect();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = format!("left out, since it cannot be used: {}", listed.join(", "));
        assert_eq!(flat.contains(&line), !out.is_empty(), "{name}: {line}");
        left += out.len();
        for own in out {
            let is_it = |word: &str| own["device"] == *word;
            for f in findings.iter().filter(|f| f["severity"] == "fine") {
                let mut words = f["subject"].as_str().unwrap().split([' ', ',', ':']);
                assert!(!words.any(is_it), "{name}: {f}");
            }
        }
    }
    assert!(left >= 5, "{left}");
}

/// The end of the report counts what a script mends, and names what has to be done by hand.
#[test]
fn comments_are_no_fixes() {
    let (mut with, mut without, mut by_hand) = (0, 0, 0);
    for name in names() {
        let dir = machine(&name, &[]);
        let (text, script) = (on(dir.path(), &[]).1, on(dir.path(), &["--fix"]).1);
        let report = json(dir.path());
        let bad = report["findings"].as_array().unwrap().iter().filter(|finding| {
            ["warning", "prevents"].contains(&finding["severity"].as_str().unwrap())
        });
        let is_command = |line: &Value| !line.as_str().unwrap().starts_with('#');
        let (commands, hand): (Vec<&Value>, Vec<&Value>) =
            bad.partition(|f| f["script"].as_array().unwrap().iter().any(is_command));
        let end = text.trim_end().rsplit("\n\n").next().unwrap().split_whitespace();
        let end = end.collect::<Vec<_>>().join(" ");
        let (n, all) = (commands.len(), commands.len() + hand.len());
        let wanted =
            format!("--fix` prints a shell script with the fixes of {n} of {all} findings");
        assert_eq!(end.contains(&wanted), n > 0, "{name}: {text}");
        assert_eq!(text.contains("--fix`"), n > 0, "{name}: {text}");
        assert_eq!(text.matches("\n  by hand ").count(), usize::from(!hand.is_empty()), "{text}");
        for finding in &hand {
            let check = finding["check"].as_str().unwrap();
            let line = end.split("by hand ").nth(1).unwrap();
            assert!(line.contains(check), "{name}: {check}: {line}");
            let remark = format!("# by hand: {}\n", finding["fix"].as_str().unwrap());
            assert!(script.contains(&remark), "{name}: {remark} {script}");
        }
        with += usize::from(n > 0);
        without += usize::from(n == 0);
        by_hand += hand.len();
    }
    assert!(with > 10 && without > 30 && by_hand > 20, "{with} {without} {by_hand}");
    let text = on(machine("roce-mtu-1500", &[]).path(), &[]).1;
    assert!(
        text.contains("\n  by hand  roce-mtu (mlx5_1:1 (ens2np0)): see `fix` above\n"),
        "{text}"
    );
}
