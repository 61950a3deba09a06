//! Pruning of an archive: removes catalogs first, then the packs that no remaining catalog names.
//! References are counted by chunk, not by checkpoint: a base stays while anything follows from it. Packs of
//! which little is still needed are then rewritten (`compaction`).

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use gangline_objects::Object;
use serde::Serialize;

use super::Error;
use super::access::{Access, Change};
use super::catalog::{Catalog, Pack, catalog_key, pack_key};
use super::compaction::Plan;
use super::known::{list_catalogs, list_packs, read_catalog};
use super::milestone;
use crate::retention::{Candidate, Reason, Rule, kept};

/// The age at which a pack that no catalog names is removed: a younger one may belong to an interrupted push
/// that can continue.
const STRAY_AGE_MIN: Duration = Duration::from_secs(24 * 3_600);

/// The result of pruning, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Checkpoints removed, oldest first, each with the bytes of its shards.
    pub removed: Vec<(Step, Bytes)>,
    /// Checkpoints that stay, oldest first, with the reasons.
    pub kept: Vec<(Step, Vec<Reason>)>,
    /// Checkpoints that are reduced to a milestone, each with the bytes of the tensors that it keeps.
    pub milestones: Vec<(Step, Bytes)>,
    /// The bytes put for these milestones; 0 in a dry run, which doesn't code them.
    pub milestones_put: Bytes,
    /// Packs removed, including those of interrupted pushes and those that were compacted.
    pub packs_removed: usize,
    /// Packs of which less than half was needed; their needed chunks are now in other packs.
    pub packs_compacted: usize,
    /// The total size of the packs written by compaction.
    pub rewritten: Bytes,
    /// The bytes that all this frees in the archive, not counting those that milestones take.
    pub freed: Bytes,
    /// The total size of the packs that stay.
    pub stored: Bytes,
}

/// Checkpoints that become milestones.
#[derive(Default)]
pub(crate) struct Thinning {
    /// The catalogs, oldest first, each with the bytes of the tensors that it keeps.
    chosen: Vec<(Catalog, Bytes)>,
    /// Existing milestones, oldest first.
    there: Vec<Catalog>,
    keep: Vec<String>,
}

impl Thinning {
    /// Selects the checkpoints that only [`Rule::Milestones`] keeps and that aren't milestones yet.
    pub(crate) fn of(access: &Access<'_>, rules: &[Rule]) -> Result<Thinning, Error> {
        let keep = rules.iter().find_map(|rule| match rule {
            Rule::Milestones { keep, .. } => Some(keep.clone()),
            _ => None,
        });
        let Some(keep) = keep else { return Ok(Thinning::default()) };
        let catalogs = read_all(access)?;
        let reasons = kept(rules, &candidates(&catalogs));
        let (there, whole): (Vec<Catalog>, Vec<Catalog>) =
            catalogs.into_iter().partition(|catalog| catalog.milestone.is_some());
        let is_chosen =
            |catalog: &Catalog| reasons.get(&Step(catalog.step)).is_some_and(|why| *why == [Reason::Milestone]);
        let chosen = whole.into_iter().filter(is_chosen).map(|catalog| {
            let nothing = || Error::NothingKept { step: Step(catalog.step), kept: keep.clone() };
            let bytes = milestone::bytes_kept(&catalog, &keep).ok_or_else(nothing)?;
            Ok((catalog, bytes))
        });
        Ok(Thinning { chosen: chosen.collect::<Result<_, Error>>()?, there, keep })
    }

    fn told(&self) -> Vec<(Step, Bytes)> {
        self.chosen.iter().map(|(catalog, bytes)| (Step(catalog.step), *bytes)).collect()
    }

    /// Thins one checkpoint after the other: puts the milestone's packs, then replaces the checkpoint's
    /// catalog. Returns the bytes put.
    pub(crate) fn execute(&self, change: &Change<'_>) -> Result<Bytes, Error> {
        let mut there = self.there.clone();
        let mut put = Bytes(0);
        for (catalog, _) in &self.chosen {
            there.sort_by_key(|other| other.step.abs_diff(catalog.step));
            let (made, bytes) = milestone::thin(change, catalog, there.clone(), &self.keep)?;
            put = put + bytes;
            there.push(made);
        }
        Ok(put)
    }
}

/// Returns the checkpoints as the rules see them, in the order of the saves.
fn candidates(catalogs: &[Catalog]) -> Vec<Candidate<'_>> {
    let mut sorted: Vec<&Catalog> = catalogs.iter().collect();
    sorted.sort_by_key(|catalog| catalog.moment());
    let line = sorted.last().map(|catalog| catalog.line()).unwrap_or_default();
    let candidates = sorted.into_iter().map(|catalog| Candidate {
        step: Step(catalog.step),
        saved_at: Timestamp::from_unix_nanos(catalog.saved_at),
        metadata: &catalog.metadata,
        is_whole: catalog.milestone.is_none(),
        is_on_line: line.holds(catalog.line().branch, catalog.moment()),
    });
    candidates.collect()
}

fn read_all(access: &Access<'_>) -> Result<Vec<Catalog>, Error> {
    let listed = list_catalogs(access.link)?;
    listed.iter().map(|one| read_catalog(access.link, &access.vault, *one)).collect()
}

/// The plan of a prune once milestones are made.
pub(crate) struct Sweep {
    staying: Vec<Catalog>,
    going: Vec<Catalog>,
    kept: Vec<(Step, Vec<Reason>)>,
    milestones: Vec<(Step, Bytes)>,
    doomed: Vec<Object>,
    compaction: Plan,
    left: Bytes,
}

impl Sweep {
    /// Plans the removals. Fails unless every catalog can be read and every remaining checkpoint has all its
    /// packs. Of a thinned checkpoint only the milestone is needed.
    pub(crate) fn of(access: &Access<'_>, rules: &[Rule], now: Timestamp, thinning: &Thinning) -> Result<Sweep, Error> {
        let thinned: BTreeSet<u64> = thinning.chosen.iter().map(|(catalog, _)| catalog.step).collect();
        let catalogs = read_all(access)?;
        let reasons = kept(rules, &candidates(&catalogs));
        // Checkpoints that are still to be thinned are neither needed nor removed.
        let is_left = |catalog: &Catalog| catalog.milestone.is_some() || !thinned.contains(&catalog.step);
        let (staying, going): (Vec<Catalog>, Vec<Catalog>) =
            catalogs.into_iter().filter(is_left).partition(|catalog| reasons.contains_key(&Step(catalog.step)));
        let packs = list_packs(access.link)?;
        let mut of_staying = staying.iter().flat_map(|catalog| &catalog.packs);
        of_staying.try_for_each(|pack| pack.check(packs.get(&pack_key(&pack.blake3))))?;
        let compaction = Plan::of(&staying.iter().collect::<Vec<_>>(), access.vault.tag_bytes() as u64);
        let (needed, mut released) = (keys(&staying), keys(&going));
        thinning.chosen.iter().for_each(|(catalog, _)| released.extend(keys(std::slice::from_ref(catalog))));
        let is_stray = |object: &Object| now.since(object.modified) >= STRAY_AGE_MIN;
        let (doomed, left): (Vec<Object>, Vec<Object>) = packs
            .into_values()
            .partition(|pack| !needed.contains(&pack.key) && (released.contains(&pack.key) || is_stray(pack)));
        let (kept, left) = (reasons.into_iter().collect(), sum(&left));
        let milestones = thinning.told();
        Ok(Sweep { staying, going, kept, milestones, doomed, compaction, left })
    }

    /// Returns the result in numbers.
    pub(crate) fn told(&self) -> Pruned {
        let Plan { sparse, written, .. } = &self.compaction;
        let compacted: u64 = sparse.iter().map(|pack| pack.bytes).sum();
        Pruned {
            removed: self.going.iter().map(|catalog| (Step(catalog.step), Bytes(catalog.bytes))).collect(),
            kept: self.kept.clone(),
            milestones: self.milestones.clone(),
            milestones_put: Bytes(0),
            packs_removed: self.doomed.len() + sparse.len(),
            packs_compacted: sparse.len(),
            rewritten: *written,
            freed: Bytes((sum(&self.doomed).0 + compacted).saturating_sub(written.0)),
            stored: Bytes((self.left.0 + written.0).saturating_sub(compacted)),
        }
    }

    /// Executes the plan. Removals come before compaction, which takes space.
    pub(crate) fn execute(&self, change: &Change<'_>) -> Result<(), Error> {
        change.delete(self.going.iter().map(|catalog| catalog_key(catalog.step)))?;
        change.delete(self.doomed.iter().map(|pack| pack.key.clone()))?;
        self.compaction.execute(change, &self.staying.iter().collect::<Vec<_>>())?;
        change.delete(self.compaction.sparse.iter().map(|pack| pack_key(&pack.blake3)))
    }
}

fn sum(objects: &[Object]) -> Bytes {
    Bytes(objects.iter().map(|object| object.bytes).sum())
}

/// Returns the objects that these catalogs need.
fn keys(catalogs: &[Catalog]) -> BTreeSet<String> {
    catalogs.iter().flat_map(|catalog| &catalog.packs).map(|pack: &Pack| pack_key(&pack.blake3)).collect()
}
