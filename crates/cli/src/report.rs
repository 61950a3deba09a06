//! A job's report: its fate, its recoveries, where its slot-seconds went, its cost.

use std::fmt::Write as _;

use gangline_api::{Allocation, Attempt, BucketLine, Budget, Fault, Job, Recovery, Usage};
use gangline_base::{Bucket, Bytes, Money, RecoveryPhase};

use crate::{output, sweeps};

/// The most metrics in a report.
const METRICS_SHOWN: usize = 8;

/// Returns the report as text.
pub(crate) fn job(job: &Job) -> String {
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = head(&mut text, job);
    let _ = attempts(&mut text, &job.attempts);
    for recovery in &job.recoveries {
        let _ = recovered(&mut text, recovery);
    }
    let _ = usage(&mut text, "booked", "measured", &job.usage);
    if let Some(accrued) = &job.accrued {
        let _ = usage(&mut text, "since then", "estimated until the attempt ends and is booked", accrued);
    }
    text
}

/// Returns what is known of a copy of code.
fn copied(code: &gangline_api::Code) -> String {
    let of = match (&code.commit, code.changed_files) {
        (None, _) => format!("copy {}", &code.tree.get(..12).unwrap_or_default()),
        (Some(commit), 0) => format!("commit {commit}"),
        (Some(commit), changed) => format!("commit {commit} and {changed} changed file(s)"),
    };
    format!("{of}, as at submit; in {}", code.folder)
}

fn head(text: &mut String, job: &Job) -> std::fmt::Result {
    writeln!(text, "{} {} (queue {}, priority {}, by {})", job.id, job.name, job.queue, job.priority, job.submitter)?;
    let why = if job.because == job.state.name() { String::new() } else { format!(": {}", job.because) };
    writeln!(text, "  state        {}{why}", job.state.name())?;
    let gang = &job.gang;
    let (slots, ranks) = (gang.nodes * gang.accelerators_per_node, gang.nodes * gang.ranks_per_node);
    writeln!(
        text,
        "  gang         {} node(s) x {}:{}, {slots} slot(s), {ranks} rank(s)",
        gang.nodes, gang.accelerator, gang.accelerators_per_node
    )?;
    for note in &job.notes {
        writeln!(text, "  note         {note}")?;
    }
    if let Some(code) = &job.code {
        writeln!(text, "  code         {}", copied(code))?;
    }
    if let Some(image) = &job.image {
        writeln!(text, "  image        {image}")?;
    }
    let ended = job.ended_at.map(|at| format!(", ended {}", output::time(at))).unwrap_or_default();
    writeln!(text, "  submitted    {}{ended}", output::time(job.submitted_at))?;
    if let Some(step) = job.progress.step {
        let total = job.progress.total_steps.map(|total| format!(" of {total}")).unwrap_or_default();
        let last = job.progress.loss.map(|loss| format!("{loss:.4}"));
        let loss = match (job.progress.first_loss, last, job.progress.loss_not_finite_since) {
            (_, Some(last), Some(since)) => format!(", loss nan since step {since} ({last} before)"),
            (_, None, Some(since)) => format!(", loss nan since step {since}"),
            (Some(first), Some(last), None) => format!(", loss {first:.4} at first, {last} at last"),
            _ => String::new(),
        };
        writeln!(text, "  progress     step {step}{total}{loss} (measured)")?;
    }
    if let Some(plan) = &job.plan {
        writeln!(text, "  of its plan  {}", plan.text())?;
    }
    if let Some(budget) = &job.budget {
        writeln!(text, "  budget       {}", spent(budget))?;
    }
    if let Some(sweep) = &job.sweep {
        let metric = sweep.metric.map(|metric| format!(", {}", sweeps::metric(metric))).unwrap_or_default();
        writeln!(text, "  sweep        {}: {}{metric}", sweep.id, sweeps::parameters(&sweep.parameters))?;
    }
    for notified in &job.notifies {
        writeln!(text, "  notifies     {notified}")?;
    }
    let saved = &job.checkpoints;
    let last = saved.last_step.map(|step| format!(", last at step {step}")).unwrap_or_default();
    let stall = stall(&job.usage).unwrap_or_default();
    writeln!(text, "  checkpoints  {}, {} written{last}{stall} (measured)", saved.count, Bytes(saved.bytes))?;
    if let Some(folder) = job.checkpoint_path.as_ref().filter(|_| saved.count > 0) {
        writeln!(text, "               in {folder}")?;
    }
    data(text, job)?;
    if let Some(metrics) = metrics(job) {
        writeln!(text, "  metrics      {metrics}")?;
    }
    for alert in &job.alerts {
        writeln!(text, "  alert        {alert}")?;
    }
    writeln!(text, "  faults       {} of at most {}", job.faults, job.max_faults)
}

/// Formats what the job asked for of each dataset.
fn data(text: &mut String, job: &Job) -> std::fmt::Result {
    for reads in &job.dataset_reads {
        let requests = reads.get + reads.head + reads.list + reads.put;
        let failed = if reads.failed > 0 { format!(", beside {} that failed", reads.failed) } else { String::new() };
        let (fetched, dataset) = (Bytes(reads.bytes), &reads.dataset);
        let across = match Bytes(reads.cross_region_bytes) {
            Bytes(0) => String::new(),
            across => format!(", {across} of it from another region"),
        };
        writeln!(
            text,
            "  data         {fetched} of {dataset} fetched by {requests} requests{failed}{across} (measured)"
        )?;
    }
    Ok(())
}

/// Formats the last values of the metrics that the job's program named, the first few of them.
fn metrics(job: &Job) -> Option<String> {
    let own: Vec<_> = job.metrics.iter().filter(|value| value.is_programs()).collect();
    let shown = own.iter().take(METRICS_SHOWN);
    let shown: Vec<String> = shown.map(|value| format!("{} {}", value.metric, value.last.short())).collect();
    let more = match own.len().saturating_sub(METRICS_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more: gangline series {}", job.id),
    };
    (!shown.is_empty()).then(|| format!("{}{more} (measured, at last)", shown.join(", ")))
}

/// Formats the time that saves stalled the slots, once an attempt is booked.
fn stall(usage: &Usage) -> Option<String> {
    let line = usage.buckets.iter().find(|line| line.bucket == Bucket::CheckpointStall.name())?;
    let share = line.gpu_seconds / usage.gpu_seconds * 100.0;
    (usage.gpu_nanoseconds > 0).then(|| format!("; slots stood still for {:.3} s, {share:.1} %", line.gpu_seconds))
}

fn spent(budget: &Budget) -> String {
    let money = Money::from_nano_dollars;
    let (spent, limit) = (money(budget.spent_nano_dollars), money(budget.limit_nano_dollars));
    let ends = budget.ends_at.map(|at| format!(", asked to save and stop at {}", output::time(at)));
    format!("{spent} of {limit} spent (estimated, by list prices){}", ends.unwrap_or_default())
}

/// When the system below Gangline allocated an attempt's nodes.
fn allocated(attempt: &Attempt, allocation: Allocation) -> String {
    match (allocation.from, attempt.ended_at) {
        (Some(from), _) => {
            let waited = from.0.since(attempt.placed_at.0).as_secs_f64();
            let to = allocation.to.map(|to| format!(" until {}", output::time(to))).unwrap_or_default();
            format!("allocated by Slurm: from {}{to}, after {waited:.1} s in its queue", output::time(from))
        }
        (None, None) => "waits in Slurm's queue, and holds no slots meanwhile".to_owned(),
        (None, Some(_)) => "Slurm allocated nothing to it, so nothing is booked".to_owned(),
    }
}

fn attempts(text: &mut String, attempts: &[Attempt]) -> std::fmt::Result {
    let mut told: Option<(u32, &Fault)> = None;
    for attempt in attempts {
        let places: Vec<String> =
            attempt.shares.iter().map(|share| format!("{} {:?}", share.node, share.devices)).collect();
        writeln!(text, "  attempt {:<4} {} on {}", attempt.number, output::time(attempt.placed_at), places.join(", "))?;
        writeln!(text, "               placed: {}", attempt.placed_because)?;
        if let Some(allocation) = &attempt.allocation {
            writeln!(text, "               {}", allocated(attempt, *allocation))?;
        }
        if let Some(silence) = &attempt.silence {
            writeln!(text, "               {silence}")?;
        }
        for straggler in &attempt.stragglers {
            writeln!(text, "               straggler: {straggler}")?;
        }
        match (&attempt.fault, told) {
            (Some(fault), Some((number, same))) if is_alike(fault, same) => {
                writeln!(text, "               first fault: the same as of attempt {number}, on {}", fault.node)?;
            }
            (Some(fault), _) => {
                told = Some((attempt.number, fault));
                first_fault(text, "               ", fault)?;
            }
            (None, _) => {}
        }
        if let Some(because) = &attempt.ended_because {
            writeln!(text, "               {because}")?;
        }
    }
    Ok(())
}

/// Reports whether two faults are the same one again, on whatever node.
fn is_alike(fault: &Fault, other: &Fault) -> bool {
    (fault.rank, &fault.cause, &fault.last_lines) == (other.rank, &other.cause, &other.last_lines)
        && fault.diagnosis == other.diagnosis
}

/// Writes what failed first, the rank's last lines, and what is likely the cause.
pub(crate) fn first_fault(text: &mut String, indent: &str, fault: &Fault) -> std::fmt::Result {
    let who = fault.rank.map(|rank| format!("rank {rank} ")).unwrap_or_default();
    writeln!(text, "{indent}first fault: {who}on {} {}", fault.node, fault.cause)?;
    for line in &fault.last_lines {
        writeln!(text, "{indent}| {line}")?;
    }
    if let Some(diagnosis) = &fault.diagnosis {
        let (category, subcategory) = (&diagnosis.category, &diagnosis.subcategory);
        let (summary, confidence) = (&diagnosis.summary, diagnosis.confidence);
        writeln!(text, "{indent}likely: {category}/{subcategory}: {summary} (estimated; confidence {confidence:.2})")?;
        writeln!(text, "{indent}do: {}", diagnosis.advice)?;
    }
    Ok(())
}

fn recovered(text: &mut String, recovery: &Recovery) -> std::fmt::Result {
    let state = if recovery.is_complete { "" } else { " so far" };
    let is_fault = recovery.phases.iter().any(|line| line.phase == RecoveryPhase::Detect.name());
    let (heading, bound) = if is_fault { ("recovery", "; detect is an upper bound") } else { ("went on", "") };
    writeln!(
        text,
        "  {heading:<12} attempt {} to {}: {}{state} (measured{bound}), {} more in the queue",
        recovery.from_attempt,
        recovery.to_attempt,
        output::seconds(recovery.total_seconds),
        output::seconds(recovery.queued_seconds)
    )?;
    let phases: Vec<String> =
        recovery.phases.iter().map(|line| format!("{} {}", line.phase, output::seconds(line.seconds))).collect();
    writeln!(text, "               {}", phases.join(" | "))
}

fn usage(text: &mut String, heading: &str, kind: &str, usage: &Usage) -> std::fmt::Result {
    if usage.gpu_nanoseconds == 0 {
        return writeln!(text, "  {heading:<12} nothing yet: an attempt is booked when it ends");
    }
    let (seconds, cost, goodput) = (usage.gpu_seconds, cost(usage), goodput(usage));
    writeln!(text, "  {heading:<12} {seconds:.3} slot-seconds ({kind}), {cost}, {goodput}")?;
    for line in usage.buckets.iter().filter(|line| line.gpu_nanoseconds > 0) {
        let share = line.gpu_seconds / usage.gpu_seconds * 100.0;
        let cost = if is_priced(usage) {
            Money::from_nano_dollars(line.cost_nano_dollars).to_string()
        } else {
            "not priced".to_owned()
        };
        let meaning = Bucket::from_name(&line.bucket).map_or("", meaning);
        writeln!(text, "    {:<17} {:>10.3} s {share:>5.1} % {cost:>12}  {meaning}", line.bucket, line.gpu_seconds)?;
    }
    let sum: u64 = usage.buckets.iter().map(|line| line.gpu_nanoseconds).sum();
    let verdict = if sum == usage.gpu_nanoseconds { "exactly what was allocated" } else { "NOT what was allocated" };
    writeln!(text, "    buckets sum to {:.3} s, {verdict}", seconds_of(sum))
}

/// Formats the runtime goodput, or says why it isn't known.
fn goodput(usage: &Usage) -> String {
    let is_unreported = |line: &BucketLine| line.bucket == Bucket::Unreported.name() && line.gpu_nanoseconds > 0;
    let at_least = if usage.buckets.iter().any(is_unreported) { "at least " } else { "" };
    match usage.goodput {
        Some(goodput) => format!("goodput {at_least}{:.1} %", goodput * 100.0),
        None => "goodput unknown: its ranks report no steps (docs/reference/rank-protocol.md)".to_owned(),
    }
}

/// Says in a few words what a bucket's time is.
fn meaning(bucket: Bucket) -> &'static str {
    match bucket {
        Bucket::Compute => "computing new steps",
        Bucket::DataStall => "waiting for data",
        Bucket::CheckpointStall => "blocked by saves",
        Bucket::Communication => "communication not hidden by compute, in new steps",
        Bucket::StragglerWait => "waiting for slower ranks",
        Bucket::Restart => "from the allocation to the end of the first step",
        Bucket::LostWork => "steps done again, and unfinished ones of attempts that failed",
        Bucket::Idle => "held while no rank worked: start of the supervisor, after the ranks' end",
        Bucket::Unreported => "the ranks report nothing: what they did isn't known",
    }
}

fn is_priced(usage: &Usage) -> bool {
    usage.prices.iter().any(|price| price.nano_dollars_per_hour > 0)
}

/// Formats the cost, or says that no price of a slot is known.
fn cost(usage: &Usage) -> String {
    let priced = usage.prices.iter().filter(|price| price.nano_dollars_per_hour > 0);
    let prices: Vec<String> = priced
        .map(|price| format!("{} a slot-hour on {}", Money::from_nano_dollars(price.nano_dollars_per_hour), price.node))
        .collect();
    if prices.is_empty() {
        return "not priced: no price is configured (gangline up --price)".to_owned();
    }
    format!("{} at {}", usage.cost, prices.join(", "))
}

fn seconds_of(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}
