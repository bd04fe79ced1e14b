//! `bellpush sim --flows`: streams between devices of one host, side by side.

use std::error::Error;

use bellpush::pcie::sim::{
    Axis, Flow, MOST_TRANSMISSIONS, Move, Origins, Params, Question, SimError, fair_streams,
    flow_transmissions, schedule, simulate_flows, simulate_messages, warnings,
};
use bellpush::pcie::topology::{Kind, NodeId, Topology};
use serde_json::{Value, json};

use crate::sim::linked;
use crate::sim_marks;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Most flows that are simulated: TLP by TLP, more would take minutes. Of more the rates are computed.
pub const SIMULATED: usize = 64;
/// Most flows at once: each of 90 GPUs to each other.
const MOST: usize = 8192;
/// What stands beside rates that are computed.
const COMPUTED: &str =
    "by arithmetic: fair shares of links, root complexes, memory and collapses, without queueing";

/// What stands beside what a NIC sends or receives.
const NO_PORT: &str = "by PCIe alone: what the NIC's port carries has no part in it";

/// Reads `gpu0>gpu1` (gpu0 writes into gpu1) and `gpu0<gpu1` (gpu0 reads from gpu1).
fn parse(topology: &Topology, text: &str) -> Result<Flow> {
    let find = |id: &str| {
        topology.find(id.trim()).ok_or_else(|| format!("--flows {text}: no device {:?}", id.trim()))
    };
    let (ends, by) = match (text.split_once('>'), text.split_once('<')) {
        (Some(ends), None) => (ends, Move::Write),
        (None, Some((reader, from))) => ((from, reader), Move::Read),
        _ => return Err(format!("--flows {text}: neither A>B (A writes) nor A<B (A reads)").into()),
    };
    let (from, to) = (find(ends.0)?, find(ends.1)?);
    let memory = |n| matches!(topology.node(n).kind, Kind::Socket | Kind::NumaNode);
    if from == to {
        return Err(format!("--flows {text}: both ends are the same").into());
    }
    if memory(from) && memory(to) {
        return Err(format!("--flows {text}: neither end is a device").into());
    }
    for end in [from, to] {
        let kind = topology.node(end).kind;
        if matches!(kind, Kind::RootComplex | Kind::RootPort | Kind::Switch) {
            return Err(format!("--flows {text}: a {kind} neither sends nor receives").into());
        }
    }
    Ok(Flow { from, to, by })
}

/// Every GPU writes into every other.
const ALL_TO_ALL: &str = "all-to-all";

/// The flows that the command names, and their names.
pub fn parsed(topology: &Topology, texts: &[String]) -> Result<(Vec<String>, Vec<Flow>)> {
    let texts = if texts == [ALL_TO_ALL] { all_to_all(topology)? } else { texts.to_vec() };
    if texts.len() > MOST {
        return Err(format!("--flows: {} of them: at most {MOST} at once", texts.len()).into());
    }
    let flows: Vec<Flow> = texts.iter().map(|t| parse(topology, t)).collect::<Result<_>>()?;
    flows.iter().flat_map(|f| [f.from, f.to]).try_for_each(|end| linked(topology, end))?;
    Ok((texts, flows))
}

fn all_to_all(topology: &Topology) -> Result<Vec<String>> {
    let gpus = topology.of_kind(Kind::Gpu);
    if gpus.len() < 2 {
        let (name, n) = (&topology.name, gpus.len());
        return Err(format!("--flows {ALL_TO_ALL}: {name} has {n} GPUs, too few").into());
    }
    let id = |n: &NodeId| &topology.node(*n).id;
    let pairs = gpus.iter().flat_map(|a| gpus.iter().filter(move |b| *b != a).map(move |b| (a, b)));
    Ok(pairs.map(|(a, b)| format!("{}>{}", id(a), id(b))).collect())
}

/// Why a flow does not exist.
fn refused(topology: &Topology, flows: &[Flow], error: SimError) -> String {
    let by = flows.iter().find_map(|f| {
        let (by, at) = f.ends();
        let way = topology.route(by, at);
        let what = match f.by {
            Move::Write => way.refuses_writes(topology).map(|n| (n, "writes")),
            Move::Read => way.refuses_reads(topology).map(|n| (n, "reads")),
        };
        what.map(|(n, what)| format!("not possible: {} refuses peer {what}", topology.node(n).id))
    });
    by.unwrap_or_else(|| error.to_string())
}

/// Refuses more flows than are simulated in a few minutes, under all combinations.
///
/// # Errors
/// One line with both numbers, or what is wrong with a flow.
pub fn check_work(
    topology: &Topology,
    params: &Params,
    texts: &[String],
    (messages, question): (Option<(u32, u32)>, Option<&Question>),
) -> Result<()> {
    let (_, flows) = parsed(topology, texts)?;
    if flows.len() > SIMULATED {
        let no = match () {
            () if messages.is_some() => "--message has no part",
            () if question.is_some() => "--what has no part",
            () if flows.iter().any(|flow| flow.by == Move::Read) => "reads have no rate",
            () => return Ok(()),
        };
        let (n, most) = (flows.len(), SIMULATED);
        return Err(format!("--flows: {no} in {n} of them: more than {most} are computed").into());
    }
    let beds = match question {
        Some(question) => question.beds(topology, params).map_err(|e| format!("--what {e}"))?,
        None => vec![(topology.clone(), params.clone())],
    };
    let tlps: f64 = beds.iter().map(|(t, _)| flow_transmissions(t, &flows, messages)).sum();
    if tlps <= MOST_TRANSMISSIONS / 2.0 {
        return Ok(());
    }
    let most = MOST_TRANSMISSIONS / 2.0;
    let what = format!("--flows: {tlps:.1e} TLP transmissions to simulate: at most {most:e}");
    Err(format!("{what}; fewer flows, combinations, or messages in flight").into())
}

/// The rows of flows as they are and under every combination of a question's values, which
/// `settings` has. A combination under which a flow does not exist has one row that says why.
pub fn answer(
    topology: &Topology,
    params: &Params,
    texts: &[String],
    (messages, question): (Option<(u32, u32)>, &Question),
) -> Result<Vec<Value>> {
    let beds = question.beds(topology, params).map_err(|e| format!("--what {e}"))?;
    let combinations = question.combinations();
    let mut all = Vec::new();
    for (i, (topology, params)) in beds.iter().enumerate() {
        let settings = match i.checked_sub(1) {
            None => "as it is".to_owned(),
            Some(i) => {
                let pairs = question.axes.iter().zip(&combinations[i]);
                let text =
                    |(axis, &value): (&Axis, &f64)| format!("{}={}", axis.name, axis.text(value));
                pairs.map(text).collect::<Vec<_>>().join(",")
            }
        };
        let mut rows = match rows(topology, params, texts, messages) {
            Ok(rows) => rows,
            Err(why) if i > 0 => vec![json!({ "why_not": why.to_string() })],
            Err(why) => return Err(why),
        };
        rows.iter_mut().for_each(|row| row["settings"] = json!(settings));
        all.extend(rows);
    }
    Ok(all)
}

/// A row that says which limits decide the flows' sum; none where they are too many to be simulated
/// again.
pub fn limit(
    topology: &Topology,
    params: &Params,
    origins: &Origins,
    texts: &[String],
) -> Result<Option<Value>> {
    let (_, flows) = parsed(topology, texts)?;
    let limits = sim_marks::flows(topology, params, origins, &flows)?;
    Ok(limits.map(|text| json!({ "topology": topology.name, "nearest_limits": text })))
}

/// A row for each flow, then what is to be said about them together: of streams, or of `messages` of
/// so many bytes, so many of a flow at once.
pub fn rows(
    topology: &Topology,
    params: &Params,
    texts: &[String],
    messages: Option<(u32, u32)>,
) -> Result<Vec<Value>> {
    let (texts, flows) = parsed(topology, texts)?;
    let is_computed = flows.len() > SIMULATED;
    let rates = match messages {
        _ if is_computed => {
            let ends: Vec<_> = flows.iter().map(|f| (f.from, f.to)).collect();
            fair_streams(topology, &ends).map_err(|e| format!("{}: {e}", topology.name))?
        }
        None => simulate_flows(topology, params, &flows)
            .map_err(|e| format!("{}: {}", topology.name, refused(topology, &flows, e)))?,
        Some(messages) => simulate_messages(topology, params, &flows, messages)
            .map_err(|e| format!("{}: {}", topology.name, refused(topology, &flows, e)))?,
    };
    let per_us = |rate: f64| messages.map(|(bytes, _)| 1000.0 * rate / f64::from(bytes));
    let mut rows: Vec<Value> = texts
        .iter()
        .zip(&flows)
        .zip(&rates)
        .map(|((text, flow), rate)| {
            let way = topology.route(flow.from, flow.to);
            // What decides about a read is the way of its requests; completions only follow.
            let (by, at) = flow.ends();
            let requests = topology.route(by, at);
            let mut notes = requests.notes(topology);
            if flow.by == Move::Read && way.other_back(topology).is_some() {
                notes.insert(0, format!("requests go {}", requests.text(topology)));
            }
            let is_nic = |end| topology.node(end).kind == Kind::Nic;
            if is_nic(flow.from) || is_nic(flow.to) {
                notes.push(NO_PORT.to_owned());
            }
            json!({
                "topology": topology.name, "flow": text, "class": way.class,
                "gb_per_s": rate, "messages_per_us": per_us(*rate), "way": way.text(topology),
                "note": notes.join("; "),
            })
        })
        .collect();
    let sum = rates.iter().sum::<f64>();
    rows.push(json!({
        "topology": topology.name, "flow": "all together", "gb_per_s": sum,
        "messages_per_us": per_us(sum), "note": if is_computed { COMPUTED } else { "" },
    }));
    let told = warnings(topology, &flows);
    rows.extend(told.iter().map(|w| json!({ "topology": topology.name, "warning": w })));
    if !told.is_empty() {
        for (i, round) in schedule(topology, &flows).iter().enumerate() {
            let flows: Vec<&str> = round.iter().map(|&f| texts[f].as_str()).collect();
            rows.push(json!({
                "topology": topology.name, "round": i + 1, "flows": flows.join(","),
            }));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush::pcie::topology::from_toml;

    const MACHINE: &str = include_str!("../../pcie/machines/esc8000a-e13p.toml");

    fn run(flows: &[&str]) -> Result<Vec<Value>> {
        let texts: Vec<String> = flows.iter().map(|f| (*f).to_owned()).collect();
        rows(&from_toml(MACHINE).unwrap(), &Params::default(), &texts, None)
    }

    #[test]
    fn a_collapse_is_told_with_the_rounds_that_avoid_it() {
        let rows = run(&["gpu0>gpu4", "gpu1>gpu6"]).unwrap();
        assert!(rows[2]["gb_per_s"].as_f64().unwrap() < 3.0, "{rows:?}");
        assert!(rows[3]["warning"].as_str().unwrap().contains("collapse"), "{rows:?}");
        assert_eq!(
            (&rows[4]["flows"], &rows[5]["flows"]),
            (&json!("gpu0>gpu4"), &json!("gpu1>gpu6"))
        );
        let reads = run(&["gpu4<gpu0", "gpu6<gpu1"]).unwrap();
        assert!(reads.len() == 3 && reads[2]["gb_per_s"].as_f64().unwrap() > 40.0, "{reads:?}");
    }

    /// `topo` knows its rate, a topology's file does not.
    #[test]
    fn a_nics_port_is_said_to_have_no_part() {
        let switch = "[[socket]]\nid = \"s0\"\n[[root_complex]]\nid = \"rc0\"\nsocket = \"s0\"\n\
                      [[switch]]\nid = \"sw0\"\nparent = \"rc0\"\n";
        let ends = [("gpu", "gpu0"), ("gpu", "gpu1"), ("nic", "nic0")];
        let ends = ends.map(|(kind, id)| format!("[[{kind}]]\nid = \"{id}\"\nparent = \"sw0\"\n"));
        let tree = from_toml(&format!("{switch}{}", ends.concat())).unwrap();
        let texts = ["gpu0>nic0", "nic0>gpu0", "gpu0>gpu1"].map(String::from);
        let rows = rows(&tree, &Params::default(), &texts, None).unwrap();
        let notes: Vec<_> = rows[..3].iter().map(|row| row["note"].as_str().unwrap()).collect();
        assert_eq!(notes, [NO_PORT, NO_PORT, ""]);
    }

    /// Nine GPUs below a switch each: 72 flows are computed, and agree with what fewer of them have.
    #[test]
    fn many_flows_are_computed_and_say_so() {
        let gpus = |n: usize| -> String {
            let gpu = |i| format!("[[gpu]]\nid = \"gpu{i}\"\nparent = \"sw0\"\n");
            (0..n).map(gpu).collect()
        };
        let tree = |n| {
            let text = "[[socket]]\nid = \"s0\"\n[[root_complex]]\nid = \"rc0\"\nsocket = \"s0\"\n\
                        [[switch]]\nid = \"sw0\"\nparent = \"rc0\"\n";
            from_toml(&format!("{text}{}", gpus(n))).unwrap()
        };
        let params = Params::default();
        let all = ["all-to-all".to_owned()];
        let sum = |n| {
            let rows = rows(&tree(n), &params, &all, None).unwrap();
            (rows.last().unwrap()["gb_per_s"].as_f64().unwrap() / n as f64, rows)
        };
        let ((eight, simulated), (nine, computed)) = (sum(8), sum(9));
        assert_eq!((simulated.len(), computed.len()), (57, 73));
        assert_eq!(simulated[56]["note"], "");
        assert_eq!(computed[72]["note"], COMPUTED);
        assert!((nine / eight - 1.0).abs() < 0.02, "{nine} {eight}");
        for (messages, texts, said) in [
            (Some((64, 8)), &all[..], "--message has no part in 72 of them"),
            (None, &vec!["gpu0<gpu1".to_owned(); 65][..], "reads have no rate in 65 of them"),
        ] {
            let error = check_work(&tree(9), &params, texts, (messages, None)).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let most = vec!["gpu0>gpu1".to_owned(); MOST + 1];
        assert!(rows(&tree(2), &params, &most, None).unwrap_err().to_string().contains("at most"));
    }

    /// What is simulated of 64 flows holds of 65, which are computed: the collapse, what waits behind it, and the
    /// limit of a memory.
    #[test]
    fn many_flows_keep_what_a_file_says() {
        let sum = |file: &str, texts: &[String]| {
            let rows = rows(&from_toml(file).unwrap(), &Params::default(), texts, None).unwrap();
            let all = rows.iter().find(|row| row["flow"] == "all together").unwrap().clone();
            (all["gb_per_s"].as_f64().unwrap(), all["note"] == COMPUTED)
        };
        let mut every = all_to_all(&from_toml(MACHINE).unwrap()).unwrap();
        let again = every[..9].to_vec();
        every.extend(again);
        let (all, is_computed) = sum(MACHINE, &every);
        assert!(is_computed && (15.0..25.0).contains(&all), "64 have 19.2: {all}");
        let memory =
            MACHINE.replacen("id = \"s0\"", "id = \"s0\"\nmemory_write_gb_per_s = 20.0", 1);
        let to_memory: Vec<String> = (0..65).map(|i| format!("gpu{}>s0", i % 4)).collect();
        let (all, is_computed) = sum(&memory, &to_memory);
        assert!(is_computed && (all - 20.0).abs() < 1e-6, "{all}");
    }

    #[test]
    fn what_is_no_flow_is_refused() {
        for bad in
            ["gpu0", "gpu0>gpu9", "gpu0>gpu0", "gpu0>vs-a0", "gpu0>gpu1>gpu2<gpu3", "rc0>gpu0"]
        {
            let error = run(&[bad]).unwrap_err().to_string();
            assert!(error.starts_with("--flows "), "{bad}: {error}");
        }
        assert!(run(&["s0>s1"]).is_err(), "no device moves it");
        for memory in ["gpu0>s1", "gpu0>s0", "gpu0<s0"] {
            assert!(run(&[memory]).is_ok(), "host memory is an end: {memory}");
        }
    }
}
