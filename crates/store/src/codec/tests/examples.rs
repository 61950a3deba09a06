//! Random examples of everything that a journal may hold.

mod faults;
mod hours;
mod notify;
mod program;
mod records;
mod sweeps;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, CheckpointPolicy, Elastic, Epoch, GangShape, GpuSeconds, HangTimeout, JobId,
    JobSpec, Launch, Level, Money, NodeId, PoolName, Priority, QueueName, RecoveryPolicy, Segment, SpeedUp, Step,
    Submitter, SweepId, Timestamp, TopologyRequest,
};
use gangline_orchestration::RestartCosts;
use gangline_orchestration::{
    Account, AdvanceReservation, Attempt, Claim, ClaimReason, ClaimRight, Closeness, Configuration, Decision, Entry,
    Event, Fabric, FabricKind, Fate, HealthPolicy, Job, JobState, PlaceReason, PreemptionRules, QueueOrder, QueueSpec,
    RequeueReason, Resource, Share, ShareState, Snapshot, StopReason, Usage, Usages, VictimAlternative,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Texts that are awkward in JSON or YAML.
const TEXTS: [&str; 6] = ["", "train", "a \"quoted\" one", "zwei\nZeilen\t\\", "日本語 🛷", "\u{0}\u{7f}"];

fn queue_name() -> QueueName {
    QueueName::new("team-a.research_1").expect("a valid name")
}

pub(crate) struct Examples {
    random: ChaCha8Rng,
    has_network: bool,
}

impl Examples {
    pub(crate) fn new(seed: u64) -> Examples {
        Examples { random: ChaCha8Rng::seed_from_u64(seed), has_network: true }
    }

    /// Examples from before nodes had locations and jobs had topology requests.
    pub(super) fn without_network(seed: u64) -> Examples {
        Examples { has_network: false, ..Examples::new(seed) }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    fn number(&mut self) -> u32 {
        // A small, a large, or any number.
        match self.below(3) {
            0 => self.below(3),
            1 => u32::MAX - self.below(3),
            _ => self.random.next_u32(),
        }
    }

    fn large(&mut self) -> u64 {
        if self.below(4) == 0 { u64::MAX } else { self.random.next_u64() >> self.below(64) }
    }

    fn text(&mut self) -> String {
        let place = usize::try_from(self.below(6)).expect("small");
        TEXTS[place].to_owned()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_unix_nanos(self.large())
    }

    /// Returns whole milliseconds, the resolution of durations in a journal.
    fn duration(&mut self) -> Duration {
        Duration::from_millis(self.large())
    }

    fn share_of(&mut self) -> (JobId, AttemptNumber, NodeId) {
        (JobId(self.large()), AttemptNumber(self.number()), NodeId(self.number()))
    }

    fn level(&mut self) -> Level {
        Level::ALL[usize::try_from(self.below(6)).expect("small")]
    }

    fn topology(&mut self) -> TopologyRequest {
        if !self.has_network {
            return TopologyRequest::default();
        }
        let segment = self.maybe(|random| Segment { nodes: random.positive(), level: random.level() });
        TopologyRequest { require: self.maybe(Self::level), prefer: self.maybe(Self::level), segment }
    }

    fn amounts(&mut self) -> BTreeMap<AcceleratorKind, u32> {
        (0..self.below(3)).map(|number| (AcceleratorKind(format!("kind-{number}")), self.number())).collect()
    }

    fn configuration(&mut self) -> Configuration {
        let mut queue = |parent| QueueSpec {
            name: queue_name(),
            parent,
            weight: self.positive(),
            quota: self.amounts(),
            borrowing_limit: self.amounts(),
        };
        let queues = vec![queue(None), queue(Some(queue_name()))];
        let order = if self.below(2) == 0 { QueueOrder::Fifo } else { QueueOrder::ShortestExpected };
        let prices =
            (0..self.below(3)).map(|number| (AcceleratorKind(format!("kind-{number}")), self.money())).collect();
        Configuration {
            queues,
            prices,
            gpu_hours: self.gpu_hours(),
            half_life: self.duration(),
            order,
            ageing: self.ageing(),
            default_queue: if self.has_network { self.maybe(|_| queue_name()) } else { None },
            aliases: self.aliases(),
            preemption: self.preemption_rules(),
            fabric: self.fabric(),
            health: self.health_policy(),
            reservations: self.reservations(),
            spares: self.spare_rules(),
        }
    }

    fn aliases(&mut self) -> BTreeMap<String, QueueName> {
        (0..if self.has_network { self.below(3) } else { 0 })
            .map(|it| (format!("partition={it}"), queue_name()))
            .collect()
    }

    fn ageing(&mut self) -> Option<Duration> {
        if self.has_network { self.maybe(Self::duration) } else { None }
    }

    fn health_policy(&mut self) -> Option<HealthPolicy> {
        let policy = |random: &mut Self| HealthPolicy { half_life: random.duration(), suspect_at: random.positive() };
        if self.has_network { self.maybe(policy) } else { None }
    }

    fn reservations(&mut self) -> Vec<AdvanceReservation> {
        let count = if self.has_network { self.below(3) } else { 0 };
        let reservation = |_| AdvanceReservation {
            name: self.text(),
            nodes: (0..self.below(3)).map(|_| self.node().name).collect(),
            from: self.time(),
            until: self.time(),
            queues: self.maybe(|_| queue_name()).into_iter().collect(),
        };
        (0..count).map(reservation).collect()
    }

    fn pool(&mut self) -> PoolName {
        let name = if self.has_network && self.below(2) == 0 { "inference" } else { PoolName::DEFAULT };
        PoolName::new(name).expect("a valid name")
    }

    fn fabric(&mut self) -> Option<Fabric> {
        if !self.has_network {
            return None;
        }
        let kind = if self.below(2) == 0 { FabricKind::FatTree } else { FabricKind::RailOptimised };
        let gbps = (0..self.below(4)).map(|_| (self.level(), self.positive())).collect();
        Some(Fabric { kind, gbps, core_gbps: self.maybe(Self::positive), rails: self.maybe(Self::positive) })
    }

    fn closeness(&mut self) -> Option<Closeness> {
        if !self.has_network {
            return None;
        }
        let domain = self.maybe(|examples| (examples.level(), examples.text()));
        Some(Closeness { domain, speedup_percent: self.maybe(Self::number) })
    }

    fn preemption_rules(&mut self) -> PreemptionRules {
        let restart = RestartCosts { save: self.duration(), requeue: self.duration(), restore: self.duration() };
        let (reclaim, by_priority) = (self.below(2) == 0, self.below(2) == 0);
        let (share_time, consolidate) = (self.below(2) == 0, self.below(2) == 0);
        PreemptionRules { reclaim, by_priority, share_time, consolidate, runtime_min: self.duration(), restart }
    }

    fn usages(&mut self) -> Usages {
        let resources = [Resource::Accelerator(AcceleratorKind(self.text())), Resource::Cpus, Resource::Memory];
        let mut usage = || {
            let served = Duration::new(self.large() / 2, self.below(1_000_000_000));
            Usage { held: self.large(), served, at: self.time() }
        };
        Usages(resources.into_iter().map(|resource| (resource, usage())).collect())
    }

    fn share(&mut self) -> Share {
        let devices = (0..self.below(9)).collect();
        Share { node: NodeId(self.number()), devices, cpus: self.number(), memory: Bytes(self.large()) }
    }

    fn positive(&mut self) -> NonZeroU32 {
        NonZeroU32::new(self.number().max(1)).expect("at least one")
    }

    /// Returns up to twice as many nodes, the added ones at half speed.
    fn elastic(&mut self, nodes: NonZeroU32) -> Option<Elastic> {
        let nodes_max = NonZeroU32::new(nodes.get().checked_mul(2)?)?;
        let given = SpeedUp::new(nodes, nodes_max, vec![(nodes_max.get(), 1_500)]).ok();
        let speed_up = if self.below(2) == 0 { given } else { None };
        let speed_up = speed_up.unwrap_or_else(|| SpeedUp::assumed(nodes, nodes_max));
        self.maybe(|_| Elastic { nodes_max, speed_up })
    }

    pub(crate) fn spec(&mut self) -> JobSpec {
        let value = u16::try_from(self.below(u32::from(Priority::MAX) + 1)).expect("small");
        let nodes = self.positive();
        let envs = (0..self.below(4)).map(|number| (format!("KEY_{number}"), self.text())).collect();
        JobSpec {
            name: self.text(),
            queue: queue_name(),
            priority: Priority::new(value).expect("in range"),
            gang: GangShape {
                nodes,
                pool: self.pool(),
                accelerator: AcceleratorKind(self.text()),
                accelerators_per_node: self.positive(),
                cpus_per_node: self.number(),
                memory_per_node: Bytes(self.large()),
                launch: if self.below(2) == 0 { Launch::PerAccelerator } else { Launch::PerNode },
                topology: self.topology(),
            },
            elastic: self.elastic(nodes),
            program: self.program(envs),
            checkpoint: CheckpointPolicy {
                path: self.maybe(Self::text),
                is_shared: self.has_network && self.below(2) == 0,
                grace: self.duration(),
            },
            recovery: RecoveryPolicy {
                max_faults: self.number(),
                no_progress_limit: self.number(),
                hang_timeout: [HangTimeout::Learned, HangTimeout::After(Duration::from_secs(600)), HangTimeout::Never]
                    [usize::try_from(self.below(3)).expect("small")],
                evicts_stragglers: self.below(2) == 0,
            },
            time_limit: self.maybe(Self::duration),
            budget: self.maybe(Self::money),
            spares: self.number(),
            datasets: self.datasets().into_iter().collect(),
            planned: self.planned(),
            pins: self.pins(),
            after: (0..self.below(3)).map(|_| self.dependency()).collect(),
            notify: self.notify(),
            origin: self.maybe(|random| JobId(random.large())),
            submitter: Submitter(self.text()),
        }
    }

    fn money(&mut self) -> Money {
        Money::from_nano_dollars(self.large().cast_signed())
    }

    fn stops(&mut self) -> [StopReason; 9] {
        let (by, _, node) = self.share_of();
        let (limit, missed) = (self.duration(), self.missed());
        [
            StopReason::Cancelled,
            StopReason::TimeLimit(limit),
            StopReason::PeerEnded,
            StopReason::Preempted { by },
            StopReason::NodeLeaves { node },
            StopReason::Straggler { node },
            StopReason::Resized { to: self.number() },
            StopReason::BudgetSpent,
            StopReason::EarlyStop(missed),
        ]
    }

    pub(super) fn submitted(&mut self) -> Entry {
        Entry::Event(Event::JobSubmitted(Arc::new(self.spec())))
    }

    /// Returns at least one entry of every kind.
    pub(super) fn entries(&mut self) -> Vec<Entry> {
        let (job, attempt, node) = self.share_of();
        let by = Submitter(self.text());
        let mut events = vec![
            Event::NodeJoined(self.node()),
            Event::NodeLost { node },
            Event::DrainRequested { node, within: self.maybe(Self::duration) },
            Event::DrainCancelled { node },
            Event::NodeObserved { node, outside: self.outside() },
            Event::NodeFaulty { node },
            Event::StragglerFound { job, attempt, node },
            Event::Configured(Arc::new(self.configuration())),
            Event::JobSubmitted(Arc::new(self.spec())),
            Event::SweepSubmitted(Arc::new(self.sweep_spec())),
            Event::SweepCancelRequested { sweep: SweepId(job), by: by.clone() },
            Event::MetricReported { job, attempt, step: Step(self.large()), value: self.metric() },
            Event::ChangeRequested { job, changes: self.changes(), by: by.clone() },
            Event::CancelRequested { job, by },
            Event::ShareStarted { job, attempt, node },
            Event::CheckpointCommitted { job, attempt, step: Step(self.large()) },
            Event::IdsSkipped { below: job },
            Event::EpochBegan { epoch: Epoch(self.large()) },
            Event::TimePassed,
        ];
        if self.has_network {
            events.push(Event::DatasetsCached { node, cache: self.node_cache() });
            events.push(Event::BudgetsSpent(self.spent_budgets()));
        }
        events.extend(self.ends().into_iter().map(|end| Event::ShareEnded { job, attempt, node, end }));
        let decisions = self.decisions();
        events.into_iter().map(Entry::Event).chain(decisions.into_iter().map(Entry::Decision)).collect()
    }

    fn decisions(&mut self) -> Vec<Decision> {
        let (job, attempt, _) = self.share_of();
        let not_before = self.time();
        let reason = PlaceReason {
            waited: self.duration(),
            backfills: self.maybe(|examples| JobId(examples.large())),
            candidates: self.number(),
            closeness: self.closeness(),
            kept_since: self.maybe(Self::time),
            is_overdue: self.has_network && self.below(2) == 0,
            held_data: Bytes(if self.has_network { self.large() } else { 0 }),
        };
        let shares = (0..self.below(4)).map(|_| self.share()).collect();
        let mut decisions = vec![Decision::Place { job, attempt, shares, reason }];
        decisions.extend(self.stops().map(|reason| Decision::Stop { job, attempt, reason }));
        let (cause, category) = (self.cause(), self.category());
        let (faults, max_faults, remedy) = (self.number(), self.number(), self.remedy());
        let (by, _, node) = self.share_of();
        let requeues = [
            RequeueReason::Fault { cause, category, faults, max_faults, remedy },
            RequeueReason::Asked,
            RequeueReason::Orphaned,
            RequeueReason::Terminated,
            RequeueReason::Unable,
            RequeueReason::Preempted { by },
            RequeueReason::NodeLeft { node },
            RequeueReason::Straggler { node },
            RequeueReason::Resized { to: self.number() },
        ];
        decisions.extend(requeues.map(|reason| Decision::Requeue { job, attempt, not_before, reason }));
        if self.has_network {
            decisions.push(Decision::Stop { job, attempt, reason: StopReason::SharedBudgetSpent });
            let reasons = [RequeueReason::SharedBudgetSpent, RequeueReason::Withdrawn];
            decisions.extend(reasons.map(|reason| Decision::Requeue { job, attempt, not_before, reason }));
        }
        let fates = [
            Fate::Succeeded,
            Fate::Cancelled,
            Fate::TimedOut,
            Fate::DoNotRestart,
            Fate::FaultsExhausted { cause, faults },
            Fate::NoProgress { cause, faults },
            Fate::NotRetried { cause, category },
            Fate::RequeuesExhausted { requeues: self.number() },
            Fate::BudgetSpent { spent: self.money(), budget: self.money() },
            Fate::EarlyStop(self.missed()),
            Fate::DependencyFailed(self.dependency()),
        ];
        decisions.extend(self.rights().map(|right| self.claim_decision(job, right)));
        decisions.extend(fates.map(|fate| Decision::End { job, fate }));
        decisions
    }

    fn claim(&mut self) -> Claim {
        let nodes = (0..self.below(4)).map(|_| NodeId(self.number())).collect();
        let victims = (0..self.below(4)).map(|_| JobId(self.large())).collect();
        Claim { nodes, victims, until: self.time() }
    }

    fn cost(&mut self) -> GpuSeconds {
        GpuSeconds::of(self.number(), Duration::from_nanos(self.large() >> 8))
    }

    fn rights(&mut self) -> [ClaimRight; 8] {
        let (held, entitled, (by, ..)) = (self.number(), self.number(), self.share_of());
        [
            ClaimRight::Priority,
            ClaimRight::Recovery,
            ClaimRight::TimeShare { expected: self.duration() },
            ClaimRight::Consolidation,
            ClaimRight::Move { by },
            ClaimRight::Entitlement { queue: queue_name(), held, entitled },
            ClaimRight::Growth { from: held, to: entitled, speed_milli: self.number() },
            ClaimRight::Shrink { from: held, to: entitled, by },
        ]
    }

    fn claim_decision(&mut self, job: JobId, right: ClaimRight) -> Decision {
        let alternative =
            |random: &mut Self| VictimAlternative { victims: random.claim().victims, cost: random.cost() };
        let alternatives = (0..self.below(3)).map(|_| alternative(self)).collect();
        let reason = ClaimReason { right, cost: self.cost(), is_cheapest: self.below(2) == 0, alternatives };
        Decision::Claim { job, claim: self.claim(), reason }
    }

    fn attempt(&mut self) -> Attempt {
        let mut states = vec![ShareState::Launching, ShareState::Running];
        states.extend(self.ends().into_iter().map(ShareState::Ended));
        let place = usize::try_from(self.below(9)).expect("small");
        let stop = self.maybe(Self::stops).map(|stops| stops[place]);
        Attempt {
            number: AttemptNumber(self.number()),
            epoch: Epoch(self.large()),
            placed_at: self.time(),
            allocated_at: self.time(),
            shares: states.iter().map(|_| self.share()).collect(),
            states,
            stop,
            stop_at: self.maybe(Self::time),
            straggler: self.maybe(|random| random.share_of().2),
            checkpoint_at_start: self.maybe(|random| Step(random.large())),
        }
    }

    fn job(&mut self, state: JobState) -> Job {
        Job {
            id: JobId(self.large()),
            spec: Arc::new(self.spec()),
            submitted_at: self.time(),
            turn: self.time(),
            state,
            ran: Duration::from_nanos(self.large()),
            led_at: if self.has_network { self.maybe(Self::time) } else { None },
            attempts: self.number(),
            faults: self.number(),
            faults_without_progress: self.number(),
            requeues: self.number(),
            preemptions: self.number(),
            is_recovering: self.below(2) == 0,
            checkpoint: self.maybe(|random| Step(random.large())),
            checkpoint_at: self.maybe(Self::time),
            claim: self.maybe(Self::claim),
            resizes: self.number(),
            width: self.maybe(Self::number),
            pace: self.pace(),
            kept: self.maybe(Self::kept),
            rollback: self.maybe(Self::rollback),
            is_cancelled: self.below(2) == 0,
            is_held: self.below(2) == 0,
            over_budget: if self.has_network { self.maybe(Self::over_budget) } else { None },
            is_exempt: self.has_network && self.below(2) == 0,
            after: (0..self.below(3)).map(|_| self.dependency()).collect(),
            broken: self.maybe(Self::dependency),
            sweep: self.maybe(|random| SweepId(JobId(random.large()))),
            account: Account { spent: self.money(), metered_to: self.time() },
        }
    }

    /// Returns a waiting job.
    pub(super) fn waiting_job(&mut self) -> Job {
        let queued = JobState::Queued { since: self.time(), not_before: self.time() };
        self.job(queued)
    }

    /// Returns a snapshot with at least one of every status and state.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let waiting = self.waiting_job();
        let allocated = JobState::Allocated(self.attempt());
        // Lost and drained at once has been possible only since drains outlast a loss.
        let standings = [(false, false), (false, true), (true, false), (true, true)];
        let standings = &standings[..if self.has_network { 4 } else { 3 }];
        let (mut jobs, sweeps) = (vec![waiting, self.job(allocated)], vec![self.sweep(), self.sweep()]);
        // A job of a sweep.
        if let Some(spec) = &sweeps[0].spec {
            (jobs[0].sweep, jobs[0].spec) = (Some(sweeps[0].id), spec.job.clone());
        }
        Snapshot {
            at: self.time(),
            next_job: self.large(),
            epoch: Epoch(self.large()),
            nodes: standings
                .iter()
                .map(|(is_lost, is_draining)| (self.node(), self.standing(*is_lost, *is_draining)))
                .collect(),
            leaving: vec![(NodeId(self.number()), self.time())],
            jobs,
            sweeps,
            configuration: self.configuration(),
            usages: vec![(None, self.usages()), (Some(queue_name()), self.usages())],
            hours: self.hours_used(),
            histories: vec![self.history(), self.history()],
            losses: self.losses(),
            datasets: vec![(NodeId(3), self.datasets())].into_iter().filter(|(_, names)| !names.is_empty()).collect(),
            spent_budgets: self.spent_budgets(),
            caches: if self.has_network { vec![(NodeId(3), vec![self.node_cache()])] } else { Vec::new() },
        }
    }
}
