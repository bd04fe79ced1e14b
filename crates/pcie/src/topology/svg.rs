//! The drawing of a topology: an SVG that needs nothing else, for light and dark screens.

use std::fmt::Write as _;

use super::between::Interconnect;
use super::load::LinkLoad;
use super::model::{Kind, NodeId, Topology};
use crate::text::one_line;

/// Of a node, in pixels.
const BOX_W: f64 = 180.0;
const BOX_H: f64 = 40.0;
/// Between a node and what hangs from it, bare and with a load written beside the link.
const GAP_X: f64 = 36.0;
const LOADED_GAP_X: f64 = 112.0;
/// From a node to where the ways to what hangs from it part.
const TRUNK: f64 = 14.0;
const GAP_Y: f64 = 10.0;
const MARGIN: f64 = 16.0;
/// Left of the sockets, for the links between them.
const ARCS: f64 = 104.0;
/// How far the bow of a link between neighbours goes out, and that of the longest, of their control points.
const BOWS: [f64; 2] = [36.0, 116.0];
/// Of a line of text below the drawing.
const LINE: f64 = 16.0;
/// Below the title.
const TOP: f64 = 36.0;
/// Characters that a box has room for.
const BOX_CHARS: usize = 27;

const STYLE: &str = "\
    .ground{fill:#fff}.name{fill:#1f2328}.more{fill:#57606a}.link{stroke:#8c959f;fill:none}\
    .load{paint-order:stroke;stroke:#fff;stroke-width:3px}\
    .between{stroke:#a33;fill:none}.box{stroke:#57606a}\
    .socket,.numa{fill:#e8e8f8}.root{fill:#f4ead0}.switch{fill:#e6e6e6}\
    .gpu{fill:#d6f0d0}.nic{fill:#d0e6f4}\
    @media screen and (prefers-color-scheme:dark){\
    .ground{fill:#161b22}.name{fill:#e6edf3}.more{fill:#9ba6b2}.link{stroke:#6e7681}\
    .load{stroke:#161b22}.between{stroke:#ff8a80}.box{stroke:#8c959f}\
    .socket,.numa{fill:#2a2a4a}.root{fill:#453a1c}.switch{fill:#30363d}\
    .gpu{fill:#1d4420}.nic{fill:#1a3a52}}";

#[derive(Clone, Copy, Default)]
struct Place {
    x: f64,
    y: f64,
}

/// A self-contained SVG: sockets at the left, devices at the right, one below the other.
pub fn to_svg(topology: &Topology) -> String {
    to_svg_loaded(topology, &[])
}

/// Colour of a link that is busy for `share` of the busiest one's time: yellow to red.
fn colour(share: f64) -> String {
    let green = 200.0 * (1.0 - share.clamp(0.0, 1.0));
    format!("rgb(214,{green:.0},30)")
}

/// The same with links coloured by load: both directions are told, the busier one gives the
/// colour. A link that the workload does not use is grey; that of several ports is drawn to each.
pub fn to_svg_loaded(topology: &Topology, loads: &[LinkLoad]) -> String {
    let mut layout = Layout {
        topology,
        left: MARGIN + if topology.interconnects().is_empty() { 0.0 } else { ARCS },
        step: BOX_W + if loads.is_empty() { GAP_X } else { LOADED_GAP_X },
        next_y: TOP,
        depth: 0,
        places: vec![Place::default(); topology.nodes().count()],
    };
    for socket in topology.of_kind(Kind::Socket) {
        layout.put(socket, 0);
    }
    let places = &layout.places;
    let busiest = loads.iter().map(|l| l.ms).fold(0.0, f64::max);
    let ms = |from: NodeId, to: NodeId| {
        let (from, to) = (topology.link_of(from), topology.link_of(to));
        loads.iter().find(|l| (l.from, l.to) == (from, to)).map_or(0.0, |l| l.ms)
    };
    let bows = Bows { topology, places, ms: &ms, busiest };
    let listed = bows.listed();
    let width = layout.left + layout.depth as f64 * layout.step + BOX_W + MARGIN;
    let below = (layout.next_y - GAP_Y).max(TOP) + MARGIN;
    let height = below + LINE * listed.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"topology\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"topology\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n\
         <text x=\"{MARGIN}\" y=\"22\" font-size=\"14\" class=\"name\">{}</text>\n",
        escape(&topology.name)
    );
    let mut links: Vec<(NodeId, NodeId)> =
        topology.nodes().filter_map(|(id, node)| Some((id, node.parent?))).collect();
    let busy = |&(id, parent): &(NodeId, NodeId)| ms(id, parent).max(ms(parent, id));
    // What several have in common has the colour of the busiest.
    links.sort_by(|a, b| busy(a).total_cmp(&busy(b)));
    for (id, parent) in links {
        let (above, here) = (places[parent.0], places[id.0]);
        let (x1, y1) = (above.x + BOX_W, above.y + BOX_H / 2.0);
        let (x2, y2) = (here.x, here.y + BOX_H / 2.0);
        let way = format!("<path d=\"M{x1} {y1}H{}V{y2}H{x2}\" class=\"link\"", x1 + TRUNK);
        let (up, down) = (ms(id, parent), ms(parent, id));
        if up.max(down) <= 0.0 {
            let _ = writeln!(svg, "{way}/>");
            continue;
        }
        let stroke = colour(up.max(down) / busiest);
        let _ = writeln!(
            svg,
            "{way} style=\"stroke:{stroke};stroke-width:3px\"/><text x=\"{}\" y=\"{}\" \
             text-anchor=\"end\" class=\"name load\">↑{up:.0} ↓{down:.0} ms</text>",
            x2 - 4.0,
            y2 - 5.0
        );
    }
    bows.draw(&mut svg);
    for (i, line) in listed.iter().enumerate() {
        let y = below + LINE * (i as f64 + 0.5);
        let _ =
            writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\" class=\"name\">{}</text>", escape(line));
    }
    for (id, node) in topology.nodes() {
        let Place { x, y } = places[id.0];
        let class = match node.kind {
            Kind::Socket => "socket",
            Kind::NumaNode => "numa",
            Kind::RootComplex | Kind::RootPort => "root",
            Kind::Switch => "switch",
            Kind::Gpu => "gpu",
            Kind::Nic => "nic",
        };
        let link = node.link.map_or_else(String::new, |l| {
            format!("Gen{} x{}", l.speed.generation().number(), l.speed.lanes())
        });
        let (name, more) = (format!("{} {}", node.kind, node.id), format!("{link} {}", node.model));
        let middle = x + BOX_W / 2.0;
        let _ = writeln!(
            svg,
            "<g><title>{} {}</title><rect x=\"{x}\" y=\"{y}\" width=\"{BOX_W}\" \
             height=\"{BOX_H}\" rx=\"4\" class=\"box {class}\"/><text x=\"{middle}\" y=\"{}\" \
             text-anchor=\"middle\" class=\"name\">{}</text><text x=\"{middle}\" y=\"{}\" \
             text-anchor=\"middle\" class=\"more\">{}</text></g>",
            escape(&name),
            escape(more.trim()),
            y + 16.0,
            escape(&cut(&name)),
            y + 31.0,
            escape(&cut(more.trim())),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The links between sockets, bows at their left: the further apart the ends, the further out.
struct Bows<'a> {
    topology: &'a Topology,
    places: &'a [Place],
    /// How long a link is busy from one node to another.
    ms: &'a dyn Fn(NodeId, NodeId) -> f64,
    busiest: f64,
}

impl Bows<'_> {
    /// The ends of a link, the upper one first.
    fn ends(&self, link: &Interconnect) -> [NodeId; 2] {
        let is_below = self.places[link.a.0].y > self.places[link.b.0].y;
        if is_below { [link.b, link.a] } else { [link.a, link.b] }
    }

    fn busy(&self, link: &Interconnect) -> Option<String> {
        let [upper, lower] = self.ends(link);
        let (there, back) = ((self.ms)(upper, lower), (self.ms)(lower, upper));
        (there.max(back) > 0.0).then(|| format!("↓{there:.0} ↑{back:.0} ms"))
    }

    /// What is said of several below the drawing: beside them there is no room for it.
    fn listed(&self) -> Vec<String> {
        let links = self.topology.interconnects();
        let [first, _, ..] = links else { return Vec::new() };
        let id = |n: NodeId| self.topology.node(n).id.as_str();
        let is_bare = links.iter().all(|link| self.busy(link).is_none());
        if is_bare && links.iter().all(|link| link.text() == first.text()) {
            return vec![format!("{} links between sockets: {} each", links.len(), first.text())];
        }
        let said = links.iter().map(|link| {
            let [upper, lower] = self.ends(link);
            let busy = self.busy(link).map_or(String::new(), |busy| format!("  {busy}"));
            format!("{} — {}  {}{busy}", id(upper), id(lower), link.text())
        });
        said.collect()
    }

    fn draw(&self, svg: &mut String) {
        let links = self.topology.interconnects();
        let span = |link: &Interconnect| (self.places[link.a.0].y - self.places[link.b.0].y).abs();
        let longest = links.iter().map(span).fold(0.0, f64::max);
        for link in links {
            let [upper, lower] = self.ends(link);
            let [y1, y2] = [upper, lower].map(|n| self.places[n.0].y + BOX_H / 2.0);
            let (x, [least, most]) = (self.places[upper.0].x, BOWS);
            let share = if links.len() > 1 { span(link) / longest.max(1.0) } else { 1.0 };
            let bow = x - least - (most - least) * share;
            let busy = self.busy(link);
            let stroke = busy.as_ref().map_or(String::new(), |_| {
                let most = (self.ms)(upper, lower).max((self.ms)(lower, upper));
                format!(" style=\"stroke:{}\"", colour(most / self.busiest))
            });
            let _ = writeln!(
                svg,
                "<path d=\"M{x} {y1}C{bow} {y1} {bow} {y2} {x} {y2}\" class=\"between\" \
                 stroke-width=\"{}\"{stroke}/>",
                if links.len() > 6 { 1 } else { 2 }
            );
            if links.len() == 1 {
                // Beside the bow's outermost point.
                let (at, y) = (0.25 * x + 0.75 * bow + 8.0, (y1 + y2) / 2.0);
                let _ = writeln!(
                    svg,
                    "<text x=\"{at}\" y=\"{y}\" class=\"name\">{}</text><text x=\"{at}\" \
                     y=\"{}\" class=\"name\">{}</text>",
                    link.text(),
                    y + 13.0,
                    busy.unwrap_or_default()
                );
            }
        }
    }
}

struct Layout<'a> {
    topology: &'a Topology,
    left: f64,
    /// From a column to the next.
    step: f64,
    next_y: f64,
    depth: usize,
    places: Vec<Place>,
}

impl Layout<'_> {
    fn put(&mut self, node: NodeId, level: usize) {
        self.depth = self.depth.max(level);
        let children = self.topology.children(node);
        for &child in &children {
            self.put(child, level + 1);
        }
        let y = match (children.first(), children.last()) {
            (Some(first), Some(last)) => (self.places[first.0].y + self.places[last.0].y) / 2.0,
            _ => {
                self.next_y += BOX_H + GAP_Y;
                self.next_y - BOX_H - GAP_Y
            }
        };
        self.places[node.0] = Place { x: self.left + level as f64 * self.step, y };
    }
}

/// As much as a box has room for.
fn cut(text: &str) -> String {
    if text.chars().count() <= BOX_CHARS {
        return text.into();
    }
    text.chars().take(BOX_CHARS - 1).chain(['…']).collect()
}

fn escape(text: &str) -> String {
    one_line(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
