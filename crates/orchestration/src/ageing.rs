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
//! could run on the ready nodes, isn't held back, pausing, kept from nodes by an advance reservation or by
//! its sweep's own limit, as long as no node is lost. Each job before it leads for at most `2t` (`t` until
//! its queue is below its limit, `t` until the nodes held for it are free) and then runs for at most `t`; the
//! jobs before it can only become fewer, because a job that is requeued waits anew.
//!
//! Invariants: the nodes held for a leading job are chosen anew in each pass, never for a later time than
//! before; the index has every waiting job that isn't held back, if ageing is configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Flavour, GangShape, JobId, NodeId, SweepId, Timestamp};

use crate::Decision;
use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::placement::{Backfill, Reservation};
use crate::queueing::QueueIndex;

/// A waiting job and since when it waits; the longest wait sorts first.
type Wait = (Timestamp, JobId);

/// The waiting jobs of one flavour.
#[derive(Clone, Debug, Default)]
struct Waiting {
    by_age: BTreeSet<Wait>,
    /// The same jobs by what could keep all of a group from starting: their gang, and their sweep's limit.
    groups: BTreeMap<(Arc<GangShape>, Option<SweepId>), BTreeSet<Wait>>,
}

/// The job that leads a flavour, and what is held for it.
#[derive(Clone, Debug)]
struct Lead {
    job: JobId,
    /// The nodes; none while its queue is at a limit.
    nodes: Option<Reservation>,
    /// The queue at its limit.
    limit: Option<QueueIndex>,
    /// Whether jobs with claims are about to take some of these nodes, so that no further claims are made.
    is_beside_claims: bool,
}

/// Who has waited how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ageing {
    waiting: BTreeMap<Flavour, Waiting>,
    /// Jobs that hold devices and once led, with the time of that start.
    served: BTreeMap<Flavour, BTreeSet<Wait>>,
    /// The leading jobs, as of the last pass.
    leads: BTreeMap<Flavour, Lead>,
}

/// When a waiting job becomes overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// From then on it leads all jobs that compete with it, but for those that have waited longer.
    pub at: Timestamp,
    /// How many of those wait now.
    pub behind: usize,
}

impl Ageing {
    fn insert(&mut self, job: &Job) {
        let Some(since) = job.waits_since() else { return };
        let waiting = self.waiting.entry(job.spec.gang.flavour()).or_default();
        waiting.by_age.insert((since, job.id));
        let group = (Arc::new(job.spec.gang.clone()), job.sweep);
        waiting.groups.entry(group).or_default().insert((since, job.id));
    }

    /// Removes a job that no longer waits in line.
    pub(crate) fn remove(&mut self, job: &Job) {
        let (Some(since), flavour) = (job.waits_since(), job.spec.gang.flavour()) else { return };
        let Some(waiting) = self.waiting.get_mut(&flavour) else { return };
        if !waiting.by_age.remove(&(since, job.id)) {
            return;
        }
        let group = (Arc::new(job.spec.gang.clone()), job.sweep);
        if let Some(waits) = waiting.groups.get_mut(&group) {
            waits.remove(&(since, job.id));
            if waits.is_empty() {
                waiting.groups.remove(&group);
            }
        }
        if waiting.by_age.is_empty() {
            self.waiting.remove(&flavour);
        }
    }

    /// Notes that a job which once led has devices.
    pub(crate) fn note_start(&mut self, job: &Job) {
        if let Some(at) = job.led_at {
            self.served.entry(job.spec.gang.flavour()).or_default().insert((at, job.id));
        }
    }

    /// Undoes [`Ageing::note_start`].
    pub(crate) fn note_end(&mut self, job: &Job) {
        let Some(at) = job.led_at else { return };
        if let Some(served) = self.served.get_mut(&job.spec.gang.flavour()) {
            served.remove(&(at, job.id));
        }
    }

    /// Reports whether a job leads.
    pub(crate) fn is_led_by(&self, job: &Job) -> bool {
        self.leads.get(&job.spec.gang.flavour()).is_some_and(|lead| lead.job == job.id)
    }

    /// Returns the nodes held for leading jobs other than this one.
    pub(crate) fn held_beside(&self, job: Option<JobId>) -> impl Iterator<Item = &Reservation> {
        let others = self.leads.values().filter(move |lead| Some(lead.job) != job);
        others.filter_map(|lead| lead.nodes.as_ref())
    }

    /// Reports whether no claims may be made on a flavour.
    pub(crate) fn pauses_claims(&self, flavour: &Flavour) -> bool {
        self.leads.get(flavour).is_some_and(|lead| lead.is_beside_claims)
    }
}

impl Job {
    fn waits_since(&self) -> Option<Timestamp> {
        match self.state {
            JobState::Queued { since, .. } => Some(since),
            JobState::Allocated(_) => None,
        }
    }
}

impl Engine {
    /// Adds a job that waits in line.
    pub(crate) fn age(&mut self, id: JobId) {
        let (Some(job), Some(ageing)) = (self.jobs.get(&id), self.configuration.ageing) else { return };
        self.ageing.insert(job);
        self.timers.extend(job.waits_since().map(|since| (since + ageing, id)));
    }

    /// Builds the index anew, for another configuration.
    pub(crate) fn age_anew(&mut self) {
        self.ageing = Ageing::default();
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(job) = self.jobs.get(&id).filter(|job| !job.is_held_back()) else { continue };
            match (job.attempt().is_some(), job.led_at, self.configuration.ageing) {
                (false, ..) => self.age(id),
                (true, Some(at), Some(ageing)) => {
                    self.ageing.note_start(job);
                    self.timers.insert((at + ageing, id));
                }
                (true, ..) => {}
            }
        }
    }

    /// Forgets which jobs lead, at the start of a pass.
    pub(crate) fn forget_leads(&mut self) {
        self.ageing.leads.clear();
    }

    /// Starts the jobs that lead, or holds what they need.
    pub(crate) fn place_leading(&mut self, now: Timestamp, decisions: &mut Vec<Decision>) {
        let Some(ageing) = self.configuration.ageing else { return };
        let is_overdue = |(since, _): &Wait| *since + ageing <= now;
        let longest = |waiting: &Waiting| waiting.by_age.first().is_some_and(is_overdue);
        let flavours = self.ageing.waiting.iter().filter(|(_, waiting)| longest(waiting));
        for flavour in flavours.map(|(flavour, _)| flavour.clone()).collect::<Vec<_>>() {
            if self.is_led_lately(now, ageing, &flavour) {
                continue;
            }
            match self.find_lead(now, self.overdue(now, ageing, &flavour)) {
                Some(Ok(lead)) => drop(self.ageing.leads.insert(flavour, lead)),
                Some(Err(decision)) => {
                    self.timers.insert((now + ageing, decision.job()));
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
                None => {}
            }
        }
    }

    /// Reports whether a job that led has had its devices for less than `ageing`.
    fn is_led_lately(&self, now: Timestamp, ageing: Duration, flavour: &Flavour) -> bool {
        let last = self.ageing.served.get(flavour).and_then(BTreeSet::last);
        last.is_some_and(|(at, _)| *at + ageing > now)
    }

    /// Returns the overdue job of each group that has waited longest and could start, the longest wait first.
    fn overdue(&self, now: Timestamp, ageing: Duration, flavour: &Flavour) -> BTreeSet<Wait> {
        let groups = self.ageing.waiting.get(flavour).into_iter().flat_map(|waiting| &waiting.groups);
        let firsts = groups.filter_map(|((gang, sweep), waits)| {
            let is_shut = self.sweeps.full(*sweep).is_some();
            let mut overdue = waits.iter().take_while(|(since, _)| *since + ageing <= now);
            overdue.find(|(_, id)| {
                let job = self.jobs.get(id);
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
        let at_limit = |lead: &Lead| lead.limit.is_some_and(|limit| self.queues.path_up(leaf).any(|up| up == limit));
        let of_kind = self.ageing.leads.iter().filter(|(flavour, _)| flavour.accelerator == gang.accelerator);
        of_kind.map(|(_, lead)| lead).find(|lead| at_limit(lead)).map(|lead| lead.job)
    }

    /// Reports whether a leading job waits for this leaf, or a queue above it, to be below a limit.
    pub(crate) fn is_led_at_limit(&self, leaf: QueueIndex) -> bool {
        let mut limits = self.ageing.leads.values().filter_map(|lead| lead.limit);
        limits.any(|limit| self.queues.path_up(leaf).any(|up| up == limit))
    }

    /// Returns when a waiting job becomes overdue, or became so; none without ageing or if it is held back.
    pub(crate) fn overdue_from(&self, job: &Job) -> Option<Overdue> {
        let (since, ageing) = (job.waits_since()?, self.configuration.ageing?);
        let waiting = self.ageing.waiting.get(&job.spec.gang.flavour())?;
        let wait = (since, job.id);
        let behind = waiting.by_age.range(..wait).count();
        waiting.by_age.contains(&wait).then_some(Overdue { at: since + ageing, behind })
    }

    /// Returns when a leading job starts at the latest, as far as that is known.
    pub(crate) fn leader_starts_by(&self, job: &Job) -> Option<Timestamp> {
        let lead = self.ageing.leads.get(&job.spec.gang.flavour()).filter(|lead| lead.job == job.id)?;
        lead.nodes.as_ref()?.at
    }
}
