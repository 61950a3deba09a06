//! `reload`, and SIGHUP: the configuration file is read again while the control plane runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gangline_api as api;
use gangline_control::service::{Handle, Service};
use gangline_server::budgets::Budgets;
use gangline_server::{Configured, ReadConfiguration, alerts as alerting};
use gangline_specs::config::Config;
use tracing::{error, info};

use crate::client::Client;
use crate::failure::Failure;
use crate::{alerts, configuration, output};

pub(crate) fn run(client: &Client, is_json: bool) -> Result<(), Failure> {
    let reloaded: api::Reloaded = client.post("/reload", &serde_json::json!({}))?;
    if is_json { output::json(&reloaded) } else { output::say(&described(&reloaded)) }
}

fn described(reloaded: &api::Reloaded) -> String {
    let api::Reloaded { changed, needs_restart } = reloaded;
    let now =
        if changed.is_empty() { "nothing to change".to_owned() } else { format!("changed: {}", changed.join(", ")) };
    if needs_restart.is_empty() {
        return now;
    }
    format!("{now}; takes a restart: {}", needs_restart.join(", "))
}

/// Returns the function that reads the file again and compares it with what the control plane was started with.
fn reader((folder, named, started_with): (PathBuf, Option<PathBuf>, Config)) -> ReadConfiguration {
    let has_file = AtomicBool::new(configuration::path(&folder, named.as_ref()).is_some());
    ReadConfiguration(Arc::new(move || {
        let path = configuration::path(&folder, named.as_ref());
        // Without the file that it had, all queues would be gone.
        if has_file.fetch_or(path.is_some(), Ordering::Relaxed) && path.is_none() {
            return Err(configuration::missing(&folder).detail());
        }
        let read = path.as_deref().map_or_else(|| Ok(Config::default()), configuration::read);
        let config = read.map_err(|failure| failure.detail())?;
        let needs_restart = fixed_differences(&started_with, &config);
        // Mail goes by the server with which the control plane was started.
        let mailing = Config { smtp: started_with.smtp.clone(), ..config };
        let alerts = alerts::setup(&folder, &mailing, path.as_deref()).map_err(|failure| failure.detail())?.rules;
        Ok(Configured { sharing: mailing.sharing, alerts, budgets: mailing.budgets, needs_restart })
    }))
}

/// Returns the names of the parts that differ and can't change while the control plane runs.
fn fixed_differences(before: &Config, now: &Config) -> Vec<String> {
    let parts = [
        ("listen", before.listen != now.listen),
        ("advertise", before.advertise != now.advertise),
        ("tls", before.tls != now.tls),
        ("topology_file", before.topology_file != now.topology_file),
        ("journal", before.journal != now.journal),
        ("node", before.nodes != now.nodes),
        ("inherit", before.inherit != now.inherit),
        ("launcher", before.launcher != now.launcher),
        ("price", before.sharing.prices != now.sharing.prices),
        ("data_cache of queues", before.cache_quotas != now.cache_quotas),
        ("limits", before.limits != now.limits),
        ("retention", before.retention != now.retention),
        ("overhead and energy", before.billing.overheads != now.billing.overheads),
        ("people", before.billing.people != now.billing.people),
        ("storage", before.billing.storage != now.billing.storage),
        ("artifacts", before.artifacts != now.artifacts),
        ("smtp", before.smtp != now.smtp),
        ("remote_write", before.remote_write != now.remote_write),
        ("remote_read", before.remote_read != now.remote_read),
        ("otlp", before.otlp != now.otlp),
        ("code", before.snapshot_max != now.snapshot_max),
    ];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

/// Reads the configuration again for a signal.
pub(crate) struct Reloading {
    pub(crate) read: ReadConfiguration,
    handle: Handle,
    pub(crate) alerts: alerting::Handle,
    budgets: Budgets,
}

impl Reloading {
    /// `files`: the data folder, the configuration that is named if one is, and what the control plane was started with.
    pub(crate) fn of(
        files: (PathBuf, Option<PathBuf>, Config),
        service: &Service,
        alerts: Option<&alerting::Service>,
        budgets: &Budgets,
    ) -> Reloading {
        let (read, alerts) = (reader(files), alerts.map(alerting::Service::handle).unwrap_or_default());
        Reloading { read, handle: service.handle(), alerts, budgets: budgets.clone() }
    }

    /// Reads the configuration again; a failure is logged, and the rules stay as they were.
    pub(crate) async fn run(&self) {
        match (self.read.0)() {
            Err(detail) => error!(code = detail.code, "the configuration stays as it was: {}", detail.message),
            Ok(configured) => match configured.put_in_force(&self.handle, &self.alerts, &self.budgets).await {
                Ok(reloaded) => info!("{}", described(&reloaded)),
                Err(error) => error!(%error, "the configuration stays as it was"),
            },
        }
    }
}
