//! The key `sweep`: one job for each combination of values, and the rules they share. The short form has only
//! parameters; the long form has them under `parameters`.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use gangline_base::{EarlyStop, Goal, Grid, Reduction, SweepRules};
use gangline_orchestration::SWEEP_JOBS_MAX;

use super::field::{Field, Section, scalar};
use super::job;
use super::problem::{Code, Problems, Refusal, shown};
use super::values;
use super::yaml::{Entry, Value};

/// The default metric: the ranks' `loss`.
const METRIC_DEFAULT: &str = "loss";
/// The most parameters of a sweep.
const PARAMETERS_MAX: usize = 64;
/// The largest reduction factor. A rung always keeps at least one job.
const REDUCTION_MAX: u32 = 1_000;
/// The last step at which the first rung may be.
const MIN_STEPS_MAX: u32 = 1_000_000_000;

/// The points of a sweep and their rules.
pub(super) type Sweep = (Grid, SweepRules);

/// Returns `Some(None)` if the file has no sweep, and `None` if the sweep is wrong.
pub(super) fn read(top: &Section<'_>, problems: &mut Problems) -> Option<Option<Sweep>> {
    let Some(field) = top.get("sweep") else { return Some(None) };
    let entries = field.entries(problems)?;
    let is_rule = |entry: &Entry| {
        ["parameters", "max_parallel", "early_stop"].contains(&entry.key.as_str())
            && !matches!(entry.value.value, Value::List(_))
    };
    if !entries.iter().any(is_rule) {
        return grid(field, entries, problems).map(|grid| Some((grid, SweepRules::default())));
    }
    let section = field.section(problems, "sweep")?;
    let grid = match section.get("parameters") {
        Some(parameters) => parameters.entries(problems).and_then(|entries| grid(parameters, entries, problems)),
        None => {
            let refusal = Refusal::new(Code::MissingKey, "has no \"parameters\"");
            field.refuse(problems, refusal.hint("write parameters: {LR: [1e-4, 3e-4]}"));
            None
        }
    };
    let parallel_max = u32::try_from(SWEEP_JOBS_MAX).expect("a small number");
    let max_parallel =
        section.get_or("max_parallel", None, |field| field.count(problems, 1..=parallel_max).map(NonZeroU32::new));
    let early_stop = section.get_or("early_stop", None, |field| early_stop(field, problems).map(Some));
    Some(Some((grid?, SweepRules { max_parallel: max_parallel?, early_stop: early_stop? })))
}

fn early_stop(field: Field<'_>, problems: &mut Problems) -> Option<EarlyStop> {
    let section = field.section(problems, "sweep.early_stop")?;
    let metric = section.get_or("metric", METRIC_DEFAULT.to_owned(), |field| field.parsed(problems, values::name));
    let goal = section.get_or("goal", Some(Goal::Minimize), |field| field.parsed(problems, goal).map(Some));
    let is_loss = metric.as_deref().is_none_or(|metric| metric == METRIC_DEFAULT);
    if !is_loss && section.get("goal").is_none() {
        let refusal = Refusal::new(Code::MissingKey, "has no \"goal\" for its metric");
        field.refuse(problems, refusal.hint("write goal: minimize or goal: maximize"));
    }
    let Some(min_steps) = section.get("min_steps") else {
        let refusal = Refusal::new(Code::MissingKey, "has no \"min_steps\"");
        field.refuse(problems, refusal.hint("write the step at which jobs are first compared, as in min_steps: 100"));
        return None;
    };
    let min_steps = min_steps.count(problems, 1..=MIN_STEPS_MAX);
    let reduction = section.get_or("reduction", Reduction::DEFAULT, |field| {
        field.count(problems, 2..=REDUCTION_MAX).and_then(Reduction::new)
    });
    let min_steps = min_steps.map(u64::from).and_then(NonZeroU64::new)?;
    Some(EarlyStop { metric: metric?, goal: goal??, min_steps, reduction: reduction? })
}

fn goal(text: &str) -> Result<Goal, Refusal> {
    match values::choice(text, &["minimize", "maximize"])? {
        "maximize" => Ok(Goal::Maximize),
        _ => Ok(Goal::Minimize),
    }
}

/// Reads the grid of the parameters' values.
fn grid(field: Field<'_>, entries: &[Entry], problems: &mut Problems) -> Option<Grid> {
    if entries.is_empty() {
        field.refuse(problems, Refusal::new(Code::BadValue, "names no parameter").hint("write LR: [1e-4, 3e-4]"));
        return None;
    }
    if entries.len() > PARAMETERS_MAX {
        let message = format!("names {} parameters, over the limit of {PARAMETERS_MAX}", entries.len());
        let hint = "put what is the same for all jobs under envs";
        field.refuse(problems, Refusal::new(Code::OutOfRange, message).hint(hint));
        return None;
    }
    let parameters: Vec<_> = entries.iter().map(|entry| parameter(entry, problems)).collect();
    let parameters: Vec<_> = parameters.into_iter().collect::<Option<_>>()?;
    let grid = Grid::new(parameters);
    let points = grid.points();
    if points > SWEEP_JOBS_MAX {
        let message = format!("makes {points} jobs, over the limit of {SWEEP_JOBS_MAX}");
        field.refuse(problems, Refusal::new(Code::OutOfRange, message));
        return None;
    }
    Some(grid)
}

/// Reads a variable's name and its values, without duplicates.
fn parameter(entry: &Entry, problems: &mut Problems) -> Option<(String, Vec<String>)> {
    let refused = |refusal: Refusal| Refusal { message: format!("\"sweep\": {}", refusal.message), ..refusal };
    let named = problems.keep(&entry.place, values::variable(&entry.key).map_err(refused));
    let list = match &entry.value.value {
        Value::List(values) if !values.is_empty() => Ok(values),
        _ => Err(Refusal::new(Code::WrongType, format!("{} expects a list of values", shown(&entry.key)))
            .hint("write [1e-4, 3e-4]")),
    };
    let list = problems.keep(&entry.value.place, list.map_err(refused))?;
    let mut texts: Vec<String> = Vec::with_capacity(list.len());
    let mut seen = BTreeSet::new();
    for value in list {
        let text = scalar(value).and_then(|text| job::within_argument(&entry.key, text)).and_then(|text| {
            if !seen.insert(text) {
                let message = format!("{} has the value {} twice", shown(&entry.key), shown(text));
                return Err(Refusal::new(Code::BadValue, message).hint("leave one of them out"));
            }
            Ok(text.to_owned())
        });
        texts.push(problems.keep(&value.place, text.map_err(refused))?);
    }
    named.map(|()| (entry.key.clone(), texts))
}
