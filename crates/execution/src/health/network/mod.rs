//! Checks of the network between the nodes of a gang, measured over TCP from processes that any launcher
//! starts. They need no GPU and no collective library, and work on one machine, in network namespaces and
//! under Slurm alike.
//!
//! Every rank connects to rank 0 at MASTER_ADDR and MASTER_PORT and follows its orders ([`take_part`]). In
//! rounds of disjoint pairs, the two nodes of a pair measure latency, clock offset and bandwidth in both
//! directions (`pair.rs`, `rounds.rs`); then all ranks run a ring all-reduce of real numbers and check its
//! sums (`ring.rs`). Rank 0 gets a [`NetworkReport`], whose findings name slow nodes and pairs (`judge.rs`).
//! The figures are those of TCP through the kernel; RDMA is faster, but a broken cable, card or switch shows
//! in both.
//!
//! Keeps A-10: messages, members, rounds and every wait have a limit. A rank that doesn't answer is left out
//! and named.

mod coordinator;
mod judge;
mod pair;
mod participant;
mod ring;
mod rounds;
mod wire;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use gangline_base::Bytes;
use serde::{Deserialize, Serialize};

pub use pair::{PairFigures, measure_loopback};
pub use ring::bus_bandwidth;

use crate::health::Finding;

/// Maximum number of members of a measured gang.
pub const MEMBERS_MAX: u32 = 1_024;

/// A rank's options for taking part.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its rank.
    pub rank: u32,
    /// Number of members of the gang.
    pub count: u32,
    /// Name of its node.
    pub node: String,
    /// Host name or address, and port, at which rank 0 listens.
    pub master: (String, u16),
    /// An id that distinguishes this gang from others on the same network.
    pub run: String,
    /// Findings of its node's own checks.
    pub findings: Vec<Finding>,
    /// Names of the nodes to measure; empty: all.
    pub chosen: Vec<String>,
    /// Size of the all-reduce.
    pub bytes: Bytes,
    /// Maximum time for the gang to come together.
    pub patience: Duration,
}

/// The measurements and the findings that follow from them. Returned by rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkReport {
    /// The nodes, by rank.
    pub nodes: Vec<NodeReport>,
    /// All measured pairs, the lower rank first.
    pub pairs: Vec<PairReport>,
    /// The all-reduce; none if it failed or there is one node.
    pub ring: Option<RingReport>,
    /// Findings about slow or unreachable nodes and pairs.
    pub findings: Vec<Finding>,
}

/// A node of the gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its rank.
    pub rank: u32,
    /// Its name.
    pub node: String,
    /// The address by which the others reach it.
    pub address: IpAddr,
    /// Findings of its own checks.
    pub findings: Vec<Finding>,
}

/// The measurement of a pair of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The rank that connected.
    pub from: u32,
    /// The rank that was connected to.
    pub to: u32,
    /// The measured figures; none if the ranks couldn't reach each other.
    pub figures: Option<PairFigures>,
    /// The reason if there are no figures.
    pub error: Option<String>,
}

/// The measurement of the all-reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingReport {
    /// Number of ranks in it.
    pub ranks: u32,
    /// Bytes that each rank contributed and received.
    pub bytes: u64,
    /// The median of the rounds; a round takes as long as its slowest rank.
    pub seconds: f64,
    /// 2 (n - 1) / n x bytes / seconds. A wire's bandwidth bounds it:
    /// <https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md>.
    pub bus_bytes_per_second: f64,
    /// Number of measured rounds.
    pub rounds: u32,
}

/// The reason a rank couldn't take part.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// More members than [`MEMBERS_MAX`], or none, or a rank beyond them.
    #[error("measure a gang: rank {rank} of {count}; at most {MEMBERS_MAX} can be measured at once")]
    Members {
        /// The rank.
        rank: u32,
        /// Number of members.
        count: u32,
    },
    /// Rank 0 can't listen.
    #[error("listen at {address} for the gang's other ranks")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The gang didn't come together in time.
    #[error("meet the gang: of {count} ranks {missing:?} did not come within {} s", waited.as_secs())]
    Missing {
        /// Number of members.
        count: u32,
        /// The missing ranks.
        missing: Vec<u32>,
        /// Time waited.
        waited: Duration,
    },
    /// Rank 0 can't be reached, or has gone.
    #[error("{doing} rank 0 at {address}")]
    Master {
        /// The operation that failed.
        doing: &'static str,
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
}

/// Takes part in measuring a gang. Rank 0 returns the report, the others nothing.
///
/// # Errors
/// [`NetworkError`] if the ranks can't meet; later failures become findings.
pub fn take_part(member: &Member) -> Result<Option<NetworkReport>, NetworkError> {
    let Member { rank, count, .. } = *member;
    if count > MEMBERS_MAX || rank >= count {
        return Err(NetworkError::Members { rank, count });
    }
    if rank > 0 {
        return participant::follow(member).map(|()| None);
    }
    let listener = coordinator::listen(&member.master)?;
    std::thread::scope(|scope| {
        // Rank 0 follows its own orders like any other rank, over the network.
        let own = scope.spawn(|| participant::follow(member));
        let report = coordinator::lead(&listener, member);
        let followed = own.join().expect("a participant doesn't panic");
        let report = report?;
        followed.map(|()| Some(report))
    })
}
