//! The result of an attempt, as stored on disk: its supervisors' reports up to its end. This entry is the
//! control plane's own, and the engine doesn't see it. The ledger and a job's record are derived from it and
//! from the decisions alone.

use std::collections::BTreeMap;
use std::ops::Range;

use gangline_base::{AttemptNumber, JobId, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::{VERSION_CLOSED, encode};
use crate::reported::{
    AllocationRecord, DatasetReadsRecord, FaultRecord, SavedRecord, ShareStateRecord, UnixNanos, UsageRecord,
};

/// The most shares in one entry; a larger attempt has several entries, each far below the largest record.
const SHARES_MAX: usize = 512;

/// The result of an attempt. The nodes and devices of its shares are in the decision that placed it, its end
/// in the one that ended it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedAttempt {
    /// The attempt's job.
    pub job: JobId,
    /// The attempt's number.
    pub attempt: AttemptNumber,
    /// The index of the first of `shares` in the gang.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first: usize,
    /// When the launcher's own system allocated its nodes; none where the placement does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationRecord>,
    /// The shares in the gang's order.
    pub shares: Vec<ClosedShare>,
    /// The earliest fault and its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<(String, FaultRecord)>,
    /// The job's progress at the attempt's end.
    pub progress: ClosedProgress,
}

/// One node's share of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClosedShare {
    /// The price of an accelerator-hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    /// Samples below this number had been received.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub samples: u64,
    /// `None` if the supervisor never reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ClosedReport>,
}

/// A supervisor's last report, without ranks, texts and samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedReport {
    /// The supervisor's process id.
    pub pid: u32,
    /// When the supervisor started.
    pub started_at: UnixNanos,
    /// When the report was sent.
    pub sent_at: UnixNanos,
    /// The share's state.
    pub state: ShareStateRecord,
    /// The devices' time by bucket; empty buckets are left out.
    pub usage: UsageRecord,
    /// Times of the ranks' start, restore begin, restore end, and first step.
    pub marks: [Option<UnixNanos>; 4],
    /// The last durable checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<SavedRecord>,
    /// The number of checkpoints and their bytes.
    pub checkpoints: (u32, u64),
    /// What the ranks asked for of each dataset, by its address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dataset_reads: BTreeMap<String, DatasetReadsRecord>,
}

/// A job's progress at the end of one of its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClosedProgress {
    /// Finished steps, and total steps.
    pub steps: (Option<u64>, Option<u64>),
    /// The highest step that any attempt reached.
    pub high_water_step: u64,
    /// The first and the last loss.
    pub losses: (Option<f64>, Option<f64>),
    /// Tokens of the attempt.
    pub tokens: u64,
    /// The first step that was ever reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// Tokens of a step over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_step: Option<f64>,
    /// Over all attempts: the number of checkpoints, their bytes, and the step of the last.
    pub checkpoints: (u32, u64, Option<u64>),
    /// For a job with a budget: the money spent, and the time up to which it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<(Money, Timestamp)>,
}

impl ClosedAttempt {
    /// Returns the bodies of the journal records that hold the result: one, or several for a large gang.
    #[must_use]
    pub fn encode(&self) -> Vec<Vec<u8>> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Body<'a> {
            AttemptClosed(&'a ClosedAttempt),
        }
        let part = |shares: Range<usize>| {
            let part = ClosedAttempt {
                job: self.job,
                attempt: self.attempt,
                first: self.first + shares.start,
                allocation: self.allocation,
                shares: self.shares[shares.clone()].to_vec(),
                fault: self.fault.clone().filter(|_| shares.start == 0),
                progress: self.progress,
            };
            encode(VERSION_CLOSED, Body::AttemptClosed(&part))
        };
        let count = self.shares.len();
        (0..count.max(1)).step_by(SHARES_MAX).map(|from| part(from..count.min(from + SHARES_MAX))).collect()
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Recorded, decode_entry};
    use crate::db;
    use crate::reported::{FaultCauseRecord, OutcomeRecord};

    /// The result as this version was first written.
    const FIXTURE: &str = include_str!("../../tests/fixtures/attempt_closed_v3.json");

    fn share(number: u64) -> ClosedShare {
        let report = ClosedReport {
            pid: 4_711,
            started_at: 1_700_000_000_000_000_000 + number,
            sent_at: 1_700_000_009_000_000_000,
            state: ShareStateRecord::Ended { at: 1_700_000_009_000_000_000, outcome: OutcomeRecord::Stopped },
            usage: UsageRecord([("compute".to_owned(), 7_000_000_000 + number), ("idle".to_owned(), 1)].into()),
            marks: [Some(1_700_000_001_000_000_000), None, None, Some(1_700_000_002_000_000_000)],
            checkpoint: Some(SavedRecord { step: 5, bytes: 1 << 30, at: 1_700_000_005_000_000_000 }),
            checkpoints: (3, 3 << 30),
            dataset_reads: BTreeMap::new(),
        };
        ClosedShare { price: Some(Money::from_nano_dollars(2_500_000_000)), samples: 12, report: Some(report) }
    }

    fn attempt(nodes: u64) -> ClosedAttempt {
        let fault = FaultRecord {
            rank: Some(3),
            cause: FaultCauseRecord::Exit { code: 1 },
            noticed_at: 1_700_000_008_000_000_000,
            last_sign_of_life: 1_700_000_007_000_000_000,
            last_lines: vec!["out of memory \u{1f6f7}".to_owned()],
            diagnosis: None,
        };
        ClosedAttempt {
            job: JobId(7),
            attempt: AttemptNumber(2),
            first: 0,
            allocation: None,
            shares: (0..nodes).map(share).collect(),
            fault: Some(("n1".to_owned(), fault)),
            progress: ClosedProgress {
                steps: (Some(9), None),
                high_water_step: 11,
                losses: (Some(10.5), Some(0.1)),
                tokens: 4_096,
                first_step: None,
                tokens_per_step: None,
                checkpoints: (4, 4 << 30, Some(5)),
                spent: Some((Money::from_nano_dollars(12), Timestamp::from_unix_nanos(5))),
            },
        }
    }

    fn read(body: &[u8]) -> ClosedAttempt {
        match decode_entry(body) {
            Ok(Recorded::Closed(closed)) => *closed,
            other => panic!("not what an attempt came to: {other:?}"),
        }
    }

    /// Proves A-9: every later version reads what this version wrote.
    #[test]
    fn what_an_attempt_came_to_reads_back_and_stays_readable() {
        let body = attempt(2).encode().remove(0);
        assert_eq!(String::from_utf8_lossy(&body), FIXTURE.trim_end());
        assert_eq!(read(FIXTURE.as_bytes()), attempt(2));
        let nothing = ClosedAttempt { shares: vec![ClosedShare::default()], fault: None, ..attempt(1) };
        assert_eq!(read(&nothing.encode()[0]), nothing);
        let allocated = AllocationRecord { from: Some(Timestamp::from_unix_nanos(7)), to: None };
        let mut allocated = ClosedAttempt { allocation: Some(allocated), ..attempt(1) };
        (allocated.progress.first_step, allocated.progress.tokens_per_step) = (Some(1), Some(65_536.5));
        assert_eq!(read(&allocated.encode()[0]), allocated);
    }

    /// Proves A-10: a large gang's result has several records, each far below the largest allowed.
    #[test]
    fn a_large_gangs_end_is_split_and_comes_together_again() {
        let whole = attempt(1_300);
        let bodies = whole.encode();
        let largest = bodies.iter().map(Vec::len).max().expect("there are some");
        assert!(u64::try_from(largest * 8).is_ok_and(|bytes| bytes < db::Limits::RECORD.0), "{largest} bytes");
        let parts: Vec<ClosedAttempt> = bodies.iter().map(|body| read(body)).collect();
        assert_eq!(
            parts.iter().map(|part| (part.first, part.shares.len())).collect::<Vec<_>>(),
            [(0, 512), (512, 512), (1_024, 276)]
        );
        assert_eq!(parts.iter().filter(|part| part.fault.is_some()).count(), 1);
        let shares: Vec<ClosedShare> = parts.into_iter().flat_map(|part| part.shares).collect();
        assert_eq!(shares, whole.shares);
    }

    #[test]
    fn a_damaged_one_is_refused_without_a_panic() {
        let body = attempt(1).encode().remove(0);
        for length in 0..body.len() {
            assert!(decode_entry(&body[..length]).is_err());
        }
        let hostile = br#"{"v":3,"body":{"attempt_closed":{"job":1,"attempt":1,"shares":7}}}"#;
        assert!(decode_entry(hostile).is_err());
    }
}
