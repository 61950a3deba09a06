//! Which jobs a listing has.

use std::collections::BTreeSet;

use gangline_base::Timestamp;

use super::parts::StateRecord;
use super::record::JobRecord;

/// Whether jobs have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// All.
    #[default]
    Any,
    /// Jobs that wait or hold devices.
    Live,
    /// Jobs that have ended.
    Ended,
}

/// The jobs that a listing has: those that meet every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether they have ended.
    pub standing: Standing,
    /// Who submitted them.
    pub user: Option<String>,
    /// The queue they are in.
    pub queue: Option<String>,
    /// A part of their name, in lower or upper case.
    pub name: Option<String>,
    /// Their state, one of these; empty for any.
    pub states: BTreeSet<StateRecord>,
    /// The time at or after which they were submitted. Later jobs have higher ids.
    pub since: Option<Timestamp>,
}

impl From<Standing> for Wanted {
    fn from(standing: Standing) -> Wanted {
        Wanted { standing, ..Wanted::default() }
    }
}

impl Wanted {
    /// Reports whether anything but the standing is asked of a job.
    pub(super) fn is_choosy(&self) -> bool {
        *self != Wanted::from(self.standing)
    }

    /// Reports whether a job is wanted.
    pub(super) fn has(&self, record: &JobRecord) -> bool {
        let has_standing = match self.standing {
            Standing::Any => true,
            Standing::Live => !record.state.is_final(),
            Standing::Ended => record.state.is_final(),
        };
        let is_of = |wanted: &Option<String>, its: &str| wanted.as_ref().is_none_or(|wanted| wanted == its);
        let is_named = |part: &String| record.name.to_lowercase().contains(&part.to_lowercase());
        has_standing
            && is_of(&self.user, &record.submitter)
            && is_of(&self.queue, &record.queue)
            && self.name.as_ref().is_none_or(is_named)
            && (self.states.is_empty() || self.states.contains(&record.state))
            && !self.is_too_old(record)
    }

    /// Reports whether a job was submitted too long ago, as every one before it was too.
    pub(super) fn is_too_old(&self, record: &JobRecord) -> bool {
        self.since.is_some_and(|since| record.submitted_at < since)
    }
}
