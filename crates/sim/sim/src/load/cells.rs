//! The cells of a table's line. [RFC 4180]
//!
//! Not the `csv` crate: in a list of loads an empty line is a gap, and that crate passes over empty lines. It also adds
//! what follows a closing quote to the cell, and takes all the file after a quote that nothing closes for one cell,
//! without an error. Who plans a purchase needs the line instead.

use std::borrow::Cow;

/// What is wrong with the quotes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quote {
    /// The last cell goes on in the next line, or its quote is missing.
    Open,
    /// There is text between a closing quote and the separator.
    TextBehind,
}

/// A separator between quotes does not separate, and two quotes between quotes are one. Quotes within a cell are
/// text: `5" disk`.
pub(super) fn cells(line: &str, separator: char) -> Result<Vec<Cow<'_, str>>, Quote> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let (cell, behind) = match rest.trim_start_matches(' ').strip_prefix('"') {
            Some(text) => quoted(text)?,
            None => {
                let (cell, behind) = rest.split_at(rest.find(separator).unwrap_or(rest.len()));
                (Cow::Borrowed(cell.trim()), behind)
            }
        };
        cells.push(cell);
        let behind = behind.trim_start_matches(' ');
        match behind.strip_prefix(separator) {
            Some(more) => rest = more,
            None if behind.is_empty() => return Ok(cells),
            None => return Err(Quote::TextBehind),
        }
    }
}

/// The cell that ends at the next single quote, and what is behind that.
fn quoted(text: &str) -> Result<(Cow<'_, str>, &str), Quote> {
    let mut from = 0;
    loop {
        let end = from + text[from..].find('"').ok_or(Quote::Open)?;
        if text[end + 1..].starts_with('"') {
            from = end + 2;
            continue;
        }
        let cell = text[..end].trim();
        let cell = if from > 0 { Cow::Owned(cell.replace("\"\"", "\"")) } else { Cow::Borrowed(cell) };
        return Ok((cell, &text[end + 1..]));
    }
}

/// What separates the cells of a table, by its first line: a tab, else a semicolon, else a comma.
pub(super) fn separator(line: &str) -> char {
    let separates = |separator: &char| cells(line, *separator).is_ok_and(|cells| cells.len() > 1);
    ['\t', ';'].into_iter().find(separates).unwrap_or(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_separators_and_quotes() {
        let of = |line, separator| cells(line, separator).map(|cells| cells.join("|"));
        for (line, right) in [
            ("a,b", "a|b"),
            (" a , \"b,c\" ,", "a|b,c|"),
            ("\"say \"\"so\"\"\",2", "say \"so\"|2"),
            ("5\" disk,\"\"", "5\" disk|"),
            ("", ""),
            ("\"a\nb\",1", "a\nb|1"),
        ] {
            assert_eq!(of(line, ',').as_deref(), Ok(right), "{line:?}");
        }
        assert_eq!(of("1,5;\"2;5\"", ';').as_deref(), Ok("1,5|2;5"));
        assert_eq!(of("\"1\"2,3", ','), Err(Quote::TextBehind));
        assert_eq!(of("1,\"2", ','), Err(Quote::Open));
        assert_eq!(of("1,\"2\"\"", ','), Err(Quote::Open));
    }

    #[test]
    fn the_separator_is_seen_outside_quotes() {
        for (line, right) in [("a,b", ','), ("a;b,c", ';'), ("\"a;b\",c", ','), ("a\tb;c", '\t'), ("7", ',')]
        {
            assert_eq!(separator(line), right, "{line:?}");
        }
    }
}
