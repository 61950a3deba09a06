//! External usage of nodes: a batch system that shares the cluster gives devices to its own users and closes
//! nodes. Externally used devices get no jobs.
//!
//! Only the number of such devices is known, not which ones: the highest-numbered devices that no job of this
//! engine holds are set aside. So the devices set aside depend only on what is held now, not on earlier
//! events.

use gangline_base::{Bytes, NodeId, Timestamp};

use crate::placement::cluster::{Cluster, Node};

/// What other systems hold of a node, and whether they let anything new start there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalUsage {
    /// Whether nothing new may start there.
    pub is_closed: bool,
    /// The number of accelerators.
    pub accelerators: u32,
    /// The number of CPU cores.
    pub cpus: u32,
    /// The amount of memory.
    pub memory: Bytes,
}

impl Cluster {
    /// Records the external usage of a node.
    pub(crate) fn observe(&mut self, now: Timestamp, id: NodeId, outside: ExternalUsage) {
        self.change_condition(now, id, |condition| condition.outside = outside);
    }
}

impl Node {
    /// Recomputes the devices set aside, after any change to the inputs.
    pub(crate) fn set_aside(&mut self) {
        let others = usize::try_from(self.condition.outside.accelerators).unwrap_or(usize::MAX);
        if others == 0 && self.aside.is_empty() {
            return;
        }
        self.free.append(&mut self.aside);
        let kept = self.free.len().saturating_sub(others);
        if let Some(from) = self.free.iter().nth(kept).copied() {
            self.aside = self.free.split_off(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::NodeName;

    use super::*;
    use crate::fixture;
    use crate::{Decision, Engine, Event, Limits, Location, NodeCapacity, NodeSpec, NodeStatus};

    const NODE: NodeId = NodeId(0);

    fn engine() -> Engine {
        let mut engine = Engine::new(Limits::default());
        let capacity = NodeCapacity {
            pool: Default::default(),
            accelerator: fixture::kind(),
            accelerators: 8,
            cpus: 16,
            memory: Bytes(64),
        };
        let name = NodeName::new("n0").expect("a name");
        let spec = NodeSpec { name, capacity, location: Location::default(), layout: Default::default() };
        engine.apply(Timestamp::EPOCH, &Event::NodeJoined(spec)).expect("it joins");
        engine
    }

    fn observe(engine: &mut Engine, outside: ExternalUsage) -> Vec<Decision> {
        let decisions = engine.apply(Timestamp::EPOCH, &Event::NodeObserved { node: NODE, outside });
        engine.check_invariants().expect("they hold");
        decisions.expect("it is there")
    }

    fn submit(engine: &mut Engine, devices: u32) -> Vec<u32> {
        let spec = std::sync::Arc::new(fixture::job(fixture::gang(1, devices)));
        let decisions = engine.apply(Timestamp::EPOCH, &Event::JobSubmitted(spec)).expect("it fits");
        engine.check_invariants().expect("they hold");
        placed(&decisions)
    }

    fn placed(decisions: &[Decision]) -> Vec<u32> {
        let shares = decisions.iter().find_map(|decision| match decision {
            Decision::Place { shares, .. } => Some(shares[0].devices.clone()),
            _ => None,
        });
        shares.unwrap_or_default()
    }

    fn holding(accelerators: u32) -> ExternalUsage {
        ExternalUsage { accelerators, ..ExternalUsage::default() }
    }

    /// Proves A-5: externally used devices go to no gang until they are released.
    #[test]
    fn a_job_waits_while_others_hold_its_devices_and_starts_when_they_leave() {
        let mut engine = engine();
        observe(&mut engine, holding(5));
        assert_eq!(submit(&mut engine, 4), Vec::<u32>::new());
        let started = observe(&mut engine, holding(4));
        assert_eq!(placed(&started).len(), 4);
        assert_eq!(engine.cluster().node(NODE).map(|node| node.free.len()), Some(0));
    }

    #[test]
    fn what_others_hold_beyond_what_is_free_is_set_aside_once_jobs_leave() {
        let mut engine = engine();
        assert_eq!(submit(&mut engine, 6).len(), 6);
        observe(&mut engine, holding(4));
        let node = |engine: &Engine| engine.cluster().node(NODE).map(|node| (node.free.len(), node.aside.len()));
        assert_eq!(node(&engine), Some((0, 2)));
        let job = engine.jobs().next().expect("it runs").id;
        let cancel = Event::CancelRequested { job, by: gangline_base::Submitter("ada".to_owned()) };
        engine.apply(Timestamp::EPOCH, &cancel).expect("it runs");
        let attempt = gangline_base::AttemptNumber(1);
        let end = crate::ShareEnd::Stopped;
        engine.apply(Timestamp::EPOCH, &Event::ShareEnded { job, attempt, node: NODE, end }).expect("it ran");
        assert_eq!(node(&engine), Some((4, 4)));
        engine.check_invariants().expect("they hold");
    }

    #[test]
    fn a_closed_node_takes_nothing_until_it_is_opened_and_an_administrator_can_not_open_it() {
        let mut engine = engine();
        observe(&mut engine, ExternalUsage { is_closed: true, ..ExternalUsage::default() });
        assert_eq!(submit(&mut engine, 1), Vec::<u32>::new());
        engine.apply(Timestamp::EPOCH, &Event::DrainCancelled { node: NODE }).expect("it is there");
        assert_eq!(engine.cluster().node(NODE).map(|node| node.status), Some(NodeStatus::Draining));
        assert_eq!(placed(&observe(&mut engine, ExternalUsage::default())).len(), 1);
    }

    /// Proves A-3: a restored engine sets the same devices aside.
    #[test]
    fn a_restored_engine_knows_what_others_hold() {
        let mut engine = engine();
        observe(&mut engine, ExternalUsage { is_closed: false, accelerators: 3, cpus: 10, memory: Bytes(60) });
        submit(&mut engine, 2);
        let restored = Engine::restore(Limits::default(), engine.snapshot()).expect("it fits");
        restored.check_invariants().expect("they hold");
        assert_eq!(restored.cluster().node(NODE), engine.cluster().node(NODE));
        assert_eq!(restored.cluster().node(NODE).map(|node| (node.free.len(), node.free_cpus)), Some((3, 6)));
    }
}
