//! The key `topology`: how close to each other the nodes have to be.

use std::num::NonZeroU32;

use gangline_base::{Level, Segment, TopologyRequest};

use super::field::{Field, Section};
use super::problem::{Code, Problems, Refusal};
use super::{job, values};

/// Reads the topology request. `nodes` is the number of the gang's nodes, if known.
pub(super) fn read(top: &Section<'_>, nodes: Option<NonZeroU32>, problems: &mut Problems) -> Option<TopologyRequest> {
    let Some(field) = top.get("topology") else { return Some(TopologyRequest::default()) };
    let section = field.section(problems, "topology")?;
    let require = section.get_or("require", None, |field| field.parsed(problems, level).map(Some));
    let prefer = section.get_or("prefer", None, |field| field.parsed(problems, level).map(Some));
    let segment = section.get_or("segment", None, |field| segment(field, nodes, problems).map(Some));
    let (require, prefer) = (require?, prefer?);
    if let (Some(required), Some(preferred)) = (require, prefer)
        && preferred > required
    {
        let message = format!("prefers {preferred}, which is wider than the {required} it requires");
        field.refuse(problems, Refusal::new(Code::BadValue, message).hint("prefer a narrower level, or leave it out"));
        return None;
    }
    Some(TopologyRequest { require, prefer, segment: segment? })
}

fn level(text: &str) -> Result<Level, Refusal> {
    let word = values::choice(text, &Level::ALL.map(Level::name))?;
    Ok(Level::ALL.into_iter().find(|level| level.name() == word).expect("the words are those of the levels"))
}

fn segment(field: Field<'_>, nodes: Option<NonZeroU32>, problems: &mut Problems) -> Option<Segment> {
    let section = field.section(problems, "topology.segment")?;
    for key in ["nodes", "level"] {
        if section.get(key).is_none() {
            let refusal = Refusal::new(Code::MissingKey, format!("has no \"{key}\""));
            field.refuse(problems, refusal.hint("write {nodes: 4, level: rack}"));
        }
    }
    let size = section.get("nodes")?.count(problems, 1..=job::NODES_MAX).and_then(NonZeroU32::new)?;
    let level = section.get("level")?.parsed(problems, level)?;
    if let Some(nodes) = nodes.filter(|nodes| !nodes.get().is_multiple_of(size.get())) {
        let message = format!("cannot cut {nodes} nodes into groups of {size}");
        field.refuse(problems, Refusal::new(Code::OutOfRange, message).hint("make num_nodes a multiple of it"));
        return None;
    }
    Some(Segment { nodes: size, level })
}
