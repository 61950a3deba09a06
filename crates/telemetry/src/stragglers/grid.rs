//! A trace as a table: a row for each operation of the pattern, a column for each step and data-parallel rank.

use super::error::TraceError;
use super::layout::Layout;
use super::operation::Operation;
use super::pattern::{Pattern, index, refusal};
use super::read::{OPERATIONS_MAX, Trace, within};

/// When each operation of the pattern began and ended, in each step and on each data-parallel rank ("lanes").
pub(super) struct Grid {
    pub(super) steps: Vec<i64>,
    /// Data-parallel ranks, which are adjacent lanes.
    pub(super) width: usize,
    pub(super) starts: Vec<f64>,
    pub(super) ends: Vec<f64>,
    pub(super) durations: Vec<f64>,
    /// Workers: rank, data-parallel rank and stage; by rank.
    pub(super) workers: Vec<(u32, u32, u32)>,
}

impl Grid {
    pub(super) fn of(trace: &Trace, pattern: &Pattern, layout: &Layout) -> Result<Grid, TraceError> {
        let mut steps: Vec<i64> = trace.operations().iter().map(|operation| operation.step).collect();
        steps.dedup();
        steps.sort_unstable();
        steps.dedup();
        let width = index(layout.data);
        let cells = pattern.operations().len().saturating_mul(width).saturating_mul(steps.len());
        within("operations (on all ranks in all steps)", cells, OPERATIONS_MAX)?;
        let empty = vec![f64::NAN; cells];
        let workers = Vec::new();
        let mut grid = Grid { steps, width, starts: empty.clone(), ends: empty.clone(), durations: empty, workers };
        grid.fill(trace, pattern)?;
        grid.check_whole(pattern)?;
        grid.workers = workers_of(trace, layout)?;
        Ok(grid)
    }

    pub(super) fn lanes(&self) -> usize {
        self.steps.len() * self.width
    }

    fn fill(&mut self, trace: &Trace, pattern: &Pattern) -> Result<(), TraceError> {
        let lanes = self.lanes();
        let mut at = 0;
        for operation in trace.operations() {
            if self.steps[at] != operation.step {
                at = self.steps.partition_point(|step| *step < operation.step);
            }
            let found = pattern.find(operation.kind, operation.stage, operation.sequence);
            let found = found.ok_or_else(|| refusal(operation, "the first step has no such operation"))?;
            let cell = found * lanes + at * self.width + index(operation.dp_rank);
            if !self.starts[cell].is_nan() {
                return Err(refusal(operation, "it is there twice"));
            }
            self.starts[cell] = operation.start;
            self.ends[cell] = operation.end();
            self.durations[cell] = operation.duration;
        }
        Ok(())
    }

    fn check_whole(&self, pattern: &Pattern) -> Result<(), TraceError> {
        let Some(gap) = self.starts.iter().position(|start| start.is_nan()) else { return Ok(()) };
        let (operation, lane) = (gap / self.lanes(), gap % self.lanes());
        Err(TraceError::Operation {
            step: self.steps[lane / self.width],
            dp_rank: u32::try_from(lane % self.width).unwrap_or(u32::MAX),
            operation: pattern.operations()[operation].name(),
            problem: "it isn't there, but the first step has it".to_owned(),
        })
    }

    /// When each step began: with its first operation.
    pub(super) fn step_starts(&self) -> Vec<f64> {
        self.of_steps(&self.starts, f64::INFINITY, f64::min)
    }

    /// When each step ended: with its last operation.
    pub(super) fn step_ends(&self) -> Vec<f64> {
        self.of_steps(&self.ends, f64::NEG_INFINITY, f64::max)
    }

    fn of_steps(&self, cells: &[f64], first: f64, choose: fn(f64, f64) -> f64) -> Vec<f64> {
        let mut chosen = vec![first; self.steps.len()];
        for row in cells.chunks_exact(self.lanes()) {
            for (best, lanes) in chosen.iter_mut().zip(row.chunks_exact(self.width)) {
                *best = lanes.iter().copied().fold(*best, choose);
            }
        }
        chosen
    }
}

/// Refuses ranks outside of the layout.
pub(super) fn check_ranks(trace: &Trace, layout: &Layout) -> Result<(), TraceError> {
    let is_outside = |operation: &Operation| {
        operation.dp_rank >= layout.data
            || operation.stage >= layout.pipeline
            || u64::from(operation.rank) >= layout.world()
    };
    let Some(row) = trace.operations().iter().position(is_outside) else { return Ok(()) };
    let operation = &trace.operations()[row];
    let (column, value, most) = match operation {
        _ if operation.dp_rank >= layout.data => ("dp_rank", operation.dp_rank, u64::from(layout.data)),
        _ if operation.stage >= layout.pipeline => ("stage", operation.stage, u64::from(layout.pipeline)),
        _ => ("rank", operation.rank, layout.world()),
    };
    let problem = format!("{value} is outside of the layout, which has {most}");
    Err(TraceError::Value { row: row + 1, column, problem })
}

/// Which rank is which worker; a worker has one rank in all steps.
fn workers_of(trace: &Trace, layout: &Layout) -> Result<Vec<(u32, u32, u32)>, TraceError> {
    let places = index(layout.data).saturating_mul(index(layout.pipeline));
    within("workers", places, OPERATIONS_MAX)?;
    let mut ranks: Vec<Option<u32>> = vec![None; places];
    for (row, operation) in trace.operations().iter().enumerate() {
        let place = index(operation.dp_rank) * index(layout.pipeline) + index(operation.stage);
        let rank = ranks[place].get_or_insert(operation.rank);
        if *rank != operation.rank {
            let problem = format!("{} has the dp_rank and stage of rank {rank}", operation.rank);
            return Err(TraceError::Value { row: row + 1, column: "rank", problem });
        }
    }
    let mut workers = Vec::new();
    let places = (0..layout.data).flat_map(|dp_rank| (0..layout.pipeline).map(move |stage| (dp_rank, stage)));
    for (rank, (dp_rank, stage)) in ranks.into_iter().zip(places) {
        workers.extend(rank.map(|rank| (rank, dp_rank, stage)));
    }
    workers.sort_unstable();
    Ok(workers)
}
