//! Rows of `bellpush sim --validate`: what was measured beside what the model has, and what was
//! known of a row when the model was asked. Totals of them are in `sim_totals.rs`.

use std::error::Error;

use bellpush::pcie::sim::{
    Answer, COLLAPSE_ROWS, COPY_ROWS, CopyQuestion, CopyRow, Curve, EQUAL, H200_CURVES, H200_HOPS,
    H200_THREADS, HOST_CHECKS, HOST_RESIDUALS, HOST_ROWS, HopPath, IOMMU_ROWS, IOMMU_WINDOWS_KIB,
    LeftOut, Metric, Move, NFP_SIZES, NfpHost, ORDER_ROWS, PEER_ROWS, Params, SECOND_COPY_ROWS,
    Standing, THIRD_COPY_ROWS, answer_copy_row, answer_peer_row, crosses_sockets,
    iommu_row_is_fitted, leave_one_out, simulate_curve, simulate_hop, simulate_host_row,
    simulate_iommu_row, simulate_order,
};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What was known of a row when the model said its number: docs/pcie-model.md, Errors, defines the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A number of the model was fitted to it.
    Fitted,
    /// It was known when the mechanism was written, or a rule that moves it; nothing was fitted to
    /// it.
    Known,
    /// It had been looked at before the model was asked; nothing was fitted to it.
    Seen,
    /// Nobody had looked at it before the model was asked.
    Predicted,
}

impl RowKind {
    pub const ALL: [Self; 4] = [Self::Predicted, Self::Known, Self::Seen, Self::Fitted];

    /// Of rows that nobody had looked at, unless they are fitted.
    const fn fitted(is_fitted: bool) -> Self {
        if is_fitted { Self::Fitted } else { Self::Predicted }
    }

    /// Of rows that were known, some of which are fitted.
    const fn fitted_or_known(is_fitted: bool) -> Self {
        if is_fitted { Self::Fitted } else { Self::Known }
    }

    /// Of rows that are not fitted.
    const fn known(is_known: bool) -> Self {
        if is_known { Self::Known } else { Self::Predicted }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Known => "known before",
            Self::Seen => "seen before",
            Self::Predicted => "predicted",
        }
    }
}

/// A row beside the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub table: String,
    pub row: String,
    pub measured: f64,
    pub model: f64,
    pub kind: RowKind,
    pub note: String,
    /// Whether others published it; else it was measured for this project.
    pub published: bool,
    /// What the model said when it was first asked, where rules that were written since move it.
    pub first: Option<f64>,
    /// Whether nobody had looked at it when the model was first asked.
    pub was_predicted: bool,
    /// What it says if the device's engines share one queue, where that differs.
    pub one_queue: Option<f64>,
    /// Who moves the data, and between which ends.
    pub mover: Option<(Move, String)>,
    /// Whether GPUs, NICs or other devices copy across sockets.
    pub crosses_sockets: bool,
    /// What is asked of pcie-bench's hosts, of whichever host and window: metric and size.
    pub size: Option<String>,
    /// Whether a predicted row has the answer to another row of its [`size`](Self::size): what tells the two
    /// apart has no part in it. Such a row is no prediction of its own.
    pub repeats: bool,
    /// Whether a predicted row has the answer to any other row.
    pub again: bool,
    /// Whether it is of one stream of a collection of copies.
    pub is_alone: bool,
    /// Number of the collection of copies that it is of; 0: of none.
    pub collection: u8,
    /// Whether an IOMMU that translates moves it by as much as a rule has to that moves a row.
    pub is_translated: bool,
    /// Whether the source of a copy leaves a link of its machine open, so that the rate had a part in its choice.
    pub assumes_a_link: bool,
}

fn error_percent(model: f64, measured: f64) -> f64 {
    (model / measured - 1.0) * 100.0
}

impl Row {
    pub fn new(table: &str, row: String, measured: f64, model: f64, kind: RowKind) -> Self {
        Self {
            table: table.to_owned(),
            row,
            measured,
            model,
            kind,
            note: String::new(),
            published: true,
            first: None,
            was_predicted: kind == RowKind::Predicted,
            one_queue: None,
            mover: None,
            crosses_sockets: false,
            size: None,
            repeats: false,
            again: false,
            is_alone: false,
            collection: 0,
            is_translated: false,
            assumes_a_link: false,
        }
    }

    pub fn of_size(self, size: String) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Whether it is a rate, and not a time.
    pub fn is_rate(&self) -> bool {
        ["GB/s", "Gb/s"].iter().any(|unit| self.row.contains(unit))
    }

    fn note(self, note: &str) -> Self {
        Self { note: note.to_owned(), ..self }
    }

    /// Measured for this project.
    fn own(self) -> Self {
        Self { published: false, ..self }
    }

    pub fn moved_by(self, mover: Option<(Move, String)>) -> Self {
        Self { mover, ..self }
    }

    fn across(self, crosses_sockets: bool) -> Self {
        Self { crosses_sockets, ..self }
    }

    /// A row as the model has it without the rules that were written since it was read: which moved
    /// it, it was known before.
    pub fn answered(mut self, answer: Answer) -> Self {
        self.one_queue = answer.one_queue();
        if answer.is_moved() {
            self.first = Some(answer.first);
            self.kind = if self.kind == RowKind::Predicted { RowKind::Known } else { self.kind };
        }
        self
    }

    pub fn error_percent(&self) -> f64 {
        error_percent(self.model, self.measured)
    }

    pub fn json(&self) -> Value {
        json!({
            "table": self.table, "row": self.row, "measured": self.measured, "model": self.model,
            "error_percent": self.error_percent(), "first_asked": self.first,
            "one_queue": self.one_queue, "kind": self.kind.name(), "published": self.published,
            "crosses_sockets": self.crosses_sockets, "repeats": self.repeats,
            "collection": self.collection, "note": self.note,
        })
    }
}

fn unit_of(metric: Metric) -> &'static str {
    match metric {
        Metric::ReadGbps => "read, Gb/s",
        Metric::WriteGbps => "write, Gb/s",
        Metric::ReadNs => "read latency, ns",
        Metric::WriteReadNs => "write then read, ns",
    }
}

/// Rates of reads and writes of one size have equal ends.
fn mover_of(metric: Metric, ends: String) -> Option<(Move, String)> {
    match metric {
        Metric::ReadGbps => Some((Move::Read, ends)),
        Metric::WriteGbps => Some((Move::Write, ends)),
        Metric::ReadNs | Metric::WriteReadNs => None,
    }
}

/// Every row.
pub fn all(params: &Params) -> Result<Vec<Row>> {
    let mut rows = hosts()?;
    rows.extend(translated(params)?);
    rows.extend(h200(params)?);
    rows.extend(peers(params)?);
    rows.extend(threads(params)?);
    rows.extend(ordering(params)?);
    rows.extend(copies(params)?);
    rows.extend(collapse(params)?);
    rows.extend(sizes()?);
    mark_repeats(&mut rows);
    Ok(rows)
}

/// Marks predicted rows whose answer is another row's, within what the model calls equal: what tells two such rows
/// apart moves neither more than a rule has to that moves a row. Of several predicted rows of one answer the first counts, and
/// none where the answer is to a row that was known.
pub fn mark_repeats(rows: &mut [Row]) {
    let predicted = |row: &Row| row.kind == RowKind::Predicted;
    let is_one = |a: &Row, b: &Row| (a.model / b.model - 1.0).abs() < EQUAL;
    let mark = |(i, row): (usize, &Row)| {
        let before = |(j, other): &(usize, &Row)| *j != i && (*j < i || !predicted(other));
        let others = || rows.iter().enumerate().filter(before).map(|(_, other)| other);
        let mut same = others().filter(|other| predicted(row) && is_one(other, row));
        let is_same_size = |other: &Row| row.size.is_some() && other.size == row.size;
        (same.clone().any(is_same_size), same.any(|other| other.is_rate() == row.is_rate()))
    };
    let marks: Vec<(bool, bool)> = rows.iter().enumerate().map(mark).collect();
    for (row, mark) in rows.iter_mut().zip(marks) {
        (row.repeats, row.again) = mark;
    }
}

/// Hosts of pcie-bench. The tables of two were known when the simulation was written.
fn hosts() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for host in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL] {
        for r in HOST_ROWS {
            let (measured, fitted) = r.of(&host);
            let model = simulate_host_row(&host, r.metric, r.bytes)?;
            let residual = HOST_RESIDUALS.iter().find(|(m, b, _)| *m == r.metric && *b == r.bytes);
            let name = format!("{}, {} B", unit_of(r.metric), r.bytes);
            let kind = RowKind::fitted_or_known(fitted);
            let row = Row::new(host.name, name.clone(), measured, model, kind).of_size(name);
            let mover = mover_of(r.metric, format!("{} B", r.bytes));
            rows.push(row.note(residual.map_or("", |(_, _, why)| *why)).moved_by(mover));
        }
    }
    for check in HOST_CHECKS {
        for &(metric, bytes, measured) in check.rows {
            let model = simulate_host_row(&check.host, metric, bytes)?;
            let name = format!("{}, {bytes} B", unit_of(metric));
            let kind = RowKind::known(check.is_known(metric, bytes));
            let row = Row::new(check.host.name, name.clone(), measured, model, kind).of_size(name);
            let note = check.residual(metric, bytes).unwrap_or_default();
            let mover = mover_of(metric, format!("{bytes} B"));
            rows.push(row.note(note).moved_by(mover));
        }
    }
    Ok(rows)
}

/// Hosts of pcie-bench behind an IOMMU.
fn translated(params: &Params) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (host, of_host) in IOMMU_ROWS {
        for &(metric, bytes, measured) in of_host {
            // The pages of the smallest window are all held, and cost nothing.
            let held = simulate_iommu_row(params, &host, (metric, bytes), IOMMU_WINDOWS_KIB[0])?;
            for (window, measured) in IOMMU_WINDOWS_KIB.into_iter().zip(measured) {
                let model = simulate_iommu_row(params, &host, (metric, bytes), window)?;
                let size = format!("{bytes} B, window of {window} KiB");
                let (table, name) =
                    (format!("{}, IOMMU", host.name), format!("{}, {size}", unit_of(metric)));
                let fitted = iommu_row_is_fitted((metric, bytes), window);
                let note = if fitted { "of the loss by which iotlb_walkers was found" } else { "" };
                let row = Row::new(&table, name, measured, model, RowKind::fitted(fitted));
                let row = row.of_size(format!("{}, {bytes} B", unit_of(metric)));
                let is_translated = (model / held - 1.0).abs() >= EQUAL;
                let row = Row { is_translated, ..row.note(note) };
                rows.push(row.moved_by(mover_of(metric, size)));
            }
        }
    }
    Ok(rows)
}

/// Curves and hops of H200s: they were in the tree when the simulation was written.
fn h200(params: &Params) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in H200_CURVES {
        let model = simulate_curve(params, r.curve, r.blocks, 512)?;
        let what = match r.curve {
            Curve::HostStore => "stores to host",
            Curve::HostLoad => "loads from host",
            Curve::PeerStore => "stores to peer",
            Curve::PeerLoad => "loads from peer",
        };
        let name = format!("{what}, {} blocks, GB/s", r.blocks);
        let kind = RowKind::fitted_or_known(r.fitted);
        rows.push(Row::new("H200 curves", name, r.gb_per_s, model, kind).own());
    }
    for r in H200_HOPS {
        let hop = if r.pcie { "PCIe" } else { "NVLink" };
        let paths = [
            ("push, fence, doorbell", HopPath::Push, Some(r.push_ns)),
            ("pull", HopPath::Pull, Some(r.pull_ns)),
            ("push in-band", HopPath::Inband, r.inband_ns),
        ];
        for (what, path, measured) in paths {
            let Some(measured) = measured else { continue };
            let model = simulate_hop(params, path, r.bytes, r.pcie)?;
            let name = format!("{hop}, {what}, {} B, ns", r.bytes);
            let table = "H200 push against pull";
            rows.push(Row::new(table, name, measured, model, RowKind::Known).own());
        }
    }
    Ok(rows)
}

/// Blocks of other sizes on H200s.
fn threads(params: &Params) -> Result<Vec<Row>> {
    let row = |&(curve, threads, measured): &(Curve, u32, f64)| {
        let model = simulate_curve(params, curve, 1, threads)?;
        let what = if curve == Curve::HostLoad { "loads from" } else { "stores to" };
        let name = format!("{what} host, 1 block of {threads} threads, GB/s");
        let row = Row::new("H200 threads", name, measured, model, RowKind::Predicted);
        Ok(row.note("predicted before it was measured").own())
    };
    H200_THREADS.iter().map(row).collect()
}

/// GPUs of whole machines.
fn peers(params: &Params) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in PEER_ROWS {
        let answer = answer_peer_row(params, &r)?;
        let name = format!("Gen{} x16, {:?}, {:?}, GB/s", r.generation, r.standing, r.traffic);
        let note = match r.standing {
            Standing::TwoSockets => "the interconnect's rate is unknown, taken as no limit",
            _ => "",
        };
        let is_far = r.standing == Standing::TwoSockets;
        let kind = RowKind::known(r.known_before);
        let row = Row::new(r.machine, name, r.gb_per_s, answer.now, kind);
        rows.push(row.note(note).across(is_far).answered(answer));
    }
    Ok(rows)
}

/// Copies on machines that others measured.
fn copies(params: &Params) -> Result<Vec<Row>> {
    let collections = [&COPY_ROWS[..], &SECOND_COPY_ROWS, &THIRD_COPY_ROWS];
    let of = |(collection, rows): (u8, &'static [CopyRow])| {
        rows.iter().map(move |r| {
            let kind = RowKind::known(r.machine.known_before);
            copy(params, r, kind).map(|row| Row { collection, ..row })
        })
    };
    (1..).zip(collections).flat_map(of).collect()
}

/// Sets of flows on the machine whose posted writes collapse.
fn collapse(params: &Params) -> Result<Vec<Row>> {
    COLLAPSE_ROWS.iter().map(|r| copy(params, r, RowKind::Seen)).collect()
}

fn copy(params: &Params, r: &CopyRow, kind: RowKind) -> Result<Row> {
    let answer = answer_copy_row(params, r)?;
    let m = r.machine;
    let mut note = m.source.to_owned();
    if !m.assumed.is_empty() {
        note += &format!("; assumed: {}", m.assumed);
    }
    let unit = if matches!(r.question, CopyQuestion::Longer(..)) { "" } else { ", GB/s" };
    let row = Row::new(m.name, format!("{}{unit}", r.what), r.measured, answer.now, kind);
    let row = row.note(&note).moved_by(r.question.mover()).across(crosses_sockets(r));
    let is_alone = matches!(r.question, CopyQuestion::Alone(_));
    Ok(Row { is_alone, assumes_a_link: m.assumes_a_link(), ..row.answered(answer) })
}

/// Rates of the sizes of pcie-bench's sweep that its two hosts' tables do not have.
fn sizes() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (i, host) in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL].iter().enumerate() {
        for (bytes, reads, writes) in NFP_SIZES {
            for (what, metric, measured) in
                [("read", Metric::ReadGbps, reads), ("write", Metric::WriteGbps, writes)]
            {
                let Some(measured) = measured else { continue };
                let model = simulate_host_row(host, metric, bytes)?;
                let (table, name) =
                    (format!("{}, sweep", host.name), format!("{what}, Gb/s, {bytes} B"));
                let row = Row::new(&table, name.clone(), measured[i], model, RowKind::Seen);
                rows.push(row.of_size(name));
            }
        }
    }
    Ok(rows)
}

/// NICs' writes into host memory in order, and relaxed.
fn ordering(params: &Params) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for r in ORDER_ROWS {
        let model = simulate_order(params, &r.machine)?;
        for (what, measured, model) in
            [("in order", r.strict, model[0]), ("relaxed", r.relaxed, model[1])]
        {
            let Some(measured) = measured else { continue };
            let name = format!("{}, writes {what}, Gb/s", r.name);
            let kind = RowKind::known(r.known_before);
            let row = Row::new("Relaxed ordering", name, measured, model, kind);
            rows.push(row.note(&format!("{}; {}", r.source, r.note)));
        }
    }
    Ok(rows)
}

/// Every row of the fitted groups, without itself and without its machine.
pub fn left_out(params: &Params) -> Result<Vec<Value>> {
    let row = |r: &LeftOut| {
        let error = |model: f64| error_percent(model, r.measured);
        json!({
            "group": r.group, "machine": r.machine, "row": r.row, "measured": r.measured,
            "in_use_percent": error(r.in_use), "all_rows_percent": error(r.with_all),
            "without_row_percent": r.without_row.map(error),
            "without_machine_percent": r.without_machine.map(error),
        })
    };
    Ok(leave_one_out(params)?.iter().map(row).collect())
}
