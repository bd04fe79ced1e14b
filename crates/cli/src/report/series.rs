//! The lines of a plot: their rows and their appearance.

use super::label::labels;
use super::notes::Footnotes;
use super::repeated::middle;
use super::row::{Results, Row};
use super::{Data, Kick};

/// Markers, one per kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
    Plus,
}

impl Shape {
    /// The outline in pixels around its middle.
    pub fn corners(self) -> &'static [(i32, i32)] {
        match self {
            // Round enough at ten pixels.
            Self::Circle => {
                &[(-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2)]
            }
            Self::Square => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
            Self::Up => &[(0, -6), (6, 4), (-6, 4)],
            Self::Diamond => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
            Self::Down => &[(0, 6), (6, -4), (-6, -4)],
            Self::Plus => &[
                (-2, -6),
                (2, -6),
                (2, -2),
                (6, -2),
                (6, 2),
                (2, 2),
                (2, 6),
                (-2, 6),
                (-2, 2),
                (-6, 2),
                (-6, -2),
                (-2, -2),
            ],
        }
    }
}

/// Lengths of dash and gap in pixels; the first line of a data path is solid.
pub(super) const DASHES: [Option<(u32, u32)>; 4] =
    [None, Some((8, 4)), Some((3, 3)), Some((14, 5))];

/// What the numbers of a line are of, in the order of a legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A NIC.
    Nic,
    /// The software NIC, where it does what a NIC would.
    Software,
    /// The software NIC, where its way is not a NIC's: its rows have footnotes.
    Artefact,
    /// No NIC's part: TCP.
    Nothing,
    /// What the plot says: lines that are not rows of a result.
    Unsaid,
}

impl Of {
    pub const ALL: [Self; 5] =
        [Self::Nic, Self::Software, Self::Artefact, Self::Nothing, Self::Unsaid];

    pub fn heading(self) -> Option<&'static str> {
        match self {
            Self::Nic => Some("numbers of a NIC"),
            Self::Software => Some("software NIC"),
            Self::Artefact => Some("artefacts of the software NIC"),
            Self::Nothing => Some("no NIC"),
            Self::Unsaid => None,
        }
    }

    fn row(row: &Row, software: bool, has_footnote: bool) -> Self {
        match (row.data, software || row.engine.is_some()) {
            (Data::Tcp, _) => Self::Nothing,
            _ if has_footnote => Self::Artefact,
            (_, true) => Self::Software,
            (_, false) => Self::Nic,
        }
    }
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    /// Label: its path, with the numbers of its footnotes.
    pub label: String,
    /// Colour of its data path.
    pub colour: (u8, u8, u8),
    /// Marker of its kick.
    pub shape: Shape,
    /// Index into [`DASHES`].
    pub dash: usize,
    /// What its numbers are of: an artefact where one of its rows is.
    pub of: Of,
    /// Footnotes of its rows, ascending.
    pub marks: Vec<usize>,
    /// Logarithm of the size to base 2, and value; ascending by size.
    pub points: Vec<(f64, f64)>,
    /// Of repeated rows: position, least and greatest value.
    pub bars: Vec<(f64, f64, f64)>,
}

/// Groups rows into lines. Rows without a value are omitted. Of several rows with the same path and
/// size, the median is drawn, and a bar from the least to the greatest.
pub(super) fn series(results: &Results, value: impl Fn(&Row) -> Option<f64>) -> Vec<Series> {
    let rows = &results.results;
    let (labels, footnotes) = (labels(rows), Footnotes::of(rows));
    let mut lines: Vec<Series> = Vec::new();
    let mut seen = [0usize; Data::ALL.len()];
    for (i, row) in rows.iter().enumerate() {
        let Some(value) = value(row) else { continue };
        let marks = footnotes.marks(i);
        let of = Of::row(row, results.meta.nic.software, !marks.is_empty());
        let position = lines.iter().position(|line| line.label == labels[i]);
        let position = position.unwrap_or_else(|| {
            let nth = &mut seen[row.data as usize];
            let (colour, shape) = (colour(row.data), shape(row.kick));
            let taken = |dash: &usize| {
                lines.iter().any(|l| (l.colour, l.shape, l.dash) == (colour, shape, *dash))
            };
            let mut dashes = (*nth..*nth + DASHES.len()).map(|dash| dash % DASHES.len());
            let dash = dashes.find(|dash| !taken(dash)).unwrap_or(*nth % DASHES.len());
            let (label, marks) = (labels[i].clone(), Vec::new());
            let (points, bars) = (Vec::new(), Vec::new());
            lines.push(Series { label, colour, shape, dash, of, marks, points, bars });
            *nth += 1;
            lines.len() - 1
        });
        let line = &mut lines[position];
        line.points.push(((row.size_bytes as f64).log2(), value));
        line.marks.extend(marks);
        if of == Of::Artefact {
            line.of = of;
        }
    }
    for line in &mut lines {
        (line.points, line.bars) = medians(&mut line.points);
        line.marks.sort_unstable();
        line.marks.dedup();
        if !line.marks.is_empty() {
            let numbers: Vec<String> = line.marks.iter().map(usize::to_string).collect();
            line.label += &format!(" [{}]", numbers.join(","));
        }
    }
    lines
}

fn colour(data: Data) -> (u8, u8, u8) {
    match data {
        Data::Push => (0x00, 0x72, 0xb2),
        Data::Pull => (0xd5, 0x5e, 0x00),
        Data::Staged => (0x00, 0x9e, 0x73),
        Data::Tcp => (0x6e, 0x6e, 0x6e),
        Data::Auto => (0xcc, 0x79, 0xa7),
    }
}

fn shape(kick: Option<Kick>) -> Shape {
    match kick {
        Some(Kick::Inband) => Shape::Circle,
        Some(Kick::Kernel) => Shape::Square,
        Some(Kick::Blueflame) => Shape::Up,
        Some(Kick::Stream) => Shape::Diamond,
        Some(Kick::Cpu) => Shape::Down,
        None => Shape::Plus,
    }
}

/// Points, and bars of those that were repeated.
type Summary = (Vec<(f64, f64)>, Vec<(f64, f64, f64)>);

/// As the tables have it.
fn median(same: &[(f64, f64)]) -> f64 {
    let values: Vec<f64> = same.iter().map(|at| at.1).collect();
    middle(&values).expect("a size has a value")
}

/// One point for each size: the median of its values; a bar where there are several.
fn medians(points: &mut [(f64, f64)]) -> Summary {
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let sizes = || points.chunk_by(|a, b| a.0 == b.0);
    let repeated = sizes().filter(|same| same.len() > 1);
    (
        sizes().map(|same| (same[0].0, median(same))).collect(),
        repeated.map(|same| (same[0].0, same[0].1, same[same.len() - 1].1)).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn no_two_lines_look_alike() {
        let mut results = sample("cuda:X");
        for &data in Data::ALL {
            for &kick in Kick::ALL.iter().filter(|k| k.goes_with(data)) {
                let row = Row { bandwidth_gb_s: 1.0, ..Row::new(data, Some(kick), 64) };
                results.results.push(row);
            }
        }
        let lines = series(&results, |row| Some(row.bandwidth_gb_s));
        assert_eq!(lines.len(), 5 + 4 + 3 + 1 + 3, "rows with another NIC name are other lines");
        for (i, a) in lines.iter().enumerate() {
            for b in &lines[..i] {
                assert_ne!((a.colour, a.shape, a.dash), (b.colour, b.shape, b.dash), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn repeats_are_drawn_once() {
        let row = |gb_s| Row { bandwidth_gb_s: gb_s, ..Row::new(Data::Tcp, None, 1024) };
        let of = |rows: &[Row]| Results { results: rows.to_vec(), ..sample("host") };
        let rows = of(&[row(3.0), row(1.0), row(2.0)]);
        let lines = series(&rows, |row| Some(row.bandwidth_gb_s));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].points, [(10.0, 2.0)]);
        assert_eq!(lines[0].bars, [(10.0, 1.0, 3.0)]);
        // Of an even number the mean of the middle two, as in the tables.
        let twice = series(&of(&[row(3.0), row(1.0)]), |row| Some(row.bandwidth_gb_s));
        assert_eq!(
            (&twice[0].points[..], &twice[0].bars[..]),
            (&[(10.0, 2.0)][..], &[(10.0, 1.0, 3.0)][..])
        );
        let once = series(&of(&[row(1.0)]), |row| Some(row.bandwidth_gb_s));
        assert_eq!((once[0].points.len(), once[0].bars.len()), (1, 0));
        assert!(series(&of(&[row(1.0)]), |_| None).is_empty());
    }
}
