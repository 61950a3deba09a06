//! The configuration file is read again at a user's request.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_api as api;
use gangline_control::service;
use gangline_orchestration::Configuration;
use gangline_specs::config::Budget;
use gangline_telemetry::alerts::Rules;
use tracing::warn;

use super::budgets::Budgets;
use super::error::ApiError;
use super::{App, ErrorBody, alerts};

/// The rules of alerts and the budgets, among the parts of the configuration.
const ALERTS: &str = "alerts";
const BUDGET: &str = "budget";

/// What a configuration file says now.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The rules by which the cluster is shared, which may change while the control plane runs.
    pub sharing: Configuration,
    /// The rules of alerts and who is told, which may change too.
    pub alerts: Rules,
    /// The budgets, which may change too.
    pub budgets: Vec<Budget>,
    /// The other parts that differ from those with which the control plane was started.
    pub needs_restart: Vec<String>,
}

/// Reads the configuration file; cheap to clone. It may block.
#[derive(Clone)]
pub struct ReadConfiguration(pub Arc<dyn Fn() -> Result<Configured, api::ErrorDetail> + Send + Sync>);

impl fmt::Debug for ReadConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadConfiguration")
    }
}

/// Reads the configuration file again, and puts in force what can change while the control plane runs. If the file has a
/// mistake nothing changes.
#[utoipa::path(post, path = "/api/v1/reload", tag = "control plane", responses((status = 200, body = api::Reloaded),
    (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(super) async fn reload(State(app): State<Arc<App>>) -> Result<Json<api::Reloaded>, ApiError> {
    let read = app.read_configuration.clone();
    let read = tokio::task::spawn_blocking(move || read.0()).await;
    let read = read.map_err(|_| ApiError::internal("reading the configuration panicked"))?;
    let configured = read
        .map_err(|detail| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, &detail.code, detail.message, detail.hint))?;
    Ok(Json(configured.put_in_force(&app.handle, &app.alerts, &app.budgets).await?))
}

impl Configured {
    /// Puts in force what can change while the control plane runs, and says what did.
    ///
    /// # Errors
    /// If the service refuses or can't journal the change.
    pub async fn put_in_force(
        self,
        service: &service::Handle,
        alerts: &alerts::Handle,
        budgets: &Budgets,
    ) -> Result<api::Reloaded, service::Error> {
        let Configured { sharing, alerts: rules, budgets: new, mut needs_restart } = self;
        let mut changed = service.configure(sharing).await?;
        changed.extend(budgets.replace(new).then(|| BUDGET.to_owned()));
        match alerts.replace(rules) {
            Ok(true) => changed.push(ALERTS.to_owned()),
            Ok(false) => {}
            Err(error) => {
                warn!(%error, "the rules of alerts stay as they were");
                needs_restart.push(ALERTS.to_owned());
            }
        }
        Ok(api::Reloaded { changed, needs_restart })
    }
}
