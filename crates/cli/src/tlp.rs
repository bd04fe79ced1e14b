//! `bellpush tlp`: the cost of transfers on one PCIe link, from TLP sizes alone.

use std::path::PathBuf;

use bellpush::pcie::tlp::{Addressing, Config, Gen, LinkSpeed, Mps, Mrrs, Rcb, Tax};
use serde_json::json;

use crate::values;

/// Arguments of `bellpush tlp`.
#[derive(Debug, Clone, clap::Args)]
pub struct TlpArgs {
    /// PCIe generation, 1 to 6
    #[arg(long = "gen", default_value_t = 5)]
    generation: u32,
    /// Link width
    #[arg(long, default_value_t = 16)]
    lanes: u32,
    /// Maximum payload size, bytes
    #[arg(long, default_value_t = 256)]
    mps: u32,
    /// Maximum read request size, bytes
    #[arg(long, default_value_t = 512)]
    mrrs: u32,
    /// Read completion boundary, bytes
    #[arg(long, default_value_t = 64)]
    rcb: u32,
    /// Transfer sizes; KiB, MiB, GiB are understood
    #[arg(long, value_delimiter = ',', default_value = "8,64,256,512,4096", value_parser = values::bytes)]
    sizes: Vec<u64>,
    /// Address of the first byte
    #[arg(long, default_value = "0", value_parser = values::bytes)]
    offset: u64,
    /// Use 32-bit addresses (3-DW request headers)
    #[arg(long)]
    addr32: bool,
    /// Add an end-to-end CRC (ECRC) to TLPs
    #[arg(long)]
    ecrc: bool,
    /// Count data in whole DWs, as the wire does
    #[arg(long)]
    pad: bool,
    /// Write JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What DLLPs take, by the word for it in the output.
const TAXES: [(Tax, &str); 3] =
    [(Tax::None, "none"), (Tax::Dllps, "dllps"), (Tax::PcieBench, "pcie-bench")];

/// Runs the command.
pub fn run(args: &TlpArgs) -> Result<(), Box<dyn std::error::Error>> {
    run_to(args, &mut std::io::stdout().lock())
}

/// Runs the command with `out` as standard output.
pub fn run_to(
    args: &TlpArgs,
    out: &mut dyn std::io::Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        link: LinkSpeed::new(Gen::new(args.generation)?, args.lanes)?,
        mps: Mps::new(args.mps)?,
        mrrs: Mrrs::new(args.mrrs)?,
        rcb: Rcb::new(args.rcb)?,
        addressing: if args.addr32 { Addressing::Bits32 } else { Addressing::Bits64 },
        ecrc: args.ecrc,
        pad_dw: args.pad,
    };
    for &bytes in &args.sizes {
        config.check(args.offset, bytes)?;
    }
    values::check_places(&[("--json", &args.json)])?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&to_json(args, &config))?;
        return Ok(values::put(path, &(text + "\n"), out)?);
    }
    print_table(args, &config, out)?;
    Ok(())
}

fn to_json(args: &TlpArgs, config: &Config) -> serde_json::Value {
    let overhead = config.overhead();
    let mut results = Vec::new();
    for &bytes in &args.sizes {
        for (tax, name) in TAXES {
            let e = config.effective(args.offset, bytes, tax);
            results.push(json!({
                "bytes": bytes,
                "offset_bytes": args.offset,
                "tax": name,
                "write": e.map(|e| e.write),
                "read": e.map(|e| e.read),
                "read_rcb": e.map(|e| e.read_rcb),
                "both": e.map(|e| e.both),
                "unit": "Gb/s",
            }));
        }
    }
    json!({
        "meta": {
            "command": "tlp",
            "gen": args.generation, "lanes": args.lanes,
            "mps_bytes": args.mps, "mrrs_bytes": args.mrrs, "rcb_bytes": args.rcb,
            "raw_gbps": config.link.raw_gbps(),
            "pcie_bench_gbps": config.tlp_gbps(Tax::PcieBench),
            "ack_limit_symbols": config.link.ack_limit_symbols(config.mps),
            "pcie_bench_tax": config.link.pcie_bench_tax(config.mps),
            "mwr_overhead_bytes": overhead.mwr_bytes,
            "mrd_overhead_bytes": overhead.mrd_bytes,
            "cpld_overhead_bytes": overhead.cpld_bytes,
            "source": "model",
        },
        "results": results,
    })
}

fn print_table(
    args: &TlpArgs,
    config: &Config,
    out: &mut dyn std::io::Write,
) -> std::io::Result<()> {
    let link = config.link;
    writeln!(
        out,
        "Gen{} x{}: {:.3} Gb/s for TLPs; MPS {}, MRRS {}, RCB {}",
        args.generation,
        args.lanes,
        link.raw_gbps(),
        args.mps,
        args.mrrs,
        args.rcb
    )?;
    match (link.ack_limit_symbols(config.mps), config.tlp_gbps(Tax::PcieBench)) {
        (Some(limit), Some(gbps)) => writeln!(
            out,
            "dllps: 8 B on the other direction for each TLP, as sim has it\n\
             pcie-bench: Ack and UpdateFC every {limit} symbols of a byte, and SKP: {gbps:.3} Gb/s left"
        )?,
        _ => writeln!(
            out,
            "no DLLPs: no limits published for this link, whose FLITs have room for them"
        )?,
    }
    writeln!(
        out,
        "{:>9} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "bytes", "tax", "write", "read", "read_rcb", "both"
    )?;
    for &bytes in &args.sizes {
        for (tax, name) in TAXES {
            let Some(e) = config.effective(args.offset, bytes, tax) else { continue };
            writeln!(
                out,
                "{bytes:>9} {name:>10} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
                e.write, e.read, e.read_rcb, e.both
            )?;
        }
    }
    Ok(())
}
