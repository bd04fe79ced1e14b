//! What `bellpush topo` says first, on captures of real machines.

use serde_json::Value;

use super::{captured, topo};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&topo(&[args, &["--json", "-"]].concat()).unwrap()).unwrap()
}

/// What stands before the details.
fn summary(text: &str) -> &str {
    text.split_once("\nDetails:\n").unwrap_or_else(|| panic!("no summary: {text}")).0
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("{start}: {text}"))
}

/// Eight GPUs, an X710 without RDMA, and a card of two ports that is not mlx5.
#[test]
fn a_summary_comes_first_and_says_what_is_not_known() {
    let file = captured("esc8000a-e13p.lspci");
    let text = topo(&["--from", &file]).unwrap();
    let first = summary(&text);
    assert!(first.lines().count() < 40, "{first}");
    assert!(line(first, &file).ends_with("8 GPUs, 4 NICs, 2 with RDMA."), "{first}");
    let of = |gpu: u32| line(first, &format!("GPU{gpu} 0000:"));
    for gpu in 0..8 {
        let class = ["SYS", "NODE", "PIX"][(gpu / 4 + gpu / 6) as usize];
        let nic = if gpu % 2 == 0 {
            "NIC2 0000:f3:00.0 port 1 of 2 (or NIC3)"
        } else {
            "NIC3 0000:f3:00.1 port 2 of 2 (or NIC2)"
        };
        let row = of(gpu);
        assert!(row.contains(&format!("{nic}  {class} ")), "{row}");
        // No kernel posts to it: neither its paths nor its rate are a ConnectX-7's.
        assert_eq!(row.matches("pull or staged ?").count(), 3, "{row}");
        assert!(!row.contains("push") && row.contains(" <= 5.00 "), "{row}");
    }
    assert!(of(0).ends_with("GPU2, GPU4, GPU6"), "{first}");
    for said in [
        "NIC0, NIC1: Intel Corporation Ethernet Controller X710 for 10GBASE-T. No RDMA: not for",
        "NIC2, NIC3: Emulex Corporation OneConnect NIC (Skyhawk). RDMA (ocrdma); port 5.00 GB/s (40 Gb/s",
        "Not mlx5: kernels cannot post to it",
        "times below are of a ConnectX-7 in its place.",
        "PCIe Gen3 x8 7.20 GB/s, shared by 2 ports",
        "If all GPUs send at once, GPU0 to GPU7 get at most 7.20 GB/s together: the PCIe link that NIC2, NIC3 share is full.",
        "  Root complexes: pci0000:00, pci0000:70, pci0000:80, pci0000:f0.\n",
    ] {
        assert!(first.contains(said), "{said}: {first}");
    }
    // Another NIC's numbers are unknown as its own, in the details and in the JSON.
    let row =
        text.lines().find(|l| l.contains("0000:f4:00.0 0000:f3:00.0  PIX        8 B")).unwrap();
    assert!(row.contains("u [") && !row.contains("a ["), "{row}");
}

/// What may happen to writes between GPUs, where it was seen, which GPUs it is about, what to do.
#[test]
fn a_collapse_is_told_to_who_has_not_heard_of_it() {
    let text = topo(&["--from", &captured("esc8000a-e13p.lspci"), "--no-predict"]).unwrap();
    assert!(summary(&text).contains("\"posted-write collapse\" below"), "{text}");
    for said in [
        "  What happens: while 2 or more GPUs below one switch write to GPUs behind 2 or more other root\n",
        "all these writes together get 2.7 GB/s.",
        "  Where it was seen: EPYC 9005 (Turin) with PEX890xx switches (on GitHub: local-inference-lab/",
        "    GPU0, GPU1 of switch 0000:01:00.0 (PEX890xx) to 0000:70:01.1 (GPU2, GPU3), 0000:80:01.1 (",
        "Of reads in place of\n  these writes nobody has measured anything.",
        // GPU0 and GPU2 are of one chip, whose writes its own page measured as free of it.
        "  Unless both switches are of one chip, which may carry such writes inside, where they lose\n  nothing.",
        "  What to do: let the GPUs of one switch write behind one root port at a time: with FILE of\n",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json = json(&["--from", &captured("esc8000a-e13p.lspci"), "--no-predict"]);
    let fan = &json["capture"]["writes_to_several_roots"][0];
    assert_eq!(
        (&fan["seen"]["gb_per_s"], fan["senders"].as_array().unwrap().len()),
        (&2.7.into(), 2)
    );
    // Nobody reported it of a machine like this.
    let other = topo(&["dgx-h100", "--no-predict"]).unwrap();
    for said in [
        "may lose most",
        "on this platform is unknown",
        "  Threadripper PRO 7955WX with four PM50100, four GPUs each: 11.6 to 13.5 GB/s from two senders",
        "  EPYC 9575F with four PM50100, four GPUs each: no loss.\n",
        "measure two such writes",
    ] {
        assert!(other.contains(said), "{said}: {other}");
    }
    assert!(!topo(&["two-sockets", "--no-predict"]).unwrap().contains("collapse"));
}

/// The table of docs/pcie.md is what the command prints, with what is unknown.
#[test]
fn the_answers_of_the_page_are_what_is_printed() {
    let page = include_str!("../../../docs/pcie.md");
    for (tree, row) in [
        ("same-switch", "| one switch (`same-switch`, `dgx-h100`) |"),
        ("same-root-complex", "| one root complex |"),
        ("two-root-complexes", "| two root complexes (`epyc-2s` among them) |"),
        ("two-root-complexes-slow-reads", "| two root complexes of few peer reads |"),
        ("two-sockets", "| two sockets |"),
        ("desktop", "| client CPU without peer reads (`desktop`) |"),
    ] {
        let text = topo(&[tree, "--nic", "cx7"]).unwrap();
        let cells = line(page, row).split('|').map(str::trim).skip(2).take(4);
        let printed = line(summary(&text), "gpu0 ").split("  ").map(str::trim);
        let printed = printed.filter(|cell| !cell.is_empty()).skip(3).take(3);
        // The rate is a line of the details: `tie A, B  A 48.12u [34.12, 49.62]  B …`.
        let rate = |line: &&str| line.starts_with("  gpu0 ") && line.contains(" GB/s  ");
        let rate = text.lines().find(rate).unwrap().split_once(" GB/s  ").unwrap().1;
        let (best, figures) = rate.split_once("  ").unwrap();
        let mark = if figures.split_once(" [").unwrap().0.ends_with('u') { " ?" } else { "" };
        let best = best.trim_start_matches("use ").trim_start_matches("tie ");
        let best = best.replace(", ", " or ") + mark;
        let printed: Vec<&str> = printed.chain([best.as_str()]).collect();
        assert_eq!(cells.collect::<Vec<_>>(), printed, "{tree}");
    }
}

/// Numbers of ways over root complexes of which nobody says anything are unknown, whatever the class;
/// where the CPU is known, or no root complex is crossed, they are not.
#[test]
fn unknown_is_what_a_root_complex_decides_and_nobody_knows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    let of = |cpu: &str, gpu: &str, nic: &str| {
        let text = format!(
            "[[socket]]\nid='s'\ncpu='{cpu}'\n[[root_complex]]\nid='a'\nsocket='s'\n\
             [[root_complex]]\nid='b'\nsocket='s'\n[[switch]]\nid='sw'\nparent='b'\n[[gpu]]\nid='g'\n\
             parent='{gpu}'\n[[nic]]\nid='n'\nparent='{nic}'\nmodel='ConnectX-7'\n"
        );
        std::fs::write(&file, text).unwrap();
        topo(&[file.to_str().unwrap()]).unwrap()
    };
    for (cpu, gpu, nic, class, is_unknown) in [
        ("", "a", "b", "NODE", true),
        ("", "b", "b", "PHB", true),
        ("AMD Ryzen Threadripper PRO 7955WX", "a", "b", "NODE", false),
        ("", "sw", "sw", "PIX", false),
    ] {
        let text = of(cpu, gpu, nic);
        let row = line(summary(&text), "g ");
        assert!(row.contains(class), "{row}");
        assert_eq!(row.contains(" ?"), is_unknown, "{class} {cpu}: {row}");
        let rows = text.lines().filter(|l| l.contains(&format!(" n {class:>4} ")));
        let marked: Vec<bool> = rows.map(|row| row.contains("u [")).collect();
        assert_eq!(marked, [is_unknown; 4], "{text}");
        assert_eq!(text.contains("  Root complexes: a, b.\n"), gpu == "a" && is_unknown, "{text}");
    }
    // Turin's root complexes forward reads, at a rate that nobody has reported.
    let turin = of("AMD EPYC 9575F", "a", "b");
    let rows = turin.lines().filter(|l| l.contains(" n NODE "));
    let marked: Vec<bool> = rows.map(|row| row.contains("u [")).collect();
    assert_eq!(marked, [false, false, true, true], "{turin}");
    let said = "?: unknown. Root complexes on the way forward reads and writes between devices, and not all";
    assert!(turin.contains(said) && turin.contains("  Root complexes: a, b.\n"), "{turin}");
    assert!(!turin.contains("Where they refuse") && !turin.contains("Nobody reports"), "{turin}");
    // A root complex in between is what counts: with ACS the switch sends all there.
    of("", "sw", "sw");
    let text = std::fs::read_to_string(&file).unwrap().replace("id='sw'\n", "id='sw'\nacs=true\n");
    std::fs::write(&file, text).unwrap();
    let acs = topo(&[file.to_str().unwrap()]).unwrap();
    assert!(line(summary(&acs), "g ").contains(" ?"), "{acs}");
}

/// What each GPU gets where several have a port, and where a NIC's name tells no rate.
#[test]
fn shares_and_rates_are_those_of_the_nics() {
    let (tree, details) = (captured("esc8000a-e12.tree"), captured("esc8000a-e12.lspci"));
    let text =
        topo(&["--from", &tree, "--from", &details, "--nvidia-smi", &captured("esc8000a-e12.smi")]);
    let text = text.unwrap();
    let first = summary(&text);
    assert!(first.contains("ConnectX-7. RDMA (mlx5); port 25.0 GB/s (200 Gb/s"), "{first}");
    let args = ["--nvidia-smi", &captured("quda-669.smi")];
    let matrix = topo(&args).unwrap();
    let row = line(summary(&matrix), "GPU4 ");
    assert!(row.contains("mlx5_0") && row.contains("PHB") && row.contains("unknown"), "{row}");
    assert!(row.ends_with("GPU0 to GPU3, GPU5 to GPU7"), "{row}");
    assert!(matrix.contains("Add --from FILE: the whole `lspci -vvv` of that machine"), "{matrix}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.toml");
    let file = file.to_str().unwrap();
    let gpu = |i: u32| format!("[[gpu]]\nid='g{i}'\nparent='sw'\n");
    let of = |nic: &str| {
        let text = format!(
            "[[socket]]\nid='s'\n[[root_complex]]\nid='r'\nsocket='s'\n[[switch]]\nid='sw'\n\
             parent='r'\n{}{}[[nic]]\nid='n'\nparent='sw'\n{nic}",
            gpu(0),
            gpu(1)
        );
        std::fs::write(file, text).unwrap();
        (topo(&[file]).unwrap(), json(&[file]))
    };
    let (text, data) = of("model='ConnectX-4 Lx'\n");
    let row = line(summary(&text), "g0 ");
    assert!(row.contains("~3.1") && row.ends_with("g1"), "{row}");
    assert!(
        text.contains("g0, g1 get at most 6.25 GB/s together: the wire of n's port is full"),
        "{text}"
    );
    let own = &data["summary"]["gpus"][0];
    assert!((own["all_send_gb_per_s"].as_f64().unwrap() - 3.125).abs() < 1e-9, "{own}");
    assert!(
        own["alone"]["gb_per_s"].as_f64().unwrap() < 6.25 && own["port_shared_with"][0] == "g1"
    );
    // A name that tells nothing: no rate but the link's.
    let (text, data) = of("model='a NIC'\ngen=3\nlanes=8\n");
    assert!(line(summary(&text), "g0 ").contains("unknown, <= 7.20"), "{text}");
    assert!(
        text.contains("unknown rate: that of the NIC's port is not known, at most 7.2 by"),
        "{text}"
    );
    let own = &data["summary"]["gpus"][0];
    assert!(
        own["alone"].is_null() && own["alone_at_most_gb_per_s"].as_f64().unwrap() < 7.3,
        "{own}"
    );
}

/// A CPU that is named makes known what is known of it.
#[test]
fn a_named_cpu_is_asked() {
    let file = captured("esc8000a-e12.lspci");
    let tree = captured("esc8000a-e12.tree");
    let of = |more: &[&str]| topo(&[&["--from", &file, "--from", &tree], more].concat());
    let unnamed = of(&[]).unwrap();
    assert!(unnamed.contains("add --cpu NAME"), "{unnamed}");
    let turin = "AMD EPYC 9575F 64-Core Processor";
    let known = of(&["--cpu", turin]).unwrap();
    let unknown = of(&["--cpu", "Another CPU\n"]).unwrap();
    let marks = |text: &str| line(summary(text), "GPU0 ").matches('?').count();
    assert!(marks(&known) < marks(&unnamed), "{known}");
    assert_eq!(marks(&unknown), marks(&unnamed), "{unknown}");
    assert!(unknown.contains("That is so of Another CPU"), "{unknown}");
    assert!(!unknown.contains("add --cpu NAME") && !known.contains("add --cpu NAME"), "{known}");
    let saved = of(&["--cpu", turin, "--save", "-"]).unwrap();
    assert!(saved.contains(&format!("cpu = \"{turin}\"")), "{saved}");
}

/// A NIC's link counts as it is trained, a GPU's with its lanes and not its speed, which it lowers while idle; a card
/// with two ports has half of a ConnectX-7's rate on each.
#[test]
fn links_count_as_trained() {
    let file = captured("esc8000a-e12.lspci");
    let whole = std::fs::read_to_string(&file).unwrap();
    let device = "21:00.0";
    let at = whole.find(&format!("\n{device}")).expect("a ConnectX-7");
    let (before, own) = whole.split_at(at);
    let status = own.find("LnkSta:").unwrap();
    let end = status + own[status..].find('\n').unwrap();
    let narrow = format!("{before}{}LnkSta: Speed 16GT/s, Width x4{}", &own[..status], &own[end..]);
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("narrow.lspci");
    std::fs::write(&changed, narrow).unwrap();
    let nic = |file: &str| {
        // The tree has the card's second port.
        let data = json(&["--from", file, "--from", &captured("esc8000a-e12.tree")]);
        let all = data["summary"]["nics"].as_array().unwrap().clone();
        all.into_iter().find(|n| n["nic"].as_str().unwrap().ends_with(device)).unwrap()
    };
    let (fast, slow) = (nic(&file), nic(changed.to_str().unwrap()));
    assert_eq!(fast["port_gb_per_s"], 25.0, "{fast}");
    let link = |n: &serde_json::Value| n["link_gb_per_s"].as_f64().unwrap();
    assert!(link(&fast) > 50.0 && link(&slow) < 8.0, "{fast} {slow}");
}

/// A way that cannot be computed hides nothing of the others'.
#[test]
fn one_unknown_way_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.toml");
    let file = file.to_str().unwrap();
    let ends = |i: u32| {
        let link = "gen=5\nlanes=16\n";
        format!(
            "[[gpu]]\nid='gpu{i}'\nparent='sw'\n{link}[[nic]]\nid='nic{i}'\nparent='rc0'\n{link}model='ConnectX-7'\n"
        )
    };
    let forwards = "p2p_reads=true\np2p_writes=true\n";
    let of = |forwards_too: &str, link: &str| {
        let text = format!(
            "name='m'\n[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\n{forwards}\
             [[switch]]\nid='sw'\nparent='rc0'\ngen=4\nlanes=4\n{}{}\
             [[root_complex]]\nid='rc1'\nsocket='s0'\n{forwards_too}\
             [[gpu]]\nid='gpuX'\nparent='rc1'\n{link}[[nic]]\nid='nicX'\nparent='rc1'\ngen=5\nlanes=16\n\
             model='ConnectX-7'\n",
            ends(0),
            ends(1)
        );
        std::fs::write(file, text).unwrap();
        topo(&[file]).unwrap()
    };
    for (forwards, link) in [
        (forwards, "link='unknown'\n"),
        ("p2p_reads=false\np2p_writes=false\n", "gen=5\nlanes=16\n"),
    ] {
        let text = of(forwards, link);
        for gpu in ["gpu0 ", "gpu1 "] {
            assert!(line(summary(&text), gpu).contains("~3.60"), "{text}");
        }
        assert!(text.contains("If all GPUs send at once, gpu0, gpu1 get at most 7.20"), "{text}");
        let row = line(summary(&text), "gpuX ");
        assert!(row.contains("unknown") && !row.contains("the same"), "{row}");
    }
}

/// Neither a name that says nothing nor a later generation's is a family; functions of a card on two links share none.
#[test]
fn nics_are_what_their_names_say() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.toml");
    let file = file.to_str().unwrap();
    let of = |nics: &str| {
        let switch = |i: u32| format!("[[switch]]\nid='sw{i}'\nparent='rc0'\ngen=5\nlanes=16\n");
        let gpu = |i: u32| format!("[[gpu]]\nid='gpu{i}'\nparent='sw{i}'\ngen=5\nlanes=16\n");
        let text = format!(
            "name='m'\n[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\np2p_reads=true\n\
             p2p_writes=true\n{}{}{}{}{nics}",
            switch(0),
            switch(1),
            gpu(0),
            gpu(1)
        );
        std::fs::write(file, text).unwrap();
        topo(&[file]).unwrap()
    };
    let nic = |i: u32, more: &str| {
        format!("[[nic]]\nid='nic{i}'\nparent='sw{i}'\ngen=3\nlanes=8\n{more}")
    };
    for name in ["Foo", "BlueField-4 integrated ConnectX-9 network controller"] {
        let text = of(&nic(0, &format!("model='{name}'\n")));
        assert_eq!(line(summary(&text), "gpu0 ").matches('?').count(), 3, "{text}");
        assert!(text.contains("port's rate unknown"), "{text}");
    }
    let ports = "model='ConnectX-7'\ncard='c'\n";
    let text = of(&(nic(0, ports) + &nic(1, ports)));
    assert!(!text.contains("shared by 2 ports") && !text.contains("port 1 of 2"), "{text}");
    assert!(text.contains("port 50.0 GB/s"), "{text}");
    // No advice is given for paths that a NIC has not.
    let data = {
        of(&nic(0, "model='Ethernet Controller E810-C'\n"));
        json(&[file])
    };
    let all = data["results"].as_array().unwrap();
    let advice = all.iter().flat_map(|pair| pair["advice"].as_array().unwrap());
    assert!(
        advice.clone().count() > 0 && advice.clone().all(|row| row["path"].is_null()),
        "{data}"
    );
}

/// Every capture has a line for each GPU, the class of which is the JSON's, in words of the field.
#[test]
fn every_capture_has_a_line_for_each_gpu() {
    let folder = captured("");
    let names = std::fs::read_dir(&folder).unwrap();
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut seen = 0;
    for name in names.filter(|n| n.ends_with(".smi") || n.ends_with(".lspci")) {
        let file = format!("{folder}{name}");
        let from = if name.ends_with(".smi") { "--nvidia-smi" } else { "--from" };
        let args = [from, file.as_str(), "--no-predict"];
        let text = topo(&args).unwrap();
        let data = json(&args);
        let gpus = data["summary"]["gpus"].as_array().unwrap();
        for (i, own) in gpus.iter().enumerate() {
            let Some(nic) = own["nic"].as_str() else { continue };
            let row = line(summary(&text), &format!("GPU{i} "));
            assert!(row.contains(nic), "{name}: {row}");
            let class = own["class"].as_str().unwrap();
            let is_there = row.contains(&format!("  {class} ")) || class == "?";
            assert!(is_there, "{name}: {class}: {row}");
            let all = data["results"].as_array().unwrap();
            let pair =
                all.iter().find(|r| r["gpu"] == own["gpu"] && r["nic"] == own["nic"]).unwrap();
            assert_eq!(
                (&pair["class"], &pair["assigned"]),
                (&own["class"], &true.into()),
                "{name}"
            );
            seen += 1;
        }
        for word in [" call", " pass", " kept", "harness", "brief"] {
            assert!(!text.contains(word), "{name}: {word}: {text}");
        }
    }
    assert!(seen > 40, "{seen}");
    // No NIC with RDMA: none is recommended.
    let none = topo(&["--from", &captured("cmlgpu.lspci")]).unwrap();
    assert!(
        none.contains("No NIC with RDMA was found") && none.contains("; no RDMA: for TCP alone"),
        "{none}"
    );
    let data = json(&["--from", &captured("cmlgpu.lspci")]);
    assert!(data["results"].as_array().unwrap().iter().all(|r| r["assigned"] == false), "{data}");
}
