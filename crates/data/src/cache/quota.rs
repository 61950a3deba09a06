//! What a queue's programs may have of a cache: each range is on the account of the queue whose program fetched it, whoever reads it
//! later, and a program makes room for what it fetches among its own queue's ranges.

use std::fs;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Cache, QUEUES, put, room};
use crate::error::Error;
use crate::sealed;

/// The environment variable that says it, as `QUEUE=BYTES`.
pub const QUOTA_VARIABLE: &str = "GANGLINE_DATA_CACHE_QUOTA";
/// The most queues of a cache that are listed.
const QUEUES_MAX: usize = 1_024;

/// What a queue may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Quota {
    pub(super) queue: String,
    pub(super) bytes_max: u64,
}

/// What a queue has of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueHolding {
    /// The queue.
    pub queue: String,
    /// Bytes that its programs fetched and that are here.
    pub here: u64,
    /// The most bytes that it may have, as its last program was told.
    pub bytes_max: u64,
}

impl Quota {
    /// Reads what the variable says.
    pub(super) fn parse(text: &str) -> Result<Quota, Error> {
        let read = text.rsplit_once('=').and_then(|(queue, bytes)| Some((queue, bytes.parse().ok()?)));
        match read.filter(|(queue, _)| !queue.is_empty()) {
            Some((queue, bytes_max)) => Ok(Quota { queue: queue.to_owned(), bytes_max }),
            None => Err(Error::refused("cache_quota", format!("{QUOTA_VARIABLE} is {text:?}, not QUEUE=BYTES"))),
        }
    }

    /// The number of the queue in lists of ranges, where 0 is nobody.
    pub(super) fn owner(&self) -> u32 {
        owner_of(&self.queue)
    }

    /// Writes it down for those who list what queues have.
    pub(super) fn note(&self, cache: &Cache) -> Result<(), Error> {
        let path = cache.options.root.join(QUEUES).join(format!("{:08x}", self.owner()));
        let text = sealed::seal(self);
        if fs::read(&path).is_ok_and(|known| known == text) { Ok(()) } else { put(&path, &text) }
    }
}

fn owner_of(queue: &str) -> u32 {
    u32::try_from(xxh3_64(queue.as_bytes()) >> 32).expect("32 bits").max(1)
}

impl Cache {
    /// What queues with a quota have of the cache, by name.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn queues(&self) -> Result<Vec<QueueHolding>, Error> {
        let folder = self.options.root.join(QUEUES);
        let entries = fs::read_dir(&folder).map_err(Error::io("list", &folder))?.flatten();
        // One that is being written has an extension.
        let noted = entries.filter(|entry| entry.path().extension().is_none()).take(QUEUES_MAX);
        let quotas = noted.filter_map(|entry| sealed::unseal::<Quota>(&fs::read(entry.path()).ok()?).ok());
        let mut found = Vec::new();
        for (quota, is_intact) in quotas {
            if is_intact {
                let here = room::bytes_of(self, quota.owner())?;
                found.push(QueueHolding { queue: quota.queue, here, bytes_max: quota.bytes_max });
            }
        }
        found.sort_by(|one, other| one.queue.cmp(&other.queue));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_has_a_queue_and_bytes() {
        let quota = Quota { queue: "research/nlp".to_owned(), bytes_max: 5 };
        assert_eq!(Quota::parse("research/nlp=5").unwrap(), quota);
        for text in ["", "research", "=5", "research=", "research=5GB", "research=-1"] {
            let error = Quota::parse(text).unwrap_err().to_string();
            assert!(error.contains("GANGLINE_DATA_CACHE_QUOTA is"), "{error}");
        }
        assert_ne!(owner_of("research"), owner_of("product"));
    }
}
