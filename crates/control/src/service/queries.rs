//! What is answered from the engine's state.

use std::collections::BTreeMap;

use gangline_base::{JobId, JobSpec, NodeId, SweepSpec, Timestamp};
use gangline_orchestration::{Blocker, DryRun, Explanation, Job, Share};

use super::Error;
use super::actor::Actor;
use crate::wire::{self, Time};

/// Waiting jobs whose reasons are worked out for one listing: a page, or all of a sweep.
const WAIT_REASONS_MAX: usize = 1_000;

impl Actor {
    pub(super) fn dry_run(&self, now: Timestamp, spec: &JobSpec) -> Result<wire::DryRun, Error> {
        Ok(self.dry_run_to_wire(self.engine.dry_run(now, spec)?))
    }

    pub(super) fn dry_run_sweep(&self, now: Timestamp, sweep: &SweepSpec) -> Result<wire::DryRun, Error> {
        Ok(self.dry_run_to_wire(self.engine.dry_run_sweep(now, sweep)?))
    }

    fn dry_run_to_wire(&self, dry_run: DryRun) -> wire::DryRun {
        match dry_run {
            DryRun::WouldStart { shares } => {
                wire::DryRun::WouldStart { placements: shares.iter().map(|share| self.placement(share)).collect() }
            }
            DryRun::WouldWait(explanation) => {
                wire::DryRun::WouldWait { explanation: explanation_to_wire(&explanation) }
            }
        }
    }

    pub(super) fn explain(&self, now: Timestamp, id: JobId) -> Result<wire::Explanation, Error> {
        let unknown = || if id < self.engine.next_job_id() { Error::JobEnded(id) } else { Error::NoJob(id) };
        let job = self.engine.job(id).ok_or_else(unknown)?;
        let record = self.records.get(&id).ok_or_else(unknown)?;
        let mut shown = match self.engine.explain(now, id) {
            Some(explanation) => explanation_to_wire(&explanation),
            None => wire::Explanation {
                job: None,
                state: None,
                summary: self.running_summary(job),
                blocker: None,
                ahead: 0,
                waiting: self.engine.waiting_count(),
                starts_by: None,
                history: Vec::new(),
            },
        };
        shown.job = Some(id.to_string());
        shown.state = Some(record.state);
        shown.history = crate::model::history_to_wire(record);
        Ok(shown)
    }

    fn running_summary(&self, job: &Job) -> String {
        let Some(attempt) = job.attempt() else { return "waiting".to_owned() };
        let places: Vec<String> =
            attempt.shares.iter().map(|share| format!("{} {:?}", self.node_name(share.node), share.devices)).collect();
        let because = self.records.get(&job.id).and_then(|record| record.last_attempt());
        let because = because.map_or("", |attempt| attempt.placed_because.as_str());
        format!("{} holds {}: {because}", attempt.number, places.join(", "))
    }

    /// What each of these jobs waits for; those that don't are left out.
    pub(super) fn wait_reasons(&self, now: Timestamp, jobs: &[JobId]) -> BTreeMap<JobId, String> {
        let shown = &jobs[..jobs.len().min(WAIT_REASONS_MAX)];
        self.engine.blockers(now, shown).into_iter().map(|(job, blocker)| (job, blocker.to_string())).collect()
    }

    pub(super) fn health(&self) -> wire::Health {
        let poison = self.journal.poison();
        let trouble = self.troubles.summary().or_else(|| self.journal_trouble());
        let room = self.journal.room();
        let (damage, checked_at) = self.audit.state();
        let (status, reason) = match (poison, trouble, damage) {
            (Some(poison), ..) => (wire::Health::POISONED, Some(poison.to_owned())),
            (None, Some(trouble), _) => ("unwell", Some(trouble)),
            (None, None, Some(damage)) => (wire::Health::DEGRADED, Some(damage)),
            (None, None, None) => ("ok", None),
        };
        wire::Health {
            status: status.to_owned(),
            reason,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            journal_entries: self.journal.last().0,
            journal_bytes: room.used.0,
            journal_bytes_max: room.max.0,
            last_job: self.engine.next_job_id().0 - 1,
            checked_at: checked_at.map(Time),
            pid: std::process::id(),
        }
    }

    pub(super) fn node_name(&self, node: NodeId) -> String {
        self.engine.cluster().node(node).map_or_else(|| node.to_string(), |node| node.spec.name.to_string())
    }

    fn placement(&self, share: &Share) -> wire::Placement {
        wire::Placement { node: self.node_name(share.node), devices: share.devices.clone() }
    }
}

fn explanation_to_wire(explanation: &Explanation) -> wire::Explanation {
    wire::Explanation {
        job: None,
        state: None,
        summary: explanation.blocker.to_string(),
        blocker: Some(blocker_to_wire(&explanation.blocker)),
        ahead: explanation.ahead,
        waiting: explanation.waiting,
        starts_by: explanation.starts_by.map(Time),
        history: Vec::new(),
    }
}

fn blocker_to_wire(blocker: &Blocker) -> wire::Blocker {
    let names = |names: &[gangline_base::NodeName]| names.iter().map(ToString::to_string).collect();
    match blocker {
        Blocker::Claimed { victims, until } => {
            wire::Blocker::Claimed { victims: victims.iter().map(JobId::to_string).collect(), until: Time(*until) }
        }
        Blocker::BackingOff { until } => wire::Blocker::BackingOff { until: Time(*until) },
        Blocker::Parallel { sweep, holding, max_parallel } => {
            wire::Blocker::Parallel { sweep: sweep.to_string(), holding: *holding, max_parallel: *max_parallel }
        }
        Blocker::Behind { job, starts_by, because } => wire::Blocker::Behind {
            job: job.to_string(),
            starts_by: starts_by.map(Time),
            because: Box::new(blocker_to_wire(because)),
        },
        Blocker::Quota { queue, kind, wanted, held, limit } => wire::Blocker::Quota {
            queue: queue.to_string(),
            accelerator: kind.to_string(),
            accelerators_wanted: *wanted,
            accelerators_held: *held,
            limit: *limit,
        },
        Blocker::Reserved { reservation, from, until, .. } => {
            wire::Blocker::Reserved { reservation: reservation.clone(), from: Time(*from), until: Time(*until) }
        }
        Blocker::Spares { kept, pool } => wire::Blocker::Spares {
            accelerator: pool.lane.accelerator.to_string(),
            nodes_kept: *kept,
            nodes_by_rules: pool.by_rules,
            nodes_by_jobs: pool.by_jobs,
            because: pool.to_string(),
        },
        Blocker::NotEnoughFree { wanted, nodes_with_room, free_accelerators, holders } => {
            wire::Blocker::NotEnoughFree {
                nodes_wanted: wanted.nodes.get(),
                accelerator: wanted.accelerator.to_string(),
                accelerators_per_node: wanted.accelerators_per_node.get(),
                nodes_with_room: *nodes_with_room,
                free_accelerators: *free_accelerators,
                holders: holders.iter().map(JobId::to_string).collect(),
            }
        }
        Blocker::Topology { wanted, best, nodes_with_room } => wire::Blocker::Topology {
            nodes_wanted: wanted.nodes.get(),
            level: best.level.to_string(),
            best_domain: best.domain.clone(),
            nodes_close: best.nodes,
            nodes_with_room: *nodes_with_room,
        },
        Blocker::NodesUnavailable { wanted, ready, draining, lost, suspect } => wire::Blocker::NodesUnavailable {
            nodes_wanted: wanted.nodes.get(),
            nodes_ready: *ready,
            draining: names(draining),
            lost: names(lost),
            suspect: names(suspect),
        },
        Blocker::Nothing => wire::Blocker::Nothing,
    }
}
