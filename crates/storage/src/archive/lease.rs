//! The lease of an archive: one program at a time changes it. A lease is an object that names its owner and
//! its time.
//!
//! Taking a lease needs no conditional writes, which not all S3-compatible servers support. A program lists
//! the leases, puts its own under a name of its own, and lists again; if it then finds another's, it removes
//! its own and gives up. Of two programs that start at the same time, the one that puts later finds the
//! other's lease, whatever the order otherwise (the flag principle: Herlihy and Shavit, "The Art of
//! Multiprocessor Programming", section 1.2). This relies on a guarantee of folders and S3: an object is
//! listed as soon as it is put.
//!
//! The owner renews its lease while it works. A lease expires when its owner's process is known to have ended
//! (on this machine), or [`LEASE_TIME`] after the last renewal; the next program takes it over. An owner that
//! was suspended for so long notices before it publishes or removes anything, since it checks its own lease
//! first; where conditions are kept (`fence`), publishing fails even if the owner was suspended after that
//! check. Removals are requests that expire soon after the check, by the server's clock. So the clocks of
//! machines that share an archive may differ by as much as [`LEASE_TIME`] is longer than [`SILENCE_MAX`].

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_base::Timestamp;
use gangline_objects::{Link, Object, State, Tag};
use serde::{Deserialize, Serialize};

use super::Error;
use super::fence::Intent;
use super::vault::KeyId;
use crate::Flaw;
use crate::manifest::{seal, unseal};
use crate::options::Clock;

const MAGIC: &str = "gangline-archive-lease";
/// The format version written, and the newest one read.
const VERSION: u32 = 1;
/// The time after which a lease expires unless it is renewed.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(30 * 60);
/// The age at which a lease is renewed.
pub(crate) const RENEWAL_AGE: Duration = Duration::from_secs(4 * 60);
/// An owner that hasn't renewed its lease for this long treats it as lost.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);
/// The most bytes of a lease.
const LEASE_BYTES_MAX: u64 = 4 << 10;
/// The most leases that are examined; there is more than one only after crashes.
const LEASES_MAX: usize = 1_000;
/// How often a takeover is tried if the lease changes meanwhile.
const TAKEOVER_TRIES_MAX: usize = 5;

/// A lease on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    magic: String,
    version: u32,
    owner: Owner,
    /// The owner's operation, in words.
    purpose: String,
    /// When it was taken, in nanoseconds since the Unix epoch.
    taken_at: u64,
    /// When it was renewed, in nanoseconds since the Unix epoch; 0 once another program has taken it over.
    renewed_at: u64,
    /// The change that its owner is about to make, or made last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    intent: Option<Intent>,
}

/// Parses a lease's text.
fn parse(text: &[u8]) -> Result<Record, Flaw> {
    unseal(text, MAGIC, VERSION)
}

/// For fuzzing: reports whether a text is a lease.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_lease(text: &[u8]) -> bool {
    parse(text).is_ok()
}

/// Identifies a process across machines and restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// The machine's name.
    host: String,
    /// The machine's boot and process namespace; empty if unknown.
    machine: String,
    process: u32,
    /// When the process began, in ticks since boot: process ids are reused.
    began: String,
}

impl Owner {
    /// Returns this process.
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

    /// Reports whether the process was on `here`'s machine and has ended.
    fn is_gone(&self, here: &Owner) -> bool {
        !here.machine.is_empty() && self.machine == here.machine && began(self.process).as_ref() != Some(&self.began)
    }
}

/// Returns when a process of this machine began; none if there is no such process. It is the 22nd field of
/// the process's status; the second field may contain spaces and ends with the last parenthesis (proc(5)).
fn began(process: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    status.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// A lease that this process holds.
pub(crate) struct Lease<'a> {
    pub(crate) link: &'a Link,
    clock: &'a Clock,
    object: String,
    record: Record,
    renewed_at: AtomicU64,
    /// The state of its object, and the intent in it; none where conditions aren't kept.
    fence: Option<Mutex<(Option<Tag>, Option<Intent>)>>,
    /// Whether the lease must stay when its owner is done: the change in its intent may still be under way.
    stays: AtomicBool,
}

impl<'a> Lease<'a> {
    /// Takes the archive under `name`, which is new or was used by this caller before.
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
        let probe = format!("probes/{}", KeyId::random()?);
        lease.fence = link.keeps_conditions(&probe)?.then(Mutex::default);
        lease.put_first()?;
        let taken = lease.look(now).and_then(|_| over.iter().try_for_each(|object| lease.take_over(object, now)));
        if let Err(held) = taken {
            lease.release();
            return Err(held);
        }
        Ok(lease)
    }

    /// Puts the lease. A lease of the same name from an earlier try may still have a change under way.
    fn put_first(&self) -> Result<(), Error> {
        let text = seal(&self.record);
        let Some(fence) = &self.fence else { return Ok(self.link.put(&self.object, &text)?) };
        let mut state = self.link.state(&self.object)?;
        if let Some(State { bytes, .. }) = state {
            let left = self.read(&Object { key: self.object.clone(), bytes, modified: Timestamp::EPOCH, tag: None })?;
            left.and_then(|left| left.intent).map_or(Ok(()), |intent| intent.prevent(self.link))?;
            state = self.link.state(&self.object)?;
        }
        let tag = self.link.put_if(&self.object, &text, state.as_ref().map(|state| &state.tag))?;
        let tag = tag.ok_or(Error::LeaseLost { silence: Duration::ZERO })?;
        *fence.lock().unwrap_or_else(PoisonError::into_inner) = (Some(tag), None);
        Ok(())
    }

    /// Removes an expired lease, once its owner's pending change can no longer succeed.
    fn take_over(&self, object: &str, now: Timestamp) -> Result<(), Error> {
        if self.fence.is_none() {
            return Ok(self.link.delete(object)?);
        }
        for _ in 0..TAKEOVER_TRIES_MAX {
            let Some(State { tag, bytes }) = self.link.state(object)? else { return Ok(()) };
            let listed = Object { key: object.to_owned(), bytes, modified: Timestamp::EPOCH, tag: None };
            let Some(record) = self.read(&listed)? else { return Ok(()) };
            if self.counts(&record, now) {
                return Err(held(record));
            }
            let over = Record { renewed_at: 0, ..record };
            // Until this succeeds, the owner could still announce another change.
            if self.link.put_if(object, &seal(&over), Some(&tag))?.is_some() {
                over.intent.map_or(Ok(()), |intent| intent.prevent(self.link))?;
                return Ok(self.link.delete(object)?);
            }
        }
        Err(held(self.record.clone()))
    }

    /// Returns the expired leases; an error if another program holds a valid one.
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

    /// Returns a lease's content; none if the lease is gone.
    fn read(&self, object: &Object) -> Result<Option<Record>, Error> {
        let refused = |flaw| Error::corrupt(&object.key, flaw);
        if object.bytes > LEASE_BYTES_MAX {
            return Err(refused(Flaw::Malformed { what: "it is larger than 4 KiB" }));
        }
        match self.link.get(&object.key, 0..object.bytes) {
            Err(gangline_objects::Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(text) => parse(&text).map(Some).map_err(refused),
        }
    }

    fn counts(&self, other: &Record, now: Timestamp) -> bool {
        let age = now.since(Timestamp::from_unix_nanos(other.renewed_at));
        !other.owner.is_gone(&self.record.owner) && age < LEASE_TIME
    }

    /// Checks and renews the lease once it is due; does nothing before.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        if self.age() < RENEWAL_AGE { Ok(()) } else { self.check() }
    }

    /// Checks that the lease still exists, and renews it if it is due.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let age = self.age();
        let is_there = self.link.list("leases/")?.iter().any(|object| object.key == self.object);
        if !is_there || age > SILENCE_MAX {
            return Err(Error::LeaseLost { silence: age });
        }
        if age >= RENEWAL_AGE { self.renew(None) } else { Ok(()) }
    }

    /// Renews the lease, with a new intent or with the previous one.
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

    /// Changes an object that readers see, completely or not at all. A program that takes the lease over
    /// comes before or after the change.
    pub(crate) fn commit(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        if self.fence.is_none() {
            return Ok(self.link.put(key, bytes)?);
        }
        let from = self.link.state(key)?.map(|state| state.tag);
        let intent = Intent { key: key.to_owned(), from };
        self.renew(Some(intent.clone()))?;
        match self.link.put_if(key, bytes, intent.from.as_ref()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Error::LeaseLost { silence: self.age() }),
            Err(error) => {
                // The change may still be under way. If it can't be prevented, the lease stays and names it.
                if intent.prevent(self.link).is_err() {
                    self.stays.store(true, Ordering::Relaxed);
                }
                Err(error.into())
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

    /// Releases the lease.
    pub(crate) fn release(&self) {
        if !self.stays.load(Ordering::Relaxed) {
            // The work is complete; a lease that stays expires with this process.
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
