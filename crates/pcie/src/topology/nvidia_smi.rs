//! The matrix of `nvidia-smi topo -m` (and `-mp`).
//!
//! Lines before the header are skipped; the matrix ends with its last row. Colours, tabs and
//! spaces between columns do not matter.

use std::fmt::{self, Write as _};

use super::capture::CaptureError;
use super::error::TopologyError;
use super::model::{Builder, Distance, Kind, Topology};
use crate::text::is_unfit;

/// Devices that a matrix may have.
pub const MAX_MATRIX: usize = 256;

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cell {
    /// The device itself.
    Own,
    /// A class.
    Class(Distance),
    /// This many NVLinks, which hide the class.
    NvLink(u32),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.pad(" X "),
            Self::Class(distance) => distance.fmt(f),
            Self::NvLink(links) => f.pad(&format!("NV{links}")),
        }
    }
}

/// One device with its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Name: GPU0, NIC0, mlx5_0.
    pub name: String,
    /// Name in the legend of NICs, such as mlx5_0 for NIC0.
    pub alias: Option<String>,
    /// A cell for every device.
    pub cells: Vec<Cell>,
    /// CPU affinity, NUMA affinity and the GPU's own NUMA node, as far as they are given.
    pub affinity: Vec<String>,
}

impl Row {
    /// Whether it is a GPU's.
    pub fn is_gpu(&self) -> bool {
        is_gpu(&self.name)
    }

    /// The NUMA node, where one alone is given.
    pub fn numa(&self) -> Option<u32> {
        self.affinity.get(1)?.parse().ok()
    }

    /// The name by which drivers know a NIC.
    pub fn driver_name(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

fn is_gpu(name: &str) -> bool {
    let digits = name.strip_prefix("GPU").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A matrix: as many cells in each row as there are rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    rows: Vec<Row>,
    /// Titles behind the devices.
    titles: Vec<&'static str>,
}

/// The text without colours (`ESC [ ... letter`) and other characters that do not stand in their place.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.extend((!is_unfit(c) || matches!(c, '\n' | '\t')).then_some(c));
        } else if chars.next() == Some('[') {
            chars.by_ref().find(char::is_ascii_alphabetic);
        }
    }
    out
}

const TITLES: [&str; 3] = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"];

/// Names of the devices and titles of a header; `None` for another line.
fn header(line: &str) -> Option<(Vec<String>, Vec<&'static str>)> {
    let mut words = line.split_whitespace();
    let is_device = |word: &&str| !matches!(*word, "CPU" | "NUMA" | "GPU");
    let names: Vec<String> = words.by_ref().take_while(is_device).map(str::to_owned).collect();
    let titles: Vec<_> = TITLES.into_iter().filter(|title| line.contains(title)).collect();
    (names.first().is_some_and(|name| is_gpu(name)) && !titles.is_empty())
        .then_some((names, titles))
}

fn cell(word: &str, at: usize) -> Result<Cell, CaptureError> {
    Ok(match word {
        "X" => Cell::Own,
        "PIX" => Cell::Class(Distance::Pix),
        "PXB" => Cell::Class(Distance::Pxb),
        "PHB" => Cell::Class(Distance::Phb),
        "NODE" => Cell::Class(Distance::Node),
        // SOC is what drivers before 384 called SYS.
        "SYS" | "SOC" => Cell::Class(Distance::Sys),
        _ => {
            let links = word.strip_prefix("NV").and_then(|n| n.parse().ok());
            let reason = || format!("{word:?} is no class (X, PIX, PXB, PHB, NODE, SYS, NV#)");
            Cell::NvLink(links.ok_or_else(|| CaptureError::new(at, reason()))?)
        }
    })
}

fn row(line: &str, i: usize, names: &[String], at: usize) -> Result<Row, CaptureError> {
    let mut words = line.split_whitespace();
    let (name, count) = (&names[i], names.len());
    if words.next() != Some(name) {
        let reason = format!("row {} of {count} must be that of {name}", i + 1);
        return Err(CaptureError::new(at, reason));
    }
    let cells = words.by_ref().take(count).map(|word| cell(word, at));
    let cells: Vec<Cell> = cells.collect::<Result<_, _>>()?;
    if cells.len() < count {
        let reason = format!("{name} has {} classes of {count}", cells.len());
        return Err(CaptureError::new(at, reason));
    }
    if let Some(j) = (0..count).find(|&j| (cells[j] == Cell::Own) != (i == j)) {
        let reason = format!("{name} and {}: X stands for a device itself alone", names[j]);
        return Err(CaptureError::new(at, reason));
    }
    let affinity: Vec<String> = words.map(str::to_owned).collect();
    if affinity.len() > TITLES.len() {
        return Err(CaptureError::new(at, format!("{name} has more columns than the header")));
    }
    Ok(Row { name: name.clone(), alias: None, cells, affinity })
}

impl Matrix {
    /// Reads the output of `nvidia-smi topo -m`.
    pub fn parse(text: &str) -> Result<Self, CaptureError> {
        let text = plain(text);
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        let last = text.lines().count().max(1);
        let found = lines.by_ref().find_map(|(at, line)| Some((at, header(line)?)));
        let Some((at, (names, titles))) = found else {
            let reason = "no header with GPU0 and CPU Affinity: nvidia-smi topo -m prints one";
            return Err(CaptureError::new(last, reason));
        };
        if names.len() > MAX_MATRIX {
            return Err(CaptureError::new(at, format!("more than {MAX_MATRIX} devices")));
        }
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                return Err(CaptureError::new(at, format!("{name} stands twice in the header")));
            }
        }
        let mut rows: Vec<Row> = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let Some((at, line)) = lines.by_ref().find(|(_, line)| !line.trim().is_empty()) else {
                return Err(CaptureError::new(last, format!("the row of {name} is missing")));
            };
            rows.push(row(line, i, &names, at)?);
        }
        for (_, line) in lines {
            // `  NIC0: mlx5_0` of the legend.
            if let Some((name, alias)) = line.trim().split_once(": ")
                && let Some(row) = rows.iter_mut().find(|row| row.name == name)
            {
                row.alias = Some(alias.trim().to_owned()).filter(|alias| !alias.is_empty());
            }
        }
        Ok(Self { rows, titles })
    }

    /// The devices with their rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Rows of the GPUs, or else of the NICs, by index.
    pub fn of_kind(&self, kind: Kind) -> Vec<usize> {
        let wanted = |&i: &usize| self.rows[i].is_gpu() == (kind == Kind::Gpu);
        (0..self.rows.len()).filter(wanted).collect()
    }

    /// The class of a pair; `None` where NVLinks hide it.
    pub fn class(&self, a: usize, b: usize) -> Option<Distance> {
        match self.rows.get(a)?.cells.get(b)? {
            Cell::Class(distance) => Some(*distance),
            _ => None,
        }
    }

    /// Pairs whose two cells differ, by index.
    pub fn asymmetries(&self) -> Vec<(usize, usize)> {
        let n = self.rows.len();
        let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        pairs.filter(|&(a, b)| self.rows[a].cells[b] != self.rows[b].cells[a]).collect()
    }

    /// The matrix as nvidia-smi prints it, without its legend of classes.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let _ = write!(out, "\t{}", row.name);
        }
        for title in &self.titles {
            let _ = write!(out, "\t{title}");
        }
        out.push('\n');
        for row in &self.rows {
            out.push_str(&row.name);
            row.cells.iter().for_each(|cell| {
                let _ = write!(out, "\t{cell}");
            });
            row.affinity.iter().for_each(|part| {
                let _ = write!(out, "\t{part}");
            });
            out.push('\n');
        }
        if self.rows.iter().any(|row| row.alias.is_some()) {
            out.push_str("\nNIC Legend:\n\n");
        }
        for row in &self.rows {
            if let Some(alias) = &row.alias {
                let _ = writeln!(out, "  {}: {alias}", row.name);
            }
        }
        out
    }

    /// Groups of devices at most `limit` apart, each by its first device, in the order of the
    /// rows. GPUs of one NUMA node whose class NVLinks hide are at most NODE apart.
    fn groups(&self, limit: Distance) -> Vec<usize> {
        let n = self.rows.len();
        let mut group: Vec<usize> = (0..n).collect();
        let near = |a: usize, b: usize| {
            let numa = (self.rows[a].numa(), self.rows[b].numa());
            let one_node = limit == Distance::Node && numa.0.is_some() && numa.0 == numa.1;
            self.class(a, b).map_or(one_node, |class| class <= limit)
        };
        for a in 0..n {
            for b in a + 1..n {
                if group[a] != group[b] && near(a, b) {
                    let (keep, drop) = (group[a].min(group[b]), group[a].max(group[b]));
                    group.iter_mut().filter(|g| **g == drop).for_each(|g| *g = keep);
                }
            }
        }
        group
    }

    /// A coarse topology in which every pair whose class the matrix shows has that class, as far
    /// as the classes agree among themselves. It knows no links; devices that share a switch and
    /// functions of one card look alike in a matrix.
    pub fn topology(
        &self,
        name: &str,
        socket_gb_per_s: Option<f64>,
    ) -> Result<Topology, TopologyError> {
        let levels = [Distance::Node, Distance::Phb, Distance::Pxb, Distance::Pix];
        let [sockets, roots, outer, inner] = levels.map(|limit| self.groups(limit));
        let mut b = Builder::new(name);
        let mut firsts: Vec<usize> = Vec::new();
        let id = |prefix: &str, i: usize| format!("{prefix}-{}", self.rows[i].name);
        let of = |groups: &[usize], i: usize| groups.iter().filter(|&&g| g == groups[i]).count();
        for i in 0..self.rows.len() {
            if sockets[i] == i {
                let numa = self.rows.iter().zip(&sockets).filter(|(_, g)| **g == i);
                let numa = numa.filter_map(|(row, _)| row.numa()).next();
                let node = b.add(&id("socket", i), Kind::Socket, None, None, None);
                node.model = numa.map_or_else(String::new, |n| format!("NUMA node {n}"));
                for &other in &firsts {
                    let ends = [id("socket", other), id("socket", i)];
                    match socket_gb_per_s {
                        Some(rate) => b.interconnect(&ends[0], &ends[1], rate, None),
                        None => b.unknown_interconnect(&ends[0], &ends[1]),
                    }
                }
                firsts.push(i);
            }
            let (socket, root) = (id("socket", sockets[i]), id("root", roots[i]));
            if roots[i] == i {
                b.add(&root, Kind::RootComplex, Some(&socket), None, None);
            }
            let mut parent = root;
            // Several inner groups share an outer switch, each behind one of its own.
            if of(&outer, i) > of(&inner, i) {
                let switch = id("switches", outer[i]);
                if outer[i] == i {
                    b.add(&switch, Kind::Switch, Some(&parent), None, None);
                }
                parent = switch;
            }
            if of(&outer, i) > 1 {
                let switch = id("switch", inner[i]);
                if inner[i] == i {
                    b.add(&switch, Kind::Switch, Some(&parent), None, None).model =
                        "or one slot".into();
                }
                parent = switch;
            }
            let row = &self.rows[i];
            let kind = if row.is_gpu() { Kind::Gpu } else { Kind::Nic };
            let node = b.add(&row.name, kind, Some(&parent), None, None);
            let alias = row.alias.iter().cloned();
            let parts: Vec<String> = alias.chain(["link unknown".to_owned()]).collect();
            node.model = parts.join(", ");
        }
        b.finish()
    }
}
