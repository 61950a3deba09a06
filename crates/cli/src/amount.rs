//! Parses amounts on the command line: bytes (`5GB`, `64GiB`) and counts (`70B`, `1.5T`). Whole results are
//! exact.

use std::str::FromStr;

use gangline_base::Bytes;

/// Units of bytes, decimal and binary.
const BYTE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
/// Units of counts, such as those of model sizes.
const COUNT_UNITS: [(&str, u64); 4] = [("K", 1_000), ("M", 1_000_000), ("B", 1_000_000_000), ("T", 1_000_000_000_000)];
/// Maximum number of digits after the point.
const DIGITS_MAX: u32 = 18;

/// Parses a whole number from 1 on, as a type that has no others.
pub(crate) fn positive<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "write a whole number, at least 1".to_owned())
}

/// Parses a size such as `5GB` or `1.5GiB`; not zero.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    amount(text, &BYTE_UNITS).map(Bytes).ok_or_else(|| "write a size with its unit, such as 5GB or 64GiB".to_owned())
}

/// Parses a count such as `70B`; not zero.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    amount(text, &COUNT_UNITS).ok_or_else(|| "write a count with its unit, such as 350M, 70B or 1.5T".to_owned())
}

/// Parses a number of tokens: a count, or all its digits; not zero.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    let plain = text.parse().ok().filter(|count| *count > 0);
    let wrong = || "write a whole number, or one with its unit such as 500M or 1.5T".to_owned();
    plain.or_else(|| amount(text, &COUNT_UNITS)).ok_or_else(wrong)
}

fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let unit = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim_start()))?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= DIGITS_MAX)?;
    let digits = |text: &str| text.parse::<u64>().ok().map(u128::from);
    let value = digits(whole)? * u128::from(unit) + digits(fraction)? * u128::from(unit) / 10_u128.pow(places);
    u64::try_from(value).ok().filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_exactly() {
        let check = |text: &str, expected: u64| assert_eq!(bytes(text), Ok(Bytes(expected)), "{text}");
        check("5GB", 5_000_000_000);
        check("1.5 GiB", 3 << 29);
        check("912gb", 912_000_000_000);
        check("7B", 7);
        check("0.5KB", 500);
        assert_eq!(count("70B"), Ok(70_000_000_000));
        assert_eq!(count("1.5t"), Ok(1_500_000_000_000));
        assert_eq!((tokens("500M"), tokens("500000000")), (Ok(500_000_000), Ok(500_000_000)));
        assert!(tokens("0").is_err() && tokens("-5").is_err());
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "5", "GB", "5XB", "0GB", ".5GB", "5.GB", "-1GB", "1.2.3GB", "99999999999999TB", "1e9GB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(count("70").is_err() && count("70GB").is_err());
    }
}
