//! Reads a source on a thread of its own, with a deadline.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::source::{SAMPLES_MAX, Sample, Source, SourceError};

/// Why there is nothing from a source now.
#[derive(Debug)]
pub enum Trouble {
    /// It doesn't answer, for so long by now.
    Hung(Duration),
    /// It answers with an error.
    Failed(SourceError),
    /// Its thread has panicked.
    Gone,
}

/// A source with a deadline. A read that hangs is given up and not begun again before it has returned, so that at most
/// one thread hangs for each source.
#[derive(Debug)]
pub struct WithDeadline {
    name: &'static str,
    deadline: Duration,
    requests: SyncSender<()>,
    answers: Receiver<Result<Vec<Sample>, SourceError>>,
    hung_since: Option<Instant>,
}

impl WithDeadline {
    /// Starts the thread, which makes the source by `make`.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn start<S: Source>(
        name: &'static str,
        deadline: Duration,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> io::Result<WithDeadline> {
        let (requests, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let work = move || {
            let mut source = make();
            while let Ok(()) = asked.recv() {
                let samples = source.read().map(|mut samples| {
                    samples.truncate(SAMPLES_MAX);
                    samples
                });
                if answer.send(samples).is_err() {
                    return;
                }
            }
        };
        Builder::new().name(name.to_ascii_lowercase()).spawn(work)?;
        Ok(WithDeadline { name, deadline, requests, answers, hung_since: None })
    }

    /// Returns the source's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Reads the source, for the deadline at most.
    ///
    /// # Errors
    /// [`Trouble`] if there is nothing.
    pub fn read(&mut self) -> Result<Vec<Sample>, Trouble> {
        if let Some(since) = self.hung_since {
            // What a late read returns is old: it says only that the source answers again.
            match self.answers.try_recv() {
                Ok(_) => self.hung_since = None,
                Err(_) => return Err(Trouble::Hung(since.elapsed())),
            }
        }
        let asked = Instant::now();
        if self.requests.send(()).is_err() {
            return Err(Trouble::Gone);
        }
        match self.answers.recv_timeout(self.deadline) {
            Ok(samples) => samples.map_err(Trouble::Failed),
            Err(RecvTimeoutError::Timeout) => {
                self.hung_since = Some(asked);
                Err(Trouble::Hung(asked.elapsed()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Trouble::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;
    use std::sync::mpsc::channel;

    use super::super::metric::metric;
    use super::*;

    /// Hangs in its first read until it is let go.
    struct Slow {
        until: Receiver<()>,
        reads: u64,
    }

    impl Source for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
            self.reads += 1;
            if self.reads == 1 {
                let _ = self.until.recv();
            }
            Ok(vec![Sample::counter(metric("host.oom_kills_total"), self.reads, 1.0)])
        }
    }

    #[test]
    fn a_hang_is_told_and_ends_when_the_source_answers_again() {
        let (go, until): (Sender<()>, _) = channel();
        let start = WithDeadline::start("slow", Duration::from_millis(20), move || Slow { until, reads: 0 });
        let mut source = start.expect("a thread");
        assert!(matches!(source.read(), Err(Trouble::Hung(_))));
        assert!(matches!(source.read(), Err(Trouble::Hung(_))), "and it isn't asked again");
        drop(go);
        source.deadline = Duration::from_secs(60);
        let samples = loop {
            match source.read() {
                Ok(samples) => break samples,
                Err(Trouble::Hung(_)) => std::thread::yield_now(),
                Err(trouble) => panic!("{trouble:?}"),
            }
        };
        let expected = vec![Sample::counter(metric("host.oom_kills_total"), 2, 1.0)];
        assert_eq!(samples, expected, "the late answer is dropped");
    }

    #[test]
    fn a_source_that_panics_is_gone_and_nothing_else() {
        struct Broken;
        impl Source for Broken {
            fn name(&self) -> &'static str {
                "broken"
            }
            fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
                panic!("a bug of a driver's wrapper")
            }
        }
        let mut source = WithDeadline::start("broken", Duration::from_secs(60), || Broken).expect("a thread");
        assert!(matches!(source.read(), Err(Trouble::Gone)));
        assert!(matches!(source.read(), Err(Trouble::Gone)));
    }
}
