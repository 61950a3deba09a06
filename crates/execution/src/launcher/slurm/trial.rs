//! Asks Slurm, before anything is submitted, whether it takes jobs with the configured account, quality of service and further
//! arguments.

use std::collections::BTreeSet;

use super::SlurmLauncher;
use super::script::{JobOptions, account};
use crate::launcher::LaunchError;

/// Parts of Slurm's messages for what no later moment makes good (slurm_errno.c and sbatch's opt.c, 22.05 to 25.05). Others,
/// such as nodes that are down, may pass.
const REFUSALS: [&str; 9] = [
    "invalid account",
    "invalid qos",
    "invalid partition",
    "invalid license",
    "invalid wckey",
    "invalid feature",
    "not permitted to use",
    "reservation is invalid",
    "unrecognized option",
];

impl SlurmLauncher {
    /// Has Slurm judge a job of one node with the configured arguments, which it doesn't keep.
    ///
    /// # Errors
    /// [`LaunchError::Refused`] if Slurm will never take such a job, [`LaunchError::Unavailable`] if it doesn't answer.
    pub fn try_options(&self) -> Result<(), LaunchError> {
        let mut tried = BTreeSet::new();
        for (queue, options) in self.options.all_jobs() {
            if tried.insert(options) {
                self.try_one(options).map_err(|error| of_queue(error, queue))?;
            }
        }
        Ok(())
    }

    fn try_one(&self, options: &JobOptions) -> Result<(), LaunchError> {
        let mut arguments = ["--test-only", "--nodes=1", "--time=1", "--output=/dev/null"].map(str::to_owned).to_vec();
        arguments.extend(account(options));
        arguments.push("--wrap=true".to_owned());
        match self.programs.run("sbatch", &arguments) {
            Err(LaunchError::Refused { message, .. }) if !is_for_ever(&message) => {
                tracing::info!(message, "Slurm would not start a job now");
                Ok(())
            }
            ran => ran.map(drop),
        }
    }
}

/// Names the queue whose account, QOS or arguments Slurm refuses.
fn of_queue(error: LaunchError, queue: Option<&str>) -> LaunchError {
    match (error, queue) {
        (LaunchError::Refused { system, message }, Some(queue)) => {
            LaunchError::Refused { system, message: format!("{message} (of the queue {queue})") }
        }
        (error, _) => error,
    }
}

fn is_for_ever(message: &str) -> bool {
    let message = message.to_lowercase();
    REFUSALS.iter().any(|known| message.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_never_will() {
        for message in [
            "sbatch: allocation failure: Invalid account or account/partition combination specified",
            "sbatch: allocation failure: Invalid qos specification",
            "sbatch: allocation failure: Requested reservation is invalid",
            "sbatch: User's group not permitted to use this partition",
            "sbatch: unrecognized option '--nonsense'",
        ] {
            assert!(is_for_ever(message), "{message}");
        }
        for message in [
            "sbatch: allocation failure: Required node not available (down, drained or reserved)",
            "sbatch: allocation failure: Requested node configuration is not available",
            "sbatch: allocation failure: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        ] {
            assert!(!is_for_ever(message), "{message}");
        }
    }
}
