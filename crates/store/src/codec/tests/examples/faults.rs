//! Examples of faults, and of the decisions on them.

use gangline_base::{FaultCategory, Step};
use gangline_orchestration::{BadSteps, FaultCause, Kept, Remedy, Rollback, Rung, ShareEnd};
use rand_chacha::rand_core::Rng as _;

use super::Examples;

impl Examples {
    pub(super) fn causes(&mut self) -> [FaultCause; 9] {
        let code = i32::from_le_bytes(self.random.next_u32().to_le_bytes());
        [
            FaultCause::Exit(code),
            FaultCause::Signal(code),
            FaultCause::Setup(code),
            FaultCause::Start,
            FaultCause::Rendezvous,
            FaultCause::SupervisorLost,
            FaultCause::NodeLost,
            FaultCause::Hang,
            FaultCause::NotFinite { steps: self.bad_steps() },
        ]
    }

    pub(super) fn cause(&mut self) -> FaultCause {
        let place = usize::try_from(self.below(9)).expect("small");
        self.causes()[place]
    }

    pub(super) fn category(&mut self) -> FaultCategory {
        FaultCategory::ALL[usize::try_from(self.below(11)).expect("small")]
    }

    pub(super) fn remedy(&mut self) -> Remedy {
        let rung = if self.below(2) == 0 { Rung::InPlace } else { Rung::Elsewhere };
        Remedy { rung, in_place: self.maybe(Self::cost), elsewhere: self.cost() }
    }

    pub(super) fn kept(&mut self) -> Kept {
        Kept { shares: (0..self.below(3)).map(|_| self.share()).collect(), since: self.time() }
    }

    pub(super) fn rollback(&mut self) -> Rollback {
        let below = self.maybe(|random| Step(random.large()));
        let until = if self.has_network { self.maybe(|random| Step(random.large())).or(below) } else { below };
        Rollback { below, skips_data: self.below(2) == 0, until }
    }

    fn bad_steps(&mut self) -> Option<BadSteps> {
        let steps = |random: &mut Self| BadSteps { first: Step(random.large()), last: Step(random.large()) };
        if self.has_network { self.maybe(steps) } else { None }
    }

    pub(super) fn ends(&mut self) -> Vec<ShareEnd> {
        let mut ends = vec![ShareEnd::Succeeded, ShareEnd::DoNotRestart, ShareEnd::Requeue, ShareEnd::Stopped];
        ends.extend([ShareEnd::Terminated, ShareEnd::Unable]);
        if self.has_network {
            ends.push(ShareEnd::Withdrawn);
        }
        for cause in self.causes() {
            let (category, is_consequence) = (self.category(), self.below(2) == 0);
            ends.push(ShareEnd::Fault { cause, category, is_consequence, at: self.time() });
        }
        ends
    }
}
