//! A supervisor's line to its control plane: one blocking request at a time, for the threads that send reports and metrics.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Epoch;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::endpoint::{ATTEMPT_HEADER, Way, WayError};
use crate::protocol::{PROTOCOL_VERSION, SupervisorSpec};

/// Maximum time of a request, whatever the network does.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 256 << 10;

/// The reason a request got no answer that counts.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContactError {
    /// Nobody there can prove to be the control plane.
    #[error(transparent)]
    Way(#[from] WayError),
    /// No answer, or an invalid one.
    #[error("reach the control plane at {url}: {source}")]
    Unreachable { url: String, source: Box<ureq::Error> },
    /// The control plane refused the request.
    #[error("report to the control plane at {url}: it refuses with status {status}")]
    Refused { url: String, status: u16 },
    /// The control plane speaks another version.
    #[error("report to the control plane: its version is {found}, this program knows {PROTOCOL_VERSION}")]
    Version { found: u32 },
}

/// The state of a sending thread.
pub(super) struct Line {
    /// The control plane's data folder.
    folder: PathBuf,
    token: String,
    attempt: String,
    /// The connection that the last request used.
    open: Option<Way>,
}

impl Line {
    /// Returns the line of a supervisor; it isn't open yet.
    pub(super) fn of(spec: &SupervisorSpec) -> Line {
        Line {
            folder: spec.endpoint_file.parent().unwrap_or(Path::new("/")).to_owned(),
            token: spec.token.clone(),
            attempt: format!("{}/{}/{}", spec.job, spec.attempt, Epoch(spec.epoch)),
            open: None,
        }
    }

    /// Sends one request. After a failure the control plane is looked up again: after a restart it may be elsewhere, with
    /// other certificates. Sending one twice must be harmless: reports are cumulative, and rows of metrics are numbered.
    pub(super) fn post<A: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<A, ContactError> {
        if let Some(way) = self.open.take() {
            let answer = self.post_by(&way, path, body);
            match &answer {
                Err(ContactError::Unreachable { source, .. }) if matches!(**source, ureq::Error::Timeout(_)) => {
                    return answer;
                }
                Err(ContactError::Unreachable { .. }) => {}
                _ => {
                    self.open = Some(way);
                    return answer;
                }
            }
        }
        let way = Way::find(&self.folder, REQUEST_MAX)?;
        let answer = self.post_by(&way, path, body);
        self.open = Some(way);
        answer
    }

    fn post_by<A: DeserializeOwned>(&self, way: &Way, path: &str, body: &impl Serialize) -> Result<A, ContactError> {
        let url = way.to_string();
        let unreachable = |error| ContactError::Unreachable { url: url.clone(), source: Box::new(error) };
        let request = way.agent.post(format!("{}{path}", way.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request.header(ATTEMPT_HEADER, &self.attempt);
        let mut response = request.send_json(body).map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(ContactError::Refused { url, status: status.as_u16() });
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        body.read_json().map_err(unreachable)
    }
}
