//! What tracking needs done from time to time, on threads of their own: the runs of ended jobs end, pins of checkpoints that no
//! model version refers to are removed, and webhooks' messages are posted.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::job_runs::JobRuns;
use crate::registry::Registry;
use crate::webhooks::Webhooks;

/// How often each thread looks.
const EVERY: Duration = Duration::from_secs(1);

/// The threads. They stop when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    is_stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start(runs: JobRuns, registry: Registry, webhooks: Webhooks) -> io::Result<Upkeep> {
        let mut upkeep = Upkeep { is_stopping: Arc::default(), threads: Vec::new() };
        let mut failed = BTreeSet::new();
        upkeep.every_second("tracking-upkeep", move |_| {
            runs.end_ended();
            registry.remove_unneeded_pins(&mut failed);
        })?;
        upkeep
            .every_second("webhooks", move |is_stopping| webhooks.post_due(|| is_stopping.load(Ordering::Relaxed)))?;
        Ok(upkeep)
    }

    /// Does something again and again, and once more before the end.
    fn every_second(&mut self, name: &str, mut work: impl FnMut(&AtomicBool) + Send + 'static) -> io::Result<()> {
        let is_stopping = Arc::clone(&self.is_stopping);
        let repeat = move || {
            loop {
                let is_last = is_stopping.load(Ordering::Relaxed);
                work(&is_stopping);
                if is_last {
                    return;
                }
                std::thread::park_timeout(EVERY);
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(repeat)?);
        Ok(())
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("tracking's upkeep panicked");
            }
        }
    }
}
