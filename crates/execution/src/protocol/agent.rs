//! What a node's agent sends: readings of the node and its accelerators, and what its checks find.
//!
//! The agent posts an [`AgentReport`] to [`AGENT_PATH`] with the node's token and its name in [`NODE_HEADER`]. Rows of a
//! device are numbered; those below [`AgentAnswer::stored`] are durable and aren't sent again. Numbers begin at the agent's
//! start time in milliseconds, so they grow through its restarts.

use serde::{Deserialize, Serialize};

use super::metrics::MetricRow;
use super::{CacheReport, DatasetReads, UnixNanos};

/// Where agents post.
pub const AGENT_PATH: &str = "/api/v1/agents/report";
/// Header with the node's name, by which its token is checked before the body is read.
pub const NODE_HEADER: &str = "gangline-node";
/// The version of these types; both sides send it.
pub const AGENT_VERSION: u32 = 1;
/// The most batches of a report: the node, and each of its devices.
pub const BATCHES_MAX: usize = 128;
/// The most fetches of a report.
pub const FETCHED_MAX: usize = 16;
/// The most findings of a report.
pub const FINDINGS_MAX: usize = 32;

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// [`AGENT_VERSION`].
    pub version: u32,
    /// The node's name.
    pub node: String,
    /// When the agent started.
    pub started_at: UnixNanos,
    /// Milliseconds between two readings.
    pub every_ms: u64,
    /// One batch for the node and for each device that has something.
    pub batches: Vec<DeviceBatch>,
    /// What the checks find now; none before the first checks have ended.
    #[serde(default)]
    pub findings: Option<Vec<AgentFinding>>,
    /// Sources that don't answer: a driver or a file server that hangs.
    #[serde(default)]
    pub hung: Vec<String>,
    /// What the node's cache of datasets holds, if that was looked at since the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// Whether the agent fetches datasets for jobs that wait.
    #[serde(default)]
    pub fetches: bool,
    /// Fetches that have ended, at most [`FETCHED_MAX`]; repeated until a report with them is answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetched: Vec<DatasetFetched>,
    /// Whether the agent stands in for one that isn't there: it reads only while no other agent of the node does. One that is
    /// told to stand by sends reports without batches.
    #[serde(default)]
    pub stands_in: bool,
}

/// Consecutive rows of the node, or of one of its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceBatch {
    /// The device's index on its node; none for the node.
    pub device: Option<u32>,
    /// The number of the first row.
    pub first: u64,
    /// Names of metrics.
    pub names: Vec<String>,
    /// The rows.
    pub rows: Vec<MetricRow>,
}

/// Something that a check finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFinding {
    /// The check and its subject, such as `gpu gpu 3`.
    pub place: String,
    /// What was measured.
    pub measured: String,
    /// Whether nothing should start on the node until it is fixed; otherwise a run is only slowed down.
    pub is_fault: bool,
}

/// The answer to an [`AgentReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAnswer {
    /// [`AGENT_VERSION`].
    pub version: u32,
    /// For each batch, the number of the first row that isn't stored.
    pub stored: Vec<u64>,
    /// Another agent reads this node: an agent that stands in stops reading until it hears otherwise.
    #[serde(default)]
    pub stand_by: bool,
    /// Datasets that jobs which wait will probably read on this node, the most urgent first: the agent brings them into the
    /// node's cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetch: Vec<DatasetWanted>,
}

/// A dataset that a node's cache should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetWanted {
    /// Its address.
    pub dataset: String,
    /// The job that reads it, which pays for the requests.
    pub job: u64,
    /// What the job's queue may have of the cache, as the job's ranks are told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
}

/// What bringing a dataset into a node's cache took, until all of it was there or the fetch was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFetched {
    /// Its address.
    pub dataset: String,
    /// The job for which it was fetched.
    pub job: u64,
    /// When the fetch began. A node has one fetch at a time, so this tells it from others.
    pub from: UnixNanos,
    /// When it ended.
    pub to: UnixNanos,
    /// What was asked for.
    pub reads: DatasetReads,
}

/// What a supervisor needs to start an agent that stands in for its node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The token of the node's agent.
    pub token: String,
    /// Milliseconds between two readings.
    pub every_ms: u64,
}
