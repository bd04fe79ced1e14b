use super::*;
use crate::Origin;
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
    let mut deep = String::from("parent = \"w0\"");
    for level in 0..300 {
        let above = if level == 299 { "rc0".into() } else { format!("w{}", level + 1) };
        deep += &format!("\n[[switch]]\nid=\"w{level}\"\nparent=\"{above}\"");
    }
    assert_eq!(refused("parent = \"rc0\"", &deep), "line 9: sw0: below more than 256 others");
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
    assert!(dead.starts_with("line 7: s0-s1: gb_per_s of 0 must be from 0.001"), "{dead}");
}

/// Slower than any link by orders is refused, and not simulated for more picoseconds than are counted.
#[test]
fn rates_of_a_file_are_those_of_links() {
    for (from, to, at) in [
        ("id = \"s0\"", "id = \"s0\"\nmemory_write_gb_per_s = 1e-9", "s0: memory_write_gb_per_s"),
        (
            "[[root_complex]]",
            "[[socket]]\nid=\"s1\"\n[[interconnect]]\nfrom=\"s0\"\nto=\"s1\"\ngb_per_s=1e-9\n[[root_complex]]",
            "s0-s1: gb_per_s",
        ),
        (
            "[[root_complex]]",
            "[[socket]]\nid=\"s1\"\n[[interconnect]]\nfrom=\"s0\"\nto=\"s1\"\ngb_per_s=1e7\n[[root_complex]]",
            "s0-s1: gb_per_s",
        ),
    ] {
        let error = refused(from, to);
        let said = format!(": {at} of ");
        assert!(error.starts_with("line ") && error.contains(&said), "{error}");
        assert!(error.ends_with("must be from 0.001 to 1000000 GB/s"), "{error}");
    }
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

/// The values of attributes of each element of an SVG that begins so.
fn values<const N: usize>(svg: &str, element: &str, names: [&str; N]) -> Vec<[f64; N]> {
    let value = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!(" {name}=\"")).unwrap();
        rest.split_once('"').unwrap().0.parse().unwrap()
    };
    svg.split(element).skip(1).map(|text| names.map(|name| value(text, name))).collect()
}

#[test]
fn a_drawings_boxes_stand_apart_and_its_lines_join_them() {
    for name in BUILTIN_NAMES {
        let t = builtin(name).unwrap();
        let svg = to_svg(&t);
        let [width, height] = values(&svg, "<svg", ["width", "height"])[0];
        let svg = svg.replace("<rect width=\"100%\"", "");
        let boxes = values(&svg, "<rect", ["x", "y"]);
        assert_eq!(boxes.len(), t.nodes().count());
        for (i, &[x, y]) in boxes.iter().enumerate() {
            let inside = x >= 16.0 && x + 180.0 <= width && y >= 30.0 && y + 40.0 <= height;
            assert!(inside, "{name}: {x} {y} of {width} {height}");
            let apart = |&[a, b]: &[f64; 2]| (a - x).abs() >= 216.0 || (b - y).abs() >= 50.0;
            assert!(boxes[i + 1..].iter().all(apart), "{name}: box {i}");
        }
        let lowest = boxes.iter().map(|&[_, y]| y).fold(0.0, f64::max);
        assert_eq!(height, lowest + 56.0, "{name}");
        let (bows, links): (Vec<_>, Vec<_>) =
            svg.split("<path d=\"M").skip(1).partition(|way| way.contains("class=\"between\""));
        let hang = t.nodes().filter_map(|(id, node)| Some((id.0, node.parent?.0)));
        for (way, (here, above)) in links.iter().zip(hang) {
            let ([x, y], [above_x, above_y]) = (boxes[here], boxes[above]);
            let [from, y, above_y] = [above_x + 180.0, y + 20.0, above_y + 20.0];
            assert!(
                way.starts_with(&format!("{from} {above_y}H{}V{y}H{x}\"", from + 14.0)),
                "{way}"
            );
            assert_eq!(x - above_x, 216.0);
        }
        assert_eq!(bows.len(), t.interconnects().len(), "{name}");
        for (bow, link) in bows.iter().zip(t.interconnects()) {
            let ([x, a], [_, b]) = (boxes[link.a.0], boxes[link.b.0]);
            assert!(bow.starts_with(&format!("{x} {}C", a + 20.0)), "{name}: {bow}");
            assert!(bow.contains(&format!(" {x} {}\" class", b + 20.0)), "{name}: {bow}");
            let label: f64 = values(bow, "<text", ["x"])[0][0];
            assert!(label > 16.0 && label < x - 60.0, "{name}: {label} left of {x}");
        }
        for &[x, _] in &boxes {
            let middle = format!("<text x=\"{}\"", x + 90.0);
            assert!(svg.matches(&middle).count() >= 2, "{name}: two lines in the middle of {x}");
        }
    }
    let one = "name = \"one\"\n[[socket]]\nid = \"s0\"\n[[root_complex]]\nid = \"rc0\"\nsocket = \"s0\"\n";
    let svg = to_svg(&from_toml(one).unwrap());
    assert_eq!(values(&svg, "<svg", ["width", "height"]), [[428.0, 92.0]]);
}

/// Boxes that texts of an SVG lie in, about: left, top, right, bottom.
fn labels(svg: &str) -> Vec<[f64; 4]> {
    let of = |text: &str| {
        let (attributes, rest) = text.split_once('>').unwrap();
        let chars = rest.split_once("</text>").unwrap().0.chars().count() as f64;
        let value = |name: &str| -> f64 {
            let (_, rest) = attributes.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let ([x, y], wide) = (["x", "y"].map(value), 6.0 * chars);
        let left = if attributes.contains("\"end\"") { x - wide } else { x };
        (!attributes.contains("middle") && chars > 0.0).then_some([
            left,
            y - 8.0,
            left + wide,
            y + 2.0,
        ])
    };
    svg.split("<text").skip(1).filter_map(of).collect()
}

/// Sockets that are all joined, and links of which each has a load beside it.
#[test]
fn a_drawings_labels_cross_no_line_and_no_label() {
    let mut many = String::from("name = \"many\"\n");
    for i in 0..6 {
        many += &format!(
            "[[socket]]\nid = \"s{i}\"\n[[root_complex]]\nid = \"rc{i}\"\nsocket = \"s{i}\"\n"
        );
        for n in 0..i {
            many += &format!(
                "[[interconnect]]\nfrom = \"s{n}\"\nto = \"s{i}\"\ngb_per_s = {}.0\n",
                10 + i
            );
        }
        for n in 0..=i {
            many +=
                &format!("[[gpu]]\nid = \"gpu{i}{n}\"\nparent = \"rc{i}\"\ngen = 5\nlanes = 16\n");
        }
    }
    for (t, load) in [
        (from_toml(&many).unwrap(), false),
        (from_toml(&many).unwrap(), true),
        (builtin("dgx-h100").unwrap(), true),
    ] {
        let work = "all-to-all".parse::<Workload>().unwrap();
        let loads = if load { loads(&t, &work).unwrap() } else { Vec::new() };
        let svg = to_svg_loaded(&t, &loads);
        let labels = labels(&svg);
        assert!(labels.len() > t.interconnects().len());
        for (i, a) in labels.iter().enumerate() {
            let apart = |b: &[f64; 4]| a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
            assert!(labels[i + 1..].iter().all(apart), "{}: label {i} of {labels:?}", t.name);
            for way in svg.split("<path d=\"M").skip(1) {
                let numbers: Vec<f64> = way
                    .split_once('"')
                    .unwrap()
                    .0
                    .split(|c: char| !c.is_ascii_digit() && c != '.' && c != '-')
                    .filter_map(|n| n.parse().ok())
                    .collect();
                // Straight ones, in three pieces; and bows, as far as their control points.
                let pieces = match numbers[..] {
                    [x1, y1, x2, y2, x3] => {
                        vec![[x1, y1, x2, y1], [x2, y1, x2, y2], [x2, y2, x3, y2]]
                    }
                    [x, y1, bow, .., y2] if t.interconnects().len() > 1 => vec![[bow, y1, x, y2]],
                    _ => continue,
                };
                for [x1, y1, x2, y2] in pieces {
                    let (top, bottom) = (y1.min(y2), y1.max(y2));
                    let apart = a[2] <= x1 || x2 <= a[0] || a[3] <= top || bottom <= a[1];
                    assert!(apart, "{}: label {i}, {a:?}, and {way}", t.name);
                }
            }
        }
    }
}

#[test]
fn a_drawings_boxes_hold_their_text() {
    let model = "NVIDIA H100 80GB HBM3 of a long name";
    let file = GOOD.replacen("id = \"nic0\"", &format!("id = \"nic0\"\nmodel = \"{model}\""), 1);
    let svg = to_svg(&from_toml(&file).unwrap());
    assert!(svg.contains(&format!("{model}</title>")), "{svg}");
    let shown = svg.split("<text").filter_map(|t| t.split_once('>')?.1.split("</text>").next());
    assert!(shown.skip(1).all(|text| text.chars().count() <= 27), "{svg}");
}

#[test]
fn a_text_drawing_is_this() {
    let mut t = from_toml(&GOOD.replace("id = \"sw0\"", "id = \"sw0\"\nacs = true")).unwrap();
    t = t.map_p2p(|p2p| (p2p.reads, p2p.read_slots) = (Some(false), Some(4)));
    let text = to_text(&t);
    let want = "small\n\
                socket s0\n\
                └─ root complex rc0  no peer reads  4 peer reads at once\n   \
                └─ switch sw0  Gen5 x16 (assumed) MPS 256 (assumed)  ACS\n      \
                ├─ GPU gpu0  Gen4 x16 (assumed) MPS 512 MRRS 512 (assumed)\n      \
                └─ NIC nic0  Gen5 x8 (assumed) MPS 256 (assumed) MRRS 512 (assumed)\n\
                Numbers without a mark were read.\n\n                    \
                nic0\ngpu0                 PHB\n\n\
                PHB  gpu0 > sw0 > rc0 > sw0 > nic0  (by the tree PIX)\n\
                ACS in the port above gpu0 redirects to the root complex.\n\
                rc0 refuses peer reads.\n\
                peer traffic through root complexes unknown, taken as allowed: rc0 writes.\n";
    assert_eq!(text, want);
    // Without a NIC there are no distances.
    let alone = to_text(&from_toml(&GOOD[..GOOD.find("[[nic]]").unwrap()]).unwrap());
    assert!(alone.ends_with("were read.\n") && !alone.contains("PIX"), "{alone}");
}

#[test]
fn an_epyc_has_one_nic_for_each_socket() {
    let t = builtin("epyc-2s").unwrap();
    let under = |id: &str| {
        let node = t.find(id).unwrap();
        t.node(t.node(node).parent.unwrap()).id.clone()
    };
    assert_eq!((t.of_kind(Kind::Gpu).len(), t.of_kind(Kind::Nic).len()), (4, 2));
    assert_eq!(["gpu0", "gpu1", "gpu2", "gpu3"].map(under), ["rc0", "rc1", "rc4", "rc5"]);
    assert_eq!(["nic0", "nic1"].map(under), ["rc2", "rc6"]);
}

#[test]
fn peers_of_a_root_complex_are_as_its_entry_says() {
    let t = from_toml(GOOD).unwrap();
    let p2p = t.node(t.find("rc0").unwrap()).p2p;
    assert!(p2p.reads.is_none() && p2p.tlp_bytes.is_none() && p2p.read_slots.is_none());
    for (bytes, is_fine) in [(0, false), (16, false), (32, true), (48, false), (64, true)] {
        let file =
            GOOD.replace("\"s0\"\n[[switch", &format!("\"s0\"\np2p_tlp_bytes={bytes}\n[[switch"));
        let read = from_toml(&file).map(|t| t.node(t.find("rc0").unwrap()).p2p.tlp_bytes);
        assert_eq!(read.ok(), is_fine.then_some(Some(bytes)), "{bytes}");
    }
}

/// Of GPUs, a power of two; a name tells it where the file does not.
#[test]
fn packets_of_a_gpu_are_as_its_entry_or_its_name_says() {
    let with = |more: &str| {
        let text = "[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\n[[gpu]]\nid='g'\n\
                    parent='rc0'\n";
        from_toml(&format!("{text}{more}")).map(|t| t.packets_of(t.find("g").unwrap()))
    };
    let (read, told) = (|n| Some((n, Origin::Read)), Some((128, Origin::Assumed)));
    for (more, packets) in [
        ("", None),
        ("packet_bytes=64\n", read(64)),
        ("model='A100'\n", told),
        ("model='H100'\n", None),
        ("model='A100'\npacket_bytes=256\n", read(256)),
    ] {
        assert_eq!(with(more), Ok(packets), "{more}");
    }
    for bytes in [0, 16, 48, 8192] {
        let error = with(&format!("packet_bytes={bytes}\n")).unwrap_err().to_string();
        let said =
            format!("line 9: g: packet_bytes of {bytes} must be a power of two from 32 to 4096");
        assert_eq!(error, said);
    }
    let nic = with("[[nic]]\nid='n'\nparent='rc0'\npacket_bytes=64\n").unwrap_err().to_string();
    assert!(nic.contains("n: a NIC moves packets of MPS"), "{nic}");
}

#[test]
fn paths_between_sockets_are_the_shortest() {
    let mut b = Builder::new("six");
    for i in 0..6 {
        b.add(&format!("s{i}"), Kind::Socket, None, None, None);
        b.add(&format!("rc{i}"), Kind::RootComplex, Some(&format!("s{i}")), None, None);
        b.add(&format!("gpu{i}"), Kind::Gpu, Some(&format!("rc{i}")), None, None);
    }
    // A ring of five, one of its links the other way round, and a sixth behind the third.
    for (from, to) in [(0, 1), (1, 2), (3, 2), (3, 4), (4, 0), (2, 5)] {
        b.interconnect(&format!("s{from}"), &format!("s{to}"), 8.0, None);
    }
    let t = b.finish().unwrap();
    let names = |path: Vec<NodeId>| -> Vec<String> {
        path.into_iter().map(|id| t.node(id).id.clone()).collect()
    };
    let find = |id: &str| t.find(id).unwrap();
    let sockets = |a: &str, b: &str| names(t.socket_path(find(a), find(b)));
    assert_eq!(sockets("s0", "s2"), ["s0", "s1", "s2"]);
    assert_eq!(sockets("s0", "s3"), ["s0", "s4", "s3"]);
    assert_eq!(sockets("s5", "s0"), ["s5", "s2", "s1", "s0"]);
    assert_eq!(sockets("s4", "s4"), ["s4"]);
    let path = names(t.path(find("gpu5"), find("gpu1")));
    assert_eq!(path, ["gpu5", "rc5", "s5", "s2", "s1", "rc1", "gpu1"]);
    assert_eq!(t.socket_of(find("gpu3")), Some(find("s3")));
    assert_eq!(t.socket_of(find("s3")), Some(find("s3")));
    let faster = t.scale_interconnects(3.0);
    assert!(faster.interconnects().iter().all(|link| link.gb_per_s == 24.0));
}

#[test]
fn an_interconnect_joins_two_sockets() {
    let other = "[[socket]]\nid=\"s1\"\n[[interconnect]]\nfrom=\"FROM\"\nto=\"TO\"\ngb_per_s=1.0\n[[root_complex]]";
    let join = |from: &str, to: &str| {
        let file = other.replace("FROM", from).replace("TO", to);
        from_toml(&GOOD.replacen("[[root_complex]]", &file, 1)).map(|t| t.interconnects().len())
    };
    assert_eq!(join("s0", "s1").unwrap(), 1);
    for (from, to) in [("s0", "s0"), ("s0", "gpu0"), ("rc0", "s1"), ("gpu0", "nic0")] {
        let error = join(from, to).unwrap_err().to_string();
        assert!(error.ends_with("it joins two sockets"), "{error}");
    }
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
    // Nothing that is wanted lies here.
    function(root, "pci0000:c0/0000:c0:1f.0", "0x060100\n", 9, 2, false);
}

#[test]
fn sysfs_is_read_from_a_fake_tree() {
    let dir = tempfile::tempdir().unwrap();
    fake_machine(dir.path(), false);
    let t = from_sysfs(dir.path(), Some(22.0)).unwrap();
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
    let t = from_sysfs(dir.path(), Some(22.0)).unwrap();
    assert_eq!(pair(&t, "0000:03:00.0", "0000:04:00.0"), Distance::Phb);
    let missing = from_sysfs(&dir.path().join("nowhere"), None).unwrap_err().to_string();
    assert!(missing.contains("bus/pci/devices"), "{missing}");
}

/// What comes in by a port that does not redirect is turned inside the switch, whatever its other ports do.
#[test]
fn acs_of_a_capture_is_each_ports_own() {
    let dir = tempfile::tempdir().unwrap();
    fake_machine(dir.path(), false);
    let third = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0";
    function(dir.path(), third, "0x060400\n", 6, 0, true);
    function(dir.path(), &format!("{third}/0000:05:00.0"), "0x030200\n", 0, 0, false);
    let capture = capture_sysfs(dir.path()).unwrap();
    let tree = Tree::new(&capture);
    let t = tree.topology("t", Some(22.0)).unwrap();
    let find = |id: &str| t.find(id).unwrap();
    let (spared, nic, redirected) =
        (find("0000:03:00.0"), find("0000:04:00.0"), find("0000:05:00.0"));
    assert_eq!(t.route(spared, nic).redirect, None);
    assert_eq!(t.route(nic, spared).redirect, None);
    assert_eq!(t.route(nic, redirected).redirect, None);
    assert_eq!(t.route(redirected, nic).redirect, Some(Redirect::Port(redirected)));
    let text = survey_text(&tree, None);
    assert!(text.contains("3 downstream ports, ACS redirects at 1 of 3 ports\n"), "{text}");
}

/// Names are the file's: of a terminal they move nothing.
#[test]
fn drawings_have_no_control_characters_of_names() {
    let named = |text: &str| text.replace("gpu0", "gpu\\u001b[2J").replace("nic0", "nic\\u0007");
    let text = to_text(&from_toml(&named(GOOD)).unwrap());
    assert!(text.contains("gpu\\u{1b}[2J") && text.contains("nic\\u{7}"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}
