//! How the engine keeps and uses spares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{JobId, NodeId, Priority, Timestamp};

use crate::fixture::{Dice, gang, job, kind, node};
use crate::{
    Blocker, Configuration, Decision, Engine, Event, FaultCause, Limits, Refusal, ShareEnd, SpareRules, SpareSizing,
};

/// The number of steps in one random history.
const STEPS: u32 = 300;

fn seconds(count: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(count)
}

fn engine(nodes: u32, spares: SpareRules) -> Engine {
    let mut engine = Engine::new(Limits::default());
    for number in 0..nodes {
        engine.apply(seconds(0), &Event::NodeJoined(node(number, 8))).expect("it joins");
    }
    let configuration = Configuration { spares, ..Configuration::default() };
    engine.apply(seconds(0), &Event::Configured(Arc::new(configuration))).expect("it is sound");
    engine
}

fn fixed(nodes: u32) -> SpareRules {
    SpareRules { nodes: [(kind(), nodes)].into(), sizing: None }
}

fn submit(engine: &mut Engine, now: u64, nodes: u32, priority: Priority, spares: u32) -> JobId {
    let id = engine.next_job_id();
    let spec = gangline_base::JobSpec { priority, spares, ..job(gang(nodes, 8)) };
    engine.apply(seconds(now), &Event::JobSubmitted(Arc::new(spec))).expect("it is taken");
    id
}

fn runs(engine: &Engine, job: JobId) -> bool {
    engine.job(job).is_some_and(|job| job.attempt().is_some())
}

#[test]
fn ordinary_work_leaves_spares_alone_and_preemptible_work_uses_them() {
    let mut engine = engine(3, fixed(1));
    let ordinary = submit(&mut engine, 1, 2, Priority::NORMAL, 0);
    let second = submit(&mut engine, 2, 1, Priority::HIGH, 0);
    assert!(runs(&engine, ordinary) && !runs(&engine, second));
    let blocker = engine.blocker(seconds(2), second).expect("it waits");
    assert!(matches!(&blocker, Blocker::Spares { kept: 1, pool } if pool.by_rules == 1), "{blocker}");
    assert!(blocker.to_string().contains("1 H100 node(s) are kept as spares (1 configured)"), "{blocker}");
    let low = submit(&mut engine, 3, 1, Priority::LOW, 0);
    assert!(runs(&engine, low), "behind an equal gang that may not use the spare");
    assert_eq!(engine.spare_nodes(seconds(3)), [NodeId(2)].into());
}

#[test]
fn a_gang_that_needs_every_node_is_not_starved_by_spares() {
    let mut engine = engine(3, fixed(2));
    let small = submit(&mut engine, 1, 1, Priority::NORMAL, 0);
    let whole = submit(&mut engine, 2, 3, Priority::NORMAL, 0);
    assert!(runs(&engine, small) && !runs(&engine, whole));
    let attempt = engine.job(small).and_then(|job| job.attempt()).expect("it runs").clone();
    let end = Event::ShareEnded {
        job: small,
        attempt: attempt.number,
        node: attempt.shares[0].node,
        end: ShareEnd::Succeeded,
    };
    engine.apply(seconds(3), &end).expect("it ends");
    assert!(runs(&engine, whole), "{:?}", engine.blocker(seconds(3), whole));
    assert!(engine.spare_nodes(seconds(3)).is_empty());
}

#[test]
fn standby_nodes_are_shared_and_kept_while_a_job_runs() {
    let mut engine = engine(5, SpareRules::default());
    let first = submit(&mut engine, 1, 1, Priority::NORMAL, 2);
    let second = submit(&mut engine, 2, 1, Priority::NORMAL, 1);
    assert!(runs(&engine, first) && runs(&engine, second));
    assert_eq!(engine.spare_nodes(seconds(2)).len(), 2, "the most, not the sum");
    let cancel = Event::CancelRequested { job: first, by: gangline_base::Submitter("ann".to_owned()) };
    engine.apply(seconds(3), &cancel).expect("it is cancelled");
    let attempt = engine.job(first).and_then(|job| job.attempt()).expect("it stops").clone();
    let (number, node) = (attempt.number, attempt.shares[0].node);
    let end = Event::ShareEnded { job: first, attempt: number, node, end: ShareEnd::Stopped };
    engine.apply(seconds(4), &end).expect("it ends");
    assert_eq!(engine.spare_nodes(seconds(4)).len(), 1);
}

#[test]
fn unannounced_losses_are_counted_and_drained_nodes_are_not() {
    let sizing = SpareSizing { confidence_milli: 950, repair: Duration::from_hours(24) };
    let mut engine = engine(20, SpareRules { sizing: Some(sizing), ..SpareRules::default() });
    let flavour = gang(1, 8).flavour();
    let day = 24 * 3_600;
    engine.apply(seconds(10 * day), &Event::NodeLost { node: NodeId(0) }).expect("it is lost");
    engine.apply(seconds(10 * day), &Event::DrainRequested { node: NodeId(1), within: None }).expect("it drains");
    engine.apply(seconds(10 * day), &Event::NodeLost { node: NodeId(1) }).expect("it goes");
    let record = engine.spare_pool(seconds(20 * day), &flavour).losses.expect("it is sized by them");
    assert_eq!((record.losses, record.node_time), (1, Duration::from_secs((200 + 180) * day)));
    let restored = Engine::restore(Limits::default(), engine.snapshot()).expect("it restores");
    assert_eq!(restored.spare_pool(seconds(20 * day), &flavour), engine.spare_pool(seconds(20 * day), &flavour));
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let sized = |confidence_milli, hours| {
        let sizing = Some(SpareSizing { confidence_milli, repair: Duration::from_hours(hours) });
        SpareRules { sizing, ..SpareRules::default() }
    };
    for rules in [fixed(1_025), sized(0, 24), sized(1_000, 24), sized(950, 0), sized(950, 24 * 366)] {
        let configuration = Configuration { spares: rules, ..Configuration::default() };
        let answer = Engine::new(Limits::default()).apply(seconds(0), &Event::Configured(Arc::new(configuration)));
        assert!(matches!(answer, Err(Refusal::Configuration(_))), "{answer:?}");
    }
}

/// Checks what an event and its decisions may not do, judged by the state right before each decision.
fn judge(before: &mut Engine, now: Timestamp, event: &Event, decisions: &[Decision]) {
    before.replay(now, &crate::Entry::Event(event.clone())).expect("it replays");
    for decision in decisions {
        if let Decision::Place { job, shares, .. } = decision {
            let placed = before.job(*job).expect("it waits");
            let flavour = placed.spec.gang.flavour();
            let spares: BTreeSet<NodeId> = before.spares_kept_from(now, &placed.applicant());
            assert!(shares.iter().all(|share| !spares.contains(&share.node)), "{job} is on a spare of {flavour}");
        }
        before.replay(now, &crate::Entry::Decision(decision.clone())).expect("it replays");
    }
}

/// Proves where spares are kept, and that only the jobs for which spares are kept use them.
#[test]
fn no_history_puts_ordinary_work_on_spares() {
    let (mut recovered, mut claimed) = (0, 0);
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut engine = engine(6, fixed(1 + dice.below(2)));
        let mut before = engine.clone();
        let mut now = 10;
        for _ in 0..STEPS {
            now += u64::from(dice.below(400));
            let event = next_event(&engine, &mut dice);
            let Ok(decisions) = engine.apply(seconds(now), &event) else { continue };
            engine.check_invariants().expect("they hold");
            judge(&mut before, seconds(now), &event, &decisions);
            assert_eq!(before.snapshot(), engine.snapshot(), "seed {seed}: replay gives the same state");
            let restored = Engine::restore(Limits::default(), engine.snapshot()).expect("it restores");
            assert_eq!(restored.spare_nodes(seconds(now)), engine.spare_nodes(seconds(now)), "seed {seed}");
            let is_recovery = |decision: &&Decision| matches!(decision, Decision::Claim { reason, .. } if reason.right == crate::ClaimRight::Recovery);
            claimed += decisions.iter().filter(is_recovery).count();
            recovered +=
                decisions.iter().filter(|it| matches!(it, Decision::Place { attempt, .. } if attempt.0 > 1)).count();
        }
    }
    assert!(recovered > 0 && claimed > 0, "{recovered} went on, {claimed} claims: the histories show too little");
}

fn next_event(engine: &Engine, dice: &mut Dice) -> Event {
    let running: Vec<(JobId, _)> = engine.jobs().filter_map(|job| Some((job.id, job.attempt()?.clone()))).collect();
    let any_node = NodeId(dice.below(6));
    let picked = dice.below(64);
    let picked = usize::try_from(picked).expect("small") % running.len().max(1);
    match (dice.below(10), running.get(picked)) {
        (0..=3, _) => {
            let priority = dice.of(&[Priority::LOW, Priority::LOW, Priority::NORMAL, Priority::HIGH]);
            let spec = gangline_base::JobSpec { priority, spares: dice.below(2), ..job(gang(1 + dice.below(4), 8)) };
            Event::JobSubmitted(Arc::new(spec))
        }
        (4, _) => Event::NodeLost { node: any_node },
        (5..=6, _) => Event::NodeJoined(node(any_node.0, 8)),
        (_, Some((job, attempt))) => {
            let place = usize::try_from(dice.below(8)).expect("small") % attempt.shares.len();
            let fault = ShareEnd::fault(FaultCause::SupervisorLost, engine.snapshot().at);
            let end = if attempt.stop.is_some() { ShareEnd::Stopped } else { fault };
            let end = if dice.below(4) == 0 { ShareEnd::Succeeded } else { end };
            Event::ShareEnded { job: *job, attempt: attempt.number, node: attempt.shares[place].node, end }
        }
        (_, None) => Event::TimePassed,
    }
}
