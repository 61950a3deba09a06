//! [`Link`] adds a rate limit and a limited number of retries, of errors that may pass, to a remote. Its
//! errors name the object and the operation.
//!
//! Keeps A-10: every operation is tried a limited number of times, and no answer is longer than requested.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Fault, Meter, Object, Remote, Requests, State, Tag};

/// How often an act is tried in total.
pub const TRIES_MAX: u32 = 6;
/// The longest pause between two tries; the first is an option, and each is twice as long as the one before.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// How often, and how fast, a remote is used.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The most bytes a second, up and down together; none for no limit.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// The pause after the first failure; it doubles with each further one.
    pub first_pause: Duration,
}

/// An answer that is shorter than the range asked for.
#[derive(Debug, thiserror::Error)]
#[error("{found} bytes instead of {expected}")]
struct Short {
    expected: u64,
    found: u64,
}

/// A remote with retries and a rate limit.
pub struct Link {
    pub(crate) remote: Box<dyn Remote>,
    policy: Policy,
    /// When the bytes transferred so far are paid for, at the permitted rate.
    paid_until: Mutex<Option<Instant>>,
    /// Whether the remote keeps conditions, once that was tried.
    keeps_conditions: OnceLock<bool>,
}

impl Link {
    /// Returns a link that has sent nothing yet.
    #[must_use]
    pub fn new(remote: Box<dyn Remote>, policy: Policy) -> Link {
        Link { remote, policy, paid_until: Mutex::new(None), keeps_conditions: OnceLock::new() }
    }

    /// Puts an object, replacing one of the same name.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.pay(bytes.len() as u64);
        self.persist("put", key, || self.remote.put(key, bytes))
    }

    /// Reads exactly this range. A shorter answer may have been cut off on its way; an object that is itself
    /// too short is not asked for again.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Length`], [`Error::Failed`].
    pub fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let wanted = range.end - range.start;
        self.pay(wanted);
        let got = self.persist("get", key, || match self.remote.get(key, range.clone()) {
            Ok(bytes) if bytes.len() as u64 == wanted => Ok(bytes),
            Err(Fault::Missing) => Err(Fault::Missing),
            failed => Err(self.why_not(key, &range, failed)),
        });
        got.map_err(length)
    }

    /// Reads exactly this range of an object in the state with this mark, as [`Link::mark`] or a listing said it, into a
    /// buffer, whose memory is used again. Returns how often it was asked for.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Changed`], [`Error::Length`] if every answer was cut off, [`Error::Failed`].
    pub fn get_of(&self, key: &str, range: Range<u64>, mark: &Tag, into: &mut Vec<u8>) -> Result<u32, Error> {
        let expected = range.end - range.start;
        self.pay(expected);
        let mut tries = 0;
        let got = self.persist("get", key, || {
            tries += 1;
            into.clear();
            into.reserve_exact(usize::try_from(expected).expect("64-bit Linux only"));
            self.remote.get_of(key, range.clone(), mark, into)?;
            let found = into.len() as u64;
            if found == expected { Ok(()) } else { Err(Fault::Passing(Short { expected, found }.into())) }
        });
        got.map(|()| tries).map_err(length)
    }

    /// Returns why reading a range failed. Asking again doesn't make an object longer.
    fn why_not(&self, key: &str, range: &Range<u64>, failed: Result<Vec<u8>, Fault>) -> Fault {
        let expected = range.end - range.start;
        match self.remote.size(key) {
            Ok(Some(there)) if there < range.end => {
                Fault::Lasting(Short { expected, found: there.saturating_sub(range.start) }.into())
            }
            _ => match failed {
                Ok(bytes) => Fault::Passing(Short { expected, found: bytes.len() as u64 }.into()),
                Err(fault) => fault,
            },
        }
    }

    /// Lists the objects whose names begin with the prefix, which ends with a slash.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>, Error> {
        self.persist("list", prefix, || self.remote.list(prefix))
    }

    /// Deletes an object; an object that isn't there is no error.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn delete(&self, key: &str) -> Result<(), Error> {
        self.persist("delete", key, || self.remote.delete(key))
    }

    /// Returns the state of an object; none if there is no such object.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn state(&self, key: &str) -> Result<Option<State>, Error> {
        self.persist("look at", key, || self.remote.state(key))
    }

    /// Returns a mark of an object's state, and its length, without reading it.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn mark(&self, key: &str) -> Result<Option<State>, Error> {
        self.persist("look at", key, || self.remote.mark(key))
    }

    /// Puts an object if its state still has this tag (without a tag: if there is no such object). If the
    /// condition fails and the object is just what was to be put, it counts as put: the answer to an earlier
    /// try may have been lost.
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::Missing`] or [`Error::Length`] if the object changes meanwhile.
    pub fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Error> {
        self.pay(bytes.len() as u64);
        if let Some(tag) = self.persist("put", key, || self.remote.put_if(key, bytes, tag))? {
            return Ok(Some(tag));
        }
        let Some(state) = self.state(key)?.filter(|state| state.bytes == bytes.len() as u64) else { return Ok(None) };
        let is_it = self.get(key, 0..state.bytes)? == bytes;
        Ok(is_it.then_some(state.tag))
    }

    /// Deletes an object if `may` returns true, and only within a short time after it did. Returns whether it
    /// did.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Error> {
        self.persist("delete", key, || self.remote.delete_if(key, may))
    }

    /// Reports whether the remote keeps the conditions of [`Link::put_if`]. Some servers ignore them, so this
    /// is tried, once, on the object `probe`, which no other program may name.
    ///
    /// # Errors
    /// [`Error::Failed`], if the remote doesn't answer.
    pub fn keeps_conditions(&self, probe: &str) -> Result<bool, Error> {
        if let Some(known) = self.keeps_conditions.get() {
            return Ok(*known);
        }
        let found = match self.try_conditions(probe) {
            // The remote didn't answer.
            Err(error @ Error::Failed { tries: TRIES_MAX, .. }) => return Err(error),
            Err(_) => false,
            Ok(found) => {
                // A probe that stays does no harm.
                let _ = self.delete(probe);
                found
            }
        };
        Ok(*self.keeps_conditions.get_or_init(|| found))
    }

    /// Reports whether the remote keeps conditions, if that was tried.
    #[must_use]
    pub fn known_conditions(&self) -> Option<bool> {
        self.keeps_conditions.get().copied()
    }

    /// Tries conditional puts; an error if the first one fails, or if a later one isn't answered.
    fn try_conditions(&self, key: &str) -> Result<bool, Error> {
        let put = |bytes: &[u8], tag: Option<&Tag>| self.persist("put", key, || self.remote.put_if(key, bytes, tag));
        let Some(first) = put(b"1", None)? else { return Ok(false) };
        let are_kept = || -> Result<bool, Error> {
            let is_created_once = put(b"2", None)?.is_none();
            let Some(second) = put(b"3", Some(&first))? else { return Ok(false) };
            Ok(is_created_once && second != first && put(b"4", Some(&first))?.is_none())
        };
        match are_kept() {
            Err(error @ Error::Failed { tries: TRIES_MAX, .. }) => Err(error),
            kept => Ok(kept.unwrap_or(false)),
        }
    }

    /// Returns how many bytes [`Link::get_of`] has received so far. Answers that broke off count with what came of them.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.remote.meter().map_or(0, Meter::bytes_received)
    }

    /// Returns the billed requests sent so far, retries included.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.remote.meter().map(Meter::requests).unwrap_or_default()
    }

    pub(crate) fn persist<T>(
        &self,
        act: &'static str,
        key: &str,
        mut attempt: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, Error> {
        let mut pause = self.policy.first_pause;
        let mut tries = 1;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Fault::Missing) => return Err(Error::Missing { key: key.to_owned() }),
                Err(Fault::Changed) => return Err(Error::Changed { key: key.to_owned() }),
                Err(Fault::Passing(_)) if tries < TRIES_MAX => {}
                Err(Fault::Passing(source) | Fault::Lasting(source) | Fault::Unable(source)) => {
                    return Err(Error::Failed { act, key: key.to_owned(), tries, source });
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            tries += 1;
        }
    }

    /// Waits until so many bytes may be moved. The limit holds on average over many objects.
    pub(crate) fn pay(&self, bytes: u64) {
        let Some(rate) = self.policy.bytes_per_second_max else { return };
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

/// Tells answers that were too short from other failures.
fn length(error: Error) -> Error {
    match error {
        Error::Failed { act, key, tries, source } => match source.downcast::<Short>() {
            Ok(short) => Error::Length { key, expected: short.expected, found: short.found },
            Err(source) => Error::Failed { act, key, tries, source },
        },
        error => error,
    }
}

/// Returns the time that this many bytes take at a rate.
fn price(bytes: u64, rate: NonZeroU64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns when a transfer of this price begins, and when the next one may.
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
