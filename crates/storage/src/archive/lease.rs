//! One program at a time changes an archive: who does has a lease, an object that says who and since when.
//!
//! Taking one needs no conditional writes, which not all that speak S3's protocol have: a program looks whether somebody has a
//! lease, puts one under a name of its own, and looks again; if it then sees another's, it takes its own away and gives up. Of
//! two that come at once, the one that puts later sees the other, whatever the order otherwise (the flag principle: Herlihy and
//! Shavit, "The Art of Multiprocessor Programming", section 1.2). That takes what folders and S3 promise: what is put is
//! listed at once.
//!
//! A lease is renewed while its owner works. It no longer counts when its owner's process is known to be gone (it was of this
//! machine), or [`LEASE_TIME`] after it was last renewed; the next who comes takes it over. An owner that was
//! suspended so long notices before it makes anything visible or removes anything, since it looks for its own lease first; where
//! conditions are kept (`fence`), what it makes visible fails even if it was suspended after that look. What it
//! removes is asked for by a request that ends soon after the look, by the server's clock. So the
//! clocks of machines that share an archive may be apart by as much as [`LEASE_TIME`] is longer than [`SILENCE_MAX`].

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::Error;
use super::fence::Intent;
use super::remote::{Link, Object, State, Tag};
use super::vault::KeyId;
use crate::Flaw;
use crate::manifest::{seal, unseal};
use crate::options::Clock;

const MAGIC: &str = "gangline-archive-lease";
/// The format version written, and the newest one read.
const VERSION: u32 = 1;
/// How long a lease counts that isn't renewed.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(30 * 60);
/// How old a lease gets before it is renewed.
pub(crate) const RENEWAL_AGE: Duration = Duration::from_secs(4 * 60);
/// An owner that hasn't renewed its lease for so long has lost it.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);
/// The most bytes of a lease.
const LEASE_BYTES_MAX: u64 = 4 << 10;
/// The most leases that are looked at; more than one is there only after crashes.
const LEASES_MAX: usize = 1_000;
/// How often a lease is tried to be taken over that changes meanwhile.
const TAKEOVER_TRIES_MAX: usize = 5;

/// A lease on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    magic: String,
    version: u32,
    owner: Owner,
    /// What it is for, in words.
    purpose: String,
    /// In nanoseconds since the Unix epoch.
    taken_at: u64,
    /// In nanoseconds since the Unix epoch; 0 once another has taken it over.
    renewed_at: u64,
    /// What its owner is about to change, or changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    intent: Option<Intent>,
}

/// Reads a lease's text.
fn parse(text: &[u8]) -> Result<Record, Flaw> {
    unseal(text, MAGIC, VERSION)
}

/// For fuzzing: whether a text is a lease.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_lease(text: &[u8]) -> bool {
    parse(text).is_ok()
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// The machine's name.
    host: String,
    /// The machine since it was started, and its name space of processes; empty if that isn't known.
    machine: String,
    process: u32,
    /// When the process began, in ticks since the machine did: numbers of processes come again.
    began: String,
}

impl Owner {
    /// This process.
    fn this() -> Owner {
        let read = |path| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let process = std::process::id();
        let names = fs::read_link("/proc/self/ns/pid").map(|names| names.to_string_lossy().into_owned());
        let machine = match (read("/proc/sys/kernel/random/boot_id"), names) {
            (Ok(boot), Ok(names)) => format!("{boot} {names}"),
            _ => String::new(),
        };
        let host = read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "a machine".to_owned());
        Owner { host, machine, process, began: began(process).unwrap_or_default() }
    }

    /// Whether it is a process of `here`'s machine that is gone.
    fn is_gone(&self, here: &Owner) -> bool {
        !here.machine.is_empty() && self.machine == here.machine && began(self.process).as_ref() != Some(&self.began)
    }
}

/// When a process of this machine began; none if there is no such process. The 22nd field of its status, of which the second may
/// have spaces but ends with the last parenthesis (proc(5)).
fn began(process: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    status.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// A lease that this process has.
pub(crate) struct Lease<'a> {
    pub(crate) link: &'a Link,
    clock: &'a Clock,
    object: String,
    record: Record,
    renewed_at: AtomicU64,
    /// The state of its object, and what that says its owner is about to change; none where conditions aren't kept.
    fence: Option<Mutex<(Option<Tag>, Option<Intent>)>>,
    /// Whether it has to stay when its owner is done: a change that it names may still be under way.
    stays: AtomicBool,
}

impl<'a> Lease<'a> {
    /// Takes the archive under `name`, which the caller has used before or nobody has.
    pub(crate) fn take(link: &'a Link, clock: &'a Clock, name: KeyId, purpose: &str) -> Result<Lease<'a>, Error> {
        let owner = Owner::this();
        let object = format!("leases/{name}.json");
        let now = clock();
        let (purpose, at) = (purpose.to_owned(), now.unix_nanos());
        let (magic, version) = (MAGIC.to_owned(), VERSION);
        let record = Record { magic, version, owner, purpose, taken_at: at, renewed_at: at, intent: None };
        let (renewed_at, stays) = (AtomicU64::new(at), AtomicBool::new(false));
        let mut lease = Lease { link, clock, object, record, renewed_at, fence: None, stays };
        let over = lease.look(now)?;
        lease.fence = link.keeps_conditions()?.then(Mutex::default);
        lease.put_first()?;
        let taken = lease.look(now).and_then(|_| over.iter().try_for_each(|object| lease.take_over(object, now)));
        if let Err(held) = taken {
            lease.release();
            return Err(held);
        }
        Ok(lease)
    }

    /// Puts the lease there. One that a try before left of the same name may still be about to change something.
    fn put_first(&self) -> Result<(), Error> {
        let text = seal(&self.record);
        let Some(fence) = &self.fence else { return self.link.put(&self.object, &text) };
        let mut state = self.link.state(&self.object)?;
        if let Some(State { bytes, .. }) = state {
            let left = self.read(&Object { key: self.object.clone(), bytes, modified: Timestamp::EPOCH })?;
            left.and_then(|left| left.intent).map_or(Ok(()), |intent| intent.prevent(self.link))?;
            state = self.link.state(&self.object)?;
        }
        let tag = self.link.put_if(&self.object, &text, state.as_ref().map(|state| &state.tag))?;
        let tag = tag.ok_or(Error::LeaseLost { silence: Duration::ZERO })?;
        *fence.lock().unwrap_or_else(PoisonError::into_inner) = (Some(tag), None);
        Ok(())
    }

    /// Takes away a lease that no longer counts, after what its owner was about to change can't be changed by it any more.
    fn take_over(&self, object: &str, now: Timestamp) -> Result<(), Error> {
        if self.fence.is_none() {
            return self.link.delete(object);
        }
        for _ in 0..TAKEOVER_TRIES_MAX {
            let Some(State { tag, bytes }) = self.link.state(object)? else { return Ok(()) };
            let listed = Object { key: object.to_owned(), bytes, modified: Timestamp::EPOCH };
            let Some(record) = self.read(&listed)? else { return Ok(()) };
            if self.counts(&record, now) {
                return Err(held(record));
            }
            let over = Record { renewed_at: 0, ..record };
            // Without that its owner could still name what it will change next.
            if self.link.put_if(object, &seal(&over), Some(&tag))?.is_some() {
                over.intent.map_or(Ok(()), |intent| intent.prevent(self.link))?;
                return self.link.delete(object);
            }
        }
        Err(held(self.record.clone()))
    }

    /// The leases that no longer count; an error if one of another does.
    fn look(&self, now: Timestamp) -> Result<Vec<String>, Error> {
        let listed = self.link.list("leases/")?;
        crate::error::within("leases of an archive", listed.len(), LEASES_MAX)?;
        let mut over = Vec::new();
        for object in listed.into_iter().filter(|object| object.key != self.object) {
            match self.read(&object)? {
                Some(record) if self.counts(&record, now) => return Err(held(record)),
                Some(_) => over.push(object.key),
                None => {}
            }
        }
        Ok(over)
    }

    /// What a lease says; none if it is gone again.
    fn read(&self, object: &Object) -> Result<Option<Record>, Error> {
        let refused = |flaw| Error::corrupt(&object.key, flaw);
        if object.bytes > LEASE_BYTES_MAX {
            return Err(refused(Flaw::Malformed { what: "it is larger than 4 KiB" }));
        }
        match self.link.get(&object.key, 0..object.bytes) {
            Err(Error::Corrupt { flaw: Flaw::Missing, .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(text) => parse(&text).map(Some).map_err(refused),
        }
    }

    fn counts(&self, other: &Record, now: Timestamp) -> bool {
        let age = now.since(Timestamp::from_unix_nanos(other.renewed_at));
        !other.owner.is_gone(&self.record.owner) && age < LEASE_TIME
    }

    /// Renews the lease if it is time to; before that, sees to it that it is still there.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        if self.age() < RENEWAL_AGE { Ok(()) } else { self.check() }
    }

    /// Sees to it that the lease is still there, and renews it if it is time to.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let age = self.age();
        let is_there = self.link.list("leases/")?.iter().any(|object| object.key == self.object);
        if !is_there || age > SILENCE_MAX {
            return Err(Error::LeaseLost { silence: age });
        }
        if age >= RENEWAL_AGE { self.renew(None) } else { Ok(()) }
    }

    /// Renews the lease; with what its owner is about to change, or what it was about to before.
    fn renew(&self, intent: Option<Intent>) -> Result<(), Error> {
        let silence = self.age();
        let now = (self.clock)().unix_nanos();
        let renewed = |intent| seal(&Record { renewed_at: now, intent, ..self.record.clone() });
        match &self.fence {
            None => self.link.put(&self.object, &renewed(None))?,
            Some(fence) => {
                let mut fence = fence.lock().unwrap_or_else(PoisonError::into_inner);
                let intent = intent.or_else(|| fence.1.clone());
                let tag = self.link.put_if(&self.object, &renewed(intent.clone()), fence.0.as_ref())?;
                *fence = (Some(tag.ok_or(Error::LeaseLost { silence })?), intent);
            }
        }
        self.renewed_at.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Changes an object that others see: as told, or not at all. Whoever has taken the lease over comes before or after it.
    pub(crate) fn commit(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        if self.fence.is_none() {
            return self.link.put(key, bytes);
        }
        let from = self.link.state(key)?.map(|state| state.tag);
        let intent = Intent { key: key.to_owned(), from };
        self.renew(Some(intent.clone()))?;
        match self.link.put_if(key, bytes, intent.from.as_ref()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Error::LeaseLost { silence: self.age() }),
            Err(error) => {
                // It may still be under way. If that can't be prevented either, the lease stays and says so.
                if intent.prevent(self.link).is_err() {
                    self.stays.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Removes an object, unless the lease is lost.
    pub(crate) fn remove(&self, key: &str) -> Result<(), Error> {
        for _ in 0..TAKEOVER_TRIES_MAX {
            self.keep()?;
            if self.link.delete_if(key, &|| self.age() < RENEWAL_AGE)? {
                return Ok(());
            }
        }
        Err(Error::LeaseLost { silence: self.age() })
    }

    fn age(&self) -> Duration {
        (self.clock)().since(Timestamp::from_unix_nanos(self.renewed_at.load(Ordering::Relaxed)))
    }

    /// Gives the archive back.
    pub(crate) fn release(&self) {
        if !self.stays.load(Ordering::Relaxed) {
            // What was done is done; a lease that stays ends with this process.
            let _ = self.link.delete(&self.object);
        }
    }
}

fn held(Record { owner, purpose, taken_at, renewed_at, .. }: Record) -> Error {
    Error::Held {
        by: format!("process {} on {}", owner.process, owner.host),
        purpose,
        since: Timestamp::from_unix_nanos(taken_at),
        until: Timestamp::from_unix_nanos(renewed_at) + LEASE_TIME,
    }
}
