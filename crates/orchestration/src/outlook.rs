//! When nodes will have devices free, as far as time limits say: kept as jobs come and go, never searched for.
//!
//! For every node and every number of devices it hasn't free now, the index holds the time by which running jobs that
//! have time limits will have left that many. So the earliest time at which a gang fits is read off from the front:
//! its cost grows with the gang, not with the cluster or with what runs there. Invariants: what a node's book holds is
//! what jobs hold there ([`Outlook::take`] and [`Outlook::release`] come in pairs); the state follows from what is held
//! alone. This is the "profile" of backfilling schedulers (Mu'alem and Feitelson, IEEE TPDS 2001), by node.

use std::collections::BTreeSet;

use gangline_base::{GangShape, JobId, Lane, NodeId, Timestamp};

use crate::cluster::index_of;
use crate::lanes::{ByLane, OfLane};
use crate::{Node, Share};

/// What a job holds on a node.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// When that is over at the latest; none if nobody knows.
    end: Option<Timestamp>,
    job: JobId,
    devices: u32,
    cpus: u32,
    memory: u64,
}

#[derive(Clone, Debug, Default)]
struct Book {
    /// By end, those that nobody knows last.
    held: Vec<Held>,
    lane: Option<Lane>,
    /// How many devices will be free from when on, beyond those that are free now.
    steps: Vec<(u32, Timestamp)>,
}

/// When which node will have how many devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlook {
    /// By node; those beyond have none.
    books: Vec<Book>,
    /// By lane: a number of devices, and when a node will have that many.
    steps: ByLane<BTreeSet<(u32, Timestamp, NodeId)>>,
}

impl Outlook {
    /// A job has taken its share of a node; `node` is as it is since.
    pub(crate) fn take(&mut self, node: &Node, share: &Share, job: JobId, end: Option<Timestamp>) {
        let capacity = node.spec.capacity.accelerators;
        let devices = share.devices.iter().filter(|device| **device < capacity).count();
        let devices = u32::try_from(devices).expect("a node has fewer than 2^32 accelerators");
        let held = Held { end, job, devices, cpus: share.cpus, memory: share.memory.0 };
        let place = index_of(node.id);
        if place >= self.books.len() {
            self.books.resize_with(place + 1, Book::default);
        }
        let book = &mut self.books[place];
        let order = |held: &Held| (held.end.is_none(), held.end, held.job);
        let at = book.held.partition_point(|other| order(other) <= order(&held));
        book.held.insert(at, held);
        self.refresh(node);
    }

    /// A job has given its share of a node back; `node` is as it is since.
    pub(crate) fn release(&mut self, node: &Node, job: JobId) {
        if let Some(book) = self.books.get_mut(index_of(node.id)) {
            book.held.retain(|held| held.job != job);
        }
        self.refresh(node);
    }

    /// A node is there anew, empty but for what is taken from now on.
    pub(crate) fn forget(&mut self, node: &Node) {
        if let Some(book) = self.books.get_mut(index_of(node.id)) {
            book.held.clear();
        }
        self.refresh(node);
    }

    /// The jobs that hold something of a node.
    pub(crate) fn holders(&self, node: NodeId) -> impl Iterator<Item = JobId> + '_ {
        self.books.get(index_of(node)).into_iter().flat_map(|book| &book.held).map(|held| held.job)
    }

    fn refresh(&mut self, node: &Node) {
        let Some(book) = self.books.get_mut(index_of(node.id)) else { return };
        let old = std::mem::take(&mut book.steps);
        let mut free = node.free_count();
        for (end, held) in book.held.iter().filter_map(|held| held.end.map(|end| (end, held))) {
            book.steps.extend((free + 1..=free + held.devices).map(|count| (count, end)));
            free += held.devices;
        }
        let capacity = &node.spec.capacity;
        let is_same_lane = book.lane.as_ref().is_some_and(|lane| lane.names() == capacity.names());
        if let Some(lane) = &book.lane {
            self.steps.change(lane, |steps| {
                for (count, at) in old.iter().filter(|step| !is_same_lane || !book.steps.contains(step)) {
                    steps.remove(&(*count, *at, node.id));
                }
            });
        }
        if !is_same_lane {
            book.lane = Some(capacity.lane());
        }
        self.steps.change(capacity, |steps| {
            for (count, at) in book.steps.iter().filter(|step| !is_same_lane || !old.contains(step)) {
                steps.insert((*count, *at, node.id));
            }
        });
    }

    /// Nodes that haven't the devices for a share of `gang` now, and by when they will, the first first.
    pub(crate) fn with_devices_for<'a>(
        &'a self,
        gang: &GangShape,
    ) -> impl Iterator<Item = (Timestamp, NodeId)> + use<'a> {
        let count = gang.accelerators_per_node.get();
        let range = (count, Timestamp::EPOCH, NodeId(0))..(count + 1, Timestamp::EPOCH, NodeId(0));
        let steps = self.steps.get(gang).into_iter();
        steps.flat_map(move |steps| steps.range(range.clone()).map(|(_, at, node)| (*at, *node)))
    }

    /// By when a node will have all that a share of `gang` takes, cores and memory too; none if nobody knows.
    pub(crate) fn fits_from(&self, node: &Node, gang: &GangShape) -> Option<Timestamp> {
        let held = self.books.get(index_of(node.id)).map(|book| book.held.as_slice()).unwrap_or_default();
        let capacity = &node.spec.capacity;
        let mut devices = node.free_count();
        // What is held may be more than there is, on a node that came back with less.
        // When others leave isn't known.
        let outside = node.standing.outside;
        let (mut cpus, mut memory) = held.iter().fold((outside.cpus, outside.memory.0), |(cpus, memory), held| {
            (cpus.saturating_add(held.cpus), memory.saturating_add(held.memory))
        });
        let mut at = Some(Timestamp::EPOCH);
        let mut coming = held.iter();
        loop {
            let has_all = devices >= gang.accelerators_per_node.get()
                && capacity.cpus.saturating_sub(cpus) >= gang.cpus_per_node
                && capacity.memory.0.saturating_sub(memory) >= gang.memory_per_node.0;
            if has_all {
                return at;
            }
            let next = coming.next()?;
            (devices, cpus, memory) = (devices + next.devices, cpus - next.cpus, memory - next.memory);
            at = Some(next.end?);
        }
    }

    /// The devices of a node that will be free at `at` if nothing more starts there.
    pub(crate) fn free_at(&self, node: &Node, at: Timestamp) -> u32 {
        let coming = self.books.get(index_of(node.id)).into_iter().flat_map(|book| &book.held);
        let by_then = coming.filter(|held| held.end.is_some_and(|end| end <= at));
        node.free_count() + by_then.map(|held| held.devices).sum::<u32>()
    }
}
