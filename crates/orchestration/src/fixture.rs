//! Nodes, jobs and pseudo-random numbers for this crate's tests.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobId, JobSpec, Launch, NodeName, PoolName,
    Priority, Program, QueueName, RecoveryPolicy, Submitter, Timestamp, TopologyRequest,
};

use crate::{Job, Location, NodeCapacity, NodeSpec};

pub(crate) fn kind() -> AcceleratorKind {
    AcceleratorKind("H100".to_owned())
}

pub(crate) fn node(number: u32, accelerators: u32) -> NodeSpec {
    let capacity =
        NodeCapacity { pool: PoolName::default(), accelerator: kind(), accelerators, cpus: 64, memory: Bytes(0) };
    let name = NodeName::new(&format!("node-{number:05}")).expect("this is a name");
    NodeSpec { name, capacity, location: Location::default(), layout: Default::default() }
}

pub(crate) fn gang(nodes: u32, per_node: u32) -> GangShape {
    let count = |count| NonZeroU32::new(count).expect("a gang has nodes and devices");
    GangShape {
        nodes: count(nodes),
        pool: PoolName::default(),
        accelerator: kind(),
        accelerators_per_node: count(per_node),
        cpus_per_node: 0,
        memory_per_node: Bytes(0),
        launch: Launch::PerAccelerator,
        topology: TopologyRequest::default(),
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("this is a name")
}

/// Returns a job without a limit, in the queue "default".
pub(crate) fn job(gang: GangShape) -> JobSpec {
    JobSpec {
        name: "job".to_owned(),
        queue: queue("default"),
        priority: Priority::NORMAL,
        gang,
        program: Program {
            workdir: "/".to_owned(),
            code: None,
            container: None,
            envs: BTreeMap::new(),
            setup: None,
            run: String::new(),
        },
        checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(30) },
        recovery: RecoveryPolicy {
            max_faults: 10,
            no_progress_limit: 10,
            hang_timeout: HangTimeout::Learned,
            evicts_stragglers: false,
        },
        time_limit: None,
        elastic: None,
        budget: None,
        spares: 0,
        datasets: Default::default(),
        planned: None,
        pins: Default::default(),
        after: Default::default(),
        notify: Default::default(),
        origin: None,
        submitter: Submitter("ann".to_owned()),
    }
}

/// Returns a waiting job.
pub(crate) fn waiting(spec: JobSpec) -> Job {
    Job::submitted(JobId(1), Arc::new(spec), Timestamp::EPOCH)
}

/// A pseudo-random number generator, deterministic for a seed (SplitMix64: Steele, Lea and Flood, OOPSLA
/// 2014).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Returns a number from 0 to `limit - 1`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(limit)).expect("a rest is below its divisor")
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        let limit = u32::try_from(choices.len()).expect("choices are few");
        choices[usize::try_from(self.below(limit)).expect("a usize holds 32 bits")]
    }
}
