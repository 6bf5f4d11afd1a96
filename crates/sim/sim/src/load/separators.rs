//! Whether the separators within a series' numbers may be for thousands.
//!
//! `1.060` is 1060 in one country and 1.06 in another. One number does not say which, but the others may: a program
//! that groups thousands does so in every number from 1000 on, and in none below. So a series is unclear only if each
//! of its numbers could be of such a program, some with a separator and some without. Where every number has three
//! decimals, as `%.3f` writes them, they are taken for decimals: that is common, and a factor on all loads changes no
//! schedule that the highest step provisions.

const SIGNS: [char; 2] = ['.', ','];

/// What the numbers read so far show.
#[derive(Default)]
pub(super) struct Separators {
    /// By sign: the first number with it that thousands may have, with its line.
    grouped: [Option<(usize, String)>; 2],
    /// By sign: a number has it that thousands cannot have, such as `0.250` or `12.5`.
    decimal: [bool; 2],
    /// A number from 1 to 999 has no separator.
    below: bool,
    /// One from 1000 on has none either, or is written with an exponent.
    plain: bool,
}

impl Separators {
    pub fn see(&mut self, line: usize, number: &str) {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let leads = |whole: &str| matches!(whole.len(), 1..=3) && digits(whole) && !whole.starts_with('0');
        let Some(sign) = SIGNS.iter().position(|sign| number.contains(*sign)) else {
            // Zero is written so by everyone.
            let zero = number.bytes().all(|byte| byte == b'0');
            self.below |= leads(number);
            self.plain |= !leads(number) && !zero;
            return;
        };
        let (whole, behind) = number.split_once(SIGNS[sign]).expect("it contains the sign");
        if leads(whole) && behind.len() == 3 && digits(behind) {
            self.grouped[sign].get_or_insert_with(|| (line, number.to_owned()));
        } else {
            self.decimal[sign] = true;
        }
    }

    /// The first number that may be a thousand times larger.
    pub fn unclear(&mut self) -> Option<(usize, String)> {
        // If the other sign is for decimals, this one is not.
        let thousands = |sign: usize| self.decimal[1 - sign] || self.below && !self.plain;
        let sign =
            (0..2).find(|sign| !self.decimal[*sign] && self.grouped[*sign].is_some() && thousands(*sign));
        self.grouped[sign?].take()
    }
}

/// Whether it has two separators, the first of which is for thousands: `1.060,5`, `1.060.500`.
pub(super) fn has_thousands(number: &str) -> bool {
    let parts: Vec<&str> = number.split(SIGNS).collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.len() > 2 && parts[1].len() == 3 && parts.iter().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unclear(numbers: &str) -> Option<(usize, String)> {
        let mut separators = Separators::default();
        numbers.split(' ').enumerate().for_each(|(line, number)| separators.see(line, number));
        separators.unclear()
    }

    #[test]
    fn numbers_that_thousands_may_have_are_unclear() {
        for (numbers, first) in [
            ("990 1.060 1.071", (1, "1.060")),
            ("990 1,060 0", (1, "1,060")),
            ("12.345 7 0", (0, "12.345")),
            ("990,5 1.060", (1, "1.060")),
            ("0.5 100 7,125", (2, "7,125")),
        ] {
            assert_eq!(unclear(numbers), Some((first.0, first.1.to_owned())), "{numbers}");
        }
    }

    #[test]
    fn two_separators_show_that_the_first_is_for_thousands() {
        assert!(["1.060,5", "1,060.5", "1.060.500", "1,060,500"].into_iter().all(has_thousands));
        assert!(!["1.060", "31.12.2026", "1..060", "1.060,x", "1060"].into_iter().any(has_thousands));
    }

    #[test]
    fn numbers_that_thousands_cannot_have_show_that_all_are_decimals() {
        for numbers in [
            "12.345 8.719 990.000",
            "6.000 7.404 0",
            "12,345 0,250",
            "990 1.060 0.125",
            "990 1.060 12.5",
            "990 1.060 1060",
            "990 1.060 1e3",
            "990 1.060 1234.567",
            "990 1.060 0.000",
            "990 1060 2",
        ] {
            assert_eq!(unclear(numbers), None, "{numbers}");
        }
    }
}
