//! Archives the demo's checkpoints.

use std::path::Path;

use gangline_api::Job;
use gangline_base::{Bytes, Step};
use gangline_storage::archive::{Archive, Options};

use crate::checkpoint::archive::refused;
use crate::checkpoint::{failed, open};
use crate::failure::Failure;
use crate::output;

/// Pushes the checkpoints of a job into an archive in this folder, and prints the result.
pub(super) fn push(job: &Job, folder: &Path) -> Result<(), Failure> {
    let Some(path) = &job.checkpoint_path else { return Ok(()) };
    let store = open(Path::new(path))?;
    let address = folder.join("archive").join(&job.id).display().to_string();
    let archive = Archive::open(&address, &Options::default()).map_err(|error| refused(&error))?;
    let steps: Vec<Step> = store.list().map_err(failed)?.into_iter().map(|listed| listed.step).collect();
    let (mut bytes, mut put) = (Bytes(0), Bytes(0));
    for step in &steps {
        let pushed = archive.push(&store, *step).map_err(|error| refused(&error))?;
        (bytes, put) = (bytes + pushed.bytes, put + pushed.put);
    }
    if bytes == Bytes(0) {
        return Ok(());
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio to two places")]
    let ratio = put.0 as f64 / bytes.0 as f64;
    let count = steps.len();
    let id = &job.id;
    output::say(&format!(
        "{id}: its last {count} checkpoints, {bytes}, take {put} in an archive: {ratio:.2} of it (measured)"
    ))
}
