//! What a period will have cost at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api::{self as api, Time};
use gangline_base::{JobId, Timestamp};
use gangline_store::db;
use gangline_store::model::JobRecord;

use super::super::Views;
use super::By;

const DAY: Duration = Duration::from_secs(24 * 3_600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
const HOUR_SECONDS: f64 = 3_600.0;
/// Running jobs that are looked at.
const JOBS_MAX: usize = 1_000;

/// What groups spent in a recent time, and how long that time was.
struct Recent {
    nano_dollars: BTreeMap<String, i64>,
    hours: f64,
}

impl Views {
    /// Returns what the period will have cost: what was spent until `now`, and as much an hour as in the last day, and as in the last
    /// seven days; and what each running job will have cost with its last step.
    pub fn cost_forecast(&self, period: Period, by: By, now: Timestamp) -> Result<api::CostForecast, db::Error> {
        let report = self.cost_report(period, by, false, now)?;
        let recent = [self.recent(DAY, by, now)?, self.recent(WEEK, by, now)?];
        let left = period.to.max(now).since(now.max(period.from)).as_secs_f64() / HOUR_SECONDS;
        let spent: BTreeMap<&str, &api::CostGroup> =
            report.groups.iter().map(|group| (group.name.as_str(), group)).collect();
        let recently = recent.iter().flat_map(|recent| recent.nano_dollars.keys().map(String::as_str));
        let names: BTreeSet<&str> = spent.keys().copied().chain(recently).collect();
        let mut groups: Vec<api::ForecastGroup> =
            names.into_iter().map(|name| group(name, spent.get(name).copied(), &recent, left)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.spent_nano_dollars));
        let total = groups.iter().fold(api::ForecastGroup { name: "total".to_owned(), ..Default::default() }, sum);
        Ok(api::CostForecast {
            from: Time(period.from),
            now: Time(now),
            until: Time(period.to),
            by: by.name().to_owned(),
            groups,
            total,
            jobs: self.jobs_at_end(now)?,
        })
    }

    /// Returns what was spent in the time before `now`, or since nodes were first known if that is less.
    fn recent(&self, length: Duration, by: By, now: Timestamp) -> Result<Recent, db::Error> {
        let report = self.cost_report(Period { from: now - length, to: now }, by, false, now)?;
        let since = report.capacity_since.map_or(now - length, |since| since.0.max(now - length));
        let spent = report.groups.into_iter().map(|group| (group.name, group.cost_nano_dollars));
        Ok(Recent { nano_dollars: spent.collect(), hours: now.since(since.min(now)).as_secs_f64() / HOUR_SECONDS })
    }

    fn jobs_at_end(&self, now: Timestamp) -> Result<Vec<api::ForecastJob>, db::Error> {
        let is_running = |record: &JobRecord| record.last_attempt().is_some_and(|attempt| attempt.ended_at.is_none());
        let running: Vec<JobId> = self
            .live_records()?
            .iter()
            .filter(|record| is_running(record))
            .map(|record| record.id)
            .take(JOBS_MAX)
            .collect();
        let mut jobs = Vec::new();
        for id in running {
            let Some(cost) = self.job_cost(id, now)? else { continue };
            jobs.extend(cost.nano_dollars_at_end.map(|at_end_nano_dollars| api::ForecastJob {
                job: cost.job,
                name: cost.name,
                user: cost.user,
                queue: cost.queue,
                spent_nano_dollars: cost.total.cost_nano_dollars,
                at_end_nano_dollars,
            }));
        }
        jobs.sort_by_key(|job| std::cmp::Reverse(job.at_end_nano_dollars));
        Ok(jobs)
    }
}

/// Returns the forecast of a group, of which `spent` is known in the period and which has so many hours left.
fn group(name: &str, spent: Option<&api::CostGroup>, recent: &[Recent; 2], left: f64) -> api::ForecastGroup {
    let so_far = spent.map_or(0, |spent| spent.cost_nano_dollars);
    let [day, week] = recent.each_ref().map(|recent| recent.per_hour(name));
    let at_end = |per_hour: f64| so_far.saturating_add(whole(per_hour * left));
    api::ForecastGroup {
        name: name.to_owned(),
        spent_nano_dollars: so_far,
        nano_dollars_per_hour_of_day: whole(day),
        nano_dollars_per_hour_of_week: whole(week),
        at_end_by_day_nano_dollars: at_end(day),
        at_end_by_week_nano_dollars: at_end(week),
        unpriced_gpu_seconds: spent.map_or(0.0, |spent| spent.unpriced_gpu_seconds),
    }
}

fn sum(total: api::ForecastGroup, group: &api::ForecastGroup) -> api::ForecastGroup {
    let add = i64::saturating_add;
    api::ForecastGroup {
        name: total.name,
        spent_nano_dollars: add(total.spent_nano_dollars, group.spent_nano_dollars),
        nano_dollars_per_hour_of_day: add(total.nano_dollars_per_hour_of_day, group.nano_dollars_per_hour_of_day),
        nano_dollars_per_hour_of_week: add(total.nano_dollars_per_hour_of_week, group.nano_dollars_per_hour_of_week),
        at_end_by_day_nano_dollars: add(total.at_end_by_day_nano_dollars, group.at_end_by_day_nano_dollars),
        at_end_by_week_nano_dollars: add(total.at_end_by_week_nano_dollars, group.at_end_by_week_nano_dollars),
        unpriced_gpu_seconds: total.unpriced_gpu_seconds + group.unpriced_gpu_seconds,
    }
}

impl Recent {
    #[expect(clippy::cast_precision_loss, reason = "a forecast")]
    fn per_hour(&self, name: &str) -> f64 {
        let spent = self.nano_dollars.get(name).copied().unwrap_or(0);
        if self.hours > 0.0 { spent as f64 / self.hours } else { 0.0 }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a forecast")]
fn whole(nano_dollars: f64) -> i64 {
    nano_dollars.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_period_costs_as_much_an_hour_as_lately() {
        let recent = |hours, spent: &[(&str, i64)]| Recent {
            nano_dollars: spent.iter().map(|(name, spent)| ((*name).to_owned(), *spent)).collect(),
            hours,
        };
        let recent = [recent(24.0, &[("nlp", 240), ("vision", 48)]), recent(168.0, &[("nlp", 3_360)])];
        let nlp = group("nlp", None, &recent, 10.0);
        assert_eq!((nlp.nano_dollars_per_hour_of_day, nlp.nano_dollars_per_hour_of_week), (10, 20));
        assert_eq!(
            (nlp.at_end_by_day_nano_dollars, nlp.at_end_by_week_nano_dollars),
            (100, 200),
            "nothing was spent yet"
        );
        let vision = group("vision", None, &recent, 10.0);
        let total = [nlp, vision].iter().fold(api::ForecastGroup::default(), sum);
        assert_eq!((total.at_end_by_day_nano_dollars, total.at_end_by_week_nano_dollars), (120, 200));
        let new = [
            Recent { nano_dollars: BTreeMap::new(), hours: 0.0 },
            Recent { nano_dollars: BTreeMap::new(), hours: 0.0 },
        ];
        assert_eq!(group("nlp", None, &new, 10.0).at_end_by_day_nano_dollars, 0, "nothing is known yet");
    }
}
