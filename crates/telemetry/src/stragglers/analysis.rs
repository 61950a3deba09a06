//! The analysis: replays with durations of our choice, and what follows from them.

use super::error::TraceError;
use super::graph::Graph;
use super::grid::{Grid, check_ranks};
use super::layout::Layout;
use super::operation::Kind;
use super::pattern::{Pattern, index};
use super::read::Trace;
use super::replay::Schedule;

/// Transfers that seem to end this long before they began are taken to have taken no time; clocks differ. In seconds.
const NEGATIVE_TRANSFER_MOST: f64 = 1e-2;
/// The share of workers, in percent and rounded up, that are taken for "the slowest".
const SLOWEST_PERCENT: usize = 3;
/// From which slowdown on, and from which share of it on, a cause is named.
const SLOWDOWN_LEAST: f64 = 1.1;
const SHARE_LEAST: f64 = 0.5;

/// What stragglers cost a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// How much longer steps took than if all operations of a kind had taken equally long ("S").
    pub slowdown: f64,
    /// How much longer steps took than the same operations without the gaps that nothing here explains: a host that is
    /// late, and the error of the replay.
    pub gaps: f64,
    /// Each step, in order.
    pub steps: Vec<StepTime>,
    /// The slowdown if only the operations of one data-parallel rank take as long as they did, the largest first.
    pub by_dp_rank: Vec<Share<u32>>,
    /// The same for each pipeline stage.
    pub by_stage: Vec<Share<u32>>,
    /// The same for each kind of operation ([`Kind::group`]).
    pub by_kind: Vec<Share<&'static str>>,
    /// Every worker, the slowest first.
    pub workers: Vec<Worker>,
    /// What the slowest 3 % of the workers explain of the slowdown ("M_W").
    pub slowest_workers: Explained,
    /// What the last pipeline stage explains of the slowdown ("M_S").
    pub last_stage: Explained,
}

/// Where the cause of a slowdown is to be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Steps aren't much slower than they could be.
    Nothing,
    /// In the slowest workers: their machines.
    Workers,
    /// In the last pipeline stage: it has too much of the model.
    LastStage,
    /// In no place of its own: work that is uneven from step to step, like sequences of different lengths.
    Everywhere,
}

/// How long a step took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Its number.
    pub step: i64,
    /// From its first operation to the end of its last one.
    pub measured: f64,
    /// Replayed without gaps.
    pub without_gaps: f64,
    /// Replayed with all operations of a kind alike.
    pub ideal: f64,
    /// What stragglers cost it.
    pub slowdown: f64,
    /// What gaps cost it.
    pub gaps: f64,
}

/// The slowdown that a part of the operations causes by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Share<K> {
    /// Which part.
    pub part: K,
    /// Over all steps.
    pub slowdown: f64,
    /// In each step, in the order of [`Analysis::steps`].
    pub by_step: Vec<f64>,
}

/// A worker, and the slowdown that it may cause: the smaller of its data-parallel rank's and its stage's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Its rank in the gang.
    pub rank: u32,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Its stage.
    pub stage: u32,
    /// The estimate.
    pub slowdown: f64,
}

/// What some workers explain of a slowdown. Times are means of a step's, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explained {
    /// With all operations as they were.
    pub measured: f64,
    /// With all operations of a kind alike.
    pub ideal: f64,
    /// With those of these workers made ideal.
    pub removed: f64,
    /// With only those of these workers as they were.
    pub added: f64,
    /// How much of the slowdown goes when they are made ideal; 0 if there is none.
    pub share_removed: f64,
    /// How much of the slowdown comes with them alone; 0 if there is none.
    pub share_added: f64,
}

impl Analysis {
    /// Where to look first. A slowdown counts from 1.1 on, and a place that explains half of it.
    pub fn cause(&self) -> Cause {
        match self {
            _ if self.slowdown < SLOWDOWN_LEAST => Cause::Nothing,
            _ if self.slowest_workers.share_removed >= SHARE_LEAST => Cause::Workers,
            _ if self.last_stage.share_removed >= SHARE_LEAST => Cause::LastStage,
            _ => Cause::Everywhere,
        }
    }
}

/// Analyses a trace.
///
/// # Errors
/// [`TraceError`], with the row or operation at fault: a rank outside of the layout, an operation without its partner, a
/// step that lacks what the first one has.
pub fn analyse(trace: &Trace, layout: &Layout) -> Result<Analysis, TraceError> {
    check_ranks(trace, layout)?;
    let pattern = Pattern::of(trace, layout.pipeline)?;
    let graph = Graph::of(&pattern, layout)?;
    let schedule = Schedule::of(&graph, &pattern)?;
    let mut grid = Grid::of(trace, &pattern, layout)?;
    set_transfers(&mut grid, &graph, &pattern);
    let study = Study { ideal: ideal(&grid, &pattern), grid: &grid, pattern: &pattern, schedule };
    Ok(study.analysis(layout))
}

/// A transfer takes from when the last of its group began: what comes before is waiting.
fn set_transfers(grid: &mut Grid, graph: &Graph, pattern: &Pattern) {
    let lanes = grid.lanes();
    let mut begins = vec![0.0; lanes];
    for group in &graph.groups {
        begins.fill(f64::NEG_INFINITY);
        for member in group {
            for (begin, start) in begins.iter_mut().zip(&grid.starts[member * lanes..]) {
                *begin = start.max(*begin);
            }
        }
        if pattern.operations()[group[0]].kind.is_across_data() {
            for ranks in begins.chunks_exact_mut(grid.width) {
                let last = ranks.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                ranks.fill(last);
            }
        }
        for cells in group.iter().map(|member| member * lanes..(member + 1) * lanes) {
            let times = grid.ends[cells.clone()].iter().zip(&begins);
            for (duration, (end, begin)) in grid.durations[cells].iter_mut().zip(times) {
                *duration = transfer(end - begin);
            }
        }
    }
}

fn transfer(seconds: f64) -> f64 {
    if seconds <= -NEGATIVE_TRANSFER_MOST { 0.0 } else { seconds }
}

/// What an operation of each kind takes ideally: work the mean, everything else the median.
fn ideal(grid: &Grid, pattern: &Pattern) -> Vec<f64> {
    let lanes = grid.lanes();
    let of_kind = |kind: Kind| {
        let (from, to) = (pattern.of_kind(kind, 0).start, pattern.of_kind(kind, pattern.stages - 1).end);
        let durations = &grid.durations[from * lanes..to * lanes];
        if kind.is_work() { mean(durations) } else { median(durations) }
    };
    Kind::ALL.into_iter().map(of_kind).collect()
}

/// What the replays need.
struct Study<'a> {
    grid: &'a Grid,
    pattern: &'a Pattern,
    schedule: Schedule<'a>,
    /// By kind.
    ideal: Vec<f64>,
}

impl Study<'_> {
    fn analysis(&self, layout: &Layout) -> Analysis {
        let (lanes, width) = (self.grid.lanes(), self.grid.width);
        let replayed =
            self.schedule.replay(lanes, width, |operation, row| row.copy_from_slice(self.measured(operation)));
        let ideal = self.schedule.replay(1, 1, |operation, row| row.fill(self.ideal_of(operation)));
        let (ideal_step, ideal_whole) = (ideal.of_optimizers(self.pattern)[0], ideal.of_all()[0]);
        let (replayed_steps, replayed_wholes) = (replayed.of_optimizers(self.pattern), replayed.of_all());
        let steps = self.steps(&replayed_steps, &replayed_wholes, (ideal_step, ideal_whole));
        let measured: Vec<f64> = steps.iter().map(|step| step.measured).collect();
        let by_dp_rank = self.by_dp_rank(ideal_step);
        let by_stage = self.by_parts((0..layout.pipeline).collect(), ideal_step, |operation| self.stage(operation));
        let mut groups: Vec<&'static str> =
            self.pattern.operations().iter().map(|operation| operation.kind.group()).collect();
        groups.sort_unstable();
        groups.dedup();
        let group = |operation: usize| self.pattern.operations()[operation].kind.group();
        let by_kind = self.by_parts(groups, ideal_step, group);
        let workers = self.workers(&by_dp_rank, &by_stage);
        let count = (workers.len() * SLOWEST_PERCENT).div_ceil(100);
        let slowest: Vec<(u32, u32)> = workers[..count].iter().map(|worker| (worker.stage, worker.dp_rank)).collect();
        let last: Vec<(u32, u32)> = (0..layout.data).map(|dp_rank| (layout.pipeline - 1, dp_rank)).collect();
        let whole = (mean(&replayed_wholes), ideal_whole);
        Analysis {
            slowdown: ratio(mean(&replayed_wholes), ideal_step),
            gaps: ratio(mean(&measured), mean(&replayed_steps)),
            steps,
            by_dp_rank,
            by_stage,
            by_kind,
            workers,
            slowest_workers: self.explained(&slowest, whole),
            last_stage: self.explained(&last, whole),
        }
    }

    fn measured(&self, operation: usize) -> &[f64] {
        &self.grid.durations[operation * self.grid.lanes()..][..self.grid.lanes()]
    }

    fn ideal_of(&self, operation: usize) -> f64 {
        self.ideal[self.pattern.operations()[operation].kind.index()]
    }

    fn stage(&self, operation: usize) -> u32 {
        self.pattern.operations()[operation].stage
    }

    fn steps(&self, replayed: &[f64], wholes: &[f64], ideal: (f64, f64)) -> Vec<StepTime> {
        let ends = self.grid.step_ends();
        let starts = self.grid.step_starts();
        let step = |at: usize| {
            let measured = ends[at] - starts[at];
            StepTime {
                step: self.grid.steps[at],
                measured,
                without_gaps: wholes[at],
                ideal: ideal.1,
                slowdown: ratio(wholes[at], ideal.0),
                gaps: ratio(measured, replayed[at]),
            }
        };
        (0..self.grid.steps.len()).map(step).collect()
    }

    /// Lets the operations of one part after another take as long as they did, and all others ideally long.
    fn by_parts<K: Copy + PartialEq>(&self, parts: Vec<K>, ideal: f64, part_of: impl Fn(usize) -> K) -> Vec<Share<K>> {
        let share = |part: K| {
            let fill = |operation: usize, row: &mut [f64]| match part_of(operation) == part {
                true => row.copy_from_slice(self.measured(operation)),
                false => row.fill(self.ideal_of(operation)),
            };
            let ends = self.schedule.replay(self.grid.lanes(), self.grid.width, fill);
            Share::of(part, &ends.of_optimizers(self.pattern), ideal)
        };
        sorted(parts.into_iter().map(share).collect())
    }

    /// As [`Study::by_parts`], for all data-parallel ranks at once: while one takes as long as it did, the others are all
    /// alike, so that a second lane beside each stands for all of them.
    fn by_dp_rank(&self, ideal: f64) -> Vec<Share<u32>> {
        let ranks = self.grid.width;
        let lanes_of_one = ranks.min(2);
        let fill = |operation: usize, row: &mut [f64]| {
            row.fill(self.ideal_of(operation));
            for (lane, duration) in row.iter_mut().step_by(lanes_of_one).zip(self.measured(operation)) {
                *lane = *duration;
            }
        };
        let ends = self.schedule.replay(self.grid.lanes() * lanes_of_one, lanes_of_one, fill);
        let steps = ends.of_optimizers(self.pattern);
        let share = |rank: usize| {
            let of_it: Vec<f64> = steps.iter().copied().skip(rank).step_by(ranks).collect();
            Share::of(u32::try_from(rank).unwrap_or(u32::MAX), &of_it, ideal)
        };
        sorted((0..ranks).map(share).collect())
    }

    fn workers(&self, by_dp_rank: &[Share<u32>], by_stage: &[Share<u32>]) -> Vec<Worker> {
        let slowdowns = |shares: &[Share<u32>]| {
            let mut slowdowns = vec![0.0; shares.len()];
            shares.iter().for_each(|share| slowdowns[index(share.part)] = share.slowdown);
            slowdowns
        };
        let (of_dp_rank, of_stage) = (slowdowns(by_dp_rank), slowdowns(by_stage));
        let worker = |(rank, dp_rank, stage): &(u32, u32, u32)| {
            let slowdown = of_dp_rank[index(*dp_rank)].min(of_stage[index(*stage)]);
            Worker { rank: *rank, dp_rank: *dp_rank, stage: *stage, slowdown }
        };
        let mut workers: Vec<Worker> = self.grid.workers.iter().map(worker).collect();
        workers.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown).then(a.rank.cmp(&b.rank)));
        workers
    }

    /// What workers, by stage and data-parallel rank, explain; `whole` is the mean step as it was and as it ideally is.
    fn explained(&self, workers: &[(u32, u32)], (measured, ideal): (f64, f64)) -> Explained {
        let mut ranks_of_stage: Vec<Vec<usize>> = vec![Vec::new(); index(self.pattern.stages)];
        workers.iter().for_each(|(stage, dp_rank)| ranks_of_stage[index(*stage)].push(index(*dp_rank)));
        let replayed = |is_removed: bool| {
            let fill = |operation: usize, row: &mut [f64]| {
                let (measured, ideal) = (self.measured(operation), self.ideal_of(operation));
                if is_removed {
                    row.copy_from_slice(measured)
                } else {
                    row.fill(ideal)
                }
                for rank in &ranks_of_stage[index(self.stage(operation))] {
                    let (lanes, measured) = (row.iter_mut().skip(*rank), measured.iter().skip(*rank));
                    for (lane, measured) in lanes.step_by(self.grid.width).zip(measured.step_by(self.grid.width)) {
                        *lane = if is_removed { ideal } else { *measured };
                    }
                }
            };
            mean(&self.schedule.replay(self.grid.lanes(), self.grid.width, fill).of_all())
        };
        let (removed, added) = (replayed(true), replayed(false));
        let slowdown = measured - ideal;
        let share = |part: f64| if slowdown == 0.0 { 0.0 } else { part / slowdown };
        let (share_removed, share_added) = (share(measured - removed), share(added - ideal));
        Explained { measured, ideal, removed, added, share_removed, share_added }
    }
}

impl<K> Share<K> {
    fn of(part: K, steps: &[f64], ideal: f64) -> Share<K> {
        let by_step = steps.iter().map(|step| ratio(*step, ideal)).collect();
        Share { part, slowdown: ratio(mean(steps), ideal), by_step }
    }
}

fn sorted<K>(mut shares: Vec<Share<K>>) -> Vec<Share<K>> {
    shares.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    shares
}

/// A ratio of times; steps that take no time aren't slower than each other.
fn ratio(time: f64, other: f64) -> f64 {
    if other == 0.0 { 1.0 } else { time / other }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    let is_even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| is_even);
    lower.map_or(*upper, |lower| f64::midpoint(lower, *upper))
}
