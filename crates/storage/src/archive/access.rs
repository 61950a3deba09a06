//! Access to an archive's objects: a link to them, the vault that decrypts them, and for changes the lease.

use gangline_objects::Link;

use super::Error;
use super::catalog::{CATALOG_BYTES_MAX, Catalog, catalog_key};
use super::lease::Lease;
use super::vault::Vault;

/// Read access to an archive.
pub(crate) struct Access<'a> {
    pub(crate) link: &'a Link,
    pub(crate) vault: Vault,
}

/// Exclusive access to change an archive.
pub(crate) struct Change<'a> {
    pub(crate) access: Access<'a>,
    pub(crate) lease: &'a Lease<'a>,
}

impl Change<'_> {
    /// Puts an object that no catalog names yet.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.lease.keep()?;
        Ok(self.access.link.put(key, bytes)?)
    }

    /// Publishes a checkpoint's catalog, new or in place of an earlier one. Returns the bytes put.
    pub(crate) fn publish(&self, catalog: &Catalog) -> Result<u64, Error> {
        let text = catalog.write();
        if text.len() as u64 > CATALOG_BYTES_MAX {
            let (value, max) = (text.len() as u64, CATALOG_BYTES_MAX);
            return Err(crate::Error::Limit { what: "bytes of a catalog", value, max }.into());
        }
        let key = catalog_key(catalog.step);
        let bytes = self.access.vault.close_catalog(&key, text);
        self.lease.commit(&key, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Removes objects.
    pub(crate) fn delete(&self, keys: impl IntoIterator<Item = String>) -> Result<(), Error> {
        self.lease.check()?;
        keys.into_iter().try_for_each(|key| self.lease.remove(&key))
    }
}
