//! The search for the best layout on a cluster: every cut worth trying is checked, must fit into memory, and is timed.
//!
//! Exhaustive over the cuts that `candidates` makes, a few thousand; deterministic. What lost says why.

mod candidates;

use std::collections::BTreeMap;

use crate::hardware::Cluster;
use crate::layout::{Layout, Offload, Recompute, Stack};
use crate::memory::{self, MemoryEstimate, StageMemory};
use crate::time::{self, StepTime};
use crate::units::{Seconds, Volume};
use crate::workload::{Task, Workload};

pub use candidates::Space;

/// A simpler layout is taken if it is slower by no more than this part: estimates are off by more.
const SIMPLER_IS_WORTH: f64 = 0.03;
/// The part of the memory that a layout may take at ease, fragmentation included: half of the estimates have been off by 4 %.
const AT_EASE: f64 = 0.95;
/// What would fit into so much more memory is told: that much more can be bought.
const MEMORY_MORE: f64 = 1.8;
/// Runners-up that are told.
const RUNNERS_UP_MAX: usize = 4;

/// A layout with its estimates.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The cut.
    pub layout: Layout,
    /// What each stage holds.
    pub memory: MemoryEstimate,
    /// How long a step takes.
    pub time: StepTime,
}

/// Why a layout wasn't taken.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// It takes longer.
    Slower {
        /// Its step time over the best one's.
        factor: f64,
        /// What it spends most of the difference on, as [`components`] calls it.
        component: &'static str,
        /// How much more of that.
        extra: Seconds,
    },
    /// It would be faster, or as fast, but doesn't fit.
    TooLarge {
        /// What the fullest stage needs.
        needed: Volume,
        /// What an accelerator has.
        capacity: Volume,
        /// What takes most of it.
        component: &'static str,
    },
    /// It is faster by less than estimates are good for, and more complicated.
    NotSimpler {
        /// Its step time over the best one's.
        factor: f64,
    },
}

/// A layout that lost.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp {
    /// It.
    pub candidate: Candidate,
    /// Why.
    pub loss: Loss,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The best that fits.
    pub best: Option<Candidate>,
    /// Others, the nearest first, each cut in another way.
    pub runners_up: Vec<RunnerUp>,
    /// How many possible cuts were looked at.
    pub tried: usize,
    /// How many of them fit.
    pub fitting: usize,
    /// If none fits, the one that needs least.
    pub smallest: Option<Candidate>,
}

/// Finds the best layout of a workload on a cluster, with any software or a given one.
#[must_use]
pub fn search(workload: &Workload, cluster: &Cluster, stack: Option<Stack>) -> Outcome {
    let (usual, offloading) = (Space::usual(workload, cluster, stack), Space::offloading(workload, cluster, stack));
    let outcome = search_in(workload, cluster, (&usual, Room::AtEase));
    let or = |outcome: Outcome, next: &dyn Fn() -> Outcome| if outcome.best.is_some() { outcome } else { next() };
    let outcome = or(outcome, &|| search_in(workload, cluster, (&usual, Room::Tight)));
    if workload.task == Task::Inference {
        return outcome;
    }
    or(outcome, &|| search_in(workload, cluster, (&offloading, Room::AtEase)))
}

/// How much of the memory a layout may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So much that an estimate may be off.
    AtEase,
    /// Whatever runs.
    Tight,
}

impl Room {
    fn has(self, memory: &MemoryEstimate) -> bool {
        match self {
            Room::AtEase => memory.fullest().occupied() <= memory.capacity * AT_EASE,
            Room::Tight => memory.fits(),
        }
    }
}

/// Finds the best layout among those of a space that fit so.
#[must_use]
pub fn search_in(workload: &Workload, cluster: &Cluster, (space, room): (&Space, Room)) -> Outcome {
    let mut families: BTreeMap<Family, Best> = BTreeMap::new();
    let (mut tried, mut fitting) = (0, 0);
    let mut smallest: Option<(f64, Layout)> = None;
    space.each(&mut |layout: &Layout| {
        if layout.check(workload, cluster).is_err() {
            return;
        }
        tried += 1;
        let memory = memory::estimate(workload, layout, cluster);
        let needed = memory.fullest().occupied().get();
        if smallest.is_none_or(|(least, _)| needed < least) {
            smallest = Some((needed, *layout));
        }
        let is_fitting = room.has(&memory);
        fitting += usize::from(is_fitting);
        let seconds = time::estimate(workload, layout, cluster).total().get();
        let is_near = needed <= memory.capacity.get() * MEMORY_MORE;
        families.entry(Family::of(layout)).or_default().offer((is_fitting, is_near), seconds, layout);
    });
    let made = |layout: &Layout| Candidate {
        layout: *layout,
        memory: memory::estimate(workload, layout, cluster),
        time: time::estimate(workload, layout, cluster),
    };
    let best = simplest(families.values().filter_map(|best| best.fitting)).map(|layout| made(&layout));
    let runners_up = best.as_ref().map(|best| runners_up(best, &families, made)).unwrap_or_default();
    let smallest = if best.is_none() { smallest.map(|(_, layout)| made(&layout)) } else { None };
    Outcome { best, runners_up, tried, fitting, smallest }
}

/// Layouts that a reader takes for the same idea.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Family {
    stack: Stack,
    tensor: u32,
    pipeline: u32,
    context: u32,
    expert: u32,
    recompute: Recompute,
    offload: Offload,
}

impl Family {
    fn of(layout: &Layout) -> Family {
        let Layout { stack, tensor, pipeline, context, expert, recompute, offload, .. } = *layout;
        Family { stack, tensor, pipeline, context, expert, recompute, offload }
    }
}

/// The fastest of a family, of those that fit and of those that nearly do.
#[derive(Clone, Copy, Debug, Default)]
struct Best {
    fitting: Option<(f64, Layout)>,
    near: Option<(f64, Layout)>,
}

impl Best {
    fn offer(&mut self, (is_fitting, is_near): (bool, bool), seconds: f64, layout: &Layout) {
        let is_faster = |best: &Option<(f64, Layout)>| best.is_none_or(|(fastest, _)| seconds < fastest);
        if is_near && is_faster(&self.near) {
            self.near = Some((seconds, *layout));
        }
        if is_fitting && is_faster(&self.fitting) {
            self.fitting = Some((seconds, *layout));
        }
    }
}

/// Of those that are about as fast as the fastest, the simplest.
fn simplest(fitting: impl Iterator<Item = (f64, Layout)>) -> Option<Layout> {
    let all: Vec<(f64, Layout)> = fitting.collect();
    let fastest = all.iter().map(|(seconds, _)| *seconds).min_by(f64::total_cmp)?;
    let close = all.into_iter().filter(|(seconds, _)| *seconds <= fastest * (1.0 + SIMPLER_IS_WORTH));
    let order =
        |a: &(f64, Layout), b: &(f64, Layout)| complexity(&a.1).cmp(&complexity(&b.1)).then(a.0.total_cmp(&b.0));
    close.min_by(order).map(|(_, layout)| layout)
}

/// Ways in which a layout is cut, besides by data: fewer are easier to run and to debug.
fn complexity(layout: &Layout) -> u32 {
    let ways = [layout.tensor, layout.pipeline, layout.virtual_stages, layout.context, layout.expert];
    let cut: u32 = ways.into_iter().map(|ways| u32::from(ways > 1)).sum();
    cut + u32::from(layout.offload != Offload::None)
}

fn runners_up(
    best: &Candidate,
    families: &BTreeMap<Family, Best>,
    made: impl Fn(&Layout) -> Candidate,
) -> Vec<RunnerUp> {
    let own = Family::of(&best.layout);
    let fastest = best.time.total();
    let mut others: Vec<(f64, Layout)> =
        families.iter().filter(|(family, _)| **family != own).filter_map(|(_, best)| best.fitting).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut told: Vec<RunnerUp> = Vec::new();
    // The fastest that doesn't fit shows what more memory would be worth.
    let too_large = families.values().filter_map(|best| best.near).min_by(|a, b| a.0.total_cmp(&b.0));
    let is_too_large = |candidate: &Candidate| !candidate.memory.fits() && candidate.time.total() < fastest;
    let too_large = too_large.map(|(_, layout)| made(&layout)).filter(is_too_large);
    told.extend(too_large.map(|candidate| RunnerUp { loss: too_large_by(&candidate), candidate }));
    for (_, layout) in others {
        let is_new = told.iter().all(|told| {
            let (told, this) = (&told.candidate.layout, &layout);
            (told.tensor, told.pipeline, told.stack) != (this.tensor, this.pipeline, this.stack)
        });
        if is_new && told.len() < RUNNERS_UP_MAX {
            let candidate = made(&layout);
            told.push(RunnerUp { loss: slower_by(&candidate, &best.time, fastest), candidate });
        }
    }
    told
}

fn too_large_by(candidate: &Candidate) -> Loss {
    let fullest = candidate.memory.fullest();
    let parts = memory_components(&fullest);
    let largest = parts.into_iter().max_by(|a, b| a.1.get().total_cmp(&b.1.get()));
    let component = largest.map_or("memory", |(name, _)| name);
    Loss::TooLarge { needed: fullest.occupied(), capacity: candidate.memory.capacity, component }
}

fn slower_by(candidate: &Candidate, best: &StepTime, fastest: Seconds) -> Loss {
    let factor = candidate.time.total() / fastest;
    if factor < 1.0 {
        return Loss::NotSimpler { factor };
    }
    let pairs = components(&candidate.time).into_iter().zip(components(best));
    let differences = pairs.map(|((name, theirs), (_, ours))| (name, theirs - ours));
    let most = differences.max_by(|a, b| a.1.get().total_cmp(&b.1.get()));
    let (component, extra) = most.unwrap_or(("time", Seconds::ZERO));
    Loss::Slower { factor, component, extra }
}

/// A step's parts by the names that people read.
#[must_use]
pub fn components(time: &StepTime) -> [(&'static str, Seconds); 10] {
    [
        ("compute", time.compute),
        ("kernel launches", time.launch),
        ("tensor-parallel communication", time.tensor),
        ("context-parallel communication", time.context),
        ("expert-parallel communication", time.expert),
        ("data-parallel communication", time.data),
        ("pipeline transfers", time.pipeline),
        ("pipeline bubble", time.bubble),
        ("optimizer", time.optimizer),
        ("waiting and the rest", time.other),
    ]
}

/// A stage's memory by the names that people read.
#[must_use]
pub fn memory_components(memory: &StageMemory) -> [(&'static str, Volume); 8] {
    [
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
        ("activations", memory.activations),
        ("loss head", memory.loss_head),
        ("buffers", memory.buffers),
        ("fragmentation", memory.fragmentation),
        ("framework", memory.framework),
    ]
}

#[cfg(test)]
mod tests;
