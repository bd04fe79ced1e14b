//! What `bellpush doctor` says of parts of a machine: of ports and of sizes of reads.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diagnoses::{json, machine, on};
use crate::doctor::{findings_of, found_of_grown};

/// The link layer of a port is told. Of one that does not show it nothing of RoCE is looked at, and that is told too: it
/// may be one of RoCE without a GID of version 2.
#[test]
fn a_port_of_unknown_layer_is_told() {
    let layer = |nth: u8| format!("sys/class/infiniband/mlx5_{nth}/ports/1/link_layer");
    let drop = [0, 1].map(|nth| format!("drop {}", layer(nth)));
    let odd = format!("file {} = Unspecified", layer(0));
    let [first, second] = drop.each_ref().map(String::as_str);
    let told = |name: &str, more: &[&str]| {
        let dir = machine(name, more);
        let all = findings_of(dir.path()).unwrap().into_iter();
        let own: Vec<_> =
            all.filter(|f| f[0] == "rdma-port").map(|[_, s, of, what]| [s, of, what]).collect();
        let possible = json(dir.path())["paths_on_a_card"][0]["possible"].clone();
        (own, possible)
    };
    let (own, can) = told("roce-genoa", &[]);
    assert_eq!((own[0][2].as_str(), can), ("active, Ethernet", true.into()), "{own:?}");
    let (own, can) = told("ib-switches", &[]);
    assert_eq!((own[0][2].as_str(), can), ("active, InfiniBand", true.into()), "{own:?}");
    for (name, more, count, possible) in [
        // With a GID of RoCE v2 it is of use whatever it is.
        ("roce-genoa", &[first, second][..], 2, Value::Bool(true)),
        ("ib-switches", &[first, second], 2, Value::Null),
        ("ib-switches", &[first], 1, Value::Bool(true)),
        ("ib-switches", &[&odd], 1, Value::Bool(true)),
    ] {
        let (own, can) = told(name, more);
        let hidden = own.iter().filter(|f| f[0] == "unseen" && f[2].contains("roce-mtu, roce-gid"));
        assert_eq!((hidden.count(), can), (count, possible), "{name} {more:?}: {own:?}");
    }
}

/// Every device may ask for 4096 B: what asks for less is worth knowing, and from 512 B on no fault.
#[test]
fn reads_below_the_most_are_told() {
    let told = |more: &[&str]| {
        let all = findings_of(machine("ib-switches", more).path()).unwrap().into_iter();
        all.filter(|f| f[0] == "pcie-mrrs")
            .map(|[_, s, of, found]| [s, of, found])
            .collect::<Vec<_>>()
    };
    let is = |severity: &str, nic: &str, bytes: u32| {
        [severity.to_owned(), nic.to_owned(), format!("MRRS of {bytes} B")]
    };
    let (first, second) = ("mlx5_0 0000:18:00.0", "mlx5_1 0000:9a:00.0");
    assert_eq!(told(&[]), [is("fine", "", 4096)]);
    for bytes in [512, 1024, 2048] {
        let less = format!("pci 0000:18:00.0 mrrs={bytes}");
        assert_eq!(told(&[&less]), [is("note", first, bytes), is("fine", second, 4096)]);
    }
    let [least, less] =
        [("18:00.0", 256), ("9a:00.0", 512)].map(|(at, n)| format!("pci 0000:{at} mrrs={n}"));
    assert_eq!(told(&[&least, &less]), [is("warning", first, 256), is("note", second, 512)]);
}

/// Of a virtual function the physical one's sizes and ordering count; of a physical one in a guest they are the host's
/// to set.
#[test]
fn a_guest_sets_no_sizes() {
    let of = |name: &str, more: &[&str]| {
        let dir = machine(name, more);
        let all = findings_of(dir.path()).unwrap().into_iter();
        let own =
            all.filter(|f| ["pcie-mps", "pcie-mrrs", "pcie-relaxed"].contains(&f[0].as_str()));
        let about: Vec<_> = own.filter(|f| f[1] != "fine").map(|f| f[0].clone()).collect();
        (about, on(dir.path(), &["--fix"]).1)
    };
    let (about, script) = of("vf-in-guest", &[]);
    assert!(about.is_empty() && !script.contains("setpci"), "{about:?}: {script}");
    let physical = "pci 0000:82:00.0 device=0x1021";
    let (about, script) = of("vf-in-guest", &[physical]);
    assert_eq!(about, ["pcie-mps", "pcie-mrrs", "pcie-relaxed"]);
    assert!(script.contains("# a virtual machine: on the host") && !script.contains("setpci"));
    let (_, script) = of("no-relaxed-ordering", &[]);
    assert!(script.contains("\nsetpci -s 0000:82:00.0 CAP_EXP+8.w=0010:0010"), "{script}");
}

/// A guest's root ports say nothing of the host's, whether its devices are virtual functions or whole ones.
#[test]
fn a_guests_root_ports_are_no_platform() {
    let guest = "file proc/cpuinfo = model~name~:~AMD~EPYC~9374F|flags~:~fpu~hypervisor~vme";
    let redirects = "pci 0000:00:01.1 acs=0x1d";
    for (name, more) in [("vf-in-guest", &[][..]), ("roce-genoa", &[guest, redirects])] {
        let all = findings_of(machine(name, more).path()).unwrap();
        for (check, part) in [("platform", "root ports of a hypervisor"), ("acs", "a hypervisor's")]
        {
            let own: Vec<_> = all.iter().filter(|f| f[0] == check).collect();
            assert!(own.len() == 1 && own[0][1] == "unseen" && own[0][3].contains(part), "{own:?}");
        }
    }
    let all = findings_of(machine("roce-genoa", &[]).path()).unwrap();
    assert!(all.iter().any(|f| f[0] == "platform" && f[3].contains("(Genoa)")), "{all:?}");
}

/// No fix leads to sizes that are a fault themselves: one MPS of all, and no larger reads before that.
#[test]
fn fixes_of_sizes_leave_no_fault() {
    let told = |name: &str, check: &str| {
        let told = json(machine(name, &[]).path());
        let all = told["findings"].as_array().unwrap().iter();
        let own: Vec<Value> = all.filter(|f| f["check"] == check).cloned().collect();
        assert!(!own.is_empty(), "{name}: {told}");
        own
    };
    for name in ["mps-128", "mps-mismatch", "mps-below", "mps-peers", "mps-of-firmware"] {
        for f in told(name, "pcie-mps").iter().filter(|f| f["severity"] != "fine") {
            let fix = f["fix"].as_str().unwrap();
            assert!(fix.contains("pcie_bus_safe") && !fix.contains("pcie_bus_perf"), "{name}: {f}");
        }
    }
    for f in told("mps-for-peers", "pcie-mps") {
        assert!(f["found"].as_str().unwrap().ends_with("by pci=pcie_bus_peer2peer"), "{f}");
    }
    let notes = told("mrrs-of-mps", "pcie-mrrs");
    let is_it = |f: &&Value| f["found"] == "MRRS of 256 B, and an MPS below the bridge's";
    assert!(notes.iter().any(|f| is_it(&f) && f["severity"] == "note"), "{notes:?}");
    let script = on(machine("mrrs-of-mps", &[]).path(), &["--fix"]).1;
    assert!(!script.contains("setpci"), "{script}");
}

/// Counters of lost and repeated packets that grow while a card is measured are a fault of it; those of other cards, and
/// pauses, are worth knowing. Any other counter that grows is none of these.
#[test]
fn packets_that_are_lost_meanwhile_are_a_fault() {
    let dir = machine("roce-genoa", &[]);
    let told = |nic: &str, names: &[&str]| {
        let counters: BTreeMap<String, u64> = names.iter().map(|n| ((*n).to_owned(), 2)).collect();
        found_of_grown(dir.path(), nic, &counters).unwrap()
    };
    let is = |severity: &str, of: &str, list: &str| {
        [severity.to_owned(), of.to_owned(), format!("grew meanwhile: {list}")]
    };
    for own in [
        "mlx5_0:1 packet_seq_err",
        "mlx5_0:1 port_xmit_discards",
        "mlx5_0:1 rnr_nak_retry_err",
        "mlx5_0:1 duplicate_request",
        "ens1np0 rx_discards_phy",
        "ens1np0 rx_crc_errors",
    ] {
        let list = format!("{own} +2");
        assert_eq!(told("mlx5_0", &[own]), [is("warning", "mlx5_0", &list)]);
        assert_eq!(told("mlx5_0:1", &[own]), [is("warning", "mlx5_0:1", &list)]);
        assert_eq!(told("mlx5_0,tc=106", &[own]), [is("warning", "mlx5_0", &list)]);
        assert_eq!(told("mlx5_0:1:3,tc=106", &[own]), [is("warning", "mlx5_0:1:3", &list)]);
        assert_eq!(told("mlx5_1", &[own]), [is("note", "", &list)]);
        assert_eq!(told("soft", &[own]), [is("note", "", &list)]);
    }
    let pause = "ens1np0 rx_prio3_pause";
    assert_eq!(told("mlx5_0", &[pause]), [is("note", "mlx5_0", &format!("{pause} +2"))]);
    assert_eq!(told("mlx5_0", &["mlx5_0:1 port_xmit_packets", "mlx5_0:1 symbol_error"]).len(), 0);
    // A bond's counters are those of the interfaces in it.
    let dir = machine("bond", &["port mlx5_0:1 netdev=bond0"]);
    for own in ["ens1np1 rx_discards_phy", "ens1np0 rx_crc_errors", "bond0 rx_crc_errors"] {
        let counters = BTreeMap::from([(own.to_owned(), 2)]);
        let list = format!("{own} +2");
        let told = found_of_grown(dir.path(), "mlx5_0", &counters).unwrap();
        assert_eq!(told, [is("warning", "mlx5_0", &list)]);
    }
}

/// Ports redirect requests or completions, below root complexes as below switches; and none that blocks what ATS has
/// translated lets it go directly.
#[test]
fn ports_say_what_they_redirect_and_block() {
    let told = |name: &str, more: &[&str]| {
        let all = findings_of(machine(name, more).path()).unwrap().into_iter();
        let own = all.filter(|f| f[0] == "acs").map(|[_, severity, _, found]| (severity, found));
        own.collect::<Vec<_>>()
    };
    let is = |all: &[(String, String)], severity: &str, part: &str| {
        all.iter().any(|(own, found)| own == severity && found.contains(part))
    };
    for (control, what) in [("0x08", "completions"), ("0x0c", "requests"), ("0x1d", "requests")] {
        let port = format!("pci 0000:00:01.1 acs={control}");
        let all = told("roce-genoa", &[&port]);
        assert!(is(&all, "note", &format!("1 of 4 root ports redirect peer {what}: ")), "{all:?}");
    }
    let (block, all) =
        ("block translated requests, and ATS of NICs below ", told("acs-blocking", &[]));
    assert!(
        is(&all, "warning", &format!("{block}is enabled")) && !is(&all, "note", "ATS has"),
        "{all:?}"
    );
    let nics = [
        "15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18",
        "97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a",
    ];
    let hide = nics.map(|at| format!("drop sys/devices/pci0000:{at}:00.0/config"));
    let all = told("acs-blocking", &[&hide[0], &hide[1]]);
    assert!(is(&all, "warning", &format!("{block}may be enabled, which is hidden")), "{all:?}");
    let off = told("ib-switches", &["pci 0000:17:00.0 acs=0x5f"]);
    assert!(!is(&off, "warning", block), "{off:?}");
    let root = ["pci 0000:00:01.1 acs=0x02", "pci 0000:00:03.1 acs=0x02", "pci 0000:02:00.0 ats=1"];
    let all = told("roce-genoa", &root);
    assert!(is(&all, "warning", "1 of 4 root ports block translated requests"), "{all:?}");
}

/// A configuration space of 256 bytes shows nobody more; ATS of a NIC elsewhere is no matter of a port.
#[test]
fn ports_without_extended_capabilities_are_told() {
    let told = |more: &[&str]| {
        let all = findings_of(machine("ib-switches", more).path()).unwrap().into_iter();
        all.filter(|f| f[0] == "acs").collect::<Vec<_>>()
    };
    let short = ["17:00.0", "17:04.0"].map(|at| format!("pci 0000:{at} config=256"));
    let own = told(&[&short[0], &short[1]]);
    let is_it = |f: &[String; 4]| {
        f[1] == "unseen" && f[3].contains("2 of 4 switch ports: they have 256 bytes")
    };
    assert!(own.len() == 1 && is_it(&own[0]), "{own:?}");
    let cut = told(&[&short[0], "pci 0000:17:04.0 config=64"]);
    assert!(cut.len() == 2 && cut[0][3].contains("1 of 4 switch ports: configuration"), "{cut:?}");
    let own = findings_of(machine("acs-ats-of-one", &[]).path()).unwrap();
    let own: Vec<_> = own.iter().filter(|f| f[0] == "acs").collect();
    assert!(own.len() == 1 && own[0][1] == "note", "{own:?}");
    let own = findings_of(machine("roce-apart", &[]).path()).unwrap();
    let own: Vec<_> = own.iter().filter(|f| f[0] == "roce-flow").map(|f| f[1].as_str()).collect();
    assert_eq!(own, ["warning", "note"]);
}

/// GPUs behind NVSwitches wait for the fabric manager, which is not to be seen.
#[test]
fn the_fabric_manager_is_unseen() {
    let switch = "pci pci0000:97/0000:97:02.0 class=0x068000 vendor=0x10de device=0x22a3";
    let told = json(machine("ib-switches", &[switch]).path());
    let all = told["findings"].as_array().unwrap();
    let is_it = |f: &&Value| f["check"] == "gpu" && f["severity"] == "unseen";
    let own: Vec<_> = all.iter().filter(is_it).collect();
    assert!(
        own.len() == 1 && own[0]["found"].as_str().unwrap().contains("fabric manager"),
        "{own:?}"
    );
    assert_eq!(told["kernels"], "gpu", "{told}");
    assert!(all.iter().any(|f| f["check"] == "gpu" && f["severity"] == "fine"), "{told}");
}

/// No GPU is given a port of much less than the rate of one that is as near, and its MTU is no fault.
#[test]
fn a_slow_port_is_no_gpus() {
    let given = |more: &[&str]| {
        let told = json(machine("management-port", more).path());
        let all = told["placement"].as_array().unwrap().iter();
        let all = all.filter(|pair| pair["assigned"] == true);
        all.map(|pair| pair["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(given(&[]), ["mlx5_0", "mlx5_0", "mlx5_1"]);
    // Half of the rate is what two share of the other.
    let mut half = given(&["port mlx5_2:1 rate=200~Gb/sec~(4X~HDR)"]);
    half.sort();
    assert_eq!(half, ["mlx5_0", "mlx5_1", "mlx5_2"]);
    let all = findings_of(machine("management-port", &[]).path()).unwrap();
    let own = all.iter().find(|f| f[0] == "roce-mtu" && f[2].contains("ens9")).unwrap();
    assert_eq!(own[1], "note", "{own:?}");
}
