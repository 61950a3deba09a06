//! `retention`: shows what a control plane would remove now, and by which rule. Changes nothing.

use std::path::PathBuf;

use clap::Args;
use gangline_base::{Bytes, with_causes};
use gangline_control::retention::{Due, Preview, preview};
use gangline_specs::config::Config;

use crate::client::{absolute, data_folder};
use crate::failure::Failure;
use crate::{Global, configuration, output};

/// Whose rules.
#[derive(Args)]
pub(crate) struct RetentionArgs {
    /// The control plane's configuration file [default: gangline.toml in the data folder, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(global: &Global, args: &RetentionArgs) -> Result<(), Failure> {
    let folder = absolute(&data_folder(global)?)?;
    let path = configuration::path(&folder, args.config.as_ref());
    let config = path.as_deref().map_or_else(|| Ok(Config::default()), configuration::read)?;
    let shown = preview(&folder, &config.retention, output::now())
        .map_err(|error| Failure::local(with_causes(&error), "name the data folder of a control plane with --data"))?;
    if global.json { output::json(&shown) } else { output::print(&text(&shown)) }
}

fn text(shown: &Preview) -> String {
    let mut lines = vec![format!("as of {}, the next pass removes:", output::time(shown.as_of))];
    if shown.due.is_empty() {
        lines.push("  nothing".to_owned());
    }
    lines.extend(shown.due.iter().map(line));
    let beyond = shown.bytes_of_live_jobs_beyond_max;
    if beyond > 0 {
        lines.push(format!("  files of jobs that haven't ended are {} more than logs_max, and stay", Bytes(beyond)));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn line(due: &Due) -> String {
    let Due { rule, jobs, entries, bytes, oldest, newest } = due;
    let what = match rule.as_str() {
        "jobs" => "records",
        "checkpoints" => "checkpoints, if the newest of each job is good,",
        _ => "files and folders",
    };
    let bytes = bytes.map(|bytes| format!(" ({})", Bytes(bytes))).unwrap_or_default();
    let since = if rule == "lost" { "unclaimed since" } else { "ended" };
    let (oldest, newest) = (output::time(*oldest), output::time(*newest));
    format!("  by {rule:<15} {entries} {what}{bytes} of {jobs} job(s), {since} {oldest} to {newest}")
}

#[cfg(test)]
mod tests {
    use gangline_api::Time;
    use gangline_base::Timestamp;

    use super::*;

    #[test]
    fn what_is_due_is_said_by_rule_with_sizes() {
        let day = |days: u64| Time(Timestamp::from_unix_nanos(days * 86_400_000_000_000));
        let due = |rule: &str, bytes| Due {
            rule: rule.to_owned(),
            jobs: 2,
            entries: 7,
            bytes,
            oldest: day(1),
            newest: day(2),
        };
        let nothing = Preview { as_of: day(40), due: Vec::new(), bytes_of_live_jobs_beyond_max: 0 };
        assert!(text(&nothing).ends_with("  nothing\n"), "{}", text(&nothing));
        let due = vec![due("logs", Some(2_048)), due("lost", Some(0)), due("jobs", None)];
        let shown = text(&Preview { due, bytes_of_live_jobs_beyond_max: 1 << 30, ..nothing });
        for part in [
            "by logs            7 files and folders (2.0 KiB) of 2 job(s), ended 1970-01-02",
            "by lost            7 files and folders (0 B) of 2 job(s), unclaimed since 1970-01-02",
            "by jobs            7 records of 2 job(s)",
            "files of jobs that haven't ended are 1.0 GiB more than logs_max",
        ] {
            assert!(shown.contains(part), "{part:?} isn't in\n{shown}");
        }
    }
}
