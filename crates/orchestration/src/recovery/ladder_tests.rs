//! The ladder's rungs, one case each; random histories of faults are in tests/properties.

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{FaultCategory, JobId, NodeId, RecoveryPolicy, Step, Timestamp};

use crate::fixture::{gang, job, node};
use crate::{
    BadSteps, Configuration, Decision, Engine, Event, Fate, FaultCause, HealthPolicy, Limits, NodeStatus,
    RequeueReason, Rung, ShareEnd, StopReason,
};

fn seconds(count: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(count)
}

struct World {
    engine: Engine,
    now: u64,
}

impl World {
    fn new(nodes: u32) -> World {
        let mut world = World { engine: Engine::new(Limits::default()), now: 0 };
        (0..nodes).for_each(|number| drop(world.apply(&Event::NodeJoined(node(number, 8)))));
        world
    }

    fn apply(&mut self, event: &Event) -> Vec<Decision> {
        self.now += 100;
        let decisions = self.engine.apply(seconds(self.now), event).expect("it applies");
        self.engine.check_invariants().expect("the books are right");
        decisions
    }

    fn submit(&mut self, nodes: u32) -> JobId {
        let recovery = job(gang(nodes, 8)).recovery;
        self.submit_with(nodes, RecoveryPolicy { max_faults: 10, no_progress_limit: 4, ..recovery })
    }

    fn submit_with(&mut self, nodes: u32, recovery: RecoveryPolicy) -> JobId {
        let id = self.engine.next_job_id();
        let spec = gangline_base::JobSpec { recovery, ..job(gang(nodes, 8)) };
        self.apply(&Event::JobSubmitted(Arc::new(spec)));
        id
    }

    fn commit(&mut self, job: JobId, step: u64) {
        let attempt = self.engine.job(job).and_then(|job| job.attempt()).expect("it runs").number;
        self.apply(&Event::CheckpointCommitted { job, attempt, step: Step(step) });
    }

    /// Fails one node's share; the others are stopped because of it.
    fn fail(&mut self, id: JobId, cause: FaultCause, category: FaultCategory) -> Vec<Decision> {
        let attempt = self.engine.job(id).and_then(|job| job.attempt()).expect("it runs").clone();
        let at = seconds(self.now + 100);
        let mut all = Vec::new();
        for (place, share) in attempt.shares.iter().enumerate() {
            let end = if place == 0 {
                ShareEnd::Fault { cause, category, is_consequence: false, at }
            } else {
                ShareEnd::Stopped
            };
            all.extend(self.apply(&Event::ShareEnded { job: id, attempt: attempt.number, node: share.node, end }));
        }
        all
    }

    fn nodes_of(&self, job: JobId) -> Vec<NodeId> {
        let attempt = self.engine.job(job).and_then(|job| job.attempt());
        attempt.map(|attempt| attempt.shares.iter().map(|share| share.node).collect()).unwrap_or_default()
    }
}

fn rung(decisions: &[Decision]) -> Option<Rung> {
    decisions.iter().find_map(|decision| match decision {
        Decision::Requeue { reason: RequeueReason::Fault { remedy, .. }, .. } => Some(remedy.rung),
        _ => None,
    })
}

fn fate(decisions: &[Decision]) -> Option<Fate> {
    decisions.iter().find_map(|decision| if let Decision::End { fate, .. } = decision { Some(*fate) } else { None })
}

#[test]
fn a_gang_restarts_in_place_before_anybody_who_waits_for_its_nodes() {
    let mut world = World::new(2);
    let first = world.submit(2);
    let second = world.submit(2);
    let decisions = world.fail(first, FaultCause::Exit(1), FaultCategory::Unknown);
    assert_eq!(rung(&decisions), Some(Rung::InPlace), "{decisions:?}");
    assert_eq!(world.nodes_of(first), [NodeId(0), NodeId(1)]);
    assert_eq!(world.nodes_of(second), []);
    let told: Vec<String> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Requeue { reason, .. } => Some(reason.to_string()),
            Decision::Place { reason, .. } => Some(reason.to_string()),
            _ => None,
        })
        .collect();
    assert!(
        told[0].contains("restarts in place (estimated loss ") && told[1].contains("on the 2 node(s) it has"),
        "{told:?}"
    );
}

#[test]
fn faulty_hardware_is_swapped_for_a_free_node_and_not_used_again() {
    let mut world = World::new(8);
    let configuration = Configuration { health: Some(HealthPolicy::DEFAULT), ..Configuration::default() };
    world.apply(&Event::Configured(Arc::new(configuration)));
    let hit = world.submit(2);
    let decisions = world.fail(hit, FaultCause::Exit(1), FaultCategory::Hardware);
    assert_eq!(rung(&decisions), Some(Rung::Elsewhere), "{decisions:?}");
    assert!(!world.nodes_of(hit).is_empty() && !world.nodes_of(hit).contains(&NodeId(0)), "{:?}", world.nodes_of(hit));
}

#[test]
fn faulty_hardware_stays_in_use_where_there_is_nothing_else() {
    let mut world = World::new(2);
    let hit = world.submit(2);
    let decisions = world.fail(hit, FaultCause::Exit(1), FaultCategory::Hardware);
    assert_eq!(rung(&decisions), Some(Rung::InPlace), "{decisions:?}");
}

#[test]
fn a_lost_node_lets_the_gang_go_on_elsewhere_or_wait() {
    let mut world = World::new(3);
    let hit = world.submit(2);
    world.apply(&Event::NodeLost { node: NodeId(1) });
    let attempt = world.engine.job(hit).and_then(|job| job.attempt()).expect("it stops").number;
    let end = Event::ShareEnded { job: hit, attempt, node: NodeId(0), end: ShareEnd::Stopped };
    assert_eq!(rung(&world.apply(&end)), Some(Rung::Elsewhere));
    assert_eq!(world.nodes_of(hit), [NodeId(0), NodeId(2)]);
    world.apply(&Event::NodeLost { node: NodeId(2) });
    let attempt = world.engine.job(hit).and_then(|job| job.attempt()).expect("it stops").number;
    let end = Event::ShareEnded { job: hit, attempt, node: NodeId(0), end: ShareEnd::Stopped };
    assert_eq!(rung(&world.apply(&end)), Some(Rung::Elsewhere));
    assert_eq!(world.nodes_of(hit), [], "it waits for a node");
}

#[test]
fn what_would_fail_again_is_tried_again_only_after_progress() {
    for category in [FaultCategory::UserCode, FaultCategory::CudaOom, FaultCategory::HostOom] {
        let mut world = World::new(1);
        let job = world.submit(1);
        let cause = FaultCause::Exit(1);
        world.commit(job, 10);
        assert_eq!(rung(&world.fail(job, cause, category)), Some(Rung::InPlace), "it had got further");
        assert_eq!(fate(&world.fail(job, cause, category)), Some(Fate::NotRetried { cause, category }));
        let silent = world.submit(1);
        world.now += 600;
        assert_eq!(rung(&world.fail(silent, cause, category)), Some(Rung::InPlace), "it says nothing of checkpoints");
        assert_eq!(fate(&world.fail(silent, cause, category)), Some(Fate::NotRetried { cause, category }), "too soon");
    }
}

#[test]
fn a_command_that_cannot_start_is_not_tried_again() {
    for cause in [FaultCause::Exit(126), FaultCause::Exit(127), FaultCause::Setup(127)] {
        let mut world = World::new(1);
        let job = world.submit(1);
        let category = FaultCategory::Unknown;
        assert_eq!(fate(&world.fail(job, cause, category)), Some(Fate::NotRetried { cause, category }));
    }
    let mut world = World::new(1);
    let job = world.submit(1);
    world.commit(job, 10);
    let failed = world.fail(job, FaultCause::Exit(127), FaultCategory::Unknown);
    assert_eq!(rung(&failed), Some(Rung::InPlace), "something that it starts later is missing, say, on one node");
}

#[test]
fn faults_in_a_row_let_go_of_the_nodes_while_they_pause_and_stop_in_the_end() {
    let mut world = World::new(1);
    let job = world.submit(1);
    let rungs: Vec<_> = (0..3)
        .map(|_| {
            let decisions = world.fail(job, FaultCause::Signal(9), FaultCategory::Unknown);
            world.apply(&Event::TimePassed);
            rung(&decisions)
        })
        .collect();
    assert_eq!(rungs, [Some(Rung::InPlace), Some(Rung::Elsewhere), Some(Rung::Elsewhere)]);
    let last = world.fail(job, FaultCause::Signal(9), FaultCategory::Unknown);
    assert_eq!(fate(&last), Some(Fate::NoProgress { cause: FaultCause::Signal(9), faults: 4 }));
}

#[test]
fn a_restart_in_place_keeps_its_time_limit() {
    let mut world = World::new(1);
    let limited = world.engine.next_job_id();
    let spec = gangline_base::JobSpec { time_limit: Some(Duration::from_secs(1_000)), ..job(gang(1, 8)) };
    world.apply(&Event::JobSubmitted(Arc::new(spec)));
    let began = world.engine.job(limited).and_then(|job| job.attempt()).expect("it runs").placed_at;
    assert_eq!(rung(&world.fail(limited, FaultCause::Exit(1), FaultCategory::Unknown)), Some(Rung::InPlace));
    let attempt = world.engine.job(limited).and_then(|job| job.attempt()).expect("it runs").clone();
    assert!(attempt.placed_at > began && attempt.allocated_at == began, "{attempt:?}");
    assert_eq!(world.engine.next_deadline(), Some(began + Duration::from_secs(1_000)));
}

#[test]
fn bad_numbers_roll_back_and_skip_the_data_the_second_time() {
    let mut world = World::new(1);
    let job = world.submit(1);
    let rollback = |world: &World| {
        let rollback = world.engine.job(job).and_then(|job| job.rollback);
        rollback.map(|rollback| (rollback.below, rollback.skips_data))
    };
    world.commit(job, 40);
    world.fail(job, FaultCause::Exit(1), FaultCategory::Numerical);
    assert_eq!(rollback(&world), Some((Some(Step(40)), false)));
    world.commit(job, 30);
    world.fail(job, FaultCause::Exit(1), FaultCategory::Numerical);
    assert_eq!(rollback(&world), Some((Some(Step(40)), true)), "saved anew, but not beyond");
    world.apply(&Event::TimePassed);
    world.commit(job, 50);
    assert_eq!(rollback(&world), None);
}

/// A job that saves while its loss is bad goes back to before the bad steps, and such saves don't count as having got past
/// them. A loss is computed before the step's update: that of step 33 was bad, so the weights after step 32 may be.
#[test]
fn saves_with_bad_numbers_are_neither_gone_on_from_nor_progress() {
    let mut world = World::new(1);
    let job = world.submit(1);
    let rollback = |world: &World| {
        let rollback = world.engine.job(job).and_then(|job| job.rollback);
        rollback.map(|rollback| (rollback.below, rollback.skips_data, rollback.until))
    };
    let bad = |first, last| FaultCause::NotFinite { steps: Some(BadSteps { first: Step(first), last: Step(last) }) };
    [30, 35, 40].into_iter().for_each(|step| world.commit(job, step));
    world.fail(job, bad(33, 42), FaultCategory::Numerical);
    assert_eq!(rollback(&world), Some((Some(Step(32)), false, Some(Step(42)))));
    [35, 40, 42].into_iter().for_each(|step| world.commit(job, step));
    assert_eq!(rollback(&world), Some((Some(Step(32)), false, Some(Step(42)))), "saved at bad steps");
    world.fail(job, bad(33, 42), FaultCategory::Numerical);
    assert_eq!(rollback(&world), Some((Some(Step(32)), true, Some(Step(42)))), "the second time");
    world.apply(&Event::TimePassed);
    world.commit(job, 45);
    assert_eq!(rollback(&world), None);
    world.fail(job, bad(60, 69), FaultCategory::Numerical);
    assert_eq!(rollback(&world), Some((Some(Step(45)), false, Some(Step(69)))), "elsewhere, with an older checkpoint");
}

/// Returns a gang of two nodes running on n0 and n1 of `nodes`. It has saved or not, and may opt in to
/// straggler eviction.
fn with_stragglers(nodes: u32, wishes: bool, has_saved: bool) -> (World, JobId) {
    let mut world = World::new(nodes);
    let configuration = Configuration { health: Some(HealthPolicy::DEFAULT), ..Configuration::default() };
    world.apply(&Event::Configured(Arc::new(configuration)));
    let id = world.submit_with(2, RecoveryPolicy { evicts_stragglers: wishes, ..job(gang(2, 8)).recovery });
    let attempt = world.engine.job(id).and_then(|job| job.attempt()).expect("it runs").number;
    (0..2).for_each(|node| drop(world.apply(&Event::ShareStarted { job: id, attempt, node: NodeId(node) })));
    if has_saved {
        world.commit(id, 10);
    }
    (world, id)
}

fn straggler(world: &mut World, job: JobId) -> Vec<Decision> {
    let attempt = world.engine.job(job).and_then(|job| job.attempt()).expect("it runs").number;
    world.apply(&Event::StragglerFound { job, attempt, node: NodeId(1) })
}

#[test]
fn a_gang_leaves_a_slow_node_for_another_once_it_has_saved() {
    let (mut world, id) = with_stragglers(8, true, true);
    let decisions = straggler(&mut world, id);
    let stops = |decision: &Decision| match decision {
        Decision::Stop { reason, .. } => *reason == StopReason::Straggler { node: NodeId(1) },
        _ => false,
    };
    assert!(decisions.iter().any(stops), "{decisions:?}");
    let attempt = world.engine.job(id).and_then(|job| job.attempt()).expect("it saves").number;
    for node in [0, 1] {
        let end = ShareEnd::Stopped;
        world.apply(&Event::ShareEnded { job: id, attempt, node: NodeId(node), end });
    }
    let nodes = world.nodes_of(id);
    assert!(nodes.len() == 2 && !nodes.contains(&NodeId(1)), "{nodes:?}");
    let job = world.engine.job(id).expect("it runs");
    assert_eq!((job.faults, job.preemptions), (0, 1), "it did nothing wrong");
    assert_eq!(world.engine.cluster().node(NodeId(1)).expect("it is there").status, NodeStatus::Suspect);
}

#[test]
fn a_gang_stays_with_a_straggler_that_it_puts_up_with_or_has_no_other_node_for() {
    for (nodes, wishes, has_saved) in [(8, false, true), (8, true, false), (2, true, true)] {
        let (mut world, id) = with_stragglers(nodes, wishes, has_saved);
        assert_eq!(straggler(&mut world, id), [], "{nodes} {wishes} {has_saved}");
        assert_eq!(world.engine.cluster().node(NodeId(1)).expect("it is there").status, NodeStatus::Ready);
    }
}
