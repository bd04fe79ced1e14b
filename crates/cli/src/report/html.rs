//! The report page: plots, table, notes and circumstances in one file without external resources.

use std::fs;
use std::path::{Path, PathBuf};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::notes::{Footnotes, notes};
use super::repeated::{Repeated, repeated};
use super::row::Results;
use super::setup;
use super::table::{columns, facts, groups};
use super::{ReportError, file, plot, size};

const STYLE: &str = include_str!("page.css");

/// Writes `index.html`, `latency.svg`, `bandwidth.svg` and `results.json` into a directory, which
/// is created if necessary. Returns the page's path.
///
/// Everything is drawn before anything is written.
///
/// # Errors
/// Errors of [`Results::validate`], [`ReportError::Draw`], [`ReportError::Io`].
pub fn write_report(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
    let json = results.to_json()?;
    let (latency, bandwidth) = (plot::latency_svg(results)?, plot::bandwidth_svg(results)?);
    let page = page(results, &plot::figures(results)?).into_string();
    fs::create_dir_all(dir).map_err(|source| ReportError::Io {
        action: "create",
        path: dir.into(),
        source,
    })?;
    for (name, text) in [
        ("results.json", &json),
        ("latency.svg", &latency),
        ("bandwidth.svg", &bandwidth),
        ("index.html", &page), // last: the page that names the others appears when they are there
    ] {
        file::write(&dir.join(name), text.as_bytes())?;
    }
    Ok(dir.join("index.html"))
}

fn page(results: &Results, plots: &[String]) -> Markup {
    let meta = &results.meta;
    let notes = notes(results);
    let footnotes = Footnotes::of(&results.results);
    let rows = repeated(&results.results);
    let failed = rows.iter().filter(|it| !it.row.verified).count();
    let facts = facts(meta);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "bellpush results" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "bellpush results" }
                    p.under {
                        @for (_, value) in facts.iter().take(2) { span { (value) } }
                        span { (meta.date) }
                    }
                    @if failed == 0 {
                        p.verdict.good {
                            "✓ every byte of all " (rows.len())
                            " rows arrived, once and in order"
                        }
                    } @else {
                        p.verdict.bad {
                            "✗ " (failed) " of " (rows.len())
                            " rows failed verification"
                        }
                    }
                }
                @if !notes.is_empty() {
                    aside {
                        h2 { "Read this first" }
                        ul { @for note in &notes { li { (note) } } }
                    }
                }
                main {
                    @for plot in plots { figure { (PreEscaped(plot)) } }
                    h2 { "Set-up" }
                    (setup::drawings(results))
                    h2 { "All rows" }
                    (table(&rows, &footnotes))
                    @if !footnotes.texts().is_empty() {
                        ol.footnotes {
                            @for (i, text) in footnotes.texts().iter().enumerate() {
                                li id={ "footnote-" (i + 1) } { (text) }
                            }
                        }
                    }
                    h2 { "Measured on" }
                    dl {
                        @for (name, value) in &facts { dt { (name) } dd { (value) } }
                    }
                    p.links {
                        a href="results.json" { "results.json" }
                        a href="latency.svg" { "latency.svg" }
                        a href="bandwidth.svg" { "bandwidth.svg" }
                    }
                }
            }
        }
    }
}

fn table(rows: &[Repeated], footnotes: &Footnotes) -> Markup {
    let columns = columns(rows);
    let class = |numeric: bool| if numeric { "number" } else { "text" };
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th.number scope="col" { "size" }
                        @for c in &columns { th class=(class(c.numeric)) scope="col" { (c.name) } }
                        th scope="col" { "note" }
                    }
                }
                @for (bytes, members) in groups(rows) {
                    tbody {
                        @for (nth, &i) in members.iter().enumerate() {
                            tr.failed[!rows[i].row.verified] {
                                @if nth == 0 {
                                    th.number scope="rowgroup" rowspan=(members.len()) {
                                        (size::print(bytes))
                                    }
                                }
                                @for c in &columns {
                                    td class=(class(c.numeric)) { ((c.cell)(&rows[i])) }
                                }
                                td {
                                    @for mark in footnotes.marks(rows[i].first) {
                                        a href={ "#footnote-" (mark) } { "[" (mark) "]" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::{Row, tests::sample};
    use super::*;

    #[test]
    fn a_report_is_four_files_and_no_outside_resource() {
        let dir = tempfile::tempdir().unwrap();
        let page = write_report(&dir.path().join("a/b"), &sample("cuda:X")).unwrap();
        let html = fs::read_to_string(&page).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 4);
        for outside in ["src=", "@import", "url(", "href=\"http", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(html.matches("<svg ").count(), 4, "two plots, wide and narrow");
        assert!(html.contains("<dt>command</dt>"));
        let json = fs::read(dir.path().join("a/b/results.json")).unwrap();
        assert_eq!(Results::parse(&json).unwrap(), sample("cuda:X"));
    }

    #[test]
    fn strings_are_escaped() {
        let mut results = sample("host");
        results.meta.notes.push("<script>alert(1)</script>".into());
        results.results[0].nic = "<b>\"".into();
        results.results[0].artefact = Some("<i>".into());
        results.meta.machine.cpu = "<script>".into();
        let html = page(&results, &plot::figures(&results).unwrap()).into_string();
        assert!(!html.contains("<script") && !html.contains("<b>\"") && !html.contains("<i>"));
    }

    #[test]
    fn a_failed_row_is_not_overlooked() {
        let mut results = sample("host");
        let html = |r: &Results| page(r, &[]).into_string();
        assert!(html(&results).contains("every byte of all 12 rows arrived"));
        results.results[4].verified = false;
        assert!(html(&results).contains("1 of 12 rows failed verification"));
        assert_eq!(html(&results).matches("class=\"failed\"").count(), 1);
        let good = Row { verified: true, ..results.results[4].clone() };
        results.results.push(good);
        assert!(html(&results).contains("1 of 12 rows failed verification"), "a run of it did");
    }

    #[test]
    fn nothing_is_left_where_the_directory_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let blocker = dir.path().join("file");
        fs::write(&blocker, "x").unwrap();
        let error = write_report(&blocker.join("report"), &sample("host")).unwrap_err();
        assert!(error.to_string().starts_with("cannot create "), "{error}");
    }
}
