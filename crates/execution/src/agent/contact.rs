//! Sends reports to the control plane, on a thread of its own.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use super::AgentNode;
use crate::endpoint::{Way, WayError, agent};
use crate::protocol::agent::{AGENT_PATH, AGENT_VERSION, AgentAnswer, AgentReport, DatasetWanted, NODE_HEADER};

/// Maximum time of a request, whatever the network does.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Where the control plane is.
#[derive(Clone, Debug)]
pub enum Place {
    /// It owns this data folder, which this machine sees as well.
    Folder(PathBuf),
    /// It is at this URL, and shows a certificate that these (PEM) vouch for.
    Url {
        /// The URL.
        url: String,
        /// The certificates; none for a control plane on loopback without TLS.
        certificates: Option<Vec<u8>>,
    },
}

/// Why a report wasn't taken.
#[derive(Debug, thiserror::Error)]
pub enum ContactError {
    /// Nobody there can prove to be the control plane.
    #[error(transparent)]
    Way(#[from] WayError),
    /// No answer, or an invalid one.
    #[error("reach the control plane at {url}: {source}")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// The cause.
        source: Box<ureq::Error>,
    },
    /// The control plane refused the report.
    #[error("report to the control plane at {url}: it refuses with status {status}{said}")]
    Refused {
        /// Where it is.
        url: String,
        /// The status.
        status: u16,
        /// Its words, after a colon.
        said: String,
    },
    /// The control plane speaks another version.
    #[error("report to the control plane: its version is {found}, this program knows {AGENT_VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
}

impl ContactError {
    /// Reports whether the same report would be refused again.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, ContactError::Refused { status: 400 | 413 | 422, .. })
    }
}

/// What became of a report.
pub(super) type Posted = Result<AgentAnswer, ContactError>;

/// The thread.
#[derive(Debug)]
pub(super) struct Courier {
    reports: SyncSender<AgentReport>,
    answers: Receiver<Posted>,
    is_under_way: bool,
}

impl Courier {
    pub(super) fn start(nodes: Vec<AgentNode>, place: Place) -> io::Result<Courier> {
        let (reports, waiting) = sync_channel::<AgentReport>(1);
        let (answer, answers) = sync_channel(1);
        let post_all = move || {
            let mut open = None;
            while let Ok(report) = waiting.recv() {
                let posted = post_to_all(&nodes, &place, &mut open, report);
                if posted.is_err() {
                    // It may be elsewhere after a restart, with other certificates.
                    open = None;
                }
                if answer.send(posted).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("post".to_owned()).spawn(post_all)?;
        Ok(Courier { reports, answers, is_under_way: false })
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Sends a report; only one is on its way at a time, so there is room.
    pub(super) fn send(&mut self, report: AgentReport) {
        self.is_under_way = self.reports.try_send(report).is_ok();
    }

    /// Returns the answer to the last report, once it is there.
    pub(super) fn answer(&mut self) -> Option<Posted> {
        let answer = self.answers.try_recv().ok()?;
        self.is_under_way = false;
        Some(answer)
    }
}

/// Posts a report for each node. Rows count as stored once they are stored for all; the agent stands by if it does for all, and
/// fetches what any of them is to have.
fn post_to_all(nodes: &[AgentNode], place: &Place, open: &mut Option<Way>, mut report: AgentReport) -> Posted {
    let way = match open {
        Some(way) => way,
        None => open.insert(find(place)?),
    };
    let mut all: Option<AgentAnswer> = None;
    for node in nodes {
        report.node = node.name.to_string();
        let answer = post(way, &node.token, &report)?;
        // What was fetched was so once.
        report.fetched.clear();
        all = Some(match all {
            None => answer,
            Some(before) => {
                let stored = before.stored.into_iter().zip(answer.stored).map(|(one, other)| one.min(other)).collect();
                let AgentAnswer { version, stand_by, mut fetch, .. } = before;
                let is_new = |wanted: &DatasetWanted| fetch.iter().all(|known| known.dataset != wanted.dataset);
                let others: Vec<DatasetWanted> = answer.fetch.into_iter().filter(is_new).collect();
                fetch.extend(others);
                AgentAnswer { version, stored, stand_by: stand_by && answer.stand_by, fetch }
            }
        });
    }
    let nothing = AgentAnswer { version: AGENT_VERSION, stored: Vec::new(), stand_by: false, fetch: Vec::new() };
    Ok(all.unwrap_or(nothing))
}

fn find(place: &Place) -> Result<Way, ContactError> {
    match place {
        Place::Folder(folder) => Ok(Way::find(folder, REQUEST_MAX)?),
        Place::Url { url, certificates } => {
            let unusable = |source| ContactError::Unreachable { url: url.clone(), source: Box::new(source) };
            let agent = agent(REQUEST_MAX, certificates.as_deref()).map_err(unusable)?;
            Ok(Way::at(url, agent))
        }
    }
}

fn post(way: &Way, token: &str, report: &AgentReport) -> Result<AgentAnswer, ContactError> {
    let url = way.to_string();
    let unreachable = |error| ContactError::Unreachable { url: url.clone(), source: Box::new(error) };
    let request = way.agent.post(format!("{}{AGENT_PATH}", way.url));
    let request = request.header("authorization", format!("Bearer {token}")).header(NODE_HEADER, &report.node);
    let mut response = request.send_json(report).map_err(unreachable)?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
    if !status.is_success() {
        let said = body.read_json::<serde_json::Value>().unwrap_or_default();
        let said = said["error"]["message"].as_str().map(|said| format!(": {said}")).unwrap_or_default();
        return Err(ContactError::Refused { url, status: status.as_u16(), said });
    }
    let answer: AgentAnswer = body.read_json().map_err(unreachable)?;
    match answer.version {
        AGENT_VERSION => Ok(answer),
        found => Err(ContactError::Version { found }),
    }
}
