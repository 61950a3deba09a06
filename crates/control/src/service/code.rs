//! Which copies of code live jobs need, and the removal of the others by the retention thread.

use std::collections::BTreeSet;

use gangline_base::Timestamp;
use tracing::info;

use super::actor::Actor;
use super::retention::{Ended, Outcome, Surroundings, Sweeper};
use crate::code;

/// Live jobs and the copies in which they run.
pub(super) type CodeInUse = BTreeSet<(String, String)>;

impl Actor {
    /// Returns the live jobs that run in copies.
    pub(super) fn code_in_use(&self) -> CodeInUse {
        let of = |job: &gangline_orchestration::Job| {
            Some((job.id.to_string(), job.spec.program.code.as_ref()?.tree.clone()))
        };
        self.engine.jobs().filter_map(of).collect()
    }
}

impl Sweeper {
    /// Removes the copies of code that no job needs.
    pub(super) fn prune_code(
        &self,
        now: Timestamp,
        service: &mut dyn Surroundings,
        outcome: &mut Outcome,
    ) -> Result<(), Ended> {
        match code::prune(&self.folder, &service.code_in_use()?, now) {
            Ok(pruned) if pruned != code::Pruned::default() => {
                let code::Pruned { unpacked, copies, contents } = pruned;
                info!(unpacked, copies, contents, "removed copies of code");
            }
            Ok(_) => {}
            Err(error) => {
                outcome.failure.get_or_insert(format!("copies of code: {error}"));
            }
        }
        Ok(())
    }
}
