use super::*;
use proptest::prelude::*;

fn lens(pieces: impl Iterator<Item = Piece>) -> Vec<u32> {
    pieces.map(|p| p.bytes).collect()
}

#[test]
fn pcie_bench_table_to_three_decimals() {
    // Published by pcie-bench/pcie-model for Gen3 x8, MPS 256, MRRS 512.
    let table = [
        (1, 2.315, 2.412, 1.181),
        (8, 14.471, 16.539, 8.269),
        (64, 42.098, 44.103, 33.077),
        (128, 48.745, 50.063, 42.098),
        (256, 52.923, 53.690, 48.745),
        (512, 52.923, 53.690, 50.748),
        (2048, 52.923, 53.690, 50.748),
    ];
    let config = Config::pcie_bench();
    assert_eq!(config.link.ack_limit_symbols(config.mps), Some(203));
    assert!((config.tlp_gbps(Tax::None).unwrap() - 63.015).abs() < 5e-4);
    assert!((config.tlp_gbps(Tax::PcieBench).unwrap() - 57.885).abs() < 5e-4);
    for (bytes, write, read, both) in table {
        let e = config.effective(0, bytes, Tax::PcieBench).unwrap();
        for (got, want) in [(e.write, write), (e.read, read), (e.both, both)] {
            assert!((got - want).abs() <= 5.0001e-4, "{bytes} B: {got} against {want}");
        }
    }
}

#[test]
fn ack_limits_match_the_specification_tables() {
    let rows = [
        (Gen::G1, 1, 128, 237),
        (Gen::G1, 8, 256, 107),
        (Gen::G1, 16, 512, 86),
        (Gen::G1, 32, 1024, 84),
        (Gen::G2, 4, 4096, 1101),
        (Gen::G2, 16, 256, 123),
        (Gen::G3, 12, 128, 154),
        (Gen::G3, 16, 256, 168),
        (Gen::G5, 16, 512, 182),
    ];
    for (generation, lanes, mps, want) in rows {
        let link = LinkSpeed::new(generation, lanes).unwrap();
        assert_eq!(link.ack_limit_symbols(Mps(mps)), Some(want), "{generation:?} x{lanes} {mps}");
    }
    assert_eq!(LinkSpeed::new(Gen::G6, 16).unwrap().pcie_bench_tax(Mps(256)), None);
}

/// As in the simulation: 8 B on the other direction for each TLP, whatever the width.
#[test]
fn each_tlp_is_answered_by_one_dllp() {
    for lanes in [1, 4, 16] {
        let link = LinkSpeed::new(Gen::G5, lanes).unwrap();
        let config = Config { link, ..Config::pcie_bench() };
        let share = |bytes, of: fn(Effective) -> f64| {
            let [bare, taxed] =
                [Tax::None, Tax::Dllps].map(|tax| of(config.effective(0, bytes, tax).unwrap()));
            taxed / bare
        };
        // Writes alone are answered on the direction that they leave free.
        assert_eq!(share(4096, |e| e.write), 1.0);
        // Two completions of 276 B for each request; one DLLP beside them.
        let read = 552.0 / 560.0;
        assert!((share(512, |e| e.read) - read).abs() < 1e-9, "{lanes}");
        // Down, 552 B of completions, and DLLPs for two writes and the request.
        let down = 552.0 + 3.0 * 8.0;
        // Up, two writes, the request, and DLLPs for two completions.
        let up = 560.0 + 24.0 + 2.0 * 8.0;
        let both = 584.0 / f64::max(up, down);
        assert!((share(512, |e| e.both) - both).abs() < 1e-9, "{lanes}");
    }
    let flits = Config { link: LinkSpeed::new(Gen::G6, 16).unwrap(), ..Config::pcie_bench() };
    assert_eq!(flits.effective(0, 64, Tax::Dllps), flits.effective(0, 64, Tax::None));
}

#[test]
fn the_two_92_percent_examples() {
    // A 512 B read answered by two 256 B completions, and a 256 B write with a 5-DW overhead.
    let config = Config { addressing: Addressing::Bits32, ..Config::pcie_bench() };
    let read = config.read_wire(0, 512, false);
    assert_eq!(read.down, 512 + 2 * 20);
    assert_eq!((512.0 / read.down as f64 * 100.0_f64).floor(), 92.0);
    let write = config.write_wire(0, 256);
    assert_eq!(write.up, 256 + 20);
    assert_eq!((256.0 / write.up as f64 * 100.0_f64).floor(), 92.0);
}

#[test]
fn read_completion_boundary_example() {
    let rcb = Rcb(128);
    assert_eq!(lens(split_completion_rcb(0x60, 200, rcb)), [32, 128, 40]);
    assert_eq!(lens(split_completion_rcb(0x10, 200, rcb)), [112, 88]);
    // Merging up to MPS 128 gives the same; MPS 256 needs two, or one.
    assert_eq!(lens(split_completion_mps(0x60, 200, Mps(128), rcb)), [32, 128, 40]);
    assert_eq!(lens(split_completion_mps(0x60, 200, Mps(256), rcb)), [200]);
}

#[test]
fn small_peer_writes_cost_six_fifths() {
    // A root complex that turns P2P traffic into 64 B TLPs, in completions' overhead of 20 B.
    let ratio: f64 = (84.0 / 64.0) / (276.0 / 256.0);
    assert!((ratio - 1.217).abs() < 5e-4);
    let config = Config { addressing: Addressing::Bits32, ..Config::pcie_bench() };
    let whole = config.write_wire(0, 1 << 20).up;
    let cut: u64 = (0..(1 << 20) / 64).map(|i| config.write_wire(i * 64, 64).up).sum();
    assert!((cut as f64 / whole as f64 - ratio).abs() < 1e-12);
}

#[test]
fn headers() {
    let b64 = Overhead::new(Gen::G3, Addressing::Bits64, false);
    assert_eq!((b64.mwr_bytes, b64.mrd_bytes, b64.cpld_bytes), (24, 24, 20));
    let b32 = Overhead::new(Gen::G5, Addressing::Bits32, true);
    assert_eq!((b32.mwr_bytes, b32.mrd_bytes, b32.cpld_bytes), (24, 24, 24));
    // FLIT mode frames the FLIT, not the TLP.
    let flit = Overhead::new(Gen::G6, Addressing::Bits64, false);
    assert_eq!((flit.mwr_bytes, flit.mrd_bytes, flit.cpld_bytes), (16, 16, 12));
    let x16 = LinkSpeed::new(Gen::G6, 16).unwrap().raw_gbps();
    assert!((x16 - 64.0 * 16.0 * 236.0 / 256.0).abs() < 1e-9);
    // 250 and 500 MB/s a lane, as the specification's first two generations say.
    for (generation, gbps) in [(Gen::G1, 2.0), (Gen::G2, 4.0)] {
        assert!((LinkSpeed::new(generation, 1).unwrap().raw_gbps() - gbps).abs() < 1e-9);
    }
}

#[test]
fn offsets_and_padding_cost_tlps() {
    let config = Config::pcie_bench();
    // 256 B at 0xff0 crosses a 4 KiB boundary: two TLPs each way.
    assert_eq!(config.write_wire(0xff0, 256).tlps, 2);
    assert_eq!(lens(split_read(0xff0, 256, config.mrrs)), [16, 240]);
    let padded = Config { pad_dw: true, ..config };
    assert_eq!(padded.write_wire(3, 2).up, 24 + 8);
    assert_eq!(padded.write_wire(0, 1).up, 24 + 4);
}

#[test]
fn impossible_configurations_are_refused() {
    assert_eq!(Mps::new(64), Err(TlpError::Mps(64)));
    assert_eq!(Mps::new(384), Err(TlpError::Mps(384)));
    assert_eq!(Mrrs::new(8192), Err(TlpError::Mrrs(8192)));
    assert_eq!(Rcb::new(256), Err(TlpError::Rcb(256)));
    assert_eq!(Gen::new(7), Err(TlpError::Gen(7)));
    assert_eq!(LinkSpeed::new(Gen::G4, 0), Err(TlpError::Lanes(0)));
    let config = Config::pcie_bench();
    assert!(config.effective(0, 0, Tax::PcieBench).is_none());
    assert_eq!(config.check(0, 0), Err(TlpError::Empty));
    assert!(config.check((1 << 60) - 64, 64).is_ok());
    for (offset, bytes) in [((1 << 60) - 64, 65), (u64::MAX, 1), (1, u64::MAX)] {
        let why = "so that 64 bits count the bytes on the wire";
        let range = TlpError::Range { offset, bytes, end: 1 << 60, why };
        assert_eq!(config.check(offset, bytes), Err(range));
    }
    let narrow = Config { addressing: Addressing::Bits32, ..config };
    assert!(narrow.check(1 << 31, 1 << 31).is_ok());
    assert!(narrow.check(1 << 32, 1).is_err());
}

#[test]
fn a_size_costs_no_time() {
    // A TiB, page by page, is what its pages are.
    let config = Config::pcie_bench();
    let page = config.read_wire(0, PAGE_BYTES, true);
    let all = config.read_wire(0, 1 << 40, true);
    assert_eq!((all.up, all.down), (page.up << 28, page.down << 28));
    let most = config.write_wire(3, (1 << 60) - 3);
    assert!(most.up > 1 << 60 && most.tlps >= 1 << 52);
}

/// What a transfer costs, found by walking over its bytes: knows no formula for splits.
struct Walk {
    config: Config,
    wire: WireBytes,
    /// The TLP that bytes go into: length so far, and its last DW.
    open: Option<(u64, u64)>,
}

impl Walk {
    fn new(config: Config) -> Self {
        Self { config, wire: WireBytes::default(), open: None }
    }

    /// One byte of data in direction `up`; `cut` begins a TLP. Returns the TLP's length.
    fn byte(&mut self, at: u64, cut: bool, up: bool, overhead_bytes: u32) -> u64 {
        let (length, dw) = if cut { None } else { self.open }.unwrap_or((0, u64::MAX));
        let header = if length == 0 { u64::from(overhead_bytes) } else { 0 };
        self.wire.tlps += u64::from(length == 0);
        self.wire.tlps_down += u64::from(length == 0 && !up);
        let data = match (self.config.pad_dw, at / 4 == dw) {
            (false, _) => 1,
            (true, true) => 0,
            (true, false) => 4,
        };
        *(if up { &mut self.wire.up } else { &mut self.wire.down }) += header + data;
        self.open = Some((length + 1, at / 4));
        length + 1
    }

    fn write(mut self, addr: u64, bytes: u64) -> WireBytes {
        let (mps, overhead) = (u64::from(self.config.mps.bytes()), self.config.overhead());
        let mut length = mps;
        for at in addr..addr + bytes {
            let cut = length == mps || at % PAGE_BYTES == 0;
            length = self.byte(at, cut, true, overhead.mwr_bytes);
        }
        self.wire
    }

    fn read(mut self, addr: u64, bytes: u64, cut_at_rcb: bool) -> WireBytes {
        let Config { mps, mrrs, rcb, .. } = self.config;
        let (mps, mrrs, rcb) =
            (u64::from(mps.bytes()), u64::from(mrrs.bytes()), u64::from(rcb.bytes()));
        let overhead = self.config.overhead();
        let (mut asked, mut length) = (mrrs, 0);
        let end = addr + bytes;
        // Where the request that holds `at` ends.
        let mut request_end = addr;
        for at in addr..end {
            let request = asked == mrrs || at % PAGE_BYTES == 0;
            if request {
                self.wire.up += u64::from(overhead.mrd_bytes);
                self.wire.tlps += 1;
                asked = 0;
                request_end = (at + mrrs).min(at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES).min(end);
            }
            asked += 1;
            // A joined completion takes the next RCB's worth whole or not at all.
            let next = (at / rcb * rcb + rcb).min(request_end) - at;
            let cut = request || at % rcb == 0 && (cut_at_rcb || length + next > mps);
            length = self.byte(at, cut, false, overhead.cpld_bytes);
        }
        self.wire
    }
}

proptest! {
    /// Every way of splitting against a walk over the bytes, at any address.
    #[test]
    fn wire_bytes_are_what_a_walk_over_the_bytes_counts(
        addr in 0u64..1 << 20,
        bytes in 1u64..20_000,
        (mps, mrrs, rcb) in (7u32..=12, 7u32..=12, 6u32..=7),
        generation in 1u32..=6,
        (wide, ecrc, pad_dw, cut_at_rcb) in any::<(bool, bool, bool, bool)>(),
    ) {
        let config = Config {
            link: LinkSpeed::new(Gen::new(generation).unwrap(), 16).unwrap(),
            mps: Mps(1 << mps),
            mrrs: Mrrs(1 << mrrs),
            rcb: Rcb(1 << rcb),
            addressing: if wide { Addressing::Bits64 } else { Addressing::Bits32 },
            ecrc,
            pad_dw,
        };
        prop_assert_eq!(config.write_wire(addr, bytes), Walk::new(config).write(addr, bytes));
        let walked = Walk::new(config).read(addr, bytes, cut_at_rcb);
        prop_assert_eq!(config.read_wire(addr, bytes, cut_at_rcb), walked);
    }

    #[test]
    fn splits_are_legal_and_conserve_bytes(
        addr in 0u64..1 << 40,
        bytes in 1u64..20_000,
        mps in 7u32..=12,
        rcb in 6u32..=7,
    ) {
        let (mps, mrrs, rcb) = (Mps(1 << mps), Mrrs(1 << mps), Rcb(1 << rcb));
        let check = |pieces: Vec<Piece>, limit: u32, boundary: u64| {
            let mut at = addr;
            for p in &pieces {
                prop_assert_eq!(p.addr, at);
                prop_assert!(p.bytes > 0 && p.bytes <= limit);
                let last = p.addr + u64::from(p.bytes) - 1;
                prop_assert_eq!(p.addr / PAGE_BYTES, last / PAGE_BYTES);
                at += u64::from(p.bytes);
                prop_assert!(at == addr + bytes || at % boundary == 0);
            }
            prop_assert_eq!(at, addr + bytes);
            Ok(())
        };
        check(split_write(addr, bytes, mps).collect(), mps.bytes(), 1)?;
        check(split_read(addr, bytes, mrrs).collect(), mrrs.bytes(), 1)?;
        let boundary = u64::from(rcb.bytes());
        check(split_completion_mps(addr, bytes, mps, rcb).collect(), mps.bytes(), boundary)?;
        let cut: Vec<Piece> = split_completion_rcb(addr, bytes, rcb).collect();
        check(cut.clone(), rcb.bytes(), boundary)?;
        prop_assert!(split_completion_mps(addr, bytes, mps, rcb).count() <= cut.len());
    }

    #[test]
    fn bandwidth_stays_below_the_link(bytes in 1u64..1 << 20, offset in 0u64..4096) {
        let config = Config::pcie_bench();
        let raw = config.effective(offset, bytes, Tax::None).unwrap();
        let taxed = config.effective(offset, bytes, Tax::PcieBench).unwrap();
        prop_assert!(raw.write < config.link.raw_gbps() && raw.read < config.link.raw_gbps());
        prop_assert!(taxed.write < raw.write && taxed.both <= taxed.write);
        prop_assert!(raw.read_rcb <= raw.read);
    }
}
