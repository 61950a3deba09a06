//! The key `after`: the jobs that have to end before this one starts, as `job-12`, a list, or a mapping of
//! jobs to how they have to end.

use std::collections::BTreeSet;

use gangline_base::{DEPENDENCIES_MAX, Dependency, EndCondition, JobId};

use super::field::{Field, scalar};
use super::problem::{Code, Problems, Refusal, shown};
use super::values;
use super::yaml::Value;

pub(super) fn read(field: Field<'_>, problems: &mut Problems) -> Option<BTreeSet<Dependency>> {
    let count = match &field.node.value {
        Value::Mapping(entries) => entries.len(),
        Value::List(items) => items.len(),
        Value::Scalar(_) => 1,
    };
    if count > DEPENDENCIES_MAX {
        let message = format!("names {count} jobs, over the limit of {DEPENDENCIES_MAX}");
        field.refuse(problems, Refusal::new(Code::OutOfRange, message));
        return None;
    }
    let succeeded = |text: &str| job(text).map(|job| Dependency { job, condition: EndCondition::Success });
    let found: Vec<Option<Dependency>> = match &field.node.value {
        Value::Mapping(entries) => entries
            .iter()
            .map(|entry| {
                let condition = scalar(&entry.value).and_then(condition);
                let dependency = job(&entry.key).and_then(|job| Ok(Dependency { job, condition: condition? }));
                field.keep(problems, dependency)
            })
            .collect(),
        Value::List(items) => items.iter().map(|item| field.keep(problems, scalar(item).and_then(succeeded))).collect(),
        Value::Scalar(_) => vec![field.parsed(problems, succeeded)],
    };
    found.into_iter().collect()
}

fn job(text: &str) -> Result<JobId, Refusal> {
    text.parse().map_err(|_| {
        let message = format!("names no job: {}", shown(text));
        Refusal::new(Code::BadValue, message)
            .hint("write the id that gangline submit printed, as in job-12; of a sweep, name its jobs")
    })
}

fn condition(text: &str) -> Result<EndCondition, Refusal> {
    let words = EndCondition::ALL.map(EndCondition::name);
    let word = values::choice(text, &words)?;
    let found = EndCondition::ALL.into_iter().find(|condition| condition.name() == word);
    Ok(found.expect("every word is a condition's name"))
}
