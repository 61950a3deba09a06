//! A measured value as it is written as JSON.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A measured value. JSON has no NaN and no infinities, so these are the texts `NaN`, `Infinity` and `-Infinity`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured(pub f64);

/// Each power that a number is below takes one more decimal.
const POWERS: [f64; 7] = [1e4, 1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2];

impl Measured {
    /// Formats the value for people, with about five digits.
    #[must_use]
    pub fn short(self) -> String {
        let Measured(value) = self;
        let size = value.abs();
        match size {
            _ if !value.is_finite() => self.to_string(),
            _ if size != 0.0 && !(1e-3..1e7).contains(&size) => format!("{value:.4e}"),
            _ if value.fract() == 0.0 => format!("{value}"),
            _ => {
                let decimals = POWERS.iter().take_while(|power| size < **power).count();
                format!("{value:.decimals$}")
            }
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("Infinity"),
            f64::NEG_INFINITY => f.write_str("-Infinity"),
            value => write!(f, "{value}"),
        }
    }
}

impl Serialize for Measured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f64(self.0) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for Measured {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = Measured;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Measured, E> {
        Ok(Measured(value))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a measured value has the precision of a f64, however it is written"
    )]
    fn visit_u64<E: Error>(self, value: u64) -> Result<Measured, E> {
        Ok(Measured(value as f64))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a measured value has the precision of a f64, however it is written"
    )]
    fn visit_i64<E: Error>(self, value: i64) -> Result<Measured, E> {
        Ok(Measured(value as f64))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Measured, E> {
        match text {
            "NaN" => Ok(Measured(f64::NAN)),
            "Infinity" => Ok(Measured(f64::INFINITY)),
            "-Infinity" => Ok(Measured(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_value_has_five_digits_and_stays_readable() {
        let check = |value: f64, text: &str| assert_eq!(Measured(value).short(), text);
        check(2.309_81, "2.3098");
        check(12.345_678, "12.346");
        check(3e-11, "3.0000e-11");
        check(65_536.0, "65536");
        check(0.0, "0");
        check(1.5e9, "1.5000e9");
        check(f64::NAN, "NaN");
        check(f64::NEG_INFINITY, "-Infinity");
    }

    #[test]
    fn every_kind_of_value_comes_back_and_other_texts_are_refused() {
        let there_and_back = |value: f64| {
            let text = serde_json::to_string(&Measured(value)).expect("it is JSON");
            serde_json::from_str::<Measured>(&text).expect("it is one").0
        };
        for value in [0.0, -2.5, 3e-11, 1e15, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(there_and_back(value).to_bits(), value.to_bits());
        }
        assert!(there_and_back(f64::NAN).is_nan());
        let read = |text: &str| serde_json::from_str::<Measured>(text).ok().map(|value| value.0);
        assert_eq!((read("7"), read("-7")), (Some(7.0), Some(-7.0)));
        for bad in ["null", "\"nan\"", "\"\"", "true", "[1]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
