//! `num_nodes: {min: 2, max: 8, speedup: {4: 1.9, 8: 3.4}}`: a job that may be resized.

use std::num::NonZeroU32;

use gangline_base::{Elastic, SPEED_ONE, SpeedUp};

use super::field::{Field, Section, scalar};
use super::job::NODES_MAX;
use super::problem::{Code, Problems, Refusal, shown};
use super::yaml::{Entry, Value};

/// The numbers of nodes on which a job may run.
pub(super) struct Width {
    /// The least number of nodes.
    pub(super) nodes: NonZeroU32,
    /// The larger numbers, if the job may be resized.
    pub(super) elastic: Option<Elastic>,
}

pub(super) fn read(top: &Section<'_>, problems: &mut Problems) -> Option<Width> {
    let Some(field) = top.get("num_nodes") else { return Some(Width { nodes: NonZeroU32::MIN, elastic: None }) };
    if !matches!(field.node.value, Value::Mapping(_)) {
        let nodes = field.count(problems, 1..=NODES_MAX).and_then(NonZeroU32::new)?;
        return Some(Width { nodes, elastic: None });
    }
    let section = field.section(problems, "num_nodes")?;
    let (min, max) = bounds(field, &section, problems)?;
    let speed_up = match section.get("speedup") {
        None => SpeedUp::assumed(min, max),
        Some(curve) => speed_up(curve, min, max, problems)?,
    };
    if min == max {
        return Some(Width { nodes: min, elastic: None });
    }
    if let Some(topology) = top.get("topology")
        && let Value::Mapping(entries) = &topology.node.value
        && entries.iter().any(|entry| entry.key == "segment")
    {
        let message = format!("asks for segments, and \"num_nodes\" for {min} to {max} nodes, which may not fill them");
        topology.refuse(problems, Refusal::new(Code::BadValue, message).hint("write num_nodes as one number"));
        return None;
    }
    Some(Width { nodes: min, elastic: Some(Elastic { nodes_max: max, speed_up }) })
}

fn bounds(field: Field<'_>, section: &Section<'_>, problems: &mut Problems) -> Option<(NonZeroU32, NonZeroU32)> {
    let mut bound = |key: &str| match section.get(key) {
        Some(bound) => bound.count(problems, 1..=NODES_MAX),
        None => {
            let refusal = Refusal::new(Code::MissingKey, format!("has no \"{key}\"")).hint("write {min: 2, max: 8}");
            field.refuse(problems, refusal);
            None
        }
    };
    let (min, max) = (bound("min"), bound("max"));
    let (min, max) = (min?, max?);
    if min > max {
        field.refuse(problems, Refusal::new(Code::OutOfRange, format!("has min {min} over max {max}")));
        return None;
    }
    NonZeroU32::new(min).zip(NonZeroU32::new(max))
}

fn speed_up(field: Field<'_>, min: NonZeroU32, max: NonZeroU32, problems: &mut Problems) -> Option<SpeedUp> {
    let mut points = Vec::new();
    for entry in field.entries(problems)? {
        points.push(problems.keep(&entry.value.place, point(entry))?);
    }
    let curve = SpeedUp::new(min, max, points).map_err(|wrong| {
        let hint = format!("write how many times as fast as on {min} node(s), as in {{{}: 1.8}}", max.get());
        Refusal::new(Code::BadValue, format!("\"speedup\" is no curve: {wrong}")).hint(hint)
    });
    problems.keep(field.place(), curve)
}

/// Parses `4: 1.9`.
fn point(entry: &Entry) -> Result<(u32, u32), Refusal> {
    let wrong = |what: &str, text: &str| {
        Refusal::new(Code::BadValue, format!("\"speedup\" expects {what}, not {}", shown(text))).hint("write {4: 1.9}")
    };
    let nodes: u32 = entry.key.parse().map_err(|_| wrong("a number of nodes", &entry.key))?;
    let text = scalar(&entry.value)?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{part:0<3}");
    let is_number =
        digits.len() == 3 && !whole.is_empty() && format!("{whole}{digits}").bytes().all(|b| b.is_ascii_digit());
    let speed = whole.parse::<u32>().ok().zip(digits.parse::<u32>().ok()).filter(|_| is_number);
    let speed = speed.and_then(|(whole, part)| whole.checked_mul(SPEED_ONE)?.checked_add(part));
    Ok((nodes, speed.ok_or_else(|| wrong("a number with up to three decimals", text))?))
}
