//! What MLflow's API says of runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;

/// The most experiments that are listed over.
const EXPERIMENTS_MAX: u32 = 10_000;

#[derive(Deserialize)]
pub(super) struct Experiments {
    #[serde(default)]
    pub(super) experiments: Vec<Experiment>,
    #[serde(default)]
    pub(super) next_page_token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Experiment {
    pub(super) experiment_id: String,
    pub(super) name: String,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Found {
    #[serde(default)]
    pub(super) runs: Vec<Run>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next_page_token: Option<String>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Run {
    pub(super) info: Info,
    #[serde(default)]
    pub(super) data: Data,
    #[serde(default, skip_serializing_if = "Inputs::is_empty")]
    pub(super) inputs: Inputs,
}

/// What a run read.
#[derive(Default, Deserialize, Serialize)]
pub(super) struct Inputs {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) dataset_inputs: Vec<serde_json::Value>,
}

impl Inputs {
    fn is_empty(&self) -> bool {
        self.dataset_inputs.is_empty()
    }
}

#[derive(Deserialize, Serialize)]
pub(super) struct Info {
    pub(super) run_id: String,
    pub(super) run_name: String,
    pub(super) experiment_id: String,
    #[serde(default)]
    pub(super) user_id: String,
    pub(super) status: String,
    pub(super) start_time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end_time: Option<u64>,
    pub(super) artifact_uri: String,
}

#[derive(Default, Deserialize, Serialize)]
pub(super) struct Data {
    #[serde(default)]
    pub(super) metrics: Vec<Metric>,
    #[serde(default)]
    pub(super) params: Vec<Entry>,
    #[serde(default)]
    pub(super) tags: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Metric {
    pub(super) key: String,
    /// A number, or the name of one that JSON has not.
    pub(super) value: serde_json::Value,
    pub(super) step: i64,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
}

/// Returns the names of experiments by their ids.
pub(super) fn experiments(client: &Client) -> Result<BTreeMap<String, String>, Failure> {
    let found: Experiments = client.track("experiments/search", &json!({"max_results": EXPERIMENTS_MAX}))?;
    Ok(found.experiments.into_iter().map(|one| (one.experiment_id, one.name)).collect())
}

/// Finds a run by its id, or by the first digits of one.
pub(super) fn find(client: &Client, experiments: &BTreeMap<String, String>, id: &str) -> Result<Run, Failure> {
    let ids: Vec<&String> = experiments.keys().collect();
    let like = id.replace(['\'', '%', '_', '\\'], "");
    let search = json!({"experiment_ids": ids, "filter": format!("run_id LIKE '{like}%'"), "max_results": 2, "run_view_type": "ALL"});
    let mut found: Found = client.track("runs/search", &search)?;
    match (found.runs.pop(), found.runs.pop()) {
        (Some(run), None) => Ok(run),
        (None, _) => {
            Err(Failure::coded("G0332", format!("there is no run \"{id}\""), "gangline runs list shows the runs"))
        }
        (Some(_), Some(_)) => {
            Err(Failure::coded("G0332", format!("several runs begin with \"{id}\""), "write more of its digits"))
        }
    }
}

pub(super) fn tag<'a>(data: &'a Data, key: &str) -> Option<&'a str> {
    data.tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str())
}
