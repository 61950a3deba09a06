//! Quantities with their units.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// The error for text that is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a size: write a number and a unit such as 512MiB, 256GiB or 1TB")]
pub struct InvalidBytes {
    /// The rejected text.
    pub text: String,
}

/// Units in which a size may be written, longest suffix first.
const BYTE_UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl FromStr for Bytes {
    type Err = InvalidBytes;

    /// Parses `256GiB`, `1 TB` or `4096B`; a unit is required so that nobody has to guess it.
    fn from_str(text: &str) -> Result<Self, InvalidBytes> {
        let refused = || InvalidBytes { text: text.to_owned() };
        let (suffix, factor) =
            BYTE_UNITS.into_iter().find(|(suffix, _)| text.trim().ends_with(suffix)).ok_or_else(refused)?;
        let number = text.trim().trim_end_matches(suffix).trim_end();
        let count: u64 = number.parse().map_err(|_| refused())?;
        count.checked_mul(factor).map(Bytes).ok_or_else(refused)
    }
}

impl fmt::Display for Bytes {
    /// Writes the size with one decimal, in the largest binary unit in which it is at least one: `1.5 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, bits)| self.0 >> bits > 0);
        match unit {
            None => write!(f, "{} B", self.0),
            Some((name, bits)) => {
                let tenths = (u128::from(self.0) * 10) >> bits;
                write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
            }
        }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(items: I) -> Bytes {
        items.fold(Bytes(0), Add::add)
    }
}

/// A number of tokens (bytes, for a byte-level model).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

/// A training step: the number of optimizer steps completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Step(pub u64);

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Wall time multiplied by a number of devices, stored as nano-GPU-seconds. "GPU" stands for any accelerator,
/// including a CPU slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuSeconds {
    nanos: u128,
}

impl GpuSeconds {
    /// Zero GPU-seconds.
    pub const ZERO: GpuSeconds = GpuSeconds { nanos: 0 };

    /// Builds a value from nano-GPU-seconds.
    #[must_use]
    pub const fn from_nanos(nanos: u128) -> Self {
        GpuSeconds { nanos }
    }

    /// Returns `devices` multiplied by `wall`.
    #[must_use]
    pub fn of(devices: u32, wall: Duration) -> Self {
        GpuSeconds { nanos: wall.as_nanos() * u128::from(devices) }
    }

    /// Returns the value in nano-GPU-seconds.
    #[must_use]
    pub const fn nanos(self) -> u128 {
        self.nanos
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: GpuSeconds) -> GpuSeconds {
        GpuSeconds { nanos: self.nanos.saturating_sub(other.nanos) }
    }
}

impl Add for GpuSeconds {
    type Output = GpuSeconds;
    fn add(self, other: GpuSeconds) -> GpuSeconds {
        GpuSeconds { nanos: self.nanos + other.nanos }
    }
}

impl Sub for GpuSeconds {
    type Output = GpuSeconds;
    fn sub(self, other: GpuSeconds) -> GpuSeconds {
        GpuSeconds { nanos: self.nanos - other.nanos }
    }
}

impl Sum for GpuSeconds {
    fn sum<I: Iterator<Item = GpuSeconds>>(items: I) -> GpuSeconds {
        items.fold(GpuSeconds::ZERO, Add::add)
    }
}

impl fmt::Display for GpuSeconds {
    /// Writes seconds with three decimals, rounded down.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.nanos / 1_000_000_000, self.nanos / 1_000_000 % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!("256GiB".parse(), Ok(Bytes(256 << 30)));
        assert_eq!("1 TB".parse(), Ok(Bytes(1_000_000_000_000)));
        assert_eq!("7B".parse(), Ok(Bytes(7)));
        for bad in ["", "12", "GiB", "-1GiB", "1.5GiB", "99999999999TiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1_572_864).to_string(), "1.5 MiB");
    }

    #[test]
    fn device_time_is_wall_times_devices() {
        assert_eq!(GpuSeconds::of(8, Duration::from_millis(1_500)).to_string(), "12.000");
    }
}
