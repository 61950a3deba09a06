//! Curves of jobs that have ended are packed soon after, and those that an earlier release left so by and by: read and packed by the
//! sweeper's thread, stored by the control thread in the place of their rows, a few at a time.

use gangline_base::JobId;

use super::retention::{Ended, Surroundings, Sweeper};
use crate::model::{Removal, SAMPLES_PER_REMOVAL_MAX, blocks_of_rows, is_over, next_unpacked, sampled_attempts};

impl Sweeper {
    /// Packs the curves of jobs that have ended; what is packed already isn't looked at again.
    pub(super) fn pack(&self, service: &mut dyn Surroundings) -> Result<(), Ended> {
        let mut after = JobId(0);
        while let Some(job) = self.reader.read(|transaction| next_unpacked(transaction, after))? {
            after = job;
            if !self.reader.read(|transaction| is_over(transaction, job))? {
                continue;
            }
            for (attempt, _) in self.reader.read(|transaction| sampled_attempts(transaction, job))? {
                self.pack_attempt((job, attempt), service)?;
            }
        }
        Ok(())
    }

    fn pack_attempt(&self, (job, attempt): (JobId, u32), service: &mut dyn Surroundings) -> Result<(), Ended> {
        let mut after = Some(-1);
        while let Some(from) = after {
            let (blocks, last) = self
                .reader
                .read(|transaction| blocks_of_rows(transaction, (job, attempt), from, SAMPLES_PER_REMOVAL_MAX))?;
            after = last;
            if !blocks.is_empty() {
                service.remove(vec![Removal::Pack { job, attempt, blocks }])?;
            }
        }
        Ok(())
    }
}
