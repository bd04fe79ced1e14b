use super::*;
use crate::sim::{PathModel, TestBedSpec, predict};
use crate::topology::{Knob, Topology, builtin, from_toml, two_ports};

const MACHINE: &str = include_str!("../../machines/esc8000a-e13p.toml");

fn with(changes: &[(&str, &str)]) -> Topology {
    let text = changes.iter().fold(MACHINE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    from_toml(&text).unwrap()
}

/// Chips whose switches reach each other through the root complexes alone.
const APART: (&str, &str) = ("crosses = true", "crosses = false");

/// Without what the machine's own file says of the other socket.
const NO_FAR: (&str, &str) = ("p2p_far_write_gb_per_s = 47.3\n", "");

fn acs() -> Topology {
    let acs = |p: &'static str, to: &'static str| (p, to);
    with(&[
        acs("parent = \"rp0\"\n", "parent = \"rp0\"\nacs = true\n"),
        acs("parent = \"rp1\"\n", "parent = \"rp1\"\nacs = true\n"),
        acs("parent = \"rp2\"\n", "parent = \"rp2\"\nacs = true\n"),
        acs("parent = \"rp3\"\n", "parent = \"rp3\"\nacs = true\n"),
    ])
}

/// Total of writes along all the pairs, GB/s.
fn total(t: &Topology, pairs: &[(&str, &str)]) -> f64 {
    let id = |name: &str| t.find(name).unwrap();
    let flows: Vec<Flow> = pairs.iter().map(|(a, b)| Flow::write(id(a), id(b))).collect();
    simulate_flows(t, &Params::default(), &flows).unwrap().iter().sum()
}

const BOTH_WAYS: [(&str, &str); 2] = [("gpu0", "gpu1"), ("gpu1", "gpu0")];

#[test]
fn acs_halves_what_goes_both_ways_under_one_switch() {
    let (free, redirected) = (total(&with(&[]), &BOTH_WAYS), total(&acs(), &BOTH_WAYS));
    // Gen5 x16 carries 63.0 GB/s; 256 B of 280, and 8 B of DLLP for each TLP the other way.
    let link = 63.015 * 256.0 / 288.0;
    assert!((free / (2.0 * link) - 1.0).abs() < 0.02, "{free}");
    // One uplink carries both directions, up and down.
    assert!((redirected / link - 1.0).abs() < 0.02, "{redirected}");
}

/// As docs/pcie.md has it: what a GPU answers is joined where it waits, what a NIC answers is not.
#[test]
fn lines_of_a_gpu_join_where_they_wait_and_those_of_a_nic_do_not() {
    let page = include_str!("../../../../docs/pcie.md");
    let rate = |at: &str, mps, mrrs| {
        let t = builtin("dgx-h100").unwrap();
        let t = t.with(Knob::Mps, mps).and_then(|t| t.with(Knob::Mrrs, mrrs)).unwrap_or(t);
        let [by, at] = ["gpu0", at].map(|id| t.find(id).unwrap());
        let flow = Flow { from: at, to: by, by: Move::Read };
        simulate_flows(&t, &Params::default(), &[flow]).unwrap()[0]
    };
    for (at, mps, mrrs, said) in [
        ("gpu1", 256.0, 512.0, "have 55.6 GB/s here (`gpu0<gpu1`"),
        ("nic0", 256.0, 512.0, "between the 53.8 of 128 B throughout"),
        ("gpu1", 128.0, 512.0, "between the 53.8 of 128 B throughout"),
        ("gpu1", 256.0, 4096.0, "and 58.3 of 256 B"),
    ] {
        let rate = format!("{:.1}", rate(at, mps, mrrs));
        assert!(said.contains(&rate) && page.contains(said), "{at} {mps} {mrrs}: {rate}");
    }
}

#[test]
fn acs_costs_one_way_traffic_its_latency_alone() {
    let one = [("gpu0", "gpu1")];
    let (free, redirected) = (with(&[]), acs());
    // The uplink carries the TLPs both ways, each with the other's DLLPs.
    let ratio = total(&redirected, &one) / total(&free, &one);
    assert!((ratio / (280.0 / 288.0) - 1.0).abs() < 0.005, "{ratio}");
    let ns = |t: &Topology| {
        let flow = Flow::write(t.find("gpu0").unwrap(), t.find("gpu1").unwrap());
        flow_latency_ns(t, &Params::default(), flow, 64).unwrap()
    };
    let p = Params::default();
    // A switch and a root complex more, and two links.
    let more = ns(&redirected) - ns(&free);
    let want = p.switch_ns + p.root_complex_ns + 2.0 * p.link_ns;
    assert!((more - want).abs() < 5.0, "{more} {want}");
}

#[test]
fn a_chips_own_way_does_not_need_the_uplinks() {
    let pair = [("gpu0", "gpu2"), ("gpu2", "gpu0")];
    let slow = |t: &str| {
        let switch = |n: u32, generation: u32| format!("parent = \"rp{n}\"\ngen = {generation}\n");
        (0..4).fold(t.to_owned(), |text, n| text.replace(&switch(n, 5), &switch(n, 2)))
    };
    let (fast, slowed) = (with(&[]), from_toml(&slow(MACHINE)).unwrap());
    assert!((total(&slowed, &pair) / total(&fast, &pair) - 1.0).abs() < 0.01);
    // Another chip is reached through the uplinks: Gen2 x16 is 8 GB/s each way. Its source has 14.
    let other = [("gpu0", "gpu4"), ("gpu4", "gpu0")];
    let got = total(&slowed, &other);
    assert!(got < 16.0 && got > 13.0, "{got}");
}

#[test]
fn flows_of_two_virtual_switches_share_nothing_and_those_of_one_share_its_uplink() {
    let t = with(&[]);
    let one = total(&t, &[("gpu0", "gpu6")]);
    let apart = total(&t, &[("gpu0", "gpu6"), ("gpu2", "gpu4")]);
    let shared = total(&t, &[("gpu0", "gpu6"), ("gpu1", "gpu7")]);
    assert!((apart / (2.0 * one) - 1.0).abs() < 0.05, "{apart} {one}");
    assert!((shared / one - 1.0).abs() < 0.05, "{shared} {one}");
}

#[test]
fn a_root_complex_throttles_reads_and_writes_apart() {
    let limits = "socket = \"s0\"\np2p_read_gb_per_s = 5.0\np2p_write_gb_per_s = 20.0\n";
    let t = with(&[APART, ("socket = \"s0\"\n", limits)]);
    let ends = (t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
    let rate = |flow| simulate_flows(&t, &Params::default(), &[flow]).unwrap()[0];
    let (write, read) = (rate(Flow::write(ends.0, ends.1)), rate(Flow::read(ends.0, ends.1)));
    assert!((write / 20.0 - 1.0).abs() < 0.03 && (read / 5.0 - 1.0).abs() < 0.03, "{write} {read}");
}

#[test]
fn small_peer_reads_cost_rate() {
    let rate = |bytes: u32| {
        let change = format!("socket = \"s0\"\np2p_read_bytes = {bytes}\np2p_read_slots = 16\n");
        let t = with(&[APART, ("socket = \"s0\"\n", &change)]);
        let flow = Flow::read(t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
        simulate_flows(&t, &Params::default(), &[flow]).unwrap()[0]
    };
    // Sixteen reads are open, whatever their size.
    let ratio = rate(256) / rate(64);
    assert!((3.4..=4.0).contains(&ratio), "{ratio}");
}

#[test]
fn a_shared_root_complex_is_shared() {
    let t = with(&[APART, ("id = \"rc0\"\n", "id = \"rc0\"\nmesh_gb_per_s = 30.0\n")]);
    let both = total(&t, &[("gpu0", "gpu2"), ("gpu1", "gpu3")]);
    assert!((both / 30.0 - 1.0).abs() < 0.03, "{both}");
}

/// All devices share what a socket's memory answers and what it takes, which are two numbers; the
/// way of one is not that of the other.
#[test]
fn memory_answers_and_takes_so_much_of_all_together() {
    let sum = |limits: &str, flow: fn(NodeId, NodeId) -> Flow| {
        let t = with(&[("id = \"s0\"\n", &format!("id = \"s0\"\n{limits}"))]);
        let id = |name| t.find(name).unwrap();
        let flows: Vec<Flow> = ["gpu0", "gpu2"].iter().map(|g| flow(id("s0"), id(g))).collect();
        simulate_flows(&t, &Params::default(), &flows).unwrap().iter().sum::<f64>()
    };
    let (reads, writes) = (Flow::read, |memory, gpu| Flow::write(gpu, memory));
    let [read, write] = ["memory_read_gb_per_s = 40.0\n", "memory_write_gb_per_s = 70.0\n"];
    let free = [sum("", reads), sum("", writes)];
    assert!(free.iter().all(|rate| *rate > 100.0), "{free:?}");
    for (limits, expected) in [
        (format!("{read}{write}"), [40.0, 70.0]),
        (read.to_owned(), [40.0, free[1]]),
        (write.to_owned(), [free[0], 70.0]),
    ] {
        let rates = [sum(&limits, reads), sum(&limits, writes)];
        let near = |(rate, expected): (&f64, f64)| (rate / expected - 1.0).abs() < 0.03;
        assert!(rates.iter().zip(expected).all(near), "{limits}{rates:?} {expected:?}");
    }
    // A path through host memory has the same limits.
    let staged = |reads: Option<f64>| {
        let mut t = builtin("two-root-complexes").unwrap();
        t.limit_memory(t.find("s0").unwrap(), reads, None);
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let params = Params::default();
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
        predict(spec, PathModel::Staged, 64 << 10, 8).unwrap().unwrap().gb_per_s
    };
    let rates = [staged(None), staged(Some(20.0))];
    assert!(rates[0] > 40.0 && (rates[1] / 20.0 - 1.0).abs() < 0.05, "{rates:?}");
}

/// One GPU and a NIC under a switch.
const PAIR: &str = "name = \"pair\"\n[[socket]]\nid = \"s0\"\n[[root_complex]]\nid = \"rc0\"\n\
    socket = \"s0\"\nROOT\n[[switch]]\nid = \"sw0\"\nparent = \"rc0\"\nSWITCH\n\
    [[gpu]]\nid = \"gpu0\"\nparent = \"sw0\"\n[[nic]]\nid = \"nic0\"\nparent = \"sw0\"\n";

fn pair(root: &str, switch: &str) -> Topology {
    from_toml(&PAIR.replace("ROOT", root).replace("SWITCH", switch)).unwrap()
}

#[test]
fn without_peer_reads_there_is_push_and_no_pull() {
    let p = Params::default();
    let run = |t: &Topology, path| {
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        predict(TestBedSpec { topology: t, gpu, nic, params: &p, seed: 1 }, path, 4096, 1)
    };
    // Under the switch the root complex has no say; once ACS redirects, it has.
    let free = pair("p2p_reads = false", "");
    assert!(run(&free, PathModel::Pull).is_ok());
    let up = pair("p2p_reads = false", "acs = true");
    assert!(matches!(run(&up, PathModel::Pull), Err(SimError::NoPeerReads { .. })));
    assert!(run(&up, PathModel::PushKernel).is_ok() && run(&up, PathModel::PushInband).is_ok());
    let none = pair("p2p_reads = false\np2p_writes = false", "acs = true");
    assert!(matches!(run(&none, PathModel::PushInband), Err(SimError::NoPeerWrites { .. })));
    // What changes the path changes the time.
    let ns = |t: &Topology| run(t, PathModel::Pull).unwrap().unwrap().completed_ns;
    assert!(ns(&pair("", "acs = true")) > ns(&pair("", "")) + 400.0);
}

#[test]
fn numa_nodes_of_a_socket_are_farther_apart() {
    let numa = |of: &str| {
        let text = MACHINE.replace(APART.0, APART.1).replace(
            "[[chip]]\nid = \"A\"",
            "[[numa]]\nid = \"n0\"\nsocket = \"s0\"\n[[numa]]\nid = \"n1\"\nsocket = \"s0\"\n\
             [[chip]]\nid = \"A\"",
        );
        let text = text.replace("id = \"rc0\"\n", "id = \"rc0\"\nnuma = \"n0\"\n");
        let t = from_toml(&text.replace("id = \"rc1\"\n", &format!("id = \"rc1\"\n{of}"))).unwrap();
        let flow = Flow::write(t.find("gpu0").unwrap(), t.find("gpu2").unwrap());
        flow_latency_ns(&t, &Params::default(), flow, 64).unwrap()
    };
    let more = numa("numa = \"n1\"\n") - numa("numa = \"n0\"\n");
    assert!((more - Params::default().numa_ns).abs() < 0.5, "{more}");
}

/// Rate of writes under the switch of [`PAIR`] with few credits, GB/s.
fn with_credits(switch_ns: f64) -> f64 {
    let t = pair("", "");
    let p = Params { credit_tlps: 8.0, switch_ns, ..Params::default() };
    let flow = Flow::write(t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    simulate_flows(&t, &p, &[flow]).unwrap()[0]
}

#[test]
fn a_switchs_latency_is_in_its_links_credit_loop() {
    for switch_ns in [60.0, 110.0, 220.0] {
        // 280 B on the wire, there and back, and the time inside the switch.
        let round_trip = 280.0 / 63.015 + 2.0 * Params::default().link_ns + switch_ns;
        let want = 8.0 * 256.0 / round_trip;
        let got = with_credits(switch_ns);
        assert!((got / want - 1.0).abs() < 0.02, "{switch_ns}: {got} {want}");
    }
}

#[test]
fn small_reads_fall_with_the_distance_of_the_completer() {
    let (t, apart) = (with(&[]), with(&[APART]));
    let p = Params { copy_tags: 32.0, ..Params::default() };
    let mut last = f64::INFINITY;
    // Under one switch, inside the chip, through the socket, across sockets.
    for (t, far) in [(&t, "gpu1"), (&t, "gpu2"), (&apart, "gpu2"), (&t, "gpu4")] {
        let flow = Flow::read(t.find(far).unwrap(), t.find("gpu0").unwrap());
        let rate = simulate_small(t, &p, flow, 64, 128).unwrap();
        let little = 32.0 * 64.0 / flow_latency_ns(t, &p, flow, 64).unwrap();
        assert!((rate / little - 1.0).abs() < 0.03, "{far}: {rate} {little}");
        assert!(rate < last, "{far}: {rate} {last}");
        last = rate;
    }
}

#[test]
fn unequal_shares_of_one_link_add_up_to_it() {
    // Completions of 64 B and writes of 256 B take turns on the way from one socket to the other.
    let t = with(&[("gb_per_s = 128.0", "gb_per_s = 22.0")]);
    let id = |name: &str| t.find(name).unwrap();
    let flows = [Flow::read(id("s1"), id("gpu0")), Flow::write(id("gpu4"), id("s0"))];
    let rates = simulate_flows(&t, &Params::default(), &flows).unwrap();
    let sum: f64 = rates.iter().sum();
    assert!((sum / 22.0 - 1.0).abs() < 0.06 && rates[1] > 2.0 * rates[0], "{rates:?}");
}

/// Small messages of many flows meet at one NIC, which takes one every `nic_message_ns`.
#[test]
fn a_nic_takes_so_many_messages() {
    let t = crate::topology::builtin("dgx-h100").unwrap();
    let id = |name: &str| t.find(name).unwrap();
    let flows: Vec<Flow> =
        ["gpu0", "gpu1", "gpu2", "gpu3"].map(|g| Flow::write(id(g), id("nic0"))).into();
    let rate = |ns: f64, flows: &[Flow]| -> f64 {
        let params = Params { nic_message_ns: ns, ..Params::default() };
        let rates = simulate_messages(&t, &params, flows, (64, 128)).unwrap();
        rates.iter().sum::<f64>() / 64.0
    };
    // Messages a ns: the NIC's limit, whichever flows share it; and the link's where that is less.
    let (one, four) = (rate(20.0, &flows[..1]), rate(20.0, &flows));
    assert!((one * 20.0 - 1.0).abs() < 0.02 && (four * 20.0 - 1.0).abs() < 0.02, "{one} {four}");
    let link = rate(0.0, &flows);
    let wire = 63.015 / (64.0 + 24.0);
    assert!((link / wire - 1.0).abs() < 0.01, "{link} {wire}");
    assert!(rate(3.0, &flows) <= 1.02 / 3.0);
}

/// Rates of both GPUs' flows, or of the NICs' reads of the GPUs.
fn of_both(t: &Topology, by: Move) -> Vec<f64> {
    let id = |name: &str| t.find(name).unwrap();
    let flow = |(from, to)| Flow { from: id(from), to: id(to), by };
    let flows = [("gpu0", "nic0"), ("gpu1", "nic1")].map(flow);
    simulate_flows(t, &Params::default(), &flows).unwrap()
}

#[test]
fn ports_of_a_card_share_its_link() {
    let (one, two) = (two_ports([Some("a"); 2]), two_ports([Some("a"), Some("b")]));
    for by in [Move::Write, Move::Read] {
        let (shared, apart) = (of_both(&one, by), of_both(&two, by));
        for (half, whole) in shared.iter().zip(&apart) {
            assert!((2.0 * half / whole - 1.0).abs() < 0.02, "{by:?}: {shared:?} of {apart:?}");
        }
        // Without a word of cards, and with a card each: the same to the last bit.
        assert_eq!(apart, of_both(&two_ports([None; 2]), by), "{by:?}");
    }
    // From one port to the other the link carries the data up and down.
    let id = |name: &str| one.find(name).unwrap();
    let flow = [Flow::write(id("nic0"), id("nic1"))];
    let back = simulate_flows(&one, &Params::default(), &flow).unwrap()[0];
    let apart = simulate_flows(&two, &Params::default(), &flow).unwrap()[0];
    assert!(back > 0.9 * apart && back < apart, "{back} of {apart}");
}

/// A root port that the tree shows as a node has the same link as one that it does not show.
#[test]
fn a_root_ports_node_changes_no_rate() {
    let tree = |port: &str, parent: &str| {
        let text = format!(
            "[[socket]]\nid = 's0'\n[[root_complex]]\nid = 'rc0'\nsocket = 's0'\n{port}\
             [[gpu]]\nid = 'gpu0'\nparent = '{parent}'\n"
        );
        from_toml(&text).unwrap()
    };
    let shown = tree("[[root_port]]\nid = 'rp0'\nparent = 'rc0'\n", "rp0");
    let hidden = tree("", "rc0");
    let rate = |t: &Topology, by: Move| {
        let id = |name: &str| t.find(name).unwrap();
        let (from, to) = if by == Move::Read { ("s0", "gpu0") } else { ("gpu0", "s0") };
        let flow = Flow { from: id(from), to: id(to), by };
        simulate_flows(t, &Params::default(), &[flow]).unwrap()[0]
    };
    for by in [Move::Read, Move::Write] {
        let [with, without] = [&shown, &hidden].map(|t| rate(t, by));
        assert!((with / without - 1.0).abs() < 0.005, "{by:?}: {with} with it, {without} without");
    }
}

/// Once for each way of a TLP between two virtual switches of a chip, and nowhere else.
#[test]
fn chip_ns_is_in_what_crosses_a_chip() {
    let inside = with(&[]);
    let ns = |t: &Topology, flow: Flow, chip_ns| {
        let p = Params { chip_ns, ..Params::default() };
        crate::sim::flow_latency_ns(t, &p, flow, 64).unwrap()
    };
    let id = |name: &str| inside.find(name).unwrap();
    let more = |t: &Topology, flow| ns(t, flow, 50.0) - ns(t, flow, 0.0);
    let (gpu, other) = (id("gpu0"), id("gpu2"));
    assert!(inside.route(gpu, other).in_chip);
    assert!((more(&inside, Flow::write(gpu, other)) - 50.0).abs() < 0.01);
    assert!((more(&inside, Flow::read(other, gpu)) - 100.0).abs() < 0.01);
    assert_eq!(more(&inside, Flow::write(gpu, id("gpu1"))), 0.0, "one virtual switch");
    let outside = with(&[APART]);
    assert_eq!(more(&outside, Flow::write(gpu, other)), 0.0, "by the root complex");
}

/// What one device gets that reads host memory and writes it at once, GB/s each.
fn both_with_host(params: &Params) -> [f64; 2] {
    let t = builtin("two-root-complexes").unwrap();
    let (gpu, memory) = (t.of_kind(Kind::Gpu)[0], t.of_kind(Kind::Socket)[0]);
    let flows = [Flow::read(memory, gpu), Flow::write(gpu, memory)];
    let rates = simulate_flows(&t, params, &flows).unwrap();
    [rates[0], rates[1]]
}

#[test]
fn a_device_that_reads_and_writes_does_both_at_the_links_rate() {
    // Gen5 x16. Beside 256 B that it writes there are a header, a DLLP for what it reads, and half
    // a request of 24 B.
    let link = 63.015 * 256.0 / (280.0 + 8.0 + 12.0);
    for tags in [128.0, 256.0, 512.0] {
        let rates = both_with_host(&Params { copy_tags: tags, ..Params::default() });
        assert!(rates.iter().all(|rate| rate / link > 0.97), "{tags} tags: {rates:?} {link}");
    }
}

#[test]
fn caps_are_for_peers_alone() {
    let capped = with(&[("socket = \"s0\"\n", "socket = \"s0\"\np2p_cap_gb_per_s = 5.0\n")]);
    for t in [with(&[]), capped] {
        let (gpu, memory) = (t.find("gpu0").unwrap(), t.find("s0").unwrap());
        for flow in [Flow::read(memory, gpu), Flow::write(gpu, memory)] {
            let rate = simulate_flows(&t, &Params::default(), &[flow]).unwrap()[0];
            assert!(rate > 56.0, "{flow:?}: {rate}");
        }
    }
}

/// What others saw of a CPU's root complexes caps peers, and not host memory; a file goes before.
#[test]
fn a_profile_caps_peers_alone() {
    let cpu = ("AMD EPYC 9575F 64-Core Processor", "AMD EPYC 7261");
    let (free, naples) = (with(&[APART]), with(&[APART, cpu]));
    let own = with(&[APART, cpu, ("id = \"rc1\"\n", "id = \"rc1\"\np2p_write_gb_per_s = 20.0\n")]);
    let peers = [("gpu0", "gpu2")];
    assert!(total(&free, &peers) > 50.0);
    let capped = total(&naples, &peers);
    assert!((capped / 7.056 - 1.0).abs() < 0.03, "{capped}");
    let file = total(&own, &peers);
    assert!((file / 20.0 - 1.0).abs() < 0.03, "{file}");
    let memory = [("gpu0", "s0")];
    assert_eq!(total(&naples, &memory), total(&free, &memory));
    // A load has the same cap.
    let ends = ["gpu0", "gpu2"].map(|name| naples.find(name).unwrap());
    let fair = crate::topology::fair_rates(&naples, &[(ends[0], ends[1])]).unwrap();
    assert!((fair[0] - 7.056).abs() < 1e-9, "{fair:?}");
}

/// What a root complex has to the other socket is its own: flows through two of them share nothing, and
/// what stays in a socket or goes to host memory is not limited.
#[test]
fn what_root_complexes_have_to_the_other_socket_is_each_ones() {
    let rome = with(&[
        ("AMD EPYC 9575F 64-Core Processor", "AMD EPYC 7542"),
        ("gb_per_s = 128.0\n", ""),
        APART,
        NO_FAR,
    ]);
    let far = |pairs: &[(&str, &str)]| total(&rome, pairs);
    let one = far(&[("gpu0", "gpu4")]);
    assert!((one / 22.53 - 1.0).abs() < 0.01, "{one}");
    let two = far(&[("gpu0", "gpu4"), ("gpu2", "gpu6")]);
    assert!((two / (2.0 * 22.53) - 1.0).abs() < 0.01, "{two}");
    assert!(far(&[("gpu0", "gpu2")]) > 50.0 && far(&[("gpu0", "s1")]) > 50.0);
    let [a, b] = ["gpu0", "gpu4"].map(|id| rome.find(id).unwrap());
    let fair = crate::topology::fair_rates(&rome, &[(a, b)]).unwrap();
    assert!((fair[0] - 22.53).abs() < 1e-9, "{fair:?}");
    let notes = rome.route(a, b).notes(&rome).join("; ");
    assert!(notes.contains("writes across sockets: at most 19.5 to 22.53 GB/s"), "{notes}");
    // A file's own number goes before, of reads as well.
    let own = with(&[("id = \"rc0\"\n", "id = \"rc0\"\np2p_far_read_gb_per_s = 5.0\n")]);
    let own_of = |from: &str, to: &str| {
        let flow = Flow::read(own.find(from).unwrap(), own.find(to).unwrap());
        simulate_flows(&own, &Params::default(), &[flow]).unwrap()[0]
    };
    let read = own_of("gpu6", "gpu0");
    assert!((read / 5.0 - 1.0).abs() < 0.03, "{read}");
    assert!(own_of("gpu2", "gpu0") > 50.0);
}

/// Between NUMA nodes of one package no socket is crossed.
#[test]
fn nodes_of_one_package_are_no_sockets_apart() {
    let rome = with(&[
        ("AMD EPYC 9575F 64-Core Processor", "AMD EPYC 7542"),
        ("gb_per_s = 128.0\n", "gb_per_s = 128.0\nin_package = true\n"),
        ("crosses = true", "crosses = false"),
        NO_FAR,
    ]);
    assert!(total(&rome, &[("gpu0", "gpu4")]) > 50.0);
}

/// The machine's file says what its pairs of GPUs had between the sockets: less than links and other machines.
#[test]
fn a_machine_has_its_own_rate_to_the_other_socket() {
    let (own, without) = (with(&[]), with(&[NO_FAR]));
    let far = [("gpu0", "gpu4"), ("gpu2", "gpu6")];
    let [one, two] = [&far[..1], &far].map(|pairs| total(&own, pairs));
    assert!((one / 47.3 - 1.0).abs() < 0.01 && (two / 94.6 - 1.0).abs() < 0.01, "{one} {two}");
    assert!(total(&without, &far[..1]) > 57.0 && total(&own, &[("gpu0", "gpu2")]) > 57.0);
}

/// Operations, TLPs of MPS and a request of each read, channels: the ends' own two among them.
#[test]
fn transmissions_are_tlps_times_channels() {
    let t = pair("", "");
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let of = |flow: Flow, messages| flow_transmissions(&t, &[flow], messages);
    assert_eq!(of(Flow::write(gpu, nic), None), 64.0 * 256.0 * 4.0);
    assert_eq!(of(Flow::read(gpu, nic), None), 64.0 * 257.0 * 4.0);
    assert_eq!(of(Flow::read(gpu, nic), Some((512, 1))), 64.0 * 3.0 * 4.0);
}

#[test]
fn lines_in_no_cache_leave_an_imprint_of_dram() {
    let t = builtin("two-root-complexes").unwrap();
    let flow = Flow::read(t.find("s0").unwrap(), t.find("gpu0").unwrap());
    let slow = Params { dram_ns: 200.0, ..Params::default() };
    let [one, other] = [&Params::default(), &slow].map(|p| uncached_imprint(&t, p, flow));
    assert_ne!(one, other);
    assert_ne!(one, flows_imprint(&t, &Params::default(), &[flow], None));
}
