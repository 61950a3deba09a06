//! Formats a plan for one screen.

use std::fmt::Write as _;
use std::time::Duration;

use gangline_base::Money;
use gangline_planning::model::flops::FlopDefinition;
use gangline_planning::plan::fleet::Fleet;
use gangline_planning::plan::{Class, Plan, ServingFacts};
use gangline_planning::units::GIBIBYTE;
use serde_json::json;

use crate::output;

/// Bytes in a gigabyte.
const GB: f64 = 1e9;
/// Smaller parts of a step aren't listed.
const PART_MIN: f64 = 0.005;
/// Maximum number of stages whose memory is shown.
const STAGES_MAX: usize = 4;
/// Width of the column of headings.
const HEADING: usize = 13;

/// Formats the plan.
pub(crate) fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    let cluster = &plan.cluster;
    let nodes = cluster.accelerators.div_ceil(cluster.per_node.max(1));
    let network = if nodes > 1 { format!(", {}", cluster.fabric) } else { String::new() };
    let plural = if nodes == 1 { "node" } else { "nodes" };
    let title = format!(
        "{} of {} on {} x {} ({nodes} {plural}{network}); every figure is estimated",
        plan.workload.task, plan.model.name, cluster.accelerators, cluster.accelerator
    );
    // Writing to a String can't fail.
    let _ = writeln!(text, "{title}\n");
    let mut line = |heading: &str, said: String| {
        let _ = writeln!(text, "{heading:HEADING$}{said}");
    };
    line("kind", format!("{}: {}", class(plan.class), plan.class_reason));
    line("model", model(plan));
    line("work", work(plan));
    line("layout", format!("{}{}", plan.layout, tried(plan)));
    for (at, said) in memory(plan).into_iter().enumerate() {
        line(if at == 0 { "memory" } else { "" }, said);
    }
    if plan.class != Class::Inference {
        for (at, said) in step(plan).into_iter().enumerate() {
            line(["step", "", "", ""].get(at).copied().unwrap_or(""), said);
        }
        line("run", run(plan));
        line("checkpoint", checkpoint(plan));
        line("failures", failures(plan));
    }
    if let Some(serving) = &plan.serving {
        line("serving", served(plan, serving));
    }
    line("cost", cost(plan));
    for (at, said) in network_lines(plan).into_iter().enumerate() {
        line(if at == 0 { "network" } else { "" }, said);
    }
    for (at, other) in plan.runners_up.iter().enumerate() {
        line(if at == 0 { "not taken" } else { "" }, format!("{}: {}", other.layout, other.reason));
    }
    for (at, said) in plan.advice.iter().enumerate() {
        line(if at == 0 { "advice" } else { "" }, format!("- {said}"));
    }
    for (at, said) in plan.assumptions.iter().enumerate() {
        line(if at == 0 { "assumed" } else { "" }, format!("- {said}"));
    }
    text
}

pub(crate) const fn class(class: Class) -> &'static str {
    match class {
        Class::FineTuning => "fine-tuning",
        Class::ContinualPretraining => "continual pre-training",
        Class::Pretraining => "pre-training",
        Class::Inference => "inference",
    }
}

fn model(plan: &Plan) -> String {
    let model = &plan.model;
    let mut said = format!("{} parameters", grouped(model.parameters));
    if model.active_parameters != model.parameters {
        let _ = write!(said, ", {} met by a token", grouped(model.active_parameters));
    }
    if model.trained_parameters != model.parameters && plan.class != Class::Inference {
        let part = ratio(model.trained_parameters, model.parameters) * 100.0;
        let _ = write!(said, ", {} trained ({part:.2} %)", grouped(model.trained_parameters));
    }
    format!("{said}, {} layers", model.layers)
}

fn work(plan: &Plan) -> String {
    let work = &plan.workload;
    let sequences =
        format!("{} sequences of {} tokens", grouped(work.global_batch_sequences), grouped(work.sequence_tokens));
    if plan.class == Class::Inference {
        return format!("{sequences} at once, {}", work.precision);
    }
    format!("{} tokens; a step is {sequences}; {}, {}", short(work.tokens), work.precision, work.optimizer)
}

fn tried(plan: &Plan) -> String {
    match plan.layouts_tried {
        0 | 1 => String::new(),
        tried => {
            format!("   (best of {} that fit, of {} possible)", grouped_len(plan.layouts_fitting), grouped_len(tried))
        }
    }
}

fn memory(plan: &Plan) -> Vec<String> {
    let capacity = plan.cluster.memory_bytes / GIBIBYTE;
    let mut said = Vec::new();
    for stage in plan.memory.iter().take(STAGES_MAX) {
        let name = match (plan.memory.len(), stage.alike) {
            (1, _) => String::new(),
            (_, 1) => format!("stage {}: ", stage.stage),
            (_, count) => format!("stages {}-{}: ", stage.stage, stage.stage + count - 1),
        };
        let mut parts: Vec<(&String, f64)> =
            stage.components_bytes.iter().map(|(part, bytes)| (part, bytes / GIBIBYTE)).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let called = |part: &str| match (plan.class, part) {
            (Class::Inference, "activations") => "keys and values".to_owned(),
            _ => part.to_owned(),
        };
        let large = parts.iter().filter(|(_, gib)| *gib >= 0.05);
        let parts: Vec<String> = large.map(|(part, gib)| format!("{} {gib:.1}", called(part))).collect();
        said.push(format!("{name}{:.1} of {capacity:.1} GiB: {}", stage.occupied_bytes / GIBIBYTE, parts.join(", ")));
    }
    if plan.memory.len() > STAGES_MAX {
        said.push(format!("and {} kinds of stages more", plan.memory.len() - STAGES_MAX));
    }
    let error = &plan.memory_known_error;
    said.push(format!(
        "such estimates were off by {:.1} % (median) and {:.0} % (nine of ten), in {} measurements of {}",
        error.median_percent, error.p90_percent, error.rows, error.region
    ));
    said
}

fn step(plan: &Plan) -> Vec<String> {
    let step = &plan.step;
    let mut parts: Vec<(&String, f64)> =
        step.components_seconds.iter().map(|(name, seconds)| (name, *seconds)).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let large = parts.iter().filter(|(_, seconds)| *seconds >= step.seconds * PART_MIN);
    let parts: Vec<String> = large.map(|(name, seconds)| format!("{name} {seconds:.3} s")).collect();
    let mut said = vec![format!("{:.3} s: {}", step.seconds, parts.join(", "))];
    let each = step.tokens_per_second_per_accelerator;
    said.push(format!("{} tokens/s, {} on each accelerator", rounded(step.tokens_per_second), rounded(each)));
    let shares: Vec<String> =
        step.utilisation.iter().map(|(name, part)| format!("{:.1} % {name}", part * 100.0)).collect();
    if !shares.is_empty() {
        said.push(shares.join("; "));
    }
    let mfu = step.utilisation.get(FlopDefinition::ModelCausal.name()).map(|part| format!(", mfu: {part:.3}"));
    said.push(format!(
        "in the job file, to be compared with: plan: {{tokens_per_second_per_accelerator: {each:.1}{}}}",
        mfu.unwrap_or_default()
    ));
    let error = &step.known_error;
    if error.rows == 0 {
        said.push(format!("no published measurement of {} has been compared with these estimates", error.region));
        return said;
    }
    said.push(format!(
        "such estimates were off by {:.1} % (median) and {:.0} % (nine of ten), in {} measurements of {}",
        error.median_percent, error.p90_percent, error.rows, error.region
    ));
    said
}

fn served(plan: &Plan, serving: &ServingFacts) -> String {
    let hourly = plan.cost.as_ref().map(|cost| cost.hourly_nano_dollars.times(plan.cluster.accelerators));
    let million =
        hourly.map(|hourly| hourly.for_time(Duration::from_secs_f64(1e6 / serving.tokens_per_second.max(1.0))));
    let price = million.map_or(String::new(), |price| format!(", {price} a million"));
    format!(
        "a token of each sequence every {:.1} ms when all are full: {} tokens/s{price}; prompts at {} tokens/s",
        serving.token_seconds * 1e3,
        rounded(serving.tokens_per_second),
        rounded(serving.prompt_tokens_per_second)
    )
}

fn run(plan: &Plan) -> String {
    let run = &plan.run;
    let energy = run
        .accelerator_energy_kwh
        .map_or(String::new(), |kwh| format!(", {} kWh of accelerators at full power", rounded(kwh)));
    format!(
        "{} steps in {}, {} with saves and failures; {} accelerator-hours{energy}; data at {:.3} MB/s",
        grouped(run.steps),
        output::seconds(run.training_seconds),
        output::seconds(run.expected_seconds),
        rounded(run.accelerator_hours),
        run.data_bytes_per_second / 1e6
    )
}

fn checkpoint(plan: &Plan) -> String {
    let checkpoint = &plan.checkpoint;
    format!(
        "{:.1} GB ({:.1} of weights) to {}: {} blocked, written after {}; every {} for {:.2} % of the time",
        checkpoint.bytes / GB,
        checkpoint.weights_bytes / GB,
        checkpoint.storage,
        output::seconds(checkpoint.blocked_seconds),
        output::seconds(checkpoint.written_seconds),
        output::seconds(checkpoint.interval_seconds),
        checkpoint.overhead * 100.0
    )
}

fn failures(plan: &Plan) -> String {
    let reliability = &plan.reliability;
    format!(
        "one in {}, {} to go on; {:.1} % of the time is training",
        output::seconds(reliability.mean_time_seconds),
        output::seconds(reliability.recovery_seconds),
        reliability.goodput * 100.0
    )
}

fn cost(plan: &Plan) -> String {
    let Some(cost) = &plan.cost else {
        return "no price of this accelerator is known: give one with --price".to_owned();
    };
    let stale = if cost.is_stale { ", more than 90 days old" } else { "" };
    let day = cost.as_of.as_ref().map(|day| format!(", {day}")).unwrap_or_default();
    let origin = format!("at {} an accelerator-hour ({}{day}{stale})", cost.hourly_nano_dollars, cost.source);
    if plan.class == Class::Inference {
        return origin;
    }
    format!(
        "{} {origin}; {} a billion tokens",
        dollars(cost.total_nano_dollars),
        dollars(cost.per_billion_tokens_nano_dollars)
    )
}

fn network_lines(plan: &Plan) -> Vec<String> {
    if plan.network.alternatives.is_empty() || plan.class == Class::Inference {
        return Vec::new();
    }
    let reduced = |seconds: f64| match seconds {
        0.0 => "no gradients to reduce".to_owned(),
        _ => format!("gradients all-reduced in {}", output::seconds(seconds)),
    };
    let mut said = vec![format!("{}: {}", plan.cluster.fabric, reduced(plan.network.gradient_reduction_seconds))];
    said.extend(plan.network.alternatives.iter().map(|other| {
        let step =
            other.slowdown.map_or("nothing fits".to_owned(), |slow| format!("a step takes {slow:.2} times as long"));
        format!("{}: {}, {step}", other.fabric, reduced(other.gradient_reduction_seconds))
    }));
    said
}

/// Formats plans of a fleet as a table.
pub(crate) fn fleet(fleet: &Fleet) -> String {
    let row = |(at, plan): (usize, &Plan)| {
        let is_taken = fleet.recommended == Some(at);
        let cost = plan.cost.as_ref().map_or(String::new(), |cost| dollars(cost.total_nano_dollars));
        vec![
            if is_taken { "*".to_owned() } else { String::new() },
            format!("{} x {}", plan.cluster.accelerators, plan.cluster.accelerator),
            output::seconds(plan.run.expected_seconds),
            cost,
            rounded(plan.step.tokens_per_second),
            plan.layout.clone(),
        ]
    };
    let rows = fleet.front.iter().enumerate().map(row).collect();
    let mut text = output::table(&[" ", "ACCELERATORS", ">TIME", ">COST", ">TOKENS/S", "LAYOUT"], rows);
    let first = fleet.front.first();
    let named = first.map_or(String::new(), |plan| format!("{} of {}", plan.workload.task, plan.model.name));
    let _ = writeln!(
        text,
        "\n{named}; of {} combinations, those than which none is both faster and cheaper; every figure is estimated",
        fleet.tried
    );
    let recommended = fleet.recommended.and_then(|at| fleet.front.get(at));
    let what = recommended
        .map_or("none".to_owned(), |plan| format!("{} x {}", plan.cluster.accelerators, plan.cluster.accelerator));
    let _ = writeln!(text, "recommended: {what}: {}", fleet.reason);
    if let Some(cost) = recommended.or(first).and_then(|plan| plan.cost.as_ref()) {
        let stale = if cost.is_stale { ", more than 90 days old: give today's with --price" } else { "" };
        let day = cost.as_of.as_ref().map(|day| format!(" of {day}")).unwrap_or_default();
        let _ = writeln!(text, "prices: {}{day}{stale}", cost.source);
    }
    text
}

/// Returns a fleet as JSON.
pub(crate) fn fleet_json(fleet: &Fleet) -> serde_json::Value {
    json!({ "front": fleet.front, "recommended": fleet.recommended, "reason": fleet.reason, "tried": fleet.tried })
}

/// Formats a whole number in groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a sum for people: cents only below a thousand dollars.
fn dollars(money: Money) -> String {
    let whole = money.nano_dollars() / 1_000_000_000;
    if whole < 1_000 { money.to_string() } else { format!("${}", grouped(whole.unsigned_abs())) }
}

/// Formats a number without its fraction.
fn rounded(number: f64) -> String {
    grouped(format!("{number:.0}").parse().unwrap_or(u64::MAX))
}

fn grouped_len(number: usize) -> String {
    grouped(u64::try_from(number).unwrap_or(u64::MAX))
}

/// Formats a count such as 500M or 1.5T.
fn short(count: u64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| count >= *unit) else { return count.to_string() };
    let tenths = u128::from(count) * 10 / u128::from(unit);
    if tenths.is_multiple_of(10) {
        format!("{}{name}", tenths / 10)
    } else {
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_counts_are_short() {
        assert_eq!([grouped(5), grouped(1_234), grouped(70_553_706_496)], ["5", "1,234", "70,553,706,496"]);
        assert_eq!([short(999), short(500_000_000), short(1_500_000_000_000)], ["999", "500M", "1.5T"]);
    }
}
