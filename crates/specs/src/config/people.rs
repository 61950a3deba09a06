//! The table `[people]` of the configuration file: what the people cost who look after incidents.

use std::time::Duration;

use gangline_base::Money;
use serde::Deserialize;

use super::overheads::money;

/// The highest price of a person's hour: above any real one.
const PRICE_MAX: Money = Money::from_nano_dollars(10_000_000_000_000);
/// The most hours that an incident may take.
const HOURS_MAX: f64 = 1_000.0;

/// What people cost, and how long incidents keep them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct People {
    /// What an hour of a person costs.
    pub per_hour: Money,
    /// The time that a job takes that failed in the end.
    pub per_failed_job: Duration,
    /// The time that a node takes that was lost, or had faults of its own.
    pub per_node_fault: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeopleV1 {
    usd_per_hour: String,
    hours_per_failed_job: Option<f64>,
    hours_per_node_fault: Option<f64>,
}

impl PeopleV1 {
    pub(super) fn read(self) -> Result<People, String> {
        let time = |key: &str, hours: Option<f64>| match hours {
            None => Ok(Duration::ZERO),
            Some(hours) if (0.0..=HOURS_MAX).contains(&hours) => Ok(Duration::from_secs_f64(hours * 3_600.0)),
            Some(_) => Err(format!("`{key}` has to be from 0 to {HOURS_MAX}")),
        };
        let people = People {
            per_hour: money("usd_per_hour", &self.usd_per_hour, PRICE_MAX)?,
            per_failed_job: time("hours_per_failed_job", self.hours_per_failed_job)?,
            per_node_fault: time("hours_per_node_fault", self.hours_per_node_fault)?,
        };
        if people.per_failed_job.is_zero() && people.per_node_fault.is_zero() {
            return Err(
                "write how long an incident takes: `hours_per_failed_job`, `hours_per_node_fault` or both".to_owned()
            );
        }
        Ok(people)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn people_are_off_unless_the_file_says_what_they_cost() {
        let read =
            |text: &str| Config::parse(text).map(|config| config.billing.people).map_err(|error| error.to_string());
        assert_eq!(read(""), Ok(None));
        let people = People {
            per_hour: Money::from_nano_dollars(95_000_000_000),
            per_failed_job: Duration::from_mins(30),
            per_node_fault: Duration::ZERO,
        };
        assert_eq!(read("[people]\nusd_per_hour = '95'\nhours_per_failed_job = 0.5"), Ok(Some(people)));
        let refused = |rest: &str| read(&format!("[people]\nusd_per_hour = '95'\n{rest}")).expect_err("a refusal");
        assert!(refused("").ends_with(
            "people: write how long an incident takes: `hours_per_failed_job`, `hours_per_node_fault` or both"
        ));
        assert!(refused("hours_per_node_fault = -1").contains("`hours_per_node_fault` has to be from 0 to 1000"));
        assert!(
            read("[people]\nusd_per_hour = 'dear'\nhours_per_failed_job = 1")
                .is_err_and(|e| e.contains("`usd_per_hour`"))
        );
    }
}
