//! How a job continues after a fault, as stored on disk.

use gangline_base::{Step, Timestamp};
use gangline_orchestration::{Kept, Remedy, Rollback, Rung, Share};
use serde::{Deserialize, Serialize};

use super::claim::CostV1;
use super::entry::ShareV1;

/// The default is the only behaviour of releases that had no choice.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct RemedyV1 {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stays: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_place: Option<CostV1>,
    #[serde(default)]
    elsewhere: CostV1,
}

impl From<Remedy> for RemedyV1 {
    fn from(remedy: Remedy) -> Self {
        RemedyV1 {
            stays: remedy.rung == Rung::InPlace,
            in_place: remedy.in_place.map(Into::into),
            elsewhere: remedy.elsewhere.into(),
        }
    }
}

impl From<RemedyV1> for Remedy {
    fn from(remedy: RemedyV1) -> Self {
        Remedy {
            rung: if remedy.stays { Rung::InPlace } else { Rung::Elsewhere },
            in_place: remedy.in_place.map(Into::into),
            elsewhere: remedy.elsewhere.into(),
        }
    }
}

/// The parts of a gang that stay while its ranks are restarted.
#[derive(Serialize, Deserialize)]
pub(super) struct KeptV1 {
    shares: Vec<ShareV1>,
    since: Timestamp,
}

impl From<&Kept> for KeptV1 {
    fn from(kept: &Kept) -> Self {
        KeptV1 { shares: kept.shares.iter().map(ShareV1::from).collect(), since: kept.since }
    }
}

impl From<KeptV1> for Kept {
    fn from(kept: KeptV1) -> Self {
        Kept { shares: kept.shares.into_iter().map(Share::from).collect(), since: kept.since }
    }
}

/// The point from which a job with bad numbers continues.
#[derive(Serialize, Deserialize)]
pub(super) struct RollbackV1 {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    below: Option<Step>,
    skips_data: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Step>,
}

impl From<Rollback> for RollbackV1 {
    fn from(Rollback { below, skips_data, until }: Rollback) -> Self {
        RollbackV1 { below, skips_data, until }
    }
}

impl From<RollbackV1> for Rollback {
    fn from(RollbackV1 { below, skips_data, until }: RollbackV1) -> Self {
        // A snapshot of an earlier release has no such step.
        Rollback { below, skips_data, until: until.or(below) }
    }
}
