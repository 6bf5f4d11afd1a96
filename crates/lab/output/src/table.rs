//! Tables of plain text.

use std::fmt::Write;

/// Columns as wide as their widest cell, the first left-aligned and the others right-aligned. Every row must have as
/// many cells as the header.
pub fn table(out: &mut String, header: &[&str], rows: &[Vec<String>]) {
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(wide).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (column, cell) in cells.enumerate() {
            let width = widths[column];
            let _ = if column == 0 { write!(out, "{cell:<width$}") } else { write!(out, "  {cell:>width$}") };
        }
        out.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut out = String::new();
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        super::table(&mut out, &["name", "MB/s"], &[row(["a", "12345.6"]), row(["longer", "1"])]);
        assert_eq!(out, "name       MB/s\na       12345.6\nlonger        1\n");
    }
}
