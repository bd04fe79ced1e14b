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
    assert!((config.tlp_gbps(false).unwrap() - 63.015).abs() < 5e-4);
    assert!((config.tlp_gbps(true).unwrap() - 57.885).abs() < 5e-4);
    for (bytes, write, read, both) in table {
        let e = config.effective(0, bytes, true).unwrap();
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
    assert_eq!(LinkSpeed::new(Gen::G6, 16).unwrap().dllp_tax(Mps(256)), None);
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
    assert!(Config::pcie_bench().effective(0, 0, true).is_none());
}

proptest! {
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
        let raw = config.effective(offset, bytes, false).unwrap();
        let taxed = config.effective(offset, bytes, true).unwrap();
        prop_assert!(raw.write < config.link.raw_gbps() && raw.read < config.link.raw_gbps());
        prop_assert!(taxed.write < raw.write && taxed.both <= taxed.write);
        prop_assert!(raw.read_rcb <= raw.read);
    }
}
