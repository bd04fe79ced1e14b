use super::*;

/// A line through points: the fit finds its slope, a row that is left out has no part in it.
fn line(measured: &[f64], machines: &[&'static str]) -> Vec<LeftOut> {
    let numbers = vec![number(1.0, false, "")];
    let row = |(&measured, &machine): (&f64, &&'static str)| Row {
        machine,
        name: String::new(),
        measured,
        knobs: vec![0],
    };
    let rows = measured.iter().zip(machines).map(row).collect();
    let model = |at: &[f64], row: usize| Ok(at[0] * (row + 1) as f64);
    Fits::new(Group::Nfp, numbers, rows, &model).run().unwrap()
}

#[test]
fn a_row_that_is_left_out_has_no_part_in_the_fit() {
    let all = line(&[1.2, 2.4, 3.6], &["a", "a", "b"]);
    for r in &all {
        let near = |v: f64| (v / r.measured - 1.0).abs() < 0.01;
        assert!(near(r.with_all) && near(r.without_row.unwrap()), "{r:?}");
        assert!((r.in_use / r.measured - 1.0 / 1.2).abs() < 1e-9, "{r:?}");
    }
    // One row that is off moves the fit of all, and not its own prediction.
    let off = line(&[1.2, 2.4, 5.4], &["a", "a", "b"]);
    let last = &off[2];
    assert!((last.without_row.unwrap() / 3.6 - 1.0).abs() < 0.01, "{last:?}");
    assert!(last.with_all > 3.9, "{last:?}");
    assert_eq!(last.without_row, last.without_machine);
    // A machine alone has no other to be predicted from, a row alone none.
    let alone = line(&[1.2], &["a"]);
    assert_eq!((alone[0].without_row, alone[0].without_machine), (None, None));
}

#[test]
fn hosts_agree_on_the_walks_at_once() {
    let rows = iommu(&Params::default()).unwrap();
    assert_eq!(rows.len(), IOMMU_ROWS.len());
    for (r, (host, _)) in rows.iter().zip(IOMMU_ROWS) {
        let spec = IotlbSpec { pages: 65536 / 4, ..IotlbSpec::of(&Params::default()) };
        let what = (Metric::ReadGbps, 64);
        let own = simulate_some(&NfpDevice::NFP6000, &host, what, Some(spec), RATE_RUNS);
        assert_eq!(r.in_use, own.unwrap(), "{r:?}");
        let error = r.without_machine.unwrap() / r.measured - 1.0;
        assert!(error.abs() < 0.08, "{r:?}");
    }
}

#[test]
#[ignore = "a minute"]
fn published_rows_are_predicted_by_the_others() {
    let rows = leave_one_out(&Params::default()).unwrap();
    let doc = include_str!("../../../../docs/results/pcie.md");
    let error = |v: f64, r: &LeftOut| (v / r.measured - 1.0) * 100.0;
    for r in &rows {
        let line = format!(
            "| {} | {} | {} | {:+.1} | {:+.1} | {} | {} |",
            r.machine,
            r.row,
            r.measured,
            error(r.in_use, r),
            error(r.with_all, r),
            r.without_row.map_or("–".into(), |v| format!("{:+.1}", error(v, r))),
            r.without_machine.map_or("–".into(), |v| format!("{:+.1}", error(v, r))),
        );
        println!("{line}");
        assert!(doc.contains(&line), "docs/results/pcie.md has another: {line}");
    }
    assert_eq!(rows.len(), 79);
    // Limits of root complexes are seen, not fitted: their rows have nothing without themselves.
    for r in rows.iter().filter(|r| !matches!(r.group, Group::H200 | Group::Roots)) {
        let without = [r.without_row, r.without_machine].map(|v| error(v.unwrap(), r).abs());
        assert!(without.iter().all(|e| *e < 8.0), "{r:?}");
    }
}

/// The numbers of the other H200s are those of the file.
#[test]
fn the_other_h200s_are_the_files() {
    let file = include_str!("../../../../docs/results/link-h200.json");
    for (name, value) in OTHER_H200 {
        let (_, after) = file.split_once(&format!("\"parameter\": \"{name}\"")).unwrap();
        let (_, after) = after.split_once("\"value\": ").unwrap();
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let end = after.find(|c| !digits(c)).unwrap();
        let there: f64 = after[..end].parse().unwrap();
        assert!((there - value).abs() < 0.001, "{name}: {there}");
        assert_eq!(other_h200(&Params::default()).get(name), Some(value));
    }
}

/// Five families have a limit within a socket from one machine each, three one across sockets: with its
/// own a machine is right one way, without it there is another machine's or none.
#[test]
fn limits_of_root_complexes_are_known_from_one_machine_each() {
    let all = roots(&Params::default()).unwrap();
    let error = |value: f64, r: &LeftOut| value / r.measured - 1.0;
    for r in &all {
        println!("{r:?}");
        // What another machine of the family had more, or what is only its own two flows'.
        let loose = r.row.starts_with("both") || r.machine.contains("Turin");
        let most = if r.machine.contains("9374F") { 0.23 } else { 0.18 };
        assert!(error(r.in_use, r).abs() < if loose { most } else { 0.02 }, "{r:?}");
        let without = r.without_machine.unwrap();
        assert!(r.row.contains("two sockets") || without >= r.in_use, "{r:?}");
    }
    let machines: Vec<&str> = all.iter().map(|r| r.machine.as_str()).collect();
    let names = [
        ("Xeon W-2123, WX 8100", 2),
        ("EPYC 7261, MI25", 2),
        ("E5-2650 v4, P40, three P4600", 1),
        ("2 x EPYC 7542, 8 x RTX 4090", 2),
        ("Xeon W-3365, 2 x RTX 6000 Ada", 2),
        ("2 x Turin, RTX PRO 6000", 2),
        ("2 x EPYC 9374F, RTX PRO 6000", 2),
    ];
    let rows_of = |machine: &str| machines.iter().filter(|m| **m == machine).count();
    assert_eq!(names.map(|(name, _)| rows_of(name)), names.map(|(_, rows)| rows), "{machines:?}");
    assert_eq!(machines.len(), names.iter().map(|n| n.1).sum::<usize>(), "{machines:?}");
}

/// What fits of these rows, each with its machine, measured value and numbers, say.
fn fits(
    numbers: Vec<Number>,
    rows: &[(&'static str, f64, &[usize])],
    model: Model<'_>,
) -> Vec<LeftOut> {
    let row = |&(machine, measured, knobs): &(&'static str, f64, &[usize])| Row {
        machine,
        name: String::new(),
        measured,
        knobs: knobs.to_vec(),
    };
    Fits::new(Group::Nfp, numbers, rows.iter().map(row).collect(), model).run().unwrap()
}

/// From half of its start to twice that.
#[test]
fn a_number_is_searched_around_its_start() {
    let at = |slope: f64| line(&[slope, 2.0 * slope], &["a", "b"])[0].with_all;
    assert!((at(0.6) / 0.6 - 1.0).abs() < 0.01, "{}", at(0.6));
    assert!((3.9..=4.0).contains(&at(4.5)), "two passes: {}", at(4.5));
    // Of a number that changes nothing, rows say nothing.
    let rows: [(&str, f64, &[usize]); 2] = [("a", 2.0, &[0]), ("b", 2.0, &[0])];
    let flat = fits(vec![number(1.0, false, "")], &rows, &|_, _| Ok(1.0));
    assert_eq!((flat[0].without_row, flat[0].without_machine), (None, None));
}

/// A machine that is left out has the number that another one's rows determine, and no shared one.
#[test]
fn a_machine_without_rows_is_lent_anothers_number() {
    let numbers = || vec![number(1.0, false, ""), number(2.0, false, "a"), number(2.0, false, "b")];
    let model = |at: &[f64], row: usize| {
        let own = if row < 2 { at[1] } else { at[2] };
        Ok(own + if row % 2 == 1 { at[0] } else { 0.0 })
    };
    let rows: [(&str, f64, &[usize]); 4] =
        [("a", 3.0, &[1]), ("a", 4.5, &[0, 1]), ("b", 3.0, &[2]), ("b", 4.5, &[0, 2])];
    for r in fits(numbers(), &rows, &model) {
        let without = r.without_machine.unwrap();
        assert!((without / r.measured - 1.0).abs() < 0.05, "{r:?}");
    }
    // A shared number that only its own rows determine is none that others have.
    let rows: [(&str, f64, &[usize]); 3] =
        [("a", 3.0, &[1]), ("a", 4.5, &[0, 1]), ("b", 3.0, &[2])];
    assert_eq!(fits(numbers(), &rows, &model)[1].without_machine, None);
}
