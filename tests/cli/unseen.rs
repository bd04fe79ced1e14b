//! `bellpush doctor` on machines of which parts are missing, hidden or hostile, and on plain ones.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::diagnoses::{doctor, folder, json, machine, on, wrong};
use crate::doctor::{counters_grown, findings_of};
use crate::recorded::names;

/// Regular files below a folder.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match fs::symlink_metadata(&path).unwrap() {
                m if m.is_dir() => open.push(path),
                m if m.is_file() => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    files
}

/// What tells that nodes are another container's, that another NIC has ATS, or that two functions are one card is in a file
/// that a copy may lack, and then warned of as elsewhere: machine and check. To be made unknown; each of them still is so.
const WARNED_OF: [(&str, &str); 3] =
    [("acs-ats-of-one", "acs"), ("env-cuda-of-one", "gpu"), ("socket-direct-gen3", "rdma-rate")];

/// What a copy lacks is unknown, not wrong. Device nodes alone are faults by their absence, and so
/// is the program that makes them.
#[test]
fn a_missing_file_is_no_fault() {
    let all = names();
    // Each thread takes the next.
    let next = AtomicUsize::new(0);
    let work = || {
        let mut told = (0, Vec::new());
        while let Some(name) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (looked, failed) = without_each(name);
            told.0 += looked;
            told.1.extend(failed.into_iter().map(|(path, check)| (name.clone(), path, check)));
        }
        told
    };
    let (mut looked, mut failed) = (0, Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let told = thread.join().unwrap();
            looked += told.0;
            failed.extend(told.1);
        }
    });
    assert!(looked > 4000, "{looked}");
    let found: BTreeSet<(&str, &str)> =
        failed.iter().map(|(name, _, check)| (&**name, &**check)).collect();
    let known = BTreeSet::from(WARNED_OF);
    let new = failed.iter().filter(|(name, _, check)| !known.contains(&(&**name, &**check)));
    let new: Vec<_> = new.collect();
    assert!(new.is_empty(), "machine, missing file, check: {new:#?}");
    assert_eq!(known.difference(&found).count(), 0, "no longer: {:?}", known.difference(&found));
}

/// Where no function says what it is, one may be a GPU; and counts of what is not seen are no zeros.
#[test]
fn a_function_without_a_class_may_be_a_gpu() {
    let dir = folder();
    fs::create_dir_all(dir.path().join("sys/bus/pci/devices/0000:01:00.0")).unwrap();
    fs::create_dir_all(dir.path().join("proc")).unwrap();
    let all = findings_of(dir.path()).unwrap();
    let gpu = all.iter().find(|f| f[0] == "gpu").expect("of the GPU");
    assert_eq!(gpu[1], "unseen", "{gpu:?}");
    let text = on(dir.path(), &[]).1;
    let line = text.lines().find(|line| line.starts_with("  machine")).expect("the machine");
    let rest = text[text.find(line).unwrap()..].split("\n\n").next().unwrap();
    let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(rest.contains("NVIDIA GPUs: not seen; devices of mlx5: not seen"), "{rest}");
}

/// How many files were away in turn, and which of them made a check warn.
fn without_each(name: &str) -> (usize, Vec<(String, String)>) {
    let (dir, away) = (machine(name, &[]), folder());
    let checks = |root: &Path| -> BTreeSet<String> {
        wrong(root).into_iter().map(|[check, ..]| check).collect()
    };
    let before = checks(dir.path());
    let away = away.path().join("away");
    let is_node =
        |path: &Path| ["dev", "usr/bin"].iter().any(|at| path.starts_with(dir.path().join(at)));
    let (mut looked, mut failed) = (0, Vec::new());
    for path in files(dir.path()).into_iter().filter(|path| !is_node(path)) {
        fs::rename(&path, &away).unwrap();
        let after = checks(dir.path());
        fs::rename(&away, &path).unwrap();
        looked += 1;
        let path = path.strip_prefix(dir.path()).unwrap().display().to_string();
        failed.extend(after.difference(&before).map(|check| (path.clone(), check.clone())));
    }
    (looked, failed)
}

/// Files that are pipes, loops of links, or have no end: the rest is examined in the time.
#[test]
fn a_large_and_hostile_tree_is_examined_in_time() {
    let mut lines = Vec::new();
    for n in 0x100..0x100 + 64 {
        let root = format!("pci{n:04x}:00/{n:04x}:00:01.0");
        let up = format!("{root}/{n:04x}:01:00.0");
        let bridge = "class=0x060400 vendor=0x1000 device=0xc030";
        lines.push(format!("pci {root} {bridge} port=root buses=01-10"));
        lines.push(format!("pci {up} {bridge} port=up buses=02-10"));
        for port in 0..6 {
            let (at, bus) = (format!("{up}/{n:04x}:02:{port:02x}.0"), port + 3);
            lines.push(format!("pci {at} {bridge} port=down buses={bus:02x}-{bus:02x} acs=0x1d"));
            let id = match port {
                0 => "class=0x030200 vendor=0x10de device=0x2330 driver=nvidia",
                1 => "class=0x020700 vendor=0x15b3 device=0x1021 driver=mlx5_core",
                _ => continue,
            };
            lines.push(format!("pci {at}/{n:04x}:{bus:02x}:00.0 {id} numa_node=0"));
        }
        lines.push(format!("rdma mlx5_{n} at={n:04x}:04:00.0 fw=28.39.1002 board=MT_0000000838"));
        lines.push(format!("port mlx5_{n}:1 state=ACTIVE link_layer=InfiniBand"));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    // A plain laptop: its own GPU is none of NVIDIA, so that there are 64.
    let dir = machine("laptop", &lines);
    let at = |name: &str| dir.path().join(name);
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(to, at(from)).unwrap();
    link("sys/class/infiniband/mlx5_loop", "../../..");
    link("sys/class/net/loop", "loop");
    link("sys/class/infiniband_verbs/loop", "../infiniband_verbs");
    link("sys/bus/pci/devices/0fff:00:00.0", "../devices");
    let mode = nix::sys::stat::Mode::S_IRWXU;
    let pipe = |path: PathBuf| {
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, mode).unwrap();
    };
    for name in ["meminfo", "cmdline", "self/cgroup", "driver/nvidia/version"] {
        fs::create_dir_all(at("proc/driver/nvidia")).unwrap();
        pipe(at("proc").join(name));
    }
    let many = files(&at("sys"));
    let ends = |suffix: &str| {
        let own = many.iter().filter(|path| path.ends_with(suffix)).step_by(7);
        own.cloned().collect::<Vec<PathBuf>>()
    };
    ends("numa_node").into_iter().chain(ends("state")).for_each(pipe);
    let huge = |path: &Path| fs::File::create(path).unwrap().set_len(8 << 30).unwrap();
    ends("config").iter().for_each(|path| huge(path));
    for name in ["proc/cpuinfo", "proc/self/mounts", "proc/modules", "env"] {
        huge(&at(name));
    }

    // A machine that builds makes all of it late: the thread's own time is what the tree costs.
    let begun = on_cpu();
    findings_of(dir.path()).unwrap();
    let took = on_cpu() - begun;
    assert!(took < Duration::from_secs(4), "{took:?}");
    // On the clock of the wall there is an answer, be it that the machine was too slow for this.
    let root = dir.path().to_str().unwrap();
    let answer = |args: &[&str]| {
        let begun = Instant::now();
        let told = doctor(&[&["--root", root], args].concat());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let is_late = |why: &String| why.contains("did not answer within") || why.contains("long");
        assert!(told.as_ref().err().is_none_or(is_late), "{told:?}");
        told.ok()
    };
    if let Some((_, text)) = answer(&["--json"]) {
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["placement"].as_array().unwrap().len(), 64 * 64);
    }
    let to = folder();
    let copy = to.path().join("copy");
    if let Some((status, _)) = answer(&["--record", copy.to_str().unwrap()]) {
        assert_eq!(status, 0);
        assert!(copy.join("sys/bus/pci/devices/0100:03:00.0/config").is_file());
    }
}

/// What this thread has run on a CPU.
fn on_cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// A file whose end is not read does not say what is missing.
#[test]
fn a_file_without_end_lacks_nothing() {
    let dir = machine("ib-closed-peermem", &[]);
    let filler = "x /y ext4 rw 0 0\n".repeat(100_000);
    for name in ["proc/self/mounts", "proc/modules"] {
        fs::write(dir.path().join(name), &filler).unwrap();
    }
    assert_eq!(wrong(dir.path()), Vec::<[String; 4]>::new());
    let all = findings_of(dir.path()).unwrap();
    let is_unseen = |check: &str| all.iter().any(|f| f[0] == check && f[1] == "unseen");
    assert!(is_unseen("shm") && is_unseen("gpu-memory"), "{all:#?}");
}

/// The platform of other vendors' Neoverse-V2 is unknown, a domain of no known type is not fine.
#[test]
fn what_nobody_reported_is_not_told() {
    for (name, check, part) in [
        ("neoverse-v2", "platform", "nobody has reported"),
        ("iommu-blocked", "iommu", "domains of type blocked"),
        ("acs-ats", "acs", "ATS has translated"),
    ] {
        let all = findings_of(machine(name, &[]).path()).unwrap();
        let own: Vec<_> = all.iter().filter(|f| f[0] == check && f[1] != "fine").collect();
        assert!(own.len() == 1 && own[0][3].contains(part), "{own:?}");
    }
    let utf16: String = "4: ACTIVE".chars().flat_map(|c| [c, '\0']).collect();
    let dir = machine("ib-switches", &[]);
    for n in 0..2 {
        let path = format!("sys/class/infiniband/mlx5_{n}/ports/1/state");
        fs::write(dir.path().join(path), &utf16).unwrap();
    }
    assert_eq!(wrong(dir.path()), Vec::<[String; 4]>::new());
}

/// Containers are told by what they are made of, and their remedies are outside.
#[test]
fn a_container_is_mended_from_outside() {
    let marks: [&[&str]; 6] = [
        &["file .dockerenv = -"],
        &["file run/.containerenv = -"],
        &["file .singularity.d/labels.json = -"],
        &["file run/systemd/container = systemd-nspawn"],
        &["file proc/self/cgroup = 0::/kubepods.slice/x"],
        &["file proc/self/mounts = overlay~/~overlay~rw~0~0|x~/etc/hosts~ext4~rw~0~0|\
           shm~/dev/shm~tmpfs~rw,size=65536k~0~0"],
    ];
    for mark in marks {
        let dir = machine("ib-switches", &[&["shm ,size=65536k"], mark].concat());
        let script = on(dir.path(), &["--fix"]).1;
        assert!(script.contains("# start the container again: docker run --shm-size"), "{mark:?}");
        assert!(!script.contains("remount"), "{mark:?}: {script}");
        // A copy is the same container.
        let to = folder();
        assert_eq!(on(dir.path(), &["--record", to.path().to_str().unwrap()]).0, 0);
        let told = |root: &Path| on(root, &["--fix"]).1.lines().skip(3).collect::<String>();
        assert_eq!(told(dir.path()), told(to.path()), "{mark:?}");
    }
    // A live system's root is of layers, too.
    let layers = "file proc/self/mounts = overlay~/~overlay~rw~0~0|\
                  tmpfs~/dev/shm~tmpfs~rw,size=65536k~0~0";
    let script = on(machine("ib-switches", &[layers]).path(), &["--fix"]).1;
    assert!(script.contains("\nmount -o remount,size=2g /dev/shm\n"), "{script}");
}

/// Commands that scripts may have. All of them can be run twice, and none takes what is not named.
const COMMANDS: [&str; 9] =
    ["setpci", "modprobe", "nvidia-modprobe", "chmod", "printf", "ip", "udevadm", "mount", "test"];

/// Scripts parse, and consist of comments and of commands that can be run twice.
#[test]
fn scripts_are_safe() {
    for name in names() {
        let dir = machine(&name, &[]);
        let script = on(dir.path(), &["--fix"]).1;
        let path = dir.path().join("mend.sh");
        fs::write(&path, &script).unwrap();
        let parsed = Command::new("sh").arg("-n").arg(&path).output().unwrap();
        assert!(parsed.status.success(), "{name}: {parsed:?}");
        for line in script.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let first = line.split(' ').next().unwrap();
            assert!(COMMANDS.contains(&first), "{name}: {line}");
            // Files that this program alone writes, and whole.
            let target = line.split_once(" > ").map(|(_, to)| to);
            let is_own = |to: &str| to.starts_with("/etc/") && to.contains("bellpush");
            assert!(target.is_none_or(is_own) && !line.contains(">>"), "{name}: {line}");
        }
        // What a switch has to have first is a comment.
        assert!(!script.contains("\nmlnx_qos") && !script.contains("\nip link set dev ens"));
    }
    let nodes = on(machine("no-uvm", &[]).path(), &["--fix"]).1;
    assert!(nodes.contains("\nnvidia-modprobe -u -c 0 -c 1\n"), "{nodes}");
    let held = on(machine("no-driver", &["pci 0000:19:00.0 driver=vfio-pci"]).path(), &["--fix"]).1;
    assert!(!held.contains("\nmodprobe nvidia") && held.contains("virtual machine"), "{held}");
}

/// Marks of direction turn a reader's line around.
#[test]
fn others_text_turns_no_line_around() {
    let own = "rdma mlx5_0 fw=28\u{202e}\u{2066}evil\u{200b} board=X";
    // A name of the placement, too.
    let dir = machine("ib-switches", &[own, "rdma a\u{202e} at=0000:9a:00.0"]);
    for args in [&[][..], &["--json"], &["--fix"]] {
        let text = on(dir.path(), args).1;
        assert!(!text.contains(['\u{202e}', '\u{2066}', '\u{200b}']), "{text:?}");
    }
}

/// Every place of a value, such as `findings[].check`.
fn keys(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        // Keys that are names of counters.
        Value::Object(_) if at == "measured.counters" => {}
        Value::Object(map) => {
            for (key, value) in map {
                let place = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                all.insert(place.clone());
                keys(value, &place, all);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{at}[]"), all)),
        _ => {}
    }
}

/// The page has every key of the JSON, and no other.
#[test]
fn the_page_has_the_keys_of_the_json() {
    let mut all = BTreeSet::new();
    for name in ["ib-switches", "no-peer-mapping", "cloud-vm", "mps-mismatch", "gpu-lost"] {
        keys(&json(machine(name, &[]).path()), "", &mut all);
    }
    let live = doctor(&["--live", "--json", "-"]).unwrap().1;
    keys(&serde_json::from_str(&live).unwrap(), "", &mut all);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("<!-- json -->").expect("the mark is there");
    let (table, _) = table.split_once("<!-- end of json -->").expect("the mark is there");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let told: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(told, all);
}

/// Where the driver is not shown, so are the kernels' GPU and the paths that hang on it.
#[test]
fn kernels_of_a_hidden_gpu_are_unknown() {
    let dir = machine("ib-switches", &["drop proc/driver/nvidia/version"]);
    assert!(json(dir.path())["kernels"].is_null());
    assert!(on(dir.path(), &[]).1.contains("kernels on the GPU, or else on CPU threads"));
    assert_eq!(json(machine("ib-switches", &[]).path())["kernels"], "gpu");
    assert_eq!(json(machine("no-driver", &[]).path())["kernels"], "cpu");
}

/// Names below a copy's links that lead out of it are not there.
#[test]
fn a_copy_has_no_libraries_of_others() {
    let dir = machine("ib-switches", &[]);
    let other = folder();
    for (name, to) in [
        ("libcuda.so.1", "libcuda.so.550.54.15"),
        ("libmlx5.so.1", "libmlx5.so.1.8.28.0"),
        ("libibverbs.so.1", "libibverbs.so.1.8.28.0"),
    ] {
        std::os::unix::fs::symlink(to, other.path().join(name)).unwrap();
    }
    fs::create_dir_all(dir.path().join("usr")).unwrap();
    let old = |f: &[String; 4]| f[0] == "program" && f[3].contains("rdma-core 28");
    std::os::unix::fs::symlink(other.path(), dir.path().join("usr/lib64")).unwrap();
    assert!(!wrong(dir.path()).iter().any(old), "{:?}", wrong(dir.path()));
    // The same in the copy is its own.
    fs::remove_file(dir.path().join("usr/lib64")).unwrap();
    fs::rename(other.path(), dir.path().join("usr/lib64")).unwrap();
    assert!(wrong(dir.path()).iter().any(old), "{:?}", wrong(dir.path()));
}

/// Errors of the link and retransmissions are counted in folders of their own: what one does not show is not fine.
#[test]
fn counters_that_are_not_shown_have_not_counted_nothing() {
    let port = "drop sys/class/infiniband/mlx5_0/ports/1";
    let folders = ["counters", "hw_counters"].map(|folder| format!("{port}/{folder}"));
    let [errors, again] = folders.each_ref().map(String::as_str);
    let kinds = ["symbol_error", "port_rcv_errors"].map(|name| format!("{errors}/{name}"));
    let [symbols, received] = kinds.each_ref().map(String::as_str);
    let cases: [(&[&str], &str, &str); 5] = [
        (&[], "fine", "no errors and no retransmissions of 179949862 packets"),
        (&[again], "unseen", "no errors of 179949862 packets; retransmissions are not shown"),
        (&[errors], "unseen", "no retransmissions of 0 packets; errors of the link are not shown"),
        (&[again, symbols, received], "unseen", "counters of neither errors nor retransmissions"),
        (&[errors, again], "unseen", "no counters"),
    ];
    for (more, severity, found) in cases {
        let quiet = "port mlx5_0:1 hw.out_of_sequence=0";
        let dir = machine("ib-switches", &[&[quiet], more].concat());
        let all = findings_of(dir.path()).unwrap();
        let own = all.iter().find(|f| f[0] == "rdma-counters" && f[2] == "mlx5_0:1").unwrap();
        assert_eq!((own[1].as_str(), own[3].as_str()), (severity, found), "{more:?}");
    }
}

/// Each part that is missing is said, and takes its "fine" away.
#[test]
fn what_is_fine_was_seen_whole() {
    let group = "file sys/fs/cgroup";
    let far = [
        format!("{group}/pids.max = 1024"),
        format!("{group}/pids.current = 41"),
        format!("{group}/memory.max = max"),
    ];
    let unknown = [&far[..1], &far[2..], &["drop sys/fs/cgroup/pids.current".to_owned()]].concat();
    let net = "sys/class/net";
    let down = format!("file {net}/ens1np0/bonding_slave/mii_status = down");
    let unsaid = format!("drop {net}/ens1np1/bonding_slave/mii_status");
    let hidden = format!("drop {net}/ens1np1");
    let cases: [(&str, &[String], &str, &str, &str); 5] = [
        ("ib-container", &far, "cgroup", "fine", "41 of 1024 processes and threads"),
        ("ib-container", &unknown, "cgroup", "unseen", "pids.current, of 1024 at most"),
        ("bond-down", &[down], "bond", "note", "no port of the bond of ens1np0, ens1np1 is up"),
        ("bond", &[unsaid], "bond", "unseen", "; whether each is up"),
        ("bond", &[hidden], "bond", "unseen", "of which ens1np1 is not shown"),
    ];
    for (name, more, check, severity, found) in cases {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let dir = machine(name, &more);
        let all = findings_of(dir.path()).unwrap();
        let own: Vec<_> = all.iter().filter(|f| f[0] == check).collect();
        let is_it = |f: &&[String; 4]| f[1] == severity && f[3].contains(found);
        assert!(own.len() == 1 && is_it(&own[0]), "{name} {more:?}: {own:?}");
    }
}

/// Domains of some devices say nothing of the others', nor a virtual machine of its host's.
#[test]
fn an_iommu_is_seen_of_every_device() {
    let quiet = "cmdline quiet";
    let none = ["drop sys/kernel/iommu_groups/1", "drop sys/kernel/iommu_groups/2", quiet];
    let guest = "file proc/cpuinfo = model~name~:~Xeon|flags~:~fpu~hypervisor";
    let hidden = "drop sys/kernel/iommu_groups/20";
    let cases: [(&[&str], bool, &str, &str); 6] = [
        (&[quiet], false, "fine", "domains of type identity"),
        (
            &[quiet, hidden],
            false,
            "unseen",
            "identity of 3 of 4 GPUs and NICs; not shown is that of mlx5_1",
        ),
        (&[quiet, "drop sys/kernel/iommu_groups/11"], false, "unseen", "that of GPU0 0000:19:00.0"),
        (&[hidden], false, "fine", "domains of type identity"),
        (&none, true, "fine", "no IOMMU in use"),
        (&[none[0], none[1], guest], true, "unseen", "has no IOMMU; its host's"),
    ];
    for (more, has_folder, severity, found) in cases {
        let dir = machine("ib-switches", more);
        if has_folder {
            fs::create_dir_all(dir.path().join("sys/kernel/iommu_groups")).unwrap();
        }
        let all = findings_of(dir.path()).unwrap();
        let own: Vec<_> = all.iter().filter(|f| f[0] == "iommu").collect();
        assert!(own.len() == 1 && own[0][1] == severity, "{more:?}: {own:?}");
        assert!(own[0][3].contains(found), "{more:?}: {own:?}");
    }
}

/// Clouds mount the driver's libraries in a folder of their own.
#[test]
fn the_driver_is_found_where_it_is_mounted() {
    let lib = "file usr/lib64";
    let verbs = [format!("{lib}/libibverbs.so.1 = -"), format!("{lib}/libmlx5.so.1 = -")];
    let cuda = "file usr/local/nvidia/lib64/libcuda.so.1 = -".to_owned();
    let lost = |more: &[String]| {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        wrong(machine("ib-switches", &more).path()).into_iter().any(|f| f[0] == "program")
    };
    assert!(lost(&verbs));
    assert!(!lost(&[&verbs[..], &[cuda]].concat()));
}

/// `--live` tells of counters of the device and of its interface, of which one counts each frame that arrives damaged.
#[test]
fn counters_that_grow_are_told() {
    let before = machine("crc-errors", &[]);
    let more = [
        "net ens1np0 rx_crc_errors=40 rx_fifo_errors=2 rx_bytes=9",
        "port mlx5_0:1 hw.packet_seq_err=5",
    ];
    let after = machine("crc-errors", &more);
    let grown = counters_grown(before.path(), after.path()).unwrap();
    let grown: Vec<_> = grown.iter().map(|(name, more)| (name.as_str(), *more)).collect();
    let wanted = [
        ("ens1np0 rx_crc_errors", 3),
        ("ens1np0 rx_fifo_errors", 2),
        ("mlx5_0:1 packet_seq_err", 5),
    ];
    assert_eq!(grown, wanted);
}
