//! Everything that the command reads: files (fault scripts, topologies, output of lspci and nvidia-smi, results, also as
//! `compare` and `topo --measured` read them, tables of `bench --tune`, what the preloaded object is told; dumps,
//! captures and recordings of `decode`; traces, and what `replay` plays, shows and compares) and words (faults of a
//! link, adversaries, sizes, loads).
//!
//! What must hold, whatever the text says:
//!
//! - what is refused is refused in one line without control characters, which names the place or quotes the text;
//! - what is accepted is within its limits, and what is written of it is read as the same again;
//! - of a dump, a trace and a recording: what is told of it is lines without control characters, and there is an end
//!   to it;
//! - of a topology: every node hangs from one that it may hang from, interconnects join sockets, every pair of devices
//!   has a way whose ends they are, and it can be drawn.

#[path = "saved.rs"]
mod saved;

use std::fmt::Display;

use bellpush::nic::soft::link::Faults;
use bellpush::nic::soft::record;
use bellpush::nic::soft::script::{MAX_SCRIPT_BYTES, Script, ScriptedFaults};
use bellpush::nic::soft::{Adversary, AdversaryKind};
use bellpush::pcie::Origin;
use bellpush::pcie::text::is_unfit;
use bellpush::pcie::topology::{
    Collapse, Kind, Matrix, Node, NodeId, Topology, TopologyError, Tree, Workload, from_lspci,
    from_toml, loads, matrix_text, survey_text, to_svg, to_text,
};
use bellpush::preload::{MAX_DEVICES, MAX_DM_BYTES, Preload};
use bellpush::transport::{Choice, EngineSide, MAX_RANGES, Machine, Ranges, Tuning, TuningError};
use bellpush_cli::decode::{Form, Kind as Dump, Link, Options, QueueType, decode};
use bellpush_cli::report::{Results, size};
use bellpush_cli::trace::Trace;

use crate::amount;
use crate::link::LinkSpec;

/// What became of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted.
    Accepted,
    /// It was refused.
    Refused,
    /// It is no text, which no reader of files gets to see.
    NoText,
}

/// What there is to be read.
pub const KINDS: [fn(&str) -> Outcome; 13] = [
    faults, script, adversary, topology, results, sizes, preload, table, link, amounts, lspci,
    matrix, workload,
];

/// Texts that came later: their numbers are the last, so that what is in the corpus keeps its kind.
pub const LATER: [fn(&str) -> Outcome; 2] = [saved::comparison, saved::of_a_link];

/// How many kinds of input there are: texts, those of `decode`, traces, recordings, and the later texts.
pub const ALL: usize = TRACE + 2 + LATER.len();
/// The number of traces; that of recordings is the next.
const TRACE: usize = KINDS.len() + Dump::ALL.len();

/// Panics when something is wrong.
pub fn run(data: &[u8]) -> Outcome {
    let Some((first, rest)) = data.split_first() else { return Outcome::NoText };
    let kind = usize::from(*first) % ALL;
    if kind == TRACE + 1 {
        return recording(rest);
    }
    let dump = kind.checked_sub(KINDS.len());
    if let Some(&dump) = dump.and_then(|dump| Dump::ALL.get(dump)) {
        return decoded(dump, rest);
    }
    let Ok(text) = std::str::from_utf8(rest) else { return Outcome::NoText };
    let later =
        || LATER.get(kind.wrapping_sub(TRACE + 2)).unwrap_or(&(trace as fn(&str) -> Outcome));
    KINDS.get(kind).unwrap_or_else(later)(text)
}

/// A dump, a capture or a recording, behind two bytes that choose the options.
fn decoded(kind: Dump, data: &[u8]) -> Outcome {
    let Some(([first, second], bytes)) = data.split_first_chunk() else { return Outcome::Refused };
    let bit = |n: u8| first >> n & 1 != 0;
    let queues = [
        QueueType::Guess,
        QueueType::Rc,
        QueueType::Ud,
        QueueType::Xrc,
        QueueType::Dci,
        QueueType::Recv,
        QueueType::Srq,
    ];
    let options = Options {
        form: if bit(0) { Form::Binary } else { Form::Guess },
        host_words: bit(1),
        index: bit(2).then_some(u32::from(*second)),
        queue_log: bit(3).then_some(u32::from(second & 7)),
        queue: queues[usize::from(second >> 3) % queues.len()],
        stride: bit(4).then_some(16 << (second & 3)),
        cqe_bytes: if bit(4) { 128 } else { 64 },
        signed: bit(5),
        cq: bit(6),
        link: [Link::Guess, Link::Ethernet, Link::Ip, Link::Bth][usize::from(second & 3)],
        sq: bit(7).then(|| vec![*second; 512]),
        record: bit(7).then_some([*second; 8]),
    };
    let mut items = 0;
    let done = decode(kind, bytes, &options, &mut |item| {
        items += 1;
        let text = item.text(false);
        assert!(!item.summary.is_empty() && !item.place.is_empty(), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(item.text(true).lines().count() <= text.lines().count(), "{text}");
        assert_eq!(item.json()["wrong"].as_array().map(Vec::len), Some(item.wrong.len()));
        items < 4096
    });
    match done {
        Ok(()) => {
            assert!(
                items > 0 || matches!(kind, Dump::Pcap | Dump::Record | Dump::Live),
                "nothing of {bytes:?}"
            );
            Outcome::Accepted
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && !line.chars().any(char::is_control), "{line:?}");
            Outcome::Refused
        }
    }
}

/// A trace: it is written, explained, and put beside itself.
fn trace(text: &str) -> Outcome {
    let mut one = match Trace::parse(text) {
        Ok(trace) => trace,
        Err(e) => return refused(&e, text, &["column ", "another format"]),
    };
    let written = |trace: &Trace| {
        let mut bytes = Vec::new();
        trace.write_to(&mut bytes).expect("memory takes it");
        String::from_utf8(bytes).expect("it is text")
    };
    let again = Trace::parse(&written(&one)).expect("what was written can be read");
    let told = again.explained();
    assert_eq!(told, one.explained(), "{text:?}");
    assert!(!told.iter().any(|line| line.chars().any(char::is_control)), "{told:?}");
    one.merge(again);
    Trace::parse(&written(&one)).expect("two beside each other can be read");
    Outcome::Accepted
}

/// A recording: it is played, shown, and compared with itself.
fn recording(bytes: &[u8]) -> Outcome {
    let mut shown = Vec::new();
    let show = record::show(bytes.to_vec(), &mut shown);
    let shown = String::from_utf8(shown).expect("it is text");
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    match record::compare([bytes.to_vec(), bytes.to_vec()]) {
        Ok(difference) => assert!(difference.is_none(), "one recording differs from itself"),
        Err((at, error)) => assert!(at == 0 && !error.to_string().is_empty()),
    }
    // What lies behind the end of its play is shown and not played, so that the one may be refused without the other.
    let played = record::replay(bytes.to_vec()).map(drop);
    let outcome = if played.is_ok() && show.is_ok() { Outcome::Accepted } else { Outcome::Refused };
    for error in [played, show].into_iter().filter_map(Result::err) {
        let line = error.to_string();
        assert!(!line.is_empty() && !line.chars().any(char::is_control), "{line:?}");
    }
    outcome
}

/// A refusal: one line, which says one of these things or quotes what is wrong.
fn refused(error: &impl Display, text: &str, places: &[&str]) -> Outcome {
    let line = error.to_string();
    assert!(!line.is_empty(), "no reason for {text:?}");
    assert!(!line.chars().any(char::is_control), "not one line: {line:?} of {text:?}");
    let names = places.iter().any(|place| line.contains(place));
    let mut words =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    // As it is, or between quotes as Rust writes them: what is empty or no word as well.
    let quoted = |part: &str| {
        let is = |part: &str| line.contains(&format!("{part:?}"));
        // Or with what would change a terminal written out.
        let written = |c: char| match is_unfit(c) {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        };
        let escaped: String = part.trim().chars().map(written).collect();
        is(part)
            || is(part.trim())
            || !part.trim().is_empty() && (line.contains(part.trim()) || line.contains(&escaped))
    };
    let parts = |at: &'static [char]| text.split(at).any(quoted);
    let quotes = words.any(|word| line.contains(word))
        || parts(&[','])
        || parts(&[',', '='])
        || parts(&[',', '=', '.']);
    assert!(names || quotes, "{line:?} says nothing of where in {text:?}");
    Outcome::Refused
}

fn faults(text: &str) -> Outcome {
    let faults: Faults = match text.parse() {
        Ok(faults) => faults,
        Err(e) => return refused(&e, text, &[]),
    };
    let shares = [faults.loss, faults.dup, faults.reorder, faults.corrupt];
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{faults:?}");
    assert!(faults.delay_ns <= 3_600_000_000_000, "{faults:?}");
    assert!(faults.rate.is_none_or(|rate| rate > 0), "{faults:?}");
    let again = faults.to_string();
    assert_eq!(again.parse(), Ok(faults), "{text:?}, written as {again:?}");
    Outcome::Accepted
}

fn script(text: &str) -> Outcome {
    let script: Script = match text.parse() {
        Ok(script) => script,
        Err(e) => return refused(&e, text, &["line ", "fault ", "32768 bytes"]),
    };
    assert!(text.len() <= MAX_SCRIPT_BYTES);
    // A remark changes nothing; behind it all, since a byte order mark may come first.
    let remark = format!("{text}\n# a remark\n");
    assert!(remark.len() > MAX_SCRIPT_BYTES || remark.parse() == Ok(script.clone()), "{text:?}");
    assert!(!script.corrupts() || text.contains("corrupt"), "{text:?}");
    assert!(!script.names_beyond(usize::MAX));
    ScriptedFaults::new(&script, 0, None);
    Outcome::Accepted
}

fn adversary(text: &str) -> Outcome {
    let adversary: Adversary = match text.parse() {
        Ok(adversary) => adversary,
        Err(e) => return refused(&e, text, &[]),
    };
    assert_eq!(adversary.to_string().parse(), Ok(adversary), "{text:?}");
    for kind in AdversaryKind::ALL {
        let named = text.split(',').skip(1).any(|name| name.trim() == kind.name());
        let usual = !text.contains(',') && kind != AdversaryKind::AllWrites;
        assert_eq!(adversary.has(kind), named || usual, "{text:?}: {kind}");
    }
    Outcome::Accepted
}

fn topology(text: &str) -> Outcome {
    let topology = match from_toml(text) {
        Ok(topology) => topology,
        Err(e) => return refused(&e, text, &["line ", "no interconnect leads", "no [["]),
    };
    let written = toml_of(&topology);
    let again = from_toml(&written);
    assert_eq!(again.as_ref(), Ok(&topology), "{text:?}, written as {written}");
    let ids: Vec<NodeId> = topology.nodes().map(|(id, _)| id).collect();
    for (id, node) in topology.nodes() {
        assert_eq!(topology.find(&node.id), Some(id), "{text:?}");
        let is_socket = node.kind == Kind::Socket;
        assert_eq!(node.parent.is_none(), is_socket, "{text:?}: {node:?}");
        assert!(topology.socket_of(id).is_some(), "{text:?}: {node:?}");
    }
    for link in topology.interconnects() {
        let kinds = [link.a, link.b].map(|end| topology.node(end).kind);
        assert!(kinds == [Kind::Socket; 2] && link.a != link.b, "{text:?}: {link:?} of {kinds:?}");
        assert!(link.gb_per_s > 0.0 && link.gb_per_s.is_finite());
    }
    // Of many, the first: a file has a few.
    for &a in ids.iter().take(12) {
        for &b in ids.iter().take(12) {
            let path = topology.path(a, b);
            assert_eq!((path.first(), path.last()), (Some(&a), Some(&b)), "{text:?}");
            topology.distance(a, b);
        }
    }
    assert!(!to_text(&topology).is_empty() || ids.is_empty());
    let svg = to_svg(&topology);
    assert!(svg.starts_with("<svg") && !svg.contains('\0'), "{text:?}");
    Outcome::Accepted
}

/// A topology as a file says it.
fn toml_of(topology: &Topology) -> String {
    let quoted = |text: &str| toml::Value::String(text.into()).to_string();
    let mut all = format!("name = {}\n", quoted(&topology.name));
    for (id, node) in topology.nodes() {
        let table = match node.kind {
            Kind::Socket => "socket",
            Kind::NumaNode => "numa",
            Kind::RootComplex => "root_complex",
            Kind::RootPort => "root_port",
            Kind::Switch => "switch",
            Kind::Gpu => "gpu",
            Kind::Nic => "nic",
        };
        all += &format!("[[{table}]]\nid = {}\n", quoted(&node.id));
        if let Some(parent) = node.parent {
            let key = match (node.kind, topology.node(parent).kind) {
                (Kind::RootComplex, Kind::NumaNode) => "numa",
                (Kind::RootComplex | Kind::NumaNode, _) => "socket",
                _ => "parent",
            };
            all += &format!("{key} = {}\n", quoted(&topology.node(parent).id));
            if let Some(socket) = topology.socket_of(id).filter(|_| key == "numa") {
                all += &format!("socket = {}\n", quoted(&topology.node(socket).id));
            }
        }
        if node.kind == Kind::RootComplex {
            all += &root_complex(node);
        }
        if node.kind == Kind::Socket {
            all += &format!("cpu = {}\n", quoted(&node.model));
        }
        if node.kind == Kind::RootPort {
            all += &format!("acs = {}\n", node.acs);
        }
        for (key, text) in [("chip", &node.chip), ("slot", &node.slot)] {
            all += &text.as_ref().map_or(String::new(), |t| format!("{key} = {}\n", quoted(t)));
        }
        if node.unknown {
            all += "unknown = true\n";
        }
        let is_device = matches!(node.kind, Kind::Switch | Kind::Gpu | Kind::Nic);
        if is_device && node.link.is_none() {
            all += "link = \"unknown\"\n";
        }
        if let Some(link) = &node.link {
            let speed = (link.speed.generation().number(), link.speed.lanes());
            // What is assumed stands in no file; one of generation and lanes may.
            let from = node.link_origin;
            let is_read = |origin: Origin| origin == Origin::Read;
            for (name, value, usual, origin) in [
                ("gen", speed.0, 5, from.speed),
                ("lanes", speed.1, 16, from.speed),
                ("mps", link.mps.bytes(), 256, from.mps),
                ("mrrs", link.mrrs.bytes(), 512, from.mrrs),
            ] {
                if is_read(origin) || value != usual {
                    all += &format!("{name} = {value}\n");
                }
            }
        }
        if is_device {
            all += &format!("acs = {}\nmodel = {}\n", node.acs, quoted(&node.model));
            all += &option("port_acs", node.port_acs);
            all += &option("relaxed_ordering", node.relaxed_ordering);
            all += &node.card.as_ref().map_or(String::new(), |c| format!("card = {}\n", quoted(c)));
        }
    }
    match topology.collapse() {
        Collapse::Unknown => {}
        Collapse::Absent => all += "[posted_write_collapse]\nseen = false\nsource = ''\n",
        Collapse::Seen(c) => {
            all +=
                &format!("[posted_write_collapse]\nsources = {}\nroots = {}\n", c.sources, c.roots);
            all += &format!("gb_per_s = {:?}\nsource = {}\n", c.gb_per_s, quoted(&c.source));
        }
    }
    for chip in topology.chips() {
        all += &format!("[[chip]]\nid = {}\n", quoted(&chip.id));
        all += &option("crosses", chip.crosses);
    }
    for slot in topology.slots() {
        all += &format!("[[slot]]\nid = {}\nlanes = {}\n", quoted(&slot.id), slot.lanes);
    }
    for link in topology.interconnects() {
        let [a, b] = [link.a, link.b].map(|end| quoted(&topology.node(end).id));
        all += &format!("[[interconnect]]\nfrom = {a}\nto = {b}\ngb_per_s = {:?}\n", link.gb_per_s);
    }
    all
}

fn option<T: std::fmt::Debug>(key: &str, value: Option<T>) -> String {
    value.map_or(String::new(), |value| format!("{key} = {value:?}\n"))
}

/// The fields of a root complex.
fn root_complex(node: &Node) -> String {
    let p = &node.p2p;
    let iommu = format!("iommu = {:?}\n", node.iommu.name());
    [
        iommu,
        option("p2p_reads", p.reads),
        option("p2p_writes", p.writes),
        option("p2p_tlp_bytes", p.tlp_bytes),
        option("p2p_read_slots", p.read_slots),
        option("p2p_read_bytes", p.read_bytes),
        option("p2p_cap_gb_per_s", p.cap_gb_per_s),
        option("p2p_read_gb_per_s", p.read_gb_per_s),
        option("p2p_write_gb_per_s", p.write_gb_per_s),
        option("mesh_gb_per_s", node.mesh_gb_per_s),
    ]
    .concat()
}

fn results(text: &str) -> Outcome {
    let results = match Results::parse(text.as_bytes()) {
        Ok(results) => results,
        Err(e) => return refused(&e, text, &["line ", "row ", "is empty", "no rows"]),
    };
    let written = results.to_json().expect("what was read can be written");
    let again = Results::parse(written.as_bytes()).expect("what was written can be read");
    assert!(again == results, "{text}, written as {written}");
    assert_eq!(again.all_verified(), results.all_verified());
    Outcome::Accepted
}

fn sizes(text: &str) -> Outcome {
    let sizes = match size::parse_list(text) {
        Ok(sizes) => sizes,
        Err(e) => return refused(&e, text, &["a size is missing"]),
    };
    assert!(sizes.iter().all(|&bytes| bytes > 0), "{text:?}");
    assert!(sizes.is_sorted_by(|a, b| a < b), "{text:?}: {sizes:?}");
    for bytes in sizes {
        let written = size::print(bytes);
        assert_eq!(size::parse(&written), Ok(bytes), "{text:?}: {written:?}");
    }
    Outcome::Accepted
}

/// A size as the model's commands take it.
fn amounts(text: &str) -> Outcome {
    match amount::bytes(text) {
        Ok(bytes) => {
            let written = size::print(bytes);
            assert_eq!(amount::bytes(&written), Ok(bytes), "{text:?}: {written:?}");
            Outcome::Accepted
        }
        Err(e) => refused(&e, text, &["not a size"]),
    }
}

fn preload(text: &str) -> Outcome {
    let options = match Preload::parse(text) {
        Ok(options) => options,
        Err(e) => return refused(&e, text, &["line ", "must be"]),
    };
    assert!((1..=MAX_DEVICES).contains(&options.devices), "{text:?}");
    assert!(options.dm_bytes <= MAX_DM_BYTES, "{text:?}");
    assert!(options.addresses.len() <= options.devices, "{text:?}");
    assert_eq!(Preload::parse(&options.emit()).expect("what was written"), options);
    Outcome::Accepted
}

fn table(text: &str) -> Outcome {
    let folder = std::env::temp_dir();
    let who = (std::process::id(), std::thread::current().id());
    let [file, copy] = ["in", "out"]
        .map(|name| folder.join(format!("bellpush-fuzz-{}-{:?}-{name}.json", who.0, who.1)));
    std::fs::write(&file, text).expect("a scratch file");
    let machine = machine();
    let outcome = match Tuning::load(&file, &machine) {
        Ok(tuning) => {
            for ranges in [&tuning.thread, &tuning.warp, &tuning.block] {
                are_a_table(ranges);
            }
            let _ = std::fs::remove_file(&copy); // it need not be there
            tuning.save(&copy, &machine).expect("what was read can be written");
            let again = Tuning::load(&copy, &machine).expect("what was written can be read");
            assert_eq!(
                (&again.thread, &again.warp, &again.block),
                (&tuning.thread, &tuning.warp, &tuning.block)
            );
            Outcome::Accepted
        }
        Err(e) => {
            let is_form = !matches!(e, TuningError::NoTable { .. });
            let outcome = refused(&e, text, &["bellpush-fuzz-"]);
            // One that is not ours is not overwritten.
            let kept = Tuning::built_in(&machine).save(&file, &machine);
            assert_eq!(kept.is_err(), is_form, "{text:?}");
            outcome
        }
    };
    for file in [file, copy] {
        let _ = std::fs::remove_file(file); // it need not be there
    }
    outcome
}

/// The machine that tables are of.
pub fn machine() -> Machine {
    let text = r#"{"gpu":"A","nic":"soft","engine":"host","region":"gpu","sq":"auto","dbr":"auto",
        "cq":"auto","window":"auto"}"#;
    let machine: Machine = serde_json::from_str(text).expect("a machine");
    assert_eq!(machine.engine, EngineSide::Host);
    machine
}

fn are_a_table(ranges: &Ranges) {
    let all = ranges.ranges();
    assert!((1..=MAX_RANGES).contains(&all.len()), "{ranges:?}");
    let ends: Vec<_> = all.iter().filter_map(|range| range.up_to).collect();
    assert_eq!(ends.len() + 1, all.len(), "{ranges:?}");
    assert!(ends.is_sorted_by(|a, b| a < b) && ends.first() != Some(&0), "{ranges:?}");
    for range in all {
        let longest = range.up_to.map_or(u64::MAX, u64::from);
        assert_eq!(ranges.choice(longest), range.path, "{ranges:?}");
        assert!(Choice::ALL.contains(&range.path));
    }
}

/// `--link` of commands that have two NICs: `shm`, `udp`, faults, or both.
fn link(text: &str) -> Outcome {
    let spec: LinkSpec = match text.parse() {
        Ok(spec) => spec,
        Err(e) => return refused(&e, text, &[]),
    };
    let (first, rest) = text.split_once(',').unwrap_or((text, ""));
    let is_wire = matches!(first.trim(), "shm" | "udp");
    let faults = if is_wire { rest } else { text };
    // Nothing is left unread.
    assert!(faults.is_empty() || faults.parse::<Faults>().is_ok(), "{text:?}: {spec:?}");
    Outcome::Accepted
}

/// Output of lspci: what was read can be described and drawn.
fn lspci(text: &str) -> Outcome {
    let capture = match from_lspci(text) {
        Ok(capture) => capture,
        Err(e) => return refused(&e, text, &["line "]),
    };
    let tree = Tree::new(&capture);
    for f in capture.functions() {
        let chain = tree.chain(f.address);
        assert!(chain.windows(2).all(|two| two[0].bus < two[1].bus), "{text:?}: {chain:?}");
    }
    let told = survey_text(&tree, None);
    assert!(!told.contains('\u{1b}') && !told.contains('\0'), "{text:?}");
    let topology = match tree.topology("captured", None) {
        Ok(topology) => topology,
        Err(e @ TopologyError::Many { .. }) => return refused(&e, text, &["GPUs and NICs"]),
        Err(e) => panic!("a capture's topology is legal: {e}"),
    };
    let devices = capture.functions().filter(|f| capture.kind_of(f).is_some()).count();
    let nodes = [Kind::Gpu, Kind::Nic].map(|kind| topology.of_kind(kind).len());
    assert_eq!(nodes[0] + nodes[1], devices, "{text:?}");
    assert!(to_svg(&topology).starts_with("<svg"), "{text:?}");
    Outcome::Accepted
}

/// nvidia-smi's matrix: what was read is printed as the same again.
fn matrix(text: &str) -> Outcome {
    let matrix = match Matrix::parse(text) {
        Ok(matrix) => matrix,
        Err(e) => return refused(&e, text, &["line "]),
    };
    let written = matrix.to_text();
    assert_eq!(Matrix::parse(&written).as_ref(), Ok(&matrix), "{text:?}, written as {written:?}");
    matrix_text(&matrix);
    matrix.topology("matrix", None).expect("a matrix' topology is legal");
    Outcome::Accepted
}

/// A workload as `topo --load` takes it.
fn workload(text: &str) -> Outcome {
    match text.parse::<Workload>() {
        Ok(workload) => {
            let topology = bellpush::pcie::topology::builtin("dgx-h100").expect("it is built in");
            let _ = loads(&topology, &workload); // it may name devices that are not there
            Outcome::Accepted
        }
        Err(e) => refused(&e, text, &["is no workload"]),
    }
}
