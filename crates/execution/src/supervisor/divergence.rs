//! Stops an attempt whose loss stays NaN or infinite: further training would be wasted.

use gangline_base::{MetricValue, Step, Timestamp};

use super::input::Action;
use super::node_attempt::NodeAttempt;
use super::outcome::Stop;
use crate::protocol::{Fault, FaultCause};
use crate::rank_protocol::{LOSS, RankMessage};

/// Number of steps in a row without a finite loss after which a run is stopped. Dynamic loss scaling skips a
/// few steps when it starts and now and then later (PyTorch's GradScaler halves its scale until nothing
/// overflows), and recovers.
const STEPS_MAX: u32 = 10;

/// The steps in a row with a NaN or infinite loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Divergence {
    steps: u32,
    first: Option<Step>,
}

impl Divergence {
    /// Handles a rank's message about a step; a message without a loss changes nothing.
    pub(super) fn hear(&mut self, message: &RankMessage) {
        match message.metrics.get(LOSS).filter(|_| message.step.is_some()) {
            Some(MetricValue::Diverged) => {
                self.steps = self.steps.saturating_add(1);
                self.first = self.first.or(message.step);
            }
            Some(MetricValue::Nanos(_)) => *self = Divergence::default(),
            None => {}
        }
    }

    fn is_lasting(self) -> bool {
        self.steps >= STEPS_MAX
    }
}

impl NodeAttempt {
    /// Ends the attempt if a rank's last message reached the limit. If a sweep compares its jobs, diverged
    /// jobs are left to the sweep.
    pub(super) fn look_for_divergence(&mut self, now: Timestamp, local: u32) -> Vec<Action> {
        let place = usize::try_from(local).expect("a usize holds 32 bits");
        let Some(rank) = self.ranks.get(place).filter(|rank| rank.divergence.is_lasting()) else { return Vec::new() };
        if self.stop.is_some() || self.spec.metric.is_some() {
            return Vec::new();
        }
        let step = rank.clock.last_step().map_or(0, |step| step.0);
        let since = rank.divergence.first.map(|step| step.0);
        self.node_fault = Some(Fault {
            rank: Some(rank.number),
            cause: FaultCause::NotFinite { step, steps: STEPS_MAX, since },
            noticed_at: now.unix_nanos(),
            last_sign_of_life: now.unix_nanos(),
            last_lines: Vec::new(),
            diagnosis: None,
        });
        tracing::warn!(rank = rank.number, step, "the loss is no number");
        self.merge_stop(now, Stop::after_fault(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_given_up_after_ten_steps_in_a_row() {
        let mut divergence = Divergence::default();
        let mut hear = |line: &str, times: u32| {
            let message = RankMessage::parse(line.as_bytes()).expect("it is a message");
            (0..times).for_each(|_| divergence.hear(&message));
            divergence.is_lasting()
        };
        assert!(!hear(r#"{"step":1,"loss":NaN}"#, 9));
        assert!(!hear(r#"{"step":2,"loss":2.5}"#, 1));
        assert!(!hear(r#"{"step":2,"loss":Infinity}"#, 9));
        assert!(!hear(r#"{"step":2}"#, 20), "nothing was said of a loss");
        assert!(!hear(r#"{"loss":NaN}"#, 20), "no step was made");
        assert!(hear(r#"{"step":3,"loss":NaN}"#, 1));
    }
}
