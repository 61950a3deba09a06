//! How the engine handles pools, failing nodes and reserved nodes.

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AttemptNumber, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobId, JobSpec, NodeId, NodeName, PoolName,
    QueueName, RecoveryPolicy, Timestamp,
};

use crate::fixture;
use crate::{
    AdvanceReservation, Blocker, Configuration, Decision, Engine, Event, FaultCause, HealthPolicy, Limits, Location,
    NodeCapacity, NodeSpec, NodeStatus, Refusal, ShareEnd,
};

fn pool(name: &str) -> PoolName {
    PoolName::new(name).expect("a name")
}

fn join(engine: &mut Engine, now: Timestamp, name: &str, pool: PoolName) {
    let capacity = NodeCapacity { pool, accelerator: fixture::kind(), accelerators: 8, cpus: 0, memory: Bytes(0) };
    let name = NodeName::new(name).expect("a name");
    let event =
        Event::NodeJoined(NodeSpec { name, capacity, location: Location::default(), layout: Default::default() });
    engine.apply(now, &event).expect("it joins");
}

fn job(devices: u32, pool: PoolName) -> Event {
    job_of("default", devices, pool, None)
}

fn job_of(queue: &str, devices: u32, pool: PoolName, hours: Option<u64>) -> Event {
    let gang = GangShape { pool, ..fixture::gang(1, devices) };
    Event::JobSubmitted(Arc::new(JobSpec {
        queue: fixture::queue(queue),
        checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(60) },
        recovery: RecoveryPolicy {
            max_faults: 0,
            no_progress_limit: 1,
            hang_timeout: HangTimeout::Learned,
            evicts_stragglers: false,
        },
        time_limit: hours.map(Duration::from_hours),
        ..fixture::job(gang)
    }))
}

/// Returns where a decision places a job.
fn placed(decisions: &[Decision]) -> Option<(JobId, NodeId)> {
    decisions.iter().find_map(|decision| match decision {
        Decision::Place { job, shares, .. } => shares.first().map(|share| (*job, share.node)),
        _ => None,
    })
}

/// Creates an engine with a health policy.
fn distrustful(nodes: u32) -> Engine {
    let mut engine = Engine::new(Limits::default());
    let configuration = Configuration { health: Some(HealthPolicy::DEFAULT), ..Configuration::default() };
    engine.apply(Timestamp::EPOCH, &Event::Configured(Arc::new(configuration))).expect("it is sound");
    (0..nodes).for_each(|number| join(&mut engine, Timestamp::EPOCH, &format!("n{number}"), PoolName::default()));
    engine
}

fn status(engine: &Engine, node: u32) -> NodeStatus {
    engine.cluster().node(NodeId(node)).expect("it is there").status
}

/// Runs a new job that fails; returns the node it was on.
fn fail_one(engine: &mut Engine, now: Timestamp, cause: FaultCause) -> NodeId {
    let decisions = engine.apply(now, &job(8, PoolName::default())).expect("it is admitted");
    let (job, node) = placed(&decisions).expect("there is room");
    let end = ShareEnd::fault(cause, now);
    let ended = Event::ShareEnded { job, attempt: AttemptNumber::FIRST, node, end };
    engine.apply(now, &ended).expect("it runs");
    engine.check_invariants().expect("they hold");
    node
}

fn after(hours: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_hours(hours)
}

#[test]
fn a_node_that_fails_one_job_after_another_is_avoided_then_suspect_then_trusted_again() {
    let mut engine = distrustful(4);
    let killed = FaultCause::Signal(9);
    let mut failed: Vec<NodeId> = (0..8).map(|_| fail_one(&mut engine, after(1), killed)).collect();
    failed.sort_unstable();
    assert_eq!(failed, [0, 0, 1, 1, 2, 2, 3, 3].map(NodeId), "those with fewer faults come first");
    let third = fail_one(&mut engine, after(1), killed);
    assert_eq!((third, status(&engine, 0)), (NodeId(0), NodeStatus::Suspect));
    let next = fail_one(&mut engine, after(1), killed);
    assert_eq!(next, NodeId(1), "a suspect node takes nothing new");
    assert_eq!(status(&engine, 1), NodeStatus::Ready, "one of four nodes is suspect already");
    let deadlines = std::iter::from_fn(|| {
        let at = engine.next_deadline()?;
        engine.apply(at, &Event::TimePassed).expect("time passes");
        Some((at, status(&engine, 0)))
    });
    let back = deadlines.take(50).find(|(_, status)| *status == NodeStatus::Ready);
    assert_eq!(back.map(|(at, _)| at), Some(after(25)), "a half-life after the third fault");
}

/// Proves A-3 for the nodes' fault histories.
#[test]
fn a_restored_engine_distrusts_the_same_nodes() {
    let mut engine = distrustful(4);
    for _ in 0..9 {
        fail_one(&mut engine, after(1), FaultCause::Signal(9));
    }
    let mut restored = Engine::restore(Limits::default(), engine.snapshot()).expect("it is sound");
    for hours in [2, 13, 20, 30, 60] {
        for each in [&mut engine, &mut restored] {
            each.apply(after(hours), &Event::TimePassed).expect("time passes");
        }
        assert_eq!(engine.cluster(), restored.cluster(), "after {hours} h");
    }
}

#[test]
fn a_jobs_own_error_is_not_held_against_the_node_but_that_of_job_after_job_is() {
    let mut engine = distrustful(4);
    (0..3).for_each(|number| {
        engine.apply(after(0), &Event::DrainRequested { node: NodeId(number), within: None }).expect("it is there");
    });
    let scores: Vec<u32> = (0..3)
        .map(|_| {
            fail_one(&mut engine, after(0), FaultCause::Exit(1));
            engine.cluster().node(NodeId(3)).expect("it is there").condition.health.score
        })
        .collect();
    assert_eq!(scores, [0, 1_000, 2_000]);
}

#[test]
fn a_node_with_a_fault_takes_nothing_new_unless_too_many_have_one() {
    let mut engine = distrustful(4);
    for number in [2, 3] {
        engine.apply(after(0), &Event::NodeFaulty { node: NodeId(number) }).expect("it is there");
    }
    assert_eq!((status(&engine, 2), status(&engine, 3)), (NodeStatus::Suspect, NodeStatus::Ready));
    let unknown = engine.apply(after(0), &Event::NodeFaulty { node: NodeId(4) });
    assert_eq!(unknown, Err(Refusal::UnknownNode(NodeId(4))));
    engine.apply(after(0), &Event::DrainCancelled { node: NodeId(2) }).expect("it is there");
    assert_eq!(status(&engine, 2), NodeStatus::Ready);
}

#[test]
fn an_administrator_takes_a_suspect_node_back() {
    let mut engine = distrustful(4);
    (0..3).for_each(|_| {
        engine.apply(after(0), &Event::NodeLost { node: NodeId(2) }).expect("it is there");
        join(&mut engine, after(0), "n2", PoolName::default());
    });
    assert_eq!(status(&engine, 2), NodeStatus::Suspect);
    let decisions = engine.apply(after(0), &job(8, PoolName::default())).expect("it is admitted");
    assert!(placed(&decisions).is_some_and(|(_, node)| node != NodeId(2)));
    engine.apply(after(0), &Event::DrainCancelled { node: NodeId(2) }).expect("it is there");
    assert_eq!(status(&engine, 2), NodeStatus::Ready);
}

#[test]
fn a_drain_outlasts_the_nodes_being_lost() {
    let mut engine = distrustful(1);
    engine.apply(after(0), &Event::DrainRequested { node: NodeId(0), within: None }).expect("it is there");
    engine.apply(after(0), &Event::NodeLost { node: NodeId(0) }).expect("it is there");
    assert_eq!(status(&engine, 0), NodeStatus::Lost);
    join(&mut engine, after(1), "n0", PoolName::default());
    assert_eq!(status(&engine, 0), NodeStatus::Draining);
    let score = engine.cluster().node(NodeId(0)).expect("it is there").condition.health.score;
    assert_eq!(score, 0, "a node that is drained goes away as was to be expected");
}

#[test]
fn jobs_never_land_in_another_pool() {
    let mut engine = distrustful(0);
    join(&mut engine, after(0), "serve", pool("inference"));
    let refusal = engine.apply(after(0), &job(8, PoolName::default())).expect_err("no node is for training");
    let text = refusal.to_string();
    assert_eq!(
        text,
        "no node could ever hold it: it wants 1 node(s) with H100:8 each; 0 of 0 node(s) with H100 could take a share"
    );
    let Refusal::NeverFits(fit) = refusal else { panic!("{text}") };
    assert_eq!(fit.what_would_fit(), "accelerators here: H100 of pool inference");
    join(&mut engine, after(0), "train", PoolName::default());
    let first = engine.apply(after(0), &job(8, PoolName::default())).expect("it fits");
    assert_eq!(placed(&first), Some((JobId(1), NodeId(1))));
    // The first job of one pool holds nothing in the other.
    engine.apply(after(0), &job(8, PoolName::default())).expect("it waits");
    assert!(matches!(engine.blocker(after(0), JobId(2)), Some(Blocker::NotEnoughFree { .. })));
    let served = engine.apply(after(0), &job(8, pool("inference"))).expect("it fits");
    assert_eq!(placed(&served), Some((JobId(3), NodeId(0))));
    engine.apply(after(0), &job(4, pool("inference"))).expect("it waits");
    let blocker = engine.blocker(after(0), JobId(4)).expect("it waits").to_string();
    assert!(blocker.starts_with("wants 1 node(s) of pool inference with H100:4; 0 node(s) have room"), "{blocker}");
    engine.check_invariants().expect("they hold");
}

fn reservation(name: &str, nodes: &[&str], hours: (u64, u64), queues: &[&str]) -> AdvanceReservation {
    AdvanceReservation {
        name: name.to_owned(),
        nodes: nodes.iter().map(|name| NodeName::new(name).expect("a name")).collect(),
        from: after(hours.0),
        until: after(hours.1),
        queues: queues.iter().map(|name| QueueName::new(name).expect("a name")).collect(),
    }
}

fn reserve(engine: &mut Engine, now: Timestamp, reservations: Vec<AdvanceReservation>) -> Result<(), String> {
    let configuration = Configuration { reservations, ..engine.configuration().clone() };
    engine.apply(now, &Event::Configured(Arc::new(configuration))).map(|_| ()).map_err(|refusal| refusal.to_string())
}

#[test]
fn only_the_queues_of_a_reservation_start_in_its_window() {
    let mut engine = distrustful(1);
    reserve(&mut engine, after(0), vec![reservation("week", &["n0"], (10, 20), &["vision"])]).expect("it is sound");
    let submit = |engine: &mut Engine, now, queue, hours| {
        let id = engine.next_job_id();
        let decisions = engine.apply(now, &job_of(queue, 2, PoolName::default(), hours)).expect("it is admitted");
        engine.check_invariants().expect("they hold");
        (id, placed(&decisions).is_some())
    };
    assert!(submit(&mut engine, after(0), "nlp", Some(9)).1, "over by then");
    let (runs_into, starts) = submit(&mut engine, after(0), "nlp", Some(10));
    assert!(!starts, "the grace of its stop reaches into the window");
    let text = engine.blocker(after(0), runs_into).expect("it waits").to_string();
    assert!(text.contains("might run into reservation \"week\""), "{text}");
    assert!(!submit(&mut engine, after(0), "nlp", None).1, "nobody knows when it is over");
    assert!(submit(&mut engine, after(0), "vision", None).1, "its own queue may run into it");
    assert!(submit(&mut engine, after(10), "vision", Some(100)).1, "its own queue starts in it");
    let text = engine.blocker(after(10), runs_into).expect("it waits").to_string();
    assert!(text.contains("in reservation \"week\" for others"), "{text}");
    let deadlines = std::iter::from_fn(|| {
        let at = engine.next_deadline()?;
        let decisions = engine.apply(at, &Event::TimePassed).expect("time passes");
        Some((at, placed(&decisions).map(|(job, _)| job)))
    });
    let started = deadlines.take(10).find(|(_, job)| job.is_some());
    assert_eq!(started, Some((after(20), Some(runs_into))), "at the end of the window those who waited start");
}

#[test]
fn who_may_not_use_a_reservation_keeps_nobody_from_it() {
    let mut engine = distrustful(2);
    reserve(&mut engine, after(0), vec![reservation("week", &["n0"], (0, 20), &["vision"])]).expect("it is sound");
    let mut submit = |queue, devices| {
        let decisions = engine.apply(after(0), &job_of(queue, devices, PoolName::default(), Some(50)));
        placed(&decisions.expect("it is admitted")).map(|(_, node)| node)
    };
    assert_eq!(submit("nlp", 8), Some(NodeId(1)), "beside the reservation");
    assert_eq!(submit("nlp", 8), None);
    assert_eq!(submit("vision", 8), Some(NodeId(0)), "the same gang, of a queue that may");
}

#[test]
fn contradictory_reservations_are_refused() {
    let mut engine = distrustful(1);
    let mut check = |reservations: Vec<AdvanceReservation>, expected: &str| {
        assert_eq!(reserve(&mut engine, after(0), reservations), Err(expected.to_owned()));
    };
    let week = || reservation("week", &["n0", "n1"], (10, 20), &[]);
    check(
        vec![week(), reservation("repair", &["n1", "n2"], (19, 30), &[])],
        "reservations \"week\" and \"repair\" both have n1 at one time: move one, or take the node out of it",
    );
    check(vec![week(), week()], "there are two reservations named \"week\"");
    let empty = "reservation \"w\" is empty: it needs nodes, and to end after it begins";
    check(vec![reservation("w", &["n0"], (9, 9), &[])], empty);
    check(vec![reservation("w", &[], (9, 10), &[])], empty);
    let after_it = reservation("later", &["n1"], (20, 30), &[]);
    assert_eq!(reserve(&mut engine, after(0), vec![week(), after_it]), Ok(()), "one after another");
}
