//! `bellpush doctor`, on recorded machines of tests/fixtures/doctor and on this one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Parser;

use crate::doctor::{DoctorArgs, findings_of, told};
use crate::recorded::{names, recorded};

#[derive(Parser)]
struct Doctor {
    #[command(flatten)]
    args: DoctorArgs,
}

pub fn doctor(args: &[&str]) -> Result<(u8, String), String> {
    let parsed = Doctor::try_parse_from([&["doctor"], args].concat()).map_err(|e| e.to_string())?;
    told(&parsed.args).map_err(|e| e.to_string())
}

pub fn on(root: &Path, args: &[&str]) -> (u8, String) {
    doctor(&[&["--root", root.to_str().unwrap()], args].concat()).unwrap()
}

/// A folder for a tree of some hundred small files, in memory where there is room for them.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A recorded machine with some statements more.
pub fn machine(name: &str, more: &[&str]) -> tempfile::TempDir {
    let mut machine = recorded(name);
    more.iter().for_each(|line| machine.statement(line).unwrap());
    let dir = folder();
    machine.write(dir.path()).unwrap();
    dir
}

/// What is wrong with a machine by the checks: warnings and worse.
pub fn wrong(root: &Path) -> Vec<[String; 4]> {
    let is_wrong = |f: &[String; 4]| matches!(f[1].as_str(), "warning" | "prevents");
    findings_of(root).unwrap().into_iter().filter(is_wrong).collect()
}

/// Every fault of every machine is named, and nothing else is.
#[test]
fn each_fault_is_named_and_no_other() {
    let all = names();
    assert!(all.len() >= 24, "{}", all.len());
    let mut failed = Vec::new();
    for name in all {
        let machine = recorded(&name);
        let dir = folder();
        machine.write(dir.path()).unwrap();
        let found = wrong(dir.path());
        let said: BTreeSet<(&str, &str)> =
            found.iter().map(|f| (f[0].as_str(), f[1].as_str())).collect();
        let expected: BTreeSet<(&str, &str)> =
            machine.expected.iter().map(|e| (e.0.as_str(), e.1.as_str())).collect();
        if said != expected {
            failed.push(format!("{name}: expected {expected:?}, found {found:#?}"));
        }
        for (check, severity, part) in &machine.expected {
            let is_it =
                |f: &&[String; 4]| f[0] == *check && f[1] == *severity && f[3].contains(part);
            if found.iter().find(is_it).is_none() && said == expected {
                failed.push(format!("{name}: {check} does not say {part:?}: {found:#?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

pub fn json(root: &Path) -> serde_json::Value {
    serde_json::from_str(&on(root, &["--json"]).1).unwrap()
}

#[test]
fn the_status_is_that_of_the_worst_finding() {
    for (name, status) in [("ib-switches", 0), ("acs-on", 1), ("no-peer-mapping", 3)] {
        let dir = machine(name, &[]);
        for args in [&[][..], &["--json"], &["--fix"]] {
            assert_eq!(on(dir.path(), args).0, status, "{name} {args:?}");
        }
        assert_eq!(json(dir.path())["status"], status);
    }
    let empty = tempfile::tempdir().unwrap();
    let file = empty.path().join("file");
    fs::write(&file, "").unwrap();
    for (root, why) in [
        (empty.path().join("nothing"), "No such file"),
        (file, "no statement of a machine"),
        (empty.path().to_owned(), "neither sys nor proc"),
    ] {
        let error = doctor(&["--root", root.to_str().unwrap()]).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
    assert!(doctor(&["--root", "/", "--live"]).unwrap_err().contains("cannot be used with"));
    assert!(doctor(&["--nic", "mlx5_0"]).unwrap_err().contains("--live"));
}

#[test]
fn paths_hang_on_what_they_need() {
    let possible = |name: &str| {
        let json = json(machine(name, &[]).path());
        let all = json["paths_on_a_card"].as_array().unwrap().clone();
        let can = all.into_iter().filter(|p| p["possible"] == true);
        can.map(|p| p["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(possible("ib-switches").split(' ').count(), 12);
    assert!(!possible("ib-switches").contains("inband"), "no card has it");
    assert_eq!(possible("no-peer-mapping"), "pull/cpu staged/cpu tcp");
    let push = "push/blueflame push/kernel push/stream push/cpu";
    let staged = "staged/kernel staged/stream staged/cpu tcp";
    assert_eq!(possible("no-peermem"), format!("{push} {staged}"));
    assert_eq!(possible("port-down"), "tcp");
    let text = on(machine("no-peer-mapping", &[]).path(), &[]).1;
    assert!(
        text.contains("card can pull/cpu staged/cpu tcp") && text.contains(": peer-mapping"),
        "{text}"
    );
}

/// A finding says what was found, what was expected, what it costs and how to mend it, and has a source.
#[test]
fn a_finding_is_whole() {
    for name in names() {
        for f in json(machine(&name, &[]).path())["findings"].as_array().unwrap() {
            let said = |key: &str| !f[key].as_str().unwrap().is_empty();
            assert!(said("found") && said("source") && said("check"), "{name}: {f}");
            if matches!(f["severity"].as_str().unwrap(), "warning" | "prevents") {
                assert!(said("expected") && said("cost") && said("fix"), "{name}: {f}");
            }
            let prevents = !f["prevents"].as_array().unwrap().is_empty();
            assert_eq!(prevents, f["severity"] == "prevents", "{name}: {f}");
        }
    }
}

/// What a reader without privilege cannot see is neither right nor wrong.
#[test]
fn what_is_hidden_is_said() {
    let all = findings_of(machine("ib-switches-user", &[]).path()).unwrap();
    for check in ["acs", "pcie-mps", "pcie-mrrs", "pcie-relaxed"] {
        let own: Vec<_> = all.iter().filter(|f| f[0] == check).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert!(own[0][1] == "unseen" && own[0][3].contains("first 64 bytes is hidden"), "{own:?}");
    }
    let upstream = findings_of(machine("roce-upstream", &[]).path()).unwrap();
    assert!(upstream.iter().any(|f| f[0] == "roce-flow" && f[1] == "unseen"), "{upstream:?}");
}

/// What cannot be seen is neither wrong nor said to work.
#[test]
fn what_is_not_there_is_unseen() {
    let ports =
        ["drop sys/class/infiniband/mlx5_0/ports", "drop sys/class/infiniband/mlx5_1/ports"];
    let state = ports.map(|drop| format!("{drop}/1/state"));
    // Whose PCI function is not shown may be one of mlx5, and is not of software.
    let devices =
        ["drop sys/class/infiniband/mlx5_0/device", "drop sys/class/infiniband/mlx5_1/device"];
    let cases: [(&[&str], &str, &str); 5] = [
        (&devices, "rdma-device", "drivers of mlx5_0, mlx5_1"),
        (&["drop proc/driver/nvidia/version"], "gpu", "version: not there"),
        (&[&state[0], &state[1]], "rdma-port", "state: not there"),
        (&["drop sys/class"], "rdma-device", "/sys/class is not there"),
        (&ports, "rdma-port", "no ports are shown"),
    ];
    for (more, check, what) in cases {
        let dir = machine("ib-switches", more);
        assert_eq!(wrong(dir.path()), Vec::<[String; 4]>::new(), "{more:?}");
        let all = findings_of(dir.path()).unwrap();
        let is_it = |f: &&[String; 4]| f[0] == check && f[1] == "unseen" && f[3].contains(what);
        assert!(all.iter().any(|f| is_it(&f)), "{more:?}: {all:#?}");
        let json = json(dir.path());
        for path in json["paths_on_a_card"].as_array().unwrap() {
            let known = path["path"] == "tcp";
            assert_eq!(path["possible"].is_null(), !known, "{more:?}: {path}");
            let by = path["unseen_by"].as_array().unwrap();
            assert!(known || by.contains(&check.into()), "{more:?}: {path}");
        }
        let text = on(dir.path(), &[]).1;
        assert!(text.contains("card can tcp\n") && text.contains("  not seen"), "{text}");
    }
    // One port that is known to be active is enough.
    let dir = machine("ib-switches", &[&state[0]]);
    assert!(json(dir.path())["paths_on_a_card"][0]["possible"] == true);
    // No limit is told where the files of the group are not there.
    let dir = machine("ib-switches", &["drop sys/fs/cgroup"]);
    let all = findings_of(dir.path()).unwrap();
    let own: Vec<_> = all.iter().filter(|f| f[0] == "cgroup").collect();
    assert!(own.len() == 1 && own[0][1] == "unseen", "{own:?}");
}

/// A file that is no file cannot be read: it is not absent.
#[test]
fn an_unreadable_driver_is_unseen() {
    let dir = machine("ib-switches", &["drop proc/driver/nvidia/version"]);
    fs::create_dir(dir.path().join("proc/driver/nvidia/version")).unwrap();
    assert!(wrong(dir.path()).is_empty());
    let all = findings_of(dir.path()).unwrap();
    assert!(all.iter().any(|f| f[0] == "gpu" && f[1] == "unseen"), "{all:#?}");
}

/// More GPUs and NICs than pairs can be looked at in the time.
#[test]
fn many_devices_are_examined_in_time() {
    const MANY: usize = 300;
    let mut lines = Vec::new();
    for n in 0x100..0x100 + MANY {
        let at = |f: u8| format!("pci pci{n:04x}:00/{n:04x}:00:00.{f}");
        lines.push(format!("{} class=0x030200 vendor=0x10de device=0x2330 driver=nvidia", at(0)));
        lines.push(format!("{} class=0x020700 vendor=0x15b3 device=0x1021", at(1)));
        lines.push(format!("rdma mlx5_{n} at={n:04x}:00:00.1"));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let dir = machine("ib-switches", &lines);
    let json = json(dir.path());
    let placement = json["placement"].as_array().unwrap();
    assert_eq!(placement.len(), 64 * 64);
    assert!(placement.iter().all(|pair| pair["assigned"] == false));
    let all = findings_of(dir.path()).unwrap();
    let found = "302 GPUs and 302 NICs: more than 64 are not ranked";
    assert!(all.iter().any(|f| f[0] == "nic-of-gpu" && f[3] == found), "{all:#?}");
}

/// A script runs what mends the machine, keeps what is set, and tells what it cannot do.
#[test]
fn a_script_undoes_nothing_else() {
    let script = |name: &str, more: &[&str]| on(machine(name, more).path(), &["--fix"]).1;
    let nccl = script("env-nccl", &[]);
    assert!(nccl.contains("job: unset NCCL_IB_HCA\n"), "{nccl}");
    assert!(nccl.contains("job: export NCCL_NET_GDR_LEVEL=PHB\n"), "{nccl}");
    let runs = |l: &str, word: &str| l.starts_with(word);
    assert!(!nccl.lines().any(|l| runs(l, "unset") || runs(l, "export")), "{nccl}");
    let set = "nvidia open 550.54.15 RMForceStaticBar1=1;PeerMappingOverride=0;X='$(x)';";
    let driver = script("ib-switches", &[set]);
    assert!(driver.contains("'RMForceStaticBar1=1;PeerMappingOverride=1;'"), "{driver}");
    assert!(driver.contains("modprobe -r gdrdrv nvidia_peermem nvidia_uvm nvidia &&"), "{driver}");
    let acs = script("acs-on", &[]);
    assert!(acs.contains("\nsetpci -s 0000:17:00.0") && acs.contains("keeps them apart"), "{acs}");
    let guest = "file proc/cpuinfo = model~name~:~x|flags~:~fpu~hypervisor";
    let acs = script("acs-on", &[guest]);
    assert!(acs.contains("leave ACS on") && !acs.contains("setpci"), "{acs}");
}

#[test]
fn every_pair_has_its_class_and_distance() {
    let dir = machine("ib-switches", &[]);
    let text = on(dir.path(), &[]).1;
    let lines: Vec<_> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).collect();
    assert!(lines.contains(&vec!["GPU0", "*PIX", "10", "SYS", "21"]), "{text}");
    assert!(lines.contains(&vec!["GPU1", "SYS", "21", "*PIX", "10"]), "{text}");
    let placement = &json(dir.path())["placement"];
    assert_eq!(placement.as_array().unwrap().len(), 4);
    assert_eq!(
        (&placement[0]["name"], &placement[0]["assigned"]),
        (&"mlx5_0".into(), &true.into())
    );
}

/// A NIC that does not answer, or has no active port, is no GPU's.
#[test]
fn no_gpu_is_given_a_nic_that_is_down() {
    for (name, down) in [("off-the-bus", "mlx5_0"), ("env-down", "mlx5_1")] {
        let told = json(machine(name, &[]).path());
        let placement = told["placement"].as_array().unwrap();
        let given: Vec<_> = placement.iter().filter(|pair| pair["assigned"] == true).collect();
        assert_eq!(given.len(), 2, "{name}: {placement:?}");
        assert!(given.iter().all(|pair| pair["name"] != down), "{name}: {given:?}");
    }
    let told = json(machine("port-down", &[]).path());
    let placement = told["placement"].as_array().unwrap();
    assert!(placement.iter().all(|pair| pair["assigned"] == false), "all are down: {placement:?}");
}

/// A recording has what the checks read: they find the same.
#[test]
fn a_recording_is_the_machine() {
    for name in names() {
        let (dir, to) = (machine(&name, &[]), folder());
        let copy = to.path().join("copy");
        assert_eq!(on(dir.path(), &["--record", copy.to_str().unwrap()]).0, 0);
        let told = |root: &Path| on(root, &[]).1.split_once('\n').unwrap().1.to_owned();
        assert_eq!(told(dir.path()), told(&copy), "{name}");
    }
    let dir = machine("ib-switches", &["env NCCL_DEBUG=INFO", "env SECRET=x"]);
    let (path, to) = (dir.path().to_str().unwrap(), folder());
    let into = to.path().to_str().unwrap();
    assert_eq!(on(dir.path(), &["--record", into]).0, 0);
    assert_eq!(fs::read_to_string(to.path().join("env")).unwrap(), "NCCL_DEBUG=INFO\n");
    let again = doctor(&["--root", path, "--record", into]).unwrap_err();
    assert!(again.contains("it is not empty"), "{again}");
}

/// In a copy that was made by hand, PCI functions may be folders, and no links.
#[test]
fn a_copy_without_links_is_recorded() {
    let (dir, to) = (folder(), folder());
    let function = dir.path().join("sys/bus/pci/devices/0000:3b:00.0");
    fs::create_dir_all(&function).unwrap();
    fs::write(function.join("vendor"), "0x15b3\n").unwrap();
    let copy = to.path().join("copy");
    assert_eq!(on(dir.path(), &["--record", copy.to_str().unwrap()]).0, 0);
    let copied = copy.join("sys/bus/pci/devices/0000:3b:00.0/vendor");
    assert_eq!(fs::read_to_string(copied).unwrap(), "0x15b3\n");
}

/// CAP_IPC_LOCK lifts the limit of locked memory (mlock(2)), CAP_SYS_ADMIN alone does not.
#[test]
fn a_capability_lifts_the_limit_of_locked_memory() {
    for (capabilities, is_lifted) in [("0000000000004000", true), ("0000000000200000", false)] {
        let statement = format!("capabilities {capabilities}");
        let dir = machine("memlock-64k", &[&statement]);
        let is_wrong = wrong(dir.path()).iter().any(|f| f[0] == "locked-memory");
        assert_eq!(is_wrong, !is_lifted, "{capabilities}");
    }
}

/// A recording has no name, address or serial number that no check reads.
#[test]
fn a_recording_tells_nothing_more() {
    let dir = machine(
        "ib-switches",
        &[
            "file proc/driver/nvidia/gpus/0000:19:00.0/information = \
             Model:~~NVIDIA~H100|GPU~UUID:~GPU-5f0c1e2d-PRIVATE",
            "file proc/self/mounts = PRIVATE:/export/home~/home~nfs4~rw,username=PRIVATE~0~0|\
             tmpfs~/dev/shm~tmpfs~rw,size=2g~0~0|x~/dev/shm/PRIVATE~tmpfs~rw~0~0",
            "file proc/self/status = Name:~PRIVATE|CapEff:~0000000000000000",
            "file proc/cpuinfo = model~name~:~x|Serial~:~PRIVATE",
            "cmdline root=PRIVATE iommu=pt",
            "dev vg-PRIVATE",
        ],
    );
    let place = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/config";
    let mut config = fs::read(dir.path().join(place)).unwrap();
    // Advanced Error Reporting, then Device Serial Number behind it.
    config[0x100..0x104].copy_from_slice(&0x1501_0001u32.to_le_bytes());
    config[0x150..0x154].copy_from_slice(&0x0001_0003u32.to_le_bytes());
    config[0x154..0x15c].copy_from_slice(b"PRIVATE!");
    config[0x15c] = 0x5a;
    fs::write(dir.path().join(place), &config).unwrap();
    let to = folder();
    assert_eq!(on(dir.path(), &["--record", to.path().to_str().unwrap()]).0, 0);
    let mut open = vec![to.path().to_owned()];
    while let Some(folder) = open.pop() {
        for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            assert!(!path.to_string_lossy().contains("PRIVATE"), "{}", path.display());
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let content = fs::read(&path).unwrap();
            let is_private = content.windows(7).any(|w| w == b"PRIVATE");
            assert!(!is_private, "{}: {:?}", path.display(), String::from_utf8_lossy(&content));
        }
    }
    config[0x154..0x15c].fill(0);
    assert!(fs::read(to.path().join(place)).unwrap() == config, "the serial number alone is 0");
    let told = |root: &Path| on(root, &[]).1.split_once('\n').unwrap().1.to_owned();
    assert_eq!(told(dir.path()), told(to.path()));
}

/// Whoever made the tree may have given anything any name.
#[test]
fn a_script_runs_no_name() {
    let name = "-eth0;touch${IFS}pwned;$(touch${IFS}pwned)'";
    let dir = machine(
        "roce-genoa",
        &[
            &format!("port mlx5_0:1 netdev={name} state=DOWN"),
            &format!("net {name} mtu=1500"),
            "port mlx5_1:1 state=DOWN",
        ],
    );
    let script = on(dir.path(), &["--fix"]).1;
    let line = script.lines().find(|l| l.starts_with("ip link set dev")).expect("a port is down");
    let place = tempfile::tempdir().unwrap();
    let run = std::process::Command::new("sh")
        .args(["-c", &format!("ip() {{ printf '%s\\n' \"$4\"; }}; {line}")])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout).trim_end(), name, "{run:?}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{line}");
}

/// Comments and reports are one line, whatever they quote.
#[test]
fn others_text_ends_no_line() {
    let evil = "x|touch~pwned|\u{1b}[2J";
    let dir = machine(
        "ib-switches",
        &[
            &format!("rdma mlx5_0 fw={evil}"),
            &format!("port mlx5_1:1 state={evil}"),
            &format!("file proc/cpuinfo = model~name~:~{evil}"),
            "env NCCL_IB_HCA=mlx5_9\u{1b}[2J\u{7}",
            "pci 0000:9b:00.0 driver=vfio\u{1b}[2J",
        ],
    );
    let clean = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    let (_, text) = on(dir.path(), &[]);
    let (_, script) = on(dir.path(), &["--fix"]);
    assert!(clean(&text) && clean(&script), "{text:?}");
    assert!(script.lines().all(|line| !line.starts_with("touch")), "{script}");
    assert!(findings_of(dir.path()).unwrap().iter().flatten().all(|text| !text.contains('\n')));
}

/// A copy's links may lead to the running machine, to what never ends and to what never comes.
#[test]
fn a_copy_leads_nowhere_else() {
    let dir = machine(
        "ib-switches",
        &[
            "drop proc/meminfo",
            "drop proc/cpuinfo",
            "drop proc/modules",
            "drop sys/bus/pci/devices/0000:18:00.0",
            "drop sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0/class",
        ],
    );
    let at = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("/proc/meminfo", at("proc/meminfo")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("proc/cpuinfo")).unwrap();
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe(&at("proc/modules"));
    pipe(&at("sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0/class"));
    let outside = machine("ib-switches", &[]);
    let other = outside.path().join("sys/bus/pci/devices/0000:18:00.0");
    std::os::unix::fs::symlink(
        fs::canonicalize(other).unwrap(),
        at("sys/bus/pci/devices/0000:18:00.0"),
    )
    .unwrap();
    let began = std::time::Instant::now();
    let (_, text) = on(dir.path(), &["--json"]);
    assert!(began.elapsed().as_secs() < 4, "{:?}", began.elapsed());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let checks: Vec<_> =
        json["findings"].as_array().unwrap().iter().map(|f| f["check"].as_str().unwrap()).collect();
    assert!(!checks.contains(&"hugepages"), "meminfo is the running machine's");
    let nics: BTreeSet<_> =
        json["placement"].as_array().unwrap().iter().map(|p| p["nic"].as_str().unwrap()).collect();
    assert!(!nics.contains("0000:18:00.0"), "{nics:?}: a function of another tree");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(40))]
    /// No content of any file makes a check panic, or a line of two.
    #[test]
    fn any_content_is_read(
        picks in proptest::collection::vec((proptest::prelude::any::<usize>(), "[ -~\\n\u{1b}0-9,:x=]{0,60}"), 1..30),
        name in 0usize..3,
    ) {
        let dir = machine(["ib-switches", "roce-genoa", "ib-container"][name], &["env UCX_TLS=rc"]);
        let mut files = Vec::new();
        let mut open = vec![dir.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_symlink() {
                    continue;
                }
                if path.is_dir() { open.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        for (pick, content) in picks {
            fs::write(&files[pick % files.len()], content).unwrap();
        }
        let (status, text) = on(dir.path(), &[]);
        proptest::prop_assert!([0, 1, 3].contains(&status));
        proptest::prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", text);
    }
}

/// A machine with a base is not its base.
#[test]
fn a_machine_says_itself_what_it_is() {
    let (own, base) = (recorded("t4-bar"), recorded("ib-switches"));
    assert!(own.what.starts_with("a T4") && own.source.contains("nv_peer_memory#101"));
    assert_ne!(own.what, base.what);
    let whats: BTreeSet<String> = names().iter().map(|name| recorded(name).what).collect();
    assert_eq!(whats.len(), names().len(), "{whats:#?}");
}

/// This machine, whatever it has, and a put by every path.
#[test]
fn the_running_machine_is_read_and_measured() {
    let began = std::time::Instant::now();
    let (status, text) = doctor(&[]).unwrap();
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    assert!(
        [0, 1, 3].contains(&status) && text.starts_with("bellpush doctor: this machine"),
        "{text}"
    );
    let text = doctor(&["--live", "--json", "-"]).unwrap().1;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let puts = json["measured"]["puts"].as_array().unwrap();
    assert_eq!(puts.len(), bellpush::transport::Path::ALL.len());
    for put in puts {
        assert!(put["median_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{put}");
    }
}
