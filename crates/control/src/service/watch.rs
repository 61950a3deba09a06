//! Noticing supervisors that are gone. Silence alone is not death: the launcher is asked, and only a supervisor
//! that doesn't live any more is given up. One that lives but stays silent long after it should have stopped as an
//! orphan is killed first, and so is what a lost one left behind, so that its devices are never used twice.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp};
use gangline_execution::launcher::{FINAL_REPORT_FILE, Presence};
use gangline_execution::protocol::{FaultCause, NodeState, Report, is_understood};
use gangline_orchestration::{Event, ShareState};
use tracing::{debug, warn};

use super::actor::Actor;
use super::batch::Batch;
use super::launch::LostShare;

/// Between two looks.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// A longer time between two looks means that this thread was away.
const AWAY_AFTER: Duration = Duration::from_secs(5);
/// A supervisor that lives but has been silent for this many orphan times is killed.
const ORPHAN_TIMES_MAX: u32 = 2;
/// The largest final report that is read.
const FINAL_REPORT_BYTES_MAX: u64 = 4 << 20;

/// A share that may be lost.
struct Silent {
    job: JobId,
    attempt: AttemptNumber,
    name: NodeName,
    silence: Duration,
}

impl Actor {
    pub(super) fn watch(&mut self, now: Timestamp, batch: &mut Batch) {
        let went_back = now < self.watched_at;
        let asleep = now.since(self.watched_at);
        if !went_back && asleep < WATCH_INTERVAL {
            return;
        }
        self.watched_at = now;
        if went_back || asleep > AWAY_AFTER {
            // The clock was set, or this thread was away (a suspended machine, a disk that hung). Then silence says
            // nothing about the supervisors: every lease begins anew.
            self.contacts.renew(now);
        }
        for silent in self.silent_shares(now) {
            self.look_after(now, &silent, batch);
        }
    }

    fn silent_shares(&self, now: Timestamp) -> Vec<Silent> {
        let mut silent = Vec::new();
        for job in self.engine.jobs() {
            let Some(attempt) = job.attempt() else { continue };
            let live = attempt.shares.iter().zip(&attempt.states).filter(|(_, s)| !matches!(s, ShareState::Ended(_)));
            for (share, _) in live {
                let Ok(name) = NodeName::new(&self.node_name(share.node)) else { continue };
                if self.launching.contains(&(job.id, attempt.number, name.clone())) {
                    continue;
                }
                let share = (job.id, name);
                if let Some(silence) = self.contacts.silence(&share, now, attempt.placed_at, &self.options.timing) {
                    silent.push(Silent { job: job.id, attempt: attempt.number, name: share.1, silence });
                }
            }
        }
        silent
    }

    fn look_after(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let folder = self.share_folder(silent.job, silent.attempt, silent.name.as_str());
        let is_stuck = silent.silence > self.options.timing.orphan_after * ORPHAN_TIMES_MAX;
        match self.options.launcher.presence(&folder) {
            Ok(Presence::Running) if is_stuck => {
                warn!(job = %silent.job, node = %silent.name, "a supervisor is stuck and is killed");
                if let Err(failure) = self.options.launcher.kill(&folder) {
                    warn!(job = %silent.job, %failure, "it can't be killed; its devices stay fenced");
                }
            }
            Ok(Presence::Running) => debug!(job = %silent.job, node = %silent.name, "a supervisor is silent but lives"),
            Ok(Presence::Waiting { why, is_overdue, .. }) => self.keep_waiting(now, silent, &why, is_overdue),
            Ok(Presence::Gone) => self.give_up(now, silent, batch),
            Ok(Presence::Withdrawn) => {
                let share = (silent.job, silent.attempt, silent.name.clone());
                self.share_withdrawn(now, &share, batch);
            }
            Ok(Presence::Unreachable) => self.lose_silent_node(now, silent, batch),
            Err(failure) => warn!(job = %silent.job, %failure, "whether a supervisor lives isn't known"),
        }
    }

    /// Its gang hasn't its turn yet. One that isn't wanted any more, or would start sooner elsewhere, is taken back.
    fn keep_waiting(&mut self, now: Timestamp, silent: &Silent, why: &str, is_overdue: bool) {
        if !why.is_empty() {
            self.note_wait(now, (silent.job, silent.attempt), why);
        }
        let attempt = self.engine.job(silent.job).and_then(|job| job.attempt());
        let is_stopping = attempt.is_some_and(|attempt| attempt.stop.is_some());
        if is_stopping || is_overdue {
            let folder = self.share_folder(silent.job, silent.attempt, silent.name.as_str());
            if let Err(failure) = self.options.launcher.kill(&folder) {
                debug!(job = %silent.job, %failure, "a gang that waits to be started is being taken back");
            }
        } else {
            // What isn't started yet is silent, and no sign of anything.
            self.contacts.hear(silent.job, silent.name.clone(), now, &self.options.timing);
        }
    }

    /// Nobody on the node answers, neither the supervisor nor the launcher's system there. Only if no other supervisor there
    /// does either is the node lost; its devices stay fenced until it is seen again.
    fn lose_silent_node(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let Some(node) = self.engine.node_id(&silent.name) else { return };
        if self.contacts.is_heard(&silent.name, now, &self.options.timing) {
            warn!(job = %silent.job, node = %silent.name, "a supervisor is silent on a node from which others are heard");
            return;
        }
        let folder = self.share_folder(silent.job, silent.attempt, silent.name.as_str());
        if let Err(failure) = self.options.launcher.kill(&folder) {
            debug!(job = %silent.job, %failure, "what runs on a lost node is being killed");
        }
        warn!(job = %silent.job, node = %silent.name, "nobody on a node answers: it is taken for lost");
        if let Some(record) = self.records.get_mut(&silent.job) {
            record.note(now, format!("nobody on {} answers: it is taken for lost", silent.name));
            self.rows.jobs.insert(silent.job);
        }
        if let Err(refusal) = self.apply(now, Event::NodeLost { node }, batch) {
            warn!(%refusal, "a silent node could not be taken for lost");
        }
    }

    /// The supervisor is gone. If it left its final report behind, that counts; otherwise it was lost with its ranks.
    fn give_up(&mut self, now: Timestamp, silent: &Silent, batch: &mut Batch) {
        let folder = self.share_folder(silent.job, silent.attempt, silent.name.as_str());
        if let Some(report) = final_report(&folder) {
            let epoch = self.engine.job(silent.job).and_then(|job| job.attempt()).map(|attempt| attempt.epoch.0);
            let is_its = report.job == silent.job.0 && report.attempt == silent.attempt.0;
            let belongs = is_its && epoch == Some(report.epoch);
            if belongs && report.node == silent.name.as_str() {
                self.take_report(now, report, batch);
                return;
            }
        }
        if let Err(failure) = self.options.launcher.kill(&folder) {
            warn!(job = %silent.job, node = %silent.name, %failure, "what a lost supervisor left can't be killed; its devices stay fenced");
            return;
        }
        let (job, attempt, node) = (silent.job, silent.attempt, silent.name.clone());
        let text = format!("the supervisor on {node} is gone");
        let lost = LostShare { job, attempt, node, cause: FaultCause::SupervisorLost, text };
        self.share_failed(now, &lost, batch);
    }
}

/// The report a supervisor leaves behind if it can't deliver it. Damaged, too large, not final or absent: none.
fn final_report(folder: &Path) -> Option<Report> {
    let mut bytes = Vec::new();
    let file = File::open(folder.join(FINAL_REPORT_FILE)).ok()?;
    file.take(FINAL_REPORT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let report: Report = serde_json::from_slice(&bytes).ok()?;
    let is_final = matches!(report.state, NodeState::Ended { .. }) && is_understood(report.version);
    is_final.then_some(report)
}
