//! The queue that a script's `--partition`, `--account` or `--qos` leads to, by the control plane's
//! configuration (`[sbatch]`) or because a queue has that name.

use std::collections::{BTreeMap, BTreeSet};

use gangline_api as api;

/// The options of sbatch that lead to a queue.
const OPTIONS: [&str; 3] = ["partition", "account", "qos"];

/// The queues of a control plane, for scripts.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// The configured queues that take jobs.
    names: BTreeSet<String>,
    /// Queues by option and value, as `partition=gpu`.
    aliases: BTreeMap<String, String>,
    /// The queue of jobs that name none.
    default: Option<String>,
}

/// Where an option leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// To this queue.
    Queue(&'a str),
    /// To none; this says what happens instead.
    Unknown(String),
    /// It isn't about queues, or there are none.
    NoOption,
}

impl Queues {
    /// Reads a control plane's answer.
    pub(crate) fn of(list: &api::QueueList) -> Self {
        let configured = || list.queues.iter().filter(|queue| queue.weight.is_some());
        let parents: BTreeSet<&str> = configured().filter_map(|queue| queue.parent.as_deref()).collect();
        let leaves = configured().filter(|queue| !parents.contains(queue.name.as_str()));
        let aliases = list.queues.iter().flat_map(|queue| {
            queue.aliases.iter().map(|alias| (alias.clone(), queue.name.clone())).collect::<Vec<_>>()
        });
        Queues {
            names: leaves.map(|queue| queue.name.clone()).collect(),
            aliases: aliases.collect(),
            default: list.default.clone(),
        }
    }

    /// Returns where an option leads.
    pub(super) fn place_of(&self, name: &str, value: &str) -> Place<'_> {
        if !OPTIONS.contains(&name) || self.names.is_empty() {
            return Place::NoOption;
        }
        let alias = self.aliases.get(&format!("{name}={value}"));
        if let Some(queue) = alias.or_else(|| self.names.get(value)) {
            return Place::Queue(queue);
        }
        let known: Vec<String> = self.aliases.iter().map(|(alias, queue)| format!("--{alias} is {queue}")).collect();
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let known = if known.is_empty() { String::new() } else { format!("; {}", known.join(", ")) };
        let instead = self.default.as_ref().map(|queue| format!("; unless another option says, it goes to {queue}"));
        Place::Unknown(format!(
            "no queue stands for \"{value}\": queues are {}{known}{}",
            names.join(", "),
            instead.unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sbatch::{Cluster, Translated, translate};

    fn cluster() -> Cluster {
        let text = r#"{"default": "batch", "queues": [
            {"name": "all", "weight": 1},
            {"name": "batch", "parent": "all", "weight": 1, "aliases": ["qos=low"]},
            {"name": "research", "weight": 1, "aliases": ["account=ml", "partition=gpu"]},
            {"name": "gone"}
        ]}"#;
        let mut list: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        for queue in list["queues"].as_array_mut().expect("a list") {
            for (key, empty) in [("entitled", "{}"), ("held", "{}"), ("waiting", "[]"), ("running", "[]")] {
                queue[key] = serde_json::from_str(empty).expect("it is JSON");
            }
            (queue["accelerators_held"], queue["accelerators_wanted"]) = (0.into(), 0.into());
        }
        let list: api::QueueList = serde_json::from_value(list).expect("a list of queues");
        Cluster { kind: None, queues: Queues::of(&list) }
    }

    fn translated(lines: &str) -> Result<(Option<String>, Vec<String>), Vec<String>> {
        let Translated { job_file, notes } = translate(&format!("#!/bin/sh\n{lines}\ntrue\n"), "train", &cluster())?;
        let job: serde_json::Value = serde_json::from_str(&job_file).expect("it is JSON");
        Ok((job["queue"].as_str().map(ToOwned::to_owned), notes))
    }

    #[test]
    fn partitions_accounts_and_qos_lead_to_queues() {
        let check = |lines: &str, expected: Option<&str>| {
            let (queue, notes) = translated(lines).expect("it can be translated");
            assert_eq!((queue.as_deref(), notes.len()), (expected, 0), "{lines}: {notes:?}");
        };
        check("#SBATCH -p gpu", Some("research"));
        check("#SBATCH -A ml -p gpu", Some("research"));
        check("#SBATCH --qos=low", Some("batch"));
        check("#SBATCH --partition=batch", Some("batch"));
        check("#SBATCH -N 1", None);
    }

    #[test]
    fn an_option_that_leads_nowhere_names_the_choices() {
        let (queue, notes) = translated("#SBATCH --partition=debug").expect("it can be translated");
        assert_eq!(queue, None);
        assert_eq!(
            notes,
            [
                "line 2: --partition: no queue stands for \"debug\": queues are batch, research; --account=ml is research, --partition=gpu is research, --qos=low is batch; unless another option says, it goes to batch"
            ]
        );
    }

    #[test]
    fn options_that_lead_to_two_queues_are_refused() {
        let problems = translated("#SBATCH -p gpu\n#SBATCH -q low").expect_err("they contradict each other");
        assert_eq!(
            problems,
            [
                "line 3: --partition=gpu leads to queue research, but --qos=low to queue batch: name one with --set queue=batch"
            ]
        );
    }
}
