//! Rust source as text: what of a file is production code. No parser: a scanner that knows comments, strings and
//! nesting is enough, and keeps this program free of dependencies.
//!
//! A test item is what `#[cfg(test)]` stands before, and nothing else: code below it counts.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Every source file below `dir`, in order, tests included.
pub fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(all_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Source files below `dir`, without tests and without files and folders named in `except`.
pub fn files(dir: &Path, except: &[String]) -> Vec<PathBuf> {
    let is_left_out = |name: &std::ffi::OsStr| {
        let name = name.to_str().expect("names of source files are plain");
        except.iter().any(|e| e == name)
            || name == "tests.rs"
            || name == "tests"
            || name.ends_with("_tests.rs")
    };
    let mut found = all_files(dir);
    found.retain(|path| !path.strip_prefix(dir).expect("it is below").iter().any(is_left_out));
    found
}

/// What a character of a source file belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    /// The content of a string or character, without its quotes.
    Text,
}

/// One [`Part`] for each byte.
fn parts(text: &str) -> Vec<Part> {
    let bytes = text.as_bytes();
    let mut parts = vec![Part::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (part, inside) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (Part::Comment, at..end_of_line(bytes, at)),
            b'/' if bytes[at..].starts_with(b"/*") => (Part::Comment, at..end_of_block(bytes, at)),
            b'"' => (Part::Text, string(bytes, at)),
            b'r' if starts_raw(bytes, at) => (Part::Text, raw_string(bytes, at)),
            b'\'' => match character(bytes, at) {
                Some(inside) => (Part::Text, inside),
                None => (Part::Code, at..at),
            },
            _ => (Part::Code, at..at),
        };
        parts[inside.clone()].fill(part);
        at = match part {
            Part::Code => at + 1,
            Part::Comment => inside.end,
            // Past the closing quote, and the hashes of a raw string.
            Part::Text => inside.end + 1,
        };
    }
    parts
}

fn end_of_line(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn end_of_block(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn string(bytes: &[u8], quote: usize) -> Range<usize> {
    let mut at = quote + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    quote + 1..at.min(bytes.len())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn starts_raw(bytes: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).map(|n| bytes[n]);
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    before.is_none_or(|b| !is_word(b) || b == b'b') && bytes.get(at + 1 + hashes) == Some(&b'"')
}

fn raw_string(bytes: &[u8], at: usize) -> Range<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    let begin = at + hashes + 2;
    let closes =
        |n: &usize| bytes[*n] == b'"' && bytes[n + 1..].iter().take_while(|b| **b == b'#').count() >= hashes;
    begin..(begin..bytes.len()).find(closes).unwrap_or(bytes.len())
}

/// The content of a character, or `None`: the quote begins a lifetime.
fn character(bytes: &[u8], quote: usize) -> Option<Range<usize>> {
    let end = match bytes.get(quote + 1)? {
        // An escape has at least one character.
        b'\\' => quote + 3 + bytes.get(quote + 3..)?.iter().position(|b| *b == b'\'')?,
        // One character, of up to four bytes.
        _ => (quote + 2..bytes.len().min(quote + 6)).find(|n| bytes[*n] == b'\'')?,
    };
    let inside = std::str::from_utf8(&bytes[quote + 1..end]).ok()?;
    (inside.starts_with('\\') || inside.chars().count() == 1).then_some(quote + 1..end)
}

/// The file without its test items; comments stay.
pub fn production(text: &str) -> String {
    let parts = parts(text);
    let (mut kept, mut from) = (String::new(), 0);
    for (at, _) in text.match_indices("#[cfg(test)]") {
        if at < from || parts[at] != Part::Code {
            continue;
        }
        kept.push_str(&text[from..at]);
        from = end_of_item(text, &parts, at);
    }
    kept + &text[from..]
}

/// Where the item ends that has the attribute at `at`.
fn end_of_item(text: &str, parts: &[Part], at: usize) -> usize {
    let bytes = text.as_bytes();
    // Outside of every bracket `<` begins a list of types.
    let (mut depth, mut types, mut at) = (0, 0, at);
    while at < bytes.len() {
        if parts[at] == Part::Code {
            match bytes[at] {
                b'<' if depth == 0 => types += 1,
                b'>' if depth == 0 && !matches!(bytes[at - 1], b'-' | b'=') => types -= 1,
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' => depth -= 1,
                b'}' if depth <= 1 => {
                    let end = at + usize::from(depth == 1);
                    // A list of imports, a constant, a variant.
                    return end + usize::from(matches!(bytes.get(end), Some(b';' | b',')));
                }
                b'}' => depth -= 1,
                // An item without a body; a field, a variant or an arm.
                b';' if depth == 0 => return at + 1,
                b',' if depth == 0 && types == 0 => return at + 1,
                _ => {}
            }
        }
        at += 1;
    }
    at
}

/// The production code of a file, without comments; strings stay.
pub fn code(text: &str) -> String {
    let text = production(text);
    let parts = parts(&text);
    // Both ends of a comment are ASCII or the end of a line: what is left is whole characters.
    let kept = text.bytes().zip(parts).filter(|(_, part)| *part != Part::Comment).map(|(byte, _)| byte);
    String::from_utf8(kept.collect()).expect("comments are whole characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_item_of_the_attribute_is_left_out() {
        let text = "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}\n#[cfg(test)]\n#[path = \"x;y.rs\"]\nmod other;\nfn g() {}";
        assert_eq!(production(text), "mod a;\n\nfn f() {}\n\nfn g() {}");
        let text = "#[cfg(test)]\nmod tests {\n    fn f() { let s = \"}\"; let c = '}'; let l: &'a u8; }\n}\nfn g() {}";
        assert_eq!(production(text), "\nfn g() {}");
        let text = "#[cfg(test)]\nfn f<'a>(x: &'a [u8; 3]) -> u8 { r#\"}\"#; 0 }\nfn g() {}";
        assert_eq!(production(text), "\nfn g() {}");
        let text = "struct S {\n    #[cfg(test)]\n    seen: Vec<(u8, u8)>,\n    kept: u8,\n}";
        assert_eq!(production(text), "struct S {\n    \n    kept: u8,\n}");
        let text = "#[cfg(test)]\nfn f<A, B>(a: A) -> Map<A, B> {}\nfn g() {}";
        assert_eq!(production(text), "\nfn g() {}");
        let text = "#[cfg(test)]\nuse a::{b, c};\nuse d;";
        assert_eq!(production(text), "\nuse d;");
        assert_eq!(production("let s = \"#[cfg(test)]\"; f();"), "let s = \"#[cfg(test)]\"; f();");
    }

    #[test]
    fn comments_are_no_code_and_strings_are() {
        assert_eq!(
            code("a(\"// no comment\"); // but this\nb(); /* and /* this */ */ c()"),
            "a(\"// no comment\"); \nb();  c()"
        );
        assert_eq!(code("let q = '\"'; let s = b\"\\\"//\"; // ü"), "let q = '\"'; let s = b\"\\\"//\"; ");
    }
}
