//! What a run tells about itself: where its device time goes, and its training curves on their way to the control plane.
//!
//! Reads no clock and does no I/O: times and samples come in as arguments. Keeps A-8 (device time is booked exactly
//! once) and A-10 (what waits to be delivered is bounded).

mod outbox;
mod phase_clock;
mod straggler;

pub use outbox::{OUTBOX_WAITING_MAX, Outbox};
pub use phase_clock::PhaseClock;
pub use straggler::{RankWork, Slowness, Straggler, stragglers};
