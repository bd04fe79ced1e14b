//! The page of `bellpush topo --html`: the drawing, its links coloured by load, and the text.

use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{LinkLoad, Topology, to_svg_loaded};
use bellpush_cli::report::human::decimals;
use bellpush_cli::report::machine::invocation;
use bellpush_cli::report::page::{Section, Table, page};

/// Most links in the page's table.
const LINKS: usize = 20;

/// The page. `text` is what the command prints.
pub fn html(topology: &Topology, workload: Option<&str>, loads: &[LinkLoad], text: &str) -> String {
    let mut drawing = Section {
        heading: "Topology".into(),
        text: Vec::new(),
        figures: vec![to_svg_loaded(topology, loads)],
        table: None,
    };
    if let Some(workload) = workload {
        drawing.heading = format!("Topology under {workload}");
        drawing.text.push(
            "Each link: time for which it is busy with buffers of 1 GB, up and down; red is the \
             busiest. Flows take their way whole, with no queueing: it tells the narrowest link, \
             not a program's rate."
                .into(),
        );
        let row = |l: &LinkLoad| {
            let ends = [l.from, l.to].map(|end| super::ports(topology, end));
            let numbers = [l.buffers, l.gb_per_s(), l.ms].map(|n| decimals(n, 2));
            [&ends[..], &numbers[..]].concat()
        };
        drawing.table = Some(Table {
            head: ["from", "to", "buffers", "GB/s", "ms for 1 GB each"].map(String::from).into(),
            rows: loads.iter().take(LINKS).map(row).collect(),
        });
    }
    let shown = Section {
        heading: "What is known of it".into(),
        text: Vec::new(),
        figures: vec![format!("<pre>{}</pre>", escape(text))],
        table: None,
    };
    page(
        &format!("bellpush topo: {}", one_line(&topology.name)),
        &[],
        &[drawing, shown],
        &invocation(),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
