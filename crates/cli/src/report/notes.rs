//! Standing notes that every report prints beside its numbers.
//!
//! A *note* concerns a whole result. A *footnote* concerns the rows with its mark, in which a
//! number is an artefact of the software NIC.

use super::Data;
use super::human::printable;
use super::names::Side;
use super::row::{Results, Row};
use bellpush::transport::MemoryPlace;

/// Reason why `pull` with a host engine is slow.
pub const PULL_BY_COPY_ENGINE: &str = "host-engine pull goes through the copy engine: a CPU thread \
    cannot load from GPU memory, so this is not a NIC's pull; the PCIe model gives the NIC's";

/// Reason why `push` and `staged` with a host engine are alike.
pub const SAME_MEMORY: &str = "host-engine push and staged land in the same memory: both store to \
    host memory, so their difference is protocol cost only";

/// Reason why a ranking of paths on the host executor has no meaning.
pub const HOST_EXECUTOR: &str = "kernels ran on the host executor (CPU threads): these rows show \
    that the protocol works; no ranking of paths means anything";

/// Name of the software NIC in reports.
pub const SOFTWARE: &str = "software NIC";

/// The notes of a result: the applicable standing ones, then its own.
pub fn notes(results: &Results) -> Vec<String> {
    let any = |test: fn(&Row) -> bool| results.results.iter().any(test);
    let mut notes: Vec<String> = Vec::new();
    if results.meta.executor == "host" || any(Row::on_host_executor) {
        notes.push(HOST_EXECUTOR.into());
    }
    let lands = |r: &Row| {
        r.engine == Some(Side::Host)
            && matches!(r.data, Data::Push | Data::Staged | Data::Auto)
            && r.places.is_none_or(|places| places.window != MemoryPlace::Gpu)
    };
    if any(lands) {
        notes.push(SAME_MEMORY.into());
    }
    for own in results.meta.notes.iter().map(|note| printable(note)) {
        if !notes.contains(&own) {
            notes.push(own);
        }
    }
    notes
}

/// Footnotes of a set of rows: each text once, numbered from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footnotes {
    texts: Vec<String>,
    marks: Vec<Vec<usize>>,
}

impl Footnotes {
    /// Collects the footnotes: each row's own one, and those for its kind of row.
    pub fn of(rows: &[Row]) -> Self {
        let mut notes = Self::default();
        for row in rows {
            let mut marks = Vec::new();
            for text in Self::texts_of(row) {
                let known = notes.texts.iter().position(|t| *t == text);
                marks.push(1 + known.unwrap_or(notes.texts.len()));
                if known.is_none() {
                    notes.texts.push(text);
                }
            }
            marks.sort_unstable();
            marks.dedup();
            notes.marks.push(marks);
        }
        notes
    }

    fn texts_of(row: &Row) -> Vec<String> {
        let may_pull = matches!(row.data, Data::Pull | Data::Auto);
        let from_gpu = row.from != Some(Side::Host);
        let by_engine = row.engine == Some(Side::Host) && !row.on_host_executor();
        let by_copy_engine = may_pull && by_engine && from_gpu;
        let standing = by_copy_engine.then(|| PULL_BY_COPY_ENGINE.to_string());
        standing.into_iter().chain(row.artefact.as_deref().map(printable)).collect()
    }

    /// The texts, in the order of their numbers.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Footnote numbers of a row.
    pub fn marks(&self, row: usize) -> &[usize] {
        self.marks.get(row).map_or(&[], Vec::as_slice)
    }

    /// Footnote numbers as text: `[1]`, `[1,2]`, or nothing.
    pub fn mark(&self, row: usize) -> String {
        match self.marks(row) {
            [] => String::new(),
            marks => {
                let numbers: Vec<String> = marks.iter().map(usize::to_string).collect();
                format!("[{}]", numbers.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn standing_notes_follow_from_the_rows() {
        let mut results = sample("cuda:NVIDIA H200");
        results.meta.notes = vec!["mine".into(), SAME_MEMORY.into()];
        assert_eq!(notes(&results), [SAME_MEMORY, "mine"]);
        assert_eq!(Footnotes::of(&results.results).texts(), [PULL_BY_COPY_ENGINE]);

        let mut from_host = results.results.clone();
        from_host.iter_mut().for_each(|row| row.from = Some(Side::Host));
        assert!(Footnotes::of(&from_host).texts().is_empty(), "it loads that by itself");

        let host = sample("host");
        assert_eq!(notes(&host), [HOST_EXECUTOR, SAME_MEMORY]);
        assert!(Footnotes::of(&host.results).texts().is_empty());

        for row in &mut results.results {
            row.engine = Some(Side::Gpu);
        }
        assert_eq!(notes(&results), ["mine", SAME_MEMORY], "its own stay");
        assert!(Footnotes::of(&results.results).texts().is_empty());
    }

    #[test]
    fn each_footnote_has_one_number() {
        let mut rows = sample("cuda:X").results;
        rows[0].artefact = Some("emulated".into());
        rows[2].artefact = Some("emulated".into());
        rows[6].artefact = Some(PULL_BY_COPY_ENGINE.into());
        let notes = Footnotes::of(&rows);
        assert_eq!(notes.texts(), ["emulated", PULL_BY_COPY_ENGINE]);
        let marks: Vec<String> = (0..8).map(|i| notes.mark(i)).collect();
        assert_eq!(marks, ["[1]", "", "[1,2]", "", "", "", "[2]", ""]);
    }
}
