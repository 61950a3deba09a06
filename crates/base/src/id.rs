//! Typed ids. The engine numbers what it creates with small integers, printed with a prefix; people choose
//! names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The id of a job, assigned by the engine in order of submission; printed `job-42`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job-{}", self.0)
    }
}

impl FromStr for JobId {
    type Err = InvalidName;

    /// Parses `job-42` or `42`.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let digits = text.strip_prefix("job-").unwrap_or(text);
        digits.parse().map(JobId).map_err(|_| InvalidName { what: "job id", text: text.to_owned() })
    }
}

/// The id of a sweep: the number of its first job. Its other jobs have the numbers that follow. Printed
/// `sweep-42`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SweepId(pub JobId);

impl fmt::Display for SweepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sweep-{}", self.0.0)
    }
}

impl FromStr for SweepId {
    type Err = InvalidName;

    /// Parses `sweep-42`.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let refused = || InvalidName { what: "sweep id", text: text.to_owned() };
        let digits = text.strip_prefix("sweep-").ok_or_else(refused)?;
        digits.parse().map(|number| SweepId(JobId(number))).map_err(|_| refused())
    }
}

/// The id of a node, assigned by the engine in order of joining; people see its [`NodeName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node-{}", self.0)
    }
}

/// The number of one of a job's attempts, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptNumber(pub u32);

impl AttemptNumber {
    /// The first attempt of every job.
    pub const FIRST: AttemptNumber = AttemptNumber(1);

    /// Returns the number of the next attempt.
    #[must_use]
    pub fn next(self) -> Self {
        AttemptNumber(self.0 + 1)
    }
}

impl fmt::Display for AttemptNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt-{}", self.0)
    }
}

/// One run of a control plane, from its start to the next start, identified by a random number that the
/// journal records first. An attempt is identified by its number and the epoch in which it was placed, so an
/// attempt from a journal that was rolled back is never mistaken for a later one with the same number.
/// Zero stands for the time before epochs were recorded; printed as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The error for an invalid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} \"{text}\" is not valid: use 1 to 63 of a-z, A-Z, 0-9, '-', '_', '.', and start with a letter or digit"
)]
pub struct InvalidName {
    /// The kind of name that was expected.
    pub what: &'static str,
    /// The rejected text.
    pub text: String,
}

/// The longest accepted name, in bytes: the limit of a DNS label, so that a name can become a host name.
const NAME_BYTES_MAX: usize = 63;

fn checked_name(what: &'static str, text: &str) -> Result<String, InvalidName> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.len() <= NAME_BYTES_MAX && text.chars().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err(InvalidName { what, text: text.to_owned() })
    }
}

/// The name of a node, given by its administrator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeName(String);

/// The name of a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct QueueName(String);

/// The name of a pool: nodes reserved for one purpose, which jobs for other purposes never get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PoolName(String);

impl PoolName {
    /// The pool of nodes and jobs that name no pool.
    pub const DEFAULT: &'static str = "training";

    /// Reports whether this is the default pool.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0 == PoolName::DEFAULT
    }
}

impl Default for PoolName {
    fn default() -> Self {
        PoolName(PoolName::DEFAULT.to_owned())
    }
}

macro_rules! name_type {
    ($name:ident, $what:literal) => {
        impl $name {
            /// Validates and wraps a name.
            ///
            /// # Errors
            /// [`InvalidName`] if it is empty, too long, or contains a character that could be special in a
            /// path or URL.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                checked_name($what, text).map($name)
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type!(NodeName, "node name");
name_type!(QueueName, "queue name");
name_type!(PoolName, "pool name");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_read_back_as_printed() {
        assert_eq!(JobId(42).to_string().parse(), Ok(JobId(42)));
        assert_eq!("42".parse(), Ok(JobId(42)));
        assert!("job-".parse::<JobId>().is_err());
        assert!("job--1".parse::<JobId>().is_err());
    }

    #[test]
    fn a_sweep_is_not_taken_for_a_job() {
        assert_eq!(SweepId(JobId(3)).to_string().parse(), Ok(SweepId(JobId(3))));
        assert!("3".parse::<SweepId>().is_err());
        assert!("job-3".parse::<SweepId>().is_err());
        assert!("sweep-3".parse::<JobId>().is_err());
    }

    #[test]
    fn names_that_could_climb_out_of_a_folder_are_refused() {
        for bad in ["", "..", "a/b", ".hidden", "a b", "é", &"x".repeat(64)] {
            assert!(QueueName::new(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(QueueName::new("team-a.research_1").map(|n| n.to_string()), Ok("team-a.research_1".to_owned()));
    }
}
