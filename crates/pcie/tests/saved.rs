//! What a topology does not know is unknown in its file, and unknown again when that is read.
#![cfg(feature = "toml")]

use std::fs;
use std::path::Path;

use bellpush_pcie::topology::{
    Builder, Class, Kind, Node, NodeId, RawLink, Topology, Tree, assign, assign_topology,
    from_lspci, from_toml, to_toml,
};
use proptest::prelude::*;

fn again(t: &Topology) -> Topology {
    let text = to_toml(t);
    from_toml(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", t.name))
}

/// Nodes in an order of their own, with their parents' names.
fn by_id(t: &Topology) -> Vec<(String, Option<String>, Node)> {
    let name = |id: NodeId| t.node(id).id.clone();
    let all =
        t.nodes().map(|(id, n)| (name(id), n.parent.map(name), Node { parent: None, ..n.clone() }));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn devices(t: &Topology) -> Vec<NodeId> {
    [t.of_kind(Kind::Gpu), t.of_kind(Kind::Nic)].concat()
}

fn same_classes(t: &Topology, saved: &Topology) {
    let all = devices(t);
    for &a in &all {
        for &b in all.iter().filter(|&&b| b != a) {
            let there = |n: NodeId| saved.find(&t.node(n).id).unwrap();
            let (own, read) = (t.class_of(a, b), saved.class_of(there(a), there(b)));
            assert_eq!(own, read, "{}: {} {}", t.name, t.node(a).id, t.node(b).id);
        }
    }
}

/// Every public capture: its file has the capture's classes, `NODE|SYS` and `?` among them, its
/// links, known and unknown, and gives the same NICs to the GPUs.
#[test]
fn captures_are_saved_with_what_they_do_not_show() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/topo");
    let (mut vague, mut unlinked, mut given) = (0, 0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !(name.ends_with(".lspci") || name.ends_with(".tree")) {
            continue;
        }
        let capture = from_lspci(&fs::read_to_string(&path).unwrap()).unwrap();
        let tree = Tree::new(&capture);
        let t = tree.topology(&name, None).unwrap();
        if devices(&t).is_empty() {
            continue;
        }
        let saved = again(&t);
        assert_eq!(by_id(&saved), by_id(&t), "{name}");
        same_classes(&t, &saved);
        for a in devices(&saved) {
            unlinked += usize::from(saved.node(a).link.is_none());
            for b in devices(&saved).into_iter().filter(|&b| b != a) {
                let at = |n: NodeId| saved.node(n).id.parse().unwrap();
                // nvidia-smi's classes, which a capture shows, leave ACS aside.
                if saved.route(a, b).redirect.is_some() {
                    continue;
                }
                let class = saved.class_of(a, b);
                assert_eq!(class, tree.class(at(a), at(b)), "{name}: {a:?} {b:?}");
                vague += usize::from(!matches!(class, Class::Known(_)));
            }
        }
        // Which functions are virtual a file does not say; which have RDMA their names do.
        let capture = tree.capture();
        if !capture.functions().any(|f| capture.is_virtual(f.address)) {
            let id = |n: NodeId| saved.node(n).id.clone();
            let mut own: Vec<_> = assign_topology(&saved)
                .into_iter()
                .map(|a| (id(a.gpu), a.nic.map(id), a.class))
                .collect();
            own.sort_by(|a, b| a.0.cmp(&b.0));
            let captured: Vec<_> = assign(&tree)
                .into_iter()
                .map(|a| (a.gpu.to_string(), a.nic.map(|n| n.to_string()), a.class))
                .collect();
            let is_direct = |(gpu, nic, _): &(String, Option<String>, Class)| {
                let there = |id: &String| saved.find(id).unwrap();
                nic.as_ref()
                    .is_none_or(|nic| saved.route(there(gpu), there(nic)).redirect.is_none())
            };
            for (own, captured) in own.iter().zip(&captured).filter(|(own, _)| is_direct(own)) {
                given += 1;
                assert_eq!(own, captured, "{name}");
            }
        }
    }
    assert!(vague > 10 && unlinked > 10 && given > 10, "{vague} {unlinked} {given}");
}

/// A socket or root complex: unknown or not, and choices of its fields.
type Root = (bool, u8);
/// A device: the root complex, where there below, its link, its card, and choices of its fields.
type Device = (usize, u8, u8, u8, u8);

fn built(sockets: &[bool], roots: &[Root], all: &[Device]) -> Topology {
    let mut b = Builder::new("any \"name\"");
    for (s, &unknown) in sockets.iter().enumerate() {
        let node = b.add(&format!("s{s}"), Kind::Socket, None, None, None);
        node.unknown = unknown;
        node.model = if unknown { String::new() } else { "a CPU".into() };
        node.memory_read_gb_per_s = (s > 0).then_some(151.25);
        node.memory_write_gb_per_s = (s > 1).then_some(210.5);
        if s > 0 {
            b.assumed_interconnect("s0", &format!("s{s}"), 22.5);
        }
    }
    for (r, &(unknown, fields)) in roots.iter().enumerate() {
        let socket = format!("s{}", r % sockets.len());
        let node = b.add(&format!("rc{r}"), Kind::RootComplex, Some(&socket), None, None);
        node.unknown = unknown;
        node.p2p.reads = [None, Some(true), Some(false)][usize::from(fields) % 3];
        node.mesh_gb_per_s = (fields > 5).then_some(80.5);
        b.add(&format!("rp{r}"), Kind::RootPort, Some(&format!("rc{r}")), None, None).acs =
            fields % 2 == 1;
        let link = (fields % 4 > 0).then_some(RawLink::new(4, 8));
        b.add(&format!("sw{r}"), Kind::Switch, Some(&format!("rp{r}")), link, None);
    }
    for (i, &(root, place, link, card, fields)) in all.iter().enumerate() {
        let parent =
            format!("{}{}", ["rc", "rp", "sw"][usize::from(place) % 3], root % roots.len());
        let kind = if place < 3 { Kind::Gpu } else { Kind::Nic };
        let links = [None, Some(RawLink { mps: 512, ..RawLink::new(5, 16) })];
        let node = b.add(&format!("d{i}"), kind, Some(&parent), links[usize::from(link) % 2], None);
        node.card = (kind == Kind::Nic && card > 0).then(|| format!("card {card}"));
        let choice = [None, Some(true), Some(false)];
        node.relaxed_ordering = choice[usize::from(fields) % 3];
        node.port_acs = choice[usize::from(fields / 3) % 3];
        node.model = ["", "a 'NIC' \"x\""][usize::from(fields) % 2].into();
    }
    b.finish().unwrap()
}

proptest! {
    /// Whatever is known and unknown of a topology, its file says the same.
    #[test]
    fn a_file_says_what_is_unknown(
        sockets in proptest::collection::vec(any::<bool>(), 1..4),
        roots in proptest::collection::vec((any::<bool>(), 0u8..9), 1..5),
        all in proptest::collection::vec((0usize..5, 0u8..6, 0u8..2, 0u8..4, 0u8..9), 0..7),
    ) {
        let t = built(&sockets, &roots, &all);
        let saved = again(&t);
        prop_assert_eq!(by_id(&saved), by_id(&t));
        same_classes(&t, &saved);
        prop_assert_eq!(to_toml(&again(&saved)), to_toml(&saved));
    }
}

#[test]
fn cards_spread_gpus_before_ports_do() {
    let base = "[[socket]]\nid='s'\n[[root_complex]]\nid='rc'\nsocket='s'\n";
    let gpus = ["g0", "g1"].map(|g| format!("[[gpu]]\nid='{g}'\nparent='rc'\n")).concat();
    let nics = |cards: [&str; 4]| -> String {
        let nic =
            |(i, card): (usize, &str)| format!("[[nic]]\nid='n{i}'\nparent='rc'\ncard='{card}'\n");
        cards.into_iter().enumerate().map(nic).collect()
    };
    let given = |cards| {
        let t = from_toml(&format!("{base}{gpus}{}", nics(cards))).unwrap();
        let all = assign_topology(&t).into_iter();
        all.map(|a| t.node(a.nic.unwrap()).id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(given(["a", "a", "b", "b"]), ["n0", "n2"]);
    assert_eq!(given(["unknown"; 4]), ["n0", "n1"], "no two of one card are known");
}

/// Ports of one card below one parent have one link.
#[test]
fn ports_of_a_card_with_two_links_are_refused() {
    let with = |first: &str, second: &str| {
        from_toml(&format!(
            "[[socket]]\nid='s'\n[[root_complex]]\nid='rc'\nsocket='s'\n\
             [[nic]]\nid='n0'\nparent='rc'\ncard='c'\n{first}\n\
             [[nic]]\nid='n1'\nparent='rc'\ncard='c'\n{second}\n"
        ))
    };
    assert!(with("gen=5\nlanes=8", "gen=5\nlanes=8").is_ok());
    assert!(with("link='unknown'", "gen=5\nlanes=16").is_ok());
    let error = with("gen=5\nlanes=8", "gen=5\nlanes=16").unwrap_err().to_string();
    let wanted = "line 13: n1: its gen and lanes are not those of another port of its card";
    assert_eq!(error, wanted);
}

#[test]
fn what_an_unknown_link_cannot_have_is_refused() {
    let with = |more: &str| {
        from_toml(&format!(
            "[[socket]]\nid='s'\n[[root_complex]]\nid='rc'\nsocket='s'\n\
             [[gpu]]\nid='g'\nparent='rc'\n{more}"
        ))
    };
    let t = with("link = 'unknown'").unwrap();
    let gpu = t.find("g").unwrap();
    assert!(t.node(gpu).link.is_none() && t.unknown_link(gpu) == Some(gpu));
    for (more, reason) in [
        ("link = 'unknown'\ngen = 4", "line 9: g: an unknown link has no gen"),
        ("link = 'unknown'\nassumed = ['mps']", "g: an unknown link has no gen"),
        ("link = 'fast'", "line 9: "),
        ("card = 'c'", "line 9: g: a GPU is no port of a NIC's card"),
    ] {
        let error = with(more).unwrap_err().to_string();
        assert!(error.starts_with("line 9: ") && error.contains(reason), "{more}: {error}");
    }
    for (text, lacks) in [
        ("", "no [[socket]]"),
        ("name = 'x'\n", "no [[socket]]"),
        ("[[socket]]\nid='s'\n", "no [[root_complex]]"),
    ] {
        let error = from_toml(text).unwrap_err().to_string();
        assert!(error.starts_with(lacks) && error.lines().count() == 1, "{text:?}: {error}");
        assert!(error.contains("[[gpu]]"), "{error}");
    }
}
