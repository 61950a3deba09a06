//! What an attempt came to, on disk: what its supervisors had reported by its end. It is the control plane's own entry; the engine
//! knows nothing of it. With the decisions it is all that the ledger and a job's record follow from.

use std::ops::Range;

use gangline_base::{AttemptNumber, JobId, Money, Timestamp};
use gangline_execution::protocol::{CheckpointReport, Fault, NodeState, UnixNanos, UsageReport};
use serde::{Deserialize, Serialize};

use super::{VERSION_CLOSED, encode};

/// Shares in one entry at most: an attempt of more nodes has several, each far below the largest record.
const SHARES_MAX: usize = 512;

/// What an attempt came to. Its shares' nodes and devices are in the decision that placed it, its end in the one that ended it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedAttempt {
    /// Whose it is.
    pub job: JobId,
    /// Which.
    pub attempt: AttemptNumber,
    /// The place of the first of `shares` in the gang.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first: usize,
    /// In the gang's order.
    pub shares: Vec<ClosedShare>,
    /// The earliest fault and its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<(String, Fault)>,
    /// How far the job was.
    pub progress: ClosedProgress,
}

/// One node's share of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClosedShare {
    /// What an accelerator-hour cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Money>,
    /// Samples below this number had been taken in.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub samples: u64,
    /// None if its supervisor never reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ClosedReport>,
}

/// A supervisor's last report, without its ranks, texts and samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedReport {
    /// The supervisor's process.
    pub pid: u32,
    /// When the supervisor started.
    pub started_at: UnixNanos,
    /// When it was sent.
    pub sent_at: UnixNanos,
    /// Where the share stood.
    pub state: NodeState,
    /// Where its devices' time went; buckets without any are left out.
    pub usage: UsageReport,
    /// When its ranks had started, began to restore, had restored, had made a step.
    pub marks: [Option<UnixNanos>; 4],
    /// The last durable checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReport>,
    /// How many, and their bytes.
    pub checkpoints: (u32, u64),
}

/// How far a job was when an attempt of it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClosedProgress {
    /// Steps finished, and steps in all.
    pub steps: (Option<u64>, Option<u64>),
    /// The highest step that any attempt reached.
    pub high_water_step: u64,
    /// The first loss and the last.
    pub losses: (Option<f64>, Option<f64>),
    /// Tokens of the attempt.
    pub tokens: u64,
    /// Over all attempts: how many checkpoints, their bytes, the step of the last.
    pub checkpoints: (u32, u64, Option<u64>),
    /// Of a job with a budget, what had been spent and until when that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<(Money, Timestamp)>,
}

impl ClosedAttempt {
    /// The bodies of the journal records that hold it: one, or several for a large gang.
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
    use gangline_execution::protocol::{FaultCause, Outcome};

    use super::*;
    use crate::codec::{Recorded, decode_entry};
    use crate::db;

    /// As this version was first written.
    const FIXTURE: &str = include_str!("../../tests/fixtures/attempt_closed_v3.json");

    fn share(number: u64) -> ClosedShare {
        let report = ClosedReport {
            pid: 4_711,
            started_at: 1_700_000_000_000_000_000 + number,
            sent_at: 1_700_000_009_000_000_000,
            state: NodeState::Ended { at: 1_700_000_009_000_000_000, outcome: Outcome::Stopped },
            usage: UsageReport([("compute".to_owned(), 7_000_000_000 + number), ("idle".to_owned(), 1)].into()),
            marks: [Some(1_700_000_001_000_000_000), None, None, Some(1_700_000_002_000_000_000)],
            checkpoint: Some(CheckpointReport { step: 5, bytes: 1 << 30, at: 1_700_000_005_000_000_000 }),
            checkpoints: (3, 3 << 30),
        };
        ClosedShare { price: Some(Money::from_nano_dollars(2_500_000_000)), samples: 12, report: Some(report) }
    }

    fn attempt(nodes: u64) -> ClosedAttempt {
        let fault = Fault {
            rank: Some(3),
            cause: FaultCause::Exit { code: 1 },
            noticed_at: 1_700_000_008_000_000_000,
            last_sign_of_life: 1_700_000_007_000_000_000,
            last_lines: vec!["out of memory \u{1f6f7}".to_owned()],
            diagnosis: None,
        };
        ClosedAttempt {
            job: JobId(7),
            attempt: AttemptNumber(2),
            first: 0,
            shares: (0..nodes).map(share).collect(),
            fault: Some(("n1".to_owned(), fault)),
            progress: ClosedProgress {
                steps: (Some(9), None),
                high_water_step: 11,
                losses: (Some(10.5), Some(0.1)),
                tokens: 4_096,
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

    /// Proves A-9: what this version wrote, every later one reads.
    #[test]
    fn what_an_attempt_came_to_reads_back_and_stays_readable() {
        let body = attempt(2).encode().remove(0);
        assert_eq!(String::from_utf8_lossy(&body), FIXTURE.trim_end());
        assert_eq!(read(FIXTURE.as_bytes()), attempt(2));
        let nothing = ClosedAttempt { shares: vec![ClosedShare::default()], fault: None, ..attempt(1) };
        assert_eq!(read(&nothing.encode()[0]), nothing);
    }

    /// Proves A-10: a large gang's is several records, each far below the largest there may be.
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
