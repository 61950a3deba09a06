//! Queueing: which job is served first.
//!
//! [`Queues`] is the tree of queues with what each holds, has used and requests. `rank` orders sibling queues
//! by quota and fair share (`usage`), `pending` orders the jobs that wait in one queue and groups them by
//! request, `order` gives each job its turn from the run times that `estimate` has learned, and `ageing` knows who
//! has waited longest. `running` has
//! the jobs that hold devices, `entitlement` says what a queue may take back from others, and `preemptors`
//! indexes the queues whose leading jobs may preempt. `hours` meters GPU-hours by period. `rules` is what an administrator configures.
//!
//! The state is private to the room: others change it only by what [`Queues`] and [`Estimates`] offer here,
//! which take values (a specification, a [`QueueKey`], a [`Run`]) and never the engine or its jobs. Imports
//! nothing else of the crate.

mod ageing;
mod entitlement;
mod estimate;
mod hours;
mod order;
mod pending;
mod preemptors;
mod queue;
mod rank;
mod rules;
mod running;
mod usage;

pub use estimate::{History, Kin, Sample};
pub use hours::{HourQuota, HoursUsed, Period};
pub use order::QueueOrder;
pub use queue::QueueStanding;
pub use rules::QueueSpec;
pub use usage::{Resource, Usage, Usages};

pub(crate) use ageing::{Ageing, Wait};
pub(crate) use entitlement::Entitlement;
pub(crate) use estimate::Estimates;
pub(crate) use hours::HoursSpent;
pub(crate) use order::{aged, least_left};
pub(crate) use pending::{QueueKey, Span};
pub(crate) use queue::{OverLimit, QueueIndex, Queues};
pub(crate) use rank::RankPath;
pub(crate) use rules::QueueingRules;
pub(crate) use running::Run;
pub(crate) use usage::{MIB_BITS, held_by};
