//! `/metrics/dcgm`: what the nodes' agents read of GPUs, under the names of NVIDIA's dcgm-exporter, for dashboards that are made for
//! it. Labels are the exporter's (`gpu`, `device`, `modelName`, `Hostname`), and `hpc_job` as it has with a mapping of jobs
//! (<https://github.com/NVIDIA/dcgm-exporter>).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use gangline_api as api;
use gangline_base::NodeName;
use gangline_telemetry::collectors::gpu::{Field, dcgm_field};
use gangline_telemetry::series::{self, Scope};

use super::App;
use super::error::ApiError;
use super::exposition::Family;
use super::metrics::ask;

/// Older readings say nothing about now.
const AGE_MAX: Duration = Duration::from_secs(120);
/// The most readings of a node: 64 GPUs with all fields.
const READINGS_MAX: usize = 2_000;
/// The most nodes of a scrape.
const NODES_MAX: usize = 2_000;

/// Answers a scrape.
pub(super) async fn scrape(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let now = (app.clock)();
    let mut families: BTreeMap<&'static str, Family> = BTreeMap::new();
    for node in app.handle.nodes().await?.nodes.iter().take(NODES_MAX) {
        let Ok(name) = NodeName::new(&node.name) else { continue };
        let times = (Some(now - AGE_MAX), None);
        let query = series::Query { times, ..series::Query::all(Scope::Node(name), 1, READINGS_MAX) };
        for curve in ask(&app, query).await?.curves {
            let (Some(field), Some(device)) = (dcgm_field(&curve.series.metric), curve.series.source.device) else {
                continue;
            };
            let Some(last) = curve.buckets.last().map(|bucket| bucket.last).filter(|last| last.is_finite()) else {
                continue;
            };
            let family = families.remove(field.name).unwrap_or_else(|| family(field));
            families.insert(field.name, sampled(family, node, device, field.value(last)));
        }
    }
    let mut text = String::new();
    families.values().for_each(|family| family.write(&mut text, false));
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

fn family(field: Field) -> Family {
    Family::foreign(field.name, field.is_counter, "As of NVIDIA's dcgm-exporter, read by Gangline.")
}

fn sampled(family: Family, node: &api::Node, device: u32, value: f64) -> Family {
    let slot = node.slots.iter().find(|slot| slot.device == device);
    let (gpu, file) = (device.to_string(), format!("nvidia{device}"));
    let job = slot.and_then(|slot| slot.job.as_deref());
    let labels = [
        ("gpu", gpu.as_str()),
        ("device", &file),
        ("modelName", &node.accelerator),
        ("Hostname", &node.name),
        ("hpc_job", job.unwrap_or_default()),
    ];
    // The exporter has no label of a job where there is none.
    family.sample(if job.is_some() { &labels } else { &labels[..4] }, value)
}
