//! Amounts as people write them in a file of hardware or prices: a number and its unit. Without the unit they are refused, so that nobody
//! has to guess it.

/// A kind of amount: what an error says is expected, and the units with their factors, longest first where one ends another.
pub(crate) struct Units {
    /// For an error: `a size such as "80GB"`.
    pub(crate) expected: &'static str,
    factors: &'static [(&'static str, f64)],
}

const KIBI: f64 = 1024.0;

/// Sizes, in bytes.
pub(crate) const SIZE: Units = Units {
    expected: "a size with its unit, such as \"80GB\" or \"81559MiB\"",
    factors: &[
        ("KiB", KIBI),
        ("MiB", KIBI * KIBI),
        ("GiB", KIBI * KIBI * KIBI),
        ("TiB", KIBI * KIBI * KIBI * KIBI),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
    ],
};

/// Rates of bytes, in bytes a second; `b` is a bit.
pub(crate) const RATE: Units = Units {
    expected: "a rate with its unit, such as \"3350GB/s\" or \"400Gb/s\"",
    factors: &[
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("TB/s", 1e12),
        ("Mb/s", 1e6 / 8.0),
        ("Gb/s", 1e9 / 8.0),
        ("Tb/s", 1e12 / 8.0),
    ],
};

/// Rates of floating-point operations, in operations a second.
pub(crate) const WORK: Units = Units {
    expected: "a rate with its unit, such as \"989.4TFLOPS\"",
    factors: &[("GFLOPS", 1e9), ("TFLOPS", 1e12), ("PFLOPS", 1e15)],
};

/// Power, in watts.
pub(crate) const POWER: Units =
    Units { expected: "a power with its unit, such as \"700W\"", factors: &[("kW", 1e3), ("W", 1.0)] };

/// Durations, in seconds.
pub(crate) const TIME: Units =
    Units { expected: "a time with its unit, such as \"2us\"", factors: &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)] };

/// Greatest amount of anything.
const AMOUNT_MAX: f64 = 1e21;

/// The amount in the unit that has the factor 1; nothing where the text is no positive number with one of the units.
pub(crate) fn read(text: &str, units: &Units) -> Option<f64> {
    let (unit, factor) = units.factors.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
    let amount = number * factor;
    (amount > 0.0 && amount <= AMOUNT_MAX).then_some(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit_are_an_amount() {
        assert_eq!(read("80GB", &SIZE), Some(80e9));
        assert_eq!(read("1 GiB", &SIZE), Some(1_073_741_824.0));
        assert_eq!(read("400Gb/s", &RATE), Some(50e9));
        assert_eq!(read("3350GB/s", &RATE), Some(3350e9));
        assert_eq!(read("989.4TFLOPS", &WORK), Some(989.4e12));
        assert_eq!(read("1.2kW", &POWER), Some(1200.0));
        assert_eq!(read("2us", &TIME), Some(2e-6));
    }

    #[test]
    fn no_unit_another_unit_and_no_amount_are_refused() {
        for (text, units) in [("80", &SIZE), ("80GB/s", &SIZE), ("GB", &SIZE), ("-1GB", &SIZE), ("0GB", &SIZE)] {
            assert_eq!(read(text, units), None, "{text}");
        }
        for text in ["3350", "3350GB", "infGB/s", "NaNGB/s", "1e300TB/s", ""] {
            assert_eq!(read(text, &RATE), None, "{text}");
        }
    }
}
