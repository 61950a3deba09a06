//! What a cache of datasets holds, as it is reported to the control plane.

use std::path::Path;

use crate::protocol::{CacheReport, CachedDataset};

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
