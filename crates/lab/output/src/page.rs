//! Reports for people: one HTML file with its charts inside, which opens from a mail or a file share and needs no
//! network. Text is escaped, the style follows the reader's light or dark scheme, and the same input gives the same
//! bytes.
//!
//! ```
//! use ebb_output::{Axis, Chart, Mark, Page, Series};
//! let chart = Chart::new("Load", Axis::new("time").time(), Axis::new("requests/s"))
//!     .with(Series::new("recorded", Mark::Step, [(0.0, 12.0), (3600.0, 40.0)]));
//! let mut page = Page::new("One day", "What the service asked for.");
//! page.section("Load", "").chart(&chart);
//! assert!(page.render().starts_with("<!doctype html>"));
//! ```

mod axis;
mod chart;

pub use axis::{Axis, Ticks};
pub use chart::{Chart, Mark, Series};

use std::fmt::Write;

/// A report being built.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    lead: String,
    headings: Vec<String>,
    body: String,
}

/// A page with this many sections starts with links to them.
const CONTENTS_FROM: usize = 4;

impl Page {
    /// `lead`: the topic and the result, in a sentence or two.
    pub fn new(title: impl Into<String>, lead: impl Into<String>) -> Page {
        Page { title: title.into(), lead: lead.into(), headings: Vec::new(), body: String::new() }
    }

    /// A heading and its text; an empty line in the text starts a new paragraph.
    pub fn section(&mut self, heading: &str, text: &str) -> &mut Page {
        self.headings.push(heading.to_owned());
        let _ = writeln!(self.body, "<h2 id=\"s{}\">{}</h2>", self.headings.len(), escape(heading));
        self.text(text)
    }

    /// More text: what a table or a chart shows, what is modelled, what is missing.
    pub fn text(&mut self, text: &str) -> &mut Page {
        self.body.push_str(&paragraphs(text));
        self
    }

    /// Columns of numbers are right-aligned. Every row must have as many cells as the header.
    pub fn table(&mut self, caption: &str, header: &[&str], rows: &[Vec<String>]) -> &mut Page {
        self.strong_table(caption, header, rows, "")
    }

    /// A table in which the rows that begin with `strong` stand out.
    pub fn strong_table(
        &mut self,
        caption: &str,
        header: &[&str],
        rows: &[Vec<String>],
        strong: &str,
    ) -> &mut Page {
        let numbers: Vec<bool> = (0..header.len())
            .map(|column| {
                let mut cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !is_absent(cell));
                cells.clone().next().is_some() && cells.all(|cell| is_number(cell))
            })
            .collect();
        let class = |column: usize| if numbers.get(column) == Some(&true) { " class=\"n\"" } else { "" };
        let _ = write!(self.body, "<div class=\"wide\"><table><caption>{}</caption>\n<tr>", escape(caption));
        for (column, cell) in header.iter().enumerate() {
            let _ = write!(self.body, "<th{}>{}</th>", class(column), escape(cell).replace('/', "/<wbr>"));
        }
        for row in rows {
            let stands_out = !strong.is_empty() && row.first().is_some_and(|cell| cell == strong);
            self.body.push_str(if stands_out { "</tr>\n<tr class=\"s\">" } else { "</tr>\n<tr>" });
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(self.body, "<td{}>{}</td>", class(column), escape(cell));
            }
        }
        self.body.push_str("</tr>\n</table></div>\n");
        self
    }

    /// A chart without a value is left out: an empty one says nothing.
    pub fn chart(&mut self, chart: &Chart) -> &mut Page {
        if chart.is_empty() {
            return self;
        }
        // Text that shrinks with the drawing cannot be read on a telephone, so that has a drawing of its own.
        for (class, svg) in [("", chart.svg()), (" class=\"narrow\"", chart.narrow_svg())] {
            let _ = writeln!(self.body, "<figure{class}>{}</figure>", svg.trim_end());
        }
        self
    }

    /// The whole file.
    pub fn render(&self) -> String {
        let title = escape(&self.title);
        let mut contents = String::new();
        if self.headings.len() >= CONTENTS_FROM {
            contents.push_str("<nav>");
            for (at, heading) in self.headings.iter().enumerate() {
                let _ = write!(contents, "<a href=\"#s{}\">{}</a> ", at + 1, escape(heading));
            }
            contents.push_str("</nav>\n");
        }
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
             <div class=\"lead\">{}</div>\n{contents}{}</body></html>\n",
            paragraphs(&self.lead),
            self.body
        )
    }
}

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2126;--dim:#5c6670;--line:#dfe3e7}\
@media(prefers-color-scheme:dark){:root{--paper:#14181c;--ink:#e6e9ec;--dim:#9aa4ae;--line:#2d343b}}\
body{font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;background:var(--paper);color:var(--ink);\
max-width:54rem;margin:2rem auto;padding:0 1rem}h1{font-size:1.6rem;margin:0 0 .5rem;overflow-wrap:anywhere}\
h2{font-size:1.2rem;margin:2.2rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}p{margin:.5rem 0}\
.lead{color:var(--dim)}nav{margin:1rem 0}nav a{display:block}a{color:inherit}\
figure{margin:1.2rem 0}svg{width:100%;height:auto}.s{font-weight:600}.narrow{display:none}\
@media(max-width:38rem){figure{display:none}.narrow{display:block}}.wide{overflow-x:auto;margin:1rem 0}\
table{border-collapse:collapse;font-size:.85rem}caption{text-align:left;color:var(--dim);padding:.2rem 0}\
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
th{font-weight:600;vertical-align:bottom}\
.n{text-align:right;font-variant-numeric:tabular-nums;padding-left:.5rem}td.n{white-space:nowrap}";

fn paragraphs(text: &str) -> String {
    let parts = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| format!("<p>{}</p>\n", escape(part))).collect()
}

/// A cell that represents a missing value.
fn is_absent(cell: &str) -> bool {
    matches!(cell.trim(), "" | "-" | "–" | "—" | "n/a")
}

/// A number, optionally with a sign before it and a unit after it.
fn is_number(cell: &str) -> bool {
    let cell = cell.trim().trim_start_matches(['+', '-', '−', '±', '≤', '≥', '<', '>', '~']).trim_start();
    let digits =
        cell.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | '\u{2009}' | '\u{202f}'));
    let (number, unit) = cell.split_at(digits.unwrap_or(cell.len()));
    number.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unit.chars().count() <= 12
        && !unit.contains(|c: char| c.is_ascii_digit() || matches!(c, '-' | '–' | ':'))
}

/// Escapes text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that no document may contain, escaped or not.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
