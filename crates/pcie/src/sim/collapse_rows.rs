//! Sets of flows on the machine whose posted writes collapse (`collapse.rs`): what its reports measured
//! beside the pattern from which the collapse is known. Threshold and rate are data of the platform, so
//! these rows are the only check that they have. All had been seen before the model was asked, and
//! nothing came of them; what the model says of each is in docs/results/pcie-collapse.md.
//!
//! Which rows are taken, and what is assumed for all, is in `copies.rs`. The copies are PyTorch's, by the
//! script of the reports: what it calls reads are copies by the GPU that has the data, on streams of the
//! GPU that gets them (`copy_order.rs`). Where a report has a row twice or more, it enters by its median.

use super::Move::{Read, Write};
use super::copies::At::Root;
use super::copies::CopyQuestion::{Alone, EachToEach, Together};
use super::copies::{CopyMachine, CopyRow, read, up, write};
use super::copy_machines::{DIRECT, TWO_PER_SWITCH, sw};
use super::copy_rows::row;
use crate::topology::RawLink;

const ESC8000A: CopyMachine = CopyMachine {
    name: "ESC8000A-E13P, PEX890xx, sets of flows",
    source: "rtx6kpro, hardware/asus-esc8000a-e13p-broadcom-switches.md and \
             troubleshooting/asus-esc8000a-e13p-pex890xx-bug-report.md",
    cpu: "EPYC 9575F",
    said: "lspci: Speed 32GT/s, Width x16, MaxPayload 256, MaxReadReq 512; ACS off; chip A has GPU 0 to 3, \
           B has 4 to 7; 256 MB, 20 iterations",
    link: RawLink::new(5, 16),
    roots: &[0, 0, 1, 1],
    switches: &[sw(Root(0), 5, "A"), sw(Root(1), 5, "A"), sw(Root(2), 5, "B"), sw(Root(3), 5, "B")],
    devices: TWO_PER_SWITCH,
    torch_rounds: 20,
    collapses: true,
    rules_before: 5,
    ..DIRECT
};

const A: &[u8] = &[0, 1, 2, 3];
const B: &[u8] = &[4, 5, 6, 7];
const ALL: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7];

/// The rows.
pub const COLLAPSE_ROWS: [CopyRow; 24] = [
    row(&ESC8000A, "one writes, one switch", Alone(write(0, 1)), 53.35),
    row(&ESC8000A, "one writes, one chip", Alone(write(0, 2)), 53.65),
    row(
        &ESC8000A,
        "two write, two switches of a chip",
        Together(&[write(0, 1), write(2, 3)]),
        108.6,
    ),
    row(
        &ESC8000A,
        "two pairs both write, two switches of a chip",
        Together(&[write(0, 1), write(1, 0), write(2, 3), write(3, 2)]),
        203.9,
    ),
    row(&ESC8000A, "four write, each to each of a chip", EachToEach(A, A, Write), 153.0),
    row(
        &ESC8000A,
        "one writes to two root ports of the other socket",
        Together(&[write(0, 4), write(0, 6)]),
        36.6,
    ),
    row(
        &ESC8000A,
        "two write, two switches to two, two sockets",
        Together(&[write(0, 4), write(2, 6)]),
        79.0,
    ),
    row(
        &ESC8000A,
        "the same the other way, two sockets, called reads",
        Together(&[read(4, 0), read(6, 2)]),
        44.8,
    ),
    row(
        &ESC8000A,
        "two write, one switch to one, two sockets",
        Together(&[write(0, 4), write(1, 5)]),
        41.8,
    ),
    row(
        &ESC8000A,
        "two write, two switches to one, two sockets",
        Together(&[write(4, 0), write(6, 1)]),
        51.2,
    ),
    row(
        &ESC8000A,
        "the same, two sockets, called reads",
        Together(&[read(4, 0), read(6, 1)]),
        51.1,
    ),
    row(
        &ESC8000A,
        "one of two writes to the other socket, one inside the chip, two sockets",
        Together(&[write(0, 4), write(1, 2)]),
        106.3,
    ),
    row(
        &ESC8000A,
        "one writes to the other socket and inside the chip, two sockets",
        Together(&[write(0, 4), write(0, 2)]),
        42.8,
    ),
    row(
        &ESC8000A,
        "four write, one to one, two sockets",
        Together(&[write(0, 4), write(1, 5), write(2, 6), write(3, 7)]),
        83.2,
    ),
    row(
        &ESC8000A,
        "four pairs both write, two sockets",
        Together(&[
            write(0, 4),
            write(1, 5),
            write(2, 6),
            write(3, 7),
            write(4, 0),
            write(5, 1),
            write(6, 2),
            write(7, 3),
        ]),
        82.2,
    ),
    row(&ESC8000A, "four write to four, each to each, two sockets", EachToEach(A, B, Write), 7.55),
    row(
        &ESC8000A,
        "four from four, each from each, two sockets, called reads",
        EachToEach(B, A, Read),
        9.0,
    ),
    row(&ESC8000A, "eight write, each to each, two sockets", EachToEach(ALL, ALL, Write), 36.5),
    row(
        &ESC8000A,
        "eight from eight, each from each, two sockets, called reads",
        EachToEach(ALL, ALL, Read),
        53.9,
    ),
    row(&ESC8000A, "to host memory", Alone(up(0)), 56.3),
    row(&ESC8000A, "two to host memory, one switch", Together(&[up(0), up(1)]), 56.3),
    row(&ESC8000A, "two to host memory, two switches", Together(&[up(0), up(2)]), 56.3),
    row(&ESC8000A, "three to host memory, two switches", Together(&[up(0), up(1), up(2)]), 56.3),
    row(
        &ESC8000A,
        "four to host memory, two switches",
        Together(&[up(0), up(1), up(2), up(3)]),
        56.2,
    ),
];

#[cfg(test)]
mod tests {
    use super::super::{CopyQuestion, Params, crosses_sockets, simulate_copy_row};
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/results/pcie-collapse.md");

    fn of(what: &str) -> &'static CopyRow {
        COLLAPSE_ROWS.iter().find(|r| r.what == what).expect("a row")
    }

    fn model(row: &CopyRow) -> f64 {
        simulate_copy_row(&Params::default(), row).unwrap()
    }

    /// Every row stands on its page, with what the model says.
    #[test]
    fn the_page_has_what_the_model_says() {
        for r in &COLLAPSE_ROWS {
            let got = model(r);
            let error = 100.0 * (got / r.measured - 1.0);
            let said = format!("| {} | {} | {got:.1} | {error:+.1} % |", r.what, r.measured);
            assert!(PAGE.contains(&said), "docs/results/pcie-collapse.md does not say: {said}");
            let says = ["two sockets", "other socket"].iter().any(|end| r.what.contains(end));
            assert_eq!(crosses_sockets(r), says, "{}", r.what);
            // No row's receivers lie in both sockets, so that the words say that ways cross.
            assert!(!r.what.contains("of two sockets"), "{}", r.what);
        }
    }

    /// Two source switches of one chip collapse each by itself, so that together they have twice the
    /// rate; copies of PyTorch that do not meet in a fan are free of it.
    #[test]
    fn copies_that_wait_collapse_as_flows_do() {
        let cap = crate::topology::KNOWN_COLLAPSES[0].seen().gb_per_s;
        const FAN: CopyQuestion = Together(&[write(0, 4), write(1, 6)]);
        const TWO: CopyQuestion = Together(&[write(0, 4), write(1, 6), write(2, 5), write(3, 7)]);
        let asked = |question| model(&CopyRow { question, ..COLLAPSE_ROWS[0] });
        assert!((asked(FAN) / cap - 1.0).abs() < 0.01, "{}", asked(FAN));
        assert!((asked(TWO) / (2.0 * cap) - 1.0).abs() < 0.01, "{}", asked(TWO));
        assert!(model(of("four write, one to one, two sockets")) > 100.0);
        assert!(model(of("four write to four, each to each, two sockets")) < 4.0 * cap);
    }
}
