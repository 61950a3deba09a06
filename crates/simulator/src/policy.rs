//! The interface of every policy, textbook or real engine: happenings in, actions out.
//!
//! A policy is told everything that happened at one instant, in a fixed order, and answers once. It sees the
//! simulation through a [`View`], which shows true durations only to policies that declare themselves
//! clairvoyant.

use std::str::FromStr;
use std::time::Duration;

use gangline_base::{NodeId, Priority, Timestamp};

use super::floor::Shares;
use super::progress::{Phase, Progress};
use super::workload::{JobIndex, Workload};

/// Something that happened at the present instant. Happenings of one instant are ordered as these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// A job completed all its work; its accelerators are free.
    Finished(JobIndex),
    /// A job that was asked to save and stop has stopped; its accelerators are free.
    Freed(JobIndex),
    /// A fault ended a job's attempt; its accelerators are free and it waits again.
    Failed(JobIndex),
    /// A node is lost. The failures of its jobs were reported before.
    NodeLost(NodeId),
    /// A node is back, idle.
    NodeBack(NodeId),
    /// A node will be reclaimed at this time (reported only to policies that ask; for others the jobs save by
    /// themselves).
    NodeLeaves(NodeId, Timestamp),
    /// A job was submitted.
    Submitted(JobIndex),
    /// A running job's periodic checkpoint became durable (reported only to policies that ask).
    CheckpointDurable(JobIndex),
    /// The time at which the policy asked to be woken.
    Timer,
}

/// An order by a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Gives a waiting job its accelerators.
    Start {
        /// The job.
        job: JobIndex,
        /// Where it runs.
        place: Place,
    },
    /// Takes a running job's accelerators.
    Preempt {
        /// The job.
        job: JobIndex,
        /// How it is preempted.
        manner: Manner,
    },
    /// Moves running jobs elsewhere, all at once and free of charge.
    Move(Moves),
    /// Sends [`Happening::Timer`] at this time.
    WakeAt(Timestamp),
}

/// Jobs and their new shares in one flat list, since there may be hundreds at every event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Each job with the end of its range in `shares`.
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

    /// Returns every job with its new shares.
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
    /// Returns the accelerators held by a job that requested `asked`.
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
    /// Killed: its accelerators are free at once, and the work since its last checkpoint is lost.
    AtOnce,
    /// Asked to save: it holds its accelerators meanwhile, then [`Happening::Freed`] is reported.
    SaveFirst,
}

/// A scheduling policy.
pub(crate) trait Policy {
    /// Decides what to do now.
    fn decide(&mut self, view: &View<'_>, happenings: &[Happening]) -> Vec<Action>;

    /// Reports whether it wants to be told of nodes that will be reclaimed.
    fn follows_notices(&self) -> bool {
        false
    }

    /// Reports whether it wants to be told of checkpoints.
    fn follows_checkpoints(&self) -> bool {
        false
    }
}

/// The names of the policies.
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

    /// Returns the policy's name for users.
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

    /// Reports whether it sees true durations, which no real scheduler knows.
    #[must_use]
    pub fn is_clairvoyant(self) -> bool {
        matches!(self, PolicyName::Sjf | PolicyName::Srtf | PolicyName::Srsf)
    }

    /// Reports whether it needs time limits.
    #[must_use]
    pub fn needs_limits(self) -> bool {
        self == PolicyName::EasyBackfill
    }
}

/// The error for an unknown policy name.
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

/// What a policy may see.
pub(crate) struct View<'a> {
    pub(crate) now: Timestamp,
    pub(crate) workload: &'a Workload,
    pub(crate) progress: &'a [Progress],
    pub(crate) limits: &'a [Option<Duration>],
    /// Which jobs have high priority.
    pub(crate) is_high: &'a [bool],
    pub(crate) is_clairvoyant: bool,
    /// Whether the remaining work of running jobs changes other than by the passing of time.
    pub(crate) has_quirk: bool,
}

impl View<'_> {
    /// Returns the accelerators a job requests.
    pub(crate) fn gpus(&self, job: JobIndex) -> u32 {
        self.workload.jobs[job.index()].gpus
    }

    /// Returns its priority.
    pub(crate) fn priority(&self, job: JobIndex) -> Priority {
        if self.is_high[job.index()] { Priority::HIGH } else { Priority::NORMAL }
    }

    /// Returns the time limit that its user typed.
    pub(crate) fn limit(&self, job: JobIndex) -> Option<Duration> {
        self.limits[job.index()]
    }

    /// Returns its attained service: time with accelerators.
    pub(crate) fn attained(&self, job: JobIndex) -> Duration {
        self.progress[job.index()].held(self.now)
    }

    /// Returns its remaining work. Only for clairvoyant policies.
    pub(crate) fn remaining(&self, job: JobIndex) -> Duration {
        assert!(self.is_clairvoyant, "only a policy that says it is clairvoyant asks for true durations");
        self.progress[job.index()].remaining(self.now)
    }

    /// Reports whether it holds accelerators and hasn't been told to stop.
    pub(crate) fn is_running(&self, job: JobIndex) -> bool {
        matches!(self.progress[job.index()].phase, Phase::Running(_))
    }

    /// Returns when it must end at the latest by its limit; for a waiting job, as if it started now.
    pub(crate) fn latest_end(&self, job: JobIndex) -> Option<Timestamp> {
        let limit = self.limit(job)?;
        let progress = &self.progress[job.index()];
        let done = progress.done(self.workload.jobs[job.index()].duration, self.now);
        Some(progress.work_from(self.now) + limit.saturating_sub(done))
    }
}
