//! `runs compare`: runs side by side.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{Entry, Run, find, tag};
use super::{time, value};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// The longest value that is shown.
const WIDTH: usize = 32;

pub(super) fn run(
    client: &Client,
    experiments: &BTreeMap<String, String>,
    ids: &[String],
    is_all: bool,
    is_json: bool,
) -> Result<(), Failure> {
    let runs: Vec<Run> = ids.iter().map(|id| find(client, experiments, id)).collect::<Result<_, _>>()?;
    if is_json {
        return output::json(&runs);
    }
    output::print(&table(&runs, experiments, is_all))
}

fn table(runs: &[Run], experiments: &BTreeMap<String, String>, is_all: bool) -> String {
    let fact = |name: &str, of: &dyn Fn(&Run) -> String| {
        std::iter::once(name.to_owned()).chain(runs.iter().map(of)).collect::<Vec<String>>()
    };
    let mut rows = vec![
        fact("name", &|run| output::shorten(&run.info.run_name, WIDTH)),
        fact("experiment", &|run| experiments.get(&run.info.experiment_id).cloned().unwrap_or_default()),
        fact("status", &|run| run.info.status.to_lowercase()),
        fact("started", &|run| time(run.info.start_time)),
        fact("job", &|run| tag(&run.data, "gangline.job").unwrap_or("-").to_owned()),
    ];
    let params = |run: &Run, key: &str| valued(&run.data.params, key);
    for key in keys(runs.iter().flat_map(|run| run.data.params.iter().map(|param| &param.key))) {
        let row = fact(&key, &|run| params(run, &key));
        if is_all || row[1..].windows(2).any(|pair| pair[0] != pair[1]) {
            rows.push(row);
        }
    }
    for key in keys(runs.iter().flat_map(|run| run.data.metrics.iter().map(|metric| &metric.key))) {
        let latest = |run: &Run| run.data.metrics.iter().find(|metric| metric.key == key).map_or("-".to_owned(), value);
        rows.push(fact(&key, &latest));
    }
    let ids = runs.iter().map(|run| run.info.run_id.chars().take(super::ID_DIGITS).collect::<String>());
    let headings: Vec<String> = std::iter::once("RUN".to_owned()).chain(ids).collect();
    output::table(&headings.iter().map(String::as_str).collect::<Vec<_>>(), rows)
}

fn keys<'a>(all: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    all.cloned().collect()
}

fn valued(entries: &[Entry], key: &str) -> String {
    entries.iter().find(|entry| entry.key == key).map_or("-".to_owned(), |entry| output::shorten(&entry.value, WIDTH))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_parameters_are_left_out_unless_they_are_asked_for() {
        let run = |id: &str, lr: &str| -> Run {
            serde_json::from_value(json!({
                "info": {"run_id": id, "run_name": "r", "experiment_id": "1", "status": "FINISHED", "start_time": 0, "artifact_uri": ""},
                "data": {"params": [{"key": "lr", "value": lr}, {"key": "layers", "value": "12"}],
                         "metrics": [{"key": "loss", "value": 0.5, "step": 3}]},
            }))
            .expect("a run")
        };
        let runs = [run("aa", "0.1"), run("bb", "0.2")];
        let shown = table(&runs, &BTreeMap::new(), false);
        assert!(
            shown.contains("lr          0.1") && !shown.contains("layers") && shown.contains("loss        0.500000"),
            "{shown}"
        );
        assert!(table(&runs, &BTreeMap::new(), true).contains("layers      12"));
    }
}
