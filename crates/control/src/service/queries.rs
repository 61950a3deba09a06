//! Queries that are answered from the engine's state.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_api::{self as api, Time};
use gangline_base::{GpuSeconds, JobId, JobSpec, NodeId, QueueName, SweepSpec, Timestamp};
use gangline_orchestration::{Blocker, DryRun, Explanation, HourQuota, Job, OverBudget, Share};

use super::Error;
use super::actor::Actor;
use super::queues::whole_seconds;
use crate::views;
use gangline_store::model::AttemptRecord;

/// The most jobs of one listing (a page, or a whole sweep) for which the reason to wait is computed.
const WAIT_REASONS_MAX: usize = 1_000;

impl Actor {
    pub(super) fn dry_run(&self, now: Timestamp, spec: &JobSpec) -> Result<api::DryRun, Error> {
        self.refuse_unrunnable(spec)?;
        let (after, queue) =
            (self.settle_dependencies(&spec.after)?, self.engine.configuration().queue_for(&spec.queue));
        let spec = JobSpec { after, queue, ..spec.clone() };
        Ok(self.dry_run_to_api(self.engine.dry_run(now, &spec)?))
    }

    pub(super) fn dry_run_sweep(&self, now: Timestamp, sweep: &SweepSpec) -> Result<api::DryRun, Error> {
        self.refuse_unrunnable(&sweep.job)?;
        let after = self.settle_dependencies(&sweep.job.after)?;
        let queue = self.engine.configuration().queue_for(&sweep.job.queue);
        let job = Arc::new(JobSpec { after, queue, ..(*sweep.job).clone() });
        let sweep = SweepSpec { job, ..sweep.clone() };
        Ok(self.dry_run_to_api(self.engine.dry_run_sweep(now, &sweep)?))
    }

    fn dry_run_to_api(&self, dry_run: DryRun) -> api::DryRun {
        match dry_run {
            DryRun::WouldStart { shares } => {
                api::DryRun::WouldStart { placements: shares.iter().map(|share| self.placement(share)).collect() }
            }
            DryRun::WouldPreempt(explanation) => {
                api::DryRun::WouldPreempt { explanation: explanation_to_api(&explanation) }
            }
            DryRun::WouldWait(explanation) => api::DryRun::WouldWait { explanation: explanation_to_api(&explanation) },
        }
    }

    pub(super) fn explain(&self, now: Timestamp, id: JobId) -> Result<api::Explanation, Error> {
        let unknown = || self.not_live(id);
        let job = self.engine.job(id).ok_or_else(unknown)?;
        let record = self.records.get(&id).ok_or_else(unknown)?;
        let mut shown = match self.engine.explain(now, id) {
            Some(explanation) => explanation_to_api(&explanation),
            None => api::Explanation {
                job: None,
                state: None,
                summary: self.running_summary(job),
                blocker: None,
                ahead: 0,
                waiting: self.engine.waiting_count(),
                starts_by: None,
                first_by: None,
                notes: Vec::new(),
                history: Vec::new(),
            },
        };
        shown.notes = self.notes_on(&job.spec);
        shown.notes.extend(self.fetched_meanwhile(now, &job.spec).filter(|_| job.attempt().is_none()));
        shown.job = Some(id.to_string());
        shown.state = Some(views::state(record.state));
        shown.history = views::history_to_api(record);
        Ok(shown)
    }

    fn running_summary(&self, job: &Job) -> String {
        let Some(attempt) = job.attempt() else { return "waiting".to_owned() };
        let places: Vec<String> =
            attempt.shares.iter().map(|share| format!("{} {:?}", self.node_name(share.node), share.devices)).collect();
        let because = self.records.get(&job.id).and_then(|record| record.last_attempt());
        let silence =
            because.and_then(AttemptRecord::silence).map(|silence| format!("; {silence}")).unwrap_or_default();
        let because = because.map_or("", |attempt| attempt.placed_because.as_str());
        format!("{} holds {}: {because}{silence}", attempt.number, places.join(", "))
    }

    /// Returns the reason of each pending job among `jobs`; other jobs are left out.
    pub(super) fn wait_reasons(&self, now: Timestamp, jobs: &[JobId]) -> BTreeMap<JobId, String> {
        let shown = &jobs[..jobs.len().min(WAIT_REASONS_MAX)];
        self.engine.blockers(now, shown).into_iter().map(|(job, blocker)| (job, blocker.to_string())).collect()
    }

    pub(super) fn health(&self) -> api::Health {
        let poison = self.journal.poison();
        let trouble = self.troubles.summary().or_else(|| self.journal_trouble());
        let room = self.journal.room();
        let (damage, checked_at) = self.audit.state();
        let (status, reason) = match (poison, trouble, damage) {
            (Some(poison), ..) => (api::Health::POISONED, Some(poison.to_owned())),
            (None, Some(trouble), _) => ("unwell", Some(trouble)),
            (None, None, Some(damage)) => (api::Health::DEGRADED, Some(damage)),
            (None, None, None) => ("ok", None),
        };
        api::Health {
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

    fn placement(&self, share: &Share) -> api::Placement {
        api::Placement { node: self.node_name(share.node), devices: share.devices.clone() }
    }
}

fn explanation_to_api(explanation: &Explanation) -> api::Explanation {
    api::Explanation {
        job: None,
        state: None,
        summary: explanation.blocker.to_string(),
        blocker: Some(blocker_to_api(&explanation.blocker)),
        ahead: explanation.ahead,
        waiting: explanation.waiting,
        starts_by: explanation.starts_by.map(Time),
        first_by: explanation.overdue.map(|overdue| api::FirstBy { at: Time(overdue.at), behind: overdue.behind }),
        notes: Vec::new(),
        history: Vec::new(),
    }
}

fn hours_spent(queue: &QueueName, used: GpuSeconds, quota: HourQuota, until: Timestamp) -> api::Blocker {
    api::Blocker::GpuHours {
        queue: queue.to_string(),
        gpu_seconds_used: whole_seconds(used),
        gpu_seconds_limit: whole_seconds(quota.limit),
        per: quota.per.name().to_owned(),
        until: Time(until),
    }
}

fn over_budget(OverBudget { budget, limit, until }: &OverBudget) -> api::Blocker {
    let (budget, limit_nano_dollars) = (budget.clone(), limit.nano_dollars());
    api::Blocker::OverBudget { budget, limit_nano_dollars, until: Time(*until) }
}

fn blocker_to_api(blocker: &Blocker) -> api::Blocker {
    let names = |names: &[gangline_base::NodeName]| names.iter().map(ToString::to_string).collect();
    match blocker {
        Blocker::Claimed { victims, until } => {
            api::Blocker::Claimed { victims: victims.iter().map(JobId::to_string).collect(), until: Time(*until) }
        }
        Blocker::Held => api::Blocker::Held,
        Blocker::OverBudget(over) => over_budget(over),
        Blocker::After { dependencies, more } => api::Blocker::After {
            jobs: dependencies
                .iter()
                .map(|it| api::Dependency { job: it.job.to_string(), condition: it.condition.name().to_owned() })
                .collect(),
            more: *more,
        },
        Blocker::BackingOff { until } => api::Blocker::BackingOff { until: Time(*until) },
        Blocker::Parallel { sweep, holding, max_parallel } => {
            api::Blocker::Parallel { sweep: sweep.to_string(), holding: *holding, max_parallel: *max_parallel }
        }
        Blocker::Behind { job, starts_by, because } => api::Blocker::Behind {
            job: job.to_string(),
            starts_by: starts_by.map(Time),
            because: Box::new(blocker_to_api(because)),
        },
        Blocker::Quota { queue, kind, wanted, held, limit } => api::Blocker::Quota {
            queue: queue.to_string(),
            accelerator: kind.to_string(),
            accelerators_wanted: *wanted,
            accelerators_held: *held,
            limit: *limit,
        },
        Blocker::GpuHours { queue, used, quota, until } => hours_spent(queue, *used, *quota, *until),
        Blocker::Reserved { reservation, from, until, .. } => {
            api::Blocker::Reserved { reservation: reservation.clone(), from: Time(*from), until: Time(*until) }
        }
        Blocker::Spares { kept, pool } => api::Blocker::Spares {
            accelerator: pool.flavour.accelerator.to_string(),
            nodes_kept: *kept,
            nodes_by_rules: pool.by_rules,
            nodes_by_jobs: pool.by_jobs,
            because: pool.to_string(),
        },
        Blocker::NotEnoughFree { wanted, nodes_with_room, free_accelerators, holders } => api::Blocker::NotEnoughFree {
            nodes_wanted: wanted.nodes.get(),
            accelerator: wanted.accelerator.to_string(),
            accelerators_per_node: wanted.accelerators_per_node.get(),
            nodes_with_room: *nodes_with_room,
            free_accelerators: *free_accelerators,
            holders: holders.iter().map(JobId::to_string).collect(),
        },
        Blocker::Topology { wanted, best, nodes_with_room } => api::Blocker::Topology {
            nodes_wanted: wanted.nodes.get(),
            level: best.level.to_string(),
            best_domain: best.domain.clone(),
            nodes_close: best.nodes,
            nodes_with_room: *nodes_with_room,
        },
        Blocker::NodesUnavailable { wanted, ready, draining, lost, suspect } => api::Blocker::NodesUnavailable {
            nodes_wanted: wanted.nodes.get(),
            nodes_ready: *ready,
            draining: names(draining),
            lost: names(lost),
            suspect: names(suspect),
        },
        Blocker::Nothing => api::Blocker::Nothing,
    }
}
