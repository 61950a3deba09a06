//! The table `[retention]` of the configuration file: when data of ended jobs is removed. The defaults keep
//! data that somebody is still likely to need.

use std::time::Duration;

use gangline_base::{Bytes, InvalidBytes};
use serde::Deserialize;

use crate::jobfile::parse_age;

/// The value for data that is kept for ever.
const NEVER: &str = "never";
/// The longest pause between two passes, so that data doesn't stay for weeks after it is due.
const EVERY_MAX: Duration = Duration::from_hours(7 * 24);

/// The retention rules. Ages count from a job's end; data with the age `None` is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Logs and other files of jobs that succeeded, were cancelled, or were stopped by their own rules.
    pub logs: Option<Duration>,
    /// The same files of jobs that failed, which somebody may still want to examine.
    pub failed_logs: Option<Duration>,
    /// The number of a job's newest attempts to which the two ages above apply.
    pub attempts: u32,
    /// The age for the files of older attempts.
    pub older_attempts: Option<Duration>,
    /// The limit of all jobs' files together; files of the job that ended first are removed first.
    pub logs_max: Option<Bytes>,
    /// Checkpoints, except the newest good one of a job.
    pub checkpoints: Option<Duration>,
    /// Records of jobs, which the API shows.
    pub jobs: Option<Duration>,
    /// Files that no job claims: put aside by a start, or of unknown jobs. Their age counts from when they
    /// lost their job.
    pub lost: Option<Duration>,
    /// Metrics of ranks, in the series store.
    pub metrics: MetricRetention,
    /// The pause between two passes.
    pub every: Duration,
}

/// How long metrics are kept, by how fine they are; `None` is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricRetention {
    /// Every value.
    pub points: Option<Duration>,
    /// One row a minute.
    pub minutes: Option<Duration>,
    /// One row an hour.
    pub hours: Option<Duration>,
    /// The limit of all metrics together; the oldest and finest are removed first.
    pub bytes_max: Option<Bytes>,
}

impl MetricRetention {
    /// The rules for keys that the file doesn't set.
    pub const DEFAULT: MetricRetention = MetricRetention {
        points: Some(days(30)),
        minutes: Some(days(180)),
        hours: Some(days(1_825)),
        bytes_max: Some(Bytes(50 << 30)),
    };
}

impl Retention {
    /// The rules for keys that the file doesn't set.
    pub const DEFAULT: Retention = Retention {
        logs: Some(days(30)),
        failed_logs: Some(days(90)),
        attempts: 5,
        older_attempts: Some(days(14)),
        logs_max: None,
        // Only users know when a checkpoint isn't needed any more.
        checkpoints: None,
        jobs: Some(days(400)),
        lost: Some(days(30)),
        metrics: MetricRetention::DEFAULT,
        every: Duration::from_hours(1),
    };
}

const fn days(count: u64) -> Duration {
    Duration::from_hours(24 * count)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetentionV1 {
    logs: Option<String>,
    failed_logs: Option<String>,
    attempts: Option<u32>,
    older_attempts: Option<String>,
    logs_max: Option<String>,
    checkpoints: Option<String>,
    jobs: Option<String>,
    lost: Option<String>,
    metrics: Option<String>,
    metrics_minutes: Option<String>,
    metrics_hours: Option<String>,
    metrics_max: Option<String>,
    every: Option<String>,
}

impl RetentionV1 {
    /// Returns the rules; an error says which one is invalid.
    pub(super) fn read(self) -> Result<Retention, String> {
        let default = Retention::DEFAULT;
        let metrics = MetricRetention {
            points: age("metrics", self.metrics, default.metrics.points)?,
            minutes: age("metrics_minutes", self.metrics_minutes, default.metrics.minutes)?,
            hours: age("metrics_hours", self.metrics_hours, default.metrics.hours)?,
            bytes_max: self.metrics_max.map_or(Ok(default.metrics.bytes_max), |text| size("metrics_max", &text))?,
        };
        let logs = age("logs", self.logs, default.logs)?;
        // A `logs` age above the default for failed jobs' logs raises that default too.
        let failed_default = default.failed_logs.zip(logs).map(|(failed, logs)| failed.max(logs));
        let read = Retention {
            logs,
            failed_logs: age("failed_logs", self.failed_logs, failed_default)?,
            attempts: self.attempts.unwrap_or(default.attempts),
            older_attempts: age("older_attempts", self.older_attempts, default.older_attempts)?,
            logs_max: self.logs_max.map_or(Ok(default.logs_max), |text| size("logs_max", &text))?,
            checkpoints: age("checkpoints", self.checkpoints, default.checkpoints)?,
            jobs: age("jobs", self.jobs, default.jobs)?,
            lost: age("lost", self.lost, default.lost)?,
            metrics,
            every: age("every", self.every, Some(default.every))?.unwrap_or(Duration::MAX),
        };
        read.check()?;
        Ok(read)
    }
}

impl Retention {
    fn check(&self) -> Result<(), String> {
        if self.attempts == 0 {
            return Err("attempts is 0, at least the newest is kept for the time that logs says".to_owned());
        }
        if self.every.is_zero() || self.every > EVERY_MAX {
            return Err("every has to be from 1s to 7d".to_owned());
        }
        let MetricRetention { points, minutes, hours, bytes_max: _ } = self.metrics;
        let longer = |one: Option<Duration>, other: Option<Duration>| {
            other.is_some_and(|other| one.is_none_or(|one| one > other))
        };
        if longer(points, minutes) || longer(minutes, hours) {
            return Err(
                "metrics have to be kept no longer than metrics_minutes, and those no longer than metrics_hours"
                    .to_owned(),
            );
        }
        let Some(jobs) = self.jobs else { return Ok(()) };
        for (key, kept) in [("logs", self.logs), ("failed_logs", self.failed_logs)] {
            if kept.is_none_or(|kept| kept > jobs) {
                return Err(format!("{key} are kept for longer than jobs, and nobody could find them then"));
            }
        }
        if self.checkpoints.is_some_and(|kept| kept > jobs) {
            return Err(
                "checkpoints are kept for longer than jobs, and nobody would know whose they are then".to_owned()
            );
        }
        Ok(())
    }
}

fn age(key: &str, written: Option<String>, default: Option<Duration>) -> Result<Option<Duration>, String> {
    match written.as_deref() {
        None => Ok(default),
        Some(NEVER) => Ok(None),
        Some(text) => parse_age(text).map(Some).map_err(|message| format!("{key} {message}, or write \"{NEVER}\"")),
    }
}

fn size(key: &str, text: &str) -> Result<Option<Bytes>, String> {
    let read = |error: InvalidBytes| format!("{key}: {error}, or write \"{NEVER}\"");
    if text == NEVER { Ok(None) } else { text.parse().map(Some).map_err(read) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Retention, String> {
        Config::parse(text).map(|config| config.retention).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_kept_has_defaults_and_each_can_be_said_or_kept_for_ever() {
        assert_eq!(read(""), Ok(Retention::DEFAULT));
        let own = "[retention]\nlogs='120d'\nattempts=2\nolder_attempts='1d'\nlogs_max='2TiB'\njobs='never'\n\
                   checkpoints='90d'\nlost='1h'\nevery='10m'";
        let own = read(own).expect("sound");
        assert_eq!((own.logs, own.failed_logs), (Some(days(120)), Some(days(120))), "failed ones no shorter");
        assert_eq!((own.attempts, own.older_attempts), (2, Some(days(1))));
        assert_eq!((own.logs_max, own.jobs), (Some(Bytes(2 << 40)), None));
        assert_eq!((own.checkpoints, Retention::DEFAULT.checkpoints), (Some(days(90)), None), "only where it is said");
        assert_eq!((own.lost, own.every), (Some(Duration::from_hours(1)), Duration::from_mins(10)));
        let none = read("[retention]\nlogs='never'\njobs='never'\nlogs_max='never'").expect("sound");
        assert_eq!((none.logs, none.failed_logs, none.logs_max), (None, None, None), "failed ones no shorter");
        let metrics =
            read("[retention]\nmetrics='7d'\nmetrics_minutes='30d'\nmetrics_hours='never'\nmetrics_max='1GiB'");
        let expected = (Some(days(7)), Some(days(30)), None, Some(Bytes(1 << 30)));
        let MetricRetention { points, minutes, hours, bytes_max } = metrics.expect("sound").metrics;
        assert_eq!((points, minutes, hours, bytes_max), expected);
        let longest = read("[retention]\njobs='3650d'").expect("ten years are accounted for somewhere").jobs;
        assert_eq!(longest, Some(days(3_650)));
    }

    #[test]
    fn rules_that_make_no_sense_are_refused_by_name() {
        let check = |text: &str, part: &str| {
            let message = read(&format!("[retention]\n{text}")).expect_err("a refusal");
            assert!(message.starts_with("retention: ") && message.contains(part), "{message:?} does not name {part:?}");
        };
        check("logs = '30'", "logs has no unit in \"30\"");
        check("logs = 'always'", "or write \"never\"");
        check("logs_max = 'much'", "logs_max");
        check("attempts = 0", "attempts is 0");
        check("every = '0s'", "every has to be from 1s to 7d");
        check("every = '8d'", "every has to be from 1s to 7d");
        check("every = 'never'", "every has to be from 1s to 7d");
        check("jobs = '60d'", "failed_logs are kept for longer than jobs");
        check("logs = 'never'", "logs are kept for longer than jobs");
        check("checkpoints = '30'", "checkpoints has no unit in \"30\"");
        check("checkpoints = '401d'", "checkpoints are kept for longer than jobs");
        check("metrics = '200d'", "metrics have to be kept no longer than metrics_minutes");
        check("metrics_hours = '1d'", "no longer than metrics_hours");
        check("metrics_minutes = 'never'", "no longer than metrics_hours");
        check("metrics_max = 'much'", "metrics_max");
        let gone = read("[retention]\nsamples = '30d'").expect_err("curves are metrics now");
        assert!(gone.contains("samples") && gone.contains("metrics"), "{gone}");
        let unknown = read("[retention]\ndatasets = '30d'").expect_err("a refusal");
        assert!(unknown.contains("datasets"), "{unknown}");
    }
}
