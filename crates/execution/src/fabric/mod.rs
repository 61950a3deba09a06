//! How fast a gang's nodes reach each other: by TCP, from processes that any launcher starts, so it needs no GPU and no collective
//! library, and works on one machine, in network namespaces and on Slurm alike.
//!
//! Every rank meets rank 0 at MASTER_ADDR and MASTER_PORT and does what that orders ([`take_part`]): in rounds of disjoint pairs each
//! two measure latency, clock offset and bandwidth both ways (`pair.rs`, `rounds.rs`); then all of them run a ring all-reduce of real
//! numbers and check its sums (`ring.rs`). Rank 0 gets a [`FabricReport`], whose findings name slow nodes and pairs (`judge.rs`).
//! Figures are of TCP through the kernel; RDMA is faster, but a cable, card or switch that is broken shows in both.
//!
//! Keeps A-10: messages, members, rounds and every wait have a limit. Whoever doesn't answer is left out and named.

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

use crate::checks::Finding;

/// The most members of a gang that is measured.
pub const MEMBERS_MAX: u32 = 1_024;

/// What a rank takes part with.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Members of the gang.
    pub count: u32,
    /// Its node's name.
    pub node: String,
    /// Where rank 0 listens: host name or address, and port.
    pub master: (String, u16),
    /// What tells this gang from others on the same network.
    pub run: String,
    /// What its checks found.
    pub findings: Vec<Finding>,
    /// Names of the nodes that are measured; empty: all.
    pub chosen: Vec<String>,
    /// Bytes of the all-reduce.
    pub bytes: Bytes,
    /// How long the gang may take to come together.
    pub patience: Duration,
}

/// What was measured, and what it means. Rank 0 has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricReport {
    /// The nodes, by rank.
    pub nodes: Vec<NodeReport>,
    /// Every two that were measured, the lower rank first.
    pub pairs: Vec<PairReport>,
    /// The all-reduce; none if it failed or there is one node.
    pub ring: Option<RingReport>,
    /// What is slow, or out of reach.
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
    /// What its own checks found.
    pub findings: Vec<Finding>,
}

/// Two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The one that connected.
    pub from: u32,
    /// The one that was connected to.
    pub to: u32,
    /// What was measured; none if they didn't reach each other.
    pub figures: Option<PairFigures>,
    /// Why not.
    pub error: Option<String>,
}

/// The all-reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingReport {
    /// Ranks in it.
    pub ranks: u32,
    /// Bytes that each rank gave and got.
    pub bytes: u64,
    /// The median of the rounds; a round takes as long as its slowest rank.
    pub seconds: f64,
    /// 2 (n - 1) / n x bytes / seconds, which a wire's bandwidth bounds (nccl-tests, doc/PERFORMANCE.md).
    pub bus_bytes_per_second: f64,
    /// Rounds that were measured.
    pub rounds: u32,
}

/// Why a rank couldn't take part.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// More members than [`MEMBERS_MAX`], or none, or a rank beyond them.
    #[error("measure a gang: rank {rank} of {count}; at most {MEMBERS_MAX} can be measured at once")]
    Members {
        /// The rank.
        rank: u32,
        /// Of so many.
        count: u32,
    },
    /// Rank 0 can't listen.
    #[error("listen at {address} for the gang's other ranks")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The gang didn't come together.
    #[error("meet the gang: of {count} ranks {missing:?} did not come within {} s", waited.as_secs())]
    Missing {
        /// All of them.
        count: u32,
        /// Those that aren't there.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// Rank 0 can't be reached, or has gone.
    #[error("{doing} rank 0 at {address}")]
    Master {
        /// What was tried.
        doing: &'static str,
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
}

/// Takes part in measuring a gang. Rank 0 returns what was measured, the others nothing.
///
/// # Errors
/// [`FabricError`] if the gang can't come together; what goes wrong afterwards is a finding.
pub fn take_part(member: &Member) -> Result<Option<FabricReport>, FabricError> {
    let Member { rank, count, .. } = *member;
    if count > MEMBERS_MAX || rank >= count {
        return Err(FabricError::Members { rank, count });
    }
    if rank > 0 {
        return participant::follow(member).map(|()| None);
    }
    let listener = coordinator::listen(&member.master)?;
    std::thread::scope(|scope| {
        // Rank 0 takes its own orders like any other, by the network.
        let own = scope.spawn(|| participant::follow(member));
        let report = coordinator::lead(&listener, member);
        let followed = own.join().expect("a participant doesn't panic");
        let report = report?;
        followed.map(|()| Some(report))
    })
}
