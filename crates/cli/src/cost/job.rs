//! `cost show`: what a job cost.

use std::fmt::Write as _;

use clap::Args;
use gangline_api as api;
use gangline_base::{Bytes, Money};

use super::{device_time, percent, report, tell_unpriced};
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{output, runs};

/// Which job.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The job, as job-3 or 3, or a run of it by its id or the id's first digits
    job: String,
}

pub(super) fn run(client: &Client, args: &ShowArgs, is_json: bool) -> Result<(), Failure> {
    let job = runs::paying_job(client, &args.job)?;
    let cost: api::JobCost = client.get(&format!("/cost/jobs/{}", path_segment(&job)))?;
    if is_json {
        return output::json(&cost);
    }
    output::print(&text(&cost))?;
    tell_unpriced(cost.total.unpriced_gpu_seconds);
    Ok(())
}

fn text(cost: &api::JobCost) -> String {
    let api::JobCost { job, name, user, queue, total, .. } = cost;
    let mut text = format!("{job} ({name}) of {user} in queue {queue}: {}", cost.state.name());
    if total.lines.is_empty() {
        return text + ", has held no devices\n";
    }
    let is_live = if cost.state.is_final() { "" } else { " (estimated)" };
    // Writing to a String can't fail.
    let _ = writeln!(text, ", {}{is_live} for {} of device time\n", total.cost, device_time(total.gpu_seconds));
    text += &report::lines(total);
    text.push('\n');
    let money = |amount: Option<i64>| amount.map(Money::from_nano_dollars);
    let each = [
        ("for each of its steps", money(cost.nano_dollars_per_step)),
        ("for a million tokens (estimated from the tokens of a step)", money(cost.nano_dollars_per_million_tokens)),
        ("for an hour of a device in new steps", money(cost.nano_dollars_per_useful_gpu_hour)),
    ];
    for (what, amount) in each.iter().filter_map(|(what, amount)| Some((what, (*amount)?))) {
        let _ = writeln!(text, "{amount} {what}");
    }
    if let Some(at_end) = money(cost.nano_dollars_at_end) {
        let _ =
            writeln!(text, "{at_end} at its end, if the steps that are left cost as much as those so far (estimated)");
    }
    if let Some(budget) = money(cost.budget_nano_dollars) {
        let is_short = money(cost.nano_dollars_at_end).is_some_and(|at_end| at_end > budget);
        let _ =
            writeln!(text, "its budget is {budget}{}", if is_short { ", which ends before its last step" } else { "" });
    }
    if cost.checkpoints > 0 {
        let bytes = Bytes(cost.checkpoint_bytes);
        let priced = match storage_of(total) {
            Some(stored) if stored.unpriced_gib_hours.unwrap_or(0.0) > 0.0 => {
                ": storage has no price in [[storage.price]]"
            }
            Some(_) => "",
            None => ": not measured yet",
        };
        let _ = writeln!(text, "{} checkpoint(s) saved, {bytes} in all{priced}", cost.checkpoints);
    }
    if cost.attempts.len() > 1 {
        let rows = cost.attempts.iter().map(|attempt| {
            let useful = attempt.useful_share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            vec![attempt.name.clone(), device_time(attempt.gpu_seconds), useful, attempt.cost.clone()]
        });
        let table = output::table(&[">ATTEMPT", ">DEVICE TIME", ">USEFUL", ">COST"], rows.collect());
        let _ = write!(text, "\n{table}");
    }
    text + &savings(cost)
}

/// Returns the line of stored checkpoints, once they are measured.
fn storage_of(total: &api::CostGroup) -> Option<&api::CostLine> {
    total.lines.iter().find(|line| line.line == "storage_checkpoints")
}

/// Names what cost most besides new steps.
fn savings(cost: &api::JobCost) -> String {
    let Some(worst) = cost.losses.iter().find(|loss| loss.gpu_seconds > 0.0) else { return String::new() };
    let what = match worst.line.as_str() {
        "failed_run" => "its steps, since it failed: gangline explain says why",
        "restart" => "from its placement to its first step: see the start of its log",
        "data_stall" | "straggler_wait" => "gangline why says on which ranks",
        "checkpoint_stall" => "blocked by saves: saves that are copied beside the training block less",
        "lost_work" => "steps that were done again after a fault: checkpoints more often lose fewer",
        "idle_while_held" => "its ranks had ended, or its supervisor had not reported",
        "unreported" => "its ranks report no steps: what they did isn't known",
        _ => "",
    };
    let amount = if worst.unpriced_gpu_seconds > 0.0 && worst.cost_nano_dollars == 0 {
        "not priced".to_owned()
    } else {
        Money::from_nano_dollars(worst.cost_nano_dollars).to_string()
    };
    let share = percent(worst.gpu_seconds, cost.total.gpu_seconds);
    let because = if what.is_empty() { String::new() } else { format!(": {what}") };
    format!("\nmost besides new steps: {} ({share}, {amount}){because}\n", worst.line)
}
