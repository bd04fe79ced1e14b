//! Copies that others measured, on the machines of `copy_machines.rs`: which rows are taken, and
//! what is assumed for all, is in `copies.rs`. GB is 10⁹ bytes; MB of 2²⁰ and of 1,024,000 bytes are
//! converted.

use super::Move::{Read, Write};
use super::copies::CopyQuestion::{self, Alone, Beside, EachToEach, Longer, Together};
use super::copies::{Copied, CopyMachine, CopyRow, End, down, read, up, write};
use super::copy_machines::{
    A10, A30, A100, A100_OTHER, AGILEX, AN690, B300, BROADWELL, FLAT, FLAT_GEN2, FOUR, FOUR_BEFORE,
    FOUR_GEN2, GENOA, GROUPS, GTX_1080, H800, I7, K80, LAPTOP, MILAN, NAPLES, PUGET, ROME,
    RTX_4090, RTX_5060, S822LC, TURIN, U50, U200, U250, VCU128, VIRTUAL_1, VIRTUAL_2, VIRTUAL_3,
    W2123, W2135, WRX80, WRX90, XE9780, XEON_8458,
};
use super::second_rows::SECOND_COPY_ROWS;
use super::third_rows::THIRD_COPY_ROWS;

const FIRST: &[u8] = &[0, 1, 2, 3];
const SECOND: &[u8] = &[4, 5, 6, 7];
const EIGHT: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7];
const LAST: &[u8] = &[8, 9, 10, 11, 12, 13, 14, 15];
const ALL: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
pub(super) const BOTH: &[Copied] = &[down(0), up(0)];
const DOWN_A: &[Copied] = &[down(0), down(1), down(2), down(3), down(4), down(5), down(6), down(7)];
const DOWN_B: &[Copied] =
    &[down(8), down(9), down(10), down(11), down(12), down(13), down(14), down(15)];
const UP_A: &[Copied] = &[up(0), up(1), up(2), up(3), up(4), up(5), up(6), up(7)];
const UP_B: &[Copied] = &[up(8), up(9), up(10), up(11), up(12), up(13), up(14), up(15)];
const SSDS_DOWN: &[Copied] =
    &[down(2), down(3), down(4), down(5), down(6), down(7), down(8), down(9)];
const SSDS_READ: &[Copied] = &[
    read(0, 2),
    read(0, 3),
    read(0, 4),
    read(0, 5),
    read(0, 6),
    read(0, 7),
    read(0, 8),
    read(0, 9),
];
const TO_FIRST: &[Copied] = &[write(2, 0), write(4, 1), write(6, 0), write(3, 1)];
const WRITE_2_TO_2: &[Copied] = &[
    write(0, 8),
    write(1, 9),
    write(2, 10),
    write(3, 11),
    write(4, 12),
    write(5, 13),
    write(6, 14),
    write(7, 15),
];
const READ_2_BY_2: &[Copied] = &[
    read(0, 8),
    read(1, 9),
    read(2, 10),
    read(3, 11),
    read(4, 12),
    read(5, 13),
    read(6, 14),
    read(7, 15),
];

pub(super) const fn row(
    machine: &'static CopyMachine,
    what: &'static str,
    question: CopyQuestion,
    measured: f64,
) -> CopyRow {
    CopyRow { machine, what, question, measured }
}

/// The same with host memory of the second socket.
pub(super) const fn far(c: Copied) -> Copied {
    let from = if matches!(c.from, End::Near) { End::Far } else { c.from };
    let to = if matches!(c.to, End::Near) { End::Far } else { c.to };
    Copied { from, to, by: c.by }
}

/// The rows of all collections.
pub fn copy_rows() -> impl Iterator<Item = &'static CopyRow> {
    COPY_ROWS.iter().chain(&SECOND_COPY_ROWS).chain(&THIRD_COPY_ROWS)
}

/// The rows of the first collection.
pub const COPY_ROWS: [CopyRow; 160] = [
    row(&WRX90, "both write, one leaf", Together(&[write(0, 1), write(1, 0)]), 104.0),
    row(&WRX90, "both write, across leafs", Together(&[write(0, 2), write(2, 0)]), 104.0),
    row(&WRX90, "one writes, one leaf", Alone(write(0, 1)), 54.85),
    row(&WRX90, "one writes, across leafs", Alone(write(0, 2)), 54.9),
    row(&WRX90, "two write, each in a leaf", Together(&[write(0, 1), write(2, 3)]), 108.3),
    row(&WRX90, "four read, each from each", EachToEach(FIRST, FIRST, Read), 126.0),
    row(&FLAT, "both write, one switch", Together(&[write(0, 1), write(1, 0)]), 101.0),
    row(&FLAT, "both write, across switches", Together(&[write(0, 4), write(4, 0)]), 101.0),
    row(&FLAT, "one writes, one switch", Alone(write(0, 1)), 53.65),
    row(&FLAT, "one writes, across switches", Alone(write(0, 4)), 53.4),
    row(&FLAT, "two write, one switch", Together(&[write(0, 1), write(2, 3)]), 107.5),
    row(&FLAT, "two write, across switches", Together(&[write(0, 4), write(1, 5)]), 53.8),
    row(
        &FLAT,
        "four write, across switches",
        Together(&[write(0, 4), write(1, 5), write(2, 6), write(3, 7)]),
        53.3,
    ),
    row(&FLAT, "four write, each to each in a switch", EachToEach(FIRST, FIRST, Write), 148.9),
    row(
        &FLAT,
        "four write, each to each of another switch",
        EachToEach(FIRST, SECOND, Write),
        51.6,
    ),
    row(&FLAT, "eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 168.4),
    row(&FLAT, "two read, across switches", Together(&[read(4, 0), read(5, 1)]), 53.55),
    row(
        &FLAT,
        "a read of 128 B longer across switches, ns",
        Longer(read(4, 0), read(1, 0), 128),
        705.0,
    ),
    row(&FLAT, "four read, each from each in a switch", EachToEach(FIRST, FIRST, Read), 121.0),
    row(&FLAT, "eight read, each from each", EachToEach(EIGHT, EIGHT, Read), 162.0),
    row(&FLAT_GEN2, "one writes, across switches", Alone(write(0, 4)), 7.0),
    row(&FOUR, "one writes, one switch", Alone(write(0, 1)), 53.0),
    row(&FOUR, "one writes, across switches", Alone(write(0, 4)), 52.0),
    row(&FOUR, "two write, one switch to one other", Together(&[write(0, 4), write(1, 5)]), 56.4),
    row(&FOUR, "two write, one switch", Together(&[write(0, 2), write(1, 3)]), 112.0),
    row(&FOUR, "two write, one switch to two others", Together(&[write(0, 4), write(1, 8)]), 55.4),
    row(&FOUR, "two read, two switches from one", Together(&[read(0, 4), read(1, 8)]), 56.4),
    row(
        &FOUR,
        "three write, one switch to three others",
        Together(&[write(0, 4), write(1, 8), write(2, 12)]),
        56.3,
    ),
    row(
        &FOUR,
        "four write, one switch to one other",
        Together(&[write(0, 4), write(1, 5), write(2, 6), write(3, 7)]),
        56.4,
    ),
    row(
        &FOUR,
        "four read, one switch from one other",
        Together(&[read(0, 4), read(1, 5), read(2, 6), read(3, 7)]),
        56.4,
    ),
    row(
        &FOUR,
        "a read of 128 B longer in a root complex, ns",
        Longer(read(12, 8), read(9, 8), 128),
        640.0,
    ),
    row(
        &FOUR,
        "a read of 128 B longer across root complexes, ns",
        Longer(read(4, 0), read(1, 0), 128),
        755.0,
    ),
    row(
        &FOUR_BEFORE,
        "two write, one switch to two others",
        Together(&[write(0, 4), write(1, 8)]),
        12.65,
    ),
    row(
        &FOUR_BEFORE,
        "two write, one switch to two others, by the first report",
        Together(&[write(0, 4), write(1, 8)]),
        13.05,
    ),
    row(&FOUR_GEN2, "one writes, across switches", Alone(write(0, 4)), 7.0),
    row(&GROUPS, "one writes, one switch", Alone(write(0, 1)), 56.26),
    row(&GROUPS, "one writes, across switches", Alone(write(0, 4)), 56.26),
    row(&GROUPS, "two write, across switches", Together(&[write(0, 4), write(1, 5)]), 56.4),
    row(
        &GROUPS,
        "four write, across switches",
        Together(&[write(0, 4), write(1, 5), write(2, 6), write(3, 7)]),
        56.41,
    ),
    row(&GROUPS, "both write, across switches", Together(&[write(0, 4), write(4, 0)]), 109.3),
    row(&GROUPS, "A, eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 179.04),
    row(&GROUPS, "B, eight write, each to each", EachToEach(LAST, LAST, Write), 179.1),
    row(&GROUPS, "one from host memory", Alone(down(0)), 55.0),
    row(&GROUPS, "one to host memory", Alone(up(0)), 56.39),
    row(&GROUPS, "A, eight from host memory", Together(DOWN_A), 114.1),
    row(&GROUPS, "B, eight from host memory", Together(DOWN_B), 73.09),
    row(&GROUPS, "A, eight to host memory", Together(UP_A), 112.77),
    row(&GROUPS, "B, eight to host memory", Together(UP_B), 72.89),
    row(
        &GROUPS,
        "A, a write of 4 B longer across switches, ns",
        Longer(write(0, 4), write(0, 1), 4),
        391.8,
    ),
    row(
        &GROUPS,
        "B, a write of 4 B longer across switches, ns",
        Longer(write(8, 12), write(8, 9), 4),
        381.7,
    ),
    row(&VIRTUAL_1, "one writes, one switch", Alone(write(0, 1)), 56.3),
    row(&VIRTUAL_1, "one writes, other half of a chip", Alone(write(0, 4)), 56.3),
    row(&VIRTUAL_1, "one writes, other chip", Alone(write(0, 2)), 56.3),
    row(
        &VIRTUAL_1,
        "two write, other half of a chip",
        Together(&[write(0, 4), write(1, 5)]),
        112.5,
    ),
    row(&VIRTUAL_1, "two write, other chip", Together(&[write(0, 2), write(1, 3)]), 56.4),
    row(
        &VIRTUAL_1,
        "two write, one of them in the chip",
        Together(&[write(0, 2), write(1, 4)]),
        112.5,
    ),
    row(
        &VIRTUAL_1,
        "two write, both to the other chip",
        Together(&[write(0, 2), write(1, 6)]),
        55.3,
    ),
    row(&VIRTUAL_1, "both write, one switch", Together(&[write(0, 1), write(1, 0)]), 109.4),
    row(&VIRTUAL_1, "four write, three switches to one", Together(TO_FIRST), 75.4),
    row(&VIRTUAL_1, "eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 254.2),
    row(&VIRTUAL_2, "eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 225.6),
    row(&VIRTUAL_3, "four write, three switches to one", Together(TO_FIRST), 112.0),
    row(&VIRTUAL_3, "eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 213.1),
    row(&TURIN, "one writes, one switch", Alone(write(0, 1)), 56.3),
    row(&TURIN, "one writes, across switches", Alone(write(0, 4)), 56.3),
    row(&TURIN, "two write, across switches", Together(&[write(0, 4), write(1, 5)]), 56.4),
    row(&TURIN, "four write, each to each in a switch", EachToEach(FIRST, FIRST, Write), 163.6),
    row(&TURIN, "four read, each from each in a switch", EachToEach(FIRST, FIRST, Read), 67.4),
    row(&TURIN, "two write, one switch to two others", Together(&[write(0, 4), write(1, 8)]), 55.2),
    row(&TURIN, "two read, two switches from one", Together(&[read(0, 4), read(1, 8)]), 56.5),
    row(
        &TURIN,
        "four read, one switch from one other",
        Together(&[read(0, 4), read(1, 5), read(2, 6), read(3, 7)]),
        58.5,
    ),
    row(&TURIN, "two switches write to two others", Together(WRITE_2_TO_2), 112.8),
    row(&TURIN, "two switches are read by two others", Together(READ_2_BY_2), 112.8),
    row(&TURIN, "eight write, each to each", EachToEach(EIGHT, EIGHT, Write), 189.25),
    row(&TURIN, "eight read, each from each", EachToEach(EIGHT, EIGHT, Read), 74.3),
    row(&TURIN, "sixteen write, each to each", EachToEach(ALL, ALL, Write), 204.4),
    row(&TURIN, "sixteen read, each from each", EachToEach(ALL, ALL, Read), 64.5),
    row(&PUGET, "from host memory", Alone(down(0)), 26.8),
    row(&PUGET, "to host memory", Alone(up(0)), 26.3),
    row(&PUGET, "one writes", Alone(write(0, 1)), 26.32),
    row(&PUGET, "both write", Together(&[write(0, 1), write(1, 0)]), 52.11),
    row(&PUGET, "eight SSDs from host memory", Together(SSDS_DOWN), 27.69),
    row(&PUGET, "eight SSDs from a GPU", Together(SSDS_READ), 26.92),
    row(&GENOA, "from host memory", Alone(down(0)), 26.8),
    row(&GENOA, "to host memory", Alone(up(0)), 26.3),
    row(&GENOA, "one writes, one socket", Alone(write(0, 1)), 26.325),
    row(&GENOA, "one writes, two sockets", Alone(write(0, 2)), 26.32),
    row(&GENOA, "both write, one socket", Together(&[write(0, 1), write(1, 0)]), 52.105),
    row(&GENOA, "both write, two sockets", Together(&[write(0, 2), write(2, 0)]), 52.11),
    row(&I7, "from host memory", Alone(down(0)), 13.37),
    row(&I7, "to host memory", Alone(up(0)), 14.31),
    row(&I7, "both with host memory", Together(BOTH), 25.926),
    row(&W2123, "from host memory", Alone(down(0)), 13.68),
    row(&W2123, "to host memory", Alone(up(0)), 14.286),
    row(&W2123, "both with host memory", Together(BOTH), 18.14),
    row(&W2123, "one writes", Alone(write(0, 1)), 10.262),
    row(&W2123, "both write", Together(&[write(0, 1), write(1, 0)]), 18.907),
    row(&W2135, "from host memory", Alone(down(0)), 13.76),
    row(&W2135, "to host memory", Alone(up(0)), 14.28),
    row(&W2135, "both with host memory", Together(BOTH), 25.911),
    row(&MILAN, "from host memory", Alone(down(0)), 28.35),
    row(&MILAN, "to host memory", Alone(up(0)), 28.53),
    row(&MILAN, "both with host memory", Together(BOTH), 51.81),
    row(&MILAN, "from host memory of the other socket", Alone(far(down(0))), 25.84),
    row(&MILAN, "to host memory of the other socket", Alone(far(up(0))), 18.15),
    row(
        &MILAN,
        "both with host memory of the other socket",
        Together(&[far(down(0)), far(up(0))]),
        25.44,
    ),
    row(&ROME, "from host memory", Alone(down(0)), 28.41),
    row(&ROME, "to host memory", Alone(up(0)), 29.01),
    row(&ROME, "both with host memory", Together(BOTH), 48.16),
    row(&A10, "from host memory", Alone(down(0)), 25.17),
    row(&A10, "from host memory of the other socket", Alone(far(down(0))), 25.13),
    row(&XEON_8458, "from host memory", Alone(down(0)), 56.35),
    row(&XEON_8458, "to host memory", Alone(up(0)), 57.33),
    row(&XEON_8458, "from host memory beside the way back", Beside(down(0), up(0)), 50.925),
    row(&A100, "from host memory beside the way back", Beside(down(0), up(0)), 11.0),
    row(&A100, "to host memory beside the way back", Beside(up(0), down(0)), 25.0),
    row(&A100_OTHER, "from host memory", Alone(down(0)), 25.5),
    row(&A100_OTHER, "to host memory", Alone(up(0)), 25.5),
    row(&A100_OTHER, "from host memory beside the way back", Beside(down(0), up(0)), 12.5),
    row(&A100_OTHER, "to host memory beside the way back", Beside(up(0), down(0)), 24.0),
    row(&RTX_4090, "from host memory", Alone(down(0)), 26.19),
    row(&RTX_4090, "to host memory", Alone(up(0)), 26.8),
    row(&WRX80, "both write", Together(&[write(0, 1), write(1, 0)]), 50.46),
    row(&NAPLES, "one writes", Alone(write(0, 1)), 7.04),
    row(&NAPLES, "both write", Together(&[write(0, 1), write(1, 0)]), 11.99),
    row(&LAPTOP, "from host memory", Alone(down(0)), 14.186),
    row(&LAPTOP, "to host memory", Alone(up(0)), 14.28),
    row(&LAPTOP, "both with host memory", Together(BOTH), 25.843),
    row(&H800, "from host memory", Alone(down(0)), 55.31),
    row(&H800, "to host memory", Alone(up(0)), 55.14),
    row(&H800, "from host memory beside the way back", Beside(down(0), up(0)), 52.855),
    row(&H800, "to host memory beside the way back", Beside(up(0), down(0)), 34.44),
    row(&XE9780, "from host memory", Alone(down(0)), 55.59),
    row(&XE9780, "to host memory", Alone(up(0)), 57.05),
    row(&XE9780, "from host memory beside the way back", Beside(down(0), up(0)), 51.2),
    row(&XE9780, "to host memory beside the way back", Beside(up(0), down(0)), 48.54),
    row(&B300, "from host memory", Alone(down(0)), 57.8),
    row(&B300, "to host memory", Alone(up(0)), 58.3),
    row(&RTX_5060, "from host memory beside the way back", Beside(down(0), up(0)), 18.02),
    row(&RTX_5060, "to host memory beside the way back", Beside(up(0), down(0)), 26.81),
    row(&GTX_1080, "from host memory", Alone(down(0)), 13.154),
    row(&GTX_1080, "to host memory", Alone(up(0)), 13.197),
    row(&K80, "from host memory", Alone(down(0)), 11.596),
    row(&K80, "to host memory", Alone(up(0)), 11.573),
    row(&S822LC, "from host memory", Alone(down(0)), 7.9515),
    row(&S822LC, "to host memory", Alone(up(0)), 7.9458),
    row(&U50, "from host memory", Alone(down(0)), 12.247),
    row(&U50, "to host memory", Alone(up(0)), 12.494),
    row(&U200, "from host memory", Alone(down(0)), 10.952),
    row(&U200, "to host memory", Alone(up(0)), 12.613),
    row(&U250, "from host memory", Alone(down(0)), 11.544),
    row(&U250, "to host memory", Alone(up(0)), 12.742),
    row(&AGILEX, "to host memory", Alone(up(0)), 26.08),
    row(&AN690, "both with host memory", Together(BOTH), 12.8),
    row(&VCU128, "from host memory", Alone(down(0)), 12.5),
    row(&VCU128, "to host memory", Alone(up(0)), 12.5),
    row(&BROADWELL, "three SSDs to host memory", Together(&[up(1), up(2), up(3)]), 9.45),
    row(
        &BROADWELL,
        "three SSDs to the GPU",
        Together(&[write(1, 0), write(2, 0), write(3, 0)]),
        7.1,
    ),
    row(&BROADWELL, "two SSDs to the GPU", Together(&[write(1, 0), write(2, 0)]), 6.3),
    row(&A30, "a NIC reads the GPU of the other socket", Alone(read(0, 1)), 11.53),
];
