//! Durations, sizes and bytes as people write them: one grammar for every command line and configuration.

use crate::Bytes;
use std::time::Duration;

/// `500us`, `10ms`, `1.5s`, `15m`, `2h`, `7d`; `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("invalid duration {text:?}: write a number and a unit, such as 10ms, 1.5s, 15m or 2h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match text[digits..].trim() {
        "" if number == 0.0 => 1.0,
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}

/// `4096`, `4KiB`, `1 MiB`, `16GiB`.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => {
            return Err(format!("invalid size {text:?}: write bytes, or a number with KiB, MiB, GiB or TiB"));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("invalid size {text:?}: it does not begin with a number of bytes"))?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| format!("invalid size {text:?}: it is too large"))
}

/// `request`, or `requests` of any other number than one.
pub fn plural(count: u64, one: &str) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

/// `1 request`, `2 requests`
pub fn counted(count: u64, one: &str) -> String {
    format!("{count} {}", plural(count, one))
}

/// What parsers say of numbers, and what the person who wrote the number has to know.
const OF_NUMBERS: [(&str, &str); 15] = [
    ("cannot parse float from empty string", "a number is missing"),
    ("cannot parse integer from empty string", "a number is missing"),
    ("invalid float literal", "it is not a number"),
    ("invalid digit found in string", "it is not a whole number, or it is negative"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    (" as i128", ""),
    (" as u128", ""),
    ("expected u8", "expected a whole number from 0 to 255"),
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u64", "expected a whole number, 0 or more"),
    ("expected usize", "expected a whole number, 0 or more"),
    ("expected i64", "expected a whole number"),
    ("expected f64", "expected a number"),
];

/// An error about a number, without the types of the program.
pub fn numbers_in_words(error: &str) -> String {
    OF_NUMBERS.iter().fold(error.to_owned(), |text, (said, meant)| text.replace(said, meant))
}

/// Two lower-case digits per byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Whether a caller's secret is the right one. Takes a time that depends on the lengths only.
pub fn is_same_secret(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    a.len() == b.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_right_as_a_whole_or_not_at_all() {
        assert!(is_same_secret(b"secret", b"secret") && is_same_secret(b"", b""));
        for other in [&b"secre"[..], b"secrets", b"Secret", b"secreT", b""] {
            assert!(!is_same_secret(b"secret", other) && !is_same_secret(other, b"secret"));
        }
    }

    #[test]
    fn one_of_a_thing_is_no_plural() {
        let all = [0, 1, 2].map(|count| counted(count, "request"));
        assert_eq!(all, ["0 requests", "1 request", "2 requests"]);
    }

    #[test]
    fn errors_about_numbers_name_no_types() {
        let whole = |text: &str| numbers_in_words(&text.parse::<u8>().unwrap_err().to_string());
        assert_eq!(whole(""), "a number is missing");
        assert_eq!(whole("-1"), "it is not a whole number, or it is negative");
        assert_eq!(whole("300"), "the number is too large");
        let number = |text: &str| numbers_in_words(&text.parse::<f64>().unwrap_err().to_string());
        assert_eq!(
            (number("").as_str(), number("1,5").as_str()),
            ("a number is missing", "it is not a number")
        );
        assert_eq!(
            numbers_in_words("invalid value: integer `99` as i128, expected u16"),
            "invalid value: integer `99`, expected a whole number from 0 to 65535"
        );
    }

    #[test]
    fn durations_have_units_and_nothing_else_is_one() {
        for (text, millis) in
            [("0", 0), ("10ms", 10), ("1.5s", 1500), ("15m", 900_000), ("2 h", 7_200_000), ("1d", 86_400_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("500us"), Ok(Duration::from_micros(500)));
        for wrong in ["", "5", "s", "-1s", "1.5.2s", "1y", "1e9d", "99999999999999999999d", "NaNs"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_binary_and_bounded() {
        assert_eq!(parse_bytes("4096"), Ok(Bytes(4096)));
        assert_eq!(parse_bytes("4KiB"), Ok(Bytes(4096)));
        assert_eq!(parse_bytes("2 TiB"), Ok(Bytes(2 << 40)));
        for wrong in ["", "KiB", "4KB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hex_is_two_digits_a_byte() {
        assert_eq!(hex(&[0, 0x0f, 0xa0, 0xff]), "000fa0ff");
    }
}
