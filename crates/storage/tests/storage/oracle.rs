//! Saves, loads, rollbacks, retention, damage and crashes at random, beside an oracle that keeps a record of its own: the newest good
//! save of the current branch is always there, and nothing else is ever gone on from.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gangline_storage::{DataType, DiskHook, Error, Options, PrunePolicy, Step, Store, TensorView};

const SEEDS: u64 = 1_000;
const ACTS: usize = 14;

/// A generator of numbers that are the same for the same seed (SplitMix64, Steele, Lea and Flood 2014).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }
}

/// A save as the oracle remembers it.
struct Save {
    step: u64,
    /// All saves of its line by then, itself the last.
    line: Vec<usize>,
    is_there: bool,
    is_good: bool,
}

#[derive(Default)]
struct Oracle {
    saves: Vec<Save>,
    /// The newest save, even if it is gone or damaged: its line is the current one.
    newest: Option<usize>,
}

impl Oracle {
    fn line(&self) -> Vec<usize> {
        let line = self.newest.map(|newest| self.saves[newest].line.clone()).unwrap_or_default();
        line.into_iter().filter(|save| self.saves[*save].is_there).collect()
    }

    /// The save that is to be offered.
    fn latest(&self, below: Option<u64>) -> Option<usize> {
        let counts = |save: &usize| below.is_none_or(|below| self.saves[*save].step < below);
        self.line().into_iter().rev().filter(counts).find(|save| self.saves[*save].is_good)
    }

    fn tip(&self) -> Option<usize> {
        self.line().last().copied()
    }

    fn there(&self, step: u64) -> Option<usize> {
        self.saves.iter().position(|save| save.step == step && save.is_there)
    }

    /// A save of this step after `from`, or after nothing.
    fn saved(&mut self, step: u64, from: Option<usize>) {
        let mut line = from.map(|from| self.saves[from].line.clone()).unwrap_or_default();
        if let Some(replaced) = self.there(step) {
            self.saves[replaced].is_there = false;
        }
        line.push(self.saves.len());
        self.newest = Some(self.saves.len());
        self.saves.push(Save { step, line, is_there: true, is_good: true });
    }

    /// What retention removes.
    fn beyond(&self, keep: usize) -> Vec<usize> {
        let line = self.line();
        let oldest = line.iter().copied().rev().filter(|save| self.saves[*save].is_good).nth(keep - 1);
        let beyond = |oldest| line.iter().copied().take_while(|save| *save != oldest).collect();
        oldest.map(beyond).unwrap_or_default()
    }

    fn remove(&mut self, saves: &[usize]) {
        saves.iter().for_each(|save| self.saves[*save].is_there = false);
    }

    fn steps(&self, saves: &[usize]) -> BTreeSet<u64> {
        saves.iter().map(|save| self.saves[*save].step).collect()
    }
}

/// One history of training over a folder.
struct History<'a> {
    path: &'a Path,
    draw: Draw,
    oracle: Oracle,
    writer: Option<Writer>,
    log: Vec<String>,
}

struct Writer {
    store: Store,
    keep: usize,
    /// Its last save.
    at: Option<usize>,
    /// What it loaded since.
    loaded: Option<usize>,
}

impl History<'_> {
    fn open(&mut self, hook: Option<DiskHook>) -> Option<&mut Writer> {
        let keep = 1 + self.draw.index(3);
        self.writer = None;
        let options = Options { keep: NonZeroUsize::new(keep), disk_hook: hook, ..Options::default() };
        let store = Store::open(self.path, options).ok()?;
        Some(self.writer.insert(Writer { store, keep, at: None, loaded: None }))
    }

    /// What the oracle expects a save of this step to go on from.
    fn origin(&self, step: u64) -> Option<usize> {
        let writer = self.writer.as_ref().unwrap();
        let step_of = |save: usize| self.oracle.saves[save].step;
        match (writer.loaded, writer.at) {
            (Some(loaded), _) => Some(loaded),
            (None, Some(at)) if step >= step_of(at) => Some(at),
            _ => self.oracle.tip().filter(|tip| step >= step_of(*tip)),
        }
    }

    fn save(&mut self, step: u64) {
        let id = self.oracle.saves.len();
        let from = self.origin(step);
        self.log.push(format!("save {step} as {id} after {from:?}"));
        let writer = self.writer.as_mut().unwrap();
        let (outcome, keep) = (send(&writer.store, step, id), writer.keep);
        if outcome.is_err() && self.id_of(step) != Some(id) {
            return;
        }
        self.oracle.saved(step, from);
        let expected = self.oracle.steps(&self.oracle.beyond(keep));
        let removed: BTreeSet<u64> = match outcome.map(|saved| saved.retention) {
            Ok(Ok(pruned)) => {
                let removed = pruned.removed.iter().map(|step| step.0).collect();
                assert_eq!(removed, expected, "{:#?}", self.log);
                removed
            }
            // It was cut off somewhere: what is gone is at most what was to go.
            _ => expected.into_iter().filter(|step| self.id_of(*step).is_none()).collect(),
        };
        let removed: Vec<usize> = removed.into_iter().filter_map(|step| self.oracle.there(step)).collect();
        self.oracle.remove(&removed);
        let writer = self.writer.as_mut().unwrap();
        (writer.at, writer.loaded) = (Some(id), None);
    }

    /// Which save a step's folder holds.
    fn id_of(&self, step: u64) -> Option<usize> {
        let listed = Store::open(self.path, Options::reader()).unwrap().list().unwrap();
        let found = listed.into_iter().find(|one| one.step.0 == step)?;
        found.manifest.ok()?.metadata["id"].parse().ok()
    }

    fn resume(&mut self, save: usize) {
        let step = Step(self.oracle.saves[save].step);
        self.log.push(format!("load {step}"));
        let writer = self.writer.as_mut().unwrap();
        writer.store.load(step).unwrap();
        writer.store.resume_from(step).unwrap();
        writer.loaded = Some(save);
    }

    /// A step near what was saved before.
    fn step(&mut self) -> u64 {
        let last = self.oracle.saves.last().map_or(0, |save| save.step);
        match self.draw.below(6) {
            0 => self.draw.below(last + 3),
            _ => last + self.draw.below(4),
        }
    }

    fn act(&mut self) {
        let choice = self.draw.below(12);
        if self.writer.is_none() {
            self.open(None);
        }
        match choice {
            0 => self.writer = None,
            1 | 2 => self.crash(),
            3 | 4 => {
                self.open(None);
                if let Some(newest) = self.oracle.latest(None) {
                    self.resume(newest);
                }
            }
            5 | 6 => {
                let there = |save: &usize| self.oracle.saves[*save].is_there && self.oracle.saves[*save].is_good;
                let all: Vec<usize> = (0..self.oracle.saves.len()).filter(there).collect();
                if !all.is_empty() {
                    let save = all[self.draw.index(all.len())];
                    self.resume(save);
                }
            }
            7 => self.damage(),
            8 => self.prune(),
            _ => {}
        }
        if choice > 4 && self.writer.is_some() {
            let step = self.step();
            self.save(step);
        }
    }

    /// A writer that is killed at some change to the disk.
    fn crash(&mut self) {
        let (count, made) = (self.draw.index(40), AtomicUsize::new(0));
        let hook: DiskHook = Arc::new(move |_, _| {
            if made.fetch_add(1, Ordering::SeqCst) < count { Ok(()) } else { Err(io::Error::other("killed")) }
        });
        self.log.push(format!("killed after {count}"));
        if self.open(Some(hook)).is_some() {
            if let (Some(newest), 0) = (self.oracle.latest(None), self.draw.below(2)) {
                self.resume(newest);
            }
            let step = self.step();
            self.save(step);
        }
        self.writer = None;
    }

    /// Damage between two processes.
    fn damage(&mut self) {
        self.writer = None;
        let all: Vec<usize> = (0..self.oracle.saves.len()).filter(|save| self.oracle.saves[*save].is_there).collect();
        if all.is_empty() {
            return;
        }
        let save = all[self.draw.index(all.len())];
        let step = self.oracle.saves[save].step;
        self.log.push(format!("damage {step}"));
        let shard = self.path.join(format!("step-{step:010}/shard-00000-of-00001.safetensors"));
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(shard, bytes).unwrap();
        self.oracle.saves[save].is_good = !self.oracle.saves[save].is_good;
    }

    fn prune(&mut self) {
        let store = &self.writer.as_ref().unwrap().store;
        let line = self.oracle.line();
        match self.draw.below(3) {
            0 => {
                self.log.push("prune the abandoned".to_owned());
                store.prune(&PrunePolicy::Abandoned(None), false).unwrap();
                let off: Vec<usize> = (0..self.oracle.saves.len()).filter(|save| !line.contains(save)).collect();
                self.oracle.remove(&off);
            }
            1 => {
                let above = self.draw.below(12);
                self.log.push(format!("prune above {above}"));
                let (gone, left): (Vec<usize>, Vec<usize>) =
                    line.into_iter().partition(|save| self.oracle.saves[*save].step > above);
                let is_allowed = gone.is_empty() || left.iter().any(|save| self.oracle.saves[*save].is_good);
                let pruned = store.prune(&PrunePolicy::Above(Step(above)), false);
                assert_eq!(pruned.is_ok(), is_allowed, "{:#?}", self.log);
                if is_allowed {
                    self.oracle.remove(&gone);
                }
            }
            _ => {
                let Some(tip) = self.oracle.tip() else { return };
                self.log.push(format!("delete {}", self.oracle.saves[tip].step));
                let is_allowed = line.iter().any(|save| *save != tip && self.oracle.saves[*save].is_good);
                let deleted = store.delete(Step(self.oracle.saves[tip].step));
                assert_eq!(deleted.is_ok(), is_allowed, "{:#?}", self.log);
                if is_allowed {
                    self.oracle.remove(&[tip]);
                }
            }
        }
    }

    /// What is offered is what the oracle would go on from, and everything it counts on is there.
    fn check(&mut self) {
        let below = (self.draw.below(4) == 0).then(|| self.draw.below(12));
        let store = Store::open(self.path, Options { restore_below: below.map(Step), ..Options::reader() }).unwrap();
        let offered = store.latest().unwrap().checkpoint.map(|info| info.metadata["id"].parse().unwrap());
        assert_eq!(offered, self.oracle.latest(below), "below {below:?}: {:#?}", self.log);
        let there: BTreeMap<u64, usize> = (0..self.oracle.saves.len())
            .filter(|save| self.oracle.saves[*save].is_there)
            .map(|save| (self.oracle.saves[save].step, save))
            .collect();
        let listed = store.list().unwrap();
        let found = listed.into_iter().map(|one| (one.step.0, one.manifest.unwrap().metadata["id"].parse().unwrap()));
        assert_eq!(found.collect::<BTreeMap<u64, usize>>(), there, "{:#?}", self.log);
    }
}

fn send(store: &Store, step: u64, id: usize) -> Result<gangline_storage::Saved, Error> {
    let data = (id as u64).to_le_bytes();
    let tensor = TensorView { name: "id", data_type: DataType::I64, shape: &[1], data: &data, part_of: None };
    let note = BTreeMap::from([("id".to_owned(), id.to_string())]);
    store.save(Step(step), &[tensor], &note)?.wait()
}

/// Proves A-6, over branches.
#[test]
fn the_newest_good_save_of_the_current_branch_is_always_there_and_nothing_else_is_gone_on_from() {
    // In memory, where there is such a file system: nothing here depends on a disk.
    let place = Path::new("/dev/shm");
    for seed in 0..SEEDS {
        let folder = if place.is_dir() { tempfile::tempdir_in(place) } else { tempfile::tempdir() }.unwrap();
        let log = vec![format!("seed {seed}")];
        let mut history =
            History { path: folder.path(), draw: Draw(seed), oracle: Oracle::default(), writer: None, log };
        for _ in 0..ACTS {
            history.act();
            history.check();
        }
    }
}
