//! Ids, and names for runs that have none.

use super::answer::MlflowError;

const FIRST: [&str; 32] = [
    "able", "amber", "brave", "bright", "calm", "clever", "crisp", "eager", "early", "fair", "fleet", "fond", "frosty",
    "gentle", "glad", "keen", "kind", "lively", "merry", "mild", "neat", "nimble", "patient", "proud", "quick",
    "quiet", "shy", "sleek", "steady", "swift", "warm", "wise",
];
const SECOND: [&str; 32] = [
    "auk",
    "badger",
    "bear",
    "crane",
    "crow",
    "deer",
    "dog",
    "eider",
    "elk",
    "ermine",
    "finch",
    "fox",
    "goose",
    "gull",
    "hare",
    "hawk",
    "heron",
    "husky",
    "lark",
    "lynx",
    "marten",
    "moose",
    "otter",
    "owl",
    "plover",
    "ptarmigan",
    "raven",
    "seal",
    "stoat",
    "swan",
    "tern",
    "wolf",
];

/// Returns 32 random hexadecimal digits.
pub(super) fn id() -> Result<String, MlflowError> {
    Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns a random UUID (RFC 9562, version 4).
pub(super) fn uuid() -> Result<String, MlflowError> {
    let mut bytes = random()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// Returns a name such as `swift-otter-417`.
pub(super) fn name() -> Result<String, MlflowError> {
    let [first, second, high, low, ..] = random()?;
    let word = |words: &'static [&'static str; 32], byte: u8| words[usize::from(byte) % words.len()];
    let number = u16::from_be_bytes([high, low]) % 1000;
    Ok(format!("{}-{}-{number}", word(&FIRST, first), word(&SECOND, second)))
}

fn random() -> Result<[u8; 16], MlflowError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| MlflowError::internal("the system gives no random bytes"))?;
    Ok(bytes)
}
