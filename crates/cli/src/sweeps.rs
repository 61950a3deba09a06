//! Sweeps: lists their jobs, cancels them, follows them to their end.

use std::process::ExitCode;

use gangline_api::{CancelAnswer, CancelSweepAnswer, JobState, MetricPoint, Parameter, Sweep, SweepPoint};

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{follow, output};

/// Reports whether an id is a sweep's.
pub(crate) fn is_sweep(id: &str) -> bool {
    id.starts_with("sweep-")
}

fn get(client: &Client, id: &str) -> Result<Sweep, Failure> {
    client.get(&format!("/sweeps/{}", path_segment(id)))
}

pub(crate) fn show(client: &Client, id: &str, is_json: bool) -> Result<(), Failure> {
    let sweep = get(client, id)?;
    if is_json { output::json(&sweep) } else { output::print(&text(&sweep)) }
}

/// Cancels what is left of a sweep and returns its jobs.
pub(crate) fn cancel(client: &Client, id: &str) -> Result<Vec<CancelAnswer>, Failure> {
    let path = format!("/sweeps/{}/cancel", path_segment(id));
    let answer: CancelSweepAnswer = client.post(&path, &serde_json::json!({}))?;
    Ok(answer.jobs)
}

/// Waits until every job has ended. The exit code is 0 if each succeeded or was stopped early in favour of
/// better ones.
pub(crate) fn to_the_end(client: &Client, id: &str, is_json: bool) -> Result<ExitCode, Failure> {
    let mut last_said = String::new();
    let sweep = follow::watch(
        || get(client, id),
        |sweep| {
            let said = format!("{} {}", sweep.id, counts(&sweep.points));
            if said != last_said {
                output::tell(&said);
                last_said = said;
            }
            sweep.points.iter().all(|point| point.state.is_final())
        },
    )?;
    if is_json { output::json(&sweep) } else { output::print(&text(&sweep)) }?;
    let is_well = |point: &SweepPoint| matches!(point.state, JobState::Succeeded | JobState::Stopped);
    Ok(if sweep.points.iter().all(is_well) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Formats the sweep as text.
fn text(sweep: &Sweep) -> String {
    let mut text = format!("{} {} (queue {}): {}\n", sweep.id, sweep.name, sweep.queue, counts(&sweep.points));
    if let Some(max_parallel) = sweep.max_parallel {
        text.push_str(&format!("  at most {max_parallel} at once\n"));
    }
    if let Some(rules) = &sweep.early_stop {
        let (goal, metric, reduction, step) = (&rules.goal, &rules.metric, rules.reduction, rules.min_steps);
        let rungs = format!(
            "at steps {step}, {}, {}, ...",
            step.saturating_mul(u64::from(reduction)),
            step.saturating_mul(u64::from(reduction).pow(2))
        );
        text.push_str(&format!("  {goal} {metric}: {rungs} the best 1 in {reduction} go on\n"));
    }
    if let Some(best) = sweep.ranking.first().and_then(|best| sweep.points.iter().find(|point| point.job == *best)) {
        let value = best.metric.map(metric).or_else(|| best.loss.map(|loss| format!("loss {loss:.4}")));
        let value = value.unwrap_or_default();
        text.push_str(&format!("  best so far: {} {} with {value}\n", best.job, parameters(&best.parameters)));
        text.push_str(&format!("  ordered by {}\n", sweep.ranked_by));
    }
    text.push_str(&table(&by_rank(sweep)));
    text
}

/// Returns the jobs in the order of their ranks, then those without one.
fn by_rank(sweep: &Sweep) -> Vec<&SweepPoint> {
    let mut points: Vec<&SweepPoint> = sweep.points.iter().collect();
    let rank = |point: &SweepPoint| sweep.ranking.iter().position(|job| *job == point.job).unwrap_or(usize::MAX);
    points.sort_by_cached_key(|point| rank(point));
    points
}

fn table(points: &[&SweepPoint]) -> String {
    let headings = ["JOB", "PARAMETERS", "STATE", ">STEP", ">LOSS", "LAST RUNG", "WHY"];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = points.iter().map(|point| {
        vec![
            point.job.clone(),
            output::shorten(&parameters(&point.parameters), 48),
            point.state.name().to_owned(),
            or_dash(point.step.map(|step| step.to_string())),
            or_dash(point.loss.map(|loss| format!("{loss:.4}"))),
            or_dash(point.metric.map(metric)),
            output::shorten(&point.because, 80),
        ]
    });
    output::table(&headings, rows.collect())
}

/// Formats the number of jobs by state: `2 running, 3 waiting`.
fn counts(points: &[SweepPoint]) -> String {
    let states = [
        JobState::Waiting,
        JobState::Starting,
        JobState::Running,
        JobState::Stopping,
        JobState::Succeeded,
        JobState::Stopped,
        JobState::Failed,
        JobState::Cancelled,
    ];
    let count = |state: JobState| points.iter().filter(|point| point.state == state).count();
    let counted = states.into_iter().map(|state| (count(state), state.name())).filter(|(count, _)| *count > 0);
    counted.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// Formats parameters: `LR=3e-4 BATCH=8`.
pub(crate) fn parameters(parameters: &[Parameter]) -> String {
    parameters.iter().map(|it| format!("{}={}", it.name, it.value)).collect::<Vec<_>>().join(" ")
}

/// Formats a metric: `2.31 at step 300`.
pub(crate) fn metric(point: MetricPoint) -> String {
    let value = point.value.map_or_else(|| "not a number".to_owned(), |value| format!("{value:.4}"));
    format!("{value} at step {}", point.step)
}
