//! `checkpoint push` and `pull`, and what `list` and `verify` show of an archive. Needs no control plane.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_api::Time;
use gangline_base::{Step, with_causes};
use gangline_storage::archive::{Archive, Error, KeyError, Listed, Options, Pushed, Requests, WrappingKey};
use gangline_storage::{CheckpointInfo, Latest, Store};

use crate::checkpoint::{Row, failed, notes, open};
use crate::failure::Failure;
use crate::{Global, amount, output, s3};

/// A megabit a second in bytes a second.
const MEGABIT: u64 = 125_000;

/// What opens an encrypted archive.
#[derive(Args, Debug, Default)]
pub(crate) struct KeyFile {
    /// The file of an encrypted archive's key: 32 bytes, or 64 hexadecimal digits. An archive that has nothing yet is encrypted
    /// if it is given
    #[arg(long, value_name = "FILE", env = "GANGLINE_ARCHIVE_KEY_FILE")]
    key_file: Option<PathBuf>,
}

impl KeyFile {
    /// Returns the key, if one is given.
    fn read(&self) -> Result<Option<WrappingKey>, Failure> {
        self.key_file.as_deref().map(read_key).transpose()
    }
}

/// Reads a key file.
pub(crate) fn read_key(path: &Path) -> Result<WrappingKey, Failure> {
    WrappingKey::from_file(path).map_err(|error| refused(&error.into()))
}

/// How an archive is reached.
#[derive(Args, Debug, Default)]
pub(crate) struct Reach {
    /// The most megabits a second, up and down together [default: as many as go]
    #[arg(long, value_name = "N", value_parser = amount::positive::<NonZeroU64>)]
    limit_mbps: Option<NonZeroU64>,
    #[command(flatten)]
    key: KeyFile,
}

impl From<&KeyFile> for Reach {
    fn from(key: &KeyFile) -> Reach {
        Reach { limit_mbps: None, key: KeyFile { key_file: key.key_file.clone() } }
    }
}

/// What is pushed where.
#[derive(Args, Debug)]
pub(crate) struct PushArgs {
    /// The folder of checkpoints
    folder: PathBuf,
    /// The archive: s3://bucket/prefix (with AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE, ... and ~/.aws as AWS's tools have them), or a folder
    #[arg(value_name = "ARCHIVE")]
    archive: String,
    /// The step [default: the newest good one]
    #[arg(long)]
    step: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

/// What is pulled from where.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: String,
    /// The folder of checkpoints
    folder: PathBuf,
    /// The step [default: the newest]
    #[arg(long)]
    step: Option<u64>,
    /// Get what is left of a checkpoint that is a milestone, as safetensors files in the folder
    #[arg(long, requires = "step")]
    milestone: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Reports whether a place is an archive rather than a folder of checkpoints: a URL, or a folder with
/// catalogs or keys.
pub(crate) fn is_archive(place: &str) -> bool {
    place.contains("://") || ["catalogs", "keys"].iter().any(|part| Path::new(place).join(part).is_dir())
}

pub(crate) fn reach(address: &str, reach: &Reach) -> Result<Archive, Failure> {
    let rate = reach.limit_mbps.and_then(|limit| NonZeroU64::new(limit.get().saturating_mul(MEGABIT)));
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let key = reach.key.read()?;
    let options = Options { bytes_per_second_max: rate, s3: s3::noted_settings(), threads, key, ..Options::default() };
    Archive::open(address, &options).map_err(|error| refused(&error))
}

pub(crate) fn refused(error: &Error) -> Failure {
    let hint = match error {
        Error::Remote { tries: 2.., .. } | Error::LeaseLost { .. } => {
            "run the same command again: it goes on where this one was"
        }
        Error::NotFound { .. } => "gangline checkpoint list ARCHIVE shows those there are",
        Error::Held { since, until, .. } => {
            let [since, until] = [since, until].map(|time| output::time(Time(*time)));
            let hint = format!("it began {since}; if its machine is gone, the archive is free at {until}");
            return Failure::local(format!("failed to {}", with_causes(error)), hint);
        }
        Error::Milestone { .. } => "pull what is left of it by --milestone, or another step",
        Error::NothingKept { .. } => "name the tensors by --milestone-keep; checkpoint show lists their names",
        Error::Key(KeyError::Needed { .. }) => "name the key's file by --key-file or GANGLINE_ARCHIVE_KEY_FILE",
        _ => "",
    };
    Failure::local(format!("failed to {}", with_causes(error)), hint)
}

pub(crate) fn push(global: &Global, args: &PushArgs) -> Result<(), Failure> {
    let store = open(&args.folder)?;
    let step = match args.step {
        Some(step) => Step(step),
        None => newest(&store)?,
    };
    let archive = reach(&args.archive, &args.reach)?;
    let pushed = archive.push(&store, step).map_err(|error| refused(&error))?;
    tell_unfenced(&archive);
    tell_requests(&archive);
    if global.json { output::json(&pushed) } else { output::say(&told(&pushed)) }
}

/// Warns if the storage can't refuse a late change, so that only the program's own check of its lease
/// prevents one.
pub(crate) fn tell_unfenced(archive: &Archive) {
    if archive.is_fenced() == Some(false) {
        output::tell(
            "note: this place keeps no conditions (If-Match, If-None-Match, file locks): while two programs may change the archive, \
             don't suspend one for longer than 15 minutes",
        );
    }
}

/// Tells how many requests were sent that a provider has prices for.
pub(crate) fn tell_requests(archive: &Archive) {
    let Requests { put, get, list, delete, head, failed } = archive.requests();
    if put + get + list + delete + head + failed > 0 {
        let failed = if failed > 0 { format!(", and {failed} that failed") } else { String::new() };
        output::tell(&format!(
            "requests sent: {put} put, {get} get, {list} list, {delete} delete, {head} head{failed} (measured)"
        ));
    }
}

fn newest(store: &Store) -> Result<Step, Failure> {
    let Latest { checkpoint, .. } = store.latest().map_err(failed)?;
    let none = || Failure::local(format!("there is no good checkpoint in {}", store.path().display()), "");
    checkpoint.map(|info| info.step).ok_or_else(none)
}

fn told(pushed: &Pushed) -> String {
    let Pushed { step, was_archived, bytes, deduplicated, derived, differences, put, .. } = pushed;
    if *was_archived {
        return format!("step {step} was in the archive already");
    }
    format!(
        "step {step}: {bytes} became {put} (of them {deduplicated} were there already, {derived} follow from masters, \
         {differences} are differences to another step; measured)"
    )
}

pub(crate) fn pull(global: &Global, args: &PullArgs) -> Result<(), Failure> {
    let archive = reach(&args.archive, &args.reach)?;
    if let (true, Some(step)) = (args.milestone, args.step) {
        return pull_milestone(global, &archive, Step(step), &args.folder);
    }
    std::fs::create_dir_all(&args.folder)?;
    let store = open(&args.folder)?;
    let pulled = archive.pull(args.step.map(Step), &store).map_err(|error| refused(&error))?;
    if global.json {
        return output::json(&pulled);
    }
    let how = if pulled.was_there { "was there already, whole and good" } else { "is back, bit for bit" };
    output::say(&format!("step {}, {} in {}, {how}", pulled.step, pulled.bytes, args.folder.display()))
}

fn pull_milestone(global: &Global, archive: &Archive, step: Step, folder: &Path) -> Result<(), Failure> {
    let archived = archive.pull_milestone(step, folder).map_err(|error| refused(&error))?;
    if global.json {
        return output::json(&archived);
    }
    let text = format!("{} tensors of step {step} are in {}, bit for bit", archived.tensors, folder.display());
    output::say(&text)
}

/// Returns the checkpoints of an archive, from their catalogs.
pub(crate) fn list(address: &str, key: &KeyFile) -> Result<Vec<Row>, Failure> {
    let listed = reach(address, &Reach::from(key))?.list().map_err(|error| refused(&error))?;
    Ok(listed.into_iter().map(row).collect())
}

fn row(Listed { step, catalog }: Listed) -> Row {
    match catalog {
        Ok(archived) => Row {
            step: step.0,
            bytes: Some(archived.bytes.0),
            tensors: Some(archived.tensors),
            content_hash: Some(archived.content_hash.to_string()),
            saved_at: Some(Time(archived.saved_at)),
            branch: Some(archived.branch),
            metadata: notes(&archived.metadata, &archived.metadata_types),
            is_abandoned: archived.is_abandoned,
            milestone: archived.milestone,
            problems: Vec::new(),
            is_verified: false,
        },
        Err(error) => Row::broken(step.0, error.to_string()),
    }
}

/// Returns the manifest of a checkpoint in an archive.
pub(crate) fn info(address: &str, key: &KeyFile, step: Option<Step>) -> Result<CheckpointInfo, Failure> {
    reach(address, &Reach::from(key))?.info(step).map_err(|error| refused(&error))
}

/// Reads every byte of the checkpoints and adds the problems found to their rows.
pub(crate) fn verify(address: &str, key: &KeyFile, rows: &mut [Row]) -> Result<(), Failure> {
    let archive = reach(address, &Reach::from(key))?;
    for row in rows.iter_mut().filter(|row| row.problems.is_empty()) {
        let report = archive.verify(Step(row.step)).map_err(|error| refused(&error))?;
        row.problems.extend(report.problems.iter().map(ToString::to_string));
        row.is_verified = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_archive_and_a_folder_only_with_catalogs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert!(is_archive("s3://bucket/runs") && !is_archive(path));
        std::fs::create_dir(folder.path().join("catalogs")).unwrap();
        assert!(is_archive(path));
    }
}
