//! Writes runs into the control plane, each whole or marked as unfinished, and counts what is there afterwards.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::run::{ImportedRun, Point};
use crate::client::Client;
use crate::failure::Failure;
use crate::runs::wire::{Found, Run, experiments, tag};

/// The tag that names where a run comes from.
const SOURCE: &str = "gangline.imported";
/// The tag of a run of which everything is here.
const WHOLE: &str = "gangline.imported_whole";
/// The most metrics of a request.
const METRICS: usize = 1000;
/// The most parameters or tags of a request.
const ENTRIES: usize = 100;

/// The control plane, and what came of the import so far.
pub(super) struct Sink<'a> {
    client: &'a Client,
    /// Ids of experiments by name.
    experiments: BTreeMap<String, String>,
    /// Runs that were imported.
    pub(super) imported: u64,
    /// Runs that were here already.
    pub(super) known: u64,
    /// Points of metrics of imported runs.
    pub(super) points: usize,
    /// Parameters of imported runs.
    pub(super) params: usize,
    /// Runs that aren't here whole, each with the reason.
    pub(super) problems: Vec<String>,
}

impl<'a> Sink<'a> {
    pub(super) fn into(client: &'a Client) -> Result<Sink<'a>, Failure> {
        let experiments = experiments(client)?.into_iter().map(|(id, name)| (name, id)).collect();
        Ok(Sink { client, experiments, imported: 0, known: 0, points: 0, params: 0, problems: Vec::new() })
    }

    /// Imports a run, unless it is here whole.
    ///
    /// # Errors
    /// If the control plane doesn't answer. A run that it refuses is a problem of its own.
    pub(super) fn take(&mut self, run: &ImportedRun) -> Result<(), Failure> {
        match self.try_take(run) {
            Ok(()) => Ok(()),
            Err(failure @ (Failure::Unreachable { .. } | Failure::Untrusted { .. })) => Err(failure),
            Err(failure) => {
                self.problems.push(format!("run {} ({}): {}", run.id, run.name, failure.detail().message));
                Ok(())
            }
        }
    }

    fn try_take(&mut self, run: &ImportedRun) -> Result<(), Failure> {
        let experiment = self.experiment(&run.experiment)?;
        // A filter has no way to write a quote.
        let source = format!("run:{}", run.id).replace('\'', "");
        let filter = format!("tags.`{SOURCE}` = '{source}'");
        let earlier: Found =
            self.client.track("runs/search", &json!({"experiment_ids": [experiment], "filter": filter}))?;
        for one in &earlier.runs {
            if tag(&one.data, WHOLE).is_some() {
                self.known += 1;
                return Ok(());
            }
            // A run that was cut off is begun anew.
            let _: Value = self.client.track("runs/delete", &json!({"run_id": one.info.run_id}))?;
        }
        let id = self.write(run, &experiment, &source)?;
        self.count(run, &id)?;
        let _: Value = self.client.track("runs/set-tag", &json!({"run_id": id, "key": WHOLE, "value": "true"}))?;
        self.imported += 1;
        self.points += run.points();
        self.params += run.params.len();
        Ok(())
    }

    /// Returns the id of an experiment, which is made if there is none of this name.
    fn experiment(&mut self, name: &str) -> Result<String, Failure> {
        if let Some(id) = self.experiments.get(name) {
            return Ok(id.clone());
        }
        let made: Value = self.client.track("experiments/create", &json!({"name": name}))?;
        let id = made["experiment_id"].as_str().unwrap_or_default().to_owned();
        self.experiments.insert(name.to_owned(), id.clone());
        Ok(id)
    }

    /// Writes a run, and returns its id.
    fn write(&self, run: &ImportedRun, experiment: &str, source: &str) -> Result<String, Failure> {
        let tags: Vec<Value> = run.tags.iter().filter(|(key, _)| *key != WHOLE && *key != SOURCE).map(entry).collect();
        let made: Value = self.client.track(
            "runs/create",
            &json!({"experiment_id": experiment, "run_name": run.name, "user_id": run.user, "start_time": run.start_time,
                "tags": [{"key": SOURCE, "value": source}]}),
        )?;
        let id = made["run"]["info"]["run_id"].as_str().unwrap_or_default().to_owned();
        let log = |what: &str, batch: &[Value]| -> Result<(), Failure> {
            let _: Value = self.client.track("runs/log-batch", &json!({"run_id": id, what: batch}))?;
            Ok(())
        };
        let params: Vec<Value> = run.params.iter().map(entry).collect();
        params.chunks(ENTRIES).try_for_each(|batch| log("params", batch))?;
        tags.chunks(ENTRIES).try_for_each(|batch| log("tags", batch))?;
        let metric = |key: &str, Point(step, at, value): &Point| json!({"key": key, "value": value, "timestamp": at, "step": step});
        let metrics: Vec<Value> =
            run.metrics.iter().flat_map(|(key, points)| points.iter().map(move |point| metric(key, point))).collect();
        metrics.chunks(METRICS).try_for_each(|batch| log("metrics", batch))?;
        if !run.inputs.is_empty() {
            let _: Value = self.client.track("runs/log-inputs", &json!({"run_id": id, "datasets": run.inputs}))?;
        }
        let end = json!({"run_id": id, "status": run.status, "end_time": run.end_time});
        let _: Value = self.client.track("runs/update", &end)?;
        Ok(id)
    }

    /// Compares what is here of a run with what was to be imported.
    fn count(&self, run: &ImportedRun, id: &str) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Shown {
            run: Run,
        }
        let shown: Shown = self.client.tracked_by("runs/get", &[("run_id", id)])?;
        let here = ImportedRun::of(self.client, &run.experiment, shown.run)?;
        let counts = [
            ("parameters", run.params.len(), here.params.len()),
            ("metrics", run.metrics.len(), here.metrics.len()),
            ("points of metrics", run.points(), here.points()),
            ("datasets", run.inputs.len(), here.inputs.len()),
        ];
        match counts.into_iter().find(|(_, there, here)| there != here) {
            None => Ok(()),
            Some((what, there, here)) => Err(Failure::local(format!("{there} {what} there, {here} here"), "")),
        }
    }
}

fn entry((key, value): (&String, &String)) -> Value {
    json!({"key": key, "value": value})
}
