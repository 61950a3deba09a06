//! `schedules`: job files that are submitted again and again.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gangline_api as api;
use serde_json::json;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{output, submit};

/// What to do with schedules.
#[derive(Args, Debug)]
pub(crate) struct SchedulesArgs {
    #[command(subcommand)]
    command: Option<SchedulesCommand>,
}

#[derive(Debug, Subcommand)]
enum SchedulesCommand {
    /// List schedules; the default
    List,
    /// Submit a job file again and again
    Add(AddArgs),
    /// Submit nothing until it is resumed
    Pause {
        /// The schedule, as schedule-3
        schedule: String,
    },
    /// Go on with its next time
    Resume {
        /// The schedule, as schedule-3
        schedule: String,
    },
    /// End it; its jobs stay
    Remove {
        /// The schedule, as schedule-3
        schedule: String,
    },
}

#[derive(Args, Debug)]
struct AddArgs {
    /// When, in UTC: minute, hour, day of the month, month and day of the week, as in "0 3 * * *"; or @daily
    cron: String,
    /// The job file (YAML), or a batch script with #SBATCH lines; it is kept as it is now
    file: PathBuf,
    /// Override a key of the file, such as envs.LR=3e-4 (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(client: &Client, args: &SchedulesArgs, is_json: bool) -> Result<(), Failure> {
    let change = |schedule: &str, change: &str| -> Result<api::Schedule, Failure> {
        client.post(&format!("/schedules/{}/{change}", path_segment(schedule)), &json!({}))
    };
    let (changed, told) = match &args.command {
        None | Some(SchedulesCommand::List) => return list(client, is_json),
        Some(SchedulesCommand::Add(add)) => (create(client, add)?, "submits"),
        Some(SchedulesCommand::Pause { schedule }) => (change(schedule, "pause")?, "is paused"),
        Some(SchedulesCommand::Resume { schedule }) => (change(schedule, "resume")?, "submits"),
        Some(SchedulesCommand::Remove { schedule }) => (change(schedule, "remove")?, "is removed"),
    };
    if is_json {
        return output::json(&changed);
    }
    let next = changed.next.map(|next| format!(" {} at {} next", changed.name, output::time(next))).unwrap_or_default();
    output::say(&format!("{} {told}{next}", changed.id))
}

fn create(client: &Client, args: &AddArgs) -> Result<api::Schedule, Failure> {
    let job = submit::request_of(client, &args.file, args.set.clone())?;
    let request = api::ScheduleRequest { cron: args.cron.clone(), job };
    let file = args.file.display().to_string();
    client.post("/schedules", &request).map_err(|failure| submit::in_file(failure, &file))
}

fn list(client: &Client, is_json: bool) -> Result<(), Failure> {
    let list: api::ScheduleList = client.get("/schedules")?;
    if is_json {
        return output::json(&list);
    }
    if list.schedules.is_empty() {
        output::tell("there are no schedules: gangline schedules add \"0 3 * * *\" job.yaml makes one");
        return Ok(());
    }
    let headings = ["ID", "NAME", "TIMES (UTC)", "USER", "NEXT", "LAST", ">LEFT OUT"];
    output::print(&output::table(&headings, list.schedules.iter().map(row).collect()))
}

fn row(schedule: &api::Schedule) -> Vec<String> {
    let last = schedule.last.as_ref().map_or("-".to_owned(), |run| {
        let what = run.submitted.as_deref().or(run.failure.as_deref()).unwrap_or("-");
        format!("{}: {what}", output::time(run.due))
    });
    vec![
        schedule.id.clone(),
        schedule.name.clone(),
        schedule.cron.clone(),
        schedule.submitter.clone(),
        schedule.next.map_or("paused".to_owned(), output::time),
        last,
        schedule.left_out.to_string(),
    ]
}
