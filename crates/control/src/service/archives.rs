//! What archives of checkpoints hold, noted for bills as the jobs that push to them tell of it. An archive is charged to the last job
//! that pushed to it.

use std::collections::BTreeMap;

use gangline_base::{Bytes, JobId, Timestamp};
use gangline_store::codec::{Noted, StorageClassV1, StorageMeasured};
use gangline_store::db;
use gangline_store::ports::Queries as _;

use super::actor::Actor;
use super::batch::Batch;
use super::storage::{owner_of, price_of};

/// What is noted of each archive, by its address.
pub(super) type Archives = BTreeMap<String, StorageMeasured>;

impl Actor {
    /// Restores what the journal has noted.
    pub(super) fn recall_archives(&mut self) -> Result<(), db::Error> {
        let noted = self.reader.archives()?;
        self.archives = noted.into_iter().map(|(_, measured)| (measured.folder.clone(), measured)).collect();
        Ok(())
    }

    /// Notes what a job's archives hold, if it has changed.
    pub(super) fn take_archives(
        &mut self,
        now: Timestamp,
        job: JobId,
        stored: BTreeMap<String, Bytes>,
        batch: &mut Batch,
    ) {
        let Some(owner) = self.records.get(&job).map(owner_of).filter(|_| self.journal.poison().is_none()) else {
            return;
        };
        // Names without a scheme are those of folders that the control plane measures itself.
        for (address, bytes) in stored.into_iter().filter(|(address, _)| address.contains("://")) {
            let price = self.options.billing.storage.price_of_address(&address).map(price_of).map(Into::into);
            let class = StorageClassV1::Archives;
            let measured = StorageMeasured { folder: address.clone(), class, bytes, owner: Some(owner.clone()), price };
            if self.archives.get(&address) != Some(&measured) {
                self.note_for_bills(now, Noted::Storage(measured.clone()), batch);
                self.archives.insert(address, measured);
            }
        }
    }
}
