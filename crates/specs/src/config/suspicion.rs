//! The table `[suspicion]` of the configuration file: when faults make a node suspect. Missing keys get
//! defaults.

use std::num::NonZeroU32;
use std::time::Duration;

use gangline_orchestration::HealthPolicy;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuspicionV1 {
    /// 0 means never.
    faults: Option<u32>,
    half_life_hours: Option<NonZeroU32>,
}

impl From<SuspicionV1> for Option<HealthPolicy> {
    fn from(written: SuspicionV1) -> Self {
        let default = HealthPolicy::DEFAULT;
        let half_life =
            written.half_life_hours.map_or(default.half_life, |hours| Duration::from_hours(u64::from(hours.get())));
        let suspect_at = NonZeroU32::new(written.faults.unwrap_or(default.suspect_at.get()))?;
        Some(HealthPolicy { half_life, suspect_at })
    }
}

#[cfg(test)]
mod tests {
    use gangline_orchestration::HealthPolicy;

    use crate::config::Config;

    #[test]
    fn suspicion_has_defaults_and_can_be_switched_off() {
        let read = |text: &str| Config::parse(text).expect("a sound file").sharing.health;
        assert_eq!(read(""), Some(HealthPolicy::DEFAULT));
        assert_eq!(read("[suspicion]\nfaults = 0"), None);
        let own = read("[suspicion]\nfaults = 5\nhalf_life_hours = 12").expect("it is on");
        assert_eq!((own.suspect_at.get(), own.half_life.as_secs()), (5, 12 * 3_600));
        let refused = Config::parse("[suspicion]\nhalf_life_hours = 0").expect_err("a refusal").to_string();
        assert!(refused.contains("nonzero"), "{refused}");
    }
}
