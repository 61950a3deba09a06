//! Metrics: their latest values and their histories.

use std::collections::BTreeMap;

use gangline_tracking::{Entry, Metric, ModelMetric, Point, Refusal, RunInfo, UnixMillis, limits, sample};
use rusqlite::{OptionalExtension, Row, params};

use super::points::{PART_POINTS_MAX, pack, unpack};
use super::{Failure, Reading, Writing};

/// A value of a metric as it was logged.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// The value with its key.
    pub metric: Metric,
    /// The logged model that it was measured with.
    pub model: Option<String>,
    /// The name of the dataset that it was measured on.
    pub dataset_name: Option<String>,
    /// That dataset's digest.
    pub dataset_digest: Option<String>,
}

/// What is logged of a run at one time.
#[derive(Clone, Debug, Default)]
pub struct MetricBatch {
    /// Metrics.
    pub metrics: Vec<Logged>,
    /// Parameters.
    pub params: Vec<Entry>,
    /// Tags.
    pub tags: Vec<Entry>,
}

/// The latest point of a metric, and the part that the next points go into.
struct Latest {
    point: Point,
    part: i64,
}

impl MetricBatch {
    /// Checks keys, lengths and counts.
    ///
    /// # Errors
    /// Names the first thing that can't be kept.
    fn check(self) -> Result<MetricBatch, Refusal> {
        let MetricBatch { metrics, params, tags } = self;
        limits::check_count("metrics", limits::METRICS_MAX, metrics.len())?;
        limits::check_count("params", limits::ENTRIES_MAX, params.len())?;
        limits::check_count("tags", limits::ENTRIES_MAX, tags.len())?;
        let all = metrics.len() + params.len() + tags.len();
        limits::check_count("metrics, params, and tags", limits::BATCH_MAX, all)?;
        for (index, logged) in metrics.iter().enumerate() {
            check_metric(&logged.metric, &format!("metrics[{index}]."))?;
        }
        let params = limits::check_params(params, |index| format!("params[{index}].key"))?;
        let tags = limits::check_tags(tags, |index| format!("tags[{index}].key"))?;
        Ok(MetricBatch { metrics, params, tags })
    }
}

fn check_metric(metric: &Metric, path: &str) -> Result<(), Refusal> {
    limits::check_key(&format!("{path}name"), &metric.key)?;
    if metric.point.at.0 < 0 {
        let Metric { key, point } = metric;
        return Err(Refusal::invalid(format!(
            "Invalid value {} for parameter '{path}timestamp' supplied: metric '{key}' (value={}). Timestamp must be a \
             nonnegative long (64-bit integer) ",
            point.at.0, point.value
        )));
    }
    Ok(())
}

impl Reading<'_> {
    /// Returns the latest value of each metric of a run, by key.
    pub(super) fn latest_metrics(&self, run: i64) -> Result<Vec<Metric>, Failure> {
        let sql = "SELECT key, value, step, at FROM metric WHERE owner = ?1 ORDER BY key";
        let mut statement = self.0.prepare_cached(sql)?;
        let metric = |row: &Row<'_>| Ok(Metric { key: row.get(0)?, point: point(row, 1)? });
        Ok(statement.query_map([run], metric)?.collect::<Result<_, _>>()?)
    }

    /// Returns the history of a metric by time, without points that were logged twice. There is none of a key that wasn't
    /// logged, or of a run that doesn't exist, as with MLflow.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn metric_history(&self, run: &str, key: &str) -> Result<Vec<Point>, Failure> {
        let mut points = self.points(run, key)?;
        points.sort_by(Point::by_time);
        points.dedup_by(|one, other| one.by_time(other).is_eq());
        Ok(points)
    }

    /// Returns at most `count_max` points of a metric by step, evenly spread, those within `steps`.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn metric_curve(
        &self,
        run: &str,
        key: &str,
        steps: Option<(i64, i64)>,
        count_max: usize,
    ) -> Result<Vec<Point>, Failure> {
        let mut points = self.points(run, key)?;
        if let Some((first, last)) = steps {
            points.retain(|point| (first..=last).contains(&point.step));
        }
        if !points.is_sorted_by(|one, other| one.by_step(other).is_le()) {
            points.sort_by(Point::by_step);
        }
        points.dedup_by(|one, other| one.by_step(other).is_eq());
        Ok(sample(points.len(), count_max).into_iter().filter_map(|index| points.get(index).copied()).collect())
    }

    fn points(&self, run: &str, key: &str) -> Result<Vec<Point>, Failure> {
        let sql = "SELECT p.part, p.points FROM run r JOIN metric_part p ON p.run = r.id AND p.key = ?2
                   WHERE r.uuid = ?1 ORDER BY p.part";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut rows = statement.query(params![run, key])?;
        let mut points = Vec::new();
        while let Some(row) = rows.next()? {
            let part: i64 = row.get(0)?;
            let damaged = || Failure::Store(format!("part {part} of metric {key} of run {run} is damaged"));
            points.extend(unpack(row.get_ref(1)?.as_blob().unwrap_or_default()).ok_or_else(damaged)?);
        }
        Ok(points)
    }
}

impl Writing<'_> {
    /// Logs one metric.
    ///
    /// # Errors
    /// If there is no such run, it is deleted, or the metric can't be kept.
    pub fn log_metric(&self, run: &str, logged: Logged) -> Result<(), Failure> {
        check_metric(&logged.metric, "")?;
        let (row, info) = self.reading().active_run(run)?;
        self.write_metrics(row, &info, vec![logged])
    }

    /// Logs one parameter.
    ///
    /// # Errors
    /// If there is no such run, it is deleted, or the parameter has another value.
    pub fn log_param(&self, run: &str, param: Entry) -> Result<(), Failure> {
        let params = limits::check_params(vec![param], |_| "key".into())?;
        let (row, _) = self.reading().active_run(run)?;
        self.write_params(run, row, &params)
    }

    /// Logs a batch: all of it or nothing.
    ///
    /// # Errors
    /// If there is no such run, it is deleted, or something of the batch can't be kept.
    pub fn log_batch(&self, run: &str, batch: MetricBatch) -> Result<(), Failure> {
        let MetricBatch { metrics, params, tags } = batch.check()?;
        let (row, info) = self.reading().active_run(run)?;
        self.write_params(run, row, &params)?;
        self.write_metrics(row, &info, metrics)?;
        self.write_run_tags(row, tags)
    }

    pub(super) fn write_metrics(&self, row: i64, info: &RunInfo, metrics: Vec<Logged>) -> Result<(), Failure> {
        let mut by_key: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        for Logged { metric, model, dataset_name, dataset_digest } in metrics {
            let point = metric.point.kept();
            if let Some(model) = model {
                let (key, run) = (metric.key.clone(), info.id.clone());
                self.write_model_metric(&model, &ModelMetric { key, point, run, dataset_name, dataset_digest })?;
            }
            by_key.entry(metric.key).or_default().push(point);
        }
        by_key.into_iter().try_for_each(|(key, points)| self.append(row, &key, &points))
    }

    /// Appends points to a metric's history and keeps its latest value.
    fn append(&self, run: i64, key: &str, points: &[Point]) -> Result<(), Failure> {
        let latest = self.latest(run, key)?;
        let mut part = latest.as_ref().map_or(0, |latest| latest.part);
        let mut kept = match &latest {
            Some(_) => self.part(run, key, part)?,
            None => Vec::new(),
        };
        let mut newest = latest.map(|latest| latest.point);
        for point in points {
            if kept.len() >= PART_POINTS_MAX {
                self.write_part(run, key, part, &kept)?;
                kept.clear();
                part += 1;
            }
            kept.push(*point);
            if newest.is_none_or(|newest| point.is_after(&newest)) {
                newest = Some(*point);
            }
        }
        self.write_part(run, key, part, &kept)?;
        let Some(newest) = newest else { return Ok(()) };
        let sql = "INSERT OR REPLACE INTO metric (owner, key, value, step, at, part) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.0.prepare_cached(sql)?.execute(params![run, key, newest.value, newest.step, newest.at.0, part])?;
        Ok(())
    }

    fn latest(&self, run: i64, key: &str) -> Result<Option<Latest>, Failure> {
        let sql = "SELECT value, step, at, part FROM metric WHERE owner = ?1 AND key = ?2";
        let latest = |row: &Row<'_>| Ok(Latest { point: point(row, 0)?, part: row.get(3)? });
        Ok(self.0.prepare_cached(sql)?.query_row(params![run, key], latest).optional()?)
    }

    fn part(&self, run: i64, key: &str, part: i64) -> Result<Vec<Point>, Failure> {
        let sql = "SELECT points FROM metric_part WHERE run = ?1 AND key = ?2 AND part = ?3";
        let mut statement = self.0.prepare_cached(sql)?;
        let packed: Vec<u8> = statement.query_row(params![run, key, part], |row| row.get(0))?;
        unpack(&packed).ok_or_else(|| Failure::Store(format!("part {part} of metric {key} is damaged")))
    }

    fn write_part(&self, run: i64, key: &str, part: i64, points: &[Point]) -> Result<(), Failure> {
        let sql = "INSERT OR REPLACE INTO metric_part (run, key, part, points) VALUES (?1, ?2, ?3, ?4)";
        self.0.prepare_cached(sql)?.execute(params![run, key, part, pack(points)])?;
        Ok(())
    }
}

/// Reads a point whose value, step and time are in three columns from `first`.
pub(super) fn point(row: &Row<'_>, first: usize) -> rusqlite::Result<Point> {
    let value: Option<f64> = row.get(first)?;
    Ok(Point { value: value.unwrap_or(f64::NAN), step: row.get(first + 1)?, at: UnixMillis(row.get(first + 2)?) })
}
