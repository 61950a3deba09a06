//! The what-if analysis for the steps that a gang's ranks report: phases instead of single operations, which every job has.
//!
//! A step of synchronous data-parallel training ends for all ranks when the last one has done its own work and the gradients
//! are exchanged. So a step takes the longest own work of a rank (all of its time but communication and waiting), and the
//! shortest time that a rank communicates or waits, which is that of the last one to arrive. In the ideal step every phase takes the mean
//! of its ranks, and the exchange is as it was. What a rank or a phase costs is how much longer ideal steps would take if
//! only it were as it was: the slowdowns of "Understanding Stragglers in Large Model Training Using What-if Analysis"
//! (OSDI'25, <https://arxiv.org/abs/2505.05713>), section 3, for a gang with one exchange a step.

use std::collections::{BTreeMap, BTreeSet};

use gangline_base::Phase;

use super::error::TraceError;
use super::read::{OPERATIONS_MAX, within};

/// Phases of a rank's own work.
const OWN: [Phase; 5] = [Phase::Data, Phase::Compute, Phase::Checkpoint, Phase::Restore, Phase::Init];
/// Phases in which a rank depends on others.
const SHARED: [Phase; 2] = [Phase::Communication, Phase::StragglerWait];
/// The name of own work that no phase has.
const OTHER: &str = "other";
/// Kinds of own work.
const KINDS: usize = OWN.len() + 1;

/// A step of a rank, with its time by phase.
#[derive(Clone, Debug, PartialEq)]
pub struct RankStep {
    /// The global rank.
    pub rank: u32,
    /// The step.
    pub step: u64,
    /// When it ended, in seconds since any beginning that all ranks share.
    pub end: f64,
    /// How long it took, in seconds; finite and at least 0.
    pub seconds: f64,
    /// Seconds of it by phase; finite and at least 0.
    pub phases: BTreeMap<Phase, f64>,
}

/// A step of the gang.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GangStep {
    /// The step.
    pub step: u64,
    /// Seconds from the slowest rank's own work and the exchange.
    pub measured: f64,
    /// Seconds without stragglers.
    pub ideal: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GangAnalysis {
    /// Ranks.
    pub ranks: usize,
    /// The steps that all ranks reported, in order.
    pub steps: Vec<GangStep>,
    /// Steps that some rank didn't report; they don't count.
    pub incomplete: usize,
    /// How many times as long as the ideal steps the measured ones take together.
    pub slowdown: f64,
    /// How many times as long as the measured steps the reported ones took; far from 1, the model of a step doesn't fit the job.
    pub gaps: f64,
    /// The slowdown that each kind of own work causes by itself, the largest first.
    pub by_phase: Vec<(&'static str, f64)>,
    /// The slowdown that each rank causes by itself, the largest first.
    pub by_rank: Vec<(u32, f64)>,
    /// Whether any rank reports communication or waiting. If none does, what a rank waits for others is in its own work, and
    /// stragglers don't show.
    pub tells_waiting: bool,
}

impl RankStep {
    fn of_phases(&self, phases: &[Phase]) -> f64 {
        phases.iter().filter_map(|phase| self.phases.get(phase)).sum()
    }

    fn shared(&self) -> f64 {
        self.of_phases(&SHARED)
    }

    /// Returns the own work by kind; what no phase has comes last.
    fn own(&self) -> [f64; KINDS] {
        let mut own = [0.0; KINDS];
        for (seconds, phase) in own.iter_mut().zip(OWN) {
            *seconds = self.phases.get(&phase).copied().unwrap_or(0.0);
        }
        own[KINDS - 1] = (self.seconds - self.shared() - self.of_phases(&OWN)).max(0.0);
        own
    }
}

/// Analyses the steps of a gang's ranks.
///
/// # Errors
/// [`TraceError::Empty`] if there is no step that all ranks reported; [`TraceError::TooLarge`]; [`TraceError::Value`] for a time
/// that isn't one.
pub fn analyse_gang(steps: &[RankStep]) -> Result<GangAnalysis, TraceError> {
    within("steps of ranks", steps.len(), OPERATIONS_MAX)?;
    for (row, step) in steps.iter().enumerate() {
        let is_time = |seconds: &f64| seconds.is_finite() && *seconds >= 0.0;
        if !step.end.is_finite() || !is_time(&step.seconds) || !step.phases.values().all(is_time) {
            let problem = format!("step {} of rank {} has a time that isn't one", step.step, step.rank);
            return Err(TraceError::Value { row: row + 1, column: "seconds", problem });
        }
    }
    let ranks: BTreeSet<u32> = steps.iter().map(|step| step.rank).collect();
    let mut by_step: BTreeMap<u64, BTreeMap<u32, &RankStep>> = BTreeMap::new();
    for step in steps {
        by_step.entry(step.step).or_default().insert(step.rank, step);
    }
    let all = by_step.len();
    by_step.retain(|_, of_ranks| of_ranks.len() == ranks.len());
    if by_step.is_empty() {
        return Err(TraceError::Empty);
    }
    let incomplete = all - by_step.len();
    let tells_waiting = steps.iter().any(|step| SHARED.iter().any(|phase| step.phases.contains_key(phase)));
    Ok(Sums::of(&by_step, &ranks).analysis(incomplete, tells_waiting))
}

/// Seconds of all steps together.
struct Sums {
    steps: Vec<GangStep>,
    reported: f64,
    /// As if only this rank's work were as it was.
    by_rank: BTreeMap<u32, f64>,
    /// The same for a kind of own work.
    by_kind: [f64; KINDS],
}

impl Sums {
    fn of(by_step: &BTreeMap<u64, BTreeMap<u32, &RankStep>>, ranks: &BTreeSet<u32>) -> Sums {
        let by_rank = ranks.iter().map(|rank| (*rank, 0.0)).collect();
        let mut sums = Sums { steps: Vec::new(), reported: 0.0, by_rank, by_kind: [0.0; KINDS] };
        by_step.iter().for_each(|(step, of_ranks)| sums.add(*step, of_ranks));
        sums
    }

    fn add(&mut self, step: u64, of_ranks: &BTreeMap<u32, &RankStep>) {
        let count = whole(of_ranks.len());
        let exchange = of_ranks.values().map(|step| step.shared()).fold(f64::INFINITY, f64::min);
        let own: BTreeMap<u32, [f64; KINDS]> = of_ranks.iter().map(|(rank, step)| (*rank, step.own())).collect();
        let mean: [f64; KINDS] = std::array::from_fn(|kind| own.values().map(|own| own[kind]).sum::<f64>() / count);
        let ideal: f64 = mean.iter().sum();
        let longest = |with: &dyn Fn(&[f64; KINDS]) -> f64| own.values().map(with).fold(0.0, f64::max);
        for (rank, seconds) in &mut self.by_rank {
            *seconds += own.get(rank).map_or(ideal, |own| own.iter().sum::<f64>().max(ideal)) + exchange;
        }
        for (kind, seconds) in self.by_kind.iter_mut().enumerate() {
            *seconds += longest(&|own| ideal - mean[kind] + own[kind]) + exchange;
        }
        self.reported += of_ranks.values().map(|step| step.seconds).sum::<f64>() / count;
        let measured = longest(&|own| own.iter().sum()) + exchange;
        self.steps.push(GangStep { step, measured, ideal: ideal + exchange });
    }

    fn analysis(self, incomplete: usize, tells_waiting: bool) -> GangAnalysis {
        let sum = |of: fn(&GangStep) -> f64| self.steps.iter().map(of).sum::<f64>();
        let (measured, ideal) = (sum(|step| step.measured), sum(|step| step.ideal));
        let names = OWN.map(Phase::name).into_iter().chain([OTHER]);
        let mut by_phase: Vec<(&str, f64)> =
            names.zip(self.by_kind).map(|(name, seconds)| (name, ratio(seconds, ideal))).collect();
        let mut by_rank: Vec<(u32, f64)> =
            self.by_rank.into_iter().map(|(rank, seconds)| (rank, ratio(seconds, ideal))).collect();
        by_phase.sort_by(|one, other| other.1.total_cmp(&one.1));
        by_rank.sort_by(|one, other| other.1.total_cmp(&one.1));
        GangAnalysis {
            ranks: by_rank.len(),
            incomplete,
            slowdown: ratio(measured, ideal),
            gaps: ratio(self.reported, measured),
            by_phase,
            by_rank,
            tells_waiting,
            steps: self.steps,
        }
    }
}

/// Returns how many times as long something takes; 1 if both take no time.
fn ratio(seconds: f64, ideal: f64) -> f64 {
    if ideal > 0.0 { seconds / ideal } else { 1.0 }
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer ranks than 2^53")]
fn whole(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rank: u32, step: u64, phases: &[(Phase, f64)]) -> RankStep {
        let seconds = phases.iter().map(|(_, seconds)| seconds).sum();
        RankStep { rank, step, end: f64::from(rank), seconds, phases: phases.iter().copied().collect() }
    }

    /// Four ranks of which the last computes twice as long; the others wait for it, and the exchange takes 0.1 s.
    fn with_a_straggler(steps: u64) -> Vec<RankStep> {
        let of = |number: u64, rank: u32| {
            let (compute, wait) = if rank == 3 { (2.0, 0.0) } else { (1.0, 1.0) };
            step(
                rank,
                number,
                &[
                    (Phase::Compute, compute),
                    (Phase::StragglerWait, wait),
                    (Phase::Communication, 0.1),
                    (Phase::Data, 0.5),
                ],
            )
        };
        (0..steps).flat_map(|number| (0..4).map(move |rank| of(number, rank))).collect()
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-12
    }

    #[test]
    fn a_slow_rank_explains_what_it_costs() {
        let analysis = analyse_gang(&with_a_straggler(7)).expect("whole steps");
        // A step takes 2 + 0.5 + 0.1 s; with all ranks alike 1.25 + 0.5 + 0.1 s.
        assert!(close(analysis.slowdown, 2.6 / 1.85) && close(analysis.gaps, 1.0), "{analysis:?}");
        assert_eq!((analysis.ranks, analysis.steps.len(), analysis.incomplete), (4, 7, 0));
        let (rank, slowdown) = analysis.by_rank[0];
        assert!(rank == 3 && close(slowdown, analysis.slowdown), "{analysis:?}");
        assert!(analysis.by_rank[1..].iter().all(|(_, slowdown)| close(*slowdown, 1.0)), "{analysis:?}");
        let (phase, slowdown) = analysis.by_phase[0];
        assert!(phase == "compute" && close(slowdown, analysis.slowdown), "{analysis:?}");
        assert!(analysis.by_phase[1..].iter().all(|(_, slowdown)| close(*slowdown, 1.0)), "{analysis:?}");
        assert!(analysis.tells_waiting);
    }

    #[test]
    fn time_that_no_phase_has_is_work_too_and_steps_that_a_rank_lacks_do_not_count() {
        let mut steps = with_a_straggler(2);
        for step in steps.iter_mut().filter(|step| step.rank == 1) {
            step.seconds += 3.0;
        }
        steps.retain(|step| (step.rank, step.step) != (0, 1));
        let analysis = analyse_gang(&steps).expect("whole steps");
        assert_eq!((analysis.steps.len(), analysis.incomplete), (1, 1));
        assert_eq!((analysis.by_phase[0].0, analysis.by_rank[0].0), ("other", 1));
    }

    #[test]
    fn a_gang_that_tells_no_waiting_says_so_and_one_rank_has_no_straggler() {
        let alike: Vec<RankStep> = (0..2).map(|rank| step(rank, 1, &[(Phase::Compute, 2.0)])).collect();
        let analysis = analyse_gang(&alike).expect("whole steps");
        assert!(!analysis.tells_waiting && close(analysis.slowdown, 1.0));
        let alone = analyse_gang(&with_a_straggler(3)[3..4]).expect("whole steps");
        assert!(close(alone.slowdown, 1.0) && alone.by_rank.len() == 1, "{alone:?}");
    }

    #[test]
    fn what_is_no_step_is_refused() {
        assert!(matches!(analyse_gang(&[]), Err(TraceError::Empty)));
        let of_two = [step(0, 1, &[]), step(1, 2, &[])];
        assert!(matches!(analyse_gang(&of_two), Err(TraceError::Empty)), "no step has both ranks");
        let wrong = [RankStep { seconds: f64::NAN, ..step(0, 1, &[]) }];
        assert!(matches!(analyse_gang(&wrong), Err(TraceError::Value { row: 1, .. })));
        assert!(matches!(analyse_gang(&[step(0, 1, &[(Phase::Data, -1.0)])]), Err(TraceError::Value { .. })));
    }
}
