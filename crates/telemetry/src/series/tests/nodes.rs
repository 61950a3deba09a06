//! Queries about many nodes, where a place elsewhere answers for some of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use gangline_base::{NodeName, Timestamp};

use super::{BEGIN, losses};
use crate::series::{
    Answer, Batch, Bucket, Curve, Elsewhere, Keep, Limits, Options, Point, Query, Resolution, Scope, Series, Service,
    Source,
};

fn node(number: usize) -> NodeName {
    NodeName::new(&format!("n{number}")).expect("a name")
}

fn source(node: NodeName) -> Source {
    Source { scope: Scope::Node(node), attempt: None, node: None, rank: None, device: None }
}

/// Answers for the first node of each question, and counts questions.
#[derive(Debug, Default)]
struct Other {
    asked: Mutex<Vec<usize>>,
}

impl Elsewhere for Other {
    fn query(&self, _: &Query) -> Option<Answer> {
        None
    }

    fn query_nodes(&self, nodes: &[NodeName], _: &Query) -> Option<BTreeMap<NodeName, Answer>> {
        let mut asked = self.asked.lock().expect("no test panics while it holds this");
        asked.push(nodes.len());
        if asked.len() == 2 {
            return None;
        }
        let series = Series { source: source(nodes[0].clone()), metric: "loss".to_owned() };
        let buckets = vec![Bucket::of(&Point { at: BEGIN, step: None, value: -1.0 })];
        let curve = Curve { series, resolution: Resolution::Point, buckets, unreadable: 0 };
        Some(BTreeMap::from([(nodes[0].clone(), Answer { curves: vec![curve], ..Answer::default() })]))
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

#[test]
fn nodes_are_asked_about_together_and_the_store_answers_for_those_that_nobody_else_knows() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock: fn() -> Timestamp = || BEGIN;
    let options = Options { limits: Limits::default(), keep: Keep::default(), clock };
    let service = Service::start(folder.path().to_owned(), options).expect("it starts");
    let nodes: Vec<NodeName> = (0..120).map(node).collect();
    let (reply, stored) = std::sync::mpsc::channel();
    for (place, node) in nodes.iter().enumerate().skip(1) {
        let count = u64::try_from(place).expect("small");
        let batch = Batch { source: source(node.clone()), ..losses(1, 0, count) };
        let reply = reply.clone();
        service.handle().take(batch, move |outcome| drop(reply.send(outcome)));
        stored.recv().expect("an answer").expect("it is stored");
    }
    let other = Arc::new(Other::default());
    let handle = service.handle().asking(Arc::clone(&other) as Arc<dyn Elsewhere>);
    let query = Query::all(Scope::Node(node(0)), 1_000, 10);
    let answers = handle.query_nodes(&nodes, &query).expect("they can be read");
    service.stop();
    assert_eq!(*other.asked.lock().expect("no test panics while it holds this"), [50, 50, 20]);
    assert_eq!(answers.iter().map(|(node, _)| node.clone()).collect::<Vec<_>>(), nodes);
    for (place, (_, answer)) in answers.iter().enumerate() {
        let points: usize = answer.curves.iter().map(|curve| curve.buckets.len()).sum();
        let is_elsewhere = answer.curves.iter().any(|curve| curve.buckets.iter().any(|bucket| bucket.last < 0.0));
        // The second question had no answer.
        let expected = if [0, 100].contains(&place) { (1, true) } else { (place, false) };
        assert_eq!((points, is_elsewhere), expected, "of node {place}");
    }
}
