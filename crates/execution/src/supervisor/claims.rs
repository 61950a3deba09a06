//! A rank's word that a checkpoint is durable, looked at before it counts: if the job's checkpoint folder is one of Gangline's
//! stores, it has to have that checkpoint. What a script saves in its own way can't be looked at and is taken as said.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::Step;
use gangline_storage::{Claim, look_for};
use tokio::sync::{Semaphore, oneshot};
use tracing::warn;

use crate::protocol::SupervisorSpec;
use crate::rank_protocol::CheckpointSaved;

/// Pauses before the second and later looks: a shared file system may show a commit late.
const PAUSES: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1_500)];
/// The longest one look may take; a file system that hangs longer confirms nothing.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Looks under way at a time: those that hang keep their thread.
const LOOKS_MAX: usize = 4;

/// Looks at claims. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    folder: Option<PathBuf>,
    places: Arc<Semaphore>,
}

impl Claims {
    /// About the job's checkpoint folder.
    pub(super) fn of(spec: &SupervisorSpec) -> Claims {
        Claims { folder: spec.checkpoint_dir.clone(), places: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }

    /// Whether a claim counts.
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

    /// On a thread of its own, which nobody waits for at the end: it may hang in the file system for ever.
    async fn look(&self, step: Step) -> Option<Claim> {
        let Some(folder) = self.folder.clone() else { return Some(Claim::NoStore) };
        let place = tokio::time::timeout(LOOK_MAX, Arc::clone(&self.places).acquire_owned()).await.ok()?.ok()?;
        let (answer, answered) = oneshot::channel();
        let look = move || {
            // Nobody may wait for it any more.
            let _ =
                answer.send(look_for(&folder, step).inspect_err(|error| warn!(%error, "a claim can't be looked at")));
            drop(place);
        };
        std::thread::Builder::new().name("claim".to_owned()).spawn(look).ok()?;
        tokio::time::timeout(LOOK_MAX, answered).await.ok()?.ok()?.ok()
    }
}
