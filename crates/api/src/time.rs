//! Times on the wire: RFC 3339 in UTC, to the nanosecond.

use std::fmt;

use gangline_base::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

/// A point in time as `2026-11-21T09:30:00.123456789Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, examples("2026-11-21T09:30:00.123456789Z"))]
pub struct Time(pub Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.0.unix_nanos());
        match jiff::Timestamp::from_nanosecond(nanos) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{nanos} ns since 1970"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        let nanos = u64::try_from(time.as_nanosecond()).map_err(de::Error::custom)?;
        Ok(Time(Timestamp::from_unix_nanos(nanos)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_as_written() {
        let time = Time(Timestamp::from_unix_nanos(1_795_253_400_123_456_789));
        let json = serde_json::to_string(&time).expect("a string");
        assert_eq!(json, "\"2026-11-21T09:30:00.123456789Z\"");
        assert_eq!(serde_json::from_str::<Time>(&json).expect("reads back"), time);
        assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
    }
}
