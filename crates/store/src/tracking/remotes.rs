//! Contents of artifacts outside the data folder: objects in S3, or in a folder that others see too.
//!
//! Each artifact says at which address its contents are, so another address in the configuration leaves the older ones where
//! they are. An object is named by the database that keeps it and by its contents: two databases at one address never delete
//! each other's.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_base::with_causes;
use gangline_objects::{Error, Link, Policy};

use super::Failure;

/// The pause after the first failure of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Where the contents of new artifacts go, and the way to those of older ones. Cheap to clone.
#[derive(Clone, Default)]
pub struct Remotes {
    address: Option<Arc<str>>,
    is_direct: bool,
    settings: Arc<BTreeMap<String, String>>,
    links: Arc<Mutex<BTreeMap<String, Arc<Link>>>>,
}

impl fmt::Debug for Remotes {
    /// Without the settings, which may be secret.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Remotes").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Remotes {
    /// Returns the way to objects: new contents go to the address `s3://bucket/prefix`, `file:///folder` or a path, without one
    /// into the data folder. The settings for S3 are named as in the environment of AWS's own tools. Nothing is sent yet. `is_direct`:
    /// clients download by addresses that are signed for them.
    ///
    /// # Errors
    /// If the address or the settings can't be used.
    pub fn new(address: Option<&str>, is_direct: bool, settings: BTreeMap<String, String>) -> Result<Remotes, Failure> {
        let (address, settings) = (address.map(Arc::from), Arc::new(settings));
        let remotes = Remotes { address, is_direct, settings, links: Arc::default() };
        if let Some(address) = remotes.address() {
            remotes.link(address)?;
        }
        Ok(remotes)
    }

    /// Returns where new contents go; none for the data folder.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Puts what a file holds, unless it is there.
    pub(super) fn keep(&self, address: &str, key: &str, file: &File, bytes: u64) -> Result<(), Failure> {
        let link = self.link(address)?;
        let kept = link.size(key).and_then(|there| match there {
            Some(there) if there == bytes => Ok(()),
            _ => link.put_file(key, file, bytes),
        });
        kept.map_err(|error| failed(address, &error))
    }

    pub(super) fn read(&self, address: &str, key: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>, Failure> {
        self.link(address)?.get(key, range).map_err(|error| failed(address, &error))
    }

    pub(super) fn remove(&self, address: &str, key: &str) -> Result<(), Failure> {
        self.link(address)?.delete(key).map_err(|error| failed(address, &error))
    }

    pub(super) fn signed_url(&self, address: &str, key: &str, lifetime: Duration) -> Result<Option<String>, Failure> {
        self.link(address)?.signed_url(key, lifetime).map_err(|error| failed(address, &error))
    }

    fn link(&self, address: &str) -> Result<Arc<Link>, Failure> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address) {
            return Ok(Arc::clone(link));
        }
        let remote = gangline_objects::open(address, &self.settings);
        let remote = remote.map_err(|error| Failure::Store(with_causes(&error)))?;
        let policy = Policy { bytes_per_second_max: None, first_pause: FIRST_PAUSE };
        let link = Arc::new(Link::new(remote, policy));
        links.insert(address.to_owned(), Arc::clone(&link));
        Ok(link)
    }
}

fn failed(address: &str, error: &Error) -> Failure {
    Failure::Store(format!("at {address}: {}", with_causes(error)))
}
