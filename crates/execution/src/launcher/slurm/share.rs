//! What the folder of a share says of its step.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::record;
use super::script::{STEP_END_FILE, gang_folder, step_name};
use super::snapshot::Snapshot;
use crate::files::read_bounded;
use crate::launcher::FINAL_REPORT_FILE;
use crate::supervisor::{IDENTITY_FILE, UNABLE_CODE};

/// Reports whether a share is a step in a holding job rather than in its gang's own; it then has a record of
/// its own.
pub(super) fn is_in_pool(share: &Path) -> bool {
    record::is_announced(share)
}

/// Returns the folder with the record of a share's job.
pub(super) fn job_folder(share: &Path) -> PathBuf {
    if is_in_pool(share) { share.to_owned() } else { gang_folder(share) }
}

/// Reports whether a share's step is over: by Slurm, all of its processes are gone.
pub(super) fn has_ended(share: &Path) -> bool {
    share.join(STEP_END_FILE).exists()
}

/// Reports whether the supervisor of a share has started.
pub(super) fn has_signed(share: &Path) -> bool {
    share.join(IDENTITY_FILE).exists()
}

/// Reports whether a share's step could not begin because of a platform error.
pub(super) fn was_unable(share: &Path) -> bool {
    let code = read_bounded(&share.join(STEP_END_FILE)).unwrap_or_default();
    String::from_utf8_lossy(&code).trim() == UNABLE_CODE.to_string()
}

/// Reports whether the supervisor of a share had started before a query of Slurm.
pub(super) fn began_before(share: &Path, look: Instant) -> bool {
    let written = std::fs::metadata(share.join(IDENTITY_FILE)).and_then(|identity| identity.modified());
    // A timestamp from a clock that is ahead of this one counts as new.
    written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > look.elapsed()))
}

/// Reports whether the supervisors of all other shares of a gang have reported their end, or are gone without
/// doing so.
pub(super) fn have_others_ended(snapshot: &Snapshot, job: u64, share: &Path) -> bool {
    let shares = std::fs::read_dir(gang_folder(share)).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut others = shares.filter(|path| path != share && path.is_dir());
    let is_gone = |other: &Path| has_ended(other) || snapshot.lacks_step(job, &step_name(other));
    others.all(|other| other.join(FINAL_REPORT_FILE).exists() || is_gone(&other))
}

/// Returns the node of a share's folder.
pub(super) fn node_of(share: &Path) -> String {
    share.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
