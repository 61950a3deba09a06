//! What the ranks of an attempt asked of object storage, or a node's agent for a job that waited, as stored on disk: noted by the
//! control plane at the end, with the prices of then.

use gangline_accounting::bill::{RequestRate, Requests};
use gangline_base::{Bytes, JobId, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::{VERSION_STORAGE, encode};
use crate::reported::DatasetReadsRecord;

/// The requests of an attempt, or of a fetch for a job that waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestsMade {
    /// The job.
    pub job: JobId,
    /// The attempt's number; 0 for a fetch.
    pub attempt: u32,
    /// The fetch, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchV1>,
    /// The name in the job file.
    pub name: String,
    /// Who submitted the job.
    pub user: String,
    /// The queue that the job waited in.
    pub queue: String,
    /// When the attempt or the fetch began.
    pub from: Timestamp,
    /// When it ended.
    pub to: Timestamp,
    /// What was asked for, by dataset.
    pub reads: Vec<DatasetRequests>,
}

/// A fetch of a node's agent, which has one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchV1 {
    /// The node.
    pub node: String,
    /// When it began, in nanoseconds since the Unix epoch by the node's clock.
    pub began: u64,
}

/// The requests for one dataset, on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRequests {
    /// Its address.
    pub address: String,
    /// The requests, and the bytes that came; those that failed have no price.
    #[serde(flatten)]
    pub reads: DatasetReadsRecord,
    /// Their prices, if they have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<RequestRateV1>,
}

/// Prices of an object store; see [`RequestRate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRateV1 {
    /// What a thousand GET or HEAD requests cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_thousand: Option<Money>,
    /// What a thousand LIST requests cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_thousand_lists: Option<Money>,
    /// What a thousand PUT requests cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_thousand_writes: Option<Money>,
    /// What the unit of read bytes costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_unit: Option<Money>,
    /// What it costs where the bytes come from another region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_unit_across: Option<Money>,
    /// The unit.
    pub unit: Bytes,
}

impl From<RequestRate> for RequestRateV1 {
    fn from(rate: RequestRate) -> RequestRateV1 {
        let RequestRate { per_thousand, per_thousand_lists, per_thousand_writes, per_unit, per_unit_across, unit } =
            rate;
        RequestRateV1 { per_thousand, per_thousand_lists, per_thousand_writes, per_unit, per_unit_across, unit }
    }
}

impl DatasetRequests {
    /// Returns what is billed.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let rate = self.price.map_or_else(RequestRate::none, |price| {
            let RequestRateV1 {
                per_thousand,
                per_thousand_lists,
                per_thousand_writes,
                per_unit,
                per_unit_across,
                unit,
            } = price;
            RequestRate { per_thousand, per_thousand_lists, per_thousand_writes, per_unit, per_unit_across, unit }
        });
        let DatasetReadsRecord { get, head, list, put, bytes, cross_region_bytes, .. } = self.reads;
        Requests {
            plain: get.saturating_add(head),
            lists: list,
            writes: put,
            bytes: Bytes(bytes.saturating_sub(cross_region_bytes)),
            cross_region_bytes: Bytes(cross_region_bytes),
            rate,
        }
    }
}

impl RequestsMade {
    /// Returns what tells a fetch from the job's others; empty for an attempt.
    #[must_use]
    pub fn place(&self) -> String {
        self.fetch.as_ref().map(|FetchV1 { node, began }| format!("{node} {began}")).unwrap_or_default()
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Body<'a> {
            RequestsMade(&'a RequestsMade),
        }
        encode(VERSION_STORAGE, Body::RequestsMade(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Noted, Recorded, decode_entry};

    /// Proves A-9: every later version reads what this version wrote.
    #[test]
    fn requests_read_back_and_stay_readable() {
        let price = RequestRate {
            per_thousand: Some(Money::from_nano_dollars(400_000)),
            per_unit: Some(Money::ZERO),
            unit: Bytes(1_000_000_000),
            ..RequestRate::none()
        };
        let reads = DatasetRequests {
            address: "s3://corpus/c4".to_owned(),
            reads: DatasetReadsRecord { get: 9, head: 2, list: 1, bytes: 4_096, ..DatasetReadsRecord::default() },
            price: Some(price.into()),
        };
        let elsewhere = DatasetReadsRecord { failed: 3, in_region_bytes: 96, cross_region_bytes: 4_000, ..reads.reads };
        let elsewhere = DatasetRequests { price: None, reads: elsewhere, ..reads.clone() };
        let made = RequestsMade {
            job: JobId(7),
            attempt: 2,
            fetch: None,
            name: "gpt".to_owned(),
            user: "ada".to_owned(),
            queue: "research".to_owned(),
            from: Timestamp::from_unix_nanos(5),
            to: Timestamp::from_unix_nanos(8),
            reads: vec![reads.clone(), elsewhere.clone()],
        };
        let written = r#"{"v":5,"body":{"requests_made":{"job":7,"attempt":2,"name":"gpt","user":"ada","queue":"research","from":5,"to":8,"reads":[{"address":"s3://corpus/c4","get":9,"head":2,"list":1,"bytes":4096,"price":{"per_thousand":400000,"per_unit":0,"unit":1000000000}},{"address":"s3://corpus/c4","get":9,"head":2,"list":1,"failed":3,"bytes":4096,"in_region_bytes":96,"cross_region_bytes":4000}]}}}"#;
        assert_eq!(String::from_utf8_lossy(&made.encode()), written);
        let read = match decode_entry(written.as_bytes()) {
            Ok(Recorded::Noted(noted)) => *noted,
            other => panic!("not a note: {other:?}"),
        };
        assert_eq!(read, Noted::Requests(made.clone()));
        let fetch = FetchV1 { node: "n1".to_owned(), began: 4 };
        let fetch = RequestsMade { attempt: 0, fetch: Some(fetch), reads: Vec::new(), ..made };
        let written = r#"{"v":5,"body":{"requests_made":{"job":7,"attempt":0,"fetch":{"node":"n1","began":4},"name":"gpt","user":"ada","queue":"research","from":5,"to":8,"reads":[]}}}"#;
        assert_eq!((String::from_utf8_lossy(&fetch.encode()).as_ref(), fetch.place().as_str()), (written, "n1 4"));
        let expected =
            Requests { plain: 11, lists: 1, writes: 0, bytes: Bytes(4_096), cross_region_bytes: Bytes(0), rate: price };
        assert_eq!(reads.requests(), expected);
        let requests = elsewhere.requests();
        assert_eq!((requests.bytes, requests.cross_region_bytes), (Bytes(96), Bytes(4_000)));
    }
}
