//! What a plan is asked for.

use gangline_base::Money;

use crate::hardware::{Cluster, Fabric, Storage};
use crate::layout::{Layout, Stack};
use crate::reliability::FailureRate;
use crate::units::Seconds;
use crate::workload::Workload;

/// A run that is to be planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What is to be done.
    pub workload: Workload,
    /// Tokens of the whole run.
    pub tokens: u64,
    /// On what.
    pub cluster: Cluster,
    /// What the network between nodes is called.
    pub fabric: String,
    /// Slower networks that might do.
    pub alternatives: Vec<(String, Fabric)>,
    /// How it is cut; none: the best way is looked for.
    pub layout: Option<Layout>,
    /// The software to look for ways with; none: any.
    pub stack: Option<Stack>,
    /// What an accelerator costs, if that is known.
    pub price: Option<Price>,
    /// Where checkpoints go.
    pub storage: StorageChoice,
    /// How often something breaks.
    pub failures: FailureRate,
    /// From a failure to the next step, reading the checkpoint not counted.
    pub recovery: Seconds,
}

/// What an accelerator costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// For an hour.
    pub hourly: Money,
    /// Who asks that.
    pub source: String,
    /// The day of the price, `2026-11-22`; none for one that was given for this plan.
    pub as_of: Option<String>,
    /// Whether it is so old that it may no longer hold.
    pub is_stale: bool,
}

/// Where checkpoints go.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageChoice {
    /// What there is.
    pub storage: Storage,
    /// How much of it, in its units: tebibytes, or streams; nodes and whole systems need no number.
    pub units: f64,
}
