//! Runs of an MLflow server's SQLite database.

use std::collections::BTreeMap;
use std::path::Path;

use gangline_base::with_causes;
use gangline_store::tracking::{MlflowInput, MlflowRun, read_mlflow_database};
use serde_json::{Value, json};

use super::run::{ImportedRun, Point, VERSION};
use crate::failure::Failure;

/// Returns the file that a URL names after its scheme: a path, or `///` and a path, as SQLAlchemy writes it
/// (<https://docs.sqlalchemy.org/en/20/core/engines.html#sqlite>).
pub(super) fn file_of(rest: &str) -> &Path {
    Path::new(rest.strip_prefix("///").unwrap_or(rest))
}

/// Hands over the runs of a database, oldest first.
pub(super) fn each(path: &Path, mut take: impl FnMut(ImportedRun) -> Result<(), Failure>) -> Result<(), Failure> {
    let unreadable = |error| {
        let message = format!("{} can't be read as MLflow's database: {}", path.display(), with_causes(&error));
        Failure::local(message, "name the file of mlflow server's --backend-store-uri, as in sqlite:mlflow.db")
    };
    if !path.is_file() {
        return Err(Failure::local(format!("there is no file {}", path.display()), ""));
    }
    read_mlflow_database(path, |run| take(imported(run))).map_err(unreadable)?
}

fn imported(run: MlflowRun) -> ImportedRun {
    let point = |(step, at, value)| Point::of(step, at, value);
    let points = |(key, points): (String, Vec<_>)| (key, points.into_iter().map(point).collect());
    ImportedRun {
        version: VERSION,
        id: run.id,
        experiment: run.experiment,
        name: run.name,
        user: run.user,
        status: run.status,
        start_time: run.start,
        end_time: run.end,
        params: run.params,
        tags: run.tags,
        metrics: run.metrics.into_iter().map(points).collect(),
        inputs: run.inputs.into_iter().map(input).collect(),
    }
}

fn input(MlflowInput { dataset, tags }: MlflowInput) -> Value {
    let pairs = |tags: BTreeMap<String, String>| -> Vec<Value> {
        tags.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
    };
    json!({"dataset": dataset, "tags": pairs(tags)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_named_by_a_path_or_as_sqlalchemy_does() {
        for (rest, file) in [("a.db", "a.db"), ("/b/a.db", "/b/a.db"), ("///a.db", "a.db"), ("////b/a.db", "/b/a.db")] {
            assert_eq!(file_of(rest), Path::new(file), "{rest}");
        }
    }
}
