//! What archives of checkpoints hold, noted for bills as the jobs that push to them tell of it. An archive is charged to the last job
//! that pushed to it.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{Bytes, JobId, NodeName, Timestamp};
use gangline_store::codec::{Noted, StorageClassV1, StorageMeasured, StorageOwner};
use gangline_store::db;
use gangline_store::ports::Queries as _;

use super::actor::Actor;
use super::batch::Batch;
use super::storage::{owner_of, price_of};

/// The least time between two notes of what a job says on a node, but for its last one: a program that nobody trusts says it.
const PAUSE: Duration = Duration::from_secs(10);

/// What is known of archives.
#[derive(Debug, Default)]
pub(super) struct Archives {
    /// What is noted of each, by its address.
    noted: BTreeMap<String, StorageMeasured>,
    /// The sizes that each node of a job reported last and that were taken in, and when. Two nodes may push to one archive, so a size
    /// is noted only if the node's own last report had another one.
    told: BTreeMap<(JobId, NodeName), (Timestamp, BTreeMap<String, Bytes>)>,
}

impl Archives {
    /// Forgets what a job's nodes said, whose attempt is over.
    pub(super) fn forget(&mut self, job: JobId) {
        self.told.retain(|(known, _), _| *known != job);
    }
}

impl Actor {
    /// Restores what the journal has noted, and notes it again where the price is another one now.
    pub(super) fn recall_archives(&mut self, now: Timestamp, batch: &mut Batch) -> Result<(), db::Error> {
        for (_, measured) in self.reader.archives()? {
            let StorageMeasured { folder, bytes, owner, .. } = measured.clone();
            self.archives.noted.insert(folder.clone(), measured);
            if let Some(owner) = owner {
                self.note_archive(now, (folder, bytes), owner, batch);
            }
        }
        Ok(())
    }

    /// Notes what a job's archives hold by what its programs on a node say, if that is new.
    pub(super) fn take_archives(
        &mut self,
        now: Timestamp,
        (job, node): (JobId, NodeName),
        (stored, is_last): (BTreeMap<String, Bytes>, bool),
        batch: &mut Batch,
    ) {
        let owner = self.records.get(&job).map(owner_of).filter(|_| self.journal.poison().is_none());
        let Some(owner) = owner.filter(|_| !stored.is_empty()) else { return };
        let told = self.archives.told.get(&(job, node.clone()));
        if told.is_some_and(|(at, known)| *known == stored || !is_last && now.since(*at) < PAUSE) {
            return;
        }
        let is_new = |address: &str, bytes: Bytes| told.is_none_or(|(_, known)| known.get(address) != Some(&bytes));
        // Names without a scheme are those of folders, which the control plane measures itself.
        let news = stored.iter().filter(|(address, bytes)| address.contains("://") && is_new(address, **bytes));
        let news: Vec<(String, Bytes)> = news.map(|(address, bytes)| (address.clone(), *bytes)).collect();
        self.archives.told.insert((job, node), (now, stored));
        news.into_iter().for_each(|held| self.note_archive(now, held, owner.clone(), batch));
    }

    fn note_archive(
        &mut self,
        now: Timestamp,
        (address, bytes): (String, Bytes),
        owner: StorageOwner,
        batch: &mut Batch,
    ) {
        let price = self.options.billing.storage.price_of_address(&address).map(price_of).map(Into::into);
        let class = StorageClassV1::Archives;
        let measured = StorageMeasured { folder: address.clone(), class, bytes, owner: Some(owner), price };
        if self.archives.noted.get(&address) != Some(&measured) {
            self.note_for_bills(now, Noted::Storage(measured.clone()), batch);
            self.archives.noted.insert(address, measured);
        }
    }
}
