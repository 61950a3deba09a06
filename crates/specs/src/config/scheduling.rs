//! The tables `[scheduling]` and `[sbatch]` of the configuration file: how long a job may be passed by others,
//! and which queue a job goes to that names none.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::QueueName;
use gangline_orchestration::Configuration;
use serde::Deserialize;

use crate::jobfile::parse_duration;

/// The time after which a waiting job goes before all others, unless the file says otherwise; as PBS
/// Professional's for starving jobs (<https://2021.help.altair.com/2021.1.0/control/Chunk1626206211.htm>).
const AGEING_DEFAULT: Duration = Duration::from_hours(24);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulingV1 {
    /// The time after which a waiting job goes before all others; "off" if waiting wins no place.
    ageing: Option<String>,
    /// The queue of jobs that name none.
    default_queue: Option<QueueName>,
}

/// The queues that stand for what `#SBATCH` lines name.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SbatchV1 {
    #[serde(default)]
    partition: BTreeMap<String, QueueName>,
    #[serde(default)]
    account: BTreeMap<String, QueueName>,
    #[serde(default)]
    qos: BTreeMap<String, QueueName>,
}

impl SchedulingV1 {
    /// Completes a configuration with these rules.
    pub(super) fn read(self, sharing: &mut Configuration) -> Result<(), String> {
        sharing.ageing = match self.ageing.as_deref() {
            None => Some(AGEING_DEFAULT),
            Some("off") => None,
            Some(text) => Some(parse_duration(text).map_err(|message| format!("ageing {message}, or is \"off\""))?),
        };
        sharing.default_queue = self.default_queue;
        Ok(())
    }
}

impl SbatchV1 {
    /// Returns the queues by the option and its value, as `partition=gpu`.
    pub(super) fn read(self) -> BTreeMap<String, QueueName> {
        let options = [("partition", self.partition), ("account", self.account), ("qos", self.qos)];
        let named = |(option, values): (&str, BTreeMap<String, QueueName>)| {
            values.into_iter().map(|(value, queue)| (format!("{option}={value}"), queue)).collect::<Vec<_>>()
        };
        options.into_iter().flat_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::Config;

    const QUEUES: &str =
        "[[queue]]\nname = 'research'\n[[queue]]\nname = 'all'\n[[queue]]\nname = 'batch'\nparent = 'all'\n";

    #[test]
    fn jobs_age_in_a_day_unless_the_file_says_otherwise() {
        let ageing = |text: &str| Config::parse(text).expect("a sound file").sharing.ageing;
        assert_eq!(ageing(""), Some(Duration::from_hours(24)));
        assert_eq!(ageing("[scheduling]\nageing = '7d'"), Some(Duration::from_hours(168)));
        assert_eq!(ageing("[scheduling]\nageing = 'off'"), None);
    }

    #[test]
    fn queues_are_found_by_the_names_that_sbatch_has_for_them() {
        let text = format!(
            "{QUEUES}[scheduling]\ndefault_queue = 'batch'\n[sbatch]\npartition = {{ gpu = 'research' }}\nqos = {{ low = 'batch' }}"
        );
        let sharing = Config::parse(&text).expect("a sound file").sharing;
        assert_eq!(sharing.default_queue.as_ref().map(|queue| queue.as_str()), Some("batch"));
        let aliases: Vec<(&str, &str)> =
            sharing.aliases.iter().map(|(alias, queue)| (alias.as_str(), queue.as_str())).collect();
        assert_eq!(aliases, [("partition=gpu", "research"), ("qos=low", "batch")]);
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(&format!("{QUEUES}{text}")).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("[scheduling]\nageing = 'never'", "ageing");
        check("[scheduling]\nageing = 'never'", "or is \"off\"");
        check("[scheduling]\nageing = '10s'", "at least a minute");
        check("[scheduling]\nagein = '1d'", "agein");
        check("[scheduling]\ndefault_queue = 'reserch'", "scheduling.default_queue names \"reserch\"");
        check("[scheduling]\ndefault_queue = 'all'", "queues that take jobs: batch, research");
        check("[sbatch]\npartition = { gpu = 'gpu' }", "sbatch.partition=gpu names \"gpu\"");
        check("[sbatch]\nuser = { ann = 'batch' }", "user");
    }
}
