//! `backup` and `restore`: copy a data folder's journal as of one moment, and put it back.

use std::path::{Path, PathBuf};

use clap::Args;
use gangline_base::{Bytes, with_causes};
use gangline_control::backup::{self, Error, Manifest};

use crate::client::{absolute, data_folder};
use crate::failure::Failure;
use crate::{Global, output};

/// Where to put a backup.
#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The folder to make; it mustn't be there yet
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Only check the backup that is there
    #[arg(long)]
    verify: bool,
    /// Leave metrics out, which may be most of a data folder
    #[arg(long, conflicts_with = "verify")]
    without_metrics: bool,
}

/// Which backup to restore.
#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The backup's folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Put aside the journal that the data folder has
    #[arg(long)]
    replace: bool,
}

pub(crate) fn backup(global: &Global, args: &BackupArgs) -> Result<(), Failure> {
    let folder = absolute(&args.folder)?;
    if args.verify {
        let manifest = backup::verify(&folder).map_err(|error| failed(&error))?;
        return report(global, &manifest, &format!("{} is whole", folder.display()));
    }
    let data = absolute(&data_folder(global)?)?;
    let made = backup::backup(&data, &folder, !args.without_metrics, output::now()).map_err(|error| failed(&error))?;
    report(global, &made, &format!("{} has a backup of {}", folder.display(), data.display()))
}

pub(crate) fn restore(global: &Global, args: &RestoreArgs) -> Result<(), Failure> {
    let (data, folder) = (absolute(&data_folder(global)?)?, absolute(&args.folder)?);
    let restored = backup::restore(&folder, &data, args.replace, output::now()).map_err(|error| failed(&error))?;
    report(global, &restored, &format!("{} is what {} was", data.display(), shown(&restored.data_folder)))
}

fn report(global: &Global, manifest: &Manifest, what: &str) -> Result<(), Failure> {
    if global.json {
        return output::json(manifest);
    }
    if let Some(damage) = &manifest.damage {
        output::tell(&format!("warning: {damage}; all else is in the backup"));
    }
    let bytes = Bytes(manifest.files.iter().map(|file| file.bytes).sum());
    let taken = output::time(gangline_api::Time(manifest.taken_at));
    output::say(&format!(
        "{what}: {} records, jobs up to {}, {bytes}, taken at {taken}; every record was checked",
        manifest.last_record, manifest.last_job
    ))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn failed(error: &Error) -> Failure {
    Failure::coded(error.code(), with_causes(error), error.hint())
}
