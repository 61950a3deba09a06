//! Reads all sources of a node.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use gangline_telemetry::collectors::gpu::{Amd, Exporter, NvmlSource};
use gangline_telemetry::collectors::{Host, OwnCost, Rates, Reading, SourceError, Trouble, WithDeadline};

/// How long a source may take. The sources are read one after the other.
const DEADLINE: Duration = Duration::from_secs(3);
/// Time before a source that isn't here is looked for again.
const ABSENT: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(super) struct Sampler {
    sources: Vec<Reader>,
    rates: Rates,
    started: Instant,
}

#[derive(Debug)]
struct Reader {
    source: WithDeadline,
    /// It isn't here, or its last error was told.
    quiet_until: Option<Instant>,
    is_failing: bool,
    is_hung: bool,
}

impl Sampler {
    /// Starts the sources: the host, this program itself, and GPUs by `exporter` or by their drivers.
    pub(super) fn start(exporter: Option<&str>) -> io::Result<Sampler> {
        let mut sources = vec![
            WithDeadline::start("host", DEADLINE, Host::this_machine)?,
            WithDeadline::start("agent", DEADLINE, OwnCost::default)?,
            WithDeadline::start("AMD", DEADLINE, || Amd::below(Path::new("/sys")))?,
        ];
        sources.push(match exporter.map(str::to_owned) {
            Some(url) => WithDeadline::start("DCGM", DEADLINE, move || Exporter::at(&url, DEADLINE))?,
            None => WithDeadline::start("NVML", DEADLINE, || NvmlSource::new(None))?,
        });
        let reader = |source| Reader { source, quiet_until: None, is_failing: false, is_hung: false };
        let sources = sources.into_iter().map(reader).collect();
        Ok(Sampler { sources, rates: Rates::default(), started: Instant::now() })
    }

    /// Reads all of them.
    pub(super) fn read(&mut self) -> Vec<Reading> {
        let samples = self.sources.iter_mut().flat_map(Reader::read).collect();
        let mut readings = self.rates.readings(self.started.elapsed(), samples);
        let hung = self.sources.iter().filter(|reader| reader.is_hung).count();
        let own = |name: &str, value: f64| Reading { name: name.to_owned(), device: None, value };
        readings.push(own("agent.sources_hung", f64::from(u32::try_from(hung).unwrap_or(u32::MAX))));
        let resets = u32::try_from(self.rates.resets()).unwrap_or(u32::MAX);
        readings.push(own("agent.counter_resets_total", f64::from(resets)));
        readings
    }

    /// Returns the sources that don't answer.
    pub(super) fn hung(&self) -> Vec<String> {
        self.sources.iter().filter(|reader| reader.is_hung).map(|reader| reader.source.name().to_owned()).collect()
    }
}

impl Reader {
    fn read(&mut self) -> Vec<gangline_telemetry::collectors::Sample> {
        if self.quiet_until.is_some_and(|until| Instant::now() < until) {
            return Vec::new();
        }
        let name = self.source.name();
        let read = self.source.read();
        let was_hung = std::mem::replace(&mut self.is_hung, matches!(read, Err(Trouble::Hung(_))));
        if was_hung && !self.is_hung {
            tracing::info!(name, "a source answers again");
        }
        match read {
            Ok(samples) => {
                self.is_failing = false;
                return samples;
            }
            Err(Trouble::Failed(SourceError::NotHere(_))) => self.quiet_until = Some(Instant::now() + ABSENT),
            Err(Trouble::Hung(_)) if was_hung => {}
            Err(Trouble::Hung(time)) => {
                tracing::warn!(name, seconds = time.as_secs_f64(), "a source doesn't answer");
            }
            Err(Trouble::Failed(_)) if self.is_failing => {}
            Err(Trouble::Failed(error)) => {
                self.is_failing = true;
                tracing::warn!(name, error = gangline_base::with_causes(&error), "a source can't be read");
            }
            Err(Trouble::Gone) => self.quiet_until = Some(Instant::now() + ABSENT * 60),
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_readings_and_a_missing_exporter_costs_nothing_else() {
        let mut sampler = Sampler::start(Some("http://127.0.0.1:1/metrics")).expect("threads");
        sampler.read();
        let readings = sampler.read();
        let value = |name: &str| readings.iter().find(|reading| reading.name == name).map(|reading| reading.value);
        assert!(value("host.memory_bytes").is_some() && value("agent.memory_bytes").is_some(), "{readings:?}");
        assert_eq!((value("agent.sources_hung"), sampler.hung()), (Some(0.0), Vec::new()));
    }
}
