//! A request of remote write: a `WriteRequest` of prometheus/prompb/remote.proto, compressed by Snappy's block format.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;

use super::queue::Sample;

/// Headers of a request.
pub(super) const HEADERS: [(&str, &str); 3] = [
    ("content-type", "application/x-protobuf"),
    ("content-encoding", "snappy"),
    ("x-prometheus-remote-write-version", "0.1.0"),
];

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<WireLabel>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<WireSample>,
}

#[derive(Clone, PartialEq, Message)]
struct WireLabel {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireSample {
    #[prost(double, tag = "1")]
    value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

/// Returns the body of a request with these samples, which are in order for each series.
pub(super) fn encode(samples: &[Sample]) -> Vec<u8> {
    let mut places: HashMap<*const (String, String), usize> = HashMap::new();
    let mut timeseries: Vec<TimeSeries> = Vec::new();
    for sample in samples {
        let place = *places.entry(Arc::as_ptr(&sample.labels).cast()).or_insert_with(|| {
            let label = |(name, value): &(String, String)| WireLabel { name: name.clone(), value: value.clone() };
            timeseries.push(TimeSeries { labels: sample.labels.iter().map(label).collect(), samples: Vec::new() });
            timeseries.len() - 1
        });
        timeseries[place].samples.push(WireSample { value: sample.value, timestamp: sample.at_ms });
    }
    let body = WriteRequest { timeseries }.encode_to_vec();
    snap::raw::Encoder::new().compress_vec(&body).expect("a request is far below Snappy's limit of 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_series_are_together_and_in_order() {
        let of = |name: &str| Arc::from([("__name__".to_owned(), name.to_owned())]);
        let (one, other): (Arc<[_]>, Arc<[_]>) = (of("one"), of("other"));
        let sample = |labels: &Arc<[_]>, at_ms| Sample { labels: Arc::clone(labels), at_ms, value: 0.5 };
        let body = encode(&[sample(&one, 1), sample(&other, 1), sample(&one, 2)]);
        let plain = snap::raw::Decoder::new().decompress_vec(&body).expect("Snappy");
        let request = WriteRequest::decode(plain.as_slice()).expect("a request");
        let times = |series: &TimeSeries| series.samples.iter().map(|sample| sample.timestamp).collect::<Vec<_>>();
        let names: Vec<&str> = request.timeseries.iter().map(|series| series.labels[0].value.as_str()).collect();
        assert_eq!((names, times(&request.timeseries[0])), (vec!["one", "other"], vec![1, 2]));
    }
}
