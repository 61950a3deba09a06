//! The job specification, as stored on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, CodeCopy, Container, Elastic, GangShape, HangTimeout, JobId, JobSpec,
    Launch, Money, Notify, Pin, PlannedRate, PoolName, Priority, Program, QueueName, RecoveryPolicy, SpeedUp,
    Submitter,
};
use serde::{Deserialize, Serialize};

use super::Error;
use super::change::DependencyV1;
use super::container::ContainerV1;
use super::notify::NotifyV1;
use super::topology::TopologyV1;

/// A job specification as stored on disk, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpecV1 {
    name: String,
    queue: QueueName,
    priority: u16,
    nodes: NonZeroU32,
    accelerator: String,
    accelerators_per_node: NonZeroU32,
    cpus_per_node: u32,
    memory_per_node: Bytes,
    launch: LaunchV1,
    #[serde(default, skip_serializing_if = "TopologyV1::is_default")]
    topology: TopologyV1,
    #[serde(default, skip_serializing_if = "PoolName::is_default")]
    pool: PoolName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    elastic: Option<ElasticV1>,
    workdir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<CodeV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<ContainerV1>,
    envs: BTreeMap<String, String>,
    setup: Option<String>,
    run: String,
    checkpoint_path: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    checkpoint_is_shared: bool,
    grace_ms: u64,
    max_faults: u32,
    no_progress_limit: u32,
    /// Missing means a learned timeout; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hang_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    evicts_stragglers: bool,
    time_limit_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget: Option<Money>,
    #[serde(default, skip_serializing_if = "is_none_kept")]
    spares: u32,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    datasets: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    planned: Option<PlannedV1>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pins: BTreeSet<PinV1>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    after: BTreeSet<DependencyV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    notify: Option<NotifyV1>,
    /// The ended job whose work this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<JobId>,
    submitter: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none_kept(spares: &u32) -> bool {
    *spares == 0
}

impl SpecV1 {
    /// Returns the specification without the texts that a job's record or its sweep has anyway.
    #[must_use]
    pub fn beside_a_record(spec: &JobSpec) -> SpecV1 {
        let (name, run, workdir, submitter) = Default::default();
        SpecV1 { name, run, workdir, submitter, checkpoint_path: None, ..SpecV1::from(spec) }
    }

    /// Returns the names and addresses of the datasets that the job reads.
    #[must_use]
    pub fn datasets(&self) -> &BTreeSet<String> {
        &self.datasets
    }

    /// Returns the ended job whose work the job continues.
    #[must_use]
    pub fn origin(&self) -> Option<JobId> {
        self.origin
    }

    /// Returns whom the job tells when it starts or ends; nobody if what is stored can't be used.
    #[must_use]
    pub fn notify(&self) -> Notify {
        self.notify.clone().and_then(|notify| Notify::try_from(notify).ok()).unwrap_or_default()
    }

    /// Returns the copy of the code in which the job runs.
    #[must_use]
    pub fn code(&self) -> Option<CodeCopy> {
        self.code.clone().map(CodeCopy::from)
    }

    /// Returns the image in which the job's commands run.
    #[must_use]
    pub fn image(&self) -> Option<&str> {
        self.container.as_ref().map(|container| container.image.as_str())
    }

    /// Returns the rate that the job should reach by its plan.
    #[must_use]
    pub fn planned(&self) -> Option<PlannedRate> {
        self.planned.map(PlannedRate::from)
    }

    /// Sets the time limit.
    pub fn set_time_limit(&mut self, limit: Option<Duration>) {
        self.time_limit_ms = limit.map(millis);
    }
}

/// The planned rate in thousandths of tokens a second on each accelerator, and the utilisation in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct PlannedV1 {
    milli_tokens_per_second: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mfu_milli: Option<u32>,
}

impl From<PlannedRate> for PlannedV1 {
    fn from(PlannedRate { milli_tokens_per_second, mfu_milli }: PlannedRate) -> Self {
        PlannedV1 { milli_tokens_per_second, mfu_milli }
    }
}

impl From<PlannedV1> for PlannedRate {
    fn from(PlannedV1 { milli_tokens_per_second, mfu_milli }: PlannedV1) -> Self {
        PlannedRate { milli_tokens_per_second, mfu_milli }
    }
}

/// The most nodes; then numbers of nodes, each with its speed in thousandths of the speed on the fewest
/// nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ElasticV1 {
    nodes_max: NonZeroU32,
    speed_up: Vec<(u32, u32)>,
}

/// A copy of code that was taken at submit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CodeV1 {
    tree: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    #[serde(default, skip_serializing_if = "is_none_kept")]
    changed_files: u32,
}

impl CodeV1 {
    fn of(code: &CodeCopy) -> CodeV1 {
        CodeV1 { tree: code.tree.clone(), commit: code.commit.clone(), changed_files: code.changed_files }
    }
}

impl From<CodeV1> for CodeCopy {
    fn from(code: CodeV1) -> CodeCopy {
        CodeCopy { tree: code.tree, commit: code.commit, changed_files: code.changed_files }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LaunchV1 {
    PerAccelerator,
    PerNode,
}

/// Data of a job that no policy removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinV1 {
    /// Logs of ranks.
    Logs,
    /// Points of training curves, which the journal's file once had.
    Samples,
    /// The record of the job.
    Record,
    /// Checkpoints of the job.
    Checkpoints,
}

impl From<Pin> for PinV1 {
    fn from(pin: Pin) -> PinV1 {
        match pin {
            Pin::Logs => PinV1::Logs,
            Pin::Record => PinV1::Record,
            Pin::Checkpoints => PinV1::Checkpoints,
        }
    }
}

impl PinV1 {
    /// Returns what stays, if a release can still keep it.
    pub(crate) fn pin(self) -> Option<Pin> {
        match self {
            PinV1::Logs => Some(Pin::Logs),
            PinV1::Samples => None,
            PinV1::Record => Some(Pin::Record),
            PinV1::Checkpoints => Some(Pin::Checkpoints),
        }
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns `None` for a learned timeout, and 0 for none.
pub fn hang_timeout_ms(timeout: HangTimeout) -> Option<u64> {
    match timeout {
        HangTimeout::Learned => None,
        HangTimeout::After(time) => Some(millis(time)),
        HangTimeout::Never => Some(0),
    }
}

fn hang_timeout(millis: Option<u64>) -> HangTimeout {
    match millis {
        None => HangTimeout::Learned,
        Some(0) => HangTimeout::Never,
        Some(millis) => HangTimeout::After(Duration::from_millis(millis)),
    }
}

impl From<&JobSpec> for SpecV1 {
    fn from(spec: &JobSpec) -> Self {
        let (gang, program) = (&spec.gang, &spec.program);
        SpecV1 {
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            priority: spec.priority.value(),
            nodes: gang.nodes,
            accelerator: gang.accelerator.0.clone(),
            accelerators_per_node: gang.accelerators_per_node,
            cpus_per_node: gang.cpus_per_node,
            memory_per_node: gang.memory_per_node,
            launch: match gang.launch {
                Launch::PerAccelerator => LaunchV1::PerAccelerator,
                Launch::PerNode => LaunchV1::PerNode,
            },
            topology: gang.topology.into(),
            pool: gang.pool.clone(),
            elastic: spec.elastic.as_ref().map(|elastic| ElasticV1 {
                nodes_max: elastic.nodes_max,
                speed_up: elastic.speed_up.points().to_vec(),
            }),
            workdir: program.workdir.clone(),
            code: program.code.as_ref().map(CodeV1::of),
            container: program.container.as_ref().map(ContainerV1::of),
            envs: program.envs.clone(),
            setup: program.setup.clone(),
            run: program.run.clone(),
            checkpoint_path: spec.checkpoint.path.clone(),
            checkpoint_is_shared: spec.checkpoint.is_shared,
            grace_ms: millis(spec.checkpoint.grace),
            max_faults: spec.recovery.max_faults,
            no_progress_limit: spec.recovery.no_progress_limit,
            hang_timeout_ms: hang_timeout_ms(spec.recovery.hang_timeout),
            evicts_stragglers: spec.recovery.evicts_stragglers,
            time_limit_ms: spec.time_limit.map(millis),
            budget: spec.budget,
            spares: spec.spares,
            datasets: spec.datasets.clone(),
            planned: spec.planned.map(PlannedV1::from),
            pins: spec.pins.iter().copied().map(PinV1::from).collect(),
            after: spec.after.iter().copied().map(DependencyV1::from).collect(),
            notify: NotifyV1::of(&spec.notify),
            origin: spec.origin,
            submitter: spec.submitter.0.clone(),
        }
    }
}

impl TryFrom<SpecV1> for JobSpec {
    type Error = Error;

    fn try_from(spec: SpecV1) -> Result<Self, Error> {
        let elastic = |elastic: ElasticV1| {
            let speed_up = SpeedUp::new(spec.nodes, elastic.nodes_max, elastic.speed_up);
            let speed_up = speed_up.map_err(|_| Error::Impossible("speed_up"))?;
            Ok::<_, Error>(Elastic { nodes_max: elastic.nodes_max, speed_up })
        };
        Ok(JobSpec {
            name: spec.name,
            queue: spec.queue,
            priority: Priority::new(spec.priority).ok_or(Error::Impossible("priority"))?,
            gang: GangShape {
                nodes: spec.nodes,
                pool: spec.pool,
                accelerator: AcceleratorKind(spec.accelerator),
                accelerators_per_node: spec.accelerators_per_node,
                cpus_per_node: spec.cpus_per_node,
                memory_per_node: spec.memory_per_node,
                launch: match spec.launch {
                    LaunchV1::PerAccelerator => Launch::PerAccelerator,
                    LaunchV1::PerNode => Launch::PerNode,
                },
                topology: spec.topology.into(),
            },
            elastic: spec.elastic.map(elastic).transpose()?,
            program: Program {
                workdir: spec.workdir,
                code: spec.code.map(CodeCopy::from),
                container: spec.container.map(Container::from),
                envs: spec.envs,
                setup: spec.setup,
                run: spec.run,
            },
            checkpoint: CheckpointPolicy {
                path: spec.checkpoint_path,
                is_shared: spec.checkpoint_is_shared,
                grace: Duration::from_millis(spec.grace_ms),
            },
            recovery: RecoveryPolicy {
                max_faults: spec.max_faults,
                no_progress_limit: spec.no_progress_limit,
                hang_timeout: hang_timeout(spec.hang_timeout_ms),
                evicts_stragglers: spec.evicts_stragglers,
            },
            time_limit: spec.time_limit_ms.map(Duration::from_millis),
            budget: spec.budget,
            spares: spec.spares,
            datasets: spec.datasets,
            planned: spec.planned.map(PlannedRate::from),
            pins: spec.pins.into_iter().filter_map(PinV1::pin).collect(),
            after: spec.after.into_iter().map(Into::into).collect(),
            notify: spec.notify.map(Notify::try_from).transpose()?.unwrap_or_default(),
            origin: spec.origin,
            submitter: Submitter(spec.submitter),
        })
    }
}
