//! Stragglers: ranks that hold up the others, found by comparing the work of all ranks of a gang over the
//! same stretch of time. A straggler is noted, and a job that asks for it leaves the straggler's node.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_accounting::attribution::{RankWork, Slowness, Straggler, stragglers};
use gangline_base::{JobId, NodeName, Timestamp};
use gangline_orchestration::Event;
use tracing::debug;

use super::actor::Actor;
use super::batch::Batch;
use gangline_store::model::{JobRecord, StragglerRecord, WorkRecord};

/// The shortest stretch: long enough for many steps, short enough to report soon.
const STRETCH_MIN: Duration = Duration::from_secs(5);
/// Steps that every rank must make within a stretch; until then the stretch goes on.
const STEPS_MIN: u64 = 20;

/// The start of the current stretch, with the ranks' work until then.
#[derive(Debug)]
pub(super) struct Stretch {
    since: Timestamp,
    before: BTreeMap<u32, WorkRecord>,
}

impl Actor {
    /// Looks for stragglers of a job once its ranks have made enough steps since the last look, and records
    /// changes.
    pub(super) fn look_for_stragglers(&mut self, now: Timestamp, job: JobId) {
        let Some(record) = self.records.get_mut(&job) else { return };
        let Some(work) = work_of(record) else { return };
        let fresh = || Stretch { since: now, before: work.iter().map(|(rank, (_, work))| (*rank, *work)).collect() };
        let runtime = self.runtimes.of(job);
        let stretch = runtime.stretch.get_or_insert_with(fresh);
        if stretch.before.len() != work.len() {
            *stretch = fresh();
            return;
        }
        let ranks: Vec<RankWork> =
            work.iter().map(|(rank, (_, work))| done(*rank, work, stretch.before.get(rank))).collect();
        if now.since(stretch.since) < STRETCH_MIN || ranks.iter().any(|rank| rank.steps < STEPS_MIN) {
            return;
        }
        *stretch = fresh();
        let before = record.attempts.last().map(|attempt| attempt.stragglers.clone()).unwrap_or_default();
        let found: Vec<StragglerRecord> =
            stragglers(&ranks).iter().map(|straggler| told(straggler, &work[&straggler.rank].0)).collect();
        // One finding may be chance; and a rank that waits for data would be slow on other nodes too.
        let lasts = |one: &&StragglerRecord| !one.is_data && before.iter().any(|other| other.rank == one.rank);
        if let Some(slow) = found.iter().find(lasts) {
            runtime.evicted = Some(slow.node.clone());
        }
        if record.slow(now, found) {
            self.rows.jobs.insert(job);
        }
    }

    /// Reports stragglers to the engine, for jobs that want to leave such nodes.
    pub(super) fn evict_stragglers(&mut self, now: Timestamp, batch: &mut Batch) {
        for (job, node) in self.runtimes.take_evicted() {
            let live = self.engine.job(job).filter(|job| job.spec.recovery.evicts_stragglers);
            let Some(attempt) = live.and_then(|job| job.attempt()).map(|attempt| attempt.number) else { continue };
            let node = NodeName::new(&node).ok().and_then(|name| self.engine.node_id(&name));
            let Some(node) = node else { continue };
            if let Err(refusal) = self.apply(now, Event::StragglerFound { job, attempt, node }, batch) {
                debug!(%job, %refusal, "a straggler was found too late");
            }
        }
    }
}

/// For each rank: its node and its work so far.
type RanksWork = BTreeMap<u32, (String, WorkRecord)>;

/// Returns the node and work of each rank of the live attempt, if all ranks of the gang have reported.
fn work_of(record: &JobRecord) -> Option<RanksWork> {
    let attempt = record.attempts.last().filter(|attempt| attempt.ended_at.is_none())?;
    let mut work = BTreeMap::new();
    for share in &attempt.shares {
        let ranks = &share.report.as_ref()?.ranks;
        work.extend(ranks.iter().map(|rank| (rank.rank, (share.node.clone(), rank.work))));
    }
    (work.len() > 1).then_some(work)
}

fn done(rank: u32, now: &WorkRecord, before: Option<&WorkRecord>) -> RankWork {
    let before = before.copied().unwrap_or_default();
    let since = |now: u64, before: u64| now.saturating_sub(before);
    RankWork {
        rank,
        steps: since(now.steps, before.steps),
        compute: Duration::from_nanos(since(now.compute_nanos, before.compute_nanos)),
        data: Duration::from_nanos(since(now.data_nanos, before.data_nanos)),
    }
}

fn told(straggler: &Straggler, node: &str) -> StragglerRecord {
    StragglerRecord {
        rank: straggler.rank,
        node: node.to_owned(),
        is_data: straggler.slowness == Slowness::Data,
        own: straggler.own,
        peers: straggler.peers,
        steps: straggler.steps,
    }
}
