//! Placements, as stored on disk.

use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, JobId, Timestamp};
use gangline_orchestration::{Decision, PlaceReason, Share};
use serde::{Deserialize, Serialize};

use super::entry::ShareV1;
use super::spec::millis;
use super::topology::ClosenessV1;

#[derive(Serialize, Deserialize)]
pub(super) struct PlaceV1 {
    job: JobId,
    attempt: AttemptNumber,
    shares: Vec<ShareV1>,
    waited_ms: u64,
    #[serde(default)]
    backfills: Option<JobId>,
    candidates: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    closeness: Option<ClosenessV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_since: Option<Timestamp>,
    /// Missing if it went in the usual order, as before there was ageing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_overdue: bool,
    /// Missing if there are none, as before caches were reported.
    #[serde(default, skip_serializing_if = "is_nothing")]
    held_data: Bytes,
}

fn is_nothing(bytes: &Bytes) -> bool {
    *bytes == Bytes(0)
}

impl PlaceV1 {
    pub(super) fn new(job: JobId, attempt: AttemptNumber, shares: &[Share], reason: PlaceReason) -> Self {
        let PlaceReason { waited, backfills, candidates, closeness, kept_since, is_overdue, held_data } = reason;
        PlaceV1 {
            job,
            attempt,
            shares: shares.iter().map(ShareV1::from).collect(),
            waited_ms: millis(waited),
            backfills,
            candidates,
            closeness: closeness.map(ClosenessV1::from),
            kept_since,
            is_overdue,
            held_data,
        }
    }
}

impl From<PlaceV1> for Decision {
    fn from(place: PlaceV1) -> Self {
        let reason = PlaceReason {
            waited: Duration::from_millis(place.waited_ms),
            backfills: place.backfills,
            candidates: place.candidates,
            closeness: place.closeness.map(Into::into),
            kept_since: place.kept_since,
            is_overdue: place.is_overdue,
            held_data: place.held_data,
        };
        let shares = place.shares.into_iter().map(Share::from).collect();
        Decision::Place { job: place.job, attempt: place.attempt, shares, reason }
    }
}
