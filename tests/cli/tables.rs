//! Tables of the documentation: every one is whole, and those that are made of `bellpush doctor`'s checks and of the
//! recorded machines are current.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::diagnoses::machine;
use crate::doctor::{check_table, findings_of};
use crate::recorded::{Recorded, names, recorded};

/// Ids of all checks.
fn checks() -> Vec<String> {
    let table = check_table();
    let rows = table.lines().skip(2);
    rows.map(|row| row.split('`').nth(1).expect("an id").to_owned()).collect()
}

/// Checks that say what there is, and never that something is wrong.
const NEVER_WARN: [&str; 6] =
    ["gpu-module", "rdma-window", "socket-direct", "iommu-group", "hugepages", "container"];

/// Each check with the machines on which it finds something wrong. One that has none says so, and is one of those that
/// never warn.
fn machines_by_check() -> String {
    let machines: Vec<_> = names().into_iter().map(|name| (recorded(&name), name)).collect();
    let mut table = String::from("| check | finds something wrong on |\n|---|---|\n");
    for check in checks() {
        let fails = |m: &Recorded| m.expected.iter().any(|(by, _, _)| *by == check);
        let failing = machines.iter().filter(|(m, _)| fails(m)).map(|(_, name)| name.as_str());
        let failing: Vec<&str> = failing.collect();
        assert_eq!(
            failing.is_empty(),
            NEVER_WARN.contains(&check.as_str()),
            "{check}: a check that warns has a machine of tests/fixtures/doctor: {failing:?}"
        );
        let failing = if failing.is_empty() { "it never warns".into() } else { failing.join(", ") };
        table += &format!("| `{check}` | {failing} |\n");
    }
    table
}

/// The worst that each check says of each machine; nothing where there is nothing that it applies to.
fn matrix() -> String {
    const SEVERITIES: [&str; 5] = ["fine", "note", "unseen", "warning", "prevents"];
    let (checks, names) = (checks(), names());
    let row = |name: &String| {
        let dir = machine(name, &[]);
        let all = findings_of(dir.path()).unwrap();
        let worst = |check: &String| {
            let own = all.iter().filter(|finding| finding[0] == *check);
            let rank = |finding: &[String; 4]| SEVERITIES.iter().position(|it| *it == finding[1]);
            own.filter_map(rank).max().map_or("", |rank| SEVERITIES[rank])
        };
        format!("{name},{}\n", checks.iter().map(worst).collect::<Vec<_>>().join(","))
    };
    format!("machine,{}\n{}", checks.join(","), names.iter().map(row).collect::<String>())
}

/// `BELLPUSH_WRITE=1 cargo test …` writes it.
#[test]
fn the_table_of_machines_and_checks_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/doctor-machines.csv");
    let table = matrix();
    if std::env::var_os("BELLPUSH_WRITE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    assert!(table == written, "docs/results/doctor-machines.csv is not current: BELLPUSH_WRITE=1");
    // Every severity is there, and each check says something of some machine.
    for severity in [",fine", ",note", ",unseen", ",warning", ",prevents", ",,"] {
        assert!(table.contains(severity), "{severity}");
    }
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    for (nth, check) in rows[0].iter().enumerate() {
        assert!(rows[1..].iter().any(|row| !row[nth].is_empty()), "{check} says nothing");
    }
}

/// The page has the tables as they are; `BELLPUSH_WRITE=1 cargo test …` writes them.
#[test]
fn the_page_has_the_checks_and_the_machines() {
    let mut table = String::from("| machine | what | source | found |\n|---|---|---|---|\n");
    for name in names() {
        let m = recorded(&name);
        let found: BTreeSet<String> =
            m.expected.iter().map(|(c, s, _)| format!("`{c}` {s}")).collect();
        let found: Vec<String> = found.into_iter().collect();
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
        let is_said = ["made", "recorded on "].iter().any(|begin| m.source.starts_with(begin))
            || m.source.contains("restated of");
        assert!(is_said, "{name}: {}", m.source);
        table += &format!("| {name} | {} | {} | {found} |\n", m.what, m.source);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let mut page = fs::read_to_string(&path).unwrap();
    for (mark, table) in
        [("checks", check_table()), ("faults", machines_by_check()), ("machines", table)]
    {
        let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
        let from = page.find(&begin).expect("the mark is there") + begin.len();
        let to = page.find(&end).expect("the mark is there");
        page.replace_range(from..to, &format!("\n{table}\n"));
    }
    if std::env::var_os("BELLPUSH_WRITE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert!(
        page == fs::read_to_string(&path).unwrap(),
        "docs/doctor.md is not current: BELLPUSH_WRITE=1"
    );
}

/// The column of checks in the page of cards names checks that are there, and every check by which a card's paths may be
/// impossible.
#[test]
fn the_page_of_cards_has_the_checks_of_cards() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hardware.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once("| check of `doctor` |\n").expect("the table is there");
    let (table, _) = table.split_once("\n\n").expect("it ends");
    let cells = table.lines().filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let named: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let all = checks();
    let unknown: Vec<_> = named.iter().filter(|id| !all.iter().any(|is| is == *id)).collect();
    assert!(unknown.is_empty() && named.len() > 15, "no checks: {unknown:?}");
    let prevents = |name: &String| {
        let expected = recorded(name).expected.into_iter();
        expected.filter(|e| e.1 == "prevents").map(|e| e.0).collect::<Vec<_>>()
    };
    let prevent: BTreeSet<String> = names().iter().flat_map(prevents).collect();
    let missing = |id: &&String| !named.contains(id.as_str());
    let missing: Vec<_> = prevent.iter().filter(missing).collect();
    assert!(missing.is_empty() && prevent.len() > 10, "not in docs/hardware.md: {missing:?}");
}

/// Rows that a page shows as they are written, since a blank line ended their table or no row of dashes is below its
/// head: of those that stand together the first, as `line: row`.
fn headless(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_rule = |line: &&str| line.starts_with("|-") && line.chars().all(|c| "|-: ".contains(c));
    let (mut found, mut fenced, mut within) = (Vec::new(), false, false);
    for (nth, line) in lines.iter().enumerate() {
        fenced ^= line.starts_with("```");
        let is_row = !fenced && line.starts_with('|');
        if is_row && !within && !lines.get(nth + 1).is_some_and(is_rule) {
            found.push(format!("{}: {line}", nth + 1));
        }
        within = is_row;
    }
    found
}

/// Pages below a folder; hidden folders and those of builds have none.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        } else if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && name != "target"
        {
            pages(&path, found);
        }
    }
}

#[test]
fn rows_of_tables_have_a_head() {
    let mut all = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut all);
    assert!(all.len() > 60, "{}", all.len());
    let of = |page: &PathBuf| {
        let rows = headless(&fs::read_to_string(page).unwrap()).into_iter();
        rows.map(|row| format!("{}:{row}", page.display())).collect::<Vec<_>>()
    };
    let wrong: Vec<_> = all.iter().flat_map(of).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_row_without_a_head_is_found() {
    for (text, wrong) in [
        ("Text.\n\n| a | b |\n|---|:-:|\n| 1 | 2 |\n\nText.", vec![]),
        ("| a |\n|---|\n| 1 |\n\n| 2 |\n| 3 |\n", vec!["5: | 2 |"]),
        ("| a |\n| 1 |\n", vec!["1: | a |"]),
        ("  | a |\n  |---|\n", vec![]),
        ("```\n| a |\n```\n| 1 |", vec!["4: | 1 |"]),
    ] {
        assert_eq!(headless(text), wrong, "{text}");
    }
}
