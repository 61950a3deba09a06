//! Transfers between pipeline stages: which pass each belongs to, and which two are the ends of one.

use std::collections::BTreeMap;

use super::error::TraceError;
use super::graph::Graph;
use super::operation::{Kind, Operation};
use super::pattern::{Pattern, refusal};

/// How far the clocks of workers may be apart, in seconds.
const CLOCK_SLACK: f64 = 5e-5;

/// A kind of transfer.
#[derive(Clone, Copy)]
struct Way {
    kind: Kind,
    pass: Kind,
    other_end: Kind,
    is_send: bool,
    /// Whether the other end is at the next stage, or at the one before.
    is_to_next: bool,
}

const WAYS: [Way; 4] = [
    Way {
        kind: Kind::ForwardSend,
        pass: Kind::ForwardCompute,
        other_end: Kind::ForwardReceive,
        is_send: true,
        is_to_next: true,
    },
    Way {
        kind: Kind::ForwardReceive,
        pass: Kind::ForwardCompute,
        other_end: Kind::ForwardSend,
        is_send: false,
        is_to_next: false,
    },
    Way {
        kind: Kind::BackwardSend,
        pass: Kind::BackwardCompute,
        other_end: Kind::BackwardReceive,
        is_send: true,
        is_to_next: false,
    },
    Way {
        kind: Kind::BackwardReceive,
        pass: Kind::BackwardCompute,
        other_end: Kind::BackwardSend,
        is_send: false,
        is_to_next: true,
    },
];

/// The end of a transfer, by which the other end finds it: kind, stage and how many of them came before it.
type End = (Kind, u32, usize);

/// Connects transfers with the passes that they feed or empty, and with each other.
pub(super) fn connect(pattern: &Pattern, graph: &mut Graph) -> Result<(), TraceError> {
    let mut ends: BTreeMap<End, usize> = BTreeMap::new();
    for (stage, way) in (0..pattern.stages).flat_map(|stage| WAYS.map(|way| (stage, way))) {
        let (real, unlaunched): (Vec<_>, Vec<_>) =
            matched(pattern, graph, stage, way)?.into_iter().partition(|(_, is_real)| *is_real);
        unlaunched.into_iter().for_each(|(transfer, _)| graph.group(vec![transfer]));
        let numbered = real.into_iter().enumerate();
        ends.extend(numbered.map(|(number, (transfer, _))| ((way.kind, stage, number), transfer)));
    }
    for ((kind, stage, number), transfer) in &ends {
        let Some(way) = WAYS.iter().find(|way| way.kind == *kind) else { continue };
        let other_end = (way.other_end, neighbour(*way, *stage, pattern.stages), *number);
        let partner = ends.get(&other_end).ok_or_else(|| {
            let problem = format!("its partner, {} {number} of stage {}, isn't there", other_end.0.name(), other_end.1);
            refusal(&pattern.operations()[*transfer], problem)
        })?;
        if way.is_send {
            graph.group(vec![*transfer, *partner]);
        }
    }
    Ok(())
}

fn neighbour(way: Way, stage: u32, stages: u32) -> u32 {
    if way.is_to_next { (stage + 1) % stages } else { (stage + stages - 1) % stages }
}

/// Gives each transfer of a kind its pass; returns them in order, and whether anything is transferred. Profilers record
/// some that were never launched: before the first pass or after the last one, and at the ends of the model.
fn matched(pattern: &Pattern, graph: &mut Graph, stage: u32, way: Way) -> Result<Vec<(usize, bool)>, TraceError> {
    let operations = pattern.operations();
    let passes = pattern.of_kind(way.pass, stage);
    let starts = operations[passes.clone()].iter().map(|pass| pass.start);
    let last_start = starts.fold(f64::NEG_INFINITY, f64::max);
    let first_end = operations[passes.clone()].iter().map(Operation::end).fold(f64::INFINITY, f64::min);
    let is_launched = |transfer: &Operation| match way.is_send {
        true => transfer.end() >= first_end - CLOCK_SLACK,
        false => transfer.start <= last_start + CLOCK_SLACK,
    };
    let transfers = pattern.begun(stage, |kind| kind == way.kind);
    let launched = transfers.iter().filter(|transfer| is_launched(&operations[**transfer])).count();
    let mut number = first_pass(pattern, stage, way, launched)?;
    let mut found = Vec::new();
    for transfer in transfers {
        if !is_launched(&operations[transfer]) {
            found.push((transfer, false));
            continue;
        }
        let Some(pass) = Some(passes.start + number).filter(|pass| passes.contains(pass)) else {
            return Err(refusal(&operations[transfer], format!("there is no {} for it", way.pass.name())));
        };
        if way.is_send {
            graph.need(transfer, pass);
        } else {
            graph.need(pass, transfer);
            if number > 0 {
                graph.need(transfer, pass - 1);
            }
        }
        found.push((transfer, is_real(pattern, &operations[pass], way)));
        number += 1;
    }
    Ok(found)
}

/// Which pass the first transfer belongs to. Each pass has a transfer; only at the first and the last stage may all or the
/// first be missing.
fn first_pass(pattern: &Pattern, stage: u32, way: Way, launched: usize) -> Result<usize, TraceError> {
    let passes = pattern.of_kind(way.pass, stage);
    if launched == passes.len() {
        return Ok(0);
    }
    let is_at_end = stage == 0 || stage + 1 == pattern.stages;
    if is_at_end && (launched == 0 || launched + 1 == passes.len()) {
        return Ok(usize::from(!way.is_send && launched > 0));
    }
    let first = pattern.operations().first().ok_or(TraceError::Empty)?;
    Err(TraceError::Operation {
        step: first.step,
        dp_rank: first.dp_rank,
        operation: format!("stage {stage}"),
        problem: format!("{} {} for {} {}", launched, way.kind.name(), passes.len(), way.pass.name()),
    })
}

/// Whether the model goes on beyond this pass's chunk.
fn is_real(pattern: &Pattern, pass: &Operation, way: Way) -> bool {
    let next = i64::from(pass.global_chunk) + if way.is_to_next { 1 } else { -1 };
    (0..pattern.model_chunks).contains(&next)
}
