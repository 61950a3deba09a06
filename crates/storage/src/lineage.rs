//! The order of saves: the branches of a folder, and the save that each checkpoint follows.
//!
//! Training that resumes from an older checkpoint, or starts anew, begins a new branch: what was saved after
//! that point is abandoned, whatever its steps. So "the newest" is decided by the order of saves on the line
//! of the current branch, never by the highest step. Checkpoints without a lineage were saved before branches
//! existed; together they form one branch, in the order of their steps.

use std::fmt;

use gangline_base::{Step, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::FramedHasher;

/// The most branches that a line goes back to. If it forked more often, the oldest are forgotten, and their
/// saves are left alone.
pub(crate) const FORKS_MAX: usize = 256;
/// The most bytes of a run's name.
pub const RUN_BYTES_MAX: usize = 128;

/// A branch's id: 64 bits, unique, except that all saves from before branches existed share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch(u64);

/// The position of a save in the order of a folder's saves: the clock's time, or just after the previous save
/// if the clock is behind that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// Nanoseconds since the Unix epoch; 0 for saves from before branches existed.
    pub(crate) order: u64,
    pub(crate) step: u64,
}

/// The point where a line left a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    pub(crate) branch: Branch,
    /// The last save of that branch that belongs to the line.
    pub(crate) last: Moment,
}

/// A branch and the branches it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) branch: Branch,
    /// The forks, oldest first.
    pub(crate) forks: Vec<Fork>,
}

/// A save that was loaded: its line, and its moment on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) line: Line,
    pub(crate) last: Moment,
}

/// A checkpoint's position among the others, as its manifest records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lineage {
    /// The run that saved it.
    pub(crate) run: String,
    /// Nanoseconds since the Unix epoch.
    pub(crate) saved_at: u64,
    /// See [`Moment::order`].
    pub(crate) order: u64,
    /// The step of the previous save on its line.
    pub(crate) parent: Option<u64>,
    pub(crate) line: Line,
}

impl Branch {
    /// Returns the branch that a save begins.
    fn begun_by(run: &str, moment: Moment) -> Branch {
        let mut hasher = FramedHasher::new("gangline branch 1");
        hasher.field(run.as_bytes());
        hasher.number(moment.order);
        hasher.number(moment.step);
        let digest = hasher.finish();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest.as_bytes()[..8]);
        Branch(u64::from_le_bytes(bytes).max(1))
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for Branch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Branch, &'static str> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Branch).ok_or("a branch's name is 16 hexadecimal digits")
    }
}

impl Serialize for Branch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Branch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Branch, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Line {
    /// Reports whether a save of this branch and moment belongs to the line.
    pub(crate) fn holds(&self, branch: Branch, moment: Moment) -> bool {
        branch == self.branch || self.forks.iter().any(|fork| fork.branch == branch && moment <= fork.last)
    }

    /// Returns a new line that begins with this save, after a moment of the line `from` or after nothing.
    pub(crate) fn begin(run: &str, moment: Moment, from: Option<(&Line, Moment)>) -> Line {
        let mut forks = Vec::new();
        if let Some((line, last)) = from {
            forks.clone_from(&line.forks);
            forks.push(Fork { branch: line.branch, last });
            forks.drain(..forks.len().saturating_sub(FORKS_MAX));
        }
        Line { branch: Branch::begun_by(run, moment), forks }
    }

    /// Returns the step at which it left its previous branch.
    pub(crate) fn forked_at(&self) -> Option<Step> {
        self.forks.last().map(|fork| Step(fork.last.step))
    }
}

impl Lineage {
    /// Returns the rule that the lineage breaks, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.run.len() > RUN_BYTES_MAX {
            Some("its run's name is longer than 128 bytes")
        } else if self.line.forks.len() > FORKS_MAX {
            Some("its line has more than 256 forks")
        } else {
            None
        }
    }

    pub(crate) fn saved_at(&self) -> Timestamp {
        Timestamp::from_unix_nanos(self.saved_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(order: u64) -> Moment {
        Moment { order, step: 10 * order }
    }

    #[test]
    fn a_line_holds_its_branch_and_what_its_forks_had_saved_by_then() {
        let first = Line::begin("a", moment(1), None);
        let second = Line::begin("a", moment(5), Some((&first, moment(3))));
        let third = Line::begin("a", moment(9), Some((&second, moment(7))));
        assert!(first.holds(first.branch, moment(4)));
        assert!(third.holds(first.branch, moment(3)) && !third.holds(first.branch, moment(4)));
        assert!(third.holds(second.branch, moment(7)) && !third.holds(second.branch, moment(8)));
        assert!(third.holds(third.branch, moment(99)) && !second.holds(third.branch, moment(9)));
        assert_eq!(third.forked_at(), Some(Step(70)));
    }

    #[test]
    fn forks_are_bounded_and_the_oldest_are_forgotten() {
        let mut line = Line::begin("a", moment(0), None);
        let first = line.branch;
        for order in 1..=FORKS_MAX as u64 + 1 {
            line = Line::begin("a", moment(order), Some((&line, moment(order - 1))));
        }
        assert_eq!(line.forks.len(), FORKS_MAX);
        assert!(!line.holds(first, moment(0)));
    }

    #[test]
    fn names_of_branches_read_back_and_nothing_else_does() {
        let branch = Line::begin("run", moment(3), None).branch;
        assert_eq!(branch.to_string().parse(), Ok(branch));
        for wrong in ["", "1", "+000000000000001", "00000000000000001", "000000000000000g"] {
            assert!(wrong.parse::<Branch>().is_err(), "{wrong}");
        }
    }
}
