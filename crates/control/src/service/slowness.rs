//! Ranks that hold up the others, found by what all ranks of a gang say of their work over the same stretch of time.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{JobId, Timestamp};
use gangline_execution::protocol::Work;
use gangline_telemetry::{RankWork, Slowness, Straggler, stragglers};

use super::actor::Actor;
use crate::model::{JobRecord, StragglerRecord};

/// The stretch that is looked at: long enough for many steps, short enough to tell soon.
const STRETCH_MIN: Duration = Duration::from_secs(5);
/// Steps that every rank must have made in it, or it goes on.
const STEPS_MIN: u64 = 20;

/// Where the stretch began.
#[derive(Debug)]
pub(super) struct Stretch {
    attempt: u32,
    since: Timestamp,
    before: BTreeMap<u32, Work>,
}

impl Actor {
    /// Looks for stragglers of a job once enough steps were made since the last look, and notes a change.
    pub(super) fn look_for_stragglers(&mut self, now: Timestamp, job: JobId) {
        let Some(record) = self.records.get_mut(&job) else { return };
        let Some((attempt, work)) = work_of(record) else { return };
        let fresh =
            || Stretch { attempt, since: now, before: work.iter().map(|(rank, (_, work))| (*rank, *work)).collect() };
        let stretch = self.stretches.entry(job).or_insert_with(fresh);
        if stretch.attempt != attempt || stretch.before.len() != work.len() {
            *stretch = fresh();
            return;
        }
        let ranks: Vec<RankWork> =
            work.iter().map(|(rank, (_, work))| done(*rank, work, stretch.before.get(rank))).collect();
        if now.since(stretch.since) < STRETCH_MIN || ranks.iter().any(|rank| rank.steps < STEPS_MIN) {
            return;
        }
        *stretch = fresh();
        let found: Vec<StragglerRecord> =
            stragglers(&ranks).iter().map(|straggler| told(straggler, &work[&straggler.rank].0)).collect();
        if record.slow(now, found) {
            self.rows.jobs.insert(job);
        }
    }
}

/// By rank: its node, and what it has done.
type RanksWork = BTreeMap<u32, (String, Work)>;

/// The node and the work of each rank, if all of the gang have reported.
fn work_of(record: &JobRecord) -> Option<(u32, RanksWork)> {
    let attempt = record.attempts.last().filter(|attempt| attempt.ended_at.is_none())?;
    let mut work = BTreeMap::new();
    for share in &attempt.shares {
        let ranks = &share.report.as_ref()?.ranks;
        work.extend(ranks.iter().map(|rank| (rank.rank, (share.node.clone(), rank.work))));
    }
    (work.len() > 1).then_some((attempt.number, work))
}

fn done(rank: u32, now: &Work, before: Option<&Work>) -> RankWork {
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
