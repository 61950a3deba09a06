//! How much data is stored somewhere from some time on, as stored on disk: measured by the control plane, or by the jobs that push
//! to an archive.

use gangline_accounting::bill::{StorageClass, StorageRate, Stored};
use gangline_base::{Bytes, JobId, Money};
use serde::{Deserialize, Serialize};

use super::{VERSION_STORAGE, encode};

/// A measurement of stored data that differs from the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageMeasured {
    /// The folder, or the address of an archive.
    pub folder: String,
    /// What the data is for.
    pub class: StorageClassV1,
    /// Its size on the disk.
    pub bytes: Bytes,
    /// The job that it is charged to; `None` for what all jobs share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<StorageOwner>,
    /// The price, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<StorageRateV1>,
}

/// Whom stored data is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageOwner {
    /// The job.
    pub job: JobId,
    /// The name in its job file.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// The queue that it waited in.
    pub queue: String,
}

/// What data is for; see [`StorageClass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageClassV1 {
    /// A job's checkpoints.
    Checkpoints,
    /// Checkpoints in an archive, whose address is in place of the folder.
    Archives,
    /// Logs of jobs.
    Logs,
    /// The control plane's own.
    Platform,
}

/// A price of storage; see [`StorageRate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageRateV1 {
    /// What the unit costs for a month.
    pub per_month: Money,
    /// The unit.
    pub unit: Bytes,
    /// The hours of a month.
    pub month_hours: u32,
}

impl From<StorageClass> for StorageClassV1 {
    fn from(class: StorageClass) -> StorageClassV1 {
        match class {
            StorageClass::Checkpoints => StorageClassV1::Checkpoints,
            StorageClass::Archives => StorageClassV1::Archives,
            StorageClass::Logs => StorageClassV1::Logs,
            StorageClass::Platform => StorageClassV1::Platform,
        }
    }
}

impl From<StorageRate> for StorageRateV1 {
    fn from(StorageRate { per_month, unit, month_hours }: StorageRate) -> StorageRateV1 {
        StorageRateV1 { per_month, unit, month_hours }
    }
}

impl StorageMeasured {
    /// Returns what is stored.
    #[must_use]
    pub fn stored(&self) -> Stored {
        let class = match self.class {
            StorageClassV1::Checkpoints => StorageClass::Checkpoints,
            StorageClassV1::Archives => StorageClass::Archives,
            StorageClassV1::Logs => StorageClass::Logs,
            StorageClassV1::Platform => StorageClass::Platform,
        };
        let price = self.price.map(|StorageRateV1 { per_month, unit, month_hours }| StorageRate {
            per_month,
            unit,
            month_hours,
        });
        Stored { class, bytes: self.bytes, price }
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Body<'a> {
            StorageMeasured(&'a StorageMeasured),
        }
        encode(VERSION_STORAGE, Body::StorageMeasured(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Noted, Recorded, decode_entry};

    /// Proves A-9: every later version reads what this version wrote.
    #[test]
    fn a_measurement_reads_back_and_stays_readable() {
        let owner = StorageOwner {
            job: JobId(7),
            name: "gpt".to_owned(),
            user: "ada".to_owned(),
            queue: "research".to_owned(),
        };
        let price =
            StorageRate { per_month: Money::from_nano_dollars(23_000_000), unit: Bytes(1 << 30), month_hours: 730 };
        let measured = StorageMeasured {
            folder: "/lustre/gpt".to_owned(),
            class: StorageClass::Checkpoints.into(),
            bytes: Bytes(4_096),
            owner: Some(owner),
            price: Some(price.into()),
        };
        let written = r#"{"v":5,"body":{"storage_measured":{"folder":"/lustre/gpt","class":"checkpoints","bytes":4096,"owner":{"job":7,"name":"gpt","user":"ada","queue":"research"},"price":{"per_month":23000000,"unit":1073741824,"month_hours":730}}}}"#;
        assert_eq!(String::from_utf8_lossy(&measured.encode()), written);
        let read = |body: &[u8]| match decode_entry(body) {
            Ok(Recorded::Noted(noted)) => *noted,
            other => panic!("not a note: {other:?}"),
        };
        assert_eq!(read(written.as_bytes()), Noted::Storage(measured.clone()));
        assert_eq!(
            measured.stored(),
            Stored { class: StorageClass::Checkpoints, bytes: Bytes(4_096), price: Some(price) }
        );
        let less = StorageMeasured { owner: None, price: None, ..measured };
        assert_eq!(read(&less.encode()), Noted::Storage(less));
    }
}
