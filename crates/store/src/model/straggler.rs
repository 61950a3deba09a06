//! A slow rank, as it is stored.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A rank that slows down its gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StragglerRecord {
    /// The rank.
    pub rank: u32,
    /// The node that the rank runs on.
    pub node: String,
    /// Whether the rank waits for its data; otherwise it computes for longer.
    pub is_data: bool,
    /// The rank's own work per step.
    pub own: Duration,
    /// The median work per step of its peers.
    pub peers: Duration,
    /// Steps over which the times were taken.
    pub steps: u64,
}

impl StragglerRecord {
    /// Describes the straggler in words, with the evidence.
    pub fn describe(&self) -> String {
        let (own, peers) = (self.own.as_secs_f64(), self.peers.as_secs_f64());
        let why = if self.is_data { "waits for its data" } else { "computes for longer" };
        let StragglerRecord { rank, node, steps, .. } = self;
        format!(
            "rank {rank} on {node} is slow: {own:.3} s of work a step, its peers {peers:.3} s (measured over {steps} steps); it {why}"
        )
    }
}
