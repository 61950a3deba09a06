//! Packing of samples: the sweeper's thread reads and packs the curves of ended jobs soon after their end,
//! and those that an earlier release left unpacked little by little. The control thread stores the packed
//! blocks in place of the rows, a few at a time.

use gangline_base::JobId;

use super::retention::{Ended, Surroundings, Sweeper};
use gangline_store::model::Removal;
use gangline_store::ports::{Queries as _, Series as _};

impl Sweeper {
    /// Packs the curves of ended jobs that aren't packed yet.
    pub(super) fn pack(&self, service: &mut dyn Surroundings) -> Result<(), Ended> {
        let mut after = JobId(0);
        while let Some(job) = self.reader.next_unpacked(after)? {
            after = job;
            if !self.reader.is_over(job)? {
                continue;
            }
            for (attempt, _) in self.reader.sampled_attempts(job)? {
                self.pack_attempt((job, attempt), service)?;
            }
        }
        Ok(())
    }

    fn pack_attempt(&self, (job, attempt): (JobId, u32), service: &mut dyn Surroundings) -> Result<(), Ended> {
        let mut after = Some(-1);
        while let Some(from) = after {
            let (blocks, last) = self.reader.blocks_of_rows((job, attempt), from)?;
            after = last;
            if !blocks.is_empty() {
                service.remove(vec![Removal::Pack { job, attempt, blocks }])?;
            }
        }
        Ok(())
    }
}
