//! How much of a job's time was productive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::BucketLine;

/// How much of a job's time was productive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobGoodput {
    /// The job.
    pub job: String,
    /// Seconds since its submission, until its end or now.
    pub wall_seconds: f64,
    /// Seconds of that in which it held devices.
    pub held_seconds: f64,
    /// Seconds of that in which it held none after it had had some: it waited to be resumed.
    pub recovering_seconds: f64,
    /// The part of the device time held that went into new steps (compute and communication); none if it isn't known. Measured,
    /// and at least this where some time is `unreported`.
    pub runtime_goodput: Option<f64>,
    /// Effective training time ratio: the same over all time since the submission.
    pub ettr: Option<f64>,
    /// Attempts that ended before the job did.
    pub disruptions: u32,
    /// The highest step that was reached.
    pub step: Option<u64>,
    /// Device time by bucket, that of a running attempt as far as it was reported.
    pub buckets: Vec<BucketLine>,
    /// Whether an attempt still runs, so that its part is estimated until it is booked.
    pub is_estimated: bool,
}
