//! What is known of a copy: which object it is of, and the checksum of each MiB as it was fetched.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::convert::write_synced;
use crate::error::Error;
use crate::sealed;

/// The version of records that are written, and the only one that is read.
const VERSION: u32 = 1;

/// A copy's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    pub(crate) url: String,
    pub(crate) tag: Option<String>,
    pub(crate) bytes: u64,
    /// XXH3 of each MiB, in hexadecimal.
    blocks: Vec<String>,
    /// Billed requests that it took.
    pub(crate) requests: u64,
}

impl Record {
    pub(super) fn new(url: &str, tag: Option<&String>, bytes: u64, sums: &[u64], requests: u64) -> Record {
        let blocks = sums.iter().map(|sum| sealed::hex(*sum)).collect();
        Record { version: VERSION, url: url.to_owned(), tag: tag.cloned(), bytes, blocks, requests }
    }

    /// The record at a path; none if there is none, or one that can't be trusted, whose copy is then fetched anew.
    pub(super) fn read(path: &Path) -> Result<Option<Record>, Error> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::io("read", path))?,
        };
        let record =
            sealed::unseal::<Record>(&text).ok().filter(|(record, is_intact)| *is_intact && record.version == VERSION);
        Ok(record.map(|(record, _)| record).filter(|record| record.sums().count() == record.blocks.len()))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Error> {
        let aside = path.with_added_extension("new");
        write_synced(&aside, &sealed::seal(self))?;
        fs::rename(&aside, path).map_err(Error::io("make", path))
    }

    /// The checksum of each MiB.
    pub(crate) fn sums(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().map_while(|text| u64::from_str_radix(text, 16).ok())
    }
}
