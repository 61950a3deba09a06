//! The types that every Gangline crate shares: ids, quantities, time, phases and buckets, and the job
//! specification.
//!
//! Pure: no I/O, no clock, no randomness. Every quantity has a unit.

mod code;
mod container;
mod day;
mod dependency;
mod device;
mod elastic;
mod failure;
mod fault;
mod id;
mod measured;
mod money;
mod notify;
mod phase;
mod planned;
mod principal;
mod quantity;
mod spec;
mod sweep;
mod time;
mod topology;

pub use code::{CodeCopy, CodeSource};
pub use container::{Container, Volume};
pub use day::{Day, InvalidDay};
pub use dependency::{DEPENDENCIES_MAX, Dependency, EndCondition};
pub use device::{DeviceLayout, InvalidLayout};
pub use elastic::{Elastic, InvalidSpeedUp, SPEED_ONE, SpeedUp};
pub use failure::with_causes;
pub use fault::FaultCategory;
pub use id::{AttemptNumber, Epoch, InvalidName, JobId, NodeId, NodeName, PoolName, QueueName, SweepId};
pub use measured::Measured;
pub use money::{InvalidMoney, Money};
pub use notify::{EmailAddress, Notify, Occasion, WebhookUrl};
pub use phase::{Bucket, Buckets, Phase, RecoveryPhase};
pub use planned::PlannedRate;
pub use principal::Principal;
pub use quantity::{Bytes, GpuSeconds, InvalidBytes, Step, Tokens};
pub use spec::{
    AcceleratorKind, CheckpointPolicy, Flavour, GangShape, HangTimeout, JobSpec, Launch, Pin, Priority, Program,
    RecoveryPolicy, Submitter,
};
pub use sweep::{EarlyStop, Goal, Grid, MetricValue, Reduction, SweepRules, SweepSpec};
pub use time::Timestamp;
pub use topology::{InvalidLevel, Level, Segment, TopologyRequest};
