//! A page of text, plots and tables in one file without external resources.

use maud::{DOCTYPE, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// A table; every cell but a row's first is a number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// A part of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Heading.
    pub heading: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Plots, as SVG.
    pub figures: Vec<String>,
    /// Table, where there is one.
    pub table: Option<Table>,
}

/// Renders the page. All text is escaped; figures are inserted unchanged.
pub fn page(title: &str, notes: &[String], sections: &[Section]) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { h1 { (title) } }
                @if !notes.is_empty() {
                    aside {
                        h2 { "Read this first" }
                        ul { @for note in notes { li { (note) } } }
                    }
                }
                main {
                    @for section in sections {
                        h2 { (section.heading) }
                        @for text in &section.text { p { (text) } }
                        @for figure in &section.figures { figure { (PreEscaped(figure)) } }
                        @if let Some(table) = &section.table {
                            div.scroll {
                                table {
                                    thead {
                                        tr { @for name in &table.head { th scope="col" { (name) } } }
                                    }
                                    tbody {
                                        @for row in &table.rows {
                                            tr {
                                                @for (i, cell) in row.iter().enumerate() {
                                                    td class=(if i == 0 { "text" } else { "number" }) { (cell) }
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
        }
    }
    .into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_escaped_and_whole() {
        let section = Section {
            heading: "<b>".into(),
            text: vec!["a < b".into()],
            figures: vec!["<svg/>".into()],
            table: Some(Table {
                head: vec!["what".into(), "GB/s".into()],
                rows: vec![vec!["<i>".into(), "1".into()]],
            }),
        };
        let page = page("t", &["<u>".into()], &[section]);
        assert!(!page.contains("<b>") && !page.contains("<i>") && !page.contains("<u>"));
        assert!(page.contains("<svg/>") && page.contains("a &lt; b"));
        for outside in ["src=", "@import", "url(", "href=\"http", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
