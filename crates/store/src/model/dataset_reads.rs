//! What a job asked for of datasets, over all its attempts.

use std::collections::BTreeMap;

use super::record::{AttemptRecord, JobRecord, ShareRecord};
use crate::reported::DatasetReadsRecord;

/// The most datasets of a job that are counted by themselves; its supervisors report fewer each.
const DATASETS_MAX: usize = 256;

impl JobRecord {
    /// Returns what the job has asked for of each dataset, by its address.
    #[must_use]
    pub fn dataset_reads(&self) -> BTreeMap<String, DatasetReadsRecord> {
        let mut sums = self.dataset_reads_before.clone();
        self.attempts.iter().for_each(|attempt| add(&mut sums, attempt));
        sums
    }

    /// Keeps the counts of the oldest attempts, which are about to leave the document.
    pub(super) fn keep_reads_of(&mut self, oldest: usize) {
        let leaving = self.attempts.iter().take(oldest);
        leaving.for_each(|attempt| add(&mut self.dataset_reads_before, attempt));
    }
}

fn add(sums: &mut BTreeMap<String, DatasetReadsRecord>, attempt: &AttemptRecord) {
    for (address, reads) in attempt.shares.iter().flat_map(ShareRecord::dataset_reads) {
        if sums.len() >= DATASETS_MAX && !sums.contains_key(address) {
            continue;
        }
        let sum = sums.entry(address.clone()).or_default();
        *sum = sum.and(*reads);
    }
}
