//! Removal of old checkpoints of jobs that ended long ago, where the configuration asks for it.

use gangline_base::with_causes;

use super::retention::{Ended, Outcome, Surroundings, Sweeper};
use crate::retention::{DueCheckpoints, keep_newest};
use gangline_store::model::Removal;

impl Sweeper {
    /// Removes all but the newest good checkpoint of each folder. The job's durable record notes the removal
    /// first. Returns false if some could not be removed.
    pub(super) fn remove_checkpoints(
        &self,
        due: &[DueCheckpoints],
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<bool, Ended> {
        let mut are_all = true;
        for DueCheckpoints { job, folder, because, .. } in due {
            service.remove(vec![Removal::Checkpoints { job: *job, because: because.clone() }])?;
            if !self.has_ended(*job)? {
                continue;
            }
            match keep_newest(folder) {
                Ok(removed) => outcome.checkpoints += removed as u64,
                Err(failure) => {
                    are_all = false;
                    outcome.failure.get_or_insert(format!("{job}, its checkpoints: {}", with_causes(&failure)));
                }
            }
        }
        Ok(are_all)
    }
}
