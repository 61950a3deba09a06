//! A checkpoint on the command line: a folder of checkpoints or an archive, and a step in it.

use std::path::Path;

use gangline_base::Step;
use gangline_storage::{CheckpointInfo, Snapshot, Store};

use crate::checkpoint::archive::{self, KeyFile};
use crate::checkpoint::{failed, open};
use crate::failure::Failure;

/// `PLACE` or `PLACE@STEP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The folder, or the archive's URL.
    pub(crate) place: String,
    /// The step; none: the newest.
    pub(crate) step: Option<u64>,
}

impl Place {
    /// Parses `PLACE` or `PLACE@STEP`. A place whose own name ends in `@` and a number must be given with a
    /// step.
    pub(crate) fn parse(text: &str) -> Place {
        let split = text.rsplit_once('@').and_then(|(place, step)| Some((place, step.parse().ok()?)));
        match split {
            Some((place, step)) => Place { place: place.to_owned(), step: Some(step) },
            None => Place { place: text.to_owned(), step: None },
        }
    }

    /// Returns the checkpoint's manifest.
    pub(crate) fn info(&self, key: &KeyFile) -> Result<CheckpointInfo, Failure> {
        if archive::is_archive(&self.place) {
            return archive::info(&self.place, key, self.step.map(Step));
        }
        Ok(snapshot(Path::new(&self.place), self.step)?.info().clone())
    }

    /// Opens the checkpoint to read its tensors; none if it is in an archive.
    pub(crate) fn snapshot(&self) -> Result<Option<Snapshot>, Failure> {
        if archive::is_archive(&self.place) { Ok(None) } else { snapshot(Path::new(&self.place), self.step).map(Some) }
    }
}

/// Opens the checkpoint of a step in a folder, or the newest.
pub(crate) fn snapshot(folder: &Path, step: Option<u64>) -> Result<Snapshot, Failure> {
    let store = open(folder)?;
    let step = step.map_or_else(|| newest(&store), |step| Ok(Step(step)))?;
    store.open_step(step).map_err(|error| match error {
        gangline_storage::Error::NotFound { .. } => Failure::local(
            format!("there is no checkpoint of step {step} in {}", folder.display()),
            "gangline checkpoint list shows those there are",
        ),
        error => failed(error),
    })
}

/// Returns the newest save of the current branch; whether it is good shows when it is read.
fn newest(store: &Store) -> Result<Step, Failure> {
    let none = || Failure::local(format!("there is no complete checkpoint in {}", store.path().display()), "");
    store.line().map_err(failed)?.into_iter().next().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_comes_after_the_last_at() {
        let check = |text: &str, place: &str, step: Option<u64>| {
            assert_eq!(Place::parse(text), Place { place: place.to_owned(), step });
        };
        check("runs", "runs", None);
        check("runs@7", "runs", Some(7));
        check("@7", "", Some(7));
        check("me@home/runs", "me@home/runs", None);
        check("s3://bucket/a@b@12", "s3://bucket/a@b", Some(12));
    }
}
