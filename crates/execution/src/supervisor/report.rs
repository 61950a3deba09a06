//! Converts the state of an attempt's share to a report.

use gangline_base::{Buckets, Timestamp};

use super::environment;
use super::node_attempt::{NodeAttempt, Stage};
use crate::datasets::{archives_in, reads_in};
use crate::process::own_pid;
use crate::protocol::{NodeState, PROTOCOL_VERSION, Report, SAMPLES_PER_REPORT_MAX, UsageReport};

impl NodeAttempt {
    /// Returns a full report as of `now`; device time stops at the end.
    pub(super) fn report(&mut self, now: Timestamp) -> Report {
        let booked_until = match self.stage {
            Stage::Ended(at, _) => at,
            _ => now,
        };
        let usage = self.ranks.iter().fold(Buckets::default(), |sum, rank| sum + rank.clock.usage(booked_until));
        let (samples_from, samples) = self.samples.window(SAMPLES_PER_REPORT_MAX);
        Report {
            version: PROTOCOL_VERSION,
            job: self.spec.job,
            attempt: self.spec.attempt,
            epoch: self.spec.epoch,
            node: self.spec.node.clone(),
            supervisor_pid: own_pid(),
            sent_at: now.unix_nanos(),
            started_at: self.started_at.unix_nanos(),
            state: self.state(),
            ranks: self.ranks.iter().map(super::rank::Rank::report).collect(),
            usage: UsageReport::from(&usage),
            marks: self.marks,
            checkpoint: self.checkpoint,
            checkpoints: self.checkpoints,
            checkpoint_bytes: self.checkpoint_bytes,
            rendezvous: self.offer.clone(),
            notice: self.notice.clone(),
            findings: self.findings.clone(),
            silence: self.silence(now),
            cache: self.cache.clone(),
            dataset_reads: reads_in(&environment::reads_folder(&self.spec)),
            archives: archives_in(&environment::reads_folder(&self.spec)),
            samples,
            samples_from,
        }
    }

    fn state(&self) -> NodeState {
        match &self.stage {
            Stage::Setup | Stage::Meeting(_) | Stage::Clearing(None) => NodeState::Preparing,
            Stage::Running(since) | Stage::Clearing(Some(since)) | Stage::Finishing(since, _) => {
                NodeState::Running { since: since.unix_nanos() }
            }
            Stage::Ended(at, outcome) => NodeState::Ended { at: at.unix_nanos(), outcome: outcome.clone() },
        }
    }
}
