//! The cause of a fault, as stored on disk.

use gangline_base::Step;
use gangline_orchestration::{BadSteps, FaultCause};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CauseV1 {
    Exit(i32),
    Signal(i32),
    Setup(i32),
    Start,
    Rendezvous,
    Hang,
    /// Written by earlier releases, and where the steps aren't known.
    NotFinite,
    NotFiniteSteps {
        first: Step,
        last: Step,
    },
    SupervisorLost,
    NodeLost,
}

impl From<FaultCause> for CauseV1 {
    fn from(cause: FaultCause) -> Self {
        match cause {
            FaultCause::Exit(code) => CauseV1::Exit(code),
            FaultCause::Signal(signal) => CauseV1::Signal(signal),
            FaultCause::Setup(code) => CauseV1::Setup(code),
            FaultCause::Start => CauseV1::Start,
            FaultCause::Rendezvous => CauseV1::Rendezvous,
            FaultCause::Hang => CauseV1::Hang,
            FaultCause::NotFinite { steps: None } => CauseV1::NotFinite,
            FaultCause::NotFinite { steps: Some(BadSteps { first, last }) } => CauseV1::NotFiniteSteps { first, last },
            FaultCause::SupervisorLost => CauseV1::SupervisorLost,
            FaultCause::NodeLost => CauseV1::NodeLost,
        }
    }
}

impl From<CauseV1> for FaultCause {
    fn from(cause: CauseV1) -> Self {
        match cause {
            CauseV1::Exit(code) => FaultCause::Exit(code),
            CauseV1::Signal(signal) => FaultCause::Signal(signal),
            CauseV1::Setup(code) => FaultCause::Setup(code),
            CauseV1::Start => FaultCause::Start,
            CauseV1::Rendezvous => FaultCause::Rendezvous,
            CauseV1::Hang => FaultCause::Hang,
            CauseV1::NotFinite => FaultCause::NotFinite { steps: None },
            CauseV1::NotFiniteSteps { first, last } => FaultCause::NotFinite { steps: Some(BadSteps { first, last }) },
            CauseV1::SupervisorLost => FaultCause::SupervisorLost,
            CauseV1::NodeLost => FaultCause::NodeLost,
        }
    }
}
