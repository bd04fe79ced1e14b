//! What `bellpush topo` and `bellpush sim` say of what files and captures have: links that ports share, shares, names,
//! classes of a matrix, small rates, hostile names.

use serde_json::Value;

use super::{captured, sim, topo};

/// Two GPUs below one switch with two NICs, `gpu` and `nic` as more of the second GPU and of both NICs.
fn written(dir: &tempfile::TempDir, name: &str, gpu: &str, nic: &str) -> String {
    let file = dir.path().join("t.toml");
    let device = |kind: &str, i: u32, more: &str| {
        format!("[[{kind}]]\nid='{kind}{i}'\nparent='sw0'\n{more}")
    };
    let text = format!(
        "name=\"{name}\"\n[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\n[[switch]]\n\
         id='sw0'\nparent='rc0'\n{}{}{}{}",
        device("gpu", 0, ""),
        device("gpu", 1, gpu),
        device("nic", 0, nic),
        device("nic", 1, nic)
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("{start}: {text}"))
}

/// The rate of both flows together, GB/s.
fn together(file: &str) -> f64 {
    let args = ["--topology", file, "--flows", "gpu0>nic0,gpu1>nic1", "--json", "-"];
    let json: Value = serde_json::from_str(&sim(&args).unwrap()).unwrap();
    json["results"][2]["gb_per_s"].as_f64().unwrap()
}

#[test]
fn ports_of_a_card_share_a_link_in_load_and_flows() {
    let dir = tempfile::tempdir().unwrap();
    let load = |nic: &str| {
        let file = written(&dir, "t", "", nic);
        let text = topo(&[&file, "--no-predict", "--load", "gpu0>nic0,gpu1>nic1"]).unwrap();
        (text, together(&file))
    };
    let (apart, two) = load("");
    assert!(apart.contains("sw0 -> nic1  1.00 GB of 57.6 GB/s, 17.4 ms"), "{apart}");
    let (shared, one) = load("card='c'\n");
    assert!(shared.contains("sw0 -> nic0, nic1  2.00 GB of 57.6 GB/s, 34.7 ms"), "{shared}");
    assert!((one / 57.6 - 1.0).abs() < 0.01 && (two / one - 2.0).abs() < 0.02, "{one} {two}");
}

/// A slower GPU may send less than its link carries: what it leaves, the other has.
#[test]
fn a_share_is_no_bound_and_the_sum_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "t", "gen=3\n", "model='ConnectX-7'\n");
    // Both have one NIC.
    let text = std::fs::read_to_string(&file).unwrap();
    let one = text.split("[[nic]]\nid='nic1'").next().unwrap().to_owned();
    std::fs::write(&file, one).unwrap();
    let text = topo(&[&file, "--no-predict"]).unwrap();
    let row = line(&text, "gpu0 ");
    assert!(row.contains(" ~35.6 ") && !row.contains("<= 35.6"), "{row}");
    let bound = "gpu0, gpu1 get at most 50.0 GB/s together: the wire of nic0's port is full.";
    assert!(text.contains(bound) && !text.contains("GB/s each"), "{text}");
    let json: Value =
        serde_json::from_str(&topo(&[&file, "--no-predict", "--json", "-"]).unwrap()).unwrap();
    let own = &json["summary"]["gpus"][0];
    assert!((own["all_send_gb_per_s"].as_f64().unwrap() - 35.6).abs() < 0.1, "{own}");
    assert_eq!(own["all_send_together"]["gpus"].as_array().unwrap().len(), 2, "{own}");
    assert_eq!(own["all_send_together"]["at_most_gb_per_s"], 50.0, "{own}");
}

#[test]
fn a_matrix_fills_in_classes_that_a_capture_does_not_show() {
    let tree = captured("esc8000a-e12.tree");
    let alone = topo(&["--from", &tree, "--no-predict"]).unwrap();
    assert!(alone.contains("NODE|SYS") && !alone.contains("NODE*"), "{alone}");
    let args = ["--from", &tree, "--nvidia-smi", &captured("esc8000a-e12.smi"), "--no-predict"];
    let both = topo(&args).unwrap();
    for said in ["NODE*", "SYS*", "\n*: by nvidia-smi's matrix; the capture does not show it"] {
        assert!(both.contains(said), "{said}: {both}");
    }
    assert!(!line(&both, "GPU0 ").contains("NODE|SYS"), "{both}");
    // Beside a capture that shows them they are compared, and nothing is the matrix'.
    let details = ["--from", &captured("esc8000a-e12.lspci")];
    assert!(!topo(&[&args[..], &details].concat()).unwrap().contains("NODE*"));
}

/// Two tools' outputs of two machines have no device in common, and what was compared is nothing.
#[test]
fn a_matrix_of_another_machine_is_told_first() {
    let args = |tree: &str| {
        let (tree, matrix) = (captured(tree), captured("esc8000a-e13p.smi"));
        topo(&["--from", &tree, "--nvidia-smi", &matrix, "--no-predict"]).unwrap()
    };
    let said = "\nNo class of nvidia-smi's matrix was compared: ";
    let (other, own) = (args("wrx90.tree"), args("esc8000a-e13p.lspci"));
    let details = other.find("\nDetails:\n").unwrap();
    assert!(other.find(said).is_some_and(|at| at < details), "{other}");
    assert!(!own.contains(said), "{own}");
}

#[test]
fn a_saved_capture_keeps_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("saved.toml");
    let file = file.to_str().unwrap();
    for capture in ["esc8000a-e13p.lspci", "cmlgpu.lspci"] {
        let args = ["--from", &captured(capture), "--no-predict"];
        let first = topo(&args).unwrap();
        topo(&[&args[..], &["--save", file]].concat()).unwrap();
        let again = topo(&[file, "--no-predict"]).unwrap();
        let names = |text: &str| -> Vec<String> {
            let gpus =
                text.lines().filter(|line| line.starts_with("GPU") && line.contains("0000:"));
            gpus.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
        };
        let (first, again) = (names(first.split("Details:").next().unwrap()), names(&again));
        assert!(first[0].starts_with("GPU0 0000:"), "{first:?}");
        assert_eq!(first, again[..first.len()], "{capture}");
    }
}

#[test]
fn small_rates_keep_their_digits() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "t", "", "");
    let text = std::fs::read_to_string(&file).unwrap();
    let slow = "id='rc0'\np2p_write_gb_per_s=0.0031\n";
    let text = text.replace("id='rc0'\n", slow).replace("parent='sw0'", "parent='rc0'");
    std::fs::write(&file, text).unwrap();
    let said = topo(&[&file, "--no-predict", "--load", "gpu0>nic0"]).unwrap();
    assert!(said.contains("rc0 -> nic0  1.00 GB of 0.0031 GB/s"), "{said}");
    let said = sim(&["--topology", &file, "--flows", "gpu0>nic0"]).unwrap();
    assert!(said.contains("gb_per_s 0.0031"), "{said}");
}

/// Controls and marks of direction of a file's names are written out, by all commands that print them.
#[test]
fn names_do_not_turn_the_text_around() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, r"a\u202eb\u001bc", "", "model=\"ConnectX-7\\u2066\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("'gpu0'", "\"gpu0\\u202e\"")).unwrap();
    let page = dir.path().join("p.html");
    let page = page.to_str().unwrap();
    let flow = ["--topology", &file, "--flows", "gpu1>nic0"];
    let said = [
        topo(&[&file, "--no-predict"]).unwrap(),
        topo(&[&file, "--no-predict", "--load", "all-reduce", "--html", page]).unwrap(),
        topo(&[&file, "--no-predict", "--svg", "-"]).unwrap(),
        sim(&flow).unwrap(),
        sim(&["--topology", &file, "--sizes", "8"]).unwrap(),
        std::fs::read_to_string(page).unwrap(),
    ];
    for text in said {
        let is_unfit = |c: char| c != '\n' && bellpush::pcie::text::is_unfit(c);
        assert!(!text.chars().any(is_unfit), "{text:?}");
        assert!(text.contains(r"a\u{202e}b\u{1b}c"), "{text}");
    }
}
