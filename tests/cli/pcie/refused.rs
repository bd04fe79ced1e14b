//! Numbers that have no part in what is asked, and texts that are no topology.

use super::{sim, topo};

/// A `--set` that moves nothing of the advice is refused: who reads it there takes the numbers for
/// those of that value.
#[test]
fn topo_refuses_a_set_without_a_part() {
    for (name, set) in [
        ("same-switch", "chip_ns=50"),
        ("two-root-complexes", "socket_hop_ns=90"),
        ("two-root-complexes", "switch_ns=90"),
        ("same-switch", "iotlb_walk_ns=90"),
        ("same-switch", "nvlink_ns=90"),
        // A card has no in-band slots.
        ("same-switch", "inband_data_bytes=48"),
    ] {
        let error = topo(&[name, "--set", set]).unwrap_err();
        let parameter = set.split('=').next().unwrap();
        let said = format!("--set {parameter}: no part in the advice on {name} ({parameter}: ");
        assert!(error.contains(&said) && error.lines().count() == 1, "{error}");
    }
    for (name, more) in [
        ("two-sockets", &["--set", "socket_hop_ns=90"][..]),
        ("same-switch", &["--set", "switch_ns=90", "--set", "wire_ns=700"]),
        ("same-switch", &["--nic", "software", "--set", "inband_data_bytes=48"]),
    ] {
        assert!(topo(&[&[name], more].concat()).is_ok(), "{name} {more:?}");
    }
}

/// A number of the topology that changes nothing of the operations is refused as a parameter is.
#[test]
fn sim_refuses_a_what_without_a_part() {
    for (name, what) in [
        ("same-root-complex", "socket_gb_per_s=10|100"),
        ("same-switch", "socket_gb_per_s=10"),
        ("same-switch", "p2p_read_slots=8"),
        ("same-switch", "tags=64,p2p_cap_gb_per_s=5"),
        ("same-root-complex", "acs=on|off"),
    ] {
        let args = ["--topology", name, "--path", "pull", "--sizes", "8", "--what", what];
        let error = sim(&args).unwrap_err();
        let number = what.rsplit(',').next().unwrap().split('=').next().unwrap();
        let said = format!("--what {number}: no part in these operations ({number}: ");
        assert!(error.contains(&said) && error.lines().count() == 1, "{error}");
    }
    for (names, what) in [
        ("two-sockets", "socket_gb_per_s=10"),
        // In one of two, and under one combination only.
        ("same-switch,two-sockets", "socket_gb_per_s=10"),
        ("same-switch", "acs=on,p2p_read_slots=8"),
        ("same-switch", "acs=off"),
    ] {
        let args = ["--topology", names, "--path", "pull", "--sizes", "8", "--what", what];
        assert!(sim(&args).is_ok(), "{names} {what}");
    }
}

/// A number of the topology that has no part in rates that are computed is refused, one that has is taken.
#[test]
fn sim_refuses_a_set_that_computed_flows_do_not_have() {
    let flows = vec!["gpu0>gpu4"; 65].join(",");
    let of = |set: &str| sim(&["--topology", "dgx-h100", "--flows", &flows, "--set", set]);
    for (set, name) in
        [("ro=on", "ro"), ("p2p_read_slots=8", "p2p_read_slots"), ("link_ns=9", "link_ns")]
    {
        let error = of(set).unwrap_err();
        let said = format!("--set {name}: no part in these flows ({name}: ");
        assert!(error.contains(&said) && error.lines().count() == 1, "{error}");
    }
    let capped = of("p2p_cap_gb_per_s=9").unwrap();
    assert!(capped.contains("9.000") && capped.contains("by arithmetic"), "{capped}");
}

/// What would run for hours is refused before it begins.
#[test]
fn sim_refuses_more_than_it_can_simulate() {
    let many = ["--in-flight", "1024", "--sizes", "16MiB", "--path", "pull"];
    let error = sim(&[&["--topology", "same-switch"], &many[..]].concat()).unwrap_err();
    let too_many = |error: &str| {
        error.contains(" TLP transmissions to simulate: at most 4e8") && error.lines().count() == 1
    };
    assert!(too_many(&error), "{error}");
    // The work is the TLPs', not the bytes'.
    for args in [
        &["--sizes", "15MiB", "--in-flight", "1000", "--path", "push/kernel"][..],
        &["--sizes", "16MiB", "--path", "push/inband", "--set", "store_tlp_bytes=4"],
    ] {
        let error = sim(&[&["--topology", "same-switch"], args].concat()).unwrap_err();
        assert!(too_many(&error), "{args:?}: {error}");
    }
    // Of 64 Ki chunks and more a program cannot be made.
    for mode in ["--losses", "--sensitivity", "--what=wire_ns=9"] {
        let error = sim(&["--topology", "same-switch", "--sizes", "1GiB", mode]).unwrap_err();
        let want = "--sizes: 1GiB: sizes go from 1 B to at most 16 MiB, TLP by TLP";
        assert_eq!(error, want, "{mode}");
    }
}

/// The line under the table says where the queues are modelled: where the NIC cannot read the GPU's
/// memory they are in host memory.
#[test]
fn the_layout_is_that_of_the_topology() {
    let (gpu, host) = ("record in GPU memory behind one fence", "record in host memory behind one");
    let one = |name: &'static str| ["--topology", name, "--path", "push/kernel", "--sizes", "8"];
    for more in [&[][..], &["--what", "wire_ns=700"]] {
        let text = |name| sim(&[&one(name), more].concat()).unwrap();
        let (free, closed) = (text("same-switch"), text("desktop"));
        assert!(free.contains(gpu) && !free.contains(host), "{free}");
        assert!(closed.contains(host) && !closed.contains(gpu), "{closed}");
    }
    // Under a combination of values both may be.
    let what = [&one("same-root-complex")[..], &["--what", "p2p_reads=on|off"]].concat();
    let both = sim(&what).unwrap();
    assert!(both.contains(host) && both.contains(gpu), "{both}");
}

/// What a file gets wrong is said in the file's words, not in those of Rust's types.
#[test]
fn errors_of_files_have_no_types() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    for (text, said) in [
        ("gpu = [1]", "expected the table of a switch, GPU or NIC"),
        ("socket = [3]", "expected the table of a socket"),
        ("root_complex = [true]", "expected the table of a root complex"),
        ("slot = [[]]", "expected the table of a slot"),
        ("[gpu]\nid = \"g\"", "a table in double brackets is expected here"),
        ("measured = 3", "expected a table"),
        ("gpu = [{ id = \"g\", parent = \"x\", gen = -1 }]", "expected a whole number from 0"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = topo(&[file.to_str().unwrap()]).unwrap_err();
        assert!(error.contains("line 1: ") && error.contains(said), "{text}: {error}");
        for theirs in ["struct", "Entry", "sequence", "u32", "f64"] {
            assert!(!error.contains(theirs), "{text}: {error}");
        }
    }
}

/// What has no end is not read to it.
#[test]
fn files_without_end_are_refused() {
    for args in [&["--from", "/dev/zero"][..], &["--nvidia-smi", "/dev/zero"], &["/dev/zero"]] {
        let refused = topo(args).unwrap_err();
        assert!(refused.contains("/dev/zero: not a regular file; `-` reads"), "{refused}");
    }
    // A named pipe that nobody writes.
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = topo(&["--from", pipe.to_str().unwrap()]).unwrap_err();
    assert!(refused.contains("a pipe that nobody writes; `-` reads standard input"), "{refused}");
}
