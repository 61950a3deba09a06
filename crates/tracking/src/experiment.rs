//! Experiments: named groups of runs.

use std::fmt;

use crate::{Entry, Refusal, UnixMillis};

/// The number of an experiment. 0 is the one named Default, which always exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExperimentId(pub i64);

/// Whether something is in use or was deleted. What was deleted can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// In use.
    Active,
    /// Deleted.
    Deleted,
}

/// Which of them a search is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Those in use.
    #[default]
    Active,
    /// Those deleted.
    Deleted,
    /// All.
    All,
}

/// A named group of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// Its number.
    pub id: ExperimentId,
    /// Its name, which no other experiment has.
    pub name: String,
    /// Where its runs' artifacts lie, as a URI.
    pub artifact_location: String,
    /// Whether it is in use.
    pub lifecycle: Lifecycle,
    /// When it was made.
    pub created: UnixMillis,
    /// When its name or its lifecycle last changed.
    pub updated: UnixMillis,
    /// Its tags, by key.
    pub tags: Vec<Entry>,
}

impl ExperimentId {
    /// Reads an id as clients send it.
    ///
    /// # Errors
    /// If it isn't a whole number.
    pub fn parse(text: &str) -> Result<ExperimentId, Refusal> {
        let message = || format!("Invalid experiment ID '{text}'. Experiment ID must be a valid integer.");
        text.parse().map(ExperimentId).map_err(|_| Refusal::invalid(message()))
    }
}

impl fmt::Display for ExperimentId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

impl Lifecycle {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Lifecycle::Active => "active",
            Lifecycle::Deleted => "deleted",
        }
    }

    /// Reads a name.
    pub fn parse(name: &str) -> Option<Lifecycle> {
        [Lifecycle::Active, Lifecycle::Deleted].into_iter().find(|lifecycle| lifecycle.name() == name)
    }
}

impl View {
    /// Reads a view by its name or its number on the wire.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<View, Refusal> {
        match text {
            "ACTIVE_ONLY" | "1" => Ok(View::Active),
            "DELETED_ONLY" | "2" => Ok(View::Deleted),
            "ALL" | "3" => Ok(View::All),
            _ => Err(Refusal::invalid(format!("Invalid view type '{text}': write ACTIVE_ONLY, DELETED_ONLY or ALL"))),
        }
    }

    /// The one lifecycle that it shows; none if it shows all.
    pub fn only(self) -> Option<Lifecycle> {
        match self {
            View::Active => Some(Lifecycle::Active),
            View::Deleted => Some(Lifecycle::Deleted),
            View::All => None,
        }
    }
}
