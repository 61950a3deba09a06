//! The page: jobs with state, progress and loss, and nodes with their slots and the jobs that hold them. It
//! is rendered on the server, without scripts or external assets, and shows only what the API returns.

mod curve;
mod style;

use std::time::Duration;

use gangline_api::{Health, Job, JobState, LastValue, Node, Queue, Usage};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::loss::LossCurve;

/// The data shown on the page.
pub(crate) struct PageData {
    pub(crate) jobs: Vec<Job>,
    /// Jobs with their loss curves.
    pub(crate) curves: Vec<(String, Vec<LossCurve>)>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) health: Health,
}

/// The most ids in one cell of a table.
const IDS_SHOWN_MAX: usize = 20;
/// The most metrics in a card of a job.
const METRICS_SHOWN_MAX: usize = 6;

/// `reload` is the time after which the page reloads itself, if it does.
fn frame(title: &str, reload: Option<Duration>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(reload) = reload { meta http-equiv="refresh" content=(reload.as_secs()); }
                title { (title) }
                style { (PreEscaped(style::SHEET)) }
            }
            body { (body) }
        }
    }
}

/// Renders the page for a visitor without a valid session. The address is the one at which the visitor came.
pub(crate) fn sign_in(address: Option<&str>) -> Markup {
    let command = match address {
        Some(address) => format!("gangline token link --url {address}"),
        None => "gangline token link".to_owned(),
    };
    frame(
        "Gangline",
        None,
        &html! {
            main class="narrow" {
                h1 { "Gangline" }
                p { "This page needs a link, which is good once and for some minutes. " code { "gangline up" } " prints one at its start; this prints another:" }
                pre { (command) }
            }
        },
    )
}

/// Renders the page, which reloads itself after some time.
pub(crate) fn page(data: &PageData, reload: Duration) -> Markup {
    frame(
        "Gangline",
        Some(reload),
        &html! {
            header {
                h1 { "Gangline" }
                p class="muted" { (summary(data)) }
            }
            @if let Some(reason) = data.health.reason.as_ref().filter(|_| data.health.status != Health::POISONED) {
                p class="alarm" role="alert" {
                    strong { "Jobs can't be started" } ": " (reason) ". They wait, which costs them nothing."
                }
            } @else if let Some(reason) = &data.health.reason {
                p class="alarm" role="alert" {
                    strong { "The journal can't be written" } ": " (reason) ". Changes are refused; running jobs go on. Free the disk or repair it, then restart the control plane."
                }
            }
            main {
                section { h2 { "Slots" } (nodes(data)) }
                section { h2 { "Queues" } (queues(&data.queues)) }
                section { h2 { "Jobs" } (jobs(data)) }
            }
            footer class="muted" {
                "Steps, losses, times and GPU-seconds are measured; costs are measured time at the configured price. Version "
                (data.health.version) "."
            }
        },
    )
}

fn summary(data: &PageData) -> String {
    let slots = || data.nodes.iter().flat_map(|node| &node.slots);
    let held = slots().filter(|slot| slot.job.is_some()).count();
    let live = data.jobs.iter().filter(|job| !job.state.is_final()).count();
    format!(
        "{live} live job(s), {held} of {} slot(s) held, {} journal entries",
        slots().count(),
        data.health.journal_entries
    )
}

fn nodes(data: &PageData) -> Markup {
    html! {
        @if data.nodes.is_empty() { p class="muted" { "No node yet. Name some in the configuration file and restart." } }
        @for node in &data.nodes {
            div class="node" {
                div { strong { (node.name) } " " span class="muted" { (node.accelerator) " · " (node.status) } }
                div class="slots" {
                    @for slot in &node.slots {
                        @match &slot.job {
                            Some(job) => span class="slot held" title={ "device " (slot.device) } { a href={ "#" (job) } { (job) } },
                            None => span class="slot" title={ "device " (slot.device) } { "free" },
                        }
                    }
                }
            }
        }
    }
}

fn queues(queues: &[Queue]) -> Markup {
    html! {
        @if queues.is_empty() {
            p class="muted" { "No job is waiting or running. Send one: " code { "gangline submit job.yaml" } }
        } @else {
            table {
                thead { tr { th { "Queue" } th { "Running" } th { "Waiting, in order" } th class="number" { "Slots held" } th class="number" { "Slots wanted" } } }
                tbody {
                    @for queue in queues {
                        tr {
                            td { (queue.name) }
                            td { (some_of(&queue.running)) }
                            td { (some_of(&queue.waiting)) }
                            td class="number" { (queue.accelerators_held) }
                            td class="number" { (queue.accelerators_wanted) }
                        }
                    }
                }
            }
        }
    }
}

/// Joins the first ids of a list, with the number of the others.
fn some_of(ids: &[String]) -> String {
    let shown = ids[..ids.len().min(IDS_SHOWN_MAX)].join(", ");
    match ids.len().saturating_sub(IDS_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn jobs(data: &PageData) -> Markup {
    html! {
        @if data.jobs.is_empty() {
            p class="muted" { "No job yet. Try one of the examples: " code { "gangline submit examples/jobs/hello.yaml" } }
        }
        @for job in &data.jobs {
            @let curves = data.curves.iter().find(|(id, _)| *id == job.id);
            (job_card(job, curves.map_or(&[], |(_, curves)| curves)))
        }
    }
}

fn job_card(job: &Job, curves: &[LossCurve]) -> Markup {
    html! {
        article id=(job.id) {
            div class="head" {
                h3 { (job.name) " " span class="muted" { (job.id) " · " (job.queue) } }
                span class={ "state " (job.state.name()) } { (mark(job.state)) " " (job.state.name()) }
            }
            p class="muted because" { (job.because) }
            @for alert in &job.alerts { p class="alarm" role="alert" { (alert) } }
            div class="body" {
                dl {
                    dt { "Gang" } dd { (job.gang.nodes) " × " (job.gang.accelerator) ":" (job.gang.accelerators_per_node) }
                    dt { "Step" } dd { (progress(job)) }
                    dt { "Loss" } dd { (job.progress.last_loss(4).unwrap_or_else(|| "–".to_owned())) }
                    @if let Some(rate) = job.progress.tokens_per_second.filter(|_| !job.state.is_final()) {
                        dt { "Tokens/s" } dd { (format!("{rate:.0}")) }
                    }
                    @if let Some(plan) = job.plan.filter(|plan| plan.share.is_some()) {
                        dt { "Of its plan" } dd { (plan.text()) }
                    }
                    @for value in shown_metrics(job) {
                        dt { (value.metric) } dd { (value.last.short()) }
                    }
                    dt { "Attempts" } dd { (job.attempts.len()) @if job.faults > 0 { ", " (job.faults) " fault(s)" } }
                    dt { "Checkpoints" } dd { (job.checkpoints.count) ", " (gangline_base::Bytes(job.checkpoints.bytes)) }
                    @if job.usage.gpu_nanoseconds > 0 {
                        dt { "Booked" } dd { (spent(&job.usage)) }
                    }
                    @if let Some(accrued) = &job.accrued {
                        dt { "Since then (estimated)" } dd { (spent(accrued)) }
                    }
                }
                (curve::loss(curves))
            }
            @if let Some(total) = job.progress.total_steps.filter(|total| *total > 0) {
                progress max=(total) value=(job.progress.step.unwrap_or(0)) aria-label="steps" {}
            }
        }
    }
}

/// Returns the metrics that the job's program named, as many as a card has room for.
fn shown_metrics(job: &Job) -> impl Iterator<Item = &LastValue> {
    job.metrics.iter().filter(|value| value.is_programs()).take(METRICS_SHOWN_MAX)
}

/// Formats slot-seconds, their cost and the goodput.
fn spent(usage: &Usage) -> String {
    let is_priced = usage.prices.iter().any(|price| price.nano_dollars_per_hour > 0);
    let cost = if is_priced { usage.cost.as_str() } else { "not priced" };
    let goodput = usage.goodput.map_or_else(|| "unknown".to_owned(), |share| format!("{:.1} %", share * 100.0));
    format!("{:.1} slot-s, {cost}, goodput {goodput}", usage.gpu_seconds)
}

fn progress(job: &Job) -> String {
    match (job.progress.step, job.progress.total_steps) {
        (None, _) => "–".to_owned(),
        (Some(step), None) => step.to_string(),
        (Some(step), Some(total)) => format!("{step} of {total}"),
    }
}

/// Returns a sign shown beside the state's name, so that colour isn't the only cue.
fn mark(state: JobState) -> &'static str {
    match state {
        JobState::Waiting => "…",
        JobState::Starting => "↑",
        JobState::Running => "▶",
        JobState::Stopping => "↓",
        JobState::Succeeded => "✓",
        JobState::Failed => "✗",
        JobState::Cancelled => "–",
        JobState::Stopped => "■",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> PageData {
        let health = Health {
            status: "ok".to_owned(),
            reason: None,
            version: "0".to_owned(),
            journal_entries: 0,
            journal_bytes: 0,
            journal_bytes_max: 1,
            last_job: 0,
            checked_at: None,
            pid: 1,
        };
        PageData { jobs: Vec::new(), curves: Vec::new(), nodes: Vec::new(), queues: Vec::new(), health }
    }

    #[test]
    fn an_empty_page_says_what_to_do_next() {
        let page = page(&empty(), Duration::from_secs(2)).into_string();
        assert!(page.contains("gangline submit"), "{page}");
    }

    #[test]
    fn a_failed_journal_is_shown_on_top() {
        let mut data = empty();
        data.health.reason = Some("disk <full>".to_owned());
        assert!(
            page(&data, Duration::from_secs(2)).into_string().contains("Jobs can't be started"),
            "one that starts nothing says so"
        );
        data.health.status = Health::POISONED.to_owned();
        let page = page(&data, Duration::from_secs(2)).into_string();
        assert!(page.contains("disk &lt;full&gt;"), "text is escaped: {page}");
        assert!(page.contains("role=\"alert\""));
    }
}
