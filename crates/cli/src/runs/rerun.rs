//! `runs rerun`: the job of a run again, from its beginning.

use std::collections::BTreeMap;

use gangline_api as api;

use super::job_of;
use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

pub(super) fn run(
    client: &Client,
    experiments: &BTreeMap<String, String>,
    wanted: &str,
    is_json: bool,
) -> Result<(), Failure> {
    let job = job_of(client, experiments, wanted, "so nothing is known that could be submitted")?;
    let earlier = client.job(&job)?;
    let request = api::ResumeRequest { afresh: true, ..api::ResumeRequest::default() };
    let submitted: api::Submitted = client.post(&format!("/jobs/{}/resume", path_segment(&job)), &request)?;
    for difference in differences(&earlier) {
        output::tell(&format!("may differ: {difference}"));
    }
    if is_json { output::json(&submitted) } else { output::say(&submitted.job) }
}

/// Says what can't be made the same.
fn differences(job: &api::Job) -> Vec<String> {
    let mut found = Vec::new();
    if job.code.is_none() {
        found.push(format!(
            "the code: {} ran what was in {}, of which no copy was taken (workdir: {{snapshot: .}} takes one)",
            job.id, job.workdir
        ));
    }
    if let Some(image) = job.image.as_ref().filter(|image| !image.contains("@sha256:")) {
        found.push(format!(
            "the image: {image} is a tag, which may point at another image by now (name@sha256:... is one)"
        ));
    }
    if let Some(path) = &job.checkpoint_path {
        found.push(format!(
            "where it goes on from: it saves in a folder of its own, not in {path}; a script that names its folder itself, \
             not by GANGLINE_CHECKPOINT_DIR, goes on from there"
        ));
    }
    found.push(
        "what the script doesn't fix: seeds that it draws, the order of sums on GPUs, data that changed since".into(),
    );
    found
}
