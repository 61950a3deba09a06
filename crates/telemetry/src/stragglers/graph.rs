//! Which operation of a step waits for which: within a stage by the streams that it is on, and between workers by groups
//! that communicate.

use super::error::TraceError;
use super::layout::Layout;
use super::operation::Kind;
use super::pattern::{Pattern, refusal};
use super::pipeline;

/// What each operation of a [`Pattern`] waits for.
pub(super) struct Graph {
    /// For each operation, those that have to end before it starts.
    pub(super) needs: Vec<Vec<usize>>,
    /// Operations that transfer only once all of them have started.
    pub(super) groups: Vec<Vec<usize>>,
    /// For each operation, its group if it has one.
    pub(super) group_of: Vec<Option<usize>>,
}

impl Graph {
    /// Finds out what waits for what.
    pub(super) fn of(pattern: &Pattern, layout: &Layout) -> Result<Graph, TraceError> {
        let count = pattern.operations().len();
        let mut graph = Graph { needs: vec![Vec::new(); count], groups: Vec::new(), group_of: vec![None; count] };
        pipeline::connect(pattern, &mut graph)?;
        for stage in 0..pattern.stages {
            graph.chain(None, &pattern.begun(stage, Kind::is_compute));
            for kind in Kind::ALL.into_iter().filter(|kind| kind.is_transfer()) {
                graph.chain(None, &pattern.begun(stage, |other| other == kind));
            }
            graph.hold_first_backward(pattern, stage)?;
            if layout.has_data_parallelism() {
                graph.gather_parameters(pattern, stage)?;
            }
            graph.finish_step(pattern, stage, layout)?;
        }
        graph.group_collectives(pattern, layout)?;
        Ok(graph)
    }

    pub(super) fn need(&mut self, operation: usize, earlier: usize) {
        self.needs[operation].push(earlier);
    }

    pub(super) fn group(&mut self, members: Vec<usize>) {
        for member in &members {
            self.group_of[*member] = Some(self.groups.len());
        }
        self.groups.push(members);
    }

    /// One after the other.
    fn chain(&mut self, mut last: Option<usize>, operations: &[usize]) {
        for operation in operations {
            self.needs[*operation].extend(last);
            last = Some(*operation);
        }
    }

    /// The first transfer of gradients starts after the second last forward pass before the first backward pass.
    fn hold_first_backward(&mut self, pattern: &Pattern, stage: u32) -> Result<(), TraceError> {
        let passes = pattern.begun(stage, Kind::is_compute);
        let is_backward = |index: &usize| pattern.operations()[*index].kind == Kind::BackwardCompute;
        let warm_up = passes.iter().position(is_backward).unwrap_or(0);
        if warm_up < 2 {
            return Ok(());
        }
        for kind in [Kind::BackwardReceive, Kind::BackwardSend] {
            if let Some(transfer) = pattern.find(kind, stage, 0) {
                self.need(transfer, passes[warm_up - 2]);
            }
        }
        Ok(())
    }

    /// A chunk's first forward pass waits for the last of the chunk's parameters; if gradients are reduced during the
    /// backward pass, a chunk's first reduction waits for the last backward pass.
    fn gather_parameters(&mut self, pattern: &Pattern, stage: u32) -> Result<(), TraceError> {
        let is_across = |kind| matches!(kind, Kind::ParamsAllGather | Kind::GradsReduceScatter);
        self.chain(None, &pattern.begun(stage, is_across));
        let operations = pattern.operations();
        let passes = pattern.begun(stage, Kind::is_compute);
        let mut seen = Vec::new();
        for gather in pattern.of_kind(Kind::ParamsAllGather, stage).rev() {
            let chunk = operations[gather].chunk;
            if seen.contains(&chunk) {
                continue;
            }
            seen.push(chunk);
            let is_of_it =
                |pass: &&usize| operations[**pass].kind == Kind::ForwardCompute && operations[**pass].chunk == chunk;
            let first = passes.iter().find(is_of_it);
            let first =
                first.ok_or_else(|| refusal(&operations[gather], "no forward pass has its model chunk (mc)"))?;
            self.need(*first, gather);
        }
        if !is_overlapped(pattern) {
            return Ok(());
        }
        seen.clear();
        for reduction in pattern.of_kind(Kind::GradsReduceScatter, stage) {
            let chunk = operations[reduction].chunk;
            if seen.contains(&chunk) {
                continue;
            }
            seen.push(chunk);
            let is_of_it =
                |pass: &usize| operations[*pass].kind == Kind::BackwardCompute && operations[*pass].chunk == chunk;
            let last = last_to_end(pattern, passes.iter().copied().filter(is_of_it));
            let last =
                last.ok_or_else(|| refusal(&operations[reduction], "no backward pass has its model chunk (mc)"))?;
            self.need(reduction, last);
        }
        Ok(())
    }

    /// What follows the last pass, one after the other, up to the optimizer.
    fn finish_step(&mut self, pattern: &Pattern, stage: u32, layout: &Layout) -> Result<(), TraceError> {
        let operations = pattern.operations();
        let passes = pattern.begun(stage, Kind::is_compute);
        let first = operations.first().ok_or(TraceError::Empty)?;
        let lacking = |what: &str| TraceError::Operation {
            step: first.step,
            dp_rank: 0,
            operation: format!("stage {stage}"),
            problem: format!("it has no {what}, and a step needs one"),
        };
        let last = last_to_end(pattern, passes.into_iter()).ok_or_else(|| lacking("forward or backward pass"))?;
        if pattern.of_kind(Kind::Optimizer, stage).is_empty() {
            return Err(lacking("optimizer"));
        }
        let is_single = |kind: Kind| {
            matches!(
                kind,
                Kind::Collection
                    | Kind::LayernormGradsAllReduce
                    | Kind::EmbeddingGradsAllReduce
                    | Kind::SeparateGradsAllReduce
                    | Kind::OptimizerClip
                    | Kind::Optimizer
            )
        };
        for kind in Kind::ALL.into_iter().filter(|kind| is_single(*kind)) {
            if let Some(second) = pattern.find(kind, stage, 1) {
                return Err(refusal(&operations[second], "a stage has only one of its kind in a step"));
            }
        }
        let reductions: Vec<usize> = pattern.of_kind(Kind::GradsReduceScatter, stage).collect();
        let is_overlapped = layout.has_data_parallelism() && is_overlapped(pattern);
        let mut chain: Vec<usize> = pattern.of_kind(Kind::Collection, stage).collect();
        let after = chain.len();
        chain.extend(pattern.of_kind(Kind::LayernormGradsAllReduce, stage));
        chain.extend(pattern.of_kind(Kind::EmbeddingGradsAllReduce, stage));
        if is_overlapped {
            chain.extend(pattern.of_kind(Kind::SeparateGradsAllReduce, stage));
        } else {
            chain.extend(&reductions);
        }
        chain.extend(pattern.of_kind(Kind::OptimizerClip, stage));
        chain.extend(pattern.of_kind(Kind::Optimizer, stage));
        self.chain(Some(last), &chain);
        if let (true, Some(reduction)) = (is_overlapped, reductions.last()) {
            self.need(chain[after], *reduction);
        }
        Ok(())
    }

    /// Collectives are groups of their own, which data-parallel ranks enter together where that is their kind; the
    /// embedding's is the first and the last stage's, and the gradients' norm all stages'.
    fn group_collectives(&mut self, pattern: &Pattern, layout: &Layout) -> Result<(), TraceError> {
        let everywhere = |kind| (0..pattern.stages).flat_map(move |stage| pattern.of_kind(kind, stage));
        for kind in [Kind::ParamsAllGather, Kind::GradsReduceScatter, Kind::SeparateGradsAllReduce] {
            for index in everywhere(kind) {
                if !layout.has_data_parallelism() {
                    let problem = "without data parallelism there is none: does the layout lack dsp?";
                    return Err(refusal(&pattern.operations()[index], problem));
                }
                self.group(vec![index]);
            }
        }
        for kind in [Kind::EmbeddingGradsAllReduce, Kind::OptimizerClip] {
            let members: Vec<usize> = everywhere(kind).collect();
            if !members.is_empty() {
                self.group(members);
            }
        }
        Ok(())
    }
}

/// Gradients that are reduced separately are what the backward pass didn't overlap with.
fn is_overlapped(pattern: &Pattern) -> bool {
    (0..pattern.stages).any(|stage| !pattern.of_kind(Kind::SeparateGradsAllReduce, stage).is_empty())
}

/// The one that ends last; the first of several.
fn last_to_end(pattern: &Pattern, operations: impl Iterator<Item = usize>) -> Option<usize> {
    let end = |index: usize| pattern.operations()[index].end();
    operations.reduce(|best, next| if end(next) > end(best) { next } else { best })
}
