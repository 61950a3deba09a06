//! The key `sweep`: one job for each combination of values, or for each of some that are drawn, and the rules they
//! share. The short form has only parameters; the long form has them under `parameters`.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use gangline_base::{EarlyStop, Goal, Grid, Reduction, SweepRules};
use gangline_orchestration::SWEEP_JOBS_MAX;

use super::draw::{Draws, Range, Values};
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
        ["parameters", "samples", "order", "seed", "max_parallel", "early_stop"].contains(&entry.key.as_str())
            && !matches!(entry.value.value, Value::List(_))
            && Range::is_none_written(&entry.value)
    };
    if !entries.iter().any(is_rule) {
        let points = points(field, (entries, Choice::default()), problems);
        return points.map(|points| Some((points, SweepRules::default())));
    }
    let section = field.section(problems, "sweep")?;
    let choice = choice(&section, problems);
    let grid = match section.get("parameters") {
        Some(parameters) => {
            let entries = parameters.entries(problems);
            choice.zip(entries).and_then(|(choice, entries)| points(parameters, (entries, choice), problems))
        }
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

/// How points are chosen.
#[derive(Clone, Copy, Default)]
struct Choice {
    /// The number of points that are drawn; none for every combination.
    samples: Option<usize>,
    is_shuffled: bool,
    seed: u32,
}

fn choice(section: &Section<'_>, problems: &mut Problems) -> Option<Choice> {
    let samples_max = u32::try_from(SWEEP_JOBS_MAX).expect("a small number");
    let samples = section.get_or("samples", None, |field| field.count(problems, 1..=samples_max).map(Some));
    let is_shuffled = section.get_or("order", false, |field| {
        field.parsed(problems, |text| values::choice(text, &["grid", "shuffled"]).map(|word| word == "shuffled"))
    });
    let seed = section.get_or("seed", 0, |field| field.count(problems, 0..=u32::MAX));
    let samples = samples?.map(|samples| usize::try_from(samples).expect("a small number"));
    Some(Choice { samples, is_shuffled: is_shuffled?, seed: seed? })
}

/// Reads the parameters and chooses the points.
fn points(field: Field<'_>, (entries, choice): (&[Entry], Choice), problems: &mut Problems) -> Option<Grid> {
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
    let parameters: Vec<(String, Values)> = parameters.into_iter().collect::<Option<_>>()?;
    let mut draws = Draws::new(choice.seed);
    if let Some(samples) = choice.samples {
        let drawn = draws.points(&parameters, samples);
        return field.keep(problems, drawn.map_err(|found| too_few(found, samples)));
    }
    let listed = parameters.into_iter().map(|(name, values)| match values {
        Values::List(values) => Ok((name, values)),
        Values::Range(_) => {
            let message = format!("has a range for {}, and no \"sweep.samples\"", shown(&name));
            Err(Refusal::new(Code::MissingKey, message).hint("write sweep: {parameters: {...}, samples: 20}"))
        }
    });
    let grid = Grid::new(field.keep(problems, listed.collect::<Result<Vec<_>, _>>())?);
    let points = grid.points();
    if points > SWEEP_JOBS_MAX {
        let message = format!("makes {points} jobs, over the limit of {SWEEP_JOBS_MAX}");
        let refusal = Refusal::new(Code::OutOfRange, message);
        field.refuse(problems, refusal.hint("sweep.samples draws some of them"));
        return None;
    }
    Some(if choice.is_shuffled { draws.shuffled(&grid) } else { grid })
}

fn too_few(found: usize, samples: usize) -> Refusal {
    let message = format!("has too few combinations for {samples} samples: {found} were found");
    Refusal::new(Code::OutOfRange, message)
        .hint("ask for fewer samples, or leave samples out to have every combination")
}

/// Reads a variable's name and its range, or its values without duplicates.
fn parameter(entry: &Entry, problems: &mut Problems) -> Option<(String, Values)> {
    let refused = |refusal: Refusal| Refusal { message: format!("\"sweep\": {}", refusal.message), ..refusal };
    let named = problems.keep(&entry.place, values::variable(&entry.key).map_err(refused));
    let list = match &entry.value.value {
        Value::List(values) if !values.is_empty() => Ok(values),
        Value::Mapping(_) => {
            let range = Range::read(entry, problems);
            return named.zip(range).map(|((), range)| (entry.key.clone(), Values::Range(range)));
        }
        _ => Err(Refusal::new(Code::WrongType, format!("{} expects a list of values or a range", shown(&entry.key)))
            .hint("write [1e-4, 3e-4] or {min: 1e-5, max: 1e-2, scale: log}")),
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
    named.map(|()| (entry.key.clone(), Values::List(texts)))
}
