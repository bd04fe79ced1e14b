use super::*;
use crate::topology::{BUILTIN_NAMES, builtin};

fn answer(topology: &str, what: &str, path: PathModel) -> Vec<Option<f64>> {
    let t = builtin(topology).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let question: Question = what.parse().unwrap();
    let rows = {
        let asked: (&[PathModel], &[u32], u32) = (&[path], &[64 << 10], 8);
        question.answer(spec, asked, &mut Known::default(), &mut |_, _| ()).unwrap()
    };
    rows.iter().map(|r| r[0].prediction.map(|p| p.gb_per_s)).collect()
}

#[test]
fn every_combination_in_order() {
    let q: Question = "mrrs=512..2048, acs=on|off,tags=64|128".parse().unwrap();
    assert_eq!(q.combinations().len(), 12);
    assert_eq!(q.combinations()[0], [512.0, 1.0, 64.0]);
    assert_eq!(q.combinations()[1], [512.0, 1.0, 128.0]);
    assert_eq!(q.combinations()[11], [2048.0, 0.0, 128.0]);
    assert_eq!((q.axes[1].text(1.0), q.axes[0].text(512.0)), ("on".into(), "512".into()));
}

#[test]
fn values_do_what_they_say() {
    let tags = answer("two-root-complexes", "tags=8|16|128", PathModel::Pull);
    let tags: Vec<f64> = tags.into_iter().map(Option::unwrap).collect();
    // As it is are 128; half the reads, half the rate.
    assert_eq!(tags[0], tags[3]);
    assert!((tags[2] / tags[1] - 2.0).abs() < 0.1 && tags[3] > 2.0 * tags[2], "{tags:?}");
    let reads = answer("same-root-complex", "p2p_reads=on|off", PathModel::Pull);
    assert!(reads[1] == reads[0] && reads[2].is_none(), "{reads:?}");
    let cut = answer("same-root-complex", "p2p_cap_gb_per_s=5", PathModel::Pull)[1].unwrap();
    assert!((cut - 5.0).abs() < 0.3, "{cut}");
    let far = answer("two-sockets", "socket_gb_per_s=10|100", PathModel::Pull);
    assert!(far[1].unwrap() < 10.1 && far[2].unwrap() > 40.0, "{far:?}");
    // ACS and IOMMU send what a switch would turn through the root complex.
    let t = builtin("same-switch").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    for knob in [Knob::Acs, Knob::Iommu] {
        let hops = |on| t.with(knob, on).unwrap().route(gpu, nic).nodes.len();
        assert_eq!((hops(0.0), hops(1.0)), (3, 5), "{knob:?}");
    }
    assert!(t.with(Knob::Mps, 300.0).is_none() && t.with(Knob::Mps, 0.5).is_none());
}

/// What is shared between combinations is what each has by itself.
#[test]
fn what_is_shared_is_equal() {
    let t = builtin("same-switch").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let question: Question = "mrrs=128|4096,acs=on|off,tags=4|64|512".parse().unwrap();
    let (paths, sizes) = (PathModel::ALL, [8, 100, 4 << 10, 64 << 10]);
    let mut told = 0;
    let mut each = |i: usize, rows: &[SweepRow]| {
        assert_eq!((i, rows.len()), (told, paths.len() * sizes.len()));
        told += 1;
    };
    let mut known = Known::default();
    let shared = question.answer(spec, (&paths, &sizes, 8), &mut known, &mut each).unwrap();
    let beds = question.beds(&t, &params).unwrap();
    assert_eq!((told, shared.len()), (13, beds.len()));
    let mut keys = std::collections::HashSet::new();
    for ((topology, params), rows) in beds.iter().zip(shared) {
        let own = TestBedSpec { topology, params, ..spec };
        assert_eq!(rows, sweep(own, &paths, &sizes, 8));
        for (path, bytes) in rows.iter().map(|r| (r.path, r.bytes)) {
            keys.insert(key(own, path, bytes, 8).unwrap());
        }
    }
    // Of 260 operations; push/inband reads nothing, so it is simulated twice a size.
    assert!(keys.len() < 120, "{}", keys.len());
}

/// What is known of other topologies is what each has by itself.
#[test]
fn what_is_known_is_equal() {
    let params = Params::default();
    let question: Question = "tags=4|64".parse().unwrap();
    let asked = (&PathModel::ALL[..], &[8, 4 << 10][..], 8);
    let mut known = Known::default();
    let mut simulated = Vec::new();
    for name in BUILTIN_NAMES {
        let t = builtin(name).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
        let answer =
            |known: &mut Known| question.answer(spec, asked, known, &mut |_, _| ()).unwrap();
        let own = answer(&mut Known::default());
        assert_eq!(answer(&mut known), own, "{name}");
        simulated.push(known.predictions.len());
    }
    // A DGX's switch is like the one that stands alone; slow peer reads change pull alone.
    assert_eq!(simulated[6], simulated[5], "{simulated:?}");
    assert!(simulated[4] - simulated[3] <= 6, "{simulated:?}");
}

#[test]
fn what_is_no_question_is_refused() {
    let refused = |text: &str| text.parse::<Question>().unwrap_err().to_string();
    for (text, reason) in [
        ("", "\"\" is not name=values"),
        ("mrrs", "\"mrrs\" is not name=values"),
        ("mrr=512", "\"mrr\": no such number; there are mrrs, mps, gen, acs"),
        ("acs=yes", "acs=yes: on or off"),
        ("tags=64,nic_tags=8", "\"nic_tags\" stands twice"),
        ("mrrs=", "mrrs=: not a number"),
        ("mrrs=512|512", "mrrs=512: stands twice"),
        ("mrrs=512..2048|1024", "mrrs=1024: stands twice"),
        ("mrrs=4096..512", "a range doubles"),
        ("tags=0..8", "a range doubles"),
        ("tags=inf", "tags=inf: not a number"),
        ("tags=1..1e300", "more than 64 combinations"),
        ("tags=1..512,mrrs=128..4096,acs=on|off", "more than 64 combinations"),
    ] {
        assert!(refused(text).contains(reason), "{text}: {}", refused(text));
    }
    let t = builtin("same-switch").unwrap();
    for (text, reason) in [
        ("mrrs=300", "mrrs=300: no topology has it: a power of two from 128 to 4096"),
        ("gen=7", "gen=7: no topology has it: 1 to 6"),
        ("wire_ns=-1", "wire_ns=-1: must be from 0"),
        ("tags=8.5", "tags=8.5: must be a whole number"),
        ("p2p_tlp_bytes=5000", "no topology has it"),
    ] {
        let q: Question = text.parse().unwrap();
        let error = q.apply(&t, &Params::default(), &q.combinations()[0]).unwrap_err();
        assert!(error.to_string().contains(reason), "{text}: {error}");
    }
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let q: Question = "tags=1..512".parse().unwrap();
    let asked: (&[PathModel], &[u32], u32) = (&PathModel::ALL, &[16 << 20], 64);
    let error = q.answer(spec, asked, &mut Known::default(), &mut |_, _| ()).unwrap_err();
    assert!(error.to_string().contains(" TLP transmissions to simulate: at most 4e8"), "{error}");
}

#[test]
fn numbers_say_what_they_are() {
    let q: Question = "acs=on|off,tags=64".parse().unwrap();
    assert_eq!((q.axes[0].text(1.0), q.axes[0].text(0.0)), ("on".into(), "off".into()));
    assert_eq!(q.axes[0].meaning(), Knob::Acs.meaning());
    assert_eq!(q.axes[1].meaning(), Params::meaning("nic_tags"));
    assert!(!Knob::Acs.meaning().is_empty() && !Params::meaning("nic_tags").is_empty());
}

#[test]
fn a_range_may_have_as_many_values_as_there_may_be_combinations() {
    let doubled = |n: u32| format!("tags=1..{}", 2f64.powi(n as i32));
    assert_eq!(doubled(63).parse::<Question>().unwrap().combinations().len(), 64);
    assert_eq!(doubled(64).parse::<Question>(), Err(WhatError::TooMany));
}

/// As it is or under a combination; of a switch, a parameter and a number of the topology.
#[test]
fn a_number_has_a_part_in_an_operation_or_in_none() {
    let (t, params) = (builtin("two-sockets").unwrap(), Params::default());
    let [gpu, nic, near, far] = ["gpu0", "nic0", "s0", "s1"].map(|id| t.find(id).unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let has = |question: &str, path, name| {
        question.parse::<Question>().unwrap().has_part(spec, &[(path, 64)], 2, name).unwrap()
    };
    assert!(has("tags=64", PathModel::Pull, "wire_ns"));
    assert!(!has("tags=64", PathModel::Pull, "chip_ns"));
    let entries = |question| has(question, PathModel::Pull, "iotlb_entries");
    assert!(entries("iommu=on") && !entries("iommu=off"));
    // The GPU of the other end loads what lies in its host's memory.
    let lines = |question| has(question, PathModel::Staged, "sm_read_lines");
    assert!(lines("staged_ends=2") && !lines("staged_ends=1"));
    let q: Question = "tags=64,socket_gb_per_s=30".parse().unwrap();
    let own =
        |path| [0, 1].map(|axis| q.axis_has_part(spec, &[(path, 64)], 2, &q.axes[axis]).unwrap());
    assert_eq!(own(PathModel::Pull), [true, true]);
    assert_eq!(own(PathModel::PushBlueflame), [false, true]);
    let flows = |flow: Flow| {
        [0, 1].map(|axis| q.axes[axis].has_part_in_flows((&t, &params), &[flow], None))
    };
    assert_eq!(flows(Flow::write(gpu, near)), [false, false]);
    assert!(flows(Flow::read(far, nic))[0]);
    assert_eq!(flows(Flow::write(gpu, far)), [false, true]);
}

/// Each combination has each path, in the order of both.
#[test]
fn answers_are_sweeps_of_each_combination() {
    let (t, params) = (builtin("same-switch").unwrap(), Params::default());
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let q: Question = "acs=on|off".parse().unwrap();
    let paths = [PathModel::PushBlueflame, PathModel::PushInband];
    let known = &mut Known::default();
    let rows = q.answer(spec, (&paths, &[8], 1), known, &mut |_, _| ()).unwrap();
    let beds = q.beds(&t, &params).unwrap();
    assert_eq!((rows.len(), beds.len()), (3, 3));
    for ((topology, params), rows) in beds.iter().zip(rows) {
        assert_eq!(rows, sweep(TestBedSpec { topology, params, ..spec }, &paths, &[8], 1));
    }
}
