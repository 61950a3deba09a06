//! Parts of a data folder that are folders of their own, with their own way to be copied while they are written.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path};

use gangline_base::Timestamp;
use gangline_store::link_or_copy;
use gangline_store::tracking::{TRACKING_FOLDER, copy_tracking, is_of_tracking};
use gangline_telemetry::series;

use super::{Error, FOLDER_MODE, Manifest};
use crate::code;

/// The folders of jobs' code, without what is unpacked.
const CODE_FOLDERS: [&str; 2] = ["code/trees", "code/contents"];
/// The folder of job files' templates.
pub const TEMPLATES_FOLDER: &str = "templates";
/// The folder of the series store.
pub const SERIES_FOLDER: &str = "series";

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Experiments, models and artifacts.
    Tracking,
    /// Metrics.
    Series,
    /// Copies of jobs' code, packed: a job that waits needs its own.
    Code,
    /// Templates of job files.
    Templates,
}

impl Part {
    pub(super) const ALL: [Part; 4] = [Part::Tracking, Part::Series, Part::Code, Part::Templates];

    /// Returns the part to which a file of a backup belongs.
    pub(super) fn of(name: &str) -> Option<Part> {
        let is_of_series = || {
            let rest = name.strip_prefix(SERIES_FOLDER).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(series::is_of_store)
        };
        let is_below = |folder: &&str| Path::new(name).starts_with(folder) && is_plain(Path::new(name));
        match name {
            name if is_of_tracking(name) => Some(Part::Tracking),
            _ if is_of_series() => Some(Part::Series),
            _ if CODE_FOLDERS.iter().any(is_below) => Some(Part::Code),
            _ if is_below(&TEMPLATES_FOLDER) => Some(Part::Templates),
            _ => None,
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Part::Tracking => TRACKING_FOLDER,
            Part::Series => SERIES_FOLDER,
            Part::Code => code::FOLDER,
            Part::Templates => TEMPLATES_FOLDER,
        }
    }

    /// Copies it into a backup, and returns the names of its files there.
    pub(super) fn copy(self, data: &Path, to: &Path) -> Result<Vec<String>, Error> {
        match self {
            Part::Tracking => Ok(copy_tracking(data, to)?),
            Part::Series => {
                let names = series::copy(&data.join(SERIES_FOLDER), &to.join(SERIES_FOLDER))?;
                Ok(names.into_iter().map(|name| format!("{SERIES_FOLDER}/{name}")).collect())
            }
            Part::Code | Part::Templates => {
                let folders: &[&str] = if self == Part::Code { &CODE_FOLDERS } else { &[TEMPLATES_FOLDER] };
                let mut names = Vec::new();
                folders.iter().try_for_each(|folder| self.copy_files((data, to), Path::new(folder), &mut names))?;
                Ok(names)
            }
        }
    }

    /// Copies the files in and below a folder, but those that are gone meanwhile.
    fn copy_files(self, (data, to): (&Path, &Path), folder: &Path, names: &mut Vec<String>) -> Result<(), Error> {
        let from = data.join(folder);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { path, source }
        };
        let entries = match fs::read_dir(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed(&from))?,
        };
        make_below(&to.join(folder))?;
        for entry in entries {
            let entry = entry.map_err(failed(&from))?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type().map_err(failed(&entry.path()))?;
            // Others than these are nobody's: names that aren't text, links.
            let Some(name) = path.to_str().filter(|name| Part::of(name) == Some(self)) else { continue };
            if kind.is_dir() {
                self.copy_files((data, to), &path, names)?;
            } else if kind.is_file() {
                match self.put(&entry.path(), &to.join(&path)) {
                    Ok(()) => names.push(name.to_owned()),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(&entry.path())(error)),
                }
            }
        }
        Ok(())
    }

    /// Links a file that never changes, and copies others.
    fn put(self, from: &Path, to: &Path) -> io::Result<()> {
        let is_changed = self == Part::Templates || from.extension().is_some_and(|extension| extension == "db");
        if is_changed { fs::copy(from, to).and_then(|_| File::open(to)?.sync_all()) } else { link_or_copy(from, to) }
    }

    /// Puts it in place of what the data folder has, which is put aside; a backup without it changes nothing.
    pub(super) fn restore(self, manifest: &Manifest, backup: &Path, data: &Path, now: Timestamp) -> Result<(), Error> {
        let names = manifest.files.iter().map(|file| file.name.as_str());
        let files: Vec<&str> = names.filter(|name| Part::of(name) == Some(self)).collect();
        if files.is_empty() {
            return Ok(());
        }
        let folder = data.join(self.folder());
        if folder.exists() {
            let aside = data.join(format!("replaced-{}-{}", now.unix_nanos(), self.folder()));
            fs::rename(&folder, aside).map_err(|source| Error::File { path: folder, source })?;
        }
        for name in files {
            let to = data.join(name);
            let parent = to.parent().unwrap_or(data);
            make_below(parent)?;
            self.put(&backup.join(name), &to).map_err(|source| Error::File { path: to, source })?;
        }
        Ok(())
    }
}

/// Reports whether a path leads nowhere but down.
fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn make_below(folder: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    made.map_err(|source| Error::File { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_the_part_whose_folder_it_is_in_and_no_path_leads_out() {
        let digest = "a".repeat(62);
        let known = [
            ("tracking/tracking.db", Part::Tracking),
            ("series/log-0000000001", Part::Series),
            ("code/trees/abc", Part::Code),
            (&format!("code/contents/aa/{digest}"), Part::Code),
            ("templates/small.yaml", Part::Templates),
        ];
        assert!(known.iter().all(|(name, part)| Part::of(name) == Some(*part)), "{known:?}");
        let unknown = [
            "journal.sqlite",
            "series/x",
            "code/jobs/job-1/x",
            "templates/../token",
            "/templates/x",
            "../code/trees/x",
        ];
        assert!(unknown.iter().all(|name| Part::of(name).is_none()));
    }
}
