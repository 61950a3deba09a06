//! The outlook: when nodes will have free devices according to time limits, maintained as jobs come and go.
//!
//! For every node and every number of devices that it lacks now, the index holds the time by which running
//! jobs with time limits will have freed that many. So the earliest time at which a gang fits is read from
//! the front: the cost grows with the gang, not with the cluster or its jobs. Invariants: a node's book
//! matches what jobs hold there ([`Outlook::take`] and [`Outlook::release`] come in pairs); the state follows
//! only from what is held. This is the "profile" of backfilling schedulers (Mu'alem and Feitelson, IEEE
//! TPDS 2001), per node.

use std::collections::BTreeSet;

use gangline_base::{Flavour, GangShape, JobId, NodeId, Timestamp};

use crate::placement::cluster::index_of;
use crate::placement::flavour::{ByFlavour, OfFlavour};
use crate::{Node, Share};

/// What a job holds on a node.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// When it ends at the latest; none if unknown.
    end: Option<Timestamp>,
    job: JobId,
    devices: u32,
    cpus: u32,
    memory: u64,
}

#[derive(Clone, Debug, Default)]
struct Book {
    /// Sorted by end, unknown ends last.
    held: Vec<Held>,
    flavour: Option<Flavour>,
    /// How many devices beyond those free now will be free from which time.
    steps: Vec<(u32, Timestamp)>,
}

/// When each node will have how many free devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlook {
    /// By node; later nodes have none.
    books: Vec<Book>,
    /// By flavour: a number of devices, and when a node will have that many.
    steps: ByFlavour<BTreeSet<(u32, Timestamp, NodeId)>>,
}

impl Outlook {
    /// Records that a job took its share of a node; `node` is in the state after that.
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

    /// Records that a job released its share of a node; `node` is in the state after that.
    pub(crate) fn release(&mut self, node: &Node, job: JobId) {
        if let Some(book) = self.books.get_mut(index_of(node.id)) {
            book.held.retain(|held| held.job != job);
        }
        self.refresh(node);
    }

    /// Forgets everything held on a node.
    pub(crate) fn forget(&mut self, node: &Node) {
        if let Some(book) = self.books.get_mut(index_of(node.id)) {
            book.held.clear();
        }
        self.refresh(node);
    }

    /// Returns the jobs that hold something of a node.
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
        let is_same_flavour = book.flavour.as_ref().is_some_and(|flavour| flavour.names() == capacity.names());
        if let Some(flavour) = &book.flavour {
            self.steps.change(flavour, |steps| {
                for (count, at) in old.iter().filter(|step| !is_same_flavour || !book.steps.contains(step)) {
                    steps.remove(&(*count, *at, node.id));
                }
            });
        }
        if !is_same_flavour {
            book.flavour = Some(capacity.flavour());
        }
        self.steps.change(capacity, |steps| {
            for (count, at) in book.steps.iter().filter(|step| !is_same_flavour || !old.contains(step)) {
                steps.insert((*count, *at, node.id));
            }
        });
    }

    /// Returns nodes that lack devices for a share of `gang` now, with the time by which they will have them,
    /// earliest first.
    pub(crate) fn with_devices_for<'a>(
        &'a self,
        gang: &GangShape,
    ) -> impl Iterator<Item = (Timestamp, NodeId)> + use<'a> {
        let count = gang.accelerators_per_node.get();
        let range = (count, Timestamp::EPOCH, NodeId(0))..(count + 1, Timestamp::EPOCH, NodeId(0));
        let steps = self.steps.get(gang).into_iter();
        steps.flat_map(move |steps| steps.range(range.clone()).map(|(_, at, node)| (*at, *node)))
    }

    /// Returns when a node will have everything a share of `gang` takes, including cores and memory; none if
    /// unknown.
    pub(crate) fn fits_from(&self, node: &Node, gang: &GangShape) -> Option<Timestamp> {
        let held = self.books.get(index_of(node.id)).map(|book| book.held.as_slice()).unwrap_or_default();
        let capacity = &node.spec.capacity;
        let mut devices = node.free_count();
        // More may be held than the node has, if it came back smaller. When external usage ends is unknown.
        let outside = node.condition.outside;
        let (mut cpus, mut memory) = held.iter().fold((outside.cpus, outside.memory.0), |(cpus, memory), held| {
            (cpus.saturating_add(held.cpus), memory.saturating_add(held.memory))
        });
        let mut at = Some(Timestamp::EPOCH);
        let mut coming = held.iter();
        loop {
            let has_all = devices >= gang.accelerators_per_node.get()
                && capacity.shared_cpus().saturating_sub(cpus) >= gang.cpus_per_node
                && capacity.shared_memory().0.saturating_sub(memory) >= gang.memory_per_node.0;
            if has_all {
                return at;
            }
            let next = coming.next()?;
            (devices, cpus, memory) = (devices + next.devices, cpus - next.cpus, memory - next.memory);
            at = Some(next.end?);
        }
    }

    /// Returns the devices of a node that will be free at `at` if nothing more starts there.
    pub(crate) fn free_at(&self, node: &Node, at: Timestamp) -> u32 {
        let coming = self.books.get(index_of(node.id)).into_iter().flat_map(|book| &book.held);
        let by_then = coming.filter(|held| held.end.is_some_and(|end| end <= at));
        node.free_count() + by_then.map(|held| held.devices).sum::<u32>()
    }
}
