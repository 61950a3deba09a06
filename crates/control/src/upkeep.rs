//! What tracking needs done from time to time, on a thread of its own: the runs of ended jobs end, and holds of checkpoints that
//! no model version refers to are released.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::job_runs::JobRuns;
use crate::registry::Registry;

/// How often ended jobs are looked for.
const EVERY: Duration = Duration::from_secs(1);
/// Of so many looks one also releases holds.
const LOOKS_PER_RELEASE: u64 = 60;

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
            for look in 0.. {
                runs.end_ended();
                if look % LOOKS_PER_RELEASE == 0 {
                    registry.release_unneeded();
                }
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
