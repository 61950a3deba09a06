//! The stores beside the service, which decide nothing: metrics and experiments. Without them jobs run, wait and end as they
//! would, so none of them can keep a control plane from starting.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Inbox, SyncSender, sync_channel};
use std::time::Duration;

use gangline_base::{JobId, with_causes};
use gangline_control::backup::SERIES_FOLDER;
use gangline_control::service::Service;
use gangline_control::upkeep::Upkeep;
use gangline_server::{RemoteRead, Tracking, export};
use gangline_specs::config::{Config, MetricRetention, Receiver, Retention};
use gangline_store::tracking::{self, ARTIFACTS_FOLDER, ArtifactStore, Remotes, TRACKING_FOLDER};
use gangline_telemetry::series;
use tracing::warn;

use crate::failure::Failure;
use crate::{configuration, output, s3};

/// Ends of jobs that wait for their traces at most.
const ENDED_MAX: usize = 10_000;

/// The stores: each runs, or can't for a reason.
pub(super) struct Beside {
    series: Result<series::Service, String>,
    tracking_service: Option<tracking::Service>,
    tracking: Tracking,
    upkeep: Upkeep,
    exports: Vec<export::Service>,
    /// What answers queries about metrics in the store's place.
    remote_read: Option<Arc<RemoteRead>>,
}

/// Places elsewhere that the configuration names.
pub(super) struct Elsewhere {
    /// Where contents of artifacts are kept.
    remotes: Remotes,
    /// Where measurements are sent as well.
    remote_write: Option<export::Receiver>,
    /// Where queries about measurements are answered.
    remote_read: Option<export::Receiver>,
    /// Where measurements are sent by OpenTelemetry's protocol.
    otlp_metrics: Option<export::Receiver>,
    otlp_traces: Option<TracesTo>,
}

/// Where traces of jobs are sent, and the channel of the ids of ended jobs.
struct TracesTo {
    receiver: export::Receiver,
    tell: SyncSender<JobId>,
    ended: Inbox<JobId>,
}

impl Elsewhere {
    /// Returns the channel that takes the ids of ended jobs, if traces are sent.
    pub(super) fn ended(&self) -> Option<SyncSender<JobId>> {
        self.otlp_traces.as_ref().map(|traces| traces.tell.clone())
    }
}

impl Beside {
    /// Starts the stores of a data folder.
    pub(super) fn start(
        folder: &Path,
        kept: &Retention,
        elsewhere: Elsewhere,
        service: &Service,
    ) -> std::io::Result<Beside> {
        let series = start_series(folder, &kept.metrics).inspect_err(|cause| {
            warn!(cause, "metrics can't be stored (docs/errors/G0322.md); everything else goes on");
        });
        let folder = folder.join(TRACKING_FOLDER);
        let started = start_tracking(&folder).map_err(|failure| with_causes(&failure)).inspect_err(|cause| {
            warn!(cause, folder = %folder.display(), "experiments can't be tracked; everything else goes on");
        });
        let store = match &started {
            Ok(service) => service.handle(),
            Err(cause) => tracking::Handle::closed(cause),
        };
        let artifacts = ArtifactStore::of(folder.join(ARTIFACTS_FOLDER), store.clone(), elsewhere.remotes);
        let tracking = Tracking::new(store, artifacts, service.views(), output::now);
        let upkeep = Upkeep::start(tracking.job_runs.clone(), tracking.registry.clone(), tracking.webhooks.clone())?;
        let exports = [
            elsewhere.remote_write.map(export::Service::remote_write),
            elsewhere.otlp_metrics.map(export::Service::otlp_metrics),
            elsewhere.otlp_traces.map(|to| export::Service::otlp_traces(to.receiver, to.ended, service.views())),
        ];
        let exports = exports.into_iter().flatten().collect::<std::io::Result<_>>()?;
        let remote_read = elsewhere.remote_read.map(|server| Arc::new(RemoteRead::new(server, output::now)));
        Ok(Beside { series, tracking_service: started.ok(), tracking, upkeep, exports, remote_read })
    }

    /// Returns the handle of metrics.
    pub(super) fn series(&self) -> series::Handle {
        let store = match &self.series {
            Ok(service) => service.handle(),
            Err(cause) => series::Handle::closed(cause.clone()),
        };
        match &self.remote_read {
            Some(server) => store.asking(Arc::clone(server) as Arc<dyn series::Elsewhere>),
            None => store,
        }
    }

    /// Returns the handles by which measurements and traces are sent elsewhere.
    pub(super) fn exports(&self) -> Vec<export::Handle> {
        self.exports.iter().map(export::Service::handle).collect()
    }

    /// Returns what MLflow's API and the registry work on.
    pub(super) fn tracking(&self) -> Tracking {
        self.tracking.clone()
    }

    /// Writes what waits and stops.
    pub(super) fn stop(self) {
        self.series.into_iter().for_each(series::Service::stop);
        drop(self.upkeep);
        self.exports.into_iter().for_each(export::Service::stop);
        self.tracking_service.into_iter().for_each(tracking::Service::stop);
    }
}

/// Returns the places that a configuration names, whose file is at `path`; settings for S3 are in the environment, as AWS's own
/// tools have them.
pub(super) fn elsewhere(config: &Config, path: Option<&Path>) -> Result<Elsewhere, Failure> {
    let of = |table: &str, written: &Receiver| receiver(table, written, path);
    let remote_write = config.remote_write.as_ref().map(|written| of("remote_write", written)).transpose()?;
    let remote_read = config.remote_read.as_ref().map(|written| of("remote_read", written)).transpose()?;
    let otlp =
        config.otlp.as_ref().map(|otlp| of("otlp", &otlp.receiver).map(|receiver| (otlp, receiver))).transpose()?;
    let at = |receiver: &export::Receiver, end: &str| {
        let url = format!("{}/{end}", receiver.url.trim_end_matches('/'));
        export::Receiver { url, ..receiver.clone() }
    };
    let metrics = otlp.as_ref().filter(|(otlp, _)| otlp.metrics);
    let traces = otlp.as_ref().filter(|(otlp, _)| otlp.traces).map(|(_, receiver)| {
        let (tell, ended) = sync_channel(ENDED_MAX);
        TracesTo { receiver: at(receiver, "v1/traces"), tell, ended }
    });
    Ok(Elsewhere {
        remotes: remotes(config)?,
        remote_write,
        remote_read,
        otlp_metrics: metrics.map(|(_, receiver)| at(receiver, "v1/metrics")),
        otlp_traces: traces,
    })
}

fn receiver(table: &str, written: &Receiver, path: Option<&Path>) -> Result<export::Receiver, Failure> {
    let token = written.token_file.as_ref().map(|file| {
        let file = path.map_or_else(|| file.into(), |path| configuration::beside(path, file));
        std::fs::read_to_string(&file).map(|token| token.trim().to_owned()).map_err(|error| {
            let hint = "docs/reference/configuration.md says what the table may hold";
            Failure::coded("G0505", format!("[{table}]: token_file {}: {error}", file.display()), hint)
        })
    });
    let authorization = token.transpose()?.map(|token| match &written.user {
        Some(user) => export::Authorization::Basic(user.clone(), token),
        None => export::Authorization::Token(token),
    });
    let list = |of: &BTreeMap<String, String>| of.clone().into_iter().collect();
    let (headers, labels) = (list(&written.headers), list(&written.labels));
    Ok(export::Receiver { url: written.url.clone(), authorization, headers, labels })
}

fn remotes(config: &Config) -> Result<Remotes, Failure> {
    let place = &config.artifacts;
    Remotes::new(place.address.as_deref(), place.direct_downloads, s3::settings()).map_err(|failure| {
        let hint = "docs/reference/configuration.md#artifacts says what the table may hold";
        Failure::coded("G0505", format!("[artifacts]: {}", with_causes(&failure)), hint)
    })
}

fn start_series(folder: &Path, kept: &MetricRetention) -> Result<series::Service, String> {
    let age = |age: Option<Duration>| age.unwrap_or(Duration::MAX);
    let keep = series::Keep {
        points: age(kept.points),
        minutes: age(kept.minutes),
        hours: age(kept.hours),
        bytes_max: kept.bytes_max.map_or(u64::MAX, |bytes| bytes.0),
    };
    let options = series::Options { limits: Default::default(), keep, clock: output::now };
    series::Service::start(folder.join(SERIES_FOLDER), options).map_err(|error| with_causes(&error))
}

fn start_tracking(folder: &Path) -> Result<tracking::Service, tracking::Failure> {
    let service = tracking::Service::start(folder, tracking::Options { clock: output::now })?;
    // Uploads that were cut off go before new ones begin.
    ArtifactStore::of(folder.join(ARTIFACTS_FOLDER), service.handle(), Remotes::default()).prepare()?;
    Ok(service)
}
