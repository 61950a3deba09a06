//! The operations of a step: those of the first step's data-parallel rank 0, which all steps and ranks repeat.

use super::error::TraceError;
use super::operation::{Kind, Operation};
use super::read::Trace;

/// The operations of a step on a data-parallel rank, by kind, stage and number.
pub(super) struct Pattern {
    operations: Vec<Operation>,
    /// Where the operations of a kind and stage begin; a last entry says where all end.
    begins: Vec<usize>,
    pub(super) stages: u32,
    /// How many chunks the model is cut into.
    pub(super) model_chunks: i64,
}

impl Pattern {
    /// Takes the pattern out of a trace whose stages are below `stages`.
    pub(super) fn of(trace: &Trace, stages: u32) -> Result<Pattern, TraceError> {
        let first = trace.operations().iter().map(|operation| operation.step).min().unwrap_or(0);
        let is_of_it = |operation: &&Operation| operation.step == first && operation.dp_rank == 0;
        let mut operations: Vec<Operation> = trace.operations().iter().filter(is_of_it).copied().collect();
        operations.sort_by_key(|operation| (operation.kind, operation.stage, operation.sequence));
        let width = index(stages);
        let chunks = operations.iter().map(|operation| i64::from(operation.chunk) + 1).max().unwrap_or(0);
        let model_chunks = chunks * i64::from(stages);
        let mut pattern = Pattern { operations, begins: Vec::new(), stages, model_chunks };
        let mut begin = 0;
        for kind in Kind::ALL {
            for stage in 0..width {
                pattern.begins.push(begin);
                begin += pattern.run(begin, kind, stage)?;
            }
        }
        pattern.begins.push(begin);
        Ok(pattern)
    }

    /// How many operations of a kind and stage follow, numbered from 0 without a gap.
    fn run(&self, begin: usize, kind: Kind, stage: usize) -> Result<usize, TraceError> {
        let rest = self.operations[begin..].iter();
        let count = rest.take_while(|operation| operation.kind == kind && index(operation.stage) == stage).count();
        for (number, operation) in self.operations[begin..begin + count].iter().enumerate() {
            if index(operation.sequence) != number {
                return Err(refusal(operation, "the numbers (seq_id) of its kind have a gap or a double before it"));
            }
        }
        Ok(count)
    }

    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The indices of the operations of a kind and stage, by their numbers.
    pub(super) fn of_kind(&self, kind: Kind, stage: u32) -> std::ops::Range<usize> {
        let slot = kind.index() * index(self.stages) + index(stage);
        self.begins[slot]..self.begins[slot + 1]
    }

    /// The index of an operation, if the pattern has it.
    pub(super) fn find(&self, kind: Kind, stage: u32, sequence: u32) -> Option<usize> {
        let range = self.of_kind(kind, stage);
        Some(range.start + index(sequence)).filter(|found| range.contains(found))
    }

    /// The indices of the operations of a stage whose kinds are asked for, in the order in which they began.
    pub(super) fn begun(&self, stage: u32, is_asked: impl Fn(Kind) -> bool) -> Vec<usize> {
        let kinds = Kind::ALL.into_iter().filter(|kind| is_asked(*kind));
        let mut found: Vec<usize> = kinds.flat_map(|kind| self.of_kind(kind, stage)).collect();
        found.sort_by(|a, b| {
            let (a, b) = (&self.operations[*a], &self.operations[*b]);
            a.start.total_cmp(&b.start).then_with(|| (a.sequence, a.kind).cmp(&(b.sequence, b.kind)))
        });
        found
    }
}

pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

pub(super) fn refusal(operation: &Operation, problem: impl Into<String>) -> TraceError {
    TraceError::Operation {
        step: operation.step,
        dp_rank: operation.dp_rank,
        operation: operation.name(),
        problem: problem.into(),
    }
}
