//! What every launcher leaves in a share's folder for the supervisor: its spec.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use gangline_base::Epoch;
use serde::Deserialize;

use super::LaunchError;
use crate::files::{read_bounded, write_durably};
use crate::protocol::SupervisorSpec;

/// The spec's name in the share's folder.
pub(super) const SPEC_FILE: &str = "spec.json";
/// Where the supervisor logs.
pub(super) const LOG_FILE: &str = "supervisor.log";

/// Makes the share's folder and writes the spec.
pub(super) fn write_spec(spec: &SupervisorSpec) -> Result<(), LaunchError> {
    let folder = spec.folder.as_path();
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|source| failed("create", folder, source))?;
    let path = folder.join(SPEC_FILE);
    let text = serde_json::to_vec_pretty(spec).map_err(io::Error::from);
    text.and_then(|text| write_durably(&path, &text)).map_err(|source| failed("write", &path, source))
}

/// The epoch that the spec in a share's folder names; none if there is no spec that can be read.
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

pub(super) fn failed(doing: &'static str, path: &Path, source: io::Error) -> LaunchError {
    LaunchError::Folder { doing, path: path.to_owned(), source }
}
