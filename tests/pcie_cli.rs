//! The command modules of the PCIe model, called without the command line around them.
#![cfg(feature = "cli")]
#![allow(missing_docs)]

use clap::Parser;

#[path = "../src/bin/bellpush/tlp.rs"]
#[allow(dead_code)]
mod tlp;

#[derive(Parser)]
struct Tlp {
    #[command(flatten)]
    args: tlp::TlpArgs,
}

fn tlp(args: &[&str]) -> Result<String, String> {
    let parsed = Tlp::try_parse_from([&["tlp"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    tlp::run_to(&parsed.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

const GEN3: [&str; 10] =
    ["--gen", "3", "--lanes", "8", "--mps", "256", "--mrrs", "512", "--rcb", "64"];

#[test]
fn tlp_json_holds_the_published_numbers() {
    let text = tlp(&[&GEN3[..], &["--sizes", "64,512", "--json", "-"]].concat()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["bytes"] == 64 && r["dllp_tax"] == true)
        .unwrap();
    assert!((row["write"].as_f64().unwrap() - 42.098).abs() < 5.1e-4);
    assert!((row["both"].as_f64().unwrap() - 33.077).abs() < 5.1e-4);
}

#[test]
fn tlp_says_when_no_tax_is_known_and_refuses_the_impossible() {
    assert!(tlp(&["--gen", "6"]).unwrap().contains("no limits published"));
    assert!(tlp(&["--mps", "100"]).unwrap_err().contains("MPS of 100 B"));
    assert!(tlp(&["--lanes", "0"]).unwrap_err().contains("0 lanes"));
}
