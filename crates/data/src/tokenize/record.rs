//! The record of what an unfinished run has done, in `OUTPUT.progress`: it is replaced after each file of tokens that was
//! ended and is on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::convert::{parent, sync_folder, write_synced};
use crate::error::Error;
use crate::index::native::Described;
use crate::sealed;
use crate::text::TextFile;
use crate::token_type::TokenType;
use crate::tokenize::Options;
use crate::tokenize::vocabulary::Vocabulary;

/// The version of records that are written, and the only one that is read.
const VERSION: u32 = 1;
/// The longest record: that of the most files.
const BYTES_MAX: u64 = 1 << 30;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    /// See [`job_id`].
    pub(super) job: String,
    /// Behind the last document that is in a file.
    pub(super) place: Place,
    pub(super) files: Vec<Described>,
}

/// A place in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// The number of the file.
    pub(super) file: usize,
    /// Its lines that were read.
    pub(super) line: u64,
    /// Their bytes, uncompressed.
    pub(super) byte: u64,
}

impl Record {
    pub(super) fn new(job: &str, place: Place, files: &[Described]) -> Record {
        Record { version: VERSION, job: job.to_owned(), place, files: files.to_vec() }
    }

    /// The record of an unfinished output; none if there is none.
    ///
    /// # Errors
    /// When it is of another job, or damaged.
    pub(super) fn read(output: &Path, job: &str) -> Result<Option<Record>, Error> {
        let path = path_of(output);
        let size = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        let anew = "remove it, and the tokens are made from the beginning";
        if size > BYTES_MAX {
            return Err(Error::malformed(&path, 0, format!("it has {size} bytes, more than {BYTES_MAX}: {anew}")));
        }
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        let record = match sealed::unseal::<Record>(&text) {
            Ok((record, true)) if record.version == VERSION => record,
            Ok((_, false)) => return Err(Error::malformed(&path, 0, format!("its checksum differs: {anew}"))),
            Ok((record, true)) => {
                let problem = format!("version {} is unknown here; there is {VERSION}: {anew}", record.version);
                return Err(Error::malformed(&path, 0, problem));
            }
            Err(error) => return Err(Error::malformed(&path, 0, format!("no record of a run: {error}: {anew}"))),
        };
        if record.job == job {
            return Ok(Some(record));
        }
        let problem = format!(
            "an unfinished run for it had other text, another tokenizer or other options: go on with those, or remove {}",
            path.display()
        );
        Err(Error::refused("output", problem))
    }

    /// Replaces the record of an output.
    pub(super) fn write(&self, output: &Path) -> Result<(), Error> {
        let path = path_of(output);
        let aside = path.with_added_extension("new");
        write_synced(&aside, &sealed::seal(self))?;
        fs::rename(&aside, &path).map_err(Error::io("replace", &path))?;
        sync_folder(parent(&path))
    }

    /// Removes the record of an output that is finished.
    pub(super) fn remove(output: &Path) -> Result<(), Error> {
        let path = path_of(output);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }
}

fn path_of(output: &Path) -> PathBuf {
    output.with_added_extension("progress")
}

/// Tells a run from all that would write other tokens or end other files: by the text's files (names, sizes, times), the
/// tokenizer and the options. The number of threads is free.
pub(super) fn job_id(
    options: &Options,
    files: &[TextFile],
    vocabulary: &Vocabulary,
    data_type: TokenType,
) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(vocabulary.hash());
    let Options { key, end, adds_special, file_bytes, .. } = options;
    let end = (end, vocabulary.end());
    hasher.update(format!("{key:?} {end:?} {adds_special} {file_bytes} {}", data_type.name()).as_bytes());
    for file in files {
        let modified =
            fs::metadata(&file.path).and_then(|found| found.modified()).map_err(Error::io("open", &file.path))?;
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = file.path.file_name().unwrap_or_default();
        hasher.update(format!("{name:?} {} {}", file.bytes, since.as_nanos()).as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
