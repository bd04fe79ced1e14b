//! What the command reads, of any content.

use proptest::prelude::*;

use crate::files::{ALL, KINDS, LATER, Outcome, machine, run};

/// Kinds of text.
const TEXTS: usize = KINDS.len() + LATER.len();

/// Texts that are right, of each kind in the order of [`KINDS`] and [`LATER`].
fn right() -> [Vec<String>; TEXTS] {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
    let measured = std::fs::read_to_string(format!("{folder}/h200.json")).unwrap();
    let script = |text: &str| format!("seed = 7\n[[fault]]\n{text}\n");
    let machine = serde_json::to_string(&machine()).unwrap();
    let ranges = r#"[{"up_to":64,"path":"push/inband"},{"path":"pull/kernel"}]"#;
    let version = env!("CARGO_PKG_VERSION");
    [
        ["loss=1%,dup=0.1%,reorder=1%,delay=10us,corrupt=0.01%,rate=1GB/s,seed=7", "seed=0"]
            .map(String::from)
            .into(),
        [
            "on = \"wqe\"\naction = \"fail\"\nsyndrome = \"remote-access-error\"\nqp = 1\nnth = 3",
            "on = \"packet\"\naction = \"delay\"\ndirection = \"sent\"\ndelay = \"10us\"\nshare = \"1%\"",
            "on = \"cqe\"\naction = \"drop\"\ncq = 1\nevery = 5\ntimes = 2\nafter = \"1ms\"",
            "on = \"packet\"\naction = \"corrupt\"\ndirection = \"received\"\npeer = \"127.0.0.1\"",
            "on = \"port\"\naction = \"down\"\nafter = \"1s\"\nfor = \"2s\"",
        ]
        .map(script)
        .into(),
        ["7", "18446744073709551615, writes=all,cqe"].map(String::from).into(),
        vec![TOPOLOGY.into()],
        vec![small(&measured)],
        ["8", "8..4MiB, 3 KiB,1G"].map(String::from).into(),
        vec![
            "{}".into(),
            r#"{"devices":2,"addresses":["127.0.0.9"],"link":"loss=1%","mtu":1024}"#.into(),
        ],
        vec![format!(
            r#"{{"version":1,"tables":[{{"machine":{machine},"bellpush":"{version}",
                "thread":{ranges},"warp":{ranges},"block":{ranges}}}]}}"#
        )],
        ["shm", "udp,loss=1%", "dup=2%"].map(String::from).into(),
        ["64", "4KiB", "1 TiB"].map(String::from).into(),
        ["wrx90.tree", "esc8000a-e12.lspci"].map(captured).into(),
        ["nccl-667.smi", "miss-alignment-106.smi"].map(captured).into(),
        ["all-reduce", "all-to-all", "gpu0>nic0, gpu1>gpu2"].map(String::from).into(),
        vec![small(&measured), format!("{0}\n---\n{0}", small(&measured))],
        vec![seed("seed-24-39")],
    ]
}

/// A text of the corpus: of an H100's link the rows behind three parameters.
fn seed(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap().split_off(1)
}

/// A capture of a real machine.
fn captured(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/topo");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

const TOPOLOGY: &str = r#"
name = "two"
[[socket]]
id = "s0"
[[socket]]
id = "s1"
[[root_complex]]
id = "rc0"
socket = "s0"
p2p_tlp_bytes = 64
p2p_cap_gb_per_s = 12.5
[[root_port]]
id = "rp0"
parent = "rc0"
[[switch]]
id = "sw0"
parent = "rp0"
acs = true
[[gpu]]
id = "gpu0"
parent = "sw0"
gen = 4
lanes = 8
[[nic]]
id = "nic0"
parent = "sw0"
model = "a NIC"
[[interconnect]]
from = "s0"
to = "s1"
gb_per_s = 60.0
"#;

/// The same results with their first row alone.
fn small(json: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(json).unwrap();
    value["results"].as_array_mut().unwrap().truncate(1);
    value.to_string()
}

fn input(kind: usize, text: &str) -> Vec<u8> {
    let number = if kind < KINDS.len() { kind } else { ALL - TEXTS + kind };
    [&[number as u8], text.as_bytes()].concat()
}

#[test]
fn what_is_right_is_accepted() {
    for (kind, texts) in right().iter().enumerate() {
        for text in texts {
            assert_eq!(run(&input(kind, text)), Outcome::Accepted, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_read_or_refused(kind in 0..TEXTS, text in any::<String>()) {
        run(&input(kind, &text));
    }

    /// Texts that are right but in a few places: more of them get far.
    #[test]
    fn what_is_almost_right_is_read_or_refused(
        kind in 0..TEXTS,
        which in any::<usize>(),
        changes in prop::collection::vec((any::<usize>(), 0..4, "[0-9a-z\"=%\\n.,\\[\\]{}-]"), 1..4),
    ) {
        let texts = &right()[kind];
        let mut text: Vec<char> = texts[which % texts.len()].chars().collect();
        for (at, how, with) in changes {
            let at = at % (text.len() + 1);
            let with = with.chars().next().unwrap_or('\u{1b}');
            match how {
                0 if at < text.len() => drop(text.remove(at)),
                1 if at < text.len() => text[at] = with,
                2 => drop(text.drain(at..)),
                _ => text.insert(at, with),
            }
        }
        run(&input(kind, &String::from_iter(text)));
    }
}

/// Texts that were right or wrong once, one by one.
#[test]
fn the_corpus_is_read_or_refused() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files");
    let mut accepted = [0; ALL];
    let mut refused = [0; ALL];
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        let data = std::fs::read(path).unwrap();
        let kind = usize::from(*data.first().unwrap_or(&0)) % ALL;
        match run(&data) {
            Outcome::Accepted => accepted[kind] += 1,
            Outcome::Refused => refused[kind] += 1,
            Outcome::NoText => {}
        }
    }
    assert!(accepted.iter().chain(&refused).all(|&n| n > 0), "{accepted:?}, {refused:?}");
}
