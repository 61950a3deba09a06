//! `reload`, and SIGHUP: the configuration file is read again while the control plane runs.

use std::path::PathBuf;
use std::sync::Arc;

use gangline_api as api;
use gangline_control::service::{Handle, Service};
use gangline_server::{Configured, ReadConfiguration};
use gangline_specs::config::Config;
use tracing::{error, info};

use crate::client::Client;
use crate::failure::Failure;
use crate::{configuration, output};

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
pub(crate) fn reader(folder: PathBuf, named: Option<PathBuf>, started_with: Config) -> ReadConfiguration {
    ReadConfiguration(Arc::new(move || {
        let config = match configuration::path(&folder, named.as_ref()) {
            Some(path) => configuration::read(&path).map_err(|failure| failure.detail())?,
            None => Config::default(),
        };
        let needs_restart = fixed_differences(&started_with, &config);
        Ok(Configured { sharing: config.sharing, needs_restart })
    }))
}

/// Returns the names of the parts that differ and can't change while the control plane runs.
fn fixed_differences(before: &Config, now: &Config) -> Vec<String> {
    let parts = [
        ("listen", before.listen != now.listen),
        ("advertise", before.advertise != now.advertise),
        ("tls", before.tls != now.tls),
        ("topology_file", before.topology_file != now.topology_file),
        ("alerts_file", before.alerts_file != now.alerts_file),
        ("journal", before.journal != now.journal),
        ("node", before.nodes != now.nodes),
        ("inherit", before.inherit != now.inherit),
        ("launcher", before.launcher != now.launcher),
        ("price", before.sharing.prices != now.sharing.prices),
        ("budget", before.budgets != now.budgets),
        ("limits", before.limits != now.limits),
        ("retention", before.retention != now.retention),
        ("storage", before.storage != now.storage),
        ("artifacts", before.artifacts != now.artifacts),
        ("smtp", before.smtp != now.smtp),
        ("code", before.snapshot_max != now.snapshot_max),
    ];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

/// Reads the configuration again for a signal.
pub(crate) struct Reloading {
    pub(crate) read: ReadConfiguration,
    pub(crate) handle: Handle,
}

impl Reloading {
    pub(crate) fn of(read: ReadConfiguration, service: &Service) -> Reloading {
        Reloading { read, handle: service.handle() }
    }

    /// Reads the configuration again; a failure is logged, and the rules stay as they were.
    pub(crate) async fn run(&self) {
        match (self.read.0)() {
            Err(detail) => error!(code = detail.code, "the configuration stays as it was: {}", detail.message),
            Ok(Configured { sharing, needs_restart }) => match self.handle.configure(sharing).await {
                Ok(changed) => info!("{}", described(&api::Reloaded { changed, needs_restart })),
                Err(error) => error!(%error, "the configuration stays as it was"),
            },
        }
    }
}
