//! The pass decides exactly what a plain implementation of its rules decides: one that tries every job in
//! turn, computes every share anew and caches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{JobId, JobSpec, NodeId, Priority, Timestamp};

use crate::engine::{Engine, Limits};
use crate::fixture::{self, Dice};
use crate::pass::reserves;
use crate::placement::latest_end;
use crate::{Configuration, Decision, Event, FaultCause, PreemptionRules, QueueOrder, QueueSpec, ShareEnd};

/// Runs [`plain_round`] until no job passes another.
fn plain_pass(engine: &mut Engine, now: Timestamp) -> Vec<Decision> {
    let mut decisions = Vec::new();
    while plain_round(engine, now, &mut decisions) {}
    decisions
}

/// Tries every waiting job once; reports whether one passed another.
fn plain_round(engine: &mut Engine, now: Timestamp, decisions: &mut Vec<Decision>) -> bool {
    let mut looked_at = BTreeSet::new();
    let mut reservations = BTreeMap::new();
    let mut has_backfilled = false;
    while let Some(id) = engine.waiting_at(now).into_iter().find(|id| !looked_at.contains(id)) {
        looked_at.insert(id);
        let job = engine.job(id).expect("a waiting job is there").clone();
        let leaf = engine.queues.leaf(&job.spec.queue);
        if !engine.may_start(now, leaf, &job) {
            continue;
        }
        let held: &mut Vec<_> = reservations.entry(job.spec.gang.flavour()).or_default();
        let Some(decision) = engine.place_beside(now, &job, &[], held) else {
            if reserves(held.len(), &job.spec.gang) && engine.could_run(&job.spec) {
                held.push(engine.reserve(now, id, &job.spec.gang, held));
            }
            continue;
        };
        let Decision::Place { shares, .. } = &decision else { continue };
        held.iter_mut().for_each(|held| held.take(shares, latest_end(&job.spec, now)));
        has_backfilled |= !held.is_empty();
        engine.evolve_decision(now, &decision);
        decisions.push(decision);
    }
    has_backfilled
}

impl Engine {
    fn waiting_at(&self, now: Timestamp) -> Vec<JobId> {
        let leaves = self.leaves_in_order(now).into_iter();
        leaves.flat_map(|leaf| self.queues.pending(leaf)).map(|key| key.job).collect()
    }
}

fn configuration(dice: &mut Dice) -> Configuration {
    let spec = |name: &str, parent: Option<&str>, quota: u32, borrowed: Option<u32>, weight: u32| QueueSpec {
        name: fixture::queue(name),
        parent: parent.map(fixture::queue),
        weight: NonZeroU32::new(weight).expect("weights are positive"),
        quota: BTreeMap::from([(fixture::kind(), quota)]),
        borrowing_limit: borrowed.map(|limit| (fixture::kind(), limit)).into_iter().collect(),
    };
    let queues = match dice.below(3) {
        0 => Vec::new(),
        1 => vec![spec("a", None, 8, Some(8), 1), spec("b", None, 8, None, 3), spec("c", None, 0, Some(12), 1)],
        _ => vec![
            spec("top", None, 24, Some(16), 2),
            spec("a", Some("top"), 8, Some(8), 1),
            spec("b", Some("top"), 16, None, 1),
            spec("c", None, 8, Some(4), 1),
        ],
    };
    let order = dice.of(&[QueueOrder::Fifo, QueueOrder::ShortestExpected]);
    Configuration {
        queues,
        half_life: Duration::from_hours(1),
        order,
        preemption: PreemptionRules::OFF,
        ..Configuration::default()
    }
}

fn random_job(dice: &mut Dice) -> JobSpec {
    let (nodes, per_node) = dice.of(&[(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8), (2, 4), (8, 8), (9, 8)]);
    let gang = gangline_base::GangShape { cpus_per_node: dice.of(&[0, 0, 0, 40]), ..fixture::gang(nodes, per_node) };
    JobSpec {
        queue: fixture::queue(dice.of(&["a", "b", "c"])),
        time_limit: dice.of(&[None, Some(60), Some(600), Some(3_600), Some(7_200)]).map(Duration::from_secs),
        priority: dice.of(&[Priority::NORMAL, Priority::NORMAL, Priority::HIGH]),
        ..fixture::job(gang)
    }
}

/// Returns a random event; none if the one drawn is impossible.
fn random_event(engine: &Engine, dice: &mut Dice, now: Timestamp) -> Vec<Event> {
    let running: Vec<_> = engine.jobs().filter_map(|job| Some((job, job.attempt()?))).collect();
    let node = NodeId(dice.below(12));
    match dice.below(100) {
        0..50 => vec![Event::JobSubmitted(Arc::new(random_job(dice)))],
        50..90 if !running.is_empty() => {
            let limit = u32::try_from(running.len()).expect("jobs are few");
            let (job, attempt) = running[usize::try_from(dice.below(limit)).expect("a usize holds 32 bits")];
            let fault = ShareEnd::fault(FaultCause::Exit(1), now);
            let end = if dice.below(4) == 0 { fault } else { ShareEnd::Succeeded };
            let ended = |share: &crate::Share| Event::ShareEnded {
                job: job.id,
                attempt: attempt.number,
                node: share.node,
                end: end.clone(),
            };
            attempt.shares.iter().map(ended).collect()
        }
        90..92 => vec![Event::NodeLost { node }],
        92..95 => vec![Event::NodeJoined(fixture::node(node.0, dice.of(&[8, 8, 4])))],
        95 => vec![Event::DrainRequested { node, within: None }],
        96 => vec![Event::DrainCancelled { node }],
        97 => vec![Event::Configured(Arc::new(configuration(dice)))],
        _ => vec![Event::TimePassed],
    }
}

/// Applies an event and compares with the plain pass. Returns how many jobs started, and how many passed
/// another.
fn check(engine: &mut Engine, now: Timestamp, event: &Event, seed: u64) -> (usize, usize) {
    let mut plain = engine.clone();
    let Ok(decisions) = engine.apply(now, event) else { return (0, 0) };
    // A restart in place does not belong to a pass.
    let is_place =
        |decision: &&Decision| matches!(decision, Decision::Place { reason, .. } if reason.kept_since.is_none());
    plain.evolve_event(now, event);
    for decision in decisions.iter().filter(|decision| !is_place(decision)) {
        plain.evolve_decision(now, decision);
    }
    let placed: Vec<Decision> = decisions.iter().filter(is_place).cloned().collect();
    assert_eq!(placed, plain_pass(&mut plain, now), "seed {seed} at {now:?} after {event:?}");
    assert_eq!(plain_pass(&mut plain, now), [], "seed {seed}: another pass decides more at {now:?} after {event:?}");
    engine.check_invariants().expect("the books are right");
    let is_backfill =
        |decision: &&Decision| matches!(decision, Decision::Place { reason, .. } if reason.backfills.is_some());
    (placed.len(), placed.iter().filter(is_backfill).count())
}

#[test]
fn a_pass_decides_what_a_plain_reading_of_its_rules_decides() {
    let (mut placed, mut backfilled) = (0, 0);
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let mut engine = Engine::new(Limits::default());
        let mut now = Timestamp::from_unix_nanos(1_000_000_000_000_000_000);
        let nodes = (0..12).map(|number| Event::NodeJoined(fixture::node(number, 8)));
        let setting = Event::Configured(Arc::new(configuration(&mut dice)));
        for event in nodes.chain([setting]) {
            engine.apply(now, &event).expect("the beginning is in order");
        }
        for _ in 0..150 {
            now = now + Duration::from_secs(dice.of(&[0, 0, 1, 30, 300, 3_000]));
            for event in random_event(&engine, &mut dice, now) {
                let (started, passed) = check(&mut engine, now, &event, seed);
                (placed, backfilled) = (placed + started, backfilled + passed);
            }
        }
    }
    assert!(placed > 1_000 && backfilled > 100, "the histories are worth the trouble: {placed}, {backfilled}");
}
