//! Reads the SQLite database of an MLflow server (3.x), whose tables are described by
//! <https://github.com/mlflow/mlflow/blob/master/mlflow/store/tracking/dbmodels/models.py>. Nothing is written.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row};

use super::Failure;

/// The points of metrics by key: step, time, value.
type Histories = BTreeMap<String, Vec<(i64, i64, f64)>>;

/// A run of an MLflow database. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowRun {
    /// Its id.
    pub id: String,
    /// The name of its experiment.
    pub experiment: String,
    /// Its name.
    pub name: String,
    /// Who ran it.
    pub user: String,
    /// RUNNING, SCHEDULED, FINISHED, FAILED or KILLED.
    pub status: String,
    /// When it started.
    pub start: u64,
    /// When it ended.
    pub end: Option<u64>,
    /// Parameters by key.
    pub params: BTreeMap<String, String>,
    /// Tags by key.
    pub tags: BTreeMap<String, String>,
    /// Points by key: step, time, value.
    pub metrics: BTreeMap<String, Vec<(i64, i64, f64)>>,
    /// The datasets that it read, each with its tags.
    pub inputs: Vec<MlflowInput>,
}

/// A dataset that a run read: what it is by column, and its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MlflowInput {
    /// name, digest, source_type, source, schema and profile, as far as they are set.
    pub dataset: BTreeMap<String, String>,
    /// Tags by key.
    pub tags: BTreeMap<String, String>,
}

/// Hands over the runs in use, oldest first.
///
/// # Errors
/// If the file isn't such a database, or can't be read; the outer error is that of `take`.
pub fn read_mlflow_database<E>(
    path: &Path,
    mut take: impl FnMut(MlflowRun) -> Result<(), E>,
) -> Result<Result<(), E>, Failure> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut statement = connection.prepare(
        "SELECT r.run_uuid, e.name, r.name, r.user_id, r.status, r.start_time, r.end_time
         FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id
         WHERE r.lifecycle_stage = 'active' AND e.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Err(error) = take(whole(&connection, row)?) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

fn whole(connection: &Connection, row: &Row<'_>) -> Result<MlflowRun, Failure> {
    let id: String = row.get(0)?;
    let text = |at: usize| Ok::<_, Failure>(row.get::<_, Option<String>>(at)?.unwrap_or_default());
    Ok(MlflowRun {
        experiment: text(1)?,
        name: text(2)?,
        user: text(3)?,
        status: text(4)?,
        start: millis(row.get(5)?).unwrap_or_default(),
        end: millis(row.get(6)?),
        params: pairs(connection, "SELECT key, value FROM params WHERE run_uuid = ?1", &id)?,
        tags: pairs(connection, "SELECT key, value FROM tags WHERE run_uuid = ?1", &id)?,
        metrics: metrics(connection, &id)?,
        inputs: inputs(connection, &id)?,
        id,
    })
}

fn millis(found: Option<i64>) -> Option<u64> {
    found.and_then(|millis| u64::try_from(millis).ok())
}

fn pairs(connection: &Connection, sql: &str, id: &str) -> Result<BTreeMap<String, String>, Failure> {
    let pair = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default()));
    Ok(connection.prepare_cached(sql)?.query_map([id], pair)?.collect::<Result<_, _>>()?)
}

fn metrics(connection: &Connection, id: &str) -> Result<Histories, Failure> {
    let sql =
        "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ?1 ORDER BY key, timestamp, step";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id])?;
    let mut metrics = Histories::new();
    while let Some(row) = rows.next()? {
        let value = if row.get(4)? { f64::NAN } else { row.get(3)? };
        metrics.entry(row.get(0)?).or_default().push((row.get(1)?, row.get(2)?, value));
    }
    Ok(metrics)
}

fn inputs(connection: &Connection, id: &str) -> Result<Vec<MlflowInput>, Failure> {
    let sql = "SELECT i.input_uuid, d.name, d.digest, d.dataset_source_type, d.dataset_source, d.dataset_schema, d.dataset_profile
               FROM inputs i JOIN datasets d ON d.dataset_uuid = i.source_id
               WHERE i.destination_type = 'RUN' AND i.source_type = 'DATASET' AND i.destination_id = ?1 ORDER BY i.input_uuid";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id])?;
    let mut inputs = Vec::new();
    while let Some(row) = rows.next()? {
        let mut dataset = BTreeMap::new();
        for (at, name) in (1..).zip(["name", "digest", "source_type", "source", "schema", "profile"]) {
            if let Some(value) = row.get::<_, Option<String>>(at)? {
                dataset.insert(name.to_owned(), value);
            }
        }
        let input: String = row.get(0)?;
        let tags = pairs(connection, "SELECT name, value FROM input_tags WHERE input_uuid = ?1", &input)?;
        inputs.push(MlflowInput { dataset, tags });
    }
    Ok(inputs)
}
