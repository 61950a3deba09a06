//! The properties beyond the books: reasons of waiting jobs, what may not change anything, and the journal
//! . Each is a function of one event and what came of it, or of the whole history.

use std::time::Duration;

use gangline_base::{AttemptNumber, JobId, Timestamp};
use gangline_orchestration::{Blocker, Decision, DryRun, Engine, Entry, Event, NodeStatus, Refusal, ShareEnd};

use super::action::Shape;
use super::shadow::{Place, Shadow};
use super::world::{Broken, Check, LIMITS, Taken, Verdict, World, ensure, job_spec, rebuild};

/// Nothing beyond what the shadow asks.
pub(super) const BOOKS: Check = Check { each: |_| Ok(()), end: |_| Ok(()) };
/// Every waiting job has a true reason, and a timer where it waits for a time.
pub(super) const REASONS: Check = Check { each: reasons_are_true, end: |_| Ok(()) };
/// Refusals, questions and idle ticks change nothing.
pub(super) const NOTHING_CHANGES: Check = Check { each: nothing_else_changes_the_state, end: |_| Ok(()) };
/// The journal gives the state back, whole or from any snapshot.
pub(super) const JOURNAL: Check = Check { each: journal_replays_from_before, end: journal_replays_from_anywhere };
/// Decisions that didn't reach the journal are decided again.
pub(super) const LOST_DECISIONS: Check = Check { each: lost_decisions_come_again, end: |_| Ok(()) };

fn reasons_are_true(taken: &Taken<'_>) -> Verdict {
    let World { engine, shadow, .. } = taken.world;
    if taken.outcome.is_err() {
        return Ok(());
    }
    let now = taken.world.now();
    let queue = shadow.queue();
    for (ahead, id) in queue.iter().enumerate() {
        let Some(explanation) = engine.explain(now, *id) else {
            return ensure("A-4 a waiting job has a reason", false, || id.to_string());
        };
        let counted = explanation.ahead == ahead && explanation.waiting == queue.len();
        let is_promised =
            explanation.starts_by.is_none_or(|at| Some(at) == shadow.promise(now, &shadow.jobs[id].spec.gang, None));
        let is_true = counted && is_promised && is_true(shadow, now, *id, &explanation.blocker);
        ensure("A-4 a waiting job has a true reason", is_true, || format!("{id} at {now:?}: {explanation:?}"))?;
        let text = explanation.blocker.to_string();
        ensure("A-4 a reason can be read", text.len() > 10, || text.clone())?;
    }
    for (id, _) in shadow.jobs.iter().filter(|(_, job)| job.holding().is_some()) {
        ensure("a job that runs isn't waiting", engine.explain(now, *id).is_none(), || id.to_string())?;
    }
    let (due, set) = (shadow.deadline(now), engine.next_deadline());
    let is_set = due.is_none_or(|due| set.is_some_and(|set| set <= due));
    ensure("a wait for a time has a timer", is_set, || format!("{due:?}, but {set:?}"))
}

fn is_true(shadow: &Shadow, now: Timestamp, id: JobId, blocker: &Blocker) -> bool {
    let job = &shadow.jobs[&id];
    let gang = &job.spec.gang;
    let wanted = usize::try_from(gang.nodes.get()).expect("a usize holds 32 bits");
    let names = |status| -> Vec<_> {
        let nodes = shadow.fitting(gang, Some(status)).into_iter();
        nodes.map(|node| shadow.nodes[usize::try_from(node.0).expect("fits")].0.name.clone()).collect()
    };
    match blocker {
        Blocker::BackingOff { until } => {
            let Place::Waiting { not_before, .. } = job.place else { return false };
            not_before == *until && not_before > now
        }
        // Nothing has a quota in these histories.
        Blocker::Quota { .. }
        | Blocker::GpuHours { .. }
        | Blocker::Parallel { .. }
        | Blocker::Held
        | Blocker::OverBudget(_)
        | Blocker::After { .. } => false,
        Blocker::Behind { job: first, because, starts_by } => {
            let place_of = |id: &JobId| shadow.queue().iter().position(|other| other == id);
            let is_before = place_of(first) < place_of(&id) && place_of(first).is_some();
            let is_kin = shadow.jobs.get(first).is_some_and(|f| f.spec.gang.accelerator == gang.accelerator);
            is_before
                && is_kin
                && shadow.with_room(gang).len() >= wanted
                && *starts_by == shadow.promise(now, &shadow.jobs[first].spec.gang, None)
                && matches!(**because, Blocker::NotEnoughFree { .. })
                && is_true(shadow, now, *first, because)
        }
        Blocker::NotEnoughFree { wanted: theirs, nodes_with_room, free_accelerators, holders } => {
            let ready = |node: &gangline_base::NodeId| {
                let (spec, status) = &shadow.nodes[usize::try_from(node.0).expect("fits")];
                *status == NodeStatus::Ready && spec.capacity.accelerator == gang.accelerator
            };
            let nodes = (0..u32::try_from(shadow.nodes.len()).expect("few")).map(gangline_base::NodeId);
            let free: usize = nodes.filter(ready).map(|node| shadow.free_on(node).0.len()).sum();
            let holds = |id: &JobId| shadow.jobs.get(id).is_some_and(|job| job.holding().is_some());
            theirs == gang
                && *nodes_with_room == shadow.with_room(gang).len()
                && *nodes_with_room < wanted
                && u32::try_from(free) == Ok(*free_accelerators)
                && !holders.is_empty()
                && holders.iter().all(holds)
        }
        Blocker::NodesUnavailable { wanted: theirs, ready, draining, lost, suspect } => {
            let fitting = shadow.fitting(gang, Some(NodeStatus::Ready)).len();
            theirs == gang
                && u32::try_from(fitting) == Ok(*ready)
                && fitting < wanted
                && *draining == names(NodeStatus::Draining)
                && *lost == names(NodeStatus::Lost)
                && suspect.is_empty()
        }
        // No job of the properties asks for a topology, and no node is reserved or spare.
        Blocker::Claimed { .. }
        | Blocker::Topology { .. }
        | Blocker::Reserved { .. }
        | Blocker::Spares { .. }
        | Blocker::Nothing => false,
    }
}

/// Jobs to ask about: small, large, for a kind that may be missing, and one that can hardly ever fit.
const QUESTIONS: [Shape; 4] =
    [question(0, 1, 1, 500), question(0, 2, 2, 1_000), question(1, 1, 4, 0), question(2, 9, 8, 1)];

pub(super) const fn question(kind: u32, nodes: u32, per_node: u32, priority: u16) -> Shape {
    Shape {
        kind,
        nodes,
        per_node,
        cpus: 1,
        gib: 1,
        priority,
        limit_seconds: None,
        max_faults: 1,
        no_progress_limit: 1,
        has_checkpoint: false,
    }
}

fn nothing_else_changes_the_state(taken: &Taken<'_>) -> Verdict {
    let engine = &taken.world.engine;
    let now = taken.world.now();
    let state = engine.snapshot();
    let event = taken.event;
    if taken.outcome.is_err() {
        return ensure("A-2 a refusal changes nothing", taken.before.snapshot() == state, || format!("{event:?}"));
    }
    let mut again = engine.clone();
    let idle = again.apply(now, &Event::TimePassed) == Ok(Vec::new()) && again.snapshot() == state;
    ensure("A-2 an idle tick changes nothing", idle, || format!("after {event:?}"))?;
    for (id, job) in &taken.world.shadow.jobs {
        let node = gangline_base::NodeId(0);
        for attempt in (0..=job.attempts + 1).map(AttemptNumber) {
            if job.holding().is_some_and(|holding| holding.attempt == attempt) {
                continue;
            }
            let late = Event::ShareEnded { job: *id, attempt, node, end: ShareEnd::Succeeded };
            let refused = again.apply(now, &late) == Err(Refusal::Stale { job: *id, attempt });
            ensure("A-2 a stale event is refused", refused && again.snapshot() == state, || format!("{late:?}"))?;
        }
    }
    QUESTIONS.into_iter().try_for_each(|shape| dry_run_tells_what_submitting_does(engine, now, shape))?;
    ensure("A-2 a question changes nothing", engine.snapshot() == state, || format!("after {event:?}"))
}

fn dry_run_tells_what_submitting_does(engine: &Engine, now: Timestamp, shape: Shape) -> Verdict {
    let spec = job_spec(shape);
    let told = engine.dry_run(now, &spec);
    let mut other = engine.clone();
    let id = other.next_job_id();
    let done = other.apply(now, &Event::JobSubmitted(spec.into()));
    let is_same = match (&told, &done) {
        (Err(told), Err(done)) => told == done,
        (Ok(DryRun::WouldStart { shares: told }), Ok(decisions)) => match decisions.as_slice() {
            [Decision::Place { job, shares, .. }] => *job == id && shares == told,
            _ => false,
        },
        (Ok(DryRun::WouldWait(told)), Ok(decisions)) => {
            decisions.is_empty() && other.explain(now, id).as_ref() == Some(told)
        }
        _ => false,
    };
    ensure("a dry run tells what submitting does", is_same, || format!("{told:?}, but {done:?}"))
}

/// The state before the event as a snapshot, and the journal from there.
fn journal_replays_from_before(taken: &Taken<'_>) -> Verdict {
    let Ok(decisions) = taken.outcome else { return Ok(()) };
    let rebuilt = rebuilt_after(taken, decisions)?;
    let is_same = rebuilt.snapshot() == taken.world.engine.snapshot();
    ensure("A-3 replay gives the state", is_same, || format!("{:?} -> {decisions:?}", taken.event))
}

fn rebuilt_after(taken: &Taken<'_>, decisions: &[Decision]) -> Result<Engine, Broken> {
    let refused = |refusal: Refusal| Broken { property: "A-3 a journal replays", detail: format!("{refusal:?}") };
    let now = taken.world.now();
    let mut engine = Engine::restore(LIMITS, taken.before.snapshot()).map_err(refused)?;
    engine.replay(now, &Entry::Event(taken.event.clone())).map_err(refused)?;
    for decision in decisions {
        engine.replay(now, &Entry::Decision(decision.clone())).map_err(refused)?;
    }
    Ok(engine)
}

fn journal_replays_from_anywhere(world: &World) -> Verdict {
    let starts = std::iter::once(None).chain(world.snapshots.iter().map(Some));
    let mut next = world.engine.clone();
    let later = world.now() + Duration::from_mins(10);
    let decided = next.apply(later, &Event::TimePassed);
    for start in starts {
        let mut rebuilt = rebuild(start, &world.journal)?;
        let from = start.map(|(entries, _)| *entries);
        let is_same = rebuilt.snapshot() == world.engine.snapshot();
        ensure("A-3 replay gives the state", is_same, || format!("from {from:?} of {}", world.journal.len()))?;
        let decides_the_same = rebuilt.apply(later, &Event::TimePassed) == decided;
        ensure("A-3 a rebuilt engine decides like the old one", decides_the_same, || format!("from {from:?}"))?;
    }
    Ok(())
}

/// However many of the last decisions were lost, the same ones come again.
fn lost_decisions_come_again(taken: &Taken<'_>) -> Verdict {
    let Ok(decisions) = taken.outcome else { return Ok(()) };
    for kept in 0..decisions.len() {
        let mut engine = rebuilt_after(taken, &decisions[..kept])?;
        let again = engine.apply(taken.world.now(), &Event::TimePassed);
        let is_same = again.as_deref() == Ok(&decisions[kept..]) && engine.snapshot() == taken.world.engine.snapshot();
        ensure("A-3 lost decisions come again", is_same, || format!("{again:?} is not {:?}", &decisions[kept..]))?;
    }
    Ok(())
}
