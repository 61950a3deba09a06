//! The reading port for training curves.

use gangline_base::{JobId, Timestamp};

use crate::db::Error;
use crate::model::{Loss, SeriesPoint};

/// A job's training curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobCurve {
    /// Ordered by attempt and sample number.
    pub points: Vec<SeriesPoint>,
    /// When retention thinned the curve, if it did.
    pub thinned_at: Option<Timestamp>,
    /// Points that can't be read because their rows are damaged.
    pub damaged: u64,
}

/// Reads the points of training curves. No decision follows from them, so a store may keep them apart from
/// the journal. They are written with [`super::Changes::samples`].
///
/// An implementation must promise:
/// - A point that was acknowledged to its supervisor is durable.
/// - A point is stored once, by job, attempt, node and number; a repetition changes nothing.
/// - The cost of a curve depends on the number of points asked for, not on the length of the training.
pub trait Series {
    /// Returns at most `points_max` evenly spread points of a job, including the first and the last; `None` if
    /// there is no record of the job.
    ///
    /// # Errors
    /// [`Error::Row`] if the job's record is damaged, or the failure to read, as for all methods.
    fn curve(&self, job: JobId, points_max: u32) -> Result<Option<JobCurve>, Error>;

    /// Returns the next job with points after this one.
    ///
    /// # Errors
    /// As [`Series::curve`].
    fn next_curve(&self, after: JobId) -> Result<Option<JobId>, Error>;

    /// Returns the attempts of a job that have points, and whether other nodes than the first have some.
    ///
    /// # Errors
    /// As [`Series::curve`].
    fn sampled_attempts(&self, job: JobId) -> Result<Vec<(u32, bool)>, Error>;

    /// Returns the numbers of the first and the last point of an attempt's first node.
    ///
    /// # Errors
    /// As [`Series::curve`].
    fn edges(&self, attempt: (JobId, u32)) -> Result<Option<(u64, u64)>, Error>;

    /// Returns the numbers and losses of an attempt's first node after number `after`, at most `count_max`.
    ///
    /// # Errors
    /// As [`Series::curve`].
    fn losses(&self, attempt: (JobId, u32), after: Option<u64>, count_max: u32) -> Result<Vec<Loss>, Error>;
}
