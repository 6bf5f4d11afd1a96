//! Numbers parsed from bytes by hand: no `String` per line, and never a float. A FILETIME of 1.28e17 ticks has no exact
//! `f64`, and neither has a trace that spans months in nanoseconds.

use crate::Reason;

/// An unsigned decimal number that fills the whole of `text`, surrounding blanks apart.
pub(crate) fn integer(text: &[u8], field: &'static str) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Err(Reason::Number { field });
    }
    let mut value = 0u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Reason::Number { field });
        }
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit)))
            .ok_or(Reason::Overflow { field })?;
    }
    Ok(value)
}

/// A decimal number with an optional fraction, times 10^`shift`, rounded down: seconds with `shift` 9 are nanoseconds.
pub(crate) fn decimal(text: &[u8], shift: u32, field: &'static str) -> Result<u64, Reason> {
    let text = text.trim_ascii();
    let point = text.iter().position(|&b| b == b'.').unwrap_or(text.len());
    let overflow = || Reason::Overflow { field };
    let whole = match point {
        0 if text.len() > 1 => 0,
        _ => integer(&text[..point], field)?,
    };
    let mut value = whole.checked_mul(10u64.pow(shift)).ok_or_else(overflow)?;
    let mut unit = 10u64.pow(shift);
    for &byte in text.get(point + 1..).unwrap_or_default() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Reason::Number { field });
        }
        unit /= 10;
        value = value.checked_add(u64::from(digit) * unit).ok_or_else(overflow)?;
    }
    Ok(value)
}

/// `value * unit`, or the overflow of `field`.
pub(crate) fn times(value: u64, unit: u64, field: &'static str) -> Result<u64, Reason> {
    value.checked_mul(unit).ok_or(Reason::Overflow { field })
}

/// Splits a line at single separators into exactly the first `N` fields; the rest is ignored.
pub(crate) fn fields<const N: usize>(line: &[u8], separator: u8) -> Result<[&[u8]; N], Reason> {
    let mut found = [&line[..0]; N];
    let mut rest = Some(line);
    for (i, field) in found.iter_mut().enumerate() {
        let Some(text) = rest else { return Err(Reason::Fields { found: i, need: N }) };
        match text.iter().position(|&b| b == separator) {
            Some(end) => (*field, rest) = (&text[..end], Some(&text[end + 1..])),
            None => (*field, rest) = (text, None),
        }
    }
    Ok(found)
}

/// Splits a line at runs of blanks into exactly the first `N` fields; the rest is ignored.
pub(crate) fn words<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], Reason> {
    let mut found = [&line[..0]; N];
    let mut rest = line.trim_ascii_start();
    for (i, field) in found.iter_mut().enumerate() {
        if rest.is_empty() {
            return Err(Reason::Fields { found: i, need: N });
        }
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        *field = &rest[..end];
        rest = rest[end..].trim_ascii_start();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_and_checked() {
        assert_eq!(integer(b" 128166372000000001 ", "t"), Ok(128_166_372_000_000_001));
        assert_eq!(integer(b"18446744073709551615", "t"), Ok(u64::MAX));
        assert_eq!(integer(b"18446744073709551616", "t"), Err(Reason::Overflow { field: "t" }));
        for bad in [&b""[..], b"-1", b"1e3", b"0x10", b"1 2"] {
            assert_eq!(integer(bad, "t"), Err(Reason::Number { field: "t" }), "{bad:?}");
        }
    }

    #[test]
    fn decimals_keep_nanoseconds() {
        assert_eq!(decimal(b"0.026214", 9, "t"), Ok(26_214_000));
        assert_eq!(decimal(b"5", 9, "t"), Ok(5_000_000_000));
        assert_eq!(decimal(b"5.", 9, "t"), Ok(5_000_000_000));
        assert_eq!(decimal(b".5", 9, "t"), Ok(500_000_000));
        assert_eq!(decimal(b"1.0000000019", 9, "t"), Ok(1_000_000_001));
        assert_eq!(decimal(b"18446744074.0", 9, "t"), Err(Reason::Overflow { field: "t" }));
        for bad in [&b""[..], b".", b"1.2.3", b"1.2e5", b"-0.1"] {
            assert!(decimal(bad, 9, "t").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fields_and_words_report_what_is_missing() {
        assert_eq!(fields::<3>(b"a,,c,d", b','), Ok([&b"a"[..], b"", b"c"]));
        assert_eq!(fields::<3>(b"a,b", b','), Err(Reason::Fields { found: 2, need: 3 }));
        assert_eq!(words::<2>(b"  a \t b c"), Ok([&b"a"[..], b"b"]));
        assert_eq!(words::<2>(b" a  "), Err(Reason::Fields { found: 1, need: 2 }));
    }
}
