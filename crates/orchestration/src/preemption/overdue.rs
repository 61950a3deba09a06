//! Ageing: no job waits for ever, whatever else arrives.
//!
//! A job that has waited for [`Configuration::ageing`](crate::Configuration::ageing) is *overdue*. Of the
//! overdue jobs of a flavour, the one that has waited longest *leads*: it starts as soon as there is room,
//! before every other job in every queue, and until then nodes are held for it which nobody else may use
//! beyond the time at which it starts, not even by preemption. If its queue is at its limit, nothing below
//! that queue starts until the queue holds little enough. Started, it isn't stopped for a higher priority any
//! more; another queue may still take back what it is entitled to. PBS Professional has a similar rule for
//! jobs that starve (<https://2021.help.altair.com/2021.1.0/control/Chunk1626206211.htm>).
//!
//! One job leads at a time, and after it has started no other leads until it has ended or had its devices for
//! as long as a job waits to be overdue. So a large backlog of low priority takes one gang's room at a time
//! from urgent work, and not the whole cluster.
//!
//! The bound: if `k` jobs of its flavour have waited longer, and no job runs for longer than `t` (time limit
//! plus grace), a job starts at the latest `ageing + (3k + 2) t` after it was queued. It holds for a job that
//! could run on the ready nodes, isn't held back, pausing, kept from nodes by an advance reservation, by its
//! sweep's own limit or by its queue's GPU-hours, as long as no node is lost. Each job before it leads for at most `2t` (`t` until
//! its queue is below its limit, `t` until the nodes held for it are free) and then runs for at most `t`; the
//! jobs before it can only become fewer, because a job that is requeued waits anew.
//!
//! Invariants: the nodes held for a leading job are chosen anew in each pass; once no claim is in their way,
//! none gets into it, and they are never for a later time than before; `queueing/ageing.rs` has every waiting job that isn't held back, if ageing is configured.

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::{Flavour, GangShape, JobId, NodeId, Timestamp};

use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::placement::{Backfill, Lead};
use crate::queueing::{QueueIndex, Wait};
use crate::{Decision, Overdue};

impl Engine {
    /// Adds a job that waits in line.
    pub(crate) fn age(&mut self, id: JobId) {
        let (Some(job), Some(ageing)) = (self.jobs.get(&id), self.configuration.ageing) else { return };
        let Some(since) = waits_since(job) else { return };
        self.ageing.insert(&job.spec, job.sweep, (since, id));
        self.timers.insert((since + ageing, id));
    }

    /// Builds the index anew, for another configuration or from a snapshot.
    pub(crate) fn age_anew(&mut self) {
        (self.ageing, self.leads) = Default::default();
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(job) = self.jobs.get(&id).filter(|job| !job.is_held_back()) else { continue };
            match (job.attempt().is_some(), job.led_at, self.configuration.ageing) {
                (false, ..) => self.age(id),
                (true, Some(at), Some(ageing)) => {
                    self.ageing.note_start(&job.spec, (at, id));
                    self.timers.insert((at + ageing, id));
                }
                (true, ..) => {}
            }
        }
    }

    /// Forgets which jobs lead, at the start of a pass.
    pub(crate) fn forget_leads(&mut self) {
        self.leads.clear();
    }

    /// Holds nodes for the jobs that lead while jobs whose claims come true are placed: these may use what they
    /// have claimed and what else is free.
    pub(crate) fn hold_for_leading(&mut self, now: Timestamp) {
        let Some(ageing) = self.configuration.ageing.filter(|_| !self.claimants.is_empty()) else { return };
        let claims = self.claimants.iter().filter_map(|id| self.jobs.get(id)?.claim.as_ref());
        let claimed: BTreeSet<NodeId> = claims.flat_map(|claim| claim.nodes.iter().copied()).collect();
        for flavour in self.ageing.due(now, ageing) {
            let overdue = self.overdue(now, ageing, &flavour);
            let held = overdue.into_iter().filter_map(|(_, id)| self.jobs.get(&id)).find_map(|job| {
                let gang = &job.spec.gang;
                if self.claimants.contains(&job.id)
                    || self.queues.limited_by(self.queues.leaf(&job.spec.queue), gang).is_some()
                {
                    return None;
                }
                let closed: Vec<NodeId> = self.barred_nodes(now, &job.applicant()).union(&claimed).copied().collect();
                let nodes = Backfill::new(&self.cluster, &self.outlook).reserve(now, (job.id, gang), closed, &[]);
                let lead = |nodes| Lead { job: job.id, nodes: Some(nodes), limit: None, is_beside_claims: false };
                Some(nodes).filter(|nodes| nodes.is_for(gang)).map(lead)
            });
            held.into_iter().for_each(|lead| self.leads.insert(flavour.clone(), lead));
        }
    }

    /// Starts the jobs that lead, or holds what they need.
    pub(crate) fn place_leading(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let Some(ageing) = self.configuration.ageing else { return };
        for flavour in self.ageing.due(now, ageing) {
            match self.find_lead(now, self.overdue(now, ageing, &flavour)) {
                Some(Ok(lead)) => self.leads.insert(flavour, lead),
                Some(Err(decision)) => {
                    self.timers.insert((now + ageing, decision.job()));
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
                None => {}
            }
        }
    }

    /// Returns the overdue job of each group that has waited longest and could start, the longest wait first.
    fn overdue(&self, now: Timestamp, ageing: Duration, flavour: &Flavour) -> BTreeSet<Wait> {
        let firsts = self.ageing.groups(flavour).filter_map(|((gang, sweep), waits)| {
            let is_shut = self.sweeps.full(*sweep).is_some();
            let mut overdue = waits.iter().take_while(|(since, _)| *since + ageing <= now);
            overdue.find(|(_, id)| {
                let has_hours = |job: &Job| self.queues.spent_above(self.queues.leaf(&job.spec.queue)).is_none();
                let job = self.jobs.get(id).filter(|job| has_hours(job));
                !is_shut && job.is_some_and(|job| self.is_due(now, job)) && self.could_run_gang(gang)
            })
        });
        firsts.copied().collect()
    }

    /// Returns the first of these jobs that could start with enough room: its start if there is room, or else
    /// what to hold for it.
    fn find_lead(&self, now: Timestamp, overdue: BTreeSet<Wait>) -> Option<Result<Lead, Decision>> {
        overdue.into_iter().filter_map(|(_, id)| self.jobs.get(&id)).find_map(|job| {
            let gang = &job.spec.gang;
            let limit = self.queues.limited_by(self.queues.leaf(&job.spec.queue), gang);
            if limit.is_some() {
                return Some(Ok(Lead { job: job.id, nodes: None, limit, is_beside_claims: false }));
            }
            if let Some(mut decision) = self.place_beside(now, job, &self.claims_beside(job.id), &[]) {
                if let Decision::Place { reason, .. } = &mut decision {
                    reason.is_overdue = true;
                }
                return Some(Err(decision));
            }
            let barred: Vec<NodeId> = self.barred_nodes(now, &job.applicant()).into_iter().collect();
            let claimed = self.claimed_nodes_beside(job.id);
            [false, true].into_iter().find_map(|is_beside_claims| {
                let mut closed = barred.clone();
                closed.extend(claimed.iter().filter(|_| !is_beside_claims));
                let backfill = Backfill::new(&self.cluster, &self.outlook);
                let nodes = Some(backfill.reserve(now, (job.id, gang), closed, &[])).filter(|it| it.is_for(gang))?;
                Some(Ok(Lead { job: job.id, nodes: Some(nodes), limit: None, is_beside_claims }))
            })
        })
    }

    /// Returns the leading job that waits for a queue, this leaf or one above it, to be below its limit for the
    /// kind of accelerator: until then nothing may start there.
    pub(crate) fn leads_at_limit(&self, leaf: QueueIndex, gang: &GangShape) -> Option<JobId> {
        let mut limits = self.leads.at_limit(Some(gang));
        limits.find(|(_, limit)| self.queues.path_up(leaf).any(|up| up == *limit)).map(|(job, _)| job)
    }

    /// Reports whether a leading job waits for this leaf, or a queue above it, to be below a limit.
    pub(crate) fn is_led_at_limit(&self, leaf: QueueIndex) -> bool {
        self.leads.at_limit(None).any(|(_, limit)| self.queues.path_up(leaf).any(|up| up == limit))
    }

    /// Reports whether a job goes before all others because it has waited longest.
    pub(crate) fn leads(&self, job: &Job) -> bool {
        self.leads.is_led_by(job.id, &job.spec.gang)
    }

    /// Returns when a waiting job becomes overdue, or became so; none without ageing or if it is held back.
    pub(crate) fn overdue_from(&self, job: &Job) -> Option<Overdue> {
        let since = waits_since(job)?;
        let behind = self.ageing.longer(&job.spec, (since, job.id))?;
        Some(Overdue { at: since + self.configuration.ageing?, behind })
    }

    /// Returns when a leading job starts at the latest, as far as that is known.
    pub(crate) fn leader_starts_by(&self, job: &Job) -> Option<Timestamp> {
        self.leads.of(&job.spec.gang).filter(|lead| lead.job == job.id)?.nodes.as_ref()?.at
    }
}

/// Returns since when a job waits, if it does.
fn waits_since(job: &Job) -> Option<Timestamp> {
    match job.state {
        JobState::Queued { since, .. } => Some(since),
        JobState::Allocated(_) => None,
    }
}
