//! Reads and changes named objects in a folder or in S3 through one interface: ranges are read, objects are
//! put, listed and deleted, with retries, deadlines, checksums and conditions.
//!
//! A [`Remote`] performs single requests and classifies its failures by what helps ([`Fault`]); [`Link`] adds
//! retries and a rate limit, and returns [`Error`]. Billed requests are counted where they are sent, below
//! the retries ([`Requests`]). This crate doesn't interpret the objects' content.
//!
//! Keeps for folders (a change is complete or has no effect; a failed fsync poisons the folder)
//! and A-10 (tries, waits, listings and answers are limited).

#[cfg(feature = "s3")]
mod aws;
mod disk;
mod error;
mod folder;
mod link;
mod remote;
mod requests;
#[cfg(feature = "s3")]
mod s3;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use disk::ASIDE_PREFIX;
pub use error::{Error, Source};
pub use folder::{Folder, folder_of, modified};
pub use link::{Link, Policy, TRIES_MAX};
pub use remote::{Fault, Object, Remote, State, Tag};
pub use requests::Requests;

/// Opens the place at `s3://bucket/prefix`, `file:///folder` or a path, without looking at it. The settings
/// for S3 are named as in the environment of AWS's own tools.
///
/// # Errors
/// [`Error::Address`].
pub fn open(url: &str, settings: &BTreeMap<String, String>) -> Result<Box<dyn Remote>, Error> {
    match folder_of(url) {
        Some(path) => Ok(Box::new(Folder::new(PathBuf::from(path)))),
        None => open_s3(url, settings),
    }
}

#[cfg(feature = "s3")]
fn open_s3(url: &str, settings: &BTreeMap<String, String>) -> Result<Box<dyn Remote>, Error> {
    Ok(Box::new(s3::Bucket::open(url, settings)?))
}

#[cfg(not(feature = "s3"))]
fn open_s3(url: &str, _: &BTreeMap<String, String>) -> Result<Box<dyn Remote>, Error> {
    let why = "write a path or file:///folder; this program was built without S3".to_owned();
    Err(Error::Address { url: url.to_owned(), why })
}
