//! `bellpush doctor` on machines whose cards differ, and what its report says of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::diagnoses::{json, machine, on};
use crate::doctor::findings_of;
use crate::recorded::names;

/// Words of a device's text, such as `mlx5_0:1 (ens1np0)`, that may be its name.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// Lines below a heading of the report, joined where they are wrapped.
fn section(text: &str, head: &str) -> Vec<String> {
    let Some((_, rest)) = text.split_once(head) else { return Vec::new() };
    let (own, _) = rest.trim_start().split_once("\n\n").unwrap_or((rest, ""));
    let mut lines: Vec<String> = Vec::new();
    for line in own.lines().map(str::trim) {
        let begins = line.split([' ', ':']).next().is_some_and(|id| IDS.contains(&id));
        match lines.last_mut().filter(|_| !begins && !line.starts_with("left out")) {
            Some(last) => *last += &format!(" {line}"),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Checks that say that something is fine.
const IDS: [&str; 40] = [
    "gpu",
    "gpu-module",
    "gpu-memory",
    "gpu-bar1",
    "peer-mapping",
    "gdrcopy",
    "rdma-device",
    "rdma-nodes",
    "rdma-port",
    "rdma-firmware",
    "rdma-window",
    "rdma-rate",
    "rdma-counters",
    "socket-direct",
    "bond",
    "iommu",
    "acs",
    "platform",
    "write-collapse",
    "nic-of-gpu",
    "numa",
    "pcie-link",
    "pcie-errors",
    "pcie-mps",
    "pcie-mrrs",
    "pcie-relaxed",
    "locked-memory",
    "hugepages",
    "cgroup",
    "shm",
    "container",
    "roce-mtu",
    "roce-gid",
    "roce-flow",
    "env-nccl",
    "env-ucx",
    "env-nvshmem",
    "env-cuda",
    "program",
    "live",
];

/// Paths that the pair of a GPU and a card can take, by their names.
fn possible(report: &Value) -> BTreeMap<(String, String), Vec<String>> {
    let mut all = BTreeMap::new();
    for verdict in report["verdicts"].as_array().unwrap() {
        let can = verdict["paths"].as_array().unwrap().iter().filter(|p| p["possible"] == true);
        let can: Vec<String> = can.map(|p| p["path"].as_str().unwrap().to_owned()).collect();
        for pair in verdict["pairs"].as_array().unwrap() {
            let name = |key: &str| pair[key].as_str().unwrap_or("none").to_owned();
            all.insert((name("gpu"), name("nic")), can.clone());
        }
    }
    all
}

/// A machine, its status, the pairs of a GPU and a card that can less than all, and what these can.
type Case<'a> = (&'a str, u8, &'a [(usize, usize)], &'a str);

/// One bad card is that card's matter: the others go on as they did, and the exit status is the worst finding's.
#[test]
fn a_bad_card_is_no_verdict_of_the_others() {
    let ib = ["0000:19:00.0", "0000:9b:00.0"];
    let pull_only = "pull/cpu staged/cpu tcp";
    let no_pull = "push/blueflame push/kernel push/stream push/cpu staged/kernel staged/stream staged/cpu tcp";
    let cases: [Case<'_>; 11] = [
        ("mps-mismatch", 1, &[(0, 0), (1, 0)], "tcp"),
        ("off-the-bus", 1, &[(0, 0), (1, 0)], "tcp"),
        ("bridge-off-the-bus", 1, &[(0, 0), (1, 0)], "tcp"),
        ("env-down", 1, &[(0, 1), (1, 1)], "tcp"),
        ("no-subnet-manager", 1, &[(0, 1), (1, 1)], "tcp"),
        ("gpu-lost", 1, &[(1, 0), (1, 1)], "tcp"),
        ("vfio-gpu", 1, &[(1, 0), (1, 1)], "tcp"),
        ("mapping-of-one", 1, &[(1, 0), (1, 1)], pull_only),
        ("geforce-beside", 1, &[(1, 0), (1, 1)], no_pull),
        ("mps-peers", 1, &[(0, 0)], no_pull),
        ("ib-switches", 0, &[], ""),
    ];
    for (name, status, less, can) in cases {
        let dir = machine(name, &[]);
        let (told, text) = on(dir.path(), &[]);
        assert_eq!(told, status, "{name}");
        let report = json(dir.path());
        let all = possible(&report);
        assert_eq!(all.len(), 4, "{name}: {all:?}");
        for ((gpu, nic), paths) in &all {
            let gpus: BTreeSet<&String> = all.keys().map(|pair| &pair.0).collect();
            let g = gpus.iter().position(|own| *own == gpu).unwrap();
            let n = usize::from(nic == "mlx5_1");
            if name.starts_with("ib") {
                assert_eq!(gpu, ib[g]);
            }
            match less.contains(&(g, n)) {
                true => assert_eq!(paths.join(" "), can, "{name}: {gpu} {nic}"),
                false => assert_eq!(paths.len(), 12, "{name}: {gpu} {nic}"),
            }
        }
        let best = report["paths_on_a_card"].as_array().unwrap();
        assert!(best.iter().all(|path| path["possible"] == true), "{name}: {best:?}");
        // One verdict where all are alike; else each with its pairs, and those that can most come first.
        let heads: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("  card     ")).collect();
        match less.is_empty() {
            true => assert!(heads.is_empty() && text.contains("\n  card can push/"), "{text}"),
            false => {
                assert!(heads.len() == 2 && !text.contains("card can"), "{name}: {text}");
                assert!(text.contains("\n  can      push/blueflame "), "{name}: {text}");
            }
        }
        let heads = heads.join("; ");
        let wanted = match name {
            "mps-mismatch" | "off-the-bus" => "mlx5_1 with each GPU; mlx5_0 with each GPU",
            "gpu-lost" | "mapping-of-one" => "GPU0 with each card; GPU1 with each card",
            "mps-peers" => "mlx5_1 with GPU0, mlx5_0 with GPU1, mlx5_1 with GPU1; mlx5_0 with GPU0",
            _ => &heads,
        };
        assert_eq!(heads, wanted, "{name}");
    }
    // No GPU is given a card that cannot be used.
    let report = json(machine("mps-mismatch", &[]).path());
    let placement = report["placement"].as_array().unwrap().iter();
    let given: Vec<_> = placement.filter(|pair| pair["assigned"] == true).collect();
    assert_eq!(given.len(), 2, "{given:?}");
    assert!(given.iter().all(|pair| pair["name"] == "mlx5_1"), "{given:?}");
}

/// Where no pair can, the checks that prevent it are told, of all and of each.
#[test]
fn what_no_pair_can_is_said_of_all() {
    for (name, check) in
        [("port-down", "rdma-port"), ("geforce", "gpu-memory"), ("no-driver", "gpu")]
    {
        let report = json(machine(name, &[]).path());
        assert_eq!(report["verdicts"].as_array().unwrap().len(), 1, "{name}");
        let best = report["paths_on_a_card"].as_array().unwrap();
        let pull = best.iter().find(|path| path["path"] == "pull/kernel").unwrap();
        assert_eq!(pull["possible"], false, "{name}");
        assert!(pull["prevented_by"].as_array().unwrap().contains(&check.into()), "{name}: {pull}");
    }
    // Both cards, each by a fault of its own.
    let both = ["pci 0000:18:00.0 dead=1", "port mlx5_1:1 state=DOWN"];
    let report = json(machine("ib-switches", &both).path());
    let best = report["paths_on_a_card"].as_array().unwrap();
    let (tcp, others): (Vec<_>, Vec<_>) = best.iter().partition(|path| path["path"] == "tcp");
    assert!(tcp[0]["possible"] == true && others.iter().all(|path| path["possible"] == false));
    let by = others[0]["prevented_by"].as_array().unwrap();
    assert!(by.contains(&"pcie-link".into()) && by.contains(&"rdma-port".into()), "{by:?}");
}

/// What is wrong with one device is said of no pair without it.
#[test]
fn no_pair_is_blamed_for_anothers_device() {
    let peermem = "nvidia closed 550.54.15 PeerMappingOverride=1;";
    let dma = |address: &str| format!("pci {address} group=77:DMA");
    let pull = |report: &Value, nth: [&str; 2]| {
        let all = report["verdicts"].as_array().unwrap();
        let is_its = |v: &&Value| {
            v["pairs"].as_array().unwrap().iter().any(|p| [&p["gpu"], &p["nic"]] == nth)
        };
        let own = all.iter().find(is_its).unwrap_or_else(|| panic!("{nth:?}: {all:?}"));
        let pull = own["paths"].as_array().unwrap().iter().find(|p| p["path"] == "pull/kernel");
        pull.unwrap()["prevented_by"].clone()
    };
    let gpus = ["0000:19:00.0", "0000:9b:00.0"];
    // Of one card's domain alone, of one GPU's, and of all.
    let translated = |changes: &[&str]| {
        let dir = machine("ib-switches", &[&[peermem], changes].concat());
        (on(dir.path(), &[]).0, json(dir.path()))
    };
    let (status, report) = translated(&[&dma("0000:9a:00.0")]);
    assert_eq!(status, 1, "the other card is left");
    for gpu in gpus {
        assert_eq!(pull(&report, [gpu, "mlx5_0"]), serde_json::json!([]));
        assert_eq!(pull(&report, [gpu, "mlx5_1"]), serde_json::json!(["iommu"]));
    }
    let (status, report) = translated(&[&dma(gpus[1])]);
    assert_eq!((status, pull(&report, [gpus[0], "mlx5_1"])), (1, serde_json::json!([])));
    assert_eq!(pull(&report, [gpus[1], "mlx5_0"]), serde_json::json!(["iommu"]));
    let all = ["0000:18:00.0", "0000:9a:00.0"].map(dma);
    let (status, report) = translated(&[&all[0], &all[1]]);
    assert_eq!((status, pull(&report, [gpus[0], "mlx5_0"])), (3, serde_json::json!(["iommu"])));
    // A card on board that nobody has plugged in.
    let onboard = [
        "pci pci0000:00/0000:00:1c.0 class=0x060400 vendor=0x8086 device=0xa110 port=root buses=01-01 numa_node=0",
        "pci pci0000:00/0000:00:1c.0/0000:01:00.0 class=0x020000 vendor=0x15b3 device=0x1015 numa_node=0 max=8.0x8 \
         now=8.0x8 driver=mlx5_core group=77:DMA",
        "rdma mlx5_2 at=0000:01:00.0 fw=14.0 board=X",
        "port mlx5_2:1 state=DOWN phys_state=Disabled link_layer=Ethernet netdev=eno1",
    ];
    let (status, report) = translated(&onboard);
    assert_eq!((status, pull(&report, [gpus[0], "mlx5_0"])), (0, serde_json::json!([])));
    // An InfiniBand port that is down needs no GID of RoCE, and an H100 that is lost is no GeForce.
    let report = json(
        machine(
            "ib-switches",
            &[
                "port mlx5_0:1 state=INIT",
                "port mlx5_1:1 link_layer=Ethernet netdev=eno1 gid0=v1,fe80::1",
            ],
        )
        .path(),
    );
    assert_eq!(pull(&report, [gpus[0], "mlx5_0"]), serde_json::json!(["rdma-port"]));
    assert_eq!(pull(&report, [gpus[0], "mlx5_1"]), serde_json::json!(["roce-gid"]));
    let lost = ["gpu 0000:19:00.0 NVIDIA GeForce RTX 3090", "drop proc/driver/nvidia/gpus/0000:9b"];
    let report = json(machine("ib-switches", &lost).path());
    assert_eq!(pull(&report, [gpus[0], "mlx5_0"]), serde_json::json!(["gpu-memory"]));
    let by = pull(&report, [gpus[1], "mlx5_0"]);
    assert!(!by.as_array().unwrap().contains(&"gpu-memory".into()), "{by}");
}

/// A device that no pair can use is in no line of what is as it should be, and a check's line there says of which devices
/// it is, where the check finds fault with others.
#[test]
fn what_is_broken_is_not_praised() {
    let mut looked = 0;
    for name in names() {
        let dir = machine(&name, &[]);
        let (report, text) = (json(dir.path()), on(dir.path(), &[]).1);
        let fine = section(&text, "As it should be:\n");
        let all = possible(&report);
        let best = all.values().map(Vec::len).max().unwrap_or(0);
        let nics: BTreeSet<&String> = all.keys().map(|pair| &pair.1).collect();
        let is_broken = |nic: &&&String| {
            all.iter().filter(|(pair, _)| pair.1 == ***nic).all(|(_, can)| can.len() <= 1)
        };
        for nic in nics.iter().filter(|_| best > 1).filter(is_broken) {
            looked += 1;
            for line in fine.iter().filter(|line| !line.starts_with("left out")) {
                assert!(!words(line).contains(nic.as_str()), "{name} praises {nic}: {line}");
            }
        }
        let mut by_check: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
        for finding in report["findings"].as_array().unwrap() {
            let at = usize::from(finding["severity"] != "fine");
            let subject = finding["subject"].as_str().unwrap();
            by_check.entry(finding["check"].as_str().unwrap()).or_default()[at].push(subject);
        }
        for (check, [fine, others]) in by_check.iter().filter(|(_, [_, others])| !others.is_empty())
        {
            let others: BTreeSet<&str> = others.iter().flat_map(|text| text.split(", ")).collect();
            for subject in fine {
                assert!(!subject.is_empty(), "{name}: {check} is fine, and of {others:?}");
                let both = subject.split(", ").find(|own| others.contains(own));
                assert_eq!(both, None, "{name}: {check} is fine and not");
            }
        }
    }
    assert!(looked >= 5, "{looked}");
    let text = on(machine("off-the-bus", &[]).path(), &[]).1;
    assert!(text.contains("rdma-port  mlx5_1:1: active, InfiniBand\n"), "{text}");
    assert_eq!(text.matches(" pcie-mps").count(), 1, "{text}");
    let text = on(machine("mps-mismatch", &[]).path(), &[]).1;
    assert!(text.contains("left out, since it cannot be used: mlx5_0 (pcie-mps)\n"), "{text}");
    let text = on(machine("ib-switches", &[]).path(), &[]).1;
    assert!(text.contains("rdma-port  mlx5_0:1, mlx5_1:1: active, InfiniBand\n"), "{text}");
}

/// What bellpush refuses to open runs no kernels: an old driver, and GPUs from before Ampere.
#[test]
fn kernels_run_on_gpus_that_open() {
    for (name, kernels) in [
        ("driver-535", "cpu"),
        ("old-libcuda", "cpu"),
        ("t4-bar", "cpu"),
        ("xeon-p100", "cpu"),
        ("v100-beside", "gpu"),
    ] {
        let told = json(machine(name, &[]).path());
        assert_eq!(told["kernels"], kernels, "{name}");
        let paths = told["paths_on_a_card"].as_array().unwrap().iter();
        let mut paths = paths.filter(|path| path["path"] != "tcp");
        let by_gpu =
            |path: &Value| path["prevented_by"].as_array().unwrap().contains(&"gpu".into());
        assert!(paths.all(|path| by_gpu(path) == (kernels == "cpu")), "{name}: {told}");
    }
    let beside = possible(&json(machine("v100-beside", &[]).path()));
    let can = |gpu: &str| beside[&(gpu.to_owned(), "mlx5_0".to_owned())].len();
    assert_eq!((can("0000:19:00.0"), can("0000:9b:00.0")), (12, 1), "{beside:?}");
    let text = on(machine("v100-beside", &[]).path(), &[]).1;
    assert!(text.contains("left out, since it cannot be used: GPU1 (gpu)"), "{text}");
}

/// A GPU whose device id is not shown may be too old, and a driver without a number too.
#[test]
fn a_gpu_of_unknown_generation_is_unseen() {
    let gpus = [
        "0000:15/0000:15:01.0/0000:16:00.0/0000:17:04.0/0000:19:00.0",
        "0000:97/0000:97:01.0/0000:98:00.0/0000:99:04.0/0000:9b:00.0",
    ];
    let hide = |name: &str| gpus.map(|gpu| format!("drop sys/devices/pci{gpu}/{name}"));
    let (ids, configs) = (hide("device"), hide("config"));
    let [first, second] = [0, 1].map(|nth| [ids[nth].as_str(), configs[nth].as_str()]);
    let both = [first, second].concat();
    let driver = "file proc/driver/nvidia/version = NVRM~version:~Open~Kernel~Module";
    for more in [&both[..], &[driver]] {
        let told = json(machine("ib-switches", more).path());
        assert!(told["kernels"].is_null(), "{more:?}: {told}");
        let unseen = told["paths_on_a_card"][0]["unseen_by"].as_array().unwrap();
        assert!(unseen.contains(&"gpu".into()), "{more:?}: {told}");
    }
    let one = json(machine("ib-switches", &first).path());
    assert_eq!(one["kernels"], "gpu", "the other is known: {one}");
}

/// The driver's list may be hidden where the GPUs are not: those that are too old are refused all the same, and of others
/// it is not seen whether CUDA has them.
#[test]
fn gpus_are_asked_for_their_age_without_the_drivers_list() {
    let drop = "drop proc/driver/nvidia/gpus";
    let driver = "nvidia open 550.54.15 PeerMappingOverride=1;";
    let (old, new) = (machine("t4-bar", &[driver, drop]), machine("ib-switches", &[drop]));
    let told = json(old.path());
    assert_eq!((on(old.path(), &[]).0, &told["kernels"]), (3, &"cpu".into()), "{told}");
    let told = json(new.path());
    assert!(told["status"] == 0 && told["kernels"].is_null(), "{told}");
    let unseen = told["paths_on_a_card"][0]["unseen_by"].as_array().unwrap();
    assert!(unseen.contains(&"gpu".into()), "{told}");
}

/// Which libcuda is loaded is known where `LD_LIBRARY_PATH` names one, or all are old or new; that of cuda-compat goes
/// with drivers and GPUs that NVIDIA names, none of them a GeForce.
#[test]
fn a_library_newer_than_the_module_is_no_all_clear() {
    let path = |folder: &str| format!("env LD_LIBRARY_PATH={folder}");
    let (none, usual, own) = (path(""), path("/usr/lib64"), path("/opt/cuda/lib/:relative"));
    let link = "link opt/cuda/lib/libcuda.so.1 -> libcuda.so.560.35.03";
    let new = "nvidia open 570.86.15 PeerMappingOverride=1;";
    let model = |at: &str| format!("gpu 0000:{at}:00.0 NVIDIA GeForce RTX 3090");
    let (first, second) = (model("19"), model("9b"));
    let compat = "over the driver 535.183.01: whether forward compatibility";
    let geforce = "over the driver 535.183.01: a GeForce has no forward compatibility";
    let which =
        "the loader takes: 535.183.01 of /usr/lib64, or 550.54.15 of /usr/local/cuda/compat";
    let newer = "link opt/cuda/lib/libcuda.so.1 -> libcuda.so.580.65.06";
    let same = "link usr/lib64/libcuda.so.1 -> libcuda.so.570.86.15";
    let minor = "link usr/lib64/libcuda.so.1 -> libcuda.so.570.86.10";
    let over = "libcuda 580.65.06 over the driver 570.86.15: whether forward compatibility";
    let no_geforce = "libcuda 580.65.06 over the driver 570.86.15: a GeForce has no forward";
    let older = "libcuda 550.54.15, older than the driver 570.86.15";
    let cases: [(&[&str], Option<&str>, [&str; 2]); 14] = [
        (&[], None, ["unseen", compat]),
        (&[&none], None, ["unseen", which]),
        (&[&usual], Some("cpu"), ["prevents", "libcuda 535.183.01, older than 550"]),
        (&[&own, link], None, ["unseen", "libcuda 560.35.03 over"]),
        // No library goes with a newer module, and that of the module's own version does.
        (&[new], Some("cpu"), ["prevents", older]),
        (&[new, &usual, minor], Some("cpu"), ["prevents", "libcuda 570.86.10, older than"]),
        (&[new, &usual, same], Some("gpu"), ["fine", "2 of 2 GPUs"]),
        (&[new, &none, same], Some("gpu"), ["fine", "2 of 2 GPUs"]),
        (&[new, &own, newer], None, ["unseen", over]),
        (&[new, &own, newer, &first, &second], Some("cpu"), ["prevents", no_geforce]),
        (&[new, &own, newer, &first], None, ["warning", no_geforce]),
        (&[&first, &second], Some("cpu"), ["prevents", geforce]),
        (&[&first], None, ["warning", geforce]),
        (&[&none, &second], None, ["unseen", which]),
    ];
    for (more, kernels, [severity, part]) in cases {
        let told = json(machine("cuda-compat", more).path());
        assert_eq!(told["kernels"].as_str(), kernels, "{more:?}: {told}");
        let mut all = told["findings"].as_array().unwrap().iter();
        let is_it = |f: &Value| {
            f["check"] == "gpu"
                && f["severity"] == severity
                && f["found"].as_str().unwrap().contains(part)
        };
        assert!(all.any(is_it), "{more:?}: {severity} {part}: {told}");
    }
    // The one that the loader takes is named.
    let all = findings_of(machine("cuda-compat", &[]).path()).unwrap();
    let own = all.iter().find(|f| f[0] == "program").unwrap();
    assert!(own[3].contains("so.550.54.15") && !own[3].contains("so.535"), "{own:?}");
    // A copy has of the path what has the library.
    let to = tempfile::tempdir().unwrap();
    let dir = machine("cuda-compat", &[]);
    assert_eq!(on(dir.path(), &["--record", to.path().to_str().unwrap()]).0, 0);
    let env = std::fs::read_to_string(to.path().join("env")).unwrap();
    assert!(env.lines().any(|line| line == "LD_LIBRARY_PATH=/usr/local/cuda/compat"), "{env}");
    assert_eq!(json(to.path())["findings"], json(dir.path())["findings"]);
}
