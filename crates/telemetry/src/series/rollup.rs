//! Resolutions, and the values of a stretch of time as one: last, smallest, largest, mean and number.

use gangline_base::{Step, Timestamp};

use super::key::Point;

/// How fine stored values are. Finer ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// Every point.
    Point,
    /// One bucket a minute.
    Minute,
    /// One bucket an hour.
    Hour,
}

impl Resolution {
    /// All resolutions, the finest first.
    pub const ALL: [Resolution; 3] = [Resolution::Point, Resolution::Minute, Resolution::Hour];

    /// Returns a bucket's width in milliseconds; none for points.
    pub(super) fn width_ms(self) -> Option<i64> {
        match self {
            Resolution::Point => None,
            Resolution::Minute => Some(60_000),
            Resolution::Hour => Some(3_600_000),
        }
    }

    /// Returns the name, as the API has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Resolution::Point => "point",
            Resolution::Minute => "minute",
            Resolution::Hour => "hour",
        }
    }
}

/// The values of a stretch of time; of a single point if `count + not_finite` is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// When it begins, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The smallest and the largest step, if any point has one.
    pub steps: Option<(Step, Step)>,
    /// Number of finite values.
    pub count: u64,
    /// Number of values that are NaN or infinite; they are in `last` only.
    pub not_finite: u64,
    /// The smallest finite value; infinite if there is none.
    pub min: f64,
    /// The largest finite value; negative infinite if there is none.
    pub max: f64,
    /// The sum of the finite values.
    pub sum: f64,
    /// When the newest value was measured, in milliseconds since the Unix epoch.
    pub last_ms: i64,
    /// The newest value, whatever it is.
    pub last: f64,
}

impl Bucket {
    /// Returns the time at which the bucket begins; for a single point, its time.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        of_ms(self.at_ms)
    }

    /// Returns the time of the newest value.
    #[must_use]
    pub fn last_at(&self) -> Timestamp {
        of_ms(self.last_ms)
    }

    /// Returns the mean of the finite values, if there are any.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "no bucket has 2^53 values")]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Returns the number of points.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.count + self.not_finite
    }

    /// Returns a single point.
    #[must_use]
    pub fn of(point: &Point) -> Bucket {
        let (at_ms, value) = (ms(point.at), point.value);
        let is_finite = value.is_finite();
        Bucket {
            at_ms,
            steps: point.step.map(|step| (step, step)),
            count: u64::from(is_finite),
            not_finite: u64::from(!is_finite),
            min: if is_finite { value } else { f64::INFINITY },
            max: if is_finite { value } else { f64::NEG_INFINITY },
            sum: if is_finite { value } else { 0.0 },
            last_ms: at_ms,
            last: value,
        }
    }

    /// Adds the values of a bucket that isn't older.
    pub(super) fn add(&mut self, other: &Bucket) {
        self.at_ms = self.at_ms.min(other.at_ms);
        self.steps = match (self.steps, other.steps) {
            (Some((low, high)), Some((other_low, other_high))) => Some((low.min(other_low), high.max(other_high))),
            (one, other) => one.or(other),
        };
        self.count += other.count;
        self.not_finite += other.not_finite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        if other.last_ms >= self.last_ms {
            (self.last_ms, self.last) = (other.last_ms, other.last);
        }
    }
}

/// Sorts buckets by time and adds up those that begin in the same stretch of this resolution.
pub(super) fn roll_up(mut buckets: Vec<Bucket>, resolution: Resolution) -> Vec<Bucket> {
    buckets.sort_by_key(|bucket| (bucket.at_ms, bucket.last_ms));
    let Some(width) = resolution.width_ms() else { return buckets };
    let mut rolled: Vec<Bucket> = Vec::new();
    for bucket in buckets {
        let begins = bucket.at_ms - bucket.at_ms.rem_euclid(width);
        match rolled.last_mut() {
            Some(last) if last.at_ms == begins => {
                last.add(&bucket);
            }
            _ => rolled.push(Bucket { at_ms: begins, ..bucket }),
        }
    }
    rolled
}

/// Reduces buckets to at most `budget`, each the sum of as many neighbours as the others.
#[must_use]
pub fn fit(buckets: Vec<Bucket>, budget: usize) -> Vec<Bucket> {
    let each = buckets.len().div_ceil(budget.max(1)).max(1);
    if each == 1 {
        return buckets;
    }
    let sum = |part: &[Bucket]| {
        let mut sum = part[0];
        part[1..].iter().for_each(|bucket| sum.add(bucket));
        sum
    };
    buckets.chunks(each).map(sum).collect()
}

/// Returns a time in milliseconds since the Unix epoch.
pub(super) fn ms(at: Timestamp) -> i64 {
    i64::try_from(at.unix_nanos() / 1_000_000).expect("2^64 nanoseconds are fewer than 2^63 milliseconds")
}

fn of_ms(ms: i64) -> Timestamp {
    Timestamp::from_unix_nanos(u64::try_from(ms).unwrap_or_default().saturating_mul(1_000_000))
}
