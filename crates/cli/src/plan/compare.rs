//! Two plans side by side.

use std::path::Path;

use gangline_planning::plan::{Plan, VERSION};
use serde_json::json;

use super::books::read;
use super::show::{class, grouped};
use crate::failure::Failure;
use crate::output;

/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

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
        vec![row.what.to_owned(), one, other, mark]
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
    what: &'static str,
    said: [String; 2],
    /// The second over the first, for numbers.
    factor: Option<f64>,
}

fn rows(plans: &[Plan; 2]) -> Vec<Row> {
    let words =
        |what, say: &dyn Fn(&Plan) -> String| Row { what, said: [say(&plans[0]), say(&plans[1])], factor: None };
    let numbers = |what, value: &dyn Fn(&Plan) -> f64, say: &dyn Fn(f64) -> String| {
        let values = [value(&plans[0]), value(&plans[1])];
        Row { what, said: values.map(say), factor: (values[0] > 0.0).then(|| values[1] / values[0]) }
    };
    let fullest = |plan: &Plan| plan.memory.iter().map(|stage| stage.occupied_bytes).fold(0.0, f64::max) / GIB;
    let seconds = |value: f64| output::seconds(value);
    let money = |plan: &Plan| plan.cost.as_ref().map_or(0.0, |cost| dollars(cost.total_nano_dollars.nano_dollars()));
    vec![
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
        numbers("memory, GiB", &fullest, &|value| format!("{value:.1}")),
        words("fits", &|plan| if plan.fits { "yes" } else { "no" }.to_owned()),
        numbers("step", &|plan| plan.step.seconds, &|value| format!("{value:.3} s")),
        numbers("tokens/s", &|plan| plan.step.tokens_per_second, &|value| format!("{value:.0}")),
        numbers("run", &|plan| plan.run.expected_seconds, &seconds),
        numbers("accelerator-hours", &|plan| plan.run.accelerator_hours, &|value| format!("{value:.0}")),
        numbers("cost", &money, &|value| if value > 0.0 { format!("${value:.2}") } else { "unknown".to_owned() }),
        numbers("checkpoint, GB", &|plan| plan.checkpoint.bytes / 1e9, &|value| format!("{value:.1}")),
        numbers("goodput", &|plan| plan.reliability.goodput, &|value| format!("{:.1} %", value * 100.0)),
    ]
}

fn factor(value: f64) -> String {
    format!("{value:.2}")
}

#[expect(clippy::cast_precision_loss, reason = "a sum for people")]
fn dollars(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}
