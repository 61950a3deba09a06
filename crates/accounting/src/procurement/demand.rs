//! The load-duration curve: how many devices are wanted, in how large a part of the hours.

/// Hourly demand, sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    hours: Vec<f64>,
}

impl Demand {
    /// Builds the curve from the devices wanted in each hour; none without hours, or if one is negative or not finite.
    #[must_use]
    pub fn of_hours(mut hours: Vec<f64>) -> Option<Demand> {
        if hours.is_empty() || hours.iter().any(|devices| !devices.is_finite() || *devices < 0.0) {
            return None;
        }
        hours.sort_by(f64::total_cmp);
        Some(Demand { hours })
    }

    /// Returns the number of hours.
    #[must_use]
    pub fn hours(&self) -> usize {
        self.hours.len()
    }

    /// Returns the mean number of devices.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.hours.iter().sum::<f64>() / self.count()
    }

    /// Returns the largest number of devices.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.hours.last().copied().unwrap_or(0.0)
    }

    /// Returns the share of hours in which at least so many devices are wanted.
    #[must_use]
    pub fn share_of_hours_with(&self, devices: f64) -> f64 {
        let below = self.hours.partition_point(|wanted| *wanted < devices);
        as_float(self.hours.len() - below) / self.count()
    }

    /// Returns the smallest demand that isn't exceeded in this share of the hours.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place within the list")]
        let place = (share.clamp(0.0, 1.0) * self.count()).ceil() as usize;
        self.hours.get(place.max(1) - 1).copied().unwrap_or_else(|| self.peak())
    }

    /// Returns the mean number of devices beyond so many.
    #[must_use]
    pub fn beyond(&self, devices: f64) -> f64 {
        self.hours.iter().map(|wanted| (wanted - devices).max(0.0)).sum::<f64>() / self.count()
    }

    fn count(&self) -> f64 {
        as_float(self.hours.len())
    }
}

#[expect(clippy::cast_precision_loss, reason = "hours are far fewer than 2^52")]
fn as_float(count: usize) -> f64 {
    count as f64
}
