//! Slurm's own settings that matter to gangs, and what they mean for them (slurm.conf(5)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use super::command::Programs;
use super::limits::duration;
use super::settings::{setting, word};
use crate::launcher::LaunchError;

/// What a setting means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// As gangs need it, or merely good to know.
    Note,
    /// Jobs lose something by it.
    Warning,
    /// Gangs can't run, or are placed wrongly.
    Problem,
}

/// A setting, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The setting's name.
    pub setting: &'static str,
    /// Its value.
    pub value: String,
    /// How much it matters.
    pub weight: Weight,
    /// What it means, and what to do.
    pub text: String,
}

/// Asks Slurm in this environment for its settings and those of a partition; without one, of the default partition. Returns the
/// partition's name and what is to be said.
///
/// # Errors
/// If Slurm doesn't answer, or has no such partition.
pub fn advise(
    environment: BTreeMap<OsString, OsString>,
    partition: Option<&str>,
    grace: Duration,
) -> Result<(String, Vec<Advice>), LaunchError> {
    let programs = Programs::new(environment);
    let show = |words: &[&str]| {
        let arguments: Vec<String> = ["show"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        programs.run("scontrol", &arguments).map(|output| String::from_utf8_lossy(&output).into_owned())
    };
    let config = show(&["config"])?;
    let partitions = show(&[&["partition", "--oneliner"][..], partition.as_slice()].concat())?;
    let is_asked = |line: &&str| partition.is_some() || word(line, "Default") == Some("YES");
    let line = partitions.lines().filter(|line| !line.is_empty()).find(is_asked);
    let line = line.ok_or_else(|| LaunchError::NotUnderstood {
        program: "scontrol show partition",
        message: "no partition is the default: name one with --partition".to_owned(),
    })?;
    let name = word(line, "PartitionName").unwrap_or_default().to_owned();
    Ok((name, said(&config, line, grace)))
}

/// Reads `30 sec`.
fn seconds(value: &str) -> Option<Duration> {
    value.split_whitespace().next()?.parse().ok().map(Duration::from_secs)
}

/// Returns what these settings and those of the partition mean, most serious first. `grace`: the time that jobs get to save by
/// default.
fn said(config: &str, partition: &str, grace: Duration) -> Vec<Advice> {
    let mut said: Vec<Advice> = [
        private_data(config),
        kill_wait(config, grace),
        process_tracking(config),
        selection(config),
        preemption(config, partition, grace),
        node_timeout(config),
        accounting(config),
        state(partition),
        max_time(partition),
        exclusive(partition),
    ]
    .into_iter()
    .flatten()
    .collect();
    said.sort_by_key(|advice| std::cmp::Reverse(advice.weight));
    said
}

fn advice(setting: &'static str, value: &str, weight: Weight, text: impl Into<String>) -> Option<Advice> {
    Some(Advice { setting, value: value.to_owned(), weight, text: text.into() })
}

fn private_data(config: &str) -> Option<Advice> {
    let value = setting(config, "PrivateData")?;
    let hides = ["jobs", "nodes", "reservations", "all"].iter().any(|kind| value.split(',').any(|word| word == *kind));
    let text = "who isn't an operator sees no jobs, nodes or reservations of others, so nodes that they hold look free: make the user of \
                the control plane an operator (sacctmgr modify user NAME set adminlevel=operator)";
    if hides { advice("PrivateData", value, Weight::Problem, text) } else { None }
}

fn kill_wait(config: &str, grace: Duration) -> Option<Advice> {
    let value = setting(config, "KillWait")?;
    let wait = seconds(value)?;
    let (weight, text) = if wait < grace {
        let text = format!(
            "a job that Slurm ends itself, at a time limit say, has {} s to save, less than checkpoint.grace ({} s by default)",
            wait.as_secs(),
            grace.as_secs()
        );
        (Weight::Warning, text)
    } else {
        (Weight::Note, "a job that Slurm ends itself has this time to save".to_owned())
    };
    advice("KillWait", value, weight, text)
}

fn process_tracking(config: &str) -> Option<Advice> {
    let value = setting(config, "ProctrackType")?;
    let text = "processes that leave their session outlive their Slurm job, and may hold a GPU: use proctrack/cgroup";
    if value.ends_with("/cgroup") { None } else { advice("ProctrackType", value, Weight::Warning, text) }
}

fn selection(config: &str) -> Option<Advice> {
    let value = setting(config, "SelectType")?;
    let text = "Slurm gives whole nodes only: a gang of fewer accelerators than a node has holds all of them";
    if value.ends_with("/linear") { advice("SelectType", value, Weight::Warning, text) } else { None }
}

fn preemption(config: &str, partition: &str, grace: Duration) -> Option<Advice> {
    let kind = setting(config, "PreemptType").filter(|kind| !kind.ends_with("/none"))?;
    let value = word(partition, "GraceTime")?;
    let time = value.parse().ok().map(Duration::from_secs)?;
    let text = format!(
        "a gang that is preempted ({kind}) has this many seconds to save before it is killed; its checkpoint.grace is {} s by default",
        grace.as_secs()
    );
    let weight = if time < grace { Weight::Warning } else { Weight::Note };
    advice("GraceTime", value, weight, text)
}

fn node_timeout(config: &str) -> Option<Advice> {
    let value = setting(config, "SlurmdTimeout")?;
    let text = "Slurm keeps the job of a node that doesn't answer for so long; Gangline notices sooner, and lets the gang go on elsewhere";
    advice("SlurmdTimeout", value, Weight::Note, text)
}

fn accounting(config: &str) -> Option<Advice> {
    let value =
        setting(config, "AccountingStorageType").filter(|value| value.ends_with("/none") || *value == "(null)")?;
    let text = "there is no slurmdbd: limits of accounts aren't enforced, and sacct has no past to import or to compare bills with";
    advice("AccountingStorageType", value, Weight::Note, text)
}

fn state(partition: &str) -> Option<Advice> {
    let value = word(partition, "State").filter(|value| *value != "UP")?;
    advice("State", value, Weight::Problem, "the partition starts nothing: scontrol update partition=NAME state=up")
}

fn max_time(partition: &str) -> Option<Advice> {
    let value = word(partition, "MaxTime").filter(|value| duration(value).is_some())?;
    let text = "an attempt runs for so long at most; a longer job goes on from its last checkpoint in the next one";
    advice("MaxTime", value, Weight::Note, text)
}

fn exclusive(partition: &str) -> Option<Advice> {
    let value = word(partition, "OverSubscribe").filter(|value| value.starts_with("EXCLUSIVE"))?;
    let text = "each Slurm job gets whole nodes: a gang of fewer accelerators than a node has holds all of them";
    advice("OverSubscribe", value, Weight::Warning, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);
    /// In the form of Slurm 22.05.
    const GOOD: &str = "AccountingStorageType   = accounting_storage/slurmdbd\nKillWait                = 120 sec\n\
        PreemptType             = preempt/none\nPrivateData             = none\nProctrackType           = proctrack/cgroup\n\
        SelectType              = select/cons_tres\nSlurmdTimeout           = 300 sec\n";
    const PARTITION: &str = "PartitionName=gpu Default=YES GraceTime=0 MaxTime=UNLIMITED OverSubscribe=NO State=UP";

    fn names(config: &str, partition: &str, weight: Weight) -> Vec<&'static str> {
        let all = said(config, partition, GRACE);
        all.into_iter().filter(|advice| advice.weight == weight).map(|advice| advice.setting).collect()
    }

    #[test]
    fn settings_that_gangs_need_are_only_noted() {
        assert_eq!(names(GOOD, PARTITION, Weight::Note), ["KillWait", "SlurmdTimeout"]);
        assert_eq!(said(GOOD, PARTITION, GRACE).len(), 2);
        assert_eq!(said("", "", GRACE), []);
    }

    #[test]
    fn what_hides_others_and_what_cuts_a_save_short_is_told_first() {
        let bad = GOOD
            .replace("120 sec", "10 sec")
            .replace("PrivateData             = none", "PrivateData             = usage,jobs")
            .replace("proctrack/cgroup", "proctrack/linuxproc")
            .replace("select/cons_tres", "select/linear")
            .replace("preempt/none", "preempt/qos")
            .replace("accounting_storage/slurmdbd", "(null)");
        let partition = "PartitionName=gpu GraceTime=5 MaxTime=1-00:00:00 OverSubscribe=EXCLUSIVE State=DRAIN";
        assert_eq!(names(&bad, partition, Weight::Problem), ["PrivateData", "State"]);
        let warned = ["KillWait", "ProctrackType", "SelectType", "GraceTime", "OverSubscribe"];
        assert_eq!(names(&bad, partition, Weight::Warning), warned);
        assert_eq!(names(&bad, partition, Weight::Note), ["SlurmdTimeout", "AccountingStorageType", "MaxTime"]);
        let first = &said(&bad, partition, GRACE)[0];
        assert_eq!((first.setting, first.value.as_str()), ("PrivateData", "usage,jobs"));
    }
}
