//! Reads and changes named objects in a folder or in S3 through one interface: ranges are read, objects are
//! put, listed and deleted, with retries, deadlines, checksums and conditions. Objects behind HTTP are only read.
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
#[cfg(feature = "s3")]
mod http;
mod link;
mod parts;
mod remote;
mod requests;
#[cfg(feature = "s3")]
mod s3;
mod tally;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use disk::ASIDE_PREFIX;
pub use error::{Error, Source};
pub use folder::{Folder, folder_of, modified};
pub use link::{Link, Policy, TRIES_MAX};
pub use parts::Part;
pub use remote::{Fault, Object, Remote, State, Tag};
pub use requests::{Meter, Requests};
pub use tally::{READS_VARIABLE, Tally, meter_of, note_stored, stored_in, tallies_in};

/// Opens the place at `s3://bucket/prefix`, `file:///folder` or a path, without looking at it. The settings
/// for S3 are named as in the environment of AWS's own tools.
///
/// # Errors
/// [`Error::Address`].
pub fn open(url: &str, settings: &BTreeMap<String, String>) -> Result<Box<dyn Remote>, Error> {
    open_metered(url, settings, Meter::default())
}

/// The same; what is asked for is counted by the meter.
///
/// # Errors
/// [`Error::Address`].
pub fn open_metered(url: &str, settings: &BTreeMap<String, String>, meter: Meter) -> Result<Box<dyn Remote>, Error> {
    match folder_of(url) {
        Some(path) => Ok(Box::new(Folder::metered(PathBuf::from(path), meter))),
        None => open_s3(url, settings, meter),
    }
}

/// Opens a place that is only read: as [`open`], and `https://host/folder`. What is asked for is counted by the meter.
///
/// # Errors
/// [`Error::Address`].
pub fn open_to_read(url: &str, settings: &BTreeMap<String, String>, meter: Meter) -> Result<Box<dyn Remote>, Error> {
    if is_http(url) { open_http(url, meter) } else { open_metered(url, settings, meter) }
}

/// Whether an address is one of HTTP or HTTPS.
#[must_use]
pub fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// An address as it may be shown: without a password, and without what is behind a `?`, which may be a signature.
#[must_use]
pub fn shown(url: &str) -> String {
    let url = if is_http(url) { url.split(['?', '#']).next().unwrap_or(url) } else { url };
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) if is_http(url) => format!("{scheme}://{rest}"),
        _ => url.to_owned(),
    }
}

#[cfg(feature = "s3")]
fn open_s3(url: &str, settings: &BTreeMap<String, String>, meter: Meter) -> Result<Box<dyn Remote>, Error> {
    Ok(Box::new(s3::Bucket::open(url, settings, meter)?))
}

#[cfg(feature = "s3")]
fn open_http(url: &str, meter: Meter) -> Result<Box<dyn Remote>, Error> {
    Ok(Box::new(http::Site::open(url, meter)?))
}

#[cfg(not(feature = "s3"))]
fn open_s3(url: &str, _: &BTreeMap<String, String>, meter: Meter) -> Result<Box<dyn Remote>, Error> {
    open_http(url, meter)
}

#[cfg(not(feature = "s3"))]
fn open_http(url: &str, _: Meter) -> Result<Box<dyn Remote>, Error> {
    let why = "write a path or file:///folder; this program was built without S3 and HTTP".to_owned();
    Err(Error::Address { url: shown(url), why })
}
