//! Lines for people that are not wider than they read well.

/// Most columns of a line that is broken.
const WIDTH: usize = 100;

/// Digits with a comma before each three.
pub fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `head` and the text beside it, broken at blanks; what does not fit stands below the text's beginning.
pub fn wrapped(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let (mut out, mut column) = (head.to_owned(), indent);
    for (number, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if number > 0 && column + 1 + width > WIDTH {
            out += &format!("\n{:indent$}", "");
            column = indent;
        } else if number > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wide_goes_on_below_its_beginning() {
        assert_eq!(wrapped("note  ", "short, as is"), "note  short, as is");
        let text = "word ".repeat(30);
        let lines: Vec<String> = wrapped("note  ", text.trim_end()).lines().map(str::to_owned).collect();
        assert_eq!((lines.len(), lines[0].len()), (2, 100), "{lines:?}");
        assert!(lines[0].starts_with("note  word") && lines[1].starts_with("      word word"), "{lines:?}");
        assert_eq!(lines.join(" ").split_whitespace().count(), 31, "nothing is lost");
        let long = format!("a {} b", "x".repeat(120));
        assert_eq!(wrapped("  ", &long).lines().count(), 3, "a long word has its line");
    }
}
