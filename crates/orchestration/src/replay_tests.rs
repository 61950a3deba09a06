//! Entries accepted once are replayed whatever today's rules are; entries that contradict the journal are
//! refused.

use std::num::NonZeroU32;
use std::sync::Arc;

use gangline_base::{
    AttemptNumber, Grid, JobId, JobSpec, Level, Money, NodeId, Segment, Submitter, SweepId, SweepRules, SweepSpec,
    Timestamp,
};

use crate::sweep_tests::spec;
use crate::{Configuration, Engine, Entry, Event, Limits, Location, NodeSpec, QueueSpec, Refusal, ShareEnd, fixture};

const NOW: Timestamp = Timestamp::EPOCH;

/// Creates an engine with one node of two accelerators, and a queue that is not the jobs' queue.
fn engine() -> Engine {
    let mut engine = Engine::new(Limits { waiting_max: 3, nodes_max: 2, ..Limits::default() });
    let queue = QueueSpec {
        name: fixture::queue("another"),
        parent: None,
        weight: NonZeroU32::MIN,
        quota: [(fixture::kind(), 2)].into(),
        borrowing_limit: [(fixture::kind(), 0)].into(),
    };
    let configuration = Configuration { queues: vec![queue], ..Configuration::default() };
    for event in [Event::NodeJoined(in_block("n0", "b0")), Event::Configured(Arc::new(configuration))] {
        engine.apply(NOW, &event).expect("it makes sense");
    }
    engine
}

fn in_block(name: &str, block: &str) -> NodeSpec {
    let location: Location = [(Level::Rack, "r".to_owned()), (Level::Block, block.to_owned())].into_iter().collect();
    NodeSpec { name: gangline_base::NodeName::new(name).expect("a name"), location, ..fixture::node(0, 2) }
}

fn another(nodes: u32, devices: u32) -> JobSpec {
    JobSpec { queue: fixture::queue("another"), ..spec(nodes, devices) }
}

fn sweep(job: JobSpec, points: u32) -> Event {
    let values = (0..points).map(|number| number.to_string()).collect();
    let grid = Grid::new(vec![("SEED".to_owned(), values)]);
    let rules = SweepRules { max_parallel: None, early_stop: None };
    Event::SweepSubmitted(Arc::new(SweepSpec { job: Arc::new(job), grid, rules }))
}

/// Events that today's rules refuse, as if an earlier release had accepted them.
fn against_the_rules() -> Vec<Event> {
    let submitted = |job: JobSpec| Event::JobSubmitted(Arc::new(job));
    let segments = {
        let mut job = another(3, 1);
        let nodes = NonZeroU32::new(2).expect("positive");
        job.gang.topology.segment = Some(Segment { nodes, level: Level::Rack });
        job
    };
    let bad_configuration = {
        let looped = |name: &str, parent: &str| QueueSpec {
            name: fixture::queue(name),
            parent: Some(fixture::queue(parent)),
            weight: NonZeroU32::MIN,
            quota: Default::default(),
            borrowing_limit: Default::default(),
        };
        Configuration { queues: vec![looped("a", "b"), looped("b", "a")], ..Configuration::default() }
    };
    vec![
        submitted(spec(1, 1)),
        submitted(another(9, 1)),
        submitted(another(1, 2)),
        submitted(another(2, 2)),
        submitted(segments),
        submitted(JobSpec { budget: Some(Money::from_nano_dollars(1)), ..another(1, 1) }),
        sweep(another(1, 1), 40),
        sweep(another(7, 7), 2),
        Event::Configured(Arc::new(bad_configuration)),
        Event::NodeJoined(in_block("n1", "b1")),
        Event::NodeJoined(in_block("n2", "b2")),
        Event::NodeLost { node: NodeId(0) },
        Event::DrainRequested { node: NodeId(0), within: None },
        Event::DrainCancelled { node: NodeId(0) },
    ]
}

/// Proves A-3 across releases: stricter rules don't keep a journal from being replayed.
#[test]
fn what_was_accepted_is_replayed_whatever_the_rules_are_by_now() {
    let mut engine = engine();
    let mut refused = 0;
    for event in against_the_rules() {
        let by_rule = engine.clone().apply(NOW, &event).err();
        refused += usize::from(by_rule.is_some());
        engine.replay(NOW, &Entry::Event(event.clone())).unwrap_or_else(|refusal| panic!("{event:?}: {refusal}"));
    }
    assert!(refused >= 10, "only {refused} of them are against the rules");
    engine.apply(NOW, &Event::TimePassed).expect("it goes on");
    engine.check_invariants().expect("the invariants hold");
    let restored = Engine::restore(Limits::default(), engine.snapshot()).expect("a snapshot of it is sound");
    assert_eq!(restored.snapshot(), engine.snapshot());
    let ids: Vec<JobId> = engine.jobs().map(|job| job.id).collect();
    assert!(ids.len() > 40);
    for job in ids {
        let by = Submitter("ada".to_owned());
        engine.apply(NOW, &Event::CancelRequested { job, by }).expect("it is known");
    }
    engine.check_invariants().expect("the invariants hold");
}

#[test]
fn a_journal_that_speaks_of_what_never_was_is_refused() {
    let engine = engine();
    let (job, node) = (JobId(7), NodeId(7));
    let by = Submitter("ada".to_owned());
    for (event, expected) in [
        (Event::CancelRequested { job, by: by.clone() }, Refusal::UnknownJob(job)),
        (Event::NodeLost { node }, Refusal::UnknownNode(node)),
        (Event::SweepCancelRequested { sweep: SweepId(job), by }, Refusal::UnknownSweep(SweepId(job))),
        (
            Event::ShareEnded { job, attempt: AttemptNumber::FIRST, node: NodeId(0), end: ShareEnd::Succeeded },
            Refusal::UnknownJob(job),
        ),
    ] {
        assert_eq!(engine.clone().replay(NOW, &Entry::Event(event)), Err(expected));
    }
}
