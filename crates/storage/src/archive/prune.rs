//! Removing checkpoints: catalogs first, then the packs that no remaining catalog names. References are counted over
//! what checkpoints are made of, not over checkpoints: a base stays while anything follows from it. What then is needed of a pack
//! only in small part is moved (`compaction`).

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use serde::Serialize;

use super::access::{Access, Change};
use super::catalog::{Catalog, Pack, catalog_key, pack_key};
use super::compaction::Plan;
use super::known::{list_catalogs, list_packs, read_catalog};
use super::remote::Object;
use super::retention::{Reason, Rule, kept};
use super::{Archived, Error};

/// How old a pack has to be that no catalog names: a push that was cut off has put younger ones, and may be gone on with.
const STRAY_AGE_MIN: Duration = Duration::from_secs(24 * 3_600);

/// What pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Checkpoints removed, oldest first, each with the bytes of its shards.
    pub removed: Vec<(Step, Bytes)>,
    /// Checkpoints that stay, oldest first, and why.
    pub kept: Vec<(Step, Vec<Reason>)>,
    /// Packs removed, those included that cut-off pushes left and those that were compacted.
    pub packs_removed: usize,
    /// Packs of which less than half was needed, whose needed parts are now in others.
    pub packs_compacted: usize,
    /// Bytes of the packs that these parts were put into.
    pub rewritten: Bytes,
    /// Bytes that all this frees in the archive.
    pub freed: Bytes,
    /// Bytes of the packs that stay.
    pub stored: Bytes,
}

/// What a prune will do.
pub(crate) struct Sweep {
    staying: Vec<Catalog>,
    going: Vec<Catalog>,
    kept: Vec<(Step, Vec<Reason>)>,
    doomed: Vec<Object>,
    compaction: Plan,
    left: Bytes,
}

impl Sweep {
    /// Decides what is removed. It is nothing unless every catalog can be read and what stays has all its packs.
    pub(crate) fn of(access: &Access<'_>, rules: &[Rule], now: Timestamp) -> Result<Sweep, Error> {
        let listed = list_catalogs(access.link)?;
        let read = |one: &(u64, u64)| read_catalog(access.link, &access.vault, *one);
        let catalogs: Vec<Catalog> = listed.iter().map(read).collect::<Result<_, _>>()?;
        let archived: Vec<Archived> = catalogs.iter().map(Catalog::archived).collect();
        let reasons = kept(rules, &archived);
        let (staying, going): (Vec<Catalog>, Vec<Catalog>) =
            catalogs.into_iter().partition(|catalog| reasons.contains_key(&Step(catalog.step)));
        let packs = list_packs(access.link)?;
        let mut of_staying = staying.iter().flat_map(|catalog| &catalog.packs);
        of_staying.try_for_each(|pack| pack.check(packs.get(&pack_key(&pack.blake3))))?;
        let compaction = Plan::of(&staying.iter().collect::<Vec<_>>(), access.vault.tag_bytes() as u64);
        let (needed, released) = (keys(&staying), keys(&going));
        let is_stray = |object: &Object| now.since(object.modified) >= STRAY_AGE_MIN;
        let (doomed, left): (Vec<Object>, Vec<Object>) = packs
            .into_values()
            .partition(|pack| !needed.contains(&pack.key) && (released.contains(&pack.key) || is_stray(pack)));
        let (kept, left) = (reasons.into_iter().collect(), sum(&left));
        Ok(Sweep { staying, going, kept, doomed, compaction, left })
    }

    /// What it does, in numbers.
    pub(crate) fn told(&self) -> Pruned {
        let Plan { sparse, written, .. } = &self.compaction;
        let compacted: u64 = sparse.iter().map(|pack| pack.bytes).sum();
        Pruned {
            removed: self.going.iter().map(|catalog| (Step(catalog.step), Bytes(catalog.bytes))).collect(),
            kept: self.kept.clone(),
            packs_removed: self.doomed.len() + sparse.len(),
            packs_compacted: sparse.len(),
            rewritten: *written,
            freed: Bytes((sum(&self.doomed).0 + compacted).saturating_sub(written.0)),
            stored: Bytes((self.left.0 + written.0).saturating_sub(compacted)),
        }
    }

    /// Does it. What is removed is removed before anything is moved: that takes room.
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

/// The objects that these need.
fn keys(catalogs: &[Catalog]) -> BTreeSet<String> {
    catalogs.iter().flat_map(|catalog| &catalog.packs).map(|pack: &Pack| pack_key(&pack.blake3)).collect()
}
