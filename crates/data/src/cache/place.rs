//! A remote dataset: which objects it has, each in one state.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gangline_objects::{Link, Object, Policy, Requests};

use crate::error::Error;
use crate::source::layout::FILES_MAX;

/// The pause after the first failure of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its name in the dataset.
    pub(super) name: String,
    /// Its address.
    pub(super) url: String,
    /// Its state; none if a listing of a folder doesn't say it.
    pub(super) tag: Option<String>,
    pub(super) bytes: u64,
    /// What tells its copy from all others.
    pub(super) key: String,
}

/// A place that holds a dataset.
pub(super) struct Place {
    pub(super) link: Link,
    folder: String,
    endpoint: String,
    /// The name of the object, if the dataset is one.
    object: Option<String>,
}

impl Place {
    /// Opens the place of an address, without looking at it. One that ends with a name that has a dot is an object.
    pub(super) fn open(url: &str, settings: &BTreeMap<String, String>) -> Result<Place, Error> {
        let url = url.trim_end_matches('/');
        let (folder, name) = url.rsplit_once('/').unwrap_or((url, ""));
        let is_object = name.contains('.') && !folder.ends_with('/');
        let (folder, object) = if is_object { (folder, Some(name.to_owned())) } else { (url, None) };
        let remote = gangline_objects::open(folder, settings).map_err(|error| failed(url, error))?;
        let policy = Policy { bytes_per_second_max: None, first_pause: FIRST_PAUSE };
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().find_map(|name| settings.get(*name));
        let endpoint = endpoint.cloned().unwrap_or_default();
        Ok(Place { link: Link::new(remote, policy), folder: folder.to_owned(), endpoint, object })
    }

    /// Whether the dataset is one object.
    pub(super) fn is_object(&self) -> bool {
        self.object.is_some()
    }

    /// The objects, in the order of their names: one look at the object, or one listing.
    pub(super) fn items(&self) -> Result<Vec<Item>, Error> {
        if let Some(name) = &self.object {
            let state = self.link.state(name).map_err(|error| failed(&self.url(name), error))?;
            let missing =
                || Error::NotFound { path: self.url(name).into(), problem: "there is no such object".to_owned() };
            let state = state.ok_or_else(missing)?;
            return Ok(vec![self.item(name, Some(state.tag.0), state.bytes)]);
        }
        let listed = self.link.list("").map_err(|error| failed(&self.folder, error))?;
        if listed.is_empty() || listed.len() > FILES_MAX {
            let problem = format!("{} objects are there, and 1 to {FILES_MAX} make a dataset", listed.len());
            return Err(Error::NotFound { path: self.folder.clone().into(), problem });
        }
        let is_name =
            |key: &str| Path::new(key).components().count() == 1 && !key.contains('/') && !key.starts_with('.');
        let named = listed.into_iter().filter(|object| is_name(&object.key));
        let item = |object: Object| {
            let listed = object.modified.unix_nanos();
            let item = self.item(&object.key, object.tag.map(|tag| tag.0), object.bytes);
            // Without a state, another time is another copy.
            if item.tag.is_some() { item } else { item.told_by(listed) }
        };
        Ok(named.map(item).collect())
    }

    /// Refuses an object that isn't in the state in which it was listed.
    pub(super) fn check(&self, item: &Item) -> Result<(), Error> {
        let state = self.link.state(&item.name).map_err(|error| failed(&item.url, error))?;
        let is_same = state
            .is_some_and(|state| state.bytes == item.bytes && item.tag.as_ref().is_none_or(|tag| *tag == state.tag.0));
        if is_same { Ok(()) } else { Err(Error::Changed { path: item.url.clone().into(), opened: item.bytes }) }
    }

    pub(super) fn requests(&self) -> Requests {
        self.link.requests()
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn item(&self, name: &str, tag: Option<String>, bytes: u64) -> Item {
        let url = self.url(name);
        let hash = blake3::hash(format!("1\n{}\n{url}\n{tag:?}\n{bytes}", self.endpoint).as_bytes());
        Item { name: name.to_owned(), url, tag, bytes, key: hash.to_hex()[..32].to_owned() }
    }
}

impl Item {
    fn told_by(mut self, nanos: u64) -> Item {
        self.key = blake3::hash(format!("{} {nanos}", self.key).as_bytes()).to_hex()[..32].to_owned();
        self
    }
}

pub(super) fn failed(url: &str, source: gangline_objects::Error) -> Error {
    Error::Remote { url: url.to_owned(), source: Box::new(source) }
}
