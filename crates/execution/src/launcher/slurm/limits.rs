//! How long jobs may run in a partition, as `scontrol show partition` says (scontrol(1), slurm.conf(5): MaxTime, DefaultTime).

use std::time::Duration;

use super::SlurmLauncher;
use super::command::Programs;
use super::script::TIME_LIMIT_MARGIN;
use crate::launcher::LaunchError;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The limits of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartitionLimits {
    /// The longest that a job may run; none if it may run for ever.
    pub(super) max: Option<Duration>,
    /// Whether a job that asks for no time gets less than that.
    pub(super) has_default: bool,
}

impl PartitionLimits {
    /// Asks Slurm.
    pub(super) fn read(programs: &Programs, partition: &str) -> Result<PartitionLimits, LaunchError> {
        let arguments = ["show", "partition", partition, "--oneliner"].map(str::to_owned);
        Ok(PartitionLimits::of(&String::from_utf8_lossy(&programs.run("scontrol", &arguments)?)))
    }

    fn of(text: &str) -> PartitionLimits {
        let value = |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        PartitionLimits {
            max: value("MaxTime").and_then(duration),
            has_default: value("DefaultTime").is_some_and(|time| time != "NONE"),
        }
    }

    /// Returns the value of sbatch's `--time` for a gang with this limit of its own; none if Slurm's own default is right. A
    /// gang has a margin beyond its limit, to save, as far as the partition has room for it: a job that asks for more than
    /// MaxTime would never start.
    pub(super) fn time(self, limit: Option<Duration>) -> Option<String> {
        let asked = limit.map(|limit| limit + TIME_LIMIT_MARGIN);
        let minutes = |time: Duration| time.as_secs().div_ceil(MINUTE);
        match (asked, self.max) {
            (Some(asked), Some(max)) if asked > max => Some((max.as_secs() / MINUTE).max(1).to_string()),
            (Some(asked), _) => Some(minutes(asked).to_string()),
            (None, Some(max)) if self.has_default => Some((max.as_secs() / MINUTE).max(1).to_string()),
            (None, None) if self.has_default => Some("UNLIMITED".to_owned()),
            (None, _) => None,
        }
    }
}

impl SlurmLauncher {
    /// Returns how long jobs may run in the partition. If Slurm doesn't say it in a form that is understood, that is no reason
    /// to do without its nodes.
    pub(super) fn limits_of(&self, partition: &str) -> Result<PartitionLimits, LaunchError> {
        match PartitionLimits::read(&self.programs, partition) {
            Err(LaunchError::Refused { message, .. }) => {
                tracing::warn!(partition, message, "Slurm doesn't say how long jobs may run");
                Ok(PartitionLimits::default())
            }
            read => read,
        }
    }

    /// Returns the limits that Slurm was last known to have.
    pub(super) fn limits(&self) -> PartitionLimits {
        self.state().limits.map_or_else(PartitionLimits::default, |(_, limits)| limits)
    }
}

/// Reads `2-00:30:00`, `30:00` and the like; none for UNLIMITED and what can't be read.
fn duration(text: &str) -> Option<Duration> {
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

    /// As Slurm 22.05 prints it.
    const PARTITION: &str = "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL Default=YES DefaultTime=01:00:00 \
        DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 Nodes=n[1-4]";

    #[test]
    fn limits_are_read_in_every_form_of_time() {
        let limits = PartitionLimits::of(PARTITION);
        assert_eq!(limits, PartitionLimits { max: Some(Duration::from_secs(2 * DAY)), has_default: true });
        let none = PartitionLimits::of("PartitionName=a DefaultTime=NONE MaxTime=UNLIMITED");
        assert_eq!((none, PartitionLimits::of("")), (PartitionLimits::default(), PartitionLimits::default()));
        let times = [("30:00", 1_800), ("1:30:00", 5_400), ("2-12", 216_000), ("1-01:30", 91_800), ("45", 2_700)];
        for (text, seconds) in times {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert!(["UNLIMITED", "", "1:2:3:4", "x-1", "-1"].iter().all(|text| duration(text).is_none()));
    }

    #[test]
    fn a_gang_asks_for_its_limit_and_a_margin_and_never_for_more_than_the_partition_allows() {
        let limits = |max: Option<u64>, has_default| PartitionLimits { max: max.map(Duration::from_secs), has_default };
        let hours = |hours: u64| Some(Duration::from_secs(hours * HOUR));
        assert_eq!(limits(None, false).time(hours(1)).as_deref(), Some("70"));
        assert_eq!(limits(Some(HOUR), false).time(hours(1)).as_deref(), Some("60"), "no room for the margin");
        assert_eq!(limits(Some(2 * HOUR), true).time(None).as_deref(), Some("120"), "not the default");
        assert_eq!(limits(None, true).time(None).as_deref(), Some("UNLIMITED"));
        assert_eq!((limits(Some(HOUR), false).time(None), limits(None, false).time(None)), (None, None));
    }
}
