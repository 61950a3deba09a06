//! Removing checkpoints: catalogs first, then the packs that no remaining catalog names. References are counted over
//! what checkpoints are made of, not over checkpoints: a base stays while anything follows from it.

use std::collections::BTreeSet;
use std::time::Duration;

use gangline_base::{Bytes, Step, Timestamp};
use serde::Serialize;

use super::catalog::{Catalog, catalog_key, pack_key};
use super::known::{list_catalogs, list_packs, read_catalog};
use super::remote::{Link, Object};
use super::retention::{Reason, Rule, kept};
use super::{Archived, Error};

/// How old a pack has to be that no catalog names: a push under way has put younger ones.
const STRAY_AGE_MIN: Duration = Duration::from_secs(24 * 3_600);

/// What pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Checkpoints removed, oldest first, each with the bytes of its shards.
    pub removed: Vec<(Step, Bytes)>,
    /// Checkpoints that stay, oldest first, and why.
    pub kept: Vec<(Step, Vec<Reason>)>,
    /// Packs removed, those that cut-off pushes left included.
    pub packs_removed: usize,
    /// Bytes that this frees in the archive.
    pub freed: Bytes,
    /// Bytes of the packs that stay.
    pub stored: Bytes,
}

/// Removes what no rule keeps. Nothing is removed unless every catalog can be read and what stays has all its packs.
pub(crate) fn prune(link: &Link, rules: &[Rule], now: Timestamp, is_dry_run: bool) -> Result<Pruned, Error> {
    let listed = list_catalogs(link)?;
    let catalogs: Vec<Catalog> = listed.iter().map(|one| read_catalog(link, *one)).collect::<Result<_, _>>()?;
    let archived: Vec<Archived> = catalogs.iter().map(Catalog::archived).collect();
    let reasons = kept(rules, &archived);
    let (staying, going): (Vec<&Catalog>, Vec<&Catalog>) =
        catalogs.iter().partition(|catalog| reasons.contains_key(&Step(catalog.step)));
    let packs = list_packs(link)?;
    staying
        .iter()
        .flat_map(|catalog| &catalog.packs)
        .try_for_each(|pack| pack.check(packs.get(&pack_key(&pack.blake3))))?;
    let needed = keys(&staying);
    let released = keys(&going);
    let is_stray = |object: &Object| now.since(object.modified) >= STRAY_AGE_MIN;
    let (doomed, left): (Vec<&Object>, Vec<&Object>) = packs
        .values()
        .partition(|pack| !needed.contains(&pack.key) && (released.contains(&pack.key) || is_stray(pack)));
    let sum = |objects: &[&Object]| Bytes(objects.iter().map(|object| object.bytes).sum());
    if !is_dry_run {
        going.iter().try_for_each(|catalog| link.delete(&catalog_key(catalog.step)))?;
        remove_packs(link, &staying, &doomed)?;
    }
    Ok(Pruned {
        removed: going.iter().map(|catalog| (Step(catalog.step), Bytes(catalog.bytes))).collect(),
        kept: reasons.into_iter().collect(),
        packs_removed: doomed.len(),
        freed: sum(&doomed),
        stored: sum(&left),
    })
}

/// The objects that these need.
fn keys(catalogs: &[&Catalog]) -> BTreeSet<String> {
    catalogs.iter().flat_map(|catalog| &catalog.packs).map(|pack| pack_key(&pack.blake3)).collect()
}

/// Removes packs but for those that a catalog names which came meanwhile.
fn remove_packs(link: &Link, staying: &[&Catalog], doomed: &[&Object]) -> Result<(), Error> {
    let known: BTreeSet<u64> = staying.iter().map(|catalog| catalog.step).collect();
    let listed = list_catalogs(link)?;
    let new = listed.into_iter().filter(|(step, _)| !known.contains(step));
    let new: Vec<Catalog> = new.map(|one| read_catalog(link, one)).collect::<Result<_, _>>()?;
    let named = keys(&new.iter().collect::<Vec<_>>());
    doomed.iter().filter(|pack| !named.contains(&pack.key)).try_for_each(|pack| link.delete(&pack.key))
}
