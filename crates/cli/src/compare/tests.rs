//! What comparisons say of rows, and of those that cannot be compared.

use super::*;

fn side(rows: Value) -> Read {
    let mut own = Side::default();
    own.add(&rows, 5).unwrap();
    let (command, machine) = ("bench".into(), "m".into());
    let names = vec!["one.json".to_owned()];
    let (asked, on_host) = (Asked::default(), false);
    Read { names, command, machine, exact: false, mixed: false, asked, on_host, rows: own }
}

fn row(size: u64, ns: f64, rate: f64) -> Value {
    json!({ "data": "push", "size_bytes": size, "latency_ns_p50": ns, "bandwidth_gb_s": rate,
        "messages": size, "verified": true, "line": null })
}

/// A row that was measured so often, as far from `ns` as `percent` says.
fn runs(size: u64, ns: f64, rate: f64, percent: [f64; 3]) -> Vec<Value> {
    percent.iter().map(|p| row(size, ns * (1.0 + p / 100.0), rate)).collect()
}

#[test]
fn ratios_have_the_interval_of_their_repetitions() {
    let spread = [0.0, -4.0, 4.0];
    let before = [runs(8, 1000.0, 2.0, spread), runs(64, 500.0, 1.0, spread)].concat();
    let after = [runs(8, 1210.0, 1.0, [0.0; 3]), runs(64, 520.0, 1.0, spread)].concat();
    let all = Comparison::new(side(json!(before)), side(json!(after)));
    let verdicts: Vec<_> = all.rows.iter().map(|r| r.verdict()).collect();
    assert_eq!(verdicts, ["worse", "worse", "same", "same"]);
    let Interval { low, high } = all.rows[0].interval.unwrap();
    let high = high.unwrap();
    assert!((low - 1210.0 / 1040.0).abs() < 1e-9 && (high - 1210.0 / 960.0).abs() < 1e-9);
    assert_eq!((all.beyond(0.05).len(), all.beyond(1.5).len()), (2, 0));
    assert!((all.rows[1].loss() - 1.0).abs() < 1e-9);
    let text = all.text(false, Some((0.05, &all.beyond(0.05))));
    assert!(text.contains("2 worse by more than 5 %") && text.contains("64 B"), "{text}");
    assert_eq!(text.matches("push").count(), 1, "all rows have it: {text}");
    assert!(text.lines().any(|line| line == "every row:  push"), "{text}");
    // Of several comparisons rows can be joined.
    assert_eq!(all.json()[0]["row"], "push 8 B");
    // Nine in ten of the values vary by less than 4 %; and a limit below that is told.
    assert!(!text.contains("may be chance"), "{text}");
    let strict = all.text(false, Some((0.03, &all.beyond(0.03))));
    assert!(strict.contains("note: 3 % is less than the noise of ±"), "{strict}");
    assert!(all.svg().unwrap().contains("latency_ns_p50"));
}

/// What one row alone has is not said of every row.
#[test]
fn what_every_row_has_is_what_all_have() {
    let rows = || {
        let one = json!({ "row": "a", "unit": "ns", "median": 9.0 });
        let other = json!({ "row": "b", "place": "gpu memory", "unit": "ns", "median": 9.0 });
        side(json!([one, other]))
    };
    let text = Comparison::new(rows(), rows()).text(false, None);
    assert!(!text.contains("every row:"), "{text}");
}

/// Messages from host memory are other rows; what says nothing was sent from the GPU's, as it was before there was a choice.
#[test]
fn the_source_is_part_of_what_a_row_is() {
    let from = |from: Value| {
        let mut row = row(8, 1000.0, 2.0);
        row["from"] = from;
        row
    };
    let all = |before: Value, after: Value| {
        Comparison::new(side(json!([before])), side(json!([after]))).rows.len()
    };
    assert_eq!(all(row(8, 1000.0, 2.0), from(Value::Null)), 2, "latency and bandwidth");
    assert_eq!(all(from("host".into()), from("host".into())), 2);
    assert_eq!(all(from("host".into()), from(Value::Null)), 0);
}

/// Of two runs and one all are in a row in two of three orders, by chance: no verdict.
#[test]
fn what_was_measured_seldom_is_not_judged() {
    for (a, b) in [(1, 1), (2, 1), (2, 2), (3, 2), (2, 4), (18, 1)] {
        assert!(orders(a, b) < LEAST_ORDERS && orders(b, a) < LEAST_ORDERS, "{a}, {b}");
    }
    for (a, b) in [(3, 3), (2, 5), (19, 1), (500, 400)] {
        assert!(orders(a, b) >= LEAST_ORDERS && orders(b, a) >= LEAST_ORDERS, "{a}, {b}");
    }
    let twice = side(json!([row(8, 1.0, 1.0), row(8, 1.1, 1.0)]));
    let all = Comparison::new(twice, side(json!([row(8, 9.0, 1.0)])));
    assert!(all.rows.iter().all(|r| r.verdict() == "?" && r.interval.is_none()));
    assert!(all.beyond(0.05).is_empty());
    assert!(all.notes.iter().any(|note| note.contains("too seldom")));
}

/// What was there before and is not any more fails, whatever the others are.
#[test]
fn what_is_missing_is_told() {
    let whole = || side(json!([row(8, 1.0, 1.0), row(64, 2.0, 1.0)]));
    let mut none = row(64, 2.0, 1.0);
    none["latency_ns_p50"] = Value::Null;
    let all = Comparison::new(whole(), side(json!([row(8, 1.0, 1.0), none])));
    let missing: Vec<_> = all.missing.iter().map(|key| key.measure.as_str()).collect();
    assert_eq!(missing, ["latency_ns_p50"]);
    let text = all.text(true, Some((0.05, &[])));
    assert!(text.contains("MISSING: 64 B latency_ns_p50"), "{text}");
    assert!(Comparison::new(whole(), whole()).missing.is_empty());
    // A value that some of its runs lack is missing as well.
    let mut none = row(8, 1.0, 1.0);
    none["bandwidth_gb_s"] = json!(0);
    let some = side(json!([row(8, 1.0, 1.0), none, row(64, 2.0, 1.0), row(64, 2.0, 1.0)]));
    let missing = Comparison::new(whole(), some).missing;
    assert_eq!(missing.iter().map(|key| &key.measure).collect::<Vec<_>>(), ["bandwidth_gb_s"]);
    for bad in [json!("58 us"), json!(-5), json!([1])] {
        let mut row = row(8, 1.0, 1.0);
        row["bandwidth_gb_s"] = bad;
        let error = Side::default().add(&json!([row]), 5).unwrap_err();
        assert!(error.starts_with("result 1: bandwidth_gb_s is "), "{error}");
    }
}

/// A model says the same each time: what is another value is better or worse.
#[test]
fn what_a_model_says_is_decided() {
    let of = |ns: f64| Read {
        exact: true,
        ..side(json!([{ "path": "pull", "bytes": 8, "completed_ns": ns }]))
    };
    for (after, verdict) in [(9.0, "better"), (10.0, "same"), (10.1, "worse")] {
        let all = Comparison::new(of(10.0), of(after));
        assert_eq!(all.rows[0].verdict(), verdict);
    }
}

#[test]
fn rows_of_losses_and_of_published_tables_have_something_to_compare() {
    let published = |model: f64| {
        side(json!([{ "table": "t", "row": "r", "measured": 10.0, "model": model,
            "error_percent": 1.0, "kind": "predicted", "note": "" }]))
    };
    let all = Comparison::new(published(8.0), published(11.0));
    assert!((all.rows[0].before - 1.25).abs() < 1e-9 && (all.rows[0].after - 1.1).abs() < 1e-9);
    let loss = |ratio: f64, left: f64| {
        side(json!([{ "topology": "t", "push": "push/kernel", "against": "pull", "bytes": 8,
            "throughput": false, "ratio": ratio, "causes": [["fence", left]],
            "explanation": "the fence" }]))
    };
    let all = Comparison::new(loss(1.2, 0.7), loss(1.1, 0.8));
    assert_eq!((all.rows.len(), all.rows[0].key.measure.as_str()), (1, "ratio"));
}

/// A median of two runs is no more than they are, whatever ends are saved with it.
#[test]
fn a_saved_median_counts_as_its_runs() {
    for (runs, verdict) in [(2, "?"), (3, "worse")] {
        assert_eq!(runs_of(&json!({ "runs": runs }), "bench --post"), Ok(runs));
        let of = |ns: f64| {
            let row = json!({ "row": "a", "unit": "ns", "median": ns, "min": ns, "max": ns });
            let mut own = Side::default();
            own.add(&json!([row]), runs).unwrap();
            Read { rows: own, ..side(json!([])) }
        };
        assert_eq!(Comparison::new(of(10.0), of(12.0)).rows[0].verdict(), verdict, "{runs}");
    }
    for bad in [json!(0), json!(-3), json!("9"), json!(u64::MAX)] {
        assert!(runs_of(&json!({ "runs": bad }), "bench --post").is_err(), "{bad}");
    }
    let unsaid = ["bench --post", "link --together"].map(|of| runs_of(&json!({}), of));
    assert_eq!(unsaid, [Ok(5), Ok(3)]);
}

/// Of a lone row nothing is left out that names it, and no name writes to the terminal.
#[test]
fn names_of_rows_are_whole_and_printable() {
    let lone = || side(json!([row(8, 1.0, 1.0)]));
    let all = Comparison::new(lone(), lone());
    assert_eq!(all.rows[0].key.text(&all.common), "push 8 B");
    let odd = || side(json!([{ "row": "a\u{1b}[2J\nb", "unit": "ns", "median": 9.0 }]));
    let all = Comparison::new(odd(), odd());
    assert!(!all.rows[0].key.text(&all.common).contains(char::is_control));
}

#[test]
fn of_two_values_the_median_is_their_mean() {
    let twice = side(json!([row(8, 1000.0, 2.0), row(8, 1100.0, 2.0)]));
    let all = Comparison::new(twice, side(json!([row(8, 1050.0, 2.0)])));
    assert_eq!((all.rows[0].before, all.rows[0].ratio), (1050.0, 1.0));
}

#[test]
fn a_row_that_was_not_verified_is_compared_with_nothing() {
    let mut wrong = row(8, 1.0, 1.0);
    wrong["verified"] = json!(false);
    let all = Comparison::new(side(json!([wrong])), side(json!([row(8, 9.0, 1.0)])));
    assert_eq!((all.rows.len(), all.unverified.len()), (0, 2));
}

#[test]
fn units_say_what_is_better() {
    let of = |unit: &str, value: f64| {
        side(json!([{ "row": "a", "unit": unit, "median": value, "min": value * 0.99,
            "max": value * 1.01, "floor": 3.5 }]))
    };
    for (unit, verdict) in [("ns", "worse"), ("M/s", "better")] {
        let all = Comparison::new(of(unit, 10.0), of(unit, 12.0));
        assert_eq!((all.rows.len(), all.rows[0].verdict()), (1, verdict), "{unit}");
    }
    let spread = json!([{ "row": "a", "unit": "GB/s", "measured": 10.0, "spread_percent": 20 }]);
    let all = Comparison::new(side(spread.clone()), side(spread));
    let wanted = Interval { low: 8.0 / 12.0, high: Some(12.0 / 8.0) };
    assert_eq!(all.rows[0].interval, Some(wanted), "either end may be so far");
    for bad in [
        json!([{ "row": "a", "unit": "ns", "median": 9.0, "min": 9.5, "max": 8.0 }]),
        json!([{ "row": "a", "unit": "ns", "median": 9.0, "min": "8", "max": 9.5 }]),
        json!([{ "row": "a", "unit": "seconds", "median": 9.0 }]),
        json!([{ "row": "a", "unit": "ns", "median": 9.0, "verified": "false" }]),
    ] {
        assert!(Side::default().add(&bad, 5).is_err(), "{bad}");
    }
}

/// A run that ended before a row has not measured it, whichever file it is in.
#[test]
fn a_row_that_some_runs_do_not_have_is_missing() {
    let whole = || json!([row(8, 1.0, 1.0), row(64, 2.0, 1.0)]);
    let before = || {
        let mut own = side(whole());
        (0..2).for_each(|_| own.rows.add(&whole(), 5).unwrap());
        own
    };
    let missing = |rest: Value, last: Value| {
        let mut own = side(whole());
        [rest, last].iter().for_each(|rows| own.rows.add(rows, 5).unwrap());
        let all = Comparison::new(before(), own);
        all.missing.iter().map(|key| key.text(&all.common)).collect::<BTreeSet<_>>()
    };
    assert!(missing(whole(), whole()).is_empty());
    let of_64 = BTreeSet::from(["64 B".to_owned()]);
    assert_eq!(missing(whole(), json!([row(8, 1.0, 1.0)])), of_64);
    // In one file, as `bench --runs` writes them.
    assert_eq!(
        missing(whole(), json!([row(8, 1.0, 1.0), row(64, 2.0, 1.0), row(8, 1.0, 1.0)])),
        of_64
    );
    // What was not verified is told as that, once.
    let mut wrong = row(64, 2.0, 1.0);
    wrong["verified"] = json!(false);
    assert!(missing(whole(), json!([row(8, 1.0, 1.0), wrong.clone()])).is_empty());
    let twice = side(json!([wrong.clone(), wrong]));
    assert_eq!(Comparison::new(side(json!([])), twice).unverified.len(), 2, "its two measures");
}

/// As `jq` and data frames write them again.
#[test]
fn counts_with_a_fraction_of_zeros_are_counts() {
    let of = |size: Value, qps: Value| {
        side(json!([{ "data": "push", "size_bytes": size, "qps": qps, "latency_ns_p50": 9.0 }]))
    };
    let all = Comparison::new(of(json!(8), json!(1)), of(json!(8.0), json!(1.0)));
    assert_eq!((all.rows.len(), all.missing.len()), (1, 0));
    let several = [(8.0, 1.0), (64.0, 1.0), (8.0, 2.0)].map(|(size, qps)| {
        json!({ "data": "push", "size_bytes": size, "qps": qps, "latency_ns_p50": 9.0 })
    });
    assert_eq!(side(json!(several)).rows.samples.len(), 3, "no repetitions of one row");
}

#[test]
fn a_limit_is_what_may_be_lost() {
    let of = |unit: &str, value: f64| {
        side(json!([{ "row": "a", "unit": unit, "median": value, "min": value, "max": value }]))
    };
    // 1050 / 1000 - 1 is 0.050000000000000044.
    for (unit, before, after) in [("ns", 1000.0, 1050.0), ("GB/s", 2.1, 2.0), ("ns", 3.0, 3.15)] {
        let all = || Comparison::new(of(unit, before), of(unit, after));
        assert_eq!(all().rows[0].verdict(), "worse");
        assert!(all().beyond(0.05).is_empty(), "{unit} {before}: by 5 %, and not by more");
        assert_eq!(all().beyond(0.0499).len(), 1, "{unit} {before}");
    }
    for (text, share) in [("5", 0.05), ("5%", 0.05), (" 0.05 % ", 0.0005), ("0", 0.0)] {
        assert!((percent(text).unwrap() - share).abs() < 1e-15, "{text}");
    }
    for bad in ["", "%", "5%%", "-1", "NaN", "inf", "5 percent", "5,5"] {
        assert!(percent(bad).is_err(), "{bad}");
    }
    let all = Comparison::new(of("ns", 1.0), of("ns", 1.0));
    assert!(all.text(true, Some((0.0005, &[]))).contains("0 worse by more than 0.05 %"));
}

/// Of units nothing else is known, and they stand in the table.
#[test]
fn other_units_are_other_measures_and_printable() {
    let of = |unit: &str| side(json!([{ "row": "a", "unit": unit, "median": 9.0 }]));
    let all = Comparison::new(of("GB/s"), of("Gb/s"));
    assert_eq!((all.rows.len(), all.missing.len()), (0, 1));
    let all = Comparison::new(of("\u{1b}[2J/s"), of("\u{1b}[2J/s"));
    assert!(!all.text(false, None).replace('\n', "").contains(char::is_control));
}

/// A legend has room for the beginning of a name: that tells paths and measures apart.
#[test]
fn lines_of_a_plot_differ_in_what_a_legend_shows() {
    let row = |kick: &str, window: u64| {
        json!({ "data": "push", "kick": kick, "observer": "gpu", "window_bytes": window, "qps": 1,
            "size_bytes": 8, "latency_ns_p50": 1.0, "latency_ns_p99": 2.0 })
    };
    let of = || side(json!([row("inband", 131_072), row("kernel", 65_536)]));
    let labels: Vec<String> =
        Comparison::new(of(), of()).lines().into_iter().map(|line| line.label).collect();
    let shown: std::collections::BTreeSet<String> =
        labels.iter().map(|label| label.chars().take(30).collect()).collect();
    assert!(labels.len() >= 4 && shown.len() == labels.len(), "{labels:?}");
}

/// A ratio to 0 has no bound, and one of numbers far apart has no number: neither is printed.
#[test]
fn no_ratio_is_without_a_number() {
    let of = |rows: &[(f64, f64, f64)], size: Option<u64>| {
        let row = |(median, min, max): &(f64, f64, f64)| {
            json!({ "row": "a", "unit": "ns", "median": median, "min": min, "max": max,
                "size_bytes": size })
        };
        json!({ "meta": { "command": "bench --post", "runs": 5 },
            "results": rows.iter().map(row).collect::<Vec<_>>() })
        .to_string()
    };
    let (some, none) = ((10.0, 9.0, 11.0), (10.0, 0.0, 11.0));
    let far = [(1e308, 1e308, 1e308), (1e-300, 1e-300, 1e-300)];
    for (before, after) in
        [(none, some), (some, none), (none, none), (far[0], far[1]), (far[1], far[0])]
    {
        for size in [None, Some(8)] {
            let all = told(&of(&[before], size), &of(&[after], size)).unwrap();
            for text in &all {
                let text = text.to_lowercase();
                let words = text.split(|c: char| !c.is_ascii_alphanumeric());
                let odd: Vec<&str> = words.filter(|word| ["inf", "nan"].contains(word)).collect();
                assert!(odd.is_empty(), "{before:?} {after:?} {size:?}: {odd:?} {text}");
            }
            assert!(all[0].lines().all(|line| line.chars().count() < 140), "{}", all[0]);
        }
    }
    let [text, csv, _] = told(&of(&[none], None), &of(&[some], None)).unwrap();
    assert!(text.contains(" 0.818 or more  same\n"), "{text}");
    assert!(text.contains("note: 1 values have a least of 0 before: nothing bounds"), "{text}");
    assert!(csv.lines().nth(1).unwrap().ends_with(",,same"), "{csv}");
    let [text, ..] = told(&of(&[none], None), &of(&[none], None)).unwrap();
    assert!(text.contains(" any  same\n"), "{text}");
    // Above all that there was before, it is worse, whatever bounds it.
    let [text, ..] = told(&of(&[none], None), &of(&[(30.0, 20.0, 31.0)], None)).unwrap();
    assert!(text.contains("1.818 or more  worse\n"), "{text}");
}

/// Another question has another answer, which is neither better nor worse.
#[test]
fn a_model_that_was_asked_otherwise_is_not_judged() {
    let of = |meta: Value, ns: f64| {
        let mut meta = meta;
        (meta["command"], meta["source"]) = (json!("sim"), json!("model"));
        json!({ "meta": meta,
            "results": [{ "path": "pull", "bytes": 8, "completed_ns": ns }] })
        .to_string()
    };
    let own = json!({ "seed": 1, "in_flight": 8, "set": [], "gpu": null, "nic": "nic0" });
    for (field, value) in [
        ("seed", json!(2)),
        ("in_flight", json!(4)),
        ("set", json!(["nic_tags=8"])),
        ("gpu", json!("gpu1")),
        ("nic", json!("nic1")),
        ("message", json!("4KiB")),
    ] {
        let mut other = own.clone();
        other[field] = value;
        let [text, csv, _] = told(&of(own.clone(), 10.0), &of(other, 12.0)).unwrap();
        assert!(text.contains("0 better, 0 worse, 0 the same, 1 unknown"), "{field}: {text}");
        assert!(text.contains("note: the model was asked otherwise, so that"), "{field}: {text}");
        assert!(!text.contains("too seldom") && !text.contains("exact"), "{field}: {text}");
        assert!(csv.lines().nth(1).unwrap().ends_with(",,,?"), "{field}: {csv}");
    }
    let [text, ..] = told(&of(own.clone(), 10.0), &of(own, 12.0)).unwrap();
    assert!(text.contains("1 worse"), "{text}");
}

/// The meta data of a model that was asked, one field of it otherwise, and a row of a topology.
fn asked(field: &str, value: Value, topology: &str, ns: f64) -> String {
    let mut meta = json!({ "command": "sim", "source": "model", "seed": 1, "in_flight": 8,
        "set": [], "gpu": null, "nic": null, "message": null });
    meta[field] = value;
    let row = json!({ "topology": topology, "path": "pull", "bytes": 8, "completed_ns": ns });
    json!({ "meta": meta, "results": [row] }).to_string()
}

/// What is written otherwise and says the same is no other question.
#[test]
fn a_question_is_the_same_in_any_form() {
    let set = |all: &[&str]| json!(all);
    for (field, one, other) in [
        ("set", set(&["nic_tags=8", "acs=on"]), set(&["acs=on", "nic_tags=8"])),
        ("set", set(&["nic_tags=8"]), set(&["nic_tags=8.0"])),
        ("set", set(&["nic_tags=8"]), json!("nic_tags=8")),
        ("set", set(&[]), json!(null)),
        ("seed", json!(1), json!(1.0)),
        ("seed", json!(u64::MAX), json!(u64::MAX.to_string())),
        ("seed", json!([3, 1, 2]), json!([1, 2, 3])),
        ("in_flight", json!(8), json!("8")),
        ("message", json!("4KiB"), json!("4096")),
        // The first where none is named.
        ("gpu", json!(null), json!("gpu0")),
        ("nic", json!(null), json!("nic0")),
    ] {
        let of = |value: &Value, ns| asked(field, value.clone(), "two-sockets with acs=on", ns);
        for (before, after) in [(&one, &other), (&other, &one)] {
            let [text, ..] = told(&of(before, 10.0), &of(after, 12.0)).unwrap();
            assert!(text.contains("1 worse") && !text.contains("otherwise"), "{field}: {text}");
        }
    }
    for (field, one, other) in [
        ("set", set(&["nic_tags=8", "acs=on"]), set(&["nic_tags=8"])),
        ("set", set(&["nic_tags=8"]), set(&["nic_tags=80"])),
        ("seed", json!(u64::MAX), json!(u64::MAX - 1)),
        ("seed", json!([1, 2]), json!([1, 3])),
        ("message", json!("4KiB"), json!("4MiB")),
        ("gpu", json!(null), json!("gpu1")),
    ] {
        let of = |value: Value| asked(field, value, "two-sockets", 10.0);
        let [text, ..] = told(&of(one), &of(other)).unwrap();
        assert!(text.contains("1 unknown") && text.contains("otherwise"), "{field}: {text}");
    }
    // Of a topology that is not built in the first is not known.
    let of = |value: Value| asked("gpu", value, "my own", 10.0);
    let [text, ..] = told(&of(json!(null)), &of(json!("gpu0"))).unwrap();
    assert!(text.contains("otherwise"), "{text}");
    // Names of rows say what was set as well.
    let of = |topology: &str, ns| asked("seed", json!(1), topology, ns);
    let [one, other] = ["acs=on, mrrs=512", "mrrs=512.0, acs=on"];
    let named = |sets: &str| format!("two-sockets with {sets}");
    let [text, ..] = told(&of(&named(one), 10.0), &of(&named(other), 12.0)).unwrap();
    assert!(text.contains("1 worse"), "{text}");
    assert!(told(&of("a with b, c", 10.0), &of("a with c, b", 12.0)).is_err(), "a name");
}

/// Another seed is another draw of the same: so many that a row is judged are repetitions.
#[test]
fn results_of_three_seeds_are_repetitions() {
    let side = |seeds: &[u64], ns: f64| {
        let (mut side, mut known) = (Read::new(), Vec::new());
        for seed in seeds {
            let text = asked("seed", json!(seed), "two-sockets", ns + *seed as f64 / 100.0);
            side.add("a", &text, &mut known).unwrap();
        }
        side
    };
    for (before, after, verdict) in [
        (&[1, 2, 3][..], &[4, 5, 6][..], "worse"),
        (&[1, 2, 3], &[3, 2, 1], "worse"),
        (&[1, 2], &[3, 4, 5, 6, 7], "worse"),
        (&[1, 2], &[3, 4], "?"),
        (&[1, 2], &[1, 2], "?"),
        (&[1, 2, 3], &[4, 5], "?"),
        (&[1], &[1], "worse"),
        (&[1], &[2], "?"),
    ] {
        let all = Comparison::new(side(before, 10.0), side(after, 12.0));
        assert_eq!(all.rows[0].verdict(), verdict, "{before:?} {after:?}: {:?}", all.notes);
        let otherwise = all.notes.iter().find(|note| note.contains("otherwise"));
        assert_eq!(otherwise.is_some(), verdict == "?" && before != after, "{before:?} {after:?}");
    }
    let all = Comparison::new(side(&[10, 9], 1.0), side(&[1], 1.0));
    let note = all.notes.iter().find(|note| note.contains("otherwise")).unwrap();
    let rest = "in_flight 8, gpu gpu0, nic nic0";
    assert!(note.ends_with(&format!(": seeds 9 10, {rest}; seed 1, {rest}")), "{note}");
}
