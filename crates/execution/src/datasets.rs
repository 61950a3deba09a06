//! What a cache of datasets holds, and what programs asked datasets' stores for, as they are reported to the control plane.

use std::collections::BTreeMap;
use std::path::Path;

use gangline_base::Bytes;
use gangline_data::Requests;

use crate::protocol::{CacheReport, CachedDataset, DatasetReads};

/// The most datasets that are reported.
const DATASETS_MAX: usize = 64;

/// Looks at a cache: lists a folder and takes a stat of each object's file. Returns none if there is no cache.
pub(crate) fn held(folder: &Path) -> Option<CacheReport> {
    let mut held = gangline_data::holdings_of(folder).ok()?;
    held.truncate(DATASETS_MAX);
    let dataset =
        |one: gangline_data::DatasetHolding| CachedDataset { dataset: one.url, here_bytes: one.here, bytes: one.bytes };
    let folder = folder.to_string_lossy().into_owned();
    Some(CacheReport { folder, datasets: held.into_iter().map(dataset).collect() })
}

/// Returns what the programs asked for that were told this folder by `GANGLINE_DATA_READS`, by the datasets' addresses.
pub(crate) fn reads_in(folder: &Path) -> BTreeMap<String, DatasetReads> {
    let reads = |(Requests { put, get, list, head, failed, delete: _ }, bytes)| DatasetReads {
        get,
        head,
        list,
        put,
        failed,
        bytes,
    };
    let noted = gangline_data::tallies_in(folder).into_iter().take(DATASETS_MAX);
    noted.map(|(address, noted)| (address, reads(noted))).collect()
}

/// Returns the sizes of the archives of checkpoints to which the same programs have pushed, by their addresses.
pub(crate) fn archives_in(folder: &Path) -> BTreeMap<String, Bytes> {
    gangline_data::stored_in(folder).into_iter().take(DATASETS_MAX).collect()
}
