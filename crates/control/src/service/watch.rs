//! Detection of lost supervisors. Silence alone is not death: the launcher is asked, and only a
//! supervisor that isn't alive any more is given up. A supervisor that is alive but silent long after it
//! should have stopped as an orphan is killed first. So are processes that a lost supervisor left behind, so
//! that its devices are never used twice.

use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp};
use gangline_execution::launcher::Presence;
use gangline_execution::protocol::{FaultCause, NodeFinding};
use gangline_orchestration::{Event, Share, ShareEnd, ShareState};
use tracing::{debug, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::launch::LostShare;
use super::looks::{Found, Look, ShareKey};
use super::troubles::Kind;

/// Time between two checks.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// If more time than this passes between two checks, this thread was suspended.
const AWAY_AFTER: Duration = Duration::from_secs(5);
/// A supervisor that is alive but silent for this many orphan times is killed.
const ORPHAN_TIMES_MAX: u32 = 2;
/// Processes of a lost supervisor that can't be killed for this long are reported.
const REMAINS_TOLD_AFTER: Duration = Duration::from_secs(30);

/// A live share whose supervisor is silent for too long.
struct Silent {
    job: JobId,
    attempt: AttemptNumber,
    /// Rank of the share's node in the gang, from 0.
    place: u32,
    name: NodeName,
    silence: Duration,
}

impl Actor {
    pub(super) fn watch(&mut self, now: Timestamp) {
        let went_back = now < self.watched_at;
        let asleep = now.since(self.watched_at);
        if !went_back && asleep < WATCH_INTERVAL {
            return;
        }
        self.watched_at = now;
        if went_back || asleep > AWAY_AFTER {
            // The clock was set, or this thread was suspended (a sleeping machine, a disk that hung). The
            // silence then says nothing about the supervisors, so every lease begins anew.
            self.contacts.renew(now);
        }
        for silent in self.silent_shares(now) {
            self.look_after(now, &silent);
        }
        for (node, overdue) in self.looking.overdue(now) {
            let text = format!(
                "it isn't known whether supervisors live: a look has taken {} s (a file system that hangs?)",
                overdue.as_secs()
            );
            self.troubles.note(now, &node, Kind::Look, text);
        }
        self.troubles.forget_old(now);
    }

    fn silent_shares(&self, now: Timestamp) -> Vec<Silent> {
        let attempts = self.engine.jobs().filter_map(|job| Some((job.id, job.attempt()?)));
        let names = |share: &Share| NodeName::new(&self.node_name(share.node)).ok();
        let shares = attempts.flat_map(|(job, attempt)| {
            attempt.shares.iter().filter_map(move |share| Some((job, attempt.number, names(share)?)))
        });
        shares.filter_map(|share| self.silent_share(now, &share)).collect()
    }

    /// Returns the share if it is live and its supervisor is silent for longer than it should be.
    fn silent_share(&self, now: Timestamp, share: &ShareKey) -> Option<Silent> {
        let (job, attempt, name) = share;
        let current = self.engine.job(*job)?.attempt().filter(|current| current.number == *attempt)?;
        let place = current.share_index(self.engine.node_id(name)?)?;
        if matches!(current.states[place], ShareState::Ended(_)) || self.launching.contains(share) {
            return None;
        }
        let silence = self.contacts.silence(&(*job, name.clone()), now, current.placed_at, &self.options.timing)?;
        let place = u32::try_from(place).ok()?;
        Some(Silent { job: *job, attempt: *attempt, place, name: name.clone(), silence })
    }

    fn look_after(&mut self, now: Timestamp, silent: &Silent) {
        let share = (silent.job, silent.attempt, silent.name.clone());
        if self.looking.is_at(&share) {
            return;
        }
        let folder = self.share_folder(silent.job, silent.attempt, silent.name.as_str());
        let Some(job) = self.engine.job(silent.job) else { return };
        let epoch = job.attempt().map_or(0, |attempt| attempt.epoch.0);
        let per_node = job.spec.gang.ranks_per_node();
        let ranks = silent.place * per_node..(silent.place + 1) * per_node;
        self.look(now, &share, Look::After { share: share.clone(), epoch, folder, ranks });
    }

    /// Acts on the result of a look, unless the supervisor has reported in the meantime.
    pub(super) fn looked(&mut self, now: Timestamp, share: &ShareKey, found: Found, batch: &mut Batch) {
        self.looking.is_done(share);
        self.troubles.clear(&share.2, Kind::Look);
        if self.journal.poison().is_some() {
            return;
        }
        if let Found::Killed(killed) = found {
            if let Err(failure) = killed {
                debug!(job = %share.0, node = %share.2, failure, "what is to be killed isn't gone yet");
            }
            return;
        }
        let Some(silent) = self.silent_share(now, share) else { return };
        match found {
            Found::Present(presence) => self.found_present(now, &silent, presence, batch),
            Found::Ended(report) => drop(self.take_report(now, *report, batch)),
            Found::Succeeded => self.found_succeeded(now, &silent, batch),
            Found::Gone => self.give_up(now, &silent, batch),
            Found::Remains(what) => self.found_remains(now, &silent, &what, batch),
            Found::Unknown(failure) => warn!(job = %silent.job, failure, "whether a supervisor lives isn't known"),
            Found::Killed(_) => {}
        }
    }

    fn found_present(&mut self, now: Timestamp, silent: &Silent, presence: Presence, batch: &mut Batch) {
        let is_stuck = silent.silence > self.options.timing.orphan_after * ORPHAN_TIMES_MAX;
        let share = (silent.job, silent.attempt, silent.name.clone());
        match presence {
            Presence::Running if is_stuck => {
                warn!(job = %silent.job, node = %silent.name, "a supervisor is stuck and is killed");
                self.order_kill(now, &share);
            }
            Presence::Running => debug!(job = %silent.job, node = %silent.name, "a supervisor is silent but lives"),
            Presence::Waiting { why, is_overdue, .. } => self.keep_waiting(now, silent, &why, is_overdue),
            Presence::Gone => self.give_up(now, silent, batch),
            Presence::Unable { why } => {
                self.troubles.note(now, &silent.name, Kind::Ranks, format!("ranks can't be started: {why}"));
                let text = format!("could not be started on {}, through no fault of its own: {why}", silent.name);
                self.share_not_started(now, &share, (ShareEnd::Unable, text), batch);
            }
            Presence::Withdrawn => self.share_withdrawn(now, &share, batch),
            Presence::Unreachable => self.lose_silent_node(now, silent, batch),
        }
    }

    /// Goes on waiting for a gang that its launcher hasn't started yet. A gang that is no longer wanted, or
    /// would start sooner elsewhere, is withdrawn.
    fn keep_waiting(&mut self, now: Timestamp, silent: &Silent, why: &str, is_overdue: bool) {
        if !why.is_empty() {
            self.note_wait(now, silent.job, why);
        }
        let attempt = self.engine.job(silent.job).and_then(|job| job.attempt());
        let is_stopping = attempt.is_some_and(|attempt| attempt.stop.is_some());
        if is_stopping || is_overdue {
            self.order_kill(now, &(silent.job, silent.attempt, silent.name.clone()));
        } else {
            // A share that hasn't started yet is silent by nature, so its silence counts from now.
            self.contacts.hear(silent.job, silent.name.clone(), now, &self.options.timing);
        }
    }

    /// Handles a node where neither the supervisor nor the launcher's system answers. The node counts as lost
    /// only if no other supervisor there reports; its devices stay fenced until it is seen again.
    fn lose_silent_node(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let Some(node) = self.engine.node_id(&silent.name) else { return };
        if self.contacts.is_heard(&silent.name, now, &self.options.timing) {
            warn!(job = %silent.job, node = %silent.name, "a supervisor is silent on a node from which others are heard");
            return;
        }
        self.order_kill(now, &(silent.job, silent.attempt, silent.name.clone()));
        warn!(job = %silent.job, node = %silent.name, "nobody on a node answers: it is taken for lost");
        if let Some(record) = self.records.get_mut(&silent.job) {
            record.note(now, format!("nobody on {} answers: it is taken for lost", silent.name));
            self.rows.jobs.insert(silent.job);
        }
        if let Err(refusal) = self.apply(now, Event::NodeLost { node }, batch) {
            warn!(%refusal, "a silent node could not be taken for lost");
        }
    }

    /// Handles a supervisor that was lost with its ranks, and of which no process is left.
    fn give_up(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let (job, attempt, node) = (silent.job, silent.attempt, silent.name.clone());
        self.troubles.clear(&node, Kind::Remains);
        let text = format!("the supervisor on {node} is gone");
        let lost = LostShare { job, attempt, node, cause: FaultCause::SupervisorLost, text };
        self.share_failed(now, &lost, batch);
    }

    /// Handles a supervisor that was killed after its ranks had succeeded and before it could report that:
    /// they must not run again.
    fn found_succeeded(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let Some(node) = self.engine.node_id(&silent.name) else { return };
        let text = format!("the supervisor on {} is gone, but all its ranks had ended with 0", silent.name);
        self.records.get_mut(&silent.job).into_iter().for_each(|record| record.note(now, text.clone()));
        self.rows.jobs.insert(silent.job);
        let (job, attempt, end) = (silent.job, silent.attempt, ShareEnd::Succeeded);
        if let Err(refusal) = self.apply(now, Event::ShareEnded { job, attempt, node, end }, batch) {
            warn!(%job, %refusal, "a share that has done its work could not end");
        }
    }

    /// Handles processes of a lost supervisor that can't be killed: their devices stay held. A long failure
    /// is reported.
    fn found_remains(&mut self, now: Timestamp, silent: &Silent, what: &str, batch: &mut Batch) {
        let remains = &mut self.runtimes.of(silent.job).remains;
        let (since, is_told) = remains.entry(silent.name.clone()).or_insert((now, false));
        if now.since(*since) < REMAINS_TOLD_AFTER {
            return;
        }
        let is_new = !std::mem::replace(is_told, true);
        let text = format!("the supervisor is gone and its devices stay held: failed to {what}");
        self.troubles.note(now, &silent.name, Kind::Remains, text.clone());
        if is_new && let Some(node) = self.engine.node_id(&silent.name) {
            let finding = NodeFinding { place: "processes of a job that has ended".to_owned(), measured: text };
            self.take_findings(now, (silent.job, node), &[finding], batch);
        }
    }
}
