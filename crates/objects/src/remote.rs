//! A place that holds objects, seen as single requests on named objects.

use std::ops::Range;
use std::time::Duration;

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Meter, Part, Source};

/// The most objects of a listing.
pub(crate) const OBJECTS_MAX: usize = 4_000_000;

/// Objects by name; each act is tried once. `put` is atomic: the object is there whole, or (also after an
/// error) as it was.
pub trait Remote: Send + Sync {
    /// Puts an object, replacing one of the same name.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault>;
    /// Reads a range of an object.
    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault>;
    /// Reads a range of an object in the state with this mark (see [`Remote::mark`]) into an empty buffer;
    /// [`Fault::Changed`] if it has another one by now.
    /// By default, the mark is looked at before and after the read.
    fn get_of(&self, key: &str, range: Range<u64>, mark: &Tag, into: &mut Vec<u8>) -> Result<(), Fault> {
        let check = || match self.mark(key)? {
            None => Err(Fault::Missing),
            Some(state) if state.tag == *mark => Ok(()),
            Some(_) => Err(Fault::Changed),
        };
        check()?;
        *into = self.get(key, range)?;
        self.meter().into_iter().for_each(|meter| meter.receive(into.len()));
        check()
    }
    /// Lists the objects whose names begin with the prefix, which ends with a slash.
    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault>;
    /// Deletes an object; an object that isn't there is no error.
    fn delete(&self, key: &str) -> Result<(), Fault>;
    /// Returns the state of an object; none if there is no such object.
    fn state(&self, key: &str) -> Result<Option<State>, Fault>;
    /// Returns a mark of an object's state that is found without reading it, and its length; none if there is no such
    /// object. Another state has another mark, as far as the place can tell. By default the state's tag.
    fn mark(&self, key: &str) -> Result<Option<State>, Fault> {
        self.state(key)
    }
    /// Returns the length of an object; none if there is no such object.
    fn size(&self, key: &str) -> Result<Option<u64>, Fault> {
        Ok(self.state(key)?.map(|state| state.bytes))
    }
    /// Puts an object if its state still has this tag (without a tag: if there is no such object),
    /// atomically. Returns the new state's tag, or none if the condition failed; [`Fault::Unable`] if the
    /// remote keeps no conditions.
    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault>;
    /// Deletes an object if `may` returns true, and only within a short time after it did. Returns whether it
    /// did.
    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault>;
    /// Begins to put an object in parts, and names the upload. Like all of this group, [`Fault::Unable`] by default.
    fn begin_parts(&self, _key: &str) -> Result<String, Fault> {
        Err(no_parts())
    }
    /// Puts a part; one that was put before is replaced.
    fn put_part(&self, _key: &str, _part: Part<'_>, _bytes: &[u8]) -> Result<Tag, Fault> {
        Err(no_parts())
    }
    /// Makes the object of its parts, atomically. [`Fault::Missing`] if there is no such upload, as after it was made.
    fn finish_parts(&self, _key: &str, _upload: &str, _parts: &[Tag]) -> Result<(), Fault> {
        Err(no_parts())
    }
    /// Removes the parts of an object that won't be made.
    fn abandon_parts(&self, _key: &str, _upload: &str) -> Result<(), Fault> {
        Err(no_parts())
    }
    /// Returns an address at which anybody can read the object until the time is over; [`Fault::Unable`] by default.
    fn signed_url(&self, _key: &str, _lifetime: Duration) -> Result<String, Fault> {
        Err(Fault::Unable("it has no signed addresses".into()))
    }
    /// Returns what counts the billed requests, and the bytes that [`Remote::get_of`] receives; nothing by default.
    fn meter(&self) -> Option<&Meter> {
        None
    }
}

fn no_parts() -> Fault {
    Fault::Unable("it takes no objects in parts".into())
}

/// Adds a part of an answer that may have so many bytes at most.
#[cfg(feature = "s3")]
pub(crate) fn append(into: &mut Vec<u8>, more: &[u8], most: u64) -> Result<(), Fault> {
    if (into.len() + more.len()) as u64 > most {
        return Err(Fault::Lasting(format!("the server sends more than the {most} bytes asked for").into()));
    }
    into.extend_from_slice(more);
    Ok(())
}

/// Identifies one state of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tag(pub String);

/// The state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Identifies this state.
    pub tag: Tag,
    /// The object's length.
    pub bytes: u64,
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name, including the prefix.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// When it was put, by the remote's clock.
    pub modified: Timestamp,
    /// Its state, if listings say it: a folder's don't.
    pub tag: Option<Tag>,
}

/// Why a request failed, sorted by what helps.
#[derive(Debug)]
pub enum Fault {
    /// There is no such object.
    Missing,
    /// The object is in another state than the one asked for.
    Changed,
    /// The next try may succeed: time-outs, throttling, broken connections.
    Passing(Source),
    /// The next try fails too: permissions, a full disk, a bucket that isn't there.
    Lasting(Source),
    /// The remote has no such operation.
    Unable(Source),
}
