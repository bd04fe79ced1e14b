//! `bellpush doctor`: how much a finding matters follows from what it leaves.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json as value};

use crate::diagnoses::{json, machine, on};
use crate::recorded::names;

/// Check, severity and subject of what is wrong.
fn wrong(root: &Path) -> Vec<[String; 3]> {
    let text = |f: &Value, key: &str| f[key].as_str().unwrap().to_owned();
    let report = json(root);
    let all = report["findings"].as_array().unwrap().iter();
    let is_wrong = |f: &&Value| f["severity"] == "warning" || f["severity"] == "prevents";
    all.filter(is_wrong).map(|f| ["check", "severity", "subject"].map(|key| text(f, key))).collect()
}

/// The same as words, without addresses.
fn told(root: &Path) -> Vec<String> {
    let of = |f: [String; 3]| {
        let devices = f[2].split(", ").map(|own| own.split(' ').next().unwrap_or_default());
        format!("{} {} {}", f[0], f[1], devices.collect::<Vec<_>>().join(","))
    };
    wrong(root).into_iter().map(of).collect()
}

/// One rule for every check: a fault of one device warns while another is left, and prevents where none is.
#[test]
fn a_finding_prevents_what_it_leaves_to_no_pair() {
    let dead = ["pci 0000:19:00.0 dead=1", "pci 0000:9b:00.0 dead=1"];
    let small = ["pci 0000:00:03.1 mps=128", "pci 0000:80:03.1 mps=128"];
    let geforce =
        ["gpu 0000:19:00.0 NVIDIA GeForce RTX 3090", "gpu 0000:9b:00.0 NVIDIA GeForce RTX 3090"];
    let nodes = ["drop dev/infiniband/uverbs0", "drop dev/infiniband/uverbs1"];
    let ports = ["port mlx5_0:1 state=INIT", "port mlx5_1:1 state=INIT"];
    let of_one = |name: &str, more: &str| told(machine(name, &[more]).path());
    let of_both = |name: &str, more: [&str; 2]| told(machine(name, &more).path());
    for (name, more, check, subjects) in [
        ("ib-switches", dead, "pcie-link", ["GPU0", "GPU1"]),
        ("roce-genoa", small, "pcie-mps", ["mlx5_0", "mlx5_1"]),
        ("ib-switches", geforce, "gpu-memory", ["GPU0", "GPU1"]),
        ("ib-switches", nodes, "rdma-nodes", ["", ""]),
        ("ib-switches", ports, "rdma-port", ["mlx5_0:1", "mlx5_1:1"]),
    ] {
        let one = of_one(name, more[0]);
        assert!(one.contains(&format!("{check} warning {}", subjects[0])), "{more:?}: {one:?}");
        assert!(!one.iter().any(|f| f.contains("prevents")), "{more:?}: {one:?}");
        let both = of_both(name, more);
        for subject in subjects {
            assert!(both.contains(&format!("{check} prevents {subject}")), "{more:?}: {both:?}");
        }
        assert_eq!(on(machine(name, &more).path(), &[]).0, 3, "{more:?}");
    }
}

/// A device that is not looked at, since there are more than are, may be the one that is left.
#[test]
fn what_is_down_hides_nothing_that_is_not_looked_at() {
    let mut lines = Vec::new();
    for n in 0..70 {
        let (state, link) = if n == 69 { ("ACTIVE", "LinkUp") } else { ("DOWN", "Polling") };
        if n > 1 {
            let at = format!("{:04x}", 0x100 + n);
            lines.push(format!(
                "pci pci{at}:00/{at}:00:00.1 class=0x020700 vendor=0x15b3 device=0x1021"
            ));
            lines.push(format!("rdma mlx5_{n} at={at}:00:00.1"));
        }
        lines
            .push(format!("port mlx5_{n}:1 link_layer=InfiniBand state={state} phys_state={link}"));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let all = told(machine("ib-switches", &lines).path());
    assert!(!all.iter().any(|f| f.starts_with("rdma-port prevents")), "{all:?}");
}

/// Faults of several checks that each leave another device, and together none.
#[test]
fn findings_that_leave_no_pair_together_prevent_it() {
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &["port mlx5_0:1 state=DOWN phys_state=Disabled", "drop dev/infiniband/uverbs1"],
            &["rdma-nodes prevents ", "rdma-port prevents mlx5_0:1"],
        ),
        (
            &[
                "drop proc/driver/nvidia/gpus/0000:9b",
                "pci 0000:9b:00.0 driver=vfio-pci",
                "pci 0000:19:00.0 dead=1",
            ],
            &["gpu prevents GPU1", "pcie-link prevents GPU0"],
        ),
        // Of a GPU that is lost nobody asks how its memory is registered: the other's is what is missed.
        (
            &[
                "gpu 0000:19:00.0 NVIDIA GeForce RTX 3090",
                "drop proc/driver/nvidia/gpus/0000:9b",
                "pci 0000:9b:00.0 driver=vfio-pci",
            ],
            &["gpu warning GPU1", "gpu-memory prevents GPU0"],
        ),
    ];
    for (changes, wanted) in cases {
        let dir = machine("ib-switches", changes);
        let found: Vec<String> =
            told(dir.path()).into_iter().filter(|f| !f.starts_with("nic-of-gpu")).collect();
        assert_eq!(found, wanted, "{changes:?}");
        assert_eq!((on(dir.path(), &[]).0, &json(dir.path())["status"]), (3, &value!(3)));
    }
    // What prevents it by itself is not helped by the others' end.
    let found = told(machine("no-uvm", &[]).path());
    assert_eq!(found, ["gpu prevents GPU0,GPU1", "gpu warning GPU1"]);
}

/// What prevents something is in every verdict, and nothing is left to a pair of what it says.
#[test]
fn severities_are_those_of_the_verdicts() {
    for name in names() {
        let report = json(machine(&name, &[]).path());
        let verdicts = report["verdicts"].as_array().unwrap();
        let cannot = |check: &Value| {
            let is_its = |path: &Value| path["prevented_by"].as_array().unwrap().contains(check);
            verdicts.iter().filter(|v| v["paths"].as_array().unwrap().iter().any(is_its)).count()
        };
        let findings = report["findings"].as_array().unwrap();
        for finding in findings.iter().filter(|f| f["severity"] == "prevents") {
            assert!(cannot(&finding["check"]) > 0, "{name}: {finding}");
        }
        let lacks_all = verdicts.iter().all(|v| {
            v["paths"]
                .as_array()
                .unwrap()
                .iter()
                .all(|p| p["path"] == "tcp" || p["possible"] == false)
        });
        let prevents = findings.iter().any(|f| f["severity"] == "prevents");
        assert!(!lacks_all || prevents, "{name}: nothing is left, and nothing prevents it");
        assert_eq!(report["status"] == 3, prevents, "{name}");
    }
}

/// A finding about devices names them, and speaks of no other.
#[test]
fn devices_are_named() {
    let find = |report: &Value, check: &str, part: &str| {
        let all = report["findings"].as_array().unwrap().iter();
        let is_it = |f: &&Value| f["check"] == check && f["found"].as_str().unwrap().contains(part);
        all.clone().find(is_it).unwrap_or_else(|| panic!("{check} {part}: {all:#?}")).clone()
    };
    let of_gpu = |report: &Value, gpu: &str, key: &str| {
        let mut all = BTreeSet::new();
        for verdict in report["verdicts"].as_array().unwrap() {
            let is_its = verdict["pairs"].as_array().unwrap().iter().any(|p| p["gpu"] == gpu);
            for path in verdict["paths"].as_array().unwrap().iter().filter(|_| is_its) {
                all.extend(
                    path[key].as_array().unwrap().iter().map(|c| c.as_str().unwrap().to_owned()),
                );
            }
        }
        all.into_iter().collect::<Vec<_>>().join(" ")
    };
    let report = json(machine("iommu-blocked", &[]).path());
    let blocked = find(&report, "iommu", "domains of type blocked");
    assert_eq!(blocked["subject"], "GPU0 0000:01:00.0");
    assert_eq!(of_gpu(&report, "0000:01:00.0", "unseen_by"), "iommu");
    assert_eq!(of_gpu(&report, "0000:81:00.0", "unseen_by"), "");
    // Beside domains that translate, and of a card.
    let both = ["pci 0000:82:00.0 group=4:blocked", "pci 0000:81:00.0 group=3:DMA"];
    let report = json(machine("roce-genoa", &both).path());
    assert_eq!(find(&report, "iommu", "type blocked")["subject"], "mlx5_1");
    assert_eq!(find(&report, "iommu", "type DMA")["subject"], "GPU1 0000:81:00.0");
    assert_eq!(find(&report, "iommu", "type identity")["subject"], "GPU0 0000:01:00.0, mlx5_0");
    // All of the nodes, and one of them.
    let report = json(machine("no-uvm", &[]).path());
    let shared = find(&report, "gpu", "no /dev/nvidia-uvm");
    assert_eq!(
        (&shared["subject"], &shared["prevents"]),
        (&value!("GPU0, GPU1"), &value!(["gpu"]))
    );
    assert_eq!(find(&report, "gpu", "no /dev/nvidia1")["subject"], "GPU1 0000:9b:00.0");
    let dir = machine("ib-switches", &["drop dev/nvidia1"]);
    let report = json(dir.path());
    assert_eq!(told(dir.path()), ["gpu warning GPU1"]);
    assert_eq!(of_gpu(&report, "0000:19:00.0", "prevented_by"), "");
    assert_eq!(of_gpu(&report, "0000:9b:00.0", "prevented_by"), "gpu");
    // A root process makes them; whose node it is may be hidden.
    let root = ["drop dev/nvidia-uvm", "capabilities 000001ffffffffff"];
    assert_eq!(told(machine("ib-switches", &root).path()), ["gpu warning GPU0,GPU1"]);
    let hidden =
        ["drop dev/nvidia1", "file proc/driver/nvidia/gpus/0000:9b:00.0/information = Model:~x"];
    assert_eq!(told(machine("ib-switches", &hidden).path()), ["gpu warning "]);
}
