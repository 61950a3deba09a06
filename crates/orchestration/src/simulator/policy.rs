//! The interface that every policy has, the textbook's and the real engine's alike: happenings in, actions out.
//!
//! A policy is told of everything that happened at one instant, in a fixed order, and answers once. What it may look
//! at is the [`View`], which shows true durations only to policies that say they are clairvoyant.

use std::str::FromStr;
use std::time::Duration;

use gangline_base::{NodeId, Priority, Timestamp};

use super::floor::Shares;
use super::progress::{Phase, Progress};
use super::workload::{JobIndex, Workload};

/// Something that happened at this instant, in the order in which those of one instant are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// A job did all its work; its accelerators are free.
    Finished(JobIndex),
    /// A job that was asked to save and stop has done so; its accelerators are free.
    Freed(JobIndex),
    /// A fault ended a job's attempt; its accelerators are free and it waits again.
    Failed(JobIndex),
    /// A node is gone. Its jobs were told of before.
    NodeLost(NodeId),
    /// A node is back, idle.
    NodeBack(NodeId),
    /// A node will be taken then (told only to policies that ask; for the others its jobs save by themselves).
    NodeLeaves(NodeId, Timestamp),
    /// A job came.
    Submitted(JobIndex),
    /// A running job's periodic checkpoint became durable (told only to policies that ask).
    CheckpointDurable(JobIndex),
    /// The time the policy asked to be woken at.
    Timer,
}

/// What a policy orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Give a waiting job its accelerators.
    Start {
        /// Which.
        job: JobIndex,
        /// Where.
        place: Place,
    },
    /// Take a running job's accelerators.
    Preempt {
        /// Which.
        job: JobIndex,
        /// How.
        manner: Manner,
    },
    /// Put running jobs elsewhere, all at once and free of charge.
    Move(Moves),
    /// Send [`Happening::Timer`] then.
    WakeAt(Timestamp),
}

/// Jobs and where they are put, in one piece: there may be hundreds at every event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Each job with the end of its part of `shares`.
    jobs: Vec<(JobIndex, usize)>,
    shares: Shares,
}

impl Moves {
    pub(crate) fn push(&mut self, job: JobIndex, shares: &[(NodeId, u32)]) {
        self.shares.extend_from_slice(shares);
        self.jobs.push((job, self.shares.len()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Every job with where it is put.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobIndex, &[(NodeId, u32)])> {
        let mut from = 0;
        self.jobs.iter().map(move |(job, to)| (*job, &self.shares[std::mem::replace(&mut from, *to)..*to]))
    }
}

/// Where a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On these nodes.
    Nodes(Shares),
    /// Anywhere: the policy counts accelerators and knows no nodes.
    Counted,
}

impl Place {
    /// Accelerators held there by a job that asked for so many.
    pub(crate) fn gpus(&self, asked: u32) -> u32 {
        match self {
            Place::Nodes(shares) => shares.iter().map(|(_, gpus)| gpus).sum(),
            Place::Counted => asked,
        }
    }
}

/// How a job is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Killed: its accelerators are free at once, and work since its last checkpoint is lost.
    AtOnce,
    /// Asked to save: it holds its accelerators while it does, then [`Happening::Freed`] is told.
    SaveFirst,
}

/// A scheduling policy.
pub(crate) trait Policy {
    /// What to do now.
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action>;

    /// Whether it is to be told of nodes that are about to go.
    fn follows_notices(&self) -> bool {
        false
    }

    /// Whether it is to be told of checkpoints.
    fn follows_checkpoints(&self) -> bool {
        false
    }
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// First in, first out, strictly.
    Fifo,
    /// The shortest job first, stopping at the first that doesn't fit.
    Sjf,
    /// The shortest remaining time first, preemptive.
    Srtf,
    /// The shortest remaining service (time x accelerators) first, preemptive.
    Srsf,
    /// The least attained service first, two-dimensional and discretised, preemptive.
    Las,
    /// FIFO with a reservation for its head and backfill around it.
    EasyBackfill,
    /// By priority, killing whatever is lower without regard to checkpoints.
    Priority,
    /// The product's own engine.
    Gangline,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [PolicyName; 8] = [
        PolicyName::Fifo,
        PolicyName::Sjf,
        PolicyName::Srtf,
        PolicyName::Srsf,
        PolicyName::Las,
        PolicyName::EasyBackfill,
        PolicyName::Priority,
        PolicyName::Gangline,
    ];

    /// What users call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::Fifo => "fifo",
            PolicyName::Sjf => "sjf",
            PolicyName::Srtf => "srtf",
            PolicyName::Srsf => "srsf",
            PolicyName::Las => "las",
            PolicyName::EasyBackfill => "easy-backfill",
            PolicyName::Priority => "priority",
            PolicyName::Gangline => "gangline",
        }
    }

    /// Whether it is told true durations, which no real scheduler knows.
    #[must_use]
    pub fn is_clairvoyant(self) -> bool {
        matches!(self, PolicyName::Sjf | PolicyName::Srtf | PolicyName::Srsf)
    }

    /// Whether it needs time limits.
    #[must_use]
    pub fn needs_limits(self) -> bool {
        self == PolicyName::EasyBackfill
    }
}

/// A policy nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}; there are fifo, sjf, srtf, srsf, las, easy-backfill, priority and gangline")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = PolicyName::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// What a policy may look at.
pub(crate) struct View<'a> {
    pub(crate) now: Timestamp,
    pub(crate) workload: &'a Workload,
    pub(crate) progress: &'a [Progress],
    pub(crate) limits: &'a [Option<Duration>],
    /// The jobs of high priority.
    pub(crate) is_high: &'a [bool],
    pub(crate) is_clairvoyant: bool,
    /// Whether what is left of running jobs changes otherwise than by time passing.
    pub(crate) has_quirk: bool,
}

impl View<'_> {
    /// The accelerators a job asks for.
    pub(crate) fn gpus(&self, job: JobIndex) -> u32 {
        self.workload.jobs[job.index()].gpus
    }

    /// Its priority.
    pub(crate) fn priority(&self, job: JobIndex) -> Priority {
        if self.is_high[job.index()] { Priority::HIGH } else { Priority::NORMAL }
    }

    /// The time limit its user typed.
    pub(crate) fn limit(&self, job: JobIndex) -> Option<Duration> {
        self.limits[job.index()]
    }

    /// The service it has had: time with accelerators.
    pub(crate) fn attained(&self, job: JobIndex) -> Duration {
        self.progress[job.index()].held(self.now)
    }

    /// The work it has left. Only clairvoyant policies may ask.
    pub(crate) fn remaining(&self, job: JobIndex) -> Duration {
        assert!(self.is_clairvoyant, "only a policy that says it is clairvoyant asks for true durations");
        self.progress[job.index()].remaining(self.now)
    }

    /// Whether it holds accelerators and hasn't been told to stop.
    pub(crate) fn is_running(&self, job: JobIndex) -> bool {
        matches!(self.progress[job.index()].phase, Phase::Running(_))
    }

    /// When it must be over at the latest, by its limit: what is left of the limit, from now on if it waits.
    pub(crate) fn latest_end(&self, job: JobIndex) -> Option<Timestamp> {
        let limit = self.limit(job)?;
        let progress = &self.progress[job.index()];
        let done = progress.done(self.workload.jobs[job.index()].duration, self.now);
        Some(progress.work_from(self.now) + limit.saturating_sub(done))
    }
}
