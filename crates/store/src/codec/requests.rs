//! What the ranks of an attempt asked of object storage, or a node's agent for a job that waited, as stored on disk: noted by the
//! control plane at the end, with the prices of then.

use gangline_accounting::bill::{RequestRate, Requests};
use gangline_base::{Bytes, JobId, Money, Timestamp};
use serde::{Deserialize, Serialize};

use super::{VERSION_STORAGE, encode};
use crate::reported::is_none;

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
    /// GET requests.
    pub get: u64,
    /// HEAD requests.
    pub head: u64,
    /// LIST requests.
    pub list: u64,
    /// Requests that ended with a server error or without an answer; they have no price.
    #[serde(default, skip_serializing_if = "is_none")]
    pub failed: u64,
    /// Bytes that were read.
    pub bytes: u64,
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
    /// What the unit of read bytes costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_unit: Option<Money>,
    /// The unit.
    pub unit: Bytes,
}

impl From<RequestRate> for RequestRateV1 {
    fn from(RequestRate { per_thousand, per_thousand_lists, per_unit, unit }: RequestRate) -> RequestRateV1 {
        RequestRateV1 { per_thousand, per_thousand_lists, per_unit, unit }
    }
}

impl DatasetRequests {
    /// Returns what is billed.
    #[must_use]
    pub fn requests(&self) -> Requests {
        let rate = self.price.map_or_else(RequestRate::none, |price| {
            let RequestRateV1 { per_thousand, per_thousand_lists, per_unit, unit } = price;
            RequestRate { per_thousand, per_thousand_lists, per_unit, unit }
        });
        let plain = self.get.saturating_add(self.head);
        Requests { plain, lists: self.list, bytes: Bytes(self.bytes), rate }
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
            get: 9,
            head: 2,
            list: 1,
            failed: 0,
            bytes: 4_096,
            price: Some(price.into()),
        };
        let made = RequestsMade {
            job: JobId(7),
            attempt: 2,
            fetch: None,
            name: "gpt".to_owned(),
            user: "ada".to_owned(),
            queue: "research".to_owned(),
            from: Timestamp::from_unix_nanos(5),
            to: Timestamp::from_unix_nanos(8),
            reads: vec![reads.clone(), DatasetRequests { price: None, failed: 3, ..reads.clone() }],
        };
        let written = r#"{"v":5,"body":{"requests_made":{"job":7,"attempt":2,"name":"gpt","user":"ada","queue":"research","from":5,"to":8,"reads":[{"address":"s3://corpus/c4","get":9,"head":2,"list":1,"bytes":4096,"price":{"per_thousand":400000,"per_unit":0,"unit":1000000000}},{"address":"s3://corpus/c4","get":9,"head":2,"list":1,"failed":3,"bytes":4096}]}}}"#;
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
        assert_eq!(reads.requests(), Requests { plain: 11, lists: 1, bytes: Bytes(4_096), rate: price });
    }
}
