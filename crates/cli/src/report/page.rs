//! A page of text, plots and tables in one file without external resources.

use maud::{DOCTYPE, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// A table; a column whose cells are all numbers is aligned as such.
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

impl Table {
    /// Class of a column's cells.
    fn class(&self, column: usize) -> &'static str {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        let is_number = |cell: &String| cell.is_empty() || cell.parse::<f64>().is_ok();
        if cells.all(is_number) { "number" } else { "text" }
    }
}

/// Renders the page, which ends with the command line that made it. All text is escaped; figures
/// are inserted unchanged.
pub fn page(title: &str, notes: &[String], sections: &[Section], command: &str) -> String {
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
                                        tr {
                                            @for (i, name) in table.head.iter().enumerate() {
                                                th class=(table.class(i)) scope="col" { (name) }
                                            }
                                        }
                                    }
                                    tbody {
                                        @for row in &table.rows {
                                            tr {
                                                @for (i, cell) in row.iter().enumerate() {
                                                    td class=(table.class(i)) { (cell) }
                                                }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
                footer { "Made by " code { (command) } }
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
        let page = page("t", &["<u>".into()], &[section], "bellpush <s>");
        assert!(page.contains("bellpush &lt;s&gt;"));
        assert!(page.contains("<th class=\"text\" scope=\"col\">what"));
        assert!(page.contains("<th class=\"number\" scope=\"col\">GB/s"));
        assert!(!page.contains("<b>") && !page.contains("<i>") && !page.contains("<u>"));
        assert!(page.contains("<svg/>") && page.contains("a &lt; b"));
        for outside in ["src=", "@import", "url(", "href=\"http", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
