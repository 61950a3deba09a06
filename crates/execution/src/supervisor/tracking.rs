//! Lets a rank's MLflow client find the control plane: its URL, a token of the attempt's, and the certificate if it needs one.

use std::path::Path;

use gangline_base::{AttemptNumber, Epoch, JobId};

use super::environment::Environment;
use crate::endpoint::{CERTIFICATE_FILE, TrackingToken};
use crate::protocol::SupervisorSpec;

const URI: &str = "MLFLOW_TRACKING_URI";

/// Adds MLflow's variables, unless the job tracks elsewhere: another server isn't sent the token. Without an endpoint file, which
/// a control plane writes when it starts, there is nothing to add.
pub(super) fn join(environment: &mut Environment, spec: &SupervisorSpec) {
    let Ok(text) = std::fs::read_to_string(&spec.endpoint_file) else { return };
    let url = text.lines().next().unwrap_or_default();
    if url.is_empty() || environment.contains_key(std::ffi::OsStr::new(URI)) {
        return;
    }
    let (job, attempt, epoch) = (JobId(spec.job), AttemptNumber(spec.attempt), Epoch(spec.epoch));
    let token = TrackingToken::of(job, attempt, epoch, &spec.token);
    environment.insert(URI.into(), url.into());
    environment.insert("MLFLOW_TRACKING_TOKEN".into(), token.to_string().into());
    if url.starts_with("https:") {
        let folder = spec.endpoint_file.parent().unwrap_or(Path::new("/"));
        environment.insert("MLFLOW_TRACKING_SERVER_CERT_PATH".into(), folder.join(CERTIFICATE_FILE).into_os_string());
    }
}
