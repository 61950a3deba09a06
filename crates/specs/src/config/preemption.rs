//! The table `[preemption]` of the configuration file: when running jobs are stopped for waiting ones.

use std::time::Duration;

use gangline_orchestration::PreemptionRules;
use gangline_orchestration::RestartCosts;
use serde::Deserialize;

use crate::jobfile::parse_duration;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreemptionV1 {
    /// A queue may stop jobs of others to get what it is entitled to.
    reclaim: Option<bool>,
    /// Within a queue, a job of higher priority may stop one of lower priority.
    by_priority: Option<bool>,
    /// Within a queue and a priority, a job that has run for long may be stopped for one that is expected to
    /// be short.
    share_time: Option<bool>,
    /// Jobs on part of a node may be moved to make room for another.
    consolidate: Option<bool>,
    /// The time that a job runs before it may be stopped.
    min_runtime: Option<String>,
    /// The time that a job needs to save when asked to.
    save: Option<String>,
    /// The time until a stopped job has devices again.
    requeue: Option<String>,
    /// The time that a job needs to load its checkpoint.
    restore: Option<String>,
}

impl PreemptionV1 {
    pub(super) fn read(self) -> Result<PreemptionRules, String> {
        let default = PreemptionRules::default();
        let time = |name: &str, text: Option<String>, default: Duration| match text {
            Some(text) => parse_duration(&text).map_err(|message| format!("{name} {message}")),
            None => Ok(default),
        };
        Ok(PreemptionRules {
            reclaim: self.reclaim.unwrap_or(default.reclaim),
            by_priority: self.by_priority.unwrap_or(default.by_priority),
            share_time: self.share_time.unwrap_or(default.share_time),
            consolidate: self.consolidate.unwrap_or(default.consolidate),
            runtime_min: time("min_runtime", self.min_runtime, default.runtime_min)?,
            restart: RestartCosts {
                save: time("save", self.save, default.restart.save)?,
                requeue: time("requeue", self.requeue, default.restart.requeue)?,
                restore: time("restore", self.restore, default.restart.restore)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gangline_orchestration::PreemptionRules;

    use crate::config::Config;

    #[test]
    fn rules_that_are_not_named_keep_their_defaults() {
        let rules = |text: &str| Config::parse(text).expect("a sound file").sharing.preemption;
        assert_eq!(rules(""), PreemptionRules::default());
        let some = rules("[preemption]\nmin_runtime = '1h30m'\nby_priority = false\nconsolidate = true");
        let expected = PreemptionRules {
            by_priority: false,
            consolidate: true,
            runtime_min: Duration::from_mins(90),
            ..PreemptionRules::default()
        };
        assert_eq!(some, expected);
    }

    #[test]
    fn a_bad_rule_is_named() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("[preemption]\nmin_runtime = '5'", "preemption: min_runtime has no unit");
        check("[preemption]\nrestore = '-5s'", "restore is negative");
        check("[preemption]\nmin_runtme = '5m'", "min_runtme");
    }
}
