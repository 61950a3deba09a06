//! Compares two plans side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use gangline_planning::plan::{Plan, VERSION};
use gangline_planning::units::GIBIBYTE;
use serde_json::json;

use super::books::read;
use super::show::{class, grouped};
use crate::failure::Failure;
use crate::output;

/// The greatest factor that is shown.
const FACTOR_MAX: f64 = 1_000.0;

pub(crate) fn run(first: &Path, second: &Path, is_json: bool) -> Result<(), Failure> {
    let plans = [load(first)?, load(second)?];
    let rows = rows(&plans);
    if is_json {
        let differences: Vec<_> = rows
            .iter()
            .map(|row| json!({ "what": row.what, "first": row.said[0], "second": row.said[1], "factor": row.factor }))
            .collect();
        return output::json(&json!({ "rows": differences }));
    }
    let told = rows.into_iter().map(|row| {
        let mark =
            if row.said[0] == row.said[1] { String::new() } else { row.factor.map_or("differs".to_owned(), factor) };
        let [one, other] = row.said;
        vec![row.what, one, other, mark]
    });
    let names = [first, second].map(|path| path.display().to_string());
    output::print(&output::table(&["", &names[0], &names[1], "SECOND / FIRST"], told.collect()))
}

fn load(path: &Path) -> Result<Plan, Failure> {
    let wrong = |why: String| {
        let message = format!("failed to read {}: {why}", path.display());
        Failure::coded("G0601", message, "give what `gangline plan --json` printed")
    };
    let plan: Plan = serde_json::from_str(&read(path)?).map_err(|error| wrong(format!("it is no plan: {error}")))?;
    if plan.version != VERSION {
        return Err(wrong(format!("it is a plan of version {}, and {VERSION} is known", plan.version)));
    }
    Ok(plan)
}

struct Row {
    what: String,
    said: [String; 2],
    /// The second over the first, for numbers.
    factor: Option<f64>,
}

fn rows(plans: &[Plan; 2]) -> Vec<Row> {
    let words = |what: &str, say: &dyn Fn(&Plan) -> String| Row {
        what: what.to_owned(),
        said: [say(&plans[0]), say(&plans[1])],
        factor: None,
    };
    let numbers = |what: &str, value: &dyn Fn(&Plan) -> f64, say: &dyn Fn(f64) -> String| {
        let values = [value(&plans[0]), value(&plans[1])];
        Row { what: what.to_owned(), said: values.map(say), factor: (values[0] > 0.0).then(|| values[1] / values[0]) }
    };
    let gib = |value: f64| format!("{:.1}", value / GIBIBYTE);
    let part_of_memory = |part: &str| numbers(&format!("  {part}"), &|plan| component(&fullest(plan), part), &gib);
    let part_of_step = |part: &str| {
        let value = |plan: &Plan| component(&plan.step.components_seconds, part);
        numbers(&format!("  {part}"), &value, &|value| format!("{value:.3} s"))
    };
    let seconds = |value: f64| output::seconds(value);
    let money = |plan: &Plan| plan.cost.as_ref().map_or(0.0, |cost| dollars(cost.total_nano_dollars.nano_dollars()));
    let mut rows = vec![
        words("model", &|plan| plan.model.name.clone()),
        words("parameters", &|plan| grouped(plan.model.parameters)),
        words("task", &|plan| plan.workload.task.clone()),
        words("kind", &|plan| class(plan.class).to_owned()),
        words("accelerators", &|plan| format!("{} x {}", plan.cluster.accelerators, plan.cluster.accelerator)),
        words("network", &|plan| plan.cluster.fabric.clone()),
        words("layout", &|plan| plan.layout.clone()),
        words("precision", &|plan| plan.workload.precision.clone()),
        words("optimizer", &|plan| plan.workload.optimizer.clone()),
        words("sequence", &|plan| grouped(plan.workload.sequence_tokens)),
        words("global batch", &|plan| grouped(plan.workload.global_batch_sequences)),
        words("tokens", &|plan| grouped(plan.workload.tokens)),
        words("fits", &|plan| if plan.fits { "yes" } else { "no" }.to_owned()),
        numbers("memory, GiB", &|plan| fullest(plan).values().sum(), &gib),
    ];
    rows.extend(parts(plans, fullest).iter().map(|part| part_of_memory(part)));
    rows.push(numbers("step", &|plan| plan.step.seconds, &|value| format!("{value:.3} s")));
    rows.extend(parts(plans, |plan| plan.step.components_seconds.clone()).iter().map(|part| part_of_step(part)));
    rows.extend([
        numbers("tokens/s", &|plan| plan.step.tokens_per_second, &|value| format!("{value:.0}")),
        numbers("run", &|plan| plan.run.expected_seconds, &seconds),
        numbers("accelerator-hours", &|plan| plan.run.accelerator_hours, &|value| format!("{value:.0}")),
        numbers("cost", &money, &|value| if value > 0.0 { format!("${value:.2}") } else { "unknown".to_owned() }),
        numbers("checkpoint, GB", &|plan| plan.checkpoint.bytes / 1e9, &|value| format!("{value:.1}")),
        numbers("goodput", &|plan| plan.reliability.goodput, &|value| format!("{:.1} %", value * 100.0)),
    ]);
    rows
}

/// Named parts of a whole.
type Parts = BTreeMap<String, f64>;

/// Returns the parts of the fullest stage's memory, in bytes.
fn fullest(plan: &Plan) -> Parts {
    let fullest = plan.memory.iter().max_by(|a, b| a.occupied_bytes.total_cmp(&b.occupied_bytes));
    fullest.map(|stage| stage.components_bytes.clone()).unwrap_or_default()
}

fn component(parts: &Parts, name: &str) -> f64 {
    parts.get(name).copied().unwrap_or(0.0)
}

/// Returns the names of all parts in either plan, the largest first.
fn parts(plans: &[Plan; 2], of: impl Fn(&Plan) -> Parts) -> Vec<String> {
    let [first, second] = [of(&plans[0]), of(&plans[1])];
    let largest = |name: &String| component(&first, name).max(component(&second, name));
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let mut names: Vec<String> = names.into_iter().filter(|name| largest(name) > 0.0).cloned().collect();
    names.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    names
}

/// Formats a factor; a value over almost nothing has none worth reading.
fn factor(value: f64) -> String {
    if (1.0 / FACTOR_MAX..FACTOR_MAX).contains(&value) { format!("{value:.2}") } else { "differs".to_owned() }
}

#[expect(clippy::cast_precision_loss, reason = "a sum for people")]
fn dollars(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
