//! Creates an archive's keys, wraps them for another wrapping key, and lists them.
//!
//! A rotation first wraps every data key for the new key too, reads all of that back, and only then removes
//! the old wraps. The old key opens the archive until the first old wrap is removed, and the new one does
//! from before that on. After an interruption, run the rotation again. It doesn't lock out an attacker who
//! has kept the old key and a copy of the old `keys/`: data that such an attacker must not read has to be
//! encrypted with a new data key.

use gangline_base::{Bytes, Timestamp};
use gangline_objects::Link;
use serde::Serialize;

use super::error::KeyError;
use super::record::{self, Opened, Record, read_all};
use super::secret::{KeyId, Secret, WrappingKey};
use super::{HEAD_BYTES, Keys, Vault, is_empty};
use crate::archive::Error;
use crate::archive::catalog::catalog_key;
use crate::archive::known::{list_catalogs, read_catalog};
use crate::archive::lease::Lease;

/// The changes that a rotation makes.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    /// The new wrapping key; none to keep the current one.
    pub new_key: Option<WrappingKey>,
    /// Whether later pushes are encrypted with a new data key.
    pub with_new_data_key: bool,
}

/// The result of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rotated {
    /// Data keys that are now wrapped for the new key.
    pub rewrapped: usize,
    /// The wrapping key that opens the archive now.
    pub wrapping_key: KeyId,
    /// The data key that encrypts new objects.
    pub data_key: KeyId,
}

/// The public description of a data key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyShown {
    /// The key's id.
    pub id: KeyId,
    /// The archive's first is number 1.
    pub number: u64,
    /// When it was made.
    pub made_at: Timestamp,
    /// The cipher.
    pub algorithm: String,
    /// The ids of the keys that it is wrapped for: one, except during a rotation.
    pub wrapped_for: Vec<KeyId>,
    /// How often the archive's keys had been rotated when it was last wrapped, counted from 1.
    pub generation: u64,
    /// Whether it encrypts new objects.
    pub is_current: bool,
    /// The number of catalogs that it encrypts.
    pub catalogs: usize,
    /// The packs that it encrypts and catalogs name, and their bytes; none if no wrapping key was given.
    pub packs: Option<(usize, Bytes)>,
}

/// Makes the first data key of an empty archive.
pub(crate) fn init(lease: &Lease<'_>, key: &WrappingKey, now: Timestamp) -> Result<KeyId, Error> {
    let link = lease.link;
    let taken = |what| Err(KeyError::Taken { what }.into());
    if !record::list(link)?.is_empty() {
        return taken("keys");
    }
    if !is_empty(link)? {
        return taken("checkpoints that aren't encrypted");
    }
    let opened = Opened { data: Secret::random()?, naming: Secret::random()?, generation: 1 };
    let mut record = Record::new(KeyId::random()?, KeyId::random()?, 1, now.unix_nanos());
    record.wrap(key, &opened)?;
    record.put(lease)?;
    Ok(record.id)
}

/// Wraps all keys for a new one, or makes a new data key, or both.
pub(crate) fn rotate(
    lease: &Lease<'_>,
    old: &WrappingKey,
    change: &Rotation,
    now: Timestamp,
) -> Result<Rotated, Error> {
    let new = change.new_key.as_ref().unwrap_or(old);
    let is_same = new.id() == old.id();
    if is_same && !change.with_new_data_key {
        return Err(KeyError::Unchanged.into());
    }
    let mut records = read_all(lease.link)?;
    if records.is_empty() {
        return Err(KeyError::Plain.into());
    }
    let rewrapped = if is_same { 0 } else { rewrap(lease, &mut records, old, new)? };
    Keys::open(&records, new)?;
    if change.with_new_data_key {
        let made = following(&records, new, now)?;
        made.put(lease)?;
        records.push(made);
    }
    let data_key = records.last().expect("there was one").id;
    Ok(Rotated { rewrapped, wrapping_key: new.id(), data_key })
}

/// Wraps the keys for `new` too, and once all are wrapped, removes all other wraps. Returns the number of
/// keys wrapped.
fn rewrap(lease: &Lease<'_>, records: &mut [Record], old: &WrappingKey, new: &WrappingKey) -> Result<usize, Error> {
    let opened: Vec<(Opened, bool)> =
        records.iter().map(|record| unwrap_by(record, old, new)).collect::<Result<_, _>>()?;
    let of =
        |is_new: bool| opened.iter().filter(move |(_, found)| *found == is_new).map(|(opened, _)| opened.generation);
    let generation = of(false).map(|old| old + 1).chain(of(true)).max().unwrap_or(1);
    let mut rewrapped = 0;
    for (record, (secrets, is_new)) in records.iter_mut().zip(opened) {
        if !is_new || secrets.generation != generation {
            record.wrap(new, &Opened { generation, ..secrets })?;
            record.put(lease)?;
            rewrapped += 1;
        }
    }
    Keys::open(&read_all(lease.link)?, new)?;
    for record in records.iter_mut().filter(|record| record.wraps.len() > 1) {
        record.wraps.retain(|wrap| wrap.key == new.id());
        record.put(lease)?;
    }
    Ok(rewrapped)
}

/// Opens a key with the new wrapping key if an earlier rotation got that far, otherwise with the old one.
/// Also returns which key opened it.
fn unwrap_by(record: &Record, old: &WrappingKey, new: &WrappingKey) -> Result<(Opened, bool), KeyError> {
    if let Some(opened) = record.open(new)? {
        return Ok((opened, true));
    }
    let wrong = || KeyError::Wrong { given: old.id(), wanted: record.wrapped_for() };
    Ok((record.open(old)?.ok_or_else(wrong)?, false))
}

/// Returns a new data key for an archive that has these.
fn following(records: &[Record], key: &WrappingKey, now: Timestamp) -> Result<Record, KeyError> {
    let newest = records.last().ok_or(KeyError::Plain)?;
    let Opened { naming, generation, .. } = newest.open(key)?.ok_or(KeyError::Plain)?;
    let mut record = Record::new(newest.archive, KeyId::random()?, newest.number + 1, now.unix_nanos());
    record.wrap(key, &Opened { data: Secret::random()?, naming, generation })?;
    Ok(record)
}

/// Returns the archive's data keys and what they encrypt, oldest first; empty for a plain archive.
pub(crate) fn show(link: &Link, key: Option<&WrappingKey>) -> Result<Vec<KeyShown>, Error> {
    let records = read_all(link)?;
    let current = records.last().map(|newest| newest.id);
    let shown = records.iter().map(|record| KeyShown {
        id: record.id,
        number: record.number,
        made_at: Timestamp::from_unix_nanos(record.made_at),
        algorithm: record.algorithm.clone(),
        wrapped_for: record.wrapped_for(),
        generation: record.wraps.iter().map(|wrap| wrap.generation).max().unwrap_or(0),
        is_current: Some(record.id) == current,
        catalogs: 0,
        packs: key.map(|_| (0, Bytes(0))),
    });
    let mut shown: Vec<KeyShown> = shown.collect();
    let listed = list_catalogs(link)?;
    for (step, bytes) in &listed {
        let head = link.get(&catalog_key(*step), 0..(*bytes).min(HEAD_BYTES as u64))?;
        let id = Vault::key_of_catalog(&head);
        shown.iter_mut().filter(|one| Some(one.id) == id).for_each(|one| one.catalogs += 1);
    }
    if let Some(vault) = key.map(|key| Vault::open(link, Some(key))).transpose()?.flatten() {
        count_packs(link, &vault, &listed, &mut shown)?;
    }
    Ok(shown)
}

fn count_packs(link: &Link, vault: &Vault, listed: &[(u64, u64)], shown: &mut [KeyShown]) -> Result<(), Error> {
    let mut packs = std::collections::BTreeSet::new();
    for one in listed {
        packs.extend(read_catalog(link, vault, *one)?.packs);
    }
    for pack in packs {
        let one = shown.iter_mut().find(|one| Some(one.id) == pack.key);
        if let Some((count, bytes)) = one.and_then(|one| one.packs.as_mut()) {
            *count += 1;
            *bytes = *bytes + Bytes(pack.bytes);
        }
    }
    Ok(())
}
