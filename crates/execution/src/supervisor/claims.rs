//! Verifies a rank's claim that a checkpoint is durable: if the job's checkpoint folder is one of Gangline's
//! stores, it must contain that checkpoint. Checkpoints that a script saves in its own format can't be
//! verified and are accepted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::Step;
use gangline_storage::{Claim, look_for};
use tokio::sync::{Semaphore, oneshot};
use tracing::warn;

use crate::protocol::SupervisorSpec;
use crate::rank_protocol::CheckpointSaved;

/// Pauses before the second and later attempts: a shared file system may show a commit late.
const PAUSES: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1_500)];
/// Maximum time of one attempt; a file system that hangs longer confirms nothing.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous attempts; those that hang keep their thread.
const LOOKS_MAX: usize = 4;

/// Verifies claims. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    folder: Option<PathBuf>,
    places: Arc<Semaphore>,
}

impl Claims {
    /// Verifies claims about the job's checkpoint folder.
    pub(super) fn of(spec: &SupervisorSpec) -> Claims {
        Claims { folder: spec.checkpoint_dir.clone(), places: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }

    /// Reports whether a claim counts.
    pub(super) async fn counts(&self, saved: CheckpointSaved) -> bool {
        let mut pauses = PAUSES.into_iter();
        loop {
            let found = self.look(saved.step).await;
            match (found, pauses.next()) {
                (Some(Claim::Durable | Claim::NoStore), _) => return true,
                (Some(Claim::Absent), Some(pause)) => tokio::time::sleep(pause).await,
                (Some(Claim::Absent), None) => {
                    warn!(
                        step = saved.step.0,
                        "a rank claims a checkpoint that the store doesn't have: it doesn't count"
                    );
                    return false;
                }
                (None, _) => {
                    warn!(step = saved.step.0, "a checkpoint can't be confirmed: its folder can't be read in time");
                    return false;
                }
            }
        }
    }

    /// Looks for the step's checkpoint on a separate thread that nobody waits for at the end, since it may
    /// hang in the file system for ever.
    async fn look(&self, step: Step) -> Option<Claim> {
        let Some(folder) = self.folder.clone() else { return Some(Claim::NoStore) };
        let place = tokio::time::timeout(LOOK_MAX, Arc::clone(&self.places).acquire_owned()).await.ok()?.ok()?;
        let (answer, answered) = oneshot::channel();
        let look = move || {
            // The receiver may have given up.
            let _ =
                answer.send(look_for(&folder, step).inspect_err(|error| warn!(%error, "a claim can't be looked at")));
            drop(place);
        };
        std::thread::Builder::new().name("claim".to_owned()).spawn(look).ok()?;
        tokio::time::timeout(LOOK_MAX, answered).await.ok()?.ok()?.ok()
    }
}
