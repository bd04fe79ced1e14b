use super::*;
use crate::sim::{Params, simulate_flows};
use crate::topology::from_toml;

const MACHINE: &str = include_str!("../../machines/esc8000a-e13p.toml");

const NONE: &str = "[posted_write_collapse]\nseen = false\nsource = \"x\"\n";

/// The machine with its collapse as `text` gives it.
fn machine(text: &str) -> Topology {
    let start = MACHINE.find("[posted_write_collapse]").unwrap();
    let end = MACHINE[start..].find("\n\n").unwrap() + start;
    from_toml(&format!("{}{text}{}", &MACHINE[..start], &MACHINE[end..])).unwrap()
}

fn own() -> Topology {
    from_toml(MACHINE).unwrap()
}

fn flows(t: &Topology, pairs: &[(&str, &str)], by: Move) -> Vec<Flow> {
    let id = |n: &str| t.find(n).unwrap();
    pairs.iter().map(|(a, b)| Flow { from: id(a), to: id(b), by }).collect()
}

fn total(t: &Topology, pairs: &[(&str, &str)], by: Move) -> f64 {
    simulate_flows(t, &Params::default(), &flows(t, pairs, by)).unwrap().iter().sum()
}

const FAN: [(&str, &str); 2] = [("gpu0", "gpu4"), ("gpu1", "gpu6")];

#[test]
fn writes_of_one_switch_to_two_roots_collapse_and_nothing_else_does() {
    let t = own();
    let fan = total(&t, &FAN, Move::Write);
    assert!((fan / 2.7 - 1.0).abs() < 0.05, "{fan}");
    // Other source switches, and one root, keep their rates; reads do in the model, and nobody measured them.
    let free = machine(NONE);
    for (pairs, by) in [
        (&FAN[..], Move::Read),
        (&[("gpu0", "gpu4"), ("gpu2", "gpu6")], Move::Write),
        (&[("gpu0", "gpu4"), ("gpu1", "gpu5")], Move::Write),
        (&[("gpu0", "gpu4")], Move::Write),
    ] {
        let (with, without) = (total(&t, pairs, by), total(&free, pairs, by));
        assert!((with / without - 1.0).abs() < 1e-9 && with > 30.0, "{pairs:?} {by:?}: {with}");
    }
    assert!(total(&free, &FAN, Move::Write) > 40.0);
}

/// Whatever runs beside a fan, its own flows get no more than is said of them; and what is no fan,
/// such as writes to host memory, is not cut.
#[test]
fn flows_of_a_fan_get_the_cap_together_and_others_are_none_of_it() {
    let t = from_toml(MACHINE).unwrap();
    let half = from_toml(&MACHINE.replace("gb_per_s = 2.7", "gb_per_s = 0.5")).unwrap();
    for (t, cap, sets) in [(&t, 2.7, 5), (&half, 0.5, 2)] {
        let all_sets = [
            &[("gpu0", "gpu4"), ("gpu1", "gpu6")][..],
            &[("gpu0", "gpu4"), ("gpu1", "gpu6"), ("gpu0", "s0")],
            &[("gpu0", "gpu4"), ("gpu1", "gpu6"), ("gpu1", "s1")],
            &[("gpu0", "gpu4"), ("gpu1", "gpu6"), ("gpu0", "gpu1")],
            &[("gpu0", "gpu4"), ("gpu1", "gpu4"), ("gpu0", "gpu6"), ("gpu1", "gpu6")],
        ];
        for pairs in &all_sets[..sets] {
            let all = flows(t, pairs, Move::Write);
            let of = &fans(t, &all)[0].flows;
            let rates = simulate_flows(t, &Params::default(), &all).unwrap();
            let sum: f64 = of.iter().map(|&i| rates[i]).sum();
            assert!(sum <= 1.01 * cap, "{pairs:?}: {sum} of {cap}");
            let told = warnings(t, &all);
            assert_eq!(told.len(), if of.len() < all.len() { 2 } else { 1 }, "{told:?}");
            assert!(told[0].contains(&format!("{cap} GB/s together")), "{told:?}");
        }
        for memory in ["s0", "s1"] {
            let pairs = [("gpu0", "gpu4"), ("gpu1", memory)];
            let (sum, all) = (total(t, &pairs, Move::Write), flows(t, &pairs, Move::Write));
            assert!(sum > 50.0 && warnings(t, &all).is_empty(), "{memory}: {sum}");
        }
    }
    let beside = [("gpu0", "gpu4"), ("gpu1", "gpu6"), ("gpu0", "gpu1"), ("gpu4", "gpu5")];
    let told = warnings(&t, &flows(&t, &beside, Move::Write));
    assert!(told[1].contains("uplink of vs-a0: gpu0>gpu1; in"), "{told:?}");
}

/// Rates by arithmetic are those of the simulation where streams wait behind a fan, and where a memory limits.
#[test]
fn computed_streams_have_what_simulated_ones_have() {
    let limited = MACHINE.replacen("id = \"s0\"", "id = \"s0\"\nmemory_write_gb_per_s = 20.0", 1);
    let (own, limited) = (own(), from_toml(&limited).unwrap());
    for (t, pairs, most) in [
        (&own, &[FAN[0], FAN[1], ("gpu0", "gpu1")][..], 0.1),
        (&own, &[FAN[0], FAN[1], ("gpu0", "gpu2"), ("gpu3", "gpu2")], 0.1),
        // At the uplink inputs take turns, and not flows: 0.89, 1.77 and 0.89 GB/s, by arithmetic 1.35 each.
        (&own, &[FAN[0], FAN[1], ("gpu0", "s0")], 0.55),
        (&limited, &[("gpu0", "s0"), ("gpu2", "s0"), ("gpu1", "gpu3")], 0.1),
    ] {
        let all = flows(t, pairs, Move::Write);
        let ends: Vec<_> = all.iter().map(|f| (f.from, f.to)).collect();
        let simulated = simulate_flows(t, &Params::default(), &all).unwrap();
        let computed = fair_streams(t, &ends).unwrap();
        for (got, wanted) in computed.iter().zip(&simulated) {
            assert!((got / wanted - 1.0).abs() < most, "{pairs:?}: {computed:?} {simulated:?}");
        }
    }
}

/// One device below a switch never collapsed anywhere, so nothing is said of it.
#[test]
fn one_source_is_no_reason_for_a_word() {
    let unknown = machine("");
    let of = |pairs| warnings(&unknown, &flows(&unknown, pairs, Move::Write));
    assert_eq!(of(&[("gpu0", "gpu4"), ("gpu0", "gpu6")]), Vec::<String>::new());
    assert_eq!(of(&FAN).len(), 1);
}

/// A machine saved from a capture has no chips: what its file takes for a fan may stay inside one.
#[test]
fn a_fan_of_unknown_chips_says_so() {
    let told = |t: &Topology| warnings(t, &flows(t, &FAN, Move::Write))[0].clone();
    assert!(!told(&own()).contains("[[chip]]"));
    let bare = MACHINE.replace("chip = \"A\"\n", "").replace("chip = \"B\"\n", "");
    assert!(told(&from_toml(&bare).unwrap()).contains("within one chip of several switches"));
}

#[test]
fn thresholds_are_the_platforms() {
    let four = "[posted_write_collapse]\nsources = 4\nroots = 2\ngb_per_s = 5.0\nsource = \"x\"\n";
    let t = machine(four);
    assert!(total(&t, &FAN, Move::Write) > 40.0);
    assert!(warnings(&t, &flows(&t, &FAN, Move::Write)).is_empty());
}

#[test]
fn who_looked_is_told_apart_from_who_did_not() {
    let told = |t: &Topology| warnings(t, &flows(t, &FAN, Move::Write)).join("; ");
    let seen = told(&own());
    assert!(seen.contains("2 sources below vs-a0") && seen.contains("2.7 GB/s"), "{seen}");
    assert!(seen.contains("rtx6kpro"), "with its source: {seen}");
    let unknown = told(&machine(""));
    assert!(unknown.contains("on this one unknown"), "{unknown}");
    let none = machine(NONE);
    assert_eq!(told(&none), "");
    // Within the chip nothing goes up, so nothing is told of it.
    let inside = from_toml(MACHINE).unwrap();
    let pairs = [("gpu0", "gpu2"), ("gpu1", "gpu3")];
    assert!(fans(&inside, &flows(&inside, &pairs, Move::Write)).is_empty());
}

#[test]
fn a_schedule_avoids_the_collapse_and_keeps_every_flow_once() {
    let t = own();
    let all: Vec<(String, String)> = (0..8)
        .flat_map(|a| (0..8).filter(move |&b| b != a).map(move |b| (a, b)))
        .map(|(a, b)| (format!("gpu{a}"), format!("gpu{b}")))
        .collect();
    let pairs: Vec<(&str, &str)> = all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let every = flows(&t, &pairs, Move::Write);
    let rounds = schedule(&t, &every);
    let mut seen: Vec<usize> = rounds.iter().flatten().copied().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..every.len()).collect::<Vec<_>>());
    // Each switch writes to the two root ports of the other chip: two rounds.
    assert_eq!(rounds.len(), 2);
    for round in &rounds {
        let part: Vec<Flow> = round.iter().map(|&i| every[i]).collect();
        assert!(fans(&t, &part).iter().all(|f| f.roots == 1) && warnings(&t, &part).is_empty());
    }
    assert!(!warnings(&t, &every).is_empty());
    // Rounds one after the other beat both at once: 2 flows of 1 GB each.
    let two = flows(&t, &FAN, Move::Write);
    let one_by_one: f64 =
        schedule(&t, &two).iter().map(|r| 1.0 / total(&t, &[FAN[r[0]]], Move::Write)).sum();
    let at_once = 2.0 / total(&t, &FAN, Move::Write);
    assert!(one_by_one * 10.0 < at_once, "{one_by_one} {at_once}");
}

#[test]
fn bad_collapses_are_refused_with_their_line() {
    let bad = |from: &str, to: &str| {
        assert!(MACHINE.contains(from));
        from_toml(&MACHINE.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let line =
        MACHINE[..MACHINE.find("[posted_write_collapse]").unwrap()].matches('\n').count() + 1;
    let error = bad("gb_per_s = 2.7", "gb_per_s = 0.0");
    assert!(error.contains("gb_per_s of 0 must be from 0.001 to 1000000 GB/s"), "{error}");
    assert!(error.starts_with(&format!("line {line}")), "{error}");
    let tiny = bad("gb_per_s = 2.7", "gb_per_s = 1e-300");
    assert!(tiny.starts_with(&format!("line {line}")) && tiny.contains("from 0.001"), "{tiny}");
    assert!(bad("roots = 2", "roots = 1").contains("roots (at least 2) of 1"));
    assert!(bad("sources = 2", "sources = 0").starts_with("line "));
    assert!(bad("\nsource = ", "\nsaid_by = ").starts_with("line "), "a source is a must");
}

/// Neither reads nor writes to host memory are fans; root ports of one root complex count each.
#[test]
fn fans_are_of_peer_writes_by_root_port() {
    let roots = |t: &Topology, pairs: &[(&str, &str)], by| {
        fans(t, &flows(t, pairs, by)).iter().map(|f| f.roots).collect::<Vec<_>>()
    };
    let t = from_toml(MACHINE).unwrap();
    let pairs = [("gpu0", "gpu4"), ("gpu1", "gpu6")];
    assert_eq!(roots(&t, &pairs, Move::Write), [2]);
    assert!(roots(&t, &pairs, Move::Read).is_empty());
    assert!(roots(&t, &[("gpu0", "s0"), ("gpu1", "s1")], Move::Write).is_empty());
    let one = from_toml(&MACHINE.replace("parent = \"rc3\"", "parent = \"rc2\"")).unwrap();
    assert_eq!(roots(&one, &pairs, Move::Write), [2]);
    // Where nobody looked, writes to one root port are no reason for a word.
    let unknown = machine("");
    assert!(warnings(&unknown, &flows(&unknown, &pairs[..1], Move::Write)).is_empty());
}

#[test]
fn what_waits_behind_a_fan_is_named() {
    let t = from_toml(MACHINE).unwrap();
    let fan = flows(&t, &[("gpu0", "gpu4"), ("gpu1", "gpu6")], Move::Write);
    let inside = flows(&t, &[("gpu0", "gpu1")], Move::Write);
    let read = flows(&t, &[("gpu1", "gpu4")], Move::Read);
    let all = [fan.clone(), inside, read].concat();
    let told = behind(&t, &all, &fans(&t, &all)[0]).unwrap();
    assert!(told.contains("the uplink of vs-a0: gpu0>gpu1, gpu4<gpu1; in the"), "{told}");
    assert_eq!(behind(&t, &fan, &fans(&t, &fan)[0]), None);
}
