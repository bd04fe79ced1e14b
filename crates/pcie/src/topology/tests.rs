use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const GOOD: &str = r#"name = "small"
[[socket]]
id = "s0"
[[root_complex]]
id = "rc0"
socket = "s0"
[[switch]]
id = "sw0"
parent = "rc0"
[[gpu]]
id = "gpu0"
parent = "sw0"
gen = 4
mps = 512
[[nic]]
id = "nic0"
parent = "sw0"
lanes = 8
"#;

fn pair(t: &Topology, gpu: &str, nic: &str) -> Distance {
    t.distance(t.find(gpu).unwrap(), t.find(nic).unwrap())
}

#[test]
fn builtins_have_the_classes_that_nvidia_smi_would_print() {
    let class = |name: &str| pair(&builtin(name).unwrap(), "gpu0", "nic0");
    assert_eq!(class("same-switch"), Distance::Pix);
    assert_eq!(class("same-root-complex"), Distance::Phb);
    assert_eq!(class("two-root-complexes"), Distance::Node);
    assert_eq!(class("two-root-complexes-64b"), Distance::Node);
    assert_eq!(class("two-root-complexes-slow-reads"), Distance::Node);
    assert_eq!(class("two-sockets"), Distance::Sys);
    assert_eq!(class("desktop"), Distance::Phb);
    let dgx = builtin("dgx-h100").unwrap();
    assert_eq!(pair(&dgx, "gpu0", "nic0"), Distance::Pix);
    assert_eq!(pair(&dgx, "gpu0", "nic2"), Distance::Node);
    assert_eq!(pair(&dgx, "gpu0", "nic7"), Distance::Sys);
    let epyc = builtin("epyc-2s").unwrap();
    assert_eq!(pair(&epyc, "gpu0", "nic0"), Distance::Node);
    assert_eq!(pair(&epyc, "gpu3", "nic0"), Distance::Sys);
    assert!(builtin("no such").is_none());
    for name in BUILTIN_NAMES {
        assert_eq!(builtin(name).unwrap().name, name);
    }
}

#[test]
fn a_file_is_read() {
    let t = from_toml(GOOD).unwrap();
    assert_eq!(pair(&t, "gpu0", "nic0"), Distance::Pix);
    let link = t.node(t.find("gpu0").unwrap()).link.unwrap();
    assert_eq!((link.speed.generation().number(), link.mps.bytes()), (4, 512));
    let cascade = GOOD
        .replace("[[gpu]]", "[[switch]]\nid=\"sw1\"\nparent=\"sw0\"\n[[gpu]]")
        .replace("id = \"gpu0\"\nparent = \"sw0\"", "id = \"gpu0\"\nparent = \"sw1\"");
    assert_eq!(pair(&from_toml(&cascade).unwrap(), "gpu0", "nic0"), Distance::Pxb);
    // ACS sends the pair through the root complex.
    let acs = GOOD.replace("id = \"sw0\"", "id = \"sw0\"\nacs = true");
    assert_eq!(pair(&from_toml(&acs).unwrap(), "gpu0", "nic0"), Distance::Phb);
}

fn refused(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    from_toml(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn bad_files_are_refused_with_line_and_reason() {
    assert_eq!(
        refused("lanes = 8", "lanes = 0"),
        "line 18: nic0: 0 lanes: must be 1, 2, 4, 8, 12, 16 or 32"
    );
    assert_eq!(
        refused("mps = 512", "mps = 300"),
        "line 14: gpu0: MPS of 300 B: must be a power of two from 128 to 4096"
    );
    assert_eq!(
        refused("parent = \"rc0\"", "parent = \"rc9\""),
        "line 9: sw0: unknown device \"rc9\""
    );
    assert_eq!(
        refused("parent = \"rc0\"", "parent = \"sw0\""),
        "line 9: sw0: loop: its parents lead back to it through \"sw0\""
    );
    let two =
        refused("parent = \"rc0\"", "parent = \"sw1\"\n[[switch]]\nid=\"sw1\"\nparent=\"sw0\"");
    assert_eq!(two, "line 9: sw0: loop: its parents lead back to it through \"sw1\"");
    assert_eq!(refused("id = \"nic0\"", "id = \"gpu0\""), "line 17: gpu0: this name is taken");
    assert_eq!(
        refused("parent = \"rc0\"", "parent = \"s0\""),
        "line 9: sw0: a switch cannot hang from a socket (s0)"
    );
    assert!(refused("[[nic]]", "[[fpga]]").starts_with("line 15: unknown field `fpga`"));
    assert!(refused("lanes = 8", "lanes = \"eight\"").starts_with("line 18: invalid type"));
    assert!(refused("lanes = 8", "lanes = ").starts_with("line 18: "));
    let apart = refused("[[root_complex]]", "[[socket]]\nid=\"s1\"\n[[root_complex]]");
    assert_eq!(apart, "no interconnect leads from s0 to s1");
    let dead = refused(
        "[[root_complex]]",
        "[[socket]]\nid=\"s1\"\n[[interconnect]]\nfrom=\"s0\"\nto=\"s1\"\ngb_per_s=0.0\n[[root_complex]]",
    );
    assert!(dead.starts_with("line 7: s0-s1: gb_per_s of 0 must be positive"), "{dead}");
}

#[test]
fn drawings_name_every_node_and_escape() {
    let mut t = builtin("dgx-h100").unwrap();
    t.name = "a <b> & c".into();
    let (text, svg) = (to_text(&t), to_svg(&t));
    for (_, node) in t.nodes() {
        assert!(text.contains(&node.id) && svg.contains(&node.id), "{}", node.id);
    }
    assert!(text.contains("PIX") && text.contains("SYS") && text.contains("22 GB/s"));
    assert!(svg.contains("a &lt;b&gt; &amp; c") && svg.trim_end().ends_with("</svg>"));
    assert_eq!(svg.matches("<rect").count(), t.nodes().count() + 1);
}

fn function(root: &Path, path: &str, class: &str, port: u8, numa: i32, redirect: bool) {
    let dir = root.join("devices").join(path);
    fs::create_dir_all(&dir).unwrap();
    let mut config = vec![0u8; 0x200];
    config[0x34] = 0x60;
    config[0x60] = 0x10;
    config[0x62] = port << 4;
    // Device control: MPS 512 (2 in bits 7:5), MRRS 4096 (5 in bits 14:12).
    let control: u16 = 2 << 5 | 5 << 12;
    config[0x68..0x6a].copy_from_slice(&control.to_le_bytes());
    if redirect {
        config[0x100..0x104].copy_from_slice(&0x0001_000du32.to_le_bytes());
        config[0x106] = 0b100;
    }
    fs::write(dir.join("config"), config).unwrap();
    fs::write(dir.join("class"), class).unwrap();
    let vendor = if class.starts_with("0x03") { "0x10de\n" } else { "0x15b3\n" };
    fs::write(dir.join("vendor"), vendor).unwrap();
    fs::write(dir.join("numa_node"), numa.to_string()).unwrap();
    fs::write(dir.join("current_link_speed"), "32.0 GT/s PCIe\n").unwrap();
    fs::write(dir.join("current_link_width"), "16\n").unwrap();
    let devices = root.join("bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    symlink(&dir, devices.join(dir.file_name().unwrap())).unwrap();
}

fn fake_machine(root: &Path, redirect: bool) {
    let up = "pci0000:00/0000:00:01.0/0000:01:00.0";
    function(root, "pci0000:00/0000:00:01.0", "0x060400\n", 4, 0, false);
    function(root, up, "0x060400\n", 5, 0, false);
    function(root, &format!("{up}/0000:02:00.0"), "0x060400\n", 6, 0, redirect);
    function(root, &format!("{up}/0000:02:01.0"), "0x060400\n", 6, 0, redirect);
    function(root, &format!("{up}/0000:02:00.0/0000:03:00.0"), "0x030200\n", 0, 0, false);
    function(root, &format!("{up}/0000:02:01.0/0000:04:00.0"), "0x020700\n", 0, 0, false);
    function(root, "pci0000:80/0000:80:01.0", "0x060400\n", 4, 1, false);
    function(root, "pci0000:80/0000:80:01.0/0000:81:00.0", "0x030200\n", 0, 1, false);
    function(root, "pci0000:00/0000:00:1f.0", "0x060100\n", 9, 0, false);
}

#[test]
fn sysfs_is_read_from_a_fake_tree() {
    let dir = tempfile::tempdir().unwrap();
    fake_machine(dir.path(), false);
    let t = from_sysfs(dir.path(), 22.0).unwrap();
    assert_eq!(t.of_kind(Kind::Switch).len(), 1);
    assert_eq!(t.of_kind(Kind::RootPort).len(), 2);
    assert_eq!(t.of_kind(Kind::Socket).len(), 2);
    assert_eq!(pair(&t, "0000:03:00.0", "0000:04:00.0"), Distance::Pix);
    assert_eq!(pair(&t, "0000:81:00.0", "0000:04:00.0"), Distance::Sys);
    let link = t.node(t.find("0000:03:00.0").unwrap()).link.unwrap();
    assert_eq!((link.mps.bytes(), link.mrrs.bytes()), (512, 4096));
    assert_eq!((link.speed.generation().number(), link.speed.lanes()), (5, 16));
}

#[test]
fn sysfs_acs_and_missing_tree() {
    let dir = tempfile::tempdir().unwrap();
    fake_machine(dir.path(), true);
    let t = from_sysfs(dir.path(), 22.0).unwrap();
    assert_eq!(pair(&t, "0000:03:00.0", "0000:04:00.0"), Distance::Phb);
    let missing = from_sysfs(&dir.path().join("nowhere"), 22.0).unwrap_err().to_string();
    assert!(missing.contains("bus/pci/devices"), "{missing}");
}
