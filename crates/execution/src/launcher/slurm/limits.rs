//! How long jobs may run in a partition, and on how many nodes, as `scontrol show partition` says (scontrol(1), slurm.conf(5): MaxTime,
//! DefaultTime, MaxNodes), and by the limits of accounts and qualities of service ([`policies`]).

use std::collections::BTreeMap;
use std::time::Duration;

use super::SlurmLauncher;
use super::command::Programs;
use super::policies::{self, Policies};
use super::pool::Allocation;
use super::script::{JobOptions, TIME_LIMIT_MARGIN};
use super::settings::word;
use super::sizes::Size;
use crate::launcher::{GangLimit, LaunchError, Limited};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The longest that a job may run, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Longest {
    pub(super) time: Duration,
    pub(super) why: String,
    /// Whether Slurm's default for a job that asks for no time is longer, so that the job would never start.
    pub(super) is_below_default: bool,
}

/// What jobs may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobLimits {
    /// The longest that they may run; none if they may run for ever.
    pub(super) max: Option<Longest>,
    /// Whether a job that asks for no time gets less than that.
    pub(super) has_default: bool,
    /// The most that they may hold.
    sizes: Vec<Size>,
    /// The QOS whose limits hold for all jobs of the partition.
    qos: Option<String>,
}

impl JobLimits {
    /// Asks Slurm for those of a partition.
    fn read(programs: &Programs, partition: &str) -> Result<JobLimits, LaunchError> {
        let arguments = ["show", "partition", partition, "--oneliner"].map(str::to_owned);
        Ok(JobLimits::of(&String::from_utf8_lossy(&programs.run("scontrol", &arguments)?), partition))
    }

    fn of(text: &str, partition: &str) -> JobLimits {
        let why = format!("MaxTime of Slurm's partition {partition}");
        let nodes_max = |max| {
            let why = format!("MaxNodes of Slurm's partition {partition}");
            Size { is_per_job: true, limit: GangLimit { of: Limited::Nodes, max, why } }
        };
        JobLimits {
            max: word(text, "MaxTime").and_then(duration).map(|time| Longest { time, why, is_below_default: false }),
            has_default: word(text, "DefaultTime").is_some_and(|time| time != "NONE"),
            sizes: word(text, "MaxNodes").and_then(|max| max.parse().ok()).map(nodes_max).into_iter().collect(),
            qos: word(text, "QoS").filter(|qos| *qos != "N/A").map(str::to_owned),
        }
    }

    /// Returns these limits and others, of which the shorter time counts, and all sizes.
    fn and(mut self, others: Policies) -> JobLimits {
        self.sizes.extend(others.sizes);
        let shorter = match (self.max, others.longest) {
            (Some(one), Some(other)) => Some(if other.time < one.time { other } else { one }),
            (one, other) => one.or(other),
        };
        JobLimits { max: shorter, ..self }
    }

    /// Returns the value of sbatch's `--time` for a gang with this limit of its own; none if Slurm's own default is right. A
    /// gang has a margin beyond its limit, to save, as far as there is room for it: a job that asks for more than the longest
    /// would never start.
    pub(super) fn time(&self, limit: Option<Duration>) -> Option<String> {
        let asked = limit.map(|limit| limit + TIME_LIMIT_MARGIN);
        let minutes = |time: Duration| time.as_secs().div_ceil(MINUTE);
        let whole_minutes = |max: &Longest| Some((max.time.as_secs() / MINUTE).max(1).to_string());
        match (asked, &self.max) {
            (Some(asked), Some(max)) if asked > max.time => whole_minutes(max),
            (Some(asked), _) => Some(minutes(asked).to_string()),
            (None, Some(max)) if self.has_default || max.is_below_default => whole_minutes(max),
            (None, None) if self.has_default => Some("UNLIMITED".to_owned()),
            (None, _) => None,
        }
    }
}

/// What jobs may take, by their queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    of_most: JobLimits,
    /// Of the queues with an account or a QOS of their own.
    of_queues: BTreeMap<String, JobLimits>,
}

impl SlurmLauncher {
    /// Returns what jobs may take in the partition. If Slurm doesn't say it in a form that is understood, that is no reason
    /// to do without its nodes.
    pub(super) fn limits_of(&self, partition: &str) -> Result<Limits, LaunchError> {
        let limits = match JobLimits::read(&self.programs, partition) {
            Err(LaunchError::Refused { message, .. }) => {
                tracing::warn!(partition, message, "Slurm doesn't say how long jobs may run");
                return Ok(Limits::default());
            }
            read => read?,
        };
        let with_policies =
            |options: &JobOptions| match policies::read(&self.programs, options, partition, limits.qos.as_deref()) {
                Ok(policies) => limits.clone().and(policies),
                Err(error) => {
                    tracing::warn!(%error, "slurmdbd doesn't say what accounts and qualities of service limit");
                    limits.clone()
                }
            };
        // Many queues may have one account.
        let mut known: BTreeMap<&JobOptions, JobLimits> = BTreeMap::new();
        let mut all = Limits::default();
        for (queue, options) in self.options.all_jobs() {
            let limits = known.entry(options).or_insert_with(|| with_policies(options)).clone();
            match queue {
                Some(queue) => drop(all.of_queues.insert(queue.to_owned(), limits)),
                None => all.of_most = limits,
            }
        }
        Ok(all)
    }

    /// Returns how much a gang may hold. In a pool a job of Slurm's is one node, whatever the gangs in it are.
    pub(super) fn sizes(&self, queue: &str) -> Vec<GangLimit> {
        let is_job_of_its_own = !matches!(self.options.allocation, Allocation::Pool { .. });
        let sizes = self.limits(queue).sizes.into_iter().filter(|size| is_job_of_its_own || !size.is_per_job);
        sizes.map(|size| size.limit).collect()
    }

    /// Returns the limits that Slurm was last known to have for a queue's jobs.
    pub(super) fn limits(&self, queue: &str) -> JobLimits {
        let state = self.state();
        let limits = state.limits.as_ref().map(|(_, limits)| limits.of_queues.get(queue).unwrap_or(&limits.of_most));
        limits.cloned().unwrap_or_default()
    }
}

/// Reads `2-00:30:00`, `30:00` and the like; none for UNLIMITED and what can't be read.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (u64::from(days.parse::<u32>().ok()?), rest),
        None => (0, text),
    };
    // No number of more than 32 bits is meant, and products of these don't overflow.
    let parts: Option<Vec<u64>> = rest.split(':').map(|part| part.parse::<u32>().ok().map(u64::from)).collect();
    let seconds = match (text.contains('-'), parts?.as_slice()) {
        (_, [hours, minutes, seconds]) => hours * HOUR + minutes * MINUTE + seconds,
        (true, [hours, minutes]) => hours * HOUR + minutes * MINUTE,
        (true, [hours]) => hours * HOUR,
        (false, [minutes, seconds]) => minutes * MINUTE + seconds,
        (false, [minutes]) => minutes * MINUTE,
        _ => return None,
    };
    Some(Duration::from_secs(days * DAY + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(seconds: u64, why: &str, is_below_default: bool) -> Option<Longest> {
        Some(Longest { time: Duration::from_secs(seconds), why: why.to_owned(), is_below_default })
    }

    /// As Slurm 22.05 prints it.
    const PARTITION: &str = "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL Default=YES DefaultTime=01:00:00 \
        DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 Nodes=n[1-4]";

    #[test]
    fn limits_are_read_in_every_form_of_time() {
        let max = longest(2 * DAY, "MaxTime of Slurm's partition gpu", false);
        assert_eq!(JobLimits::of(PARTITION, "gpu"), JobLimits { max, has_default: true, sizes: vec![], qos: None });
        let none = JobLimits::of("PartitionName=a QoS=N/A DefaultTime=NONE MaxTime=UNLIMITED", "a");
        assert_eq!((none, JobLimits::of("", "a")), (JobLimits::default(), JobLimits::default()));
        assert_eq!(JobLimits::of("QoS=part", "a").qos.as_deref(), Some("part"));
        let sizes = JobLimits::of("MaxNodes=4", "a").sizes;
        let why = "MaxNodes of Slurm's partition a".to_owned();
        assert_eq!(sizes, [Size { is_per_job: true, limit: GangLimit { of: Limited::Nodes, max: 4, why } }]);
        let times = [("30:00", 1_800), ("1:30:00", 5_400), ("2-12", 216_000), ("1-01:30", 91_800), ("45", 2_700)];
        for (text, seconds) in times {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert!(["UNLIMITED", "", "1:2:3:4", "x-1", "-1"].iter().all(|text| duration(text).is_none()));
    }

    #[test]
    fn a_gang_asks_for_its_limit_and_a_margin_and_never_for_more_than_the_partition_allows() {
        let limits = |max: Option<u64>, has_default| {
            let max = max.and_then(|max| longest(max, "", false));
            JobLimits { max, has_default, sizes: vec![], qos: None }
        };
        let hours = |hours: u64| Some(Duration::from_secs(hours * HOUR));
        assert_eq!(limits(None, false).time(hours(1)).as_deref(), Some("70"));
        assert_eq!(limits(Some(HOUR), false).time(hours(1)).as_deref(), Some("60"), "no room for the margin");
        assert_eq!(limits(Some(2 * HOUR), true).time(None).as_deref(), Some("120"), "not the default");
        assert_eq!(limits(None, true).time(None).as_deref(), Some("UNLIMITED"));
        assert_eq!((limits(Some(HOUR), false).time(None), limits(None, false).time(None)), (None, None));
        let by_qos =
            |max: Option<u64>| limits(max, false).and(Policies { longest: longest(2 * HOUR, "", true), sizes: vec![] });
        assert_eq!(by_qos(None).time(None).as_deref(), Some("120"), "the partition's own would be too much");
        assert_eq!(by_qos(Some(HOUR)).time(hours(3)).as_deref(), Some("60"), "the shorter one counts");
    }
}
