//! Recovery from a journal that can't be written. The control plane either ends, for a service manager to
//! start it again, or checks now and then whether the cause is gone. It then replays the durable entries into
//! a new engine and rebuilds everything else, as a restart does: nothing that was answered with a failure is
//! assumed. Running jobs go on meanwhile.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp, with_causes};
use gangline_execution::protocol::SupervisorSpec;
use tracing::{debug, error, info};

use super::actor::Actor;
use super::housekeeping::{Chore, Housekeeping};
use super::known::KnownKeys;
use super::looks::{Look, Looking};
use super::start::replay;
use gangline_store::codec::encode_snapshot;
use gangline_store::db::Recovered;

/// Time from a failure to the first check whether its cause is gone; each further pause is twice as long.
const LOOK_AFTER_MIN: Duration = Duration::from_secs(1);
/// The longest pause between two checks.
const LOOK_AFTER_MAX: Duration = Duration::from_secs(30);

/// What the control plane does when its journal can't be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnJournalFailure {
    /// It exits, and its service manager starts it again.
    Exit,
    /// It stays, refuses changes, and resumes from the durable entries once the journal can be written again.
    #[default]
    Heal,
}

/// Schedule of the checks whether a failed journal can be written again.
#[derive(Debug, Default)]
pub(super) struct Healing {
    next: Option<(Timestamp, Duration)>,
}

impl Healing {
    /// Reports whether a check is due. The first is due [`LOOK_AFTER_MIN`] after the failure.
    fn is_due(&mut self, now: Timestamp) -> bool {
        let (at, pause) = *self.next.get_or_insert((now + LOOK_AFTER_MIN, LOOK_AFTER_MIN));
        let is_due = now >= at;
        if is_due {
            let longer = (pause * 2).min(LOOK_AFTER_MAX);
            self.next = Some((now + longer, longer));
        }
        is_due
    }
}

/// State that outlives the engine's: gangs in the launching thread, which must not be launched twice; looks
/// that are under way; and the idempotency keys that handles know.
pub(super) struct UnderWay {
    pub(super) launches: SyncSender<Vec<SupervisorSpec>>,
    pub(super) launching: BTreeSet<(JobId, AttemptNumber, NodeName)>,
    pub(super) relaunches: Vec<(Timestamp, Vec<SupervisorSpec>)>,
    pub(super) looks: SyncSender<Look>,
    pub(super) looking: Looking,
    pub(super) housekeeping: Housekeeping,
    pub(super) known: KnownKeys,
}

/// Channels for work that may block: gangs to start, looks, and the journal's chores.
pub(super) type Outlets = (SyncSender<Vec<SupervisorSpec>>, SyncSender<Look>, SyncSender<Chore>);

impl UnderWay {
    /// Creates the state of a fresh start, with nothing under way.
    pub(super) fn nothing((launches, looks, chores): Outlets) -> UnderWay {
        UnderWay {
            launches,
            launching: BTreeSet::new(),
            relaunches: Vec::new(),
            looks,
            looking: Looking::default(),
            housekeeping: Housekeeping::new(chores),
            known: KnownKeys::default(),
        }
    }
}

impl Actor {
    /// Returns the actor unchanged unless the journal has failed; then exits or heals, as configured.
    ///
    /// # Errors
    /// Why the control plane can't go on.
    pub(super) fn survive_failure(self, now: Timestamp, healing: &mut Healing) -> Result<Actor, String> {
        let Some(cause) = self.journal.poison() else {
            *healing = Healing::default();
            return Ok(self);
        };
        if self.options.on_journal_failure == OnJournalFailure::Exit {
            return Err(format!("the journal can't be written: {cause}"));
        }
        if healing.is_due(now) { self.heal(now) } else { Ok(self) }
    }

    /// Resumes from the durable entries if the journal can be written again; otherwise changes nothing.
    pub(super) fn heal(mut self, now: Timestamp) -> Result<Actor, String> {
        let limits = self.options.limits;
        let state_of = |recovered: &Recovered| Some(encode_snapshot(&replay(recovered, limits).ok()?.snapshot()));
        let recovered = match self.journal.reopen(self.options.journal, &state_of) {
            Ok(recovered) => recovered,
            Err(failure) => {
                debug!(failure = with_causes(&failure), "the journal still can't be written");
                return Ok(self);
            }
        };
        info!("the journal can be written again: what is durable is replayed");
        let Actor {
            journal, options, launches, launching, relaunches, looks, looking, housekeeping, known, audit, ..
        } = self;
        let under_way = UnderWay { launches, launching, relaunches, looks, looking, housekeeping, known };
        let resumed = Actor::resume(journal, recovered, options, under_way, now);
        resumed.map(|actor| Actor { audit, ..actor }).map_err(|failure| {
            let failure = with_causes(&failure);
            error!(failure, "what is durable can't be gone on with");
            failure
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_journal_is_looked_at_ever_more_rarely() {
        let mut healing = Healing::default();
        let looks: Vec<u64> =
            (0..100).filter(|second| healing.is_due(Timestamp::EPOCH + Duration::from_secs(*second))).collect();
        assert_eq!(looks, [1, 3, 7, 15, 31, 61, 91]);
    }
}
