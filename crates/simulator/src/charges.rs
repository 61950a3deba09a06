//! The cost of stopping and starting a job.

use std::time::Duration;

/// The costs of preemption, faults and restarts.
///
/// Published figures: a restart took 62 s on average in Tiresias' testbed, 40 to 60 s in Lucid and 25 to 250
/// s in Sia. None of these simulators charges the work since the last checkpoint; this one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// The work between a job's periodic checkpoints; zero means that every moment is saved and nothing is
    /// lost.
    pub checkpoint_every: Duration,
    /// The time for which accelerators are held to save when a job is asked to stop.
    pub save: Duration,
    /// The time for which accelerators are held to place and restore a job, at every start but the first.
    pub restart: Duration,
}

impl Charges {
    /// Nothing costs anything, as in textbooks.
    pub const FREE: Charges =
        Charges { checkpoint_every: Duration::ZERO, save: Duration::ZERO, restart: Duration::ZERO };

    /// A checkpoint every 30 minutes, 30 s to save on request, 60 s to restart.
    pub const USUAL: Charges = Charges {
        checkpoint_every: Duration::from_mins(30),
        save: Duration::from_secs(30),
        restart: Duration::from_mins(1),
    };

    /// Reports whether preemption is free.
    #[must_use]
    pub fn are_free(&self) -> bool {
        *self == Charges::FREE
    }
}
