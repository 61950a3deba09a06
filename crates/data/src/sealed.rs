//! JSON that carries its own checksum: `{"content": ..., "xxh3": "..."}`, the checksum being of the content's JSON.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of data that have a checksum together.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    content: T,
    xxh3: String,
}

/// The text of a value, with its checksum.
pub(crate) fn seal<T: Serialize>(content: &T) -> Vec<u8> {
    let xxh3 = sum(content);
    serde_json::to_vec(&Sealed { content, xxh3 }).expect("it has string keys and plain values")
}

/// Reads a value, and whether its checksum is right.
pub(crate) fn unseal<T: Serialize + DeserializeOwned>(text: &[u8]) -> serde_json::Result<(T, bool)> {
    let Sealed { content, xxh3 } = serde_json::from_slice(text)?;
    let is_intact = sum(&content) == xxh3;
    Ok((content, is_intact))
}

/// A checksum as it is written.
pub(crate) fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}

fn sum<T: Serialize>(content: &T) -> String {
    hex(xxh3_64(&serde_json::to_vec(content).expect("it has string keys and plain values")))
}
