//! Files in a gang's folder about its Slurm job: the script, a marker that it is about to be submitted, and
//! its id.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{read_bounded, write_durably};
use crate::launcher::LaunchError;
use crate::launcher::spec::failed;

use super::json::not_understood;

/// File name of the script.
const SCRIPT_FILE: &str = "slurm.sh";
/// Written before a gang is submitted. Without a record next to it, it is unknown whether the submission
/// succeeded.
const ANNOUNCEMENT_FILE: &str = "slurm-submitting";
/// File name of the record.
const RECORD_FILE: &str = "slurm.json";

/// The Slurm job of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The job's id.
    pub(super) job: u64,
}

impl Record {
    pub(super) fn read(folder: &Path) -> Result<Option<Record>, LaunchError> {
        let path = folder.join(RECORD_FILE);
        let read = match read_bounded(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        read.map_err(|source| failed("read", &path, source))
    }

    pub(super) fn write(self, folder: &Path) -> Result<(), LaunchError> {
        let path = folder.join(RECORD_FILE);
        let text = serde_json::to_vec(&self).map_err(io::Error::from);
        text.and_then(|text| write_durably(&path, &text)).map_err(|source| failed("write", &path, source))
    }
}

/// Records that a gang is about to be submitted.
pub(super) fn announce(folder: &Path) -> Result<(), LaunchError> {
    let path = folder.join(ANNOUNCEMENT_FILE);
    write_durably(&path, b"").map_err(|source| failed("write", &path, source))
}

pub(super) fn is_announced(folder: &Path) -> bool {
    folder.join(ANNOUNCEMENT_FILE).exists()
}

/// Writes the script and returns its path.
pub(super) fn write_script(folder: &Path, text: &str) -> Result<PathBuf, LaunchError> {
    let path = folder.join(SCRIPT_FILE);
    fs::write(&path, text).map_err(|source| failed("write", &path, source))?;
    Ok(path)
}

/// Parses the id in the output of `sbatch --parsable`: `42` or `42;cluster`.
pub(super) fn job_id(output: &[u8]) -> Result<u64, LaunchError> {
    let text = String::from_utf8_lossy(output);
    // A site's own wrapper may print more before it.
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let id = last.split(';').next().and_then(|id| id.parse().ok());
    id.ok_or_else(|| not_understood("sbatch", format!("it has no job id: \"{last}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_job_is_read_with_and_without_a_cluster() {
        assert_eq!(job_id(b"42\n").ok(), Some(42));
        assert_eq!(job_id(b"welcome\n42;federated\n\n").ok(), Some(42));
        assert!(job_id(b"Submitted batch job 42\n").is_err());
    }

    #[test]
    fn a_record_reads_back_and_a_torn_one_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Record::read(folder.path()).ok(), Some(None));
        Record { job: 7 }.write(folder.path()).expect("it is writable");
        assert_eq!(Record::read(folder.path()).ok(), Some(Some(Record { job: 7 })));
        fs::write(folder.path().join(RECORD_FILE), "{\"job\":").expect("it is writable");
        assert!(Record::read(folder.path()).is_err());
    }
}
