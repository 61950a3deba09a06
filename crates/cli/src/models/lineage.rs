//! `models lineage`: where a version came from.

use gangline_api as api;
use gangline_base::Bytes;

use crate::failure::Failure;
use crate::output;

/// The longest command that is shown.
const COMMAND_WIDTH: usize = 100;

pub(super) fn show(version: &api::ModelVersion, is_json: bool) -> Result<(), Failure> {
    super::pinned(version)?;
    let Some(lineage) = &version.lineage else { return Ok(()) };
    if is_json {
        return output::json(lineage);
    }
    let facts = facts(version, lineage);
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let lines = facts.into_iter().map(|(name, value)| format!("{name:width$}  {value}\n"));
    let unknown = lineage.unknown.iter().map(|unknown| format!("not known: {unknown}\n"));
    output::print(&lines.chain(unknown).collect::<String>())
}

/// Returns what is known of a version's origin, from the model back to the data.
pub(super) fn facts(version: &api::ModelVersion, lineage: &api::Lineage) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    let aliases = version.aliases.iter().map(|alias| format!(" ({alias})")).collect::<String>();
    add("model", format!("{}, version {}{aliases}", version.model, version.number));
    for event in &version.history {
        let detail = if event.detail.is_empty() { String::new() } else { format!("{}, ", event.detail) };
        add(&event.action, format!("{detail}{} by {}", output::time(event.at), event.by));
    }
    let saved = &lineage.checkpoint;
    let saved_at = saved.saved_at.map_or_else(String::new, |at| format!(", saved {}", output::time(at)));
    add("checkpoint", format!("step {} in {}{saved_at}", saved.step, saved.folder));
    add("bytes", format!("{} in {} tensors, content hash {}", Bytes(saved.bytes), saved.tensors, saved.content_hash));
    for (name, value) in &saved.metadata {
        add(&format!("saved with {name}"), value.clone());
    }
    for run in &lineage.runs {
        add("run", format!("{} ({}) of {}", run.run, run.name, run.job));
    }
    for job in &lineage.jobs {
        facts.extend(of_job(job));
    }
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    for (name, value) in &lineage.environment {
        add(&format!("software {name}"), value.clone());
    }
    for data in &lineage.data {
        let samples = data.samples.as_ref().map_or_else(String::new, |samples| format!(", {samples}"));
        let name = if data.name.is_empty() { String::new() } else { format!("{} ", data.name) };
        add("data", format!("{name}{} digest {}{samples} (told by {})", data.source, data.digest, data.told_by));
    }
    facts
}

fn of_job(job: &api::JobLineage) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    let submitted = format!("submitted {} by {}", output::time(job.submitted_at), job.submitter);
    add("job", format!("{} ({}), {submitted}", job.job, job.name));
    add("command", format!("{} in {}", output::shorten(&job.run, COMMAND_WIDTH), job.workdir));
    if let Some(code) = &job.code {
        let commit = code.commit.as_ref().map_or_else(String::new, |commit| format!("commit {commit}, "));
        add("code", format!("{commit}{} changed file(s), tree {}", code.changed_files, code.tree));
    }
    if let Some(image) = &job.image {
        add("image", image.clone());
    }
    for attempt in &job.attempts {
        let nodes: Vec<String> = attempt.nodes.iter().map(|(node, devices)| format!("{node} {devices:?}")).collect();
        add("attempt", format!("{} from {} on {}", attempt.number, output::time(attempt.placed_at), nodes.join(", ")));
    }
    let estimated = if job.is_estimated { " (estimated: it still ran)" } else { "" };
    add("cost", format!("{} for {:.1} device-seconds{estimated}", job.cost, job.gpu_seconds));
    facts
}
