//! What was stored in a period, as part of its bill.

use std::path::Path;

use gangline_accounting::bill::{Biller, Period};
use gangline_base::Timestamp;
use gangline_store::codec::StorageMeasured;
use gangline_store::db;
use gangline_store::model::JobRecord;
use gangline_store::ports::Queries as _;

use super::super::Views;
use super::wire::{Jobs, Whose};
use super::{By, Key, PLATFORM, Rate, RowKey};
use crate::folders::checkpoint_folder;

/// The group of stored data in reports whose groups it isn't in.
const STORAGE: &str = "(storage)";

/// Measurements in order, each of which counts until the next one of its folder.
#[derive(Default)]
struct Stretches {
    last: Option<(Timestamp, StorageMeasured)>,
}

impl Stretches {
    /// Takes in the next measurement, and passes the one before to `each` with its time.
    fn take(
        &mut self,
        next: Option<(Timestamp, StorageMeasured)>,
        end: Timestamp,
        each: &mut impl FnMut(&StorageMeasured, (Timestamp, Timestamp)),
    ) {
        if let Some((from, measured)) = self.last.take() {
            let same = next.as_ref().filter(|(_, next)| next.folder == measured.folder);
            each(&measured, (from, same.map_or(end, |(at, _)| *at)));
        }
        self.last = next;
    }
}

impl Views {
    /// Passes everything that was stored in a period to `each`, with its time.
    pub(super) fn stored(
        &self,
        period: Period,
        mut each: impl FnMut(&StorageMeasured, (Timestamp, Timestamp)),
    ) -> Result<(), db::Error> {
        let mut stretches = Stretches::default();
        self.reader.storage((period.from, period.to), &mut |at, measured| {
            stretches.take(Some((at, measured)), period.to, &mut each);
        })?;
        stretches.take(None, period.to, &mut each);
        Ok(())
    }

    /// Adds what a job's checkpoints took until `now`, its archives included, to the bill of its attempts, as a group of no attempt.
    pub(super) fn keep_checkpoints(
        &self,
        record: &JobRecord,
        biller: &mut Biller<Option<u32>>,
        now: Timestamp,
    ) -> Result<(), db::Error> {
        let folder = checkpoint_folder(&self.folder, record.id, record.checkpoint_path.as_deref());
        let archives = self.reader.archives_of(record.id)?;
        let mut each = |measured: &StorageMeasured, time| {
            if measured.owner.as_ref().is_some_and(|owner| owner.job == record.id) {
                biller.keep(None, time, &measured.stored());
            }
        };
        for folder in archives.into_iter().chain([Path::to_string_lossy(&folder).into_owned()]) {
            let mut stretches = Stretches::default();
            for found in self.reader.storage_in(&folder)? {
                stretches.take(Some(found), now, &mut each);
            }
            stretches.take(None, now, &mut each);
        }
        Ok(())
    }
}

/// Returns the group of stored data in a report.
pub(super) fn group_of(measured: &StorageMeasured, by: By) -> Key {
    let Some(owner) = &measured.owner else { return Key::Named(PLATFORM.to_owned()) };
    match by {
        By::Queue => Key::Named(owner.queue.clone()),
        By::User => Key::Named(owner.user.clone()),
        By::Name => Key::Named(owner.name.clone()),
        By::Job => Key::OfJob(owner.job),
        By::Node | By::Accelerator => Key::Named(STORAGE.to_owned()),
    }
}

/// Adds stored data to the rows of an export.
pub(super) fn add_row(
    measured: &StorageMeasured,
    time: (Timestamp, Timestamp),
    biller: &mut Biller<RowKey>,
    jobs: &mut Jobs,
) {
    let stored = measured.stored();
    if let Some(owner) = &measured.owner {
        jobs.entry(owner.job).or_insert_with(|| Whose::of(owner));
    }
    let job = measured.owner.as_ref().map(|owner| owner.job);
    biller.keep(RowKey { resource: measured.folder.clone(), job, rate: Rate::Storage(stored.price) }, time, &stored);
}
