//! A remote dataset: which objects it has, each in one state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_objects::{Link, Object, Policy, Requests, is_http, meter_of, shown};

use super::Cache;
use super::buffers::Buffers;
use super::copy::Copy;
use super::fetched::in_parallel;
use crate::error::Error;
use crate::index::{FILES_MAX, INDEX_BYTES_MAX, INDEXES, names_in};

/// Objects that are looked at at a time, where there are no listings.
const LOOKS_AT_A_TIME: usize = 16;
/// The pause after the first failure of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its name in the dataset.
    pub(super) name: String,
    /// Its address.
    pub(super) url: String,
    /// What tells its state from others.
    pub(super) tag: String,
    pub(super) bytes: u64,
    /// What tells its copy from all others.
    pub(super) key: String,
}

/// A place that holds a dataset.
pub(super) struct Place {
    pub(super) link: Link,
    pub(super) buffers: Buffers,
    folder: String,
    endpoint: String,
    /// The name of the object, if the dataset is one.
    object: Option<String>,
}

impl Place {
    /// Opens the place of an address, without looking at it. One that ends with a name that has a dot is an object.
    pub(super) fn open(url: &str, settings: &BTreeMap<String, String>) -> Result<Place, Error> {
        // What is behind a `?` may be a signature: it is sent, and neither shown nor a part of a copy's name.
        let (whole, secret) = if is_http(url) { url.split_once('?').unwrap_or((url, "")) } else { (url, "") };
        let url = whole.trim_end_matches('/');
        let (folder, name) = url.rsplit_once('/').unwrap_or((url, ""));
        let is_object = name.contains('.') && !folder.ends_with('/');
        let (folder, object) = if is_object { (folder, Some(name.to_owned())) } else { (url, None) };
        let address = if secret.is_empty() { folder.to_owned() } else { format!("{folder}?{secret}") };
        let remote = gangline_objects::open_to_read(&address, settings, meter_of(settings, &shown(url)));
        let remote = remote.map_err(|error| failed(&shown(url), error))?;
        let folder = shown(folder);
        let policy = Policy { bytes_per_second_max: None, first_pause: FIRST_PAUSE };
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().find_map(|name| settings.get(*name));
        let endpoint = endpoint.cloned().unwrap_or_default();
        Ok(Place { link: Link::new(remote, policy), buffers: Buffers::default(), folder, endpoint, object })
    }

    /// Whether a look at it is a billed request, and not one at a folder of this node.
    pub(super) fn is_billed(&self) -> bool {
        !self.folder.starts_with("file://")
    }

    /// What tells the place from others: its server and the dataset's address.
    pub(super) fn identity(&self) -> String {
        format!("{}\n{}", self.endpoint, self.address())
    }

    /// The dataset's address, without what is secret in it.
    pub(super) fn address(&self) -> String {
        self.object.as_ref().map_or_else(|| self.folder.clone(), |name| self.url(name))
    }

    /// Whether the dataset is one object.
    pub(super) fn is_object(&self) -> bool {
        self.object.is_some()
    }

    /// The objects, in the order of their names: one look at the object, or one listing.
    pub(super) fn items(self: &Arc<Place>, cache: &Cache) -> Result<Vec<Item>, Error> {
        if let Some(name) = &self.object {
            return Ok(vec![self.looked_at(name)?]);
        }
        if is_http(&self.folder) {
            return self.named(cache);
        }
        let listed = self.link.list("").map_err(|error| failed(&self.folder, error))?;
        if listed.is_empty() || listed.len() > FILES_MAX {
            let problem = format!("{} objects are there, and 1 to {FILES_MAX} make a dataset", listed.len());
            return Err(Error::NotFound { path: self.folder.clone().into(), problem });
        }
        let is_name =
            |key: &str| Path::new(key).components().count() == 1 && !key.contains('/') && !key.starts_with('.');
        let named = listed.into_iter().filter(|object| is_name(&object.key));
        let item = |object: Object| match object.tag {
            Some(tag) => Ok(self.item(&object.key, tag.0, object.bytes)),
            None => self.looked_at(&object.key),
        };
        named.map(item).collect()
    }

    /// The objects that the folder's manifest or index names, where there are no listings. It is read from the cache, too.
    fn named(self: &Arc<Place>, cache: &Cache) -> Result<Vec<Item>, Error> {
        let mut index = None;
        for name in INDEXES {
            if index.is_none() {
                let state = self.link.mark(name).map_err(|error| failed(&self.url(name), error))?;
                index = state.map(|state| (name, state));
            }
        }
        let missing = || {
            let names = INDEXES.join(" and no ");
            let problem = format!("HTTP has no listings, and no {names} is there that names its files: name one file");
            Error::NotFound { path: self.folder.clone().into(), problem }
        };
        let (name, state) = index.ok_or_else(missing)?;
        let index = self.item(name, state.tag.0.clone(), state.bytes);
        if state.bytes > INDEX_BYTES_MAX {
            let problem = format!("it has {} bytes, more than {INDEX_BYTES_MAX}", state.bytes);
            return Err(Error::malformed(Path::new(&index.url), 0, problem));
        }
        let copy = Copy::open(cache, self, index.clone())?;
        let text = copy.read(0..copy.len(), <[u8]>::to_vec)?;
        let names = names_in(Path::new(&index.url), name, &text)?;
        let items = Mutex::new(vec![index]);
        in_parallel(LOOKS_AT_A_TIME, &names, &|name| {
            let item = self.looked_at(name)?;
            items.lock().unwrap_or_else(PoisonError::into_inner).push(item);
            Ok(())
        })?;
        let mut items = items.into_inner().unwrap_or_else(PoisonError::into_inner);
        items.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(items)
    }

    /// An object as it is now.
    fn looked_at(&self, name: &str) -> Result<Item, Error> {
        let state = self.link.mark(name).map_err(|error| failed(&self.url(name), error))?;
        let missing = || Error::NotFound { path: self.url(name).into(), problem: "there is no such object".to_owned() };
        let state = state.ok_or_else(missing)?;
        Ok(self.item(name, state.tag.0, state.bytes))
    }

    pub(super) fn requests(&self) -> Requests {
        self.link.requests()
    }

    pub(super) fn bytes_received(&self) -> u64 {
        self.link.bytes_received()
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    pub(super) fn item(&self, name: &str, tag: String, bytes: u64) -> Item {
        let url = self.url(name);
        let hash = blake3::hash(format!("2\n{}\n{url}\n{tag:?}\n{bytes}", self.endpoint).as_bytes());
        Item { name: name.to_owned(), url, tag, bytes, key: hash.to_hex()[..32].to_owned() }
    }
}

pub(super) fn failed(url: &str, source: gangline_objects::Error) -> Error {
    Error::Remote { url: url.to_owned(), source: Box::new(source) }
}
