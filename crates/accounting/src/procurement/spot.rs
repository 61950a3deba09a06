//! Interruptible devices.

/// Spot devices: cheap while they are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Price of a device for an hour, in dollars.
    pub price: f64,
    /// The part of the paid time that interruptions waste: work done again, and restarts.
    pub wasted: f64,
    /// The part of the time in which the whole gang can be had.
    pub availability: f64,
}

impl Spot {
    /// Returns the price of a useful device-hour: interruptions waste a part of what is paid.
    #[must_use]
    pub fn useful_price(&self) -> f64 {
        self.price / (1.0 - self.wasted)
    }

    /// Returns the mean price of an hour of interruptible work, which runs on demand while there are no spot devices. Spot
    /// devices that cost more than those on demand aren't used.
    #[must_use]
    pub fn price_for_interruptible(&self, on_demand: f64) -> f64 {
        let useful = self.useful_price().min(on_demand);
        self.availability * useful + (1.0 - self.availability) * on_demand
    }

    /// Returns the largest part of the time that may be wasted before spot devices cost more than those on demand.
    #[must_use]
    pub fn most_wasted(price: f64, on_demand: f64) -> f64 {
        (1.0 - price / on_demand).max(0.0)
    }
}
