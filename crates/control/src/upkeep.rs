//! What tracking needs done from time to time, on a thread of its own: the runs of ended jobs end, and pins of checkpoints that
//! no model version refers to are removed.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::job_runs::JobRuns;
use crate::registry::Registry;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// The thread. It stops when this is dropped, after a last look.
#[derive(Debug)]
pub struct Upkeep {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start(runs: JobRuns, registry: Registry) -> std::io::Result<Upkeep> {
        let (stop, stopped) = sync_channel::<()>(0);
        let work = move || {
            let mut failed = BTreeSet::new();
            loop {
                runs.end_ended();
                registry.remove_unneeded_pins(&mut failed);
                if !matches!(stopped.recv_timeout(EVERY), Err(RecvTimeoutError::Timeout)) {
                    break;
                }
            }
            runs.end_ended();
        };
        let thread = std::thread::Builder::new().name("tracking-upkeep".into()).spawn(work)?;
        Ok(Upkeep { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("tracking's upkeep panicked");
        }
    }
}
