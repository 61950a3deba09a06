//! Replays steps: when each operation would have ended, had it taken as long as we say. All steps and data-parallel ranks
//! are lanes of one pass through the graph.

use std::collections::VecDeque;

use super::error::TraceError;
use super::graph::Graph;
use super::operation::Kind;
use super::pattern::{Pattern, refusal};

/// What is done next.
enum Action {
    /// An operation runs as soon as what it needs has ended.
    Run(usize),
    /// An operation waits for the others of its group.
    Wait(usize),
    /// A group's operations have all started, and transfer.
    Transfer(usize),
}

/// An order in which a step's operations can be gone through.
pub(super) struct Schedule<'a> {
    graph: &'a Graph,
    pattern: &'a Pattern,
    actions: Vec<Action>,
}

impl<'a> Schedule<'a> {
    /// Puts operations into an order in which each comes after what it needs.
    ///
    /// # Errors
    /// When operations wait for each other in a circle.
    pub(super) fn of(graph: &'a Graph, pattern: &'a Pattern) -> Result<Schedule<'a>, TraceError> {
        let mut missing: Vec<usize> = graph.needs.iter().map(Vec::len).collect();
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); missing.len()];
        for (operation, needs) in graph.needs.iter().enumerate() {
            needs.iter().for_each(|needed| followers[*needed].push(operation));
        }
        let mut unstarted: Vec<usize> = graph.groups.iter().map(Vec::len).collect();
        let mut ready: VecDeque<usize> = (0..missing.len()).filter(|operation| missing[*operation] == 0).collect();
        let mut actions = Vec::new();
        while let Some(operation) = ready.pop_front() {
            let own = [operation];
            let ended: &[usize] = match graph.group_of[operation] {
                None => {
                    actions.push(Action::Run(operation));
                    &own
                }
                Some(group) => {
                    actions.push(Action::Wait(operation));
                    unstarted[group] -= 1;
                    if unstarted[group] > 0 { &[] } else { &graph.groups[group] }
                }
            };
            actions.extend(graph.group_of[operation].filter(|_| !ended.is_empty()).map(Action::Transfer));
            for follower in ended.iter().flat_map(|ended| &followers[*ended]) {
                missing[*follower] -= 1;
                if missing[*follower] == 0 {
                    ready.push_back(*follower);
                }
            }
        }
        let stuck = missing.iter().position(|missing| *missing > 0);
        let stuck = stuck.or_else(|| unstarted.iter().position(|left| *left > 0).map(|group| graph.groups[group][0]));
        match stuck {
            Some(operation) => {
                let problem = "it waits in a circle: the order of the starts in the trace can't have been";
                Err(refusal(&pattern.operations()[operation], problem))
            }
            None => Ok(Schedule { graph, pattern, actions }),
        }
    }

    /// Goes through all operations in `lanes` lanes, which are synchronised in groups of `width` where all data-parallel
    /// ranks communicate. `fill` writes the durations of an operation in all lanes.
    pub(super) fn replay(&self, lanes: usize, width: usize, fill: impl Fn(usize, &mut [f64])) -> Ends {
        let mut ends = Ends { lanes, width, cells: vec![0.0; lanes * self.pattern.operations().len()] };
        let (mut starts, mut durations) = (vec![0.0; lanes], vec![0.0; lanes]);
        for action in &self.actions {
            match action {
                Action::Run(operation) => {
                    ends.latest(&self.graph.needs[*operation], &mut starts);
                    fill(*operation, &mut durations);
                    add(ends.row_mut(*operation), &starts, &durations);
                }
                Action::Wait(operation) => {
                    ends.latest(&self.graph.needs[*operation], &mut starts);
                    ends.row_mut(*operation).copy_from_slice(&starts);
                }
                Action::Transfer(group) => {
                    let members = &self.graph.groups[*group];
                    ends.latest(members, &mut starts);
                    if self.pattern.operations()[members[0]].kind.is_across_data() {
                        starts.chunks_exact_mut(width).for_each(level);
                    }
                    for member in members {
                        fill(*member, &mut durations);
                        add(ends.row_mut(*member), &starts, &durations);
                    }
                }
            }
        }
        ends
    }
}

/// When each operation ended, in each lane; a step begins at 0.
pub(super) struct Ends {
    lanes: usize,
    width: usize,
    cells: Vec<f64>,
}

impl Ends {
    fn row(&self, operation: usize) -> &[f64] {
        &self.cells[operation * self.lanes..][..self.lanes]
    }

    fn row_mut(&mut self, operation: usize) -> &mut [f64] {
        &mut self.cells[operation * self.lanes..][..self.lanes]
    }

    /// The latest of some operations in each lane; without any, the step's beginning.
    fn latest(&self, operations: &[usize], into: &mut [f64]) {
        let Some((first, others)) = operations.split_first() else { return into.fill(0.0) };
        into.copy_from_slice(self.row(*first));
        for other in others {
            for (latest, end) in into.iter_mut().zip(self.row(*other)) {
                *latest = if *end > *latest { *end } else { *latest };
            }
        }
    }

    /// When the optimizer ended that ended last, in each group of lanes.
    pub(super) fn of_optimizers(&self, pattern: &Pattern) -> Vec<f64> {
        let optimizers = (0..pattern.stages).flat_map(|stage| pattern.of_kind(Kind::Optimizer, stage));
        self.last(optimizers)
    }

    /// When the last operation ended, in each group of lanes.
    pub(super) fn of_all(&self) -> Vec<f64> {
        self.last(0..self.cells.len() / self.lanes.max(1))
    }

    fn last(&self, operations: impl Iterator<Item = usize>) -> Vec<f64> {
        let mut last = vec![0.0; self.lanes / self.width];
        for operation in operations {
            for (last, lanes) in last.iter_mut().zip(self.row(operation).chunks_exact(self.width)) {
                *last = lanes.iter().copied().fold(*last, f64::max);
            }
        }
        last
    }
}

fn add(into: &mut [f64], starts: &[f64], durations: &[f64]) {
    for ((end, start), duration) in into.iter_mut().zip(starts).zip(durations) {
        *end = start + duration;
    }
}

/// Sets all to the largest.
fn level(lanes: &mut [f64]) {
    let latest = lanes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    lanes.fill(latest);
}
