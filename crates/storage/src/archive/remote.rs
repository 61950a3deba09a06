//! Where an archive lies, seen as a few acts on named objects; and [`Link`], which tries again, bounded, keeps to a rate, and
//! names what failed.
//!
//! Keeps A-10: every act is tried a limited number of times, and no answer is longer than what was asked for.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::Error;
use super::error::Source;
use super::vault::KeyId;
use crate::Flaw;

/// How often an act is tried in all.
pub(crate) const TRIES_MAX: u32 = 6;
/// The longest pause between two tries; the first is an option, and each is twice as long as the one before.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// The most objects of a listing.
pub(crate) const OBJECTS_MAX: usize = 4_000_000;

/// Objects by name. `put` is atomic: an object is there whole, or (also after an error) as it was.
pub(crate) trait Remote: Send + Sync {
    /// Puts an object there, in the place of what has its name.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault>;
    /// These bytes of an object.
    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault>;
    /// The objects whose names begin so; a prefix ends with a slash.
    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault>;
    /// Removes an object; one that isn't there is fine.
    fn delete(&self, key: &str) -> Result<(), Fault>;
    /// The state that an object is in; none if there is no such object.
    fn state(&self, key: &str) -> Result<Option<State>, Fault>;
    /// How long an object is; none if there is no such object.
    fn size(&self, key: &str) -> Result<Option<u64>, Fault> {
        Ok(self.state(key)?.map(|state| state.bytes))
    }
    /// Puts an object there if its state is still the one that this tag tells (without a tag: if it isn't there), as one act that
    /// nothing comes between; the new state's tag, or none if the state is another. [`Fault::Unable`] if it can't.
    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault>;
    /// Removes an object if `may` says so, and only soon after it did; whether it did.
    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault>;
}

/// What tells one state of an object from every other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tag(pub(crate) String);

/// The state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tag: Tag,
    pub(crate) bytes: u64,
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its name, the prefix included.
    pub(crate) key: String,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// When it was put there, by the remote's clock.
    pub(crate) modified: Timestamp,
}

/// Why a remote didn't do it, sorted by what helps.
#[derive(Debug)]
pub(crate) enum Fault {
    /// There is no such object.
    Missing,
    /// It may do it the next time: time-outs, throttling, broken connections.
    Passing(Source),
    /// It won't: permissions, a full disk, a bucket that isn't there.
    Lasting(Source),
    /// It has no means for that.
    Unable(Source),
}

/// How a remote is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Bytes a second, up and down together; none for as fast as it goes.
    pub(crate) rate: Option<NonZeroU64>,
    /// How long to wait after the first failure.
    pub(crate) first_pause: Duration,
}

/// A remote with patience.
pub(crate) struct Link {
    remote: Box<dyn Remote>,
    manners: Manners,
    /// When the bytes so far are paid for.
    paid_until: Mutex<Option<Instant>>,
    /// Whether conditions are kept, once that was tried.
    keeps_conditions: OnceLock<bool>,
}

impl Link {
    pub(crate) fn new(remote: Box<dyn Remote>, manners: Manners) -> Link {
        Link { remote, manners, paid_until: Mutex::new(None), keeps_conditions: OnceLock::new() }
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.pay(bytes.len() as u64);
        self.persist("put", key, || self.remote.put(key, bytes))
    }

    /// Exactly these bytes. A shorter answer may have been cut off on its way; an object that is itself too short is damaged.
    pub(crate) fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let wanted = range.end - range.start;
        self.pay(wanted);
        let got = self.persist("get", key, || match self.remote.get(key, range.clone()) {
            Ok(bytes) if bytes.len() as u64 == wanted => Ok(bytes),
            Err(Fault::Missing) => Err(Fault::Missing),
            failed => Err(self.why_not(key, &range, failed)),
        });
        got.map_err(|error| match error {
            Error::Remote { act, key, tries, source } => match source.downcast::<Flaw>() {
                Ok(flaw) => Error::corrupt(key, *flaw),
                Err(source) => Error::Remote { act, key, tries, source },
            },
            error => error,
        })
    }

    /// Why a range wasn't got. Asking again doesn't make an object longer.
    fn why_not(&self, key: &str, range: &Range<u64>, failed: Result<Vec<u8>, Fault>) -> Fault {
        let expected = range.end - range.start;
        match self.remote.size(key) {
            Ok(Some(there)) if there < range.end => {
                Fault::Lasting(Flaw::Length { expected, found: there.saturating_sub(range.start) }.into())
            }
            _ => match failed {
                Ok(bytes) => Fault::Passing(Flaw::Length { expected, found: bytes.len() as u64 }.into()),
                Err(fault) => fault,
            },
        }
    }

    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Object>, Error> {
        self.persist("list", prefix, || self.remote.list(prefix))
    }

    pub(crate) fn delete(&self, key: &str) -> Result<(), Error> {
        self.persist("delete", key, || self.remote.delete(key))
    }

    pub(crate) fn state(&self, key: &str) -> Result<Option<State>, Error> {
        self.persist("look at", key, || self.remote.state(key))
    }

    /// Puts an object if its state is still as told. An object that then is just what was to be put counts as put: the answer to
    /// an earlier try may have been lost.
    pub(crate) fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Error> {
        self.pay(bytes.len() as u64);
        if let Some(tag) = self.persist("put", key, || self.remote.put_if(key, bytes, tag))? {
            return Ok(Some(tag));
        }
        let Some(state) = self.state(key)?.filter(|state| state.bytes == bytes.len() as u64) else { return Ok(None) };
        let is_it = self.get(key, 0..state.bytes)? == bytes;
        Ok(is_it.then_some(state.tag))
    }

    /// Removes an object if `may` says so, and only soon after it did; whether it did.
    pub(crate) fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Error> {
        self.persist("delete", key, || self.remote.delete_if(key, may))
    }

    /// Whether the remote keeps the conditions of [`Link::put_if`]. Servers are known that ignore them, so it is tried, once.
    pub(crate) fn keeps_conditions(&self) -> Result<bool, Error> {
        if let Some(known) = self.keeps_conditions.get() {
            return Ok(*known);
        }
        let key = format!("probes/{}", KeyId::random()?);
        let found = match self.try_conditions(&key) {
            // It didn't say.
            Err(error @ Error::Remote { tries: TRIES_MAX, .. }) => return Err(error),
            Err(_) => false,
            Ok(found) => {
                // A probe that stays is in nobody's way.
                let _ = self.delete(&key);
                found
            }
        };
        Ok(*self.keeps_conditions.get_or_init(|| found))
    }

    /// What is known of that without a try.
    pub(crate) fn known_conditions(&self) -> Option<bool> {
        self.keeps_conditions.get().copied()
    }

    /// An error if not even the first put went well.
    fn try_conditions(&self, key: &str) -> Result<bool, Error> {
        let put = |bytes: &[u8], tag: Option<&Tag>| self.persist("put", key, || self.remote.put_if(key, bytes, tag));
        let Some(first) = put(b"1", None)? else { return Ok(false) };
        let are_kept = || -> Result<bool, Error> {
            let is_created_once = put(b"2", None)?.is_none();
            let Some(second) = put(b"3", Some(&first))? else { return Ok(false) };
            Ok(is_created_once && second != first && put(b"4", Some(&first))?.is_none())
        };
        match are_kept() {
            Err(error @ Error::Remote { tries: TRIES_MAX, .. }) => Err(error),
            kept => Ok(kept.unwrap_or(false)),
        }
    }

    fn persist<T>(&self, act: &'static str, key: &str, attempt: impl Fn() -> Result<T, Fault>) -> Result<T, Error> {
        let mut pause = self.manners.first_pause;
        let mut tries = 1;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Fault::Missing) => return Err(Error::corrupt(key, Flaw::Missing)),
                Err(Fault::Passing(_)) if tries < TRIES_MAX => {}
                Err(Fault::Passing(source) | Fault::Lasting(source) | Fault::Unable(source)) => {
                    return Err(Error::Remote { act, key: key.to_owned(), tries, source });
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            tries += 1;
        }
    }

    /// Waits until bytes may be moved. The limit holds over any time that is long against one object.
    fn pay(&self, bytes: u64) {
        let Some(rate) = self.manners.rate else { return };
        let now = Instant::now();
        let begin = {
            let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
            let (begin, end) = turn(*paid_until, now, price(bytes, rate));
            *paid_until = Some(end);
            begin
        };
        std::thread::sleep(begin.saturating_duration_since(now));
    }
}

/// How long so many bytes take at a rate.
fn price(bytes: u64, rate: NonZeroU64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// When what has this price begins, and when the next may.
fn turn(paid_until: Option<Instant>, now: Instant, price: Duration) -> (Instant, Instant) {
    let begin = paid_until.map_or(now, |until| until.max(now));
    (begin, begin.checked_add(price).unwrap_or(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spread_over_the_time_that_their_rate_gives_them() {
        let rate = NonZeroU64::new(1_000).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(price(2_000, rate), 2 * second);
        let now = Instant::now();
        let (first, paid) = turn(None, now, price(2_000, rate));
        assert_eq!((first, paid), (now, now + 2 * second), "the first goes at once");
        assert_eq!(turn(Some(paid), now + second, price(500, rate)).0, paid, "the second waits its turn");
        let late = now + 60 * second;
        assert_eq!(turn(Some(paid), late, second), (late, late + second), "time that passed unused isn't saved up");
    }
}
