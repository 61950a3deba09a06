//! A node's health: a score of the faults attributed to the node, which decays with a half-life.
//!
//! A fault is attributed to the node if user code can't cause it (the node or its supervisor is lost), or if
//! it affects one job after another there: a rank that is killed or can't be started counts unless the last
//! fault there was of the same job; a rank that exits with an error counts only if the last fault was of
//! another job. Only the first fault of an attempt counts, since it causes the failures on the gang's other
//! nodes. A few nodes cause most of such faults ("lemon nodes": Kokolis et al., HPCA 2025).
//!
//! A known fault category takes precedence: faulty hardware makes its node suspect at once, a program error
//! never does. A health check that finds a fault of the node, or hangs, also makes it suspect
//! ([`crate::Event::NodeFaulty`]).
//!
//! A node whose score reaches the limit is suspect: it takes nothing new until the score is below half the limit
//! or an administrator restores it. At most a quarter of the nodes are suspect at once, as in Kubernetes'
//! MachineHealthCheck (maxUnhealthy): if all nodes fail, the nodes are not the cause. A score depends only on
//! past faults and the time, in integers; indices by score are updated when the score changes them, so replay
//! and restart see the same scores.

use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{FaultCategory, JobId, NodeId, Timestamp};

use crate::job::{Attempt, ShareState};
use crate::{FaultCause, ShareEnd};

/// One fault, in score units.
const FAULT: u32 = 1_000;
/// The highest score; further faults make no difference.
const SCORE_MAX: u32 = 100 * FAULT;
/// The highest grade; nodes with still more faults rank equally low.
const GRADE_MAX: u32 = 7;
/// At most one in this many nodes may be suspect.
pub(crate) const NODES_PER_SUSPECT: usize = 4;

/// When faults make a node suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// The time after which a fault counts half.
    pub half_life: Duration,
    /// The number of faults that make a node suspect.
    pub suspect_at: NonZeroU32,
}

impl HealthPolicy {
    /// The default: three faults within a day or so.
    pub const DEFAULT: HealthPolicy =
        HealthPolicy { half_life: Duration::from_hours(24), suspect_at: NonZeroU32::MIN.saturating_add(2) };

    /// Returns what a fault of this category adds to the score; one certainly caused by the node makes it
    /// suspect at once.
    pub(crate) fn weight(self, category: FaultCategory) -> u32 {
        if category == FaultCategory::Hardware { self.limit() } else { FAULT }
    }

    fn limit(self) -> u32 {
        self.suspect_at.get().saturating_mul(FAULT).min(SCORE_MAX)
    }
}

/// A node's fault history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The score at `at`, in thousandths of a fault.
    pub score: u32,
    /// When the last fault was counted.
    pub at: Timestamp,
    /// Whether the score reached the limit and has not fallen to half of it since.
    pub is_suspect: bool,
    /// The last job that failed here, if none has succeeded since.
    pub last_failed: Option<JobId>,
}

impl Health {
    /// Returns the current score in thousandths of a fault: halved after each half-life, linear in between.
    #[must_use]
    pub fn score_at(&self, now: Timestamp, policy: HealthPolicy) -> u32 {
        let (half_life, passed) = (policy.half_life.as_nanos().max(1), now.since(self.at).as_nanos());
        let halvings = u32::try_from(passed / half_life).unwrap_or(u32::MAX);
        let score = self.score.checked_shr(halvings).unwrap_or(0);
        let lost = u128::from(score) * (passed % half_life) / (2 * half_life);
        score - u32::try_from(lost).expect("it is at most half of the score")
    }

    /// Returns when the score falls to `level`; immediately if it was never higher.
    fn reaches(&self, level: u32, policy: HealthPolicy) -> Timestamp {
        let halvings = (0..u32::BITS).find(|halvings| self.score >> (halvings + 1) <= level).unwrap_or(u32::BITS - 1);
        let score = self.score >> halvings;
        if score <= level {
            return self.at;
        }
        let half_life = policy.half_life.as_nanos().max(1);
        let rest = (2 * half_life * u128::from(score - level)).div_ceil(u128::from(score));
        let nanos = half_life.saturating_mul(u128::from(halvings)).saturating_add(rest);
        self.at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Reports whether the node takes nothing new.
    #[must_use]
    pub fn is_suspect_at(&self, now: Timestamp, policy: HealthPolicy) -> bool {
        self.is_suspect && self.score_at(now, policy) > policy.limit() / 2
    }

    /// Returns when the node stops being suspect, without further faults.
    #[must_use]
    pub fn suspect_until(&self, policy: HealthPolicy) -> Timestamp {
        self.reaches(policy.limit() / 2, policy)
    }

    /// Returns the current number of faults, rounded; it breaks ties between nodes.
    pub(crate) fn grade(&self, now: Timestamp, policy: HealthPolicy) -> u32 {
        ((self.score_at(now, policy) + FAULT / 2) / FAULT).min(GRADE_MAX)
    }

    /// Returns when its grade or suspect state changes next, if it does.
    pub(crate) fn changes_at(&self, now: Timestamp, policy: HealthPolicy) -> Option<Timestamp> {
        let grade = self.grade(now, policy);
        let next_grade = (grade > 0).then(|| self.reaches(grade * FAULT - FAULT / 2 - 1, policy));
        let cleared = self.is_suspect_at(now, policy).then(|| self.suspect_until(policy));
        next_grade.into_iter().chain(cleared).min()
    }

    /// Counts a fault of this weight ([`HealthPolicy::weight`]). `may_suspect` says that few enough nodes are suspect.
    pub(crate) fn count(&mut self, now: Timestamp, policy: HealthPolicy, weight: u32, may_suspect: bool) {
        let was_suspect = self.is_suspect_at(now, policy);
        self.score = self.score_at(now, policy).saturating_add(weight).min(SCORE_MAX);
        self.at = now;
        self.is_suspect = was_suspect || may_suspect && self.score >= policy.limit();
    }

    /// Records a job's fault; reports whether it is attributed to the node.
    pub(crate) fn blames(&mut self, job: JobId, fault: RootFault) -> bool {
        let last = self.last_failed.replace(job);
        match fault.category {
            FaultCategory::Hardware => return true,
            FaultCategory::UserCode | FaultCategory::CudaOom | FaultCategory::Numerical | FaultCategory::Preemption => {
                return false;
            }
            _ => {}
        }
        match fault.cause {
            FaultCause::SupervisorLost => true,
            FaultCause::Signal(_) | FaultCause::Start | FaultCause::Hang => last != Some(job),
            FaultCause::Exit(_) | FaultCause::Setup(_) => last.is_some_and(|last| last != job),
            // A lost node is counted when it is lost; a failed rendezvous doesn't implicate this node.
            FaultCause::NodeLost | FaultCause::Rendezvous | FaultCause::NotFinite { .. } => false,
        }
    }
}

/// The root cause of an attempt's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootFault {
    pub(crate) cause: FaultCause,
    pub(crate) category: FaultCategory,
}

/// Returns the first fault of an attempt that isn't a mere consequence, and its node.
pub(crate) fn first_fault(attempt: &Attempt) -> Option<(NodeId, RootFault)> {
    let faults = attempt.shares.iter().zip(&attempt.states).filter_map(|(share, state)| match state {
        ShareState::Ended(ShareEnd::Fault { cause, category, is_consequence, at }) => {
            Some(((*is_consequence, *at), share.node, RootFault { cause: *cause, category: *category }))
        }
        _ => None,
    });
    faults.min_by_key(|(order, _, _)| *order).map(|(_, node, fault)| (node, fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: HealthPolicy = HealthPolicy::DEFAULT;

    fn after(hours: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_hours(hours)
    }

    fn faults(count: u32) -> Health {
        let mut health = Health::default();
        (0..count).for_each(|_| health.count(after(0), POLICY, FAULT, true));
        health
    }

    #[test]
    fn a_score_halves_in_a_half_life_and_never_grows() {
        let health = faults(2);
        let check = |hours: u64, expected: u32| assert_eq!(health.score_at(after(hours), POLICY), expected);
        check(0, 2_000);
        check(12, 1_500);
        check(24, 1_000);
        check(48, 500);
        check(24 * 365, 0);
        let scores: Vec<u32> = (0..500).map(|hour| health.score_at(after(hour), POLICY)).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    }

    #[test]
    fn a_node_is_suspect_from_the_limit_until_half_of_it() {
        assert!(!faults(2).is_suspect_at(after(0), POLICY));
        let health = faults(3);
        assert!(health.is_suspect_at(after(23), POLICY));
        assert_eq!(health.suspect_until(POLICY), after(24));
        assert!(!health.is_suspect_at(after(24), POLICY));
        let mut again = health;
        again.count(after(24), POLICY, FAULT, true);
        assert!(!again.is_suspect_at(after(24), POLICY), "2.5 faults are below 3");
        again.count(after(24), POLICY, FAULT, true);
        assert!(again.is_suspect_at(after(24), POLICY));
    }

    #[test]
    fn it_is_looked_at_again_exactly_when_something_changes() {
        for count in 1..12 {
            let (health, mut now) = (faults(count), after(0));
            for _ in 0..20 {
                let seen = |at| (health.grade(at, POLICY), health.is_suspect_at(at, POLICY));
                let Some(next) = health.changes_at(now, POLICY) else { break };
                let just_before = Timestamp::from_unix_nanos(next.unix_nanos() - 1);
                assert_eq!(seen(now), seen(just_before), "{count} faults: nothing changes before {next:?}");
                assert_ne!(seen(now), seen(next), "{count} faults: something changes at {next:?}");
                now = next;
            }
            assert_eq!(health.grade(now, POLICY), 0, "{count} faults are forgotten in 20 steps");
        }
    }

    #[test]
    fn a_fault_is_the_nodes_if_it_hits_one_job_after_another() {
        let check = |causes: &[(u64, FaultCause)], expected: bool| {
            let mut health = Health::default();
            let unknown = |cause| RootFault { cause, category: FaultCategory::Unknown };
            let blamed: Vec<bool> =
                causes.iter().map(|(job, cause)| health.blames(JobId(*job), unknown(*cause))).collect();
            assert_eq!(blamed.last(), Some(&expected), "{causes:?}");
        };
        let (exit, killed) = (FaultCause::Exit(1), FaultCause::Signal(9));
        check(&[(1, exit)], false);
        check(&[(1, exit), (1, exit)], false);
        check(&[(1, exit), (2, exit)], true);
        check(&[(1, killed)], true);
        check(&[(1, killed), (1, killed)], false);
        check(&[(1, FaultCause::SupervisorLost), (1, FaultCause::SupervisorLost)], true);
        check(&[(1, exit), (2, FaultCause::Rendezvous)], false);
    }

    #[test]
    fn hardware_makes_its_node_suspect_at_once_and_a_programs_error_never() {
        let of = |category| RootFault { cause: FaultCause::Exit(1), category };
        let mut health = Health::default();
        assert!(health.blames(JobId(1), of(FaultCategory::Hardware)));
        health.count(after(0), POLICY, POLICY.weight(FaultCategory::Hardware), true);
        assert!(health.is_suspect_at(after(0), POLICY));
        let mut health = Health::default();
        let blamed: Vec<bool> = (1..9).map(|job| health.blames(JobId(job), of(FaultCategory::UserCode))).collect();
        assert_eq!(blamed, [false; 8], "eight jobs in a row");
    }
}
