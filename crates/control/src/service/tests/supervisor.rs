//! A scripted supervisor: the reports that one would send.

use gangline_base::{Bucket, Timestamp};
use gangline_execution::protocol::{
    CacheReport, CachedDataset, CheckpointReport, DatasetReads, Fault, FaultCause, Marks, NodeState, Orders, Outcome,
    PROTOCOL_VERSION, RankReport, Report, Sample, SampleMetric, SupervisorSpec, UsageReport, Work,
};

use super::World;

/// The bucket to which [`Supervisor::worked`] adds.
pub(super) const BUSY: Bucket = Bucket::Compute;

/// Returns the outcome of a fault of rank 0.
pub(super) fn fault(cause: FaultCause, at: Timestamp) -> Outcome {
    let at = at.unix_nanos();
    let last_lines = vec!["boom".to_owned()];
    Outcome::Fault {
        fault: Fault { rank: Some(0), cause, noticed_at: at, last_sign_of_life: at, last_lines, diagnosis: None },
    }
}

/// One node's supervisor, as a report that grows.
#[derive(Clone)]
pub(super) struct Supervisor {
    pub(super) spec: SupervisorSpec,
    pub(super) report: Report,
}

/// Returns the loss that ranks report at a step.
pub(super) fn loss_at(step: u64) -> f64 {
    f64::from(u32::try_from(step).expect("a small step")).mul_add(-0.01, 5.0)
}

impl Supervisor {
    pub(super) fn new(spec: &SupervisorSpec, now: Timestamp) -> Supervisor {
        let first_rank = spec.node_rank * spec.ranks_per_node;
        let rank = |index| RankReport {
            rank: first_rank + index,
            pid: Some(100 + index),
            phase: None,
            step: None,
            total_steps: Some(100),
            tokens: 0,
            last_sign_of_life: now.unix_nanos(),
            dropped: 0,
            work: Work::default(),
        };
        let report = Report {
            version: PROTOCOL_VERSION,
            job: spec.job,
            attempt: spec.attempt,
            epoch: spec.epoch,
            node: spec.node.clone(),
            supervisor_pid: 99,
            sent_at: now.unix_nanos(),
            started_at: now.unix_nanos(),
            state: NodeState::Preparing,
            ranks: (0..spec.ranks_per_node).map(rank).collect(),
            usage: UsageReport::default(),
            marks: Marks::default(),
            checkpoint: None,
            checkpoints: 0,
            checkpoint_bytes: 0,
            rendezvous: None,
            notice: None,
            findings: Vec::new(),
            silence: None,
            cache: None,
            dataset_reads: std::collections::BTreeMap::new(),
            archives: std::collections::BTreeMap::new(),
            samples: Vec::new(),
            samples_from: 0,
        };
        Supervisor { spec: spec.clone(), report }
    }

    pub(super) fn runs(&mut self, now: Timestamp) -> &mut Self {
        self.report.state = NodeState::Running { since: now.unix_nanos() };
        self
    }

    pub(super) fn ends(&mut self, now: Timestamp, outcome: Outcome) -> &mut Self {
        self.report.state = NodeState::Ended { at: now.unix_nanos(), outcome };
        self
    }

    /// Lets every rank make this step, with a sample of it.
    pub(super) fn steps(&mut self, now: Timestamp, step: u64) -> &mut Self {
        for rank in &mut self.report.ranks {
            (rank.step, rank.tokens) = (Some(step), step * 10);
        }
        self.report.samples.push(Sample {
            at: now.unix_nanos(),
            step,
            loss: Some(loss_at(step)),
            tokens: step * 10,
            metric: None,
            is_diverged: false,
        });
        self
    }

    /// Makes a step with the metric of the job's sweep.
    pub(super) fn measures(&mut self, now: Timestamp, step: u64, metric: SampleMetric) -> &mut Self {
        self.steps(now, step);
        if let Some(sample) = self.report.samples.last_mut() {
            sample.metric = Some(metric);
        }
        self
    }

    /// Adds `nanos` nano-GPU-seconds of useful work.
    pub(super) fn worked(&mut self, nanos: u64) -> &mut Self {
        self.report.usage.0.insert(BUSY.name().to_owned(), nanos);
        self
    }

    /// Has asked for so many ranges of a dataset, of which the node's cache holds as many bytes.
    pub(super) fn read(&mut self, get: u64) -> &mut Self {
        let (dataset, here_bytes) = ("s3://bucket/c4".to_owned(), get);
        let reads = DatasetReads { get, head: 1, list: 1, put: 0, failed: 0, bytes: here_bytes };
        self.report.dataset_reads = [(dataset.clone(), reads)].into();
        let datasets = vec![CachedDataset { dataset, here_bytes, bytes: 1 << 30 }];
        self.report.cache = Some(CacheReport { folder: "/cache".to_owned(), datasets });
        self
    }

    pub(super) fn saved(&mut self, now: Timestamp, step: u64) -> &mut Self {
        self.report.checkpoint = Some(CheckpointReport { step, bytes: 1_000, at: now.unix_nanos() });
        self.report.checkpoints += 1;
        self.report.checkpoint_bytes += 1_000;
        self
    }

    /// Sends the report, without the acknowledged samples.
    pub(super) fn tell(&mut self, world: &mut World) -> Orders {
        self.report.sent_at = world.now.unix_nanos();
        let orders = world.report(&self.report);
        while self.report.samples_from < orders.samples_stored && !self.report.samples.is_empty() {
            self.report.samples.remove(0);
            self.report.samples_from += 1;
        }
        orders
    }
}
