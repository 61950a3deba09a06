//! What stopping and starting costs a job.

use std::time::Duration;

/// Costs of preemption, faults and restarts.
///
/// The figures of peers: restarting took 62 s on average in Tiresias' testbed, 40 to 60 s in Lucid, 25 to 250 s in
/// Sia; none of these simulators charges the work since the last checkpoint, which this one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// Work between a job's periodic checkpoints; zero for one at every moment, which loses nothing.
    pub checkpoint_every: Duration,
    /// Holding accelerators to save when asked to stop.
    pub save: Duration,
    /// Holding accelerators to be placed and restore, at every start but the first.
    pub restart: Duration,
}

impl Charges {
    /// Nothing costs anything, as textbooks have it.
    pub const FREE: Charges =
        Charges { checkpoint_every: Duration::ZERO, save: Duration::ZERO, restart: Duration::ZERO };

    /// A checkpoint every 30 minutes, 30 s to save on request, 60 s to restart.
    pub const USUAL: Charges = Charges {
        checkpoint_every: Duration::from_mins(30),
        save: Duration::from_secs(30),
        restart: Duration::from_mins(1),
    };

    /// Whether preemption is free.
    #[must_use]
    pub fn are_free(&self) -> bool {
        *self == Charges::FREE
    }
}
