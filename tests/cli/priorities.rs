//! `bellpush doctor` on what rtnetlink answers, on traffic classes, and on IOMMU groups.

use crate::diagnoses::{json, machine, on};
use crate::doctor::findings_of;

/// Severity and text of a check's findings on a machine with some statements more.
fn said(check: &str, name: &str, more: &[&str]) -> Vec<[String; 2]> {
    let all = findings_of(machine(name, more).path()).unwrap();
    let own = all.into_iter().filter(|[by, ..]| by == check);
    own.map(|[_, severity, subject, found]| [severity, format!("{subject}: {found}")]).collect()
}

/// What is said of the port whose interface is ens1np0.
#[track_caller]
fn of_first(check: &str, name: &str, more: &[&str]) -> (String, String) {
    let all = said(check, name, more);
    let own: Vec<_> =
        all.iter().filter(|[_, found]| found.contains("mlx5_0:1 (ens1np0)")).collect();
    assert_eq!(own.len(), 1, "{all:?}");
    (own[0][0].clone(), own[0][1].clone())
}

fn answer(lines: &str) -> String {
    format!("file netlink/dcb/ens1np0 = {}", lines.replace(' ', "~"))
}

#[test]
fn an_answer_of_rtnetlink_is_looked_at() {
    let right = "mlx5_0:1 (ens1np0): PFC of priorities 3, ECN of unknown, trust dscp";
    assert_eq!(of_first("roce-flow", "roce-dcb", &[]), ("fine".into(), right.into()));
    for (lines, severity, part) in [
        ("dcbx 12|pfc 3|dscp 3 26", "fine", "as the card's firmware agrees with the switch"),
        ("dcbx 9|pfc 3|dscp none", "warning", "PFC of priorities 3, ECN of unknown, trust pcp"),
        ("dcbx 9|pfc none|dscp 3 26", "unseen", "without PFC only ECN keeps a full switch"),
        ("error 95", "unseen", "rtnetlink: Operation not supported (os error 95)"),
        ("pfc 8", "unseen", "netlink/dcb/ens1np0: not in the expected form"),
    ] {
        let (is, found) = of_first("roce-flow", "roce-dcb", &[&answer(lines)]);
        assert!(is == severity && found.contains(part), "{lines}: {is} {found}");
    }
    // What is to be typed is of the priority that has PFC.
    let dir = machine("roce-dcb", &[&answer("pfc 5|dscp none")]);
    let script = on(dir.path(), &["--fix"]).1;
    assert!(script.contains("dcb app add dev ens1np0 dscp-prio 42:5\n"), "{script}");
    // MLNX_OFED's files count before it.
    let (is, found) = of_first("roce-flow", "roce-genoa", &[&answer("pfc none|dscp none")]);
    assert!(is == "fine" && found.contains("priorities 3, ECN of 3, trust dscp"), "{found}");
}

/// Entries that are none are told of, and no finding hangs on them.
#[test]
fn odd_entries_of_a_map_change_no_finding() {
    for lines in ["dcbx 9|pfc 3|dscp 3 24,26", "pfc 3|dscp none", "pfc none|dscp 3 26"] {
        for check in ["roce-flow", "roce-class"] {
            let all = |more: &str| said(check, "roce-dcb", &[&answer(&format!("{lines}{more}"))]);
            let (odd, rest): (Vec<_>, Vec<_>) =
                all("|odd-dscps 2").into_iter().partition(|[_, found]| found.contains("left out"));
            assert_eq!(rest, all(""), "{lines}");
            let told = "mlx5_0:1 (ens1np0): entries of the map of DSCPs that are left out, with a \
                        DSCP above 63 or a priority above 7: 2";
            let told = [["note".to_owned(), told.to_owned()]];
            assert_eq!(odd, if check == "roce-flow" { &told[..] } else { &[] }, "{lines}");
        }
    }
}

#[test]
fn the_priority_of_a_traffic_class_has_pfc() {
    let all = said("roce-class", "roce-dcb", &[]);
    assert!(all.len() == 4 && all.iter().all(|[severity, _]| severity == "fine"), "{all:?}");
    let map = "dscp 3 24,26|dscp 5 46";
    for (more, severity, part) in [
        (format!("pfc 3|queues 0,0,0,3,0,0,0,0|{map}"), "fine", "DSCP 26, priority 3"),
        (format!("pfc 3|queues 3,0,0,3,0,0,0,0|{map}"), "note", "in one queue with 0"),
        (format!("pfc 5|{map}"), "warning", "DSCP 26, priority 3, PFC of priorities 5"),
        // What the firmware has for a DSCP that nobody has set, nobody tells.
        ("pfc 3|dscp 3 24".to_owned(), "unseen", "traffic class 106 of default_roce_tos: the prio"),
        ("pfc 3".to_owned(), "", ""),
        (format!("pfc none|{map}"), "", ""),
        ("pfc 3|dscp none".to_owned(), "", ""),
    ] {
        let alone = ["drop env", "drop sys/kernel/config/rdma_cm/mlx5_1", &answer(&more)];
        let all = said("roce-class", "roce-dcb", &alone);
        let own: Vec<_> = all.iter().filter(|[_, found]| found.contains("ens1np0")).collect();
        match own[..] {
            [[is, found]] => {
                assert!(is == severity && found.contains(part), "{more}: {is} {found}")
            }
            _ => assert!(own.is_empty() && severity.is_empty(), "{more}: {own:?}"),
        }
    }
}

/// As NCCL reads it: decimal, hexadecimal, or octal behind a 0.
#[test]
fn a_traffic_class_has_the_base_that_its_digits_say() {
    let map = answer("pfc 3|dscp 0 0|dscp 3 24,26");
    for (value, class) in [("106", "106"), ("0x6a", "106"), ("0152", "106"), ("0", "0")] {
        let variable = format!("env NCCL_IB_TC={value}");
        let (_, found) = of_first("roce-class", "roce-upstream", &[&map, &variable]);
        assert!(
            found.contains(&format!("traffic class {class} of NCCL_IB_TC")),
            "{value}: {found}"
        );
    }
}

/// What the card puts in place of others' counts alone; where nothing is set it is 0, which is no fault.
#[test]
fn a_traffic_class_is_whose_it_is() {
    let tc = "file sys/class/infiniband/mlx5_0/tc/1/traffic_class = ";
    let (is, found) = of_first("roce-class", "roce-dcb", &[&format!("{tc}Global~tclass=138")]);
    assert!(
        is == "warning" && found.contains("tc/1/traffic_class: DSCP 34, priority 4"),
        "{found}"
    );
    let none = ["drop env", "drop sys/kernel/config"];
    let (is, found) = of_first("roce-class", "roce-dcb", &none);
    let part = "no traffic class is set: DSCP 0, priority 0, PFC of priorities 3";
    assert!(is == "note" && found.contains(part), "{is} {found}");
    // An empty file sets none, a number of no class neither.
    for text in ["", "Global~tclass=300", "Global~tclass="] {
        let file = format!("{tc}{text}");
        let (is, found) = of_first("roce-class", "roce-dcb", &[none[0], none[1], &file]);
        assert!(is == "note" && found.contains("no traffic class is set"), "{text}: {found}");
    }
    // Without an answer its priority is not known.
    let file = format!("{tc}Global~tclass=106");
    let (is, found) = of_first("roce-class", "roce-genoa", &[&file]);
    assert!(is == "unseen" && found.contains("traffic class 106 of /sys/class"), "{is} {found}");
}

/// A bond answers for none of its priorities, its members do.
#[test]
fn members_of_a_bond_are_asked() {
    let bond = [
        "port mlx5_0:1 netdev=bond0",
        "net bond0 mtu=9000",
        "file sys/class/net/bond0/bonding/mode = 802.3ad 4",
        "file sys/class/net/bond0/bonding/slaves = ens1np0 ens2np0",
        "file netlink/dcb/bond0 = error~95",
    ];
    let all = said("roce-flow", "roce-dcb", &bond);
    let of_bond: Vec<_> = all.iter().filter(|[_, found]| found.contains("mlx5_0:1")).collect();
    assert!(of_bond.len() == 2 && of_bond.iter().all(|[is, _]| is == "fine"), "{all:?}");
}

/// What is set by a script is what is shown, and nothing of it runs unasked.
#[test]
fn a_script_sets_a_class_with_pfc() {
    let script = |name: &str| on(machine(name, &[]).path(), &["--fix"]).1;
    let map = script("roce-class-map");
    let line =
        "# if the switches have it: echo 98 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class";
    assert!(map.contains(line), "{map}");
    let pfc = script("roce-dcb-pfc");
    assert!(pfc.contains("have it: cma_roce_tos -d mlx5_0 -p 1 -t 138"), "{pfc}");
    assert!(pfc.contains("have it: export NCCL_IB_TC=138"), "{pfc}");
    let lines = map.lines().chain(pfc.lines()).filter(|line| line.contains("the switches have"));
    assert!(lines.clone().count() >= 3 && lines.clone().all(|line| line.starts_with('#')));
}

#[test]
fn a_group_of_several_cards_is_told_of() {
    let all = said("iommu-group", "group-shared", &[]);
    let found = "GPU0, mlx5_0: IOMMU group 10 has mlx5_0, GPU0 and 0000:1a:00.0; no ACS at \
                 0000:15:01.0, 0000:17:00.0, 0000:17:04.0, 0000:17:08.0";
    let sorted = |text: &str| {
        let mut words: Vec<String> = text.split([',', ' ', ':', ';']).map(str::to_owned).collect();
        words.sort();
        words
    };
    assert!(all.len() == 1 && all[0][0] == "note", "{all:?}");
    assert_eq!(sorted(&all[0][1]), sorted(found), "{all:?}");
    let json = json(machine("group-shared", &[]).path());
    let finding = json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "iommu-group");
    assert!(finding.unwrap()["cost"].as_str().unwrap().contains("(VFIO)"), "{finding:?}");
    // Functions of one card are no other card's.
    let apart = said("iommu-group", "group-apart", &[]);
    assert_eq!(apart, [["fine", ": 4 GPUs and NICs, none with another card"]]);
    let hidden = said(
        "iommu-group",
        "ib-switches",
        &[
            "drop sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/iommu_group",
        ],
    );
    assert!(
        hidden.len() == 1 && hidden[0][0] == "unseen" && hidden[0][1].contains("mlx5_0"),
        "{hidden:?}"
    );
    let user = said(
        "iommu-group",
        "group-shared",
        &[
            "pci 0000:17:00.0 config=64",
            "pci 0000:17:04.0 config=64",
            "pci 0000:17:08.0 config=64",
            "pci 0000:15:01.0 config=64",
        ],
    );
    assert!(user[0][1].contains("ACS of 4 ports above them is hidden"), "{user:?}");
}
