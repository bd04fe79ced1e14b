//! A run's set-up as a drawing: who sends, what stands for the NIC, where bytes end; then the
//! machine's PCIe topology, where the result has one.

use bellpush::pcie::topology::{from_toml, to_svg};
use maud::{Markup, PreEscaped, html};

use super::human::printable;
use super::names::Side;
use super::row::{Results, Row};

/// Longest topology that is read, bytes: a machine of 64 devices has some 20 KiB.
const MAX_TOPOLOGY: usize = 1 << 20;

/// A box of the drawing.
struct Part {
    title: &'static str,
    lines: Vec<String>,
}

fn parts(results: &Results) -> [Part; 3] {
    let (meta, rows) = (&results.meta, &results.results);
    let cpu = || format!("{}, {} CPUs", meta.machine.cpu, meta.machine.cores);
    let is_host = meta.executor == "host";
    let mut sender = vec![match (is_host, &meta.gpu) {
        (true, _) => "kernels on CPU threads (host executor)".into(),
        (false, Some(gpu)) => format!("kernels on {gpu}"),
        (false, None) => format!("kernels on {}", meta.executor),
    }];
    sender.push(if is_host { cpu() } else { format!("host: {}", cpu()) });

    sender.extend(said(rows, |row| row.from.map(|side| format!("from {side} memory"))));

    let mut nic = vec![meta.nic.name.clone()];
    if meta.nic.software {
        nic.push("software NIC: no card, no wire".into());
    }
    nic.extend(said(rows, |row| {
        row.engine.map(|side| match side {
            Side::Host => "its engine: a CPU thread".into(),
            Side::Gpu => "its engine: a kernel on a GPU".into(),
        })
    }));
    nic.extend(said(rows, |row| row.places.map(|places| places.to_string())));

    let mut receiver = said(rows, |row| row.dest.map(|side| format!("into {side} memory")));
    let apart = rows.iter().any(|row| row.processes.is_some_and(|n| n > 1));
    receiver.push(if apart { "in another process" } else { "in the same process" }.into());
    [
        Part { title: "sender", lines: sender },
        Part { title: "NIC", lines: nic },
        Part { title: "receiver", lines: receiver },
    ]
}

/// What rows say, each once.
fn said(rows: &[Row], of: impl Fn(&Row) -> Option<String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for text in rows.iter().filter_map(of) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// The drawing of the set-up, and that of the topology or why there is none.
pub(super) fn drawings(results: &Results) -> Markup {
    let topology = results.meta.topology.as_deref();
    let drawn = topology.map(|text| match text.len() <= MAX_TOPOLOGY {
        true => from_toml(text).map_err(|e| e.to_string()),
        false => Err(format!("it has {} bytes", text.len())),
    });
    html! {
        div.setup role="img" aria-label="set-up" {
            @for (i, part) in parts(results).iter().enumerate() {
                @if i > 0 { span.arrow { "→" } }
                div.part {
                    b { (part.title) }
                    @for line in &part.lines { span { (printable(line)) } }
                }
            }
        }
        @match drawn {
            Some(Ok(topology)) => figure { (PreEscaped(to_svg(&topology))) },
            Some(Err(error)) => p.under { "The result's topology cannot be drawn: " (printable(&error)) },
            None => p.under {
                "No PCIe topology: the result has none, since neither a GPU nor a NIC was seen on \
                 the PCIe of its machine, or its program was older."
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bellpush::pcie::topology::{builtin, to_toml};

    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn who_sends_through_what_is_said() {
        let page = |r: &Results| drawings(r).into_string();
        let host = page(&sample("host"));
        assert!(host.contains("kernels on CPU threads") && host.contains("software NIC: no card"));
        assert!(host.contains("No PCIe topology"));
        let mut results = sample("cuda:NVIDIA H200");
        results.meta.gpu = Some("NVIDIA H200".into());
        results.results[0].engine = Some(Side::Gpu);
        let page = page(&results);
        for text in ["kernels on NVIDIA H200", "a CPU thread", "a kernel on a GPU"] {
            assert_eq!(page.matches(text).count(), 1, "{text}");
        }
    }

    #[test]
    fn a_topology_is_drawn_and_a_strange_one_is_said() {
        let mut results = sample("host");
        let mut page = |text: String| {
            results.meta.topology = Some(text);
            drawings(&results).into_string()
        };
        let dgx = page(to_toml(&builtin("dgx-h100").unwrap()));
        assert!(dgx.contains("gpu7</text>") && !dgx.contains("cannot be drawn"), "{dgx}");
        let strange = page("<b>".into());
        assert!(strange.contains("cannot be drawn") && !strange.contains("<b>&lt;"), "{strange}");
        assert!(page(" ".repeat(MAX_TOPOLOGY + 1)).contains("it has 1048577 bytes"));
    }
}
