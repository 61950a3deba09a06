//! Questions to the server, one request each.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use gangline_base::with_causes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Span;
use super::answer::{Points, points, value};
use crate::export::Receiver;

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: u64 = 1_000;

/// How much earlier than meant the times of a range query are, whose `offset` makes up for it. VictoriaMetrics takes samples of the
/// last half minute for incomplete (`-search.latencyOffset`), and repeats an older value for each stretch that ends there.
pub(super) const LAG_MS: i64 = 600_000;
/// Counts the whole seconds in a stretch of one: two if it has both its ends.
const BOTH_ENDS: &str = "count_over_time(vector(0)[1s:1s])";

/// The labels of a series.
type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Client {
    receiver: Receiver,
    /// The client, once there is one; made anew after a failure, since certificates may have changed.
    agent: Mutex<Option<ureq::Agent>>,
    /// Whether a stretch of time has both its ends, once that was asked.
    is_closed: OnceLock<bool>,
}

#[derive(Deserialize)]
struct Wire<T> {
    data: Data<T>,
}

#[derive(Deserialize)]
struct Data<T> {
    result: Vec<T>,
}

#[derive(Deserialize)]
struct WireVector {
    metric: Labels,
    value: (f64, String),
}

#[derive(Deserialize)]
struct WireMatrix {
    metric: Labels,
    values: Vec<(f64, String)>,
}

impl Client {
    pub(super) fn new(receiver: Receiver) -> Client {
        Client { receiver, agent: Mutex::default(), is_closed: OnceLock::new() }
    }

    pub(super) fn url(&self) -> &str {
        &self.receiver.url
    }

    /// The value of each series at a time.
    pub(super) fn vector(&self, query: &str, at: i64) -> Result<Vec<(Labels, f64)>, String> {
        let found: Vec<WireVector> = self.ask("query", &[("query", query), ("time", &seconds(at))])?;
        found.into_iter().map(|one| Ok((one.metric, value(&one.value.1)?))).collect()
    }

    /// All samples that a selector of a stretch of time up to `at` finds.
    pub(super) fn matrix(&self, query: &str, at: i64) -> Result<Vec<(Labels, Points)>, String> {
        let found: Vec<WireMatrix> = self.ask("query", &[("query", query), ("time", &seconds(at))])?;
        found.into_iter().map(|one| Ok((one.metric, points(&one.values)?))).collect()
    }

    /// Returns the range, in milliseconds, that a selector has to name so that adjoining stretches of this width have no sample in
    /// common. Prometheus 2 counts samples at both ends of a range, Prometheus 3 and VictoriaMetrics those at the later end alone
    /// (<https://prometheus.io/docs/prometheus/latest/migration/>).
    pub(super) fn named(&self, width: i64) -> Result<i64, String> {
        let is_closed = match self.is_closed.get() {
            Some(known) => *known,
            None => {
                let found = self.vector(BOTH_ENDS, 60_000)?;
                *self.is_closed.get_or_init(|| found.iter().any(|(_, count)| *count > 1.0))
            }
        };
        Ok((width - i64::from(is_closed)).max(1))
    }

    /// The value of each series at the end of each stretch of this width. The query's `offset` is [`LAG_MS`] into the future, and the
    /// server evaluates the query as much earlier.
    pub(super) fn range(&self, query: &str, span: Span, width: i64) -> Result<Vec<(Labels, Points)>, String> {
        // The last stretch may end after the span.
        let (first, last) = (span.from + width, span.to.max(span.from + width) + width - 1);
        let fields = [
            ("query", query),
            ("start", &seconds(first - LAG_MS)),
            ("end", &seconds(last - LAG_MS)),
            ("step", &seconds(width)),
        ];
        let found: Vec<WireMatrix> = self.ask("query_range", &fields)?;
        let later = |points: Points| points.into_iter().map(|(at, value)| (at + LAG_MS, value)).collect();
        found.into_iter().map(|one| Ok((one.metric, later(points(&one.values)?)))).collect()
    }

    fn ask<T: DeserializeOwned>(&self, what: &str, fields: &[(&str, &str)]) -> Result<Vec<T>, String> {
        let known = self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        let agent = known.map_or_else(|| self.receiver.client(), Ok)?;
        let url = format!("{}/api/v1/{what}", self.receiver.url.trim_end_matches('/'));
        let request = self.receiver.dressed(agent.post(url));
        // VictoriaMetrics would move the times to those of its cache.
        let fields = fields.iter().copied().chain([("nocache", "1")]);
        let mut answer = request.send_form(fields).map_err(|error| with_causes(&error))?;
        if !answer.status().is_success() {
            let status = answer.status().as_u16();
            let said = answer.body_mut().with_config().limit(REFUSAL_BYTES_MAX).read_to_string();
            return Err(format!("it answers with status {status}: {}", said.unwrap_or_default().trim()));
        }
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| with_causes(&error))?;
        let wire: Wire<T> = serde_json::from_slice(&body).map_err(|error| format!("its answer is not one: {error}"))?;
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(agent);
        Ok(wire.data.result)
    }
}

/// Returns milliseconds as seconds, as the server takes them.
fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_seconds() {
        assert_eq!(
            (seconds(1_500), seconds(7), seconds(0)),
            ("1.500".to_owned(), "0.007".to_owned(), "0.000".to_owned())
        );
    }
}
