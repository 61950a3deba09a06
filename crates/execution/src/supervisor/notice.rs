//! Watches for a cloud's notice that this machine is about to be taken back: polls its source and passes the
//! text to the control plane unchanged.
//!
//! Forms: AWS's `instance-action` (404 until there is one; needs a session token, IMDSv2), Google's
//! `preempted` (`TRUE`), Azure's scheduled events (a list, empty until there is one), or a file that doesn't
//! exist until then. Sources: the clouds' pages on spot instances:
//! docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html,
//! cloud.google.com/compute/docs/instances/spot,
//! learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Timestamp;
use tokio::sync::mpsc::Sender;

use super::input::{Action, Input};
use super::node_attempt::NodeAttempt;
use crate::protocol::Notice;

/// Polling interval. The shortest notice is 30 s.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time of a request: a cloud's own endpoint answers at once or not at all.
const REQUEST_MAX: Duration = Duration::from_secs(2);
/// Maximum size of a notice.
const NOTICE_BYTES_MAX: u64 = 16 << 10;
/// Lifetime of AWS's token in seconds: longer than any poll takes.
const AWS_TOKEN_SECONDS: &str = "60";

const AWS: &str = "http://169.254.169.254/latest";
const GCP: &str = "http://metadata.google.internal/computeMetadata/v1/instance/preempted";
const AZURE: &str = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01";

/// Source of notices.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    File(PathBuf),
    Aws(String),
    /// A plain page, with a header that the cloud requires.
    Page(String, Option<(&'static str, &'static str)>),
}

impl Source {
    /// Parses `aws`, `gcp`, `azure`, a URL, or a file.
    fn named(name: &str) -> Source {
        match name {
            "aws" => Source::Aws(AWS.to_owned()),
            "gcp" => Source::Page(GCP.to_owned(), Some(("Metadata-Flavor", "Google"))),
            "azure" => Source::Page(AZURE.to_owned(), Some(("Metadata", "true"))),
            page if page.starts_with("http://") || page.starts_with("https://") => Source::Page(page.to_owned(), None),
            file => Source::File(PathBuf::from(file)),
        }
    }

    /// Returns the notice, if there is one.
    fn look(&self, agent: &ureq::Agent) -> Result<Option<String>, String> {
        let found = match self {
            Source::File(path) => read(path).map_err(|error| format!("read {}: {error}", path.display()))?,
            Source::Page(url, header) => get(agent, url, *header)?,
            Source::Aws(base) => {
                let token = agent.put(format!("{base}/api/token"));
                let token = token.header("X-aws-ec2-metadata-token-ttl-seconds", AWS_TOKEN_SECONDS).send_empty();
                let token = token.and_then(|mut answer| answer.body_mut().read_to_string());
                let token = token.map_err(|error| format!("ask {base} for a token: {error}"))?;
                let url = format!("{base}/meta-data/spot/instance-action");
                get(agent, &url, Some(("X-aws-ec2-metadata-token", token.trim())))?
            }
        };
        Ok(found.filter(|text| says_something(text)))
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(NOTICE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn get(agent: &ureq::Agent, url: &str, header: Option<(&str, &str)>) -> Result<Option<String>, String> {
    let request = header.into_iter().fold(agent.get(url), |request, (name, value)| request.header(name, value));
    let mut answer = request.call().map_err(|error| format!("ask {url}: {error}"))?;
    if !answer.status().is_success() {
        return Ok(None);
    }
    let body = answer.body_mut().with_config().limit(NOTICE_BYTES_MAX).read_to_string();
    body.map(Some).map_err(|error| format!("ask {url}: {error}"))
}

/// Reports whether a text is a notice rather than a statement that there is none.
fn says_something(text: &str) -> bool {
    let text = text.trim();
    if text.is_empty() || text.eq_ignore_ascii_case("false") || text.eq_ignore_ascii_case("none") {
        return false;
    }
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else { return true };
    let Some(events) = value.get("Events").and_then(serde_json::Value::as_array) else { return true };
    let is_end =
        |event: &serde_json::Value| matches!(event["EventType"].as_str(), Some("Preempt" | "Terminate" | "Redeploy"));
    events.iter().any(is_end)
}

/// Polls for a notice on a separate thread until there is one. If the source fails, that is logged once and
/// the job goes on.
pub(super) fn watch(source: &str, inputs: Sender<Input>) -> io::Result<()> {
    let source = Source::named(source);
    let watch = move || {
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_MAX)).http_status_as_error(false);
        let agent = ureq::Agent::new_with_config(config.proxy(None).max_redirects(0).build());
        let mut has_complained = false;
        while !inputs.is_closed() {
            match source.look(&agent) {
                Ok(Some(text)) => {
                    let _ = inputs.blocking_send(Input::Notice(text));
                    return;
                }
                Ok(None) => {}
                Err(problem) if has_complained => tracing::debug!(%problem, "no notice can be looked for"),
                Err(problem) => {
                    tracing::warn!(%problem, "no notice can be looked for; the job goes on");
                    has_complained = true;
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    };
    std::thread::Builder::new().name("notice".to_owned()).spawn(watch).map(drop)
}

impl NodeAttempt {
    /// Passes the notice on. The control plane decides what follows: it knows when to save, and where else
    /// there is room.
    pub(super) fn noticed(&mut self, now: Timestamp, text: String) -> Vec<Action> {
        tracing::warn!(notice = text.trim(), "this machine is about to go");
        self.notice = Some(Notice { text, seen_at: now.unix_nanos() });
        self.has_news = true;
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_told_from_the_word_that_there_is_none() {
        for none in ["", " \n", "FALSE", "none", r#"{"DocumentIncarnation":1,"Events":[]}"#] {
            assert!(!says_something(none), "{none}");
        }
        let freeze = r#"{"Events":[{"EventType":"Freeze","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}]}"#;
        assert!(!says_something(freeze), "a freeze of some seconds is no end");
        let preempt = r#"{"Events":[{"EventType":"Preempt","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}]}"#;
        for some in ["TRUE", "120", r#"{"action":"terminate","time":"2026-11-22T19:00:00Z"}"#, preempt] {
            assert!(says_something(some), "{some}");
        }
    }

    #[test]
    fn a_file_is_a_source_once_it_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notice");
        let source = Source::named(path.to_str().expect("text"));
        let agent = ureq::Agent::new_with_defaults();
        assert_eq!(source.look(&agent), Ok(None));
        std::fs::write(&path, "60\n").expect("it can be written");
        assert_eq!(source.look(&agent), Ok(Some("60\n".to_owned())));
        assert!(Source::named("/proc/self/mem").look(&agent).is_err());
        assert_eq!(Source::named("aws"), Source::Aws(AWS.to_owned()));
    }
}
