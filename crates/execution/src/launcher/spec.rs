//! The spec that every launcher leaves in a share's folder for the supervisor.

use std::fs::DirBuilder;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use gangline_base::Epoch;
use serde::Deserialize;

use super::LaunchError;
use crate::files::{read_bounded, write_durably};
use crate::protocol::SupervisorSpec;
use crate::shared_place::open_regular;
use crate::shim::{RankEnd, SHIM_EXTENSION, ShimEvent, exit_record};

/// File name of the spec in the share's folder.
pub(super) const SPEC_FILE: &str = "spec.json";
/// File name of the supervisor's log.
pub(super) const LOG_FILE: &str = "supervisor.log";

/// Maximum number of bytes read from the end of a supervisor's log.
const LAST_WORDS_BYTES_MAX: u64 = 4 << 10;

/// Makes the share's folder and writes the spec.
pub(super) fn write_spec(spec: &SupervisorSpec) -> Result<(), LaunchError> {
    let folder = spec.folder.as_path();
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|source| failed("create", folder, source))?;
    let path = folder.join(SPEC_FILE);
    let text = serde_json::to_vec_pretty(spec).map_err(io::Error::from);
    text.and_then(|text| write_durably(&path, &text)).map_err(|source| failed("write", &path, source))
}

/// Returns the epoch from the spec in a share's folder; none if no spec can be read.
#[must_use]
pub fn spec_epoch(folder: &Path) -> Option<Epoch> {
    #[derive(Deserialize)]
    struct OnlyEpoch {
        #[serde(default)]
        epoch: u64,
    }
    let bytes = read_bounded(&folder.join(SPEC_FILE)).ok()?;
    serde_json::from_slice::<OnlyEpoch>(&bytes).ok().map(|spec| Epoch(spec.epoch))
}

/// Reports whether all of these ranks exited with 0, by the records of their shims in the attempt's folder.
#[must_use]
pub fn have_all_succeeded(folder: &Path, mut ranks: Range<u32>) -> bool {
    let has_succeeded = |rank: u32| {
        let record = read_bounded(&folder.join(exit_record(rank))).ok();
        let event = record.and_then(|record| serde_json::from_slice::<ShimEvent>(&record).ok());
        matches!(event, Some(ShimEvent::Ended { end: RankEnd::Exit(0), .. }))
    };
    !ranks.is_empty() && ranks.all(has_succeeded)
}

/// Reports whether the supervisor of the attempt in a folder has started a shim.
pub(super) fn has_started_any(folder: &Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.into_iter().any(|path| path.extension().is_some_and(|extension| extension == SHIM_EXTENSION))
}

/// Returns the last lines that the supervisor of the attempt in a folder logged.
pub(super) fn last_words(folder: &Path) -> String {
    let read = || {
        let mut log = open_regular(&folder.join(LOG_FILE)).ok()?;
        let length = log.metadata().ok()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES_MAX))).ok()?;
        let mut bytes = Vec::new();
        log.take(LAST_WORDS_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        text.lines().last().map(str::to_owned)
    };
    read().unwrap_or_else(|| "its supervisor had no room for a word".to_owned())
}

pub(super) fn failed(doing: &'static str, path: &Path, source: io::Error) -> LaunchError {
    LaunchError::Folder { doing, path: path.to_owned(), source }
}
