//! Requests of OpenTelemetry's protocol over HTTP: `ExportMetricsServiceRequest` and `ExportTraceServiceRequest` of
//! <https://github.com/open-telemetry/opentelemetry-proto> (opentelemetry/proto/collector), as protocol buffers.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use gangline_base::{JobId, Timestamp};
use gangline_control::views::{Fact, LifeSpan};
use prost::{Message, Oneof};

use super::queue::Sample;

/// Headers of a request.
pub(super) const HEADERS: [(&str, &str); 1] = [("content-type", "application/x-protobuf")];
/// The value of the attribute `service.name`, and the name of the scope.
const SERVICE: &str = "gangline";
/// The beginning of the names of attributes that are ours.
const PREFIX: &str = "gangline.";
/// Kinds of spans (`SPAN_KIND_INTERNAL`) and of ends (`STATUS_CODE_ERROR`).
const INTERNAL: i32 = 1;
const ERROR: i32 = 2;

/// The life of a job.
pub(super) struct Trace {
    pub(super) job: JobId,
    pub(super) spans: Vec<LifeSpan>,
}

/// Both kinds of request: the resources' list is the first field of either, and the scopes' of a resource the second.
#[derive(Clone, PartialEq, Message)]
struct Request<T: Message + Default + Debug> {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<OfResource<T>>,
}

#[derive(Clone, PartialEq, Message)]
struct OfResource<T: Message + Default + Debug> {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<OfScope<T>>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct OfScope<T: Message + Default + Debug> {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<T>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Count(i64),
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Gauge>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Point>,
}

#[derive(Clone, PartialEq, Message)]
struct Point {
    #[prost(fixed64, tag = "3")]
    at: u64,
    #[prost(double, optional, tag = "4")]
    value: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    from: u64,
    #[prost(fixed64, tag = "8")]
    to: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(fixed64, tag = "1")]
    at: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

/// Returns the body of a request with these samples; `labels` are of all of them.
pub(super) fn metrics(samples: &[Sample], labels: &[(String, String)]) -> Vec<u8> {
    let mut places: HashMap<*const (String, String), (usize, Vec<KeyValue>)> = HashMap::new();
    let mut named: HashMap<String, usize> = HashMap::new();
    let mut metrics: Vec<Metric> = Vec::new();
    for sample in samples {
        let (place, attributes) = places.entry(Arc::as_ptr(&sample.labels).cast()).or_insert_with(|| {
            let (names, others): (Vec<_>, Vec<_>) = sample.labels.iter().partition(|(name, _)| name == "__name__");
            let name = names.first().map(|(_, name)| name.clone()).unwrap_or_default();
            let place = *named.entry(name.clone()).or_insert_with(|| {
                metrics.push(Metric { name, gauge: Some(Gauge::default()) });
                metrics.len() - 1
            });
            (place, others.into_iter().map(|(name, value)| text(name, value)).collect())
        });
        let point = Point {
            at: u64::try_from(sample.at_ms).unwrap_or(0).saturating_mul(1_000_000),
            value: Some(sample.value),
            attributes: attributes.clone(),
        };
        metrics[*place].gauge.get_or_insert_default().points.push(point);
    }
    request(metrics, labels)
}

/// Returns the body of a request with these traces; `labels` are of all of them.
pub(super) fn traces(traces: &[Trace], labels: &[(String, String)]) -> Vec<u8> {
    request(traces.iter().flat_map(spans).collect(), labels)
}

fn request<T: Message + Default + Debug>(items: Vec<T>, labels: &[(String, String)]) -> Vec<u8> {
    let of_all = labels.iter().map(|(name, value)| text(name, value));
    let attributes = std::iter::once(text("service.name", SERVICE)).chain(of_all).collect();
    let scope = Scope { name: SERVICE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scopes = vec![OfScope { scope: Some(scope), items }];
    Request { resources: vec![OfResource { resource: Some(Resource { attributes }), scopes }] }.encode_to_vec()
}

/// The spans of a life. Their ids are the same each time, so a trace that is sent twice is still one.
fn spans(Trace { job, spans }: &Trace) -> Vec<Span> {
    let began = spans.first().map_or(Timestamp::EPOCH, |span| span.from);
    let id = |number: Option<usize>, bytes: usize| {
        let text = format!("{SERVICE} {job} {} {number:?}", began.unix_nanos());
        blake3::hash(text.as_bytes()).as_bytes()[..bytes].to_vec()
    };
    let one = |(number, span): (usize, &LifeSpan)| Span {
        trace: id(None, 16),
        id: id(Some(number), 8),
        parent: span.parent.map_or_else(Vec::new, |parent| id(Some(parent), 8)),
        name: span.name.to_owned(),
        kind: INTERNAL,
        from: span.from.unix_nanos(),
        to: span.to.unix_nanos(),
        attributes: attributes(&span.facts),
        events: span.fault.iter().map(|(at, facts)| event(*at, facts)).collect(),
        status: span.failure.as_ref().map(|why| Status { message: why.clone(), code: ERROR }),
    };
    spans.iter().enumerate().map(one).collect()
}

fn event(at: Timestamp, facts: &[(&'static str, Fact)]) -> Event {
    Event { at: at.unix_nanos(), name: "fault".to_owned(), attributes: attributes(facts) }
}

fn attributes(facts: &[(&'static str, Fact)]) -> Vec<KeyValue> {
    let one = |(name, fact): &(&'static str, Fact)| {
        let value = match fact {
            Fact::Text(text) => Value::Text(text.clone()),
            Fact::Count(count) => Value::Count(i64::try_from(*count).unwrap_or(i64::MAX)),
        };
        KeyValue { key: format!("{PREFIX}{name}"), value: Some(AnyValue { value: Some(value) }) }
    };
    facts.iter().map(one).collect()
}

fn text(name: &str, value: &str) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(Value::Text(value.to_owned())) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_together_and_labels_of_all_are_the_resources() {
        let labels = |rank: &str| -> Arc<[_]> {
            [("__name__", "gangline_rank_loss"), ("rank", rank)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        };
        let (one, other) = (labels("0"), labels("1"));
        let sample = |labels: &Arc<[_]>, at_ms| Sample { labels: Arc::clone(labels), at_ms, value: 0.5 };
        let site = [("cluster".to_owned(), "east".to_owned())];
        let body = metrics(&[sample(&one, 1), sample(&other, 2), sample(&one, 3)], &site);
        let request = Request::<Metric>::decode(body.as_slice()).expect("a request");
        let of = &request.resources[0];
        let resource = of.resource.as_ref().expect("it has one");
        assert_eq!(resource.attributes, [text("service.name", "gangline"), text("cluster", "east")]);
        let [metric] = &of.scopes[0].items[..] else { panic!("{:?}", of.scopes) };
        let points = &metric.gauge.as_ref().expect("a gauge").points;
        let found: Vec<_> = points.iter().map(|point| (point.at, point.attributes.clone())).collect();
        let of = |rank: &str| vec![text("rank", rank)];
        assert_eq!(metric.name, "gangline_rank_loss");
        assert_eq!(found, [(1_000_000, of("0")), (2_000_000, of("1")), (3_000_000, of("0"))]);
    }

    #[test]
    fn a_trace_has_the_same_ids_each_time_and_other_jobs_have_others() {
        let at = |seconds| Timestamp::EPOCH + std::time::Duration::from_secs(seconds);
        let span = |name, parent, from, to| LifeSpan {
            name,
            parent,
            from: at(from),
            to: at(to),
            facts: vec![("queue", Fact::Text("q".to_owned())), ("nodes", Fact::Count(2))],
            failure: parent.map(|_| "killed".to_owned()),
            fault: parent.map(|_| (at(to), vec![("cause", Fact::Text("killed".to_owned()))])),
        };
        let spans = vec![span("job", None, 1, 9), span("attempt", Some(0), 2, 8)];
        let trace = Trace { job: JobId(7), spans: spans.clone() };
        let other = Trace { job: JobId(8), spans };
        let body = traces(&[trace, other], &[]);
        let request = Request::<Span>::decode(body.as_slice()).expect("a request");
        let found = &request.resources[0].scopes[0].items;
        let [job, attempt, others, _] = &found[..] else { panic!("{found:?}") };
        assert_eq!((job.trace.len(), job.id.len(), &job.parent), (16, 8, &Vec::new()));
        assert_eq!((&attempt.trace, &attempt.parent), (&job.trace, &job.id));
        assert!(job.trace != others.trace && job.id != attempt.id && job.status.is_none());
        assert_eq!(attempt.status.as_ref().map(|status| status.code), Some(ERROR));
        assert_eq!(
            (attempt.from, attempt.to, attempt.events[0].name.as_str()),
            (2_000_000_000, 8_000_000_000, "fault")
        );
        assert_eq!(job.attributes[1].value.as_ref().and_then(|value| value.value.clone()), Some(Value::Count(2)));
    }
}
