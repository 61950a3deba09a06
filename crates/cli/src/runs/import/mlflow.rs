//! Runs of a server that speaks MLflow's REST API.

use std::time::Duration;

use gangline_execution::endpoint::agent;
use serde_json::{Value, json};

use super::run::ImportedRun;
use crate::client::Client;
use crate::failure::Failure;
use crate::runs::wire::{Experiments, Found};

/// The most experiments or runs of a request.
const PAGE: u32 = 500;
/// The largest answer: a long history.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// MLflow's API, ours or another's.
pub(crate) trait Api {
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure>;
    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure>;
}

impl Api for Client {
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.tracked_by(path, query)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.track(path, body)
    }
}

/// Another server.
pub(super) struct Server {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

impl Server {
    /// Returns the server at a URL, which gets this token if it needs one.
    pub(super) fn at(url: &str, token: Option<String>) -> Result<Server, Failure> {
        let made = agent(PATIENCE, None);
        let agent = made.map_err(|error| Failure::local(format!("no connection can be made: {error}"), ""))?;
        let authorization = token.map(|token| format!("Bearer {token}"));
        Ok(Server { agent, url: url.trim_end_matches('/').to_owned(), authorization })
    }

    fn read(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
        let failed = |what: String| {
            Failure::local(format!("{} {what}", self.url), "is it an MLflow server, and the token one of its own?")
        };
        let mut answer = answer.map_err(|error| failed(format!("can't be asked: {error}")))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| failed(format!("breaks off: {error}")))?;
        if !status.is_success() {
            let beginning: String = text.chars().take(300).collect();
            return Err(failed(format!("answers {status}: {beginning}")));
        }
        serde_json::from_str(&text).map_err(|error| failed(format!("answers with no JSON: {error}")))
    }

    fn full(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.url)
    }
}

impl Api for Server {
    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let mut request = self.agent.get(self.full(path)).query_pairs(query.iter().copied());
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.read(request.call())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.agent.post(self.full(path));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.read(request.send_json(body))
    }
}

/// Hands over the runs of a server, or of one of its experiments, oldest first; returns their number.
pub(super) fn each(
    api: &dyn Api,
    experiment: Option<&str>,
    mut take: impl FnMut(ImportedRun) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (id, name) in experiments(api)?.into_iter().filter(|(_, name)| experiment.is_none_or(|only| only == name)) {
        let mut token = None::<String>;
        loop {
            let search = json!({"experiment_ids": [id], "max_results": PAGE, "page_token": token,
                "order_by": ["attributes.start_time ASC"]});
            let page = api.post("runs/search", &search)?;
            let page: Found = serde_json::from_value(page).map_err(|error| super::unreadable("runs", &error))?;
            for run in page.runs {
                take(ImportedRun::of(api, &name, run)?)?;
            }
            token = page.next_page_token.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the ids and names of a server's experiments.
fn experiments(api: &dyn Api) -> Result<Vec<(String, String)>, Failure> {
    let (mut found, mut token) = (Vec::new(), None::<String>);
    loop {
        let page = api.post("experiments/search", &json!({"max_results": PAGE, "page_token": token}))?;
        let page: Experiments =
            serde_json::from_value(page).map_err(|error| super::unreadable("experiments", &error))?;
        found.extend(page.experiments.into_iter().map(|one| (one.experiment_id, one.name)));
        token = page.next_page_token.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(found);
        }
    }
}
