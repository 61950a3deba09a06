//! The part of a share's last report that is kept after its attempt: what the API still shows, and what
//! bookings and recoveries need. A whole report has much more on each rank, and a job keeps many attempts.

use std::collections::BTreeMap;

use gangline_base::Phase;
use serde::{Deserialize, Serialize};

use super::record::ShareRecord;
use crate::reported::{DatasetReadsRecord, MarksRecord, ReportRecord, ShareStateRecord, UnixNanos, UsageRecord};

/// The stored part of a last report; see the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastWords {
    supervisor_pid: u32,
    started_at: UnixNanos,
    has_run: bool,
    ended_at: Option<UnixNanos>,
    /// Each rank's number, process, phase and step.
    ranks: Vec<RankWords>,
    usage: UsageRecord,
    marks: MarksRecord,
    checkpoints: u32,
    checkpoint_bytes: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    dataset_reads: BTreeMap<String, DatasetReadsRecord>,
}

/// A rank's number, process, phase and step.
pub(super) type RankWords = (u32, Option<u32>, Option<Phase>, Option<u64>);

impl From<ReportRecord> for LastWords {
    fn from(report: ReportRecord) -> LastWords {
        let (has_run, ended_at) = match report.state {
            ShareStateRecord::Preparing => (false, None),
            ShareStateRecord::Running { .. } => (true, None),
            ShareStateRecord::Ended { at, .. } => (true, Some(at)),
        };
        LastWords {
            supervisor_pid: report.supervisor_pid,
            started_at: report.started_at,
            has_run,
            ended_at,
            ranks: report.ranks.iter().map(|rank| (rank.rank, rank.pid, rank.phase, rank.step)).collect(),
            usage: report.usage,
            marks: report.marks,
            checkpoints: report.checkpoints,
            checkpoint_bytes: report.checkpoint_bytes,
            dataset_reads: report.dataset_reads,
        }
    }
}

impl ShareRecord {
    /// Replaces the report by its stored part after the attempt's end.
    pub fn close(&mut self) {
        self.last = self.report.take().map(LastWords::from).or(self.last.take());
    }

    /// Returns the name of the share's state.
    pub fn state(&self) -> &'static str {
        let state = self.report.as_ref().map(|report| &report.state);
        match (state, &self.last) {
            (Some(ShareStateRecord::Preparing), _) => "preparing",
            (Some(ShareStateRecord::Running { .. }), _) => "running",
            (Some(ShareStateRecord::Ended { .. }), _) => "ended",
            (None, Some(last)) if last.ended_at.is_some() => "ended",
            (None, Some(last)) if last.has_run => "running",
            (None, Some(_)) => "preparing",
            (None, None) => "launching",
        }
    }

    /// Returns the process id of the supervisor, if it has reported.
    pub fn supervisor_pid(&self) -> Option<u32> {
        let last = self.last.as_ref().map(|last| last.supervisor_pid);
        self.report.as_ref().map(|report| report.supervisor_pid).or(last)
    }

    /// Returns what each rank reported last, in the order of the report.
    pub fn ranks(&self) -> Vec<RankWords> {
        let reported = self.report.as_ref().map(|report| &report.ranks);
        match reported {
            Some(ranks) => ranks.iter().map(|rank| (rank.rank, rank.pid, rank.phase, rank.step)).collect(),
            None => self.last.as_ref().map(|last| last.ranks.clone()).unwrap_or_default(),
        }
    }

    /// Returns what the ranks asked for of each dataset.
    pub(super) fn dataset_reads(&self) -> impl Iterator<Item = (&String, &DatasetReadsRecord)> {
        let last = self.last.as_ref().map(|last| &last.dataset_reads);
        self.report.as_ref().map(|report| &report.dataset_reads).or(last).into_iter().flatten()
    }

    /// Returns the reported device time, and the time from which it counts.
    pub fn usage(&self) -> Option<(UnixNanos, &UsageRecord)> {
        let last = self.last.as_ref().map(|last| (last.started_at, &last.usage));
        self.report.as_ref().map(|report| (report.started_at, &report.usage)).or(last)
    }

    /// Returns when the first rank reached each phase, if the supervisor has reported.
    pub fn marks(&self) -> Option<MarksRecord> {
        self.report.as_ref().map(|report| report.marks).or(self.last.as_ref().map(|last| last.marks))
    }

    /// Returns when the supervisor saw its last rank end, if it did.
    pub fn ended_at(&self) -> Option<UnixNanos> {
        match self.report.as_ref().map(|report| &report.state) {
            Some(ShareStateRecord::Ended { at, .. }) => Some(*at),
            Some(ShareStateRecord::Preparing | ShareStateRecord::Running { .. }) => None,
            None => self.last.as_ref().and_then(|last| last.ended_at),
        }
    }

    /// Returns the number of saved checkpoints and their bytes.
    pub fn saved(&self) -> (u32, u64) {
        let last = self.last.as_ref().map(|last| (last.checkpoints, last.checkpoint_bytes));
        self.report.as_ref().map(|report| (report.checkpoints, report.checkpoint_bytes)).or(last).unwrap_or_default()
    }
}
