//! Ids, and names for runs that have none.

use gangline_control::ids;

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

/// Returns the id of a run.
pub(super) fn id() -> Result<String, MlflowError> {
    ids::hex_id().map_err(no_random_bytes)
}

/// Returns the id of a webhook.
pub(super) fn uuid() -> Result<String, MlflowError> {
    ids::uuid().map_err(no_random_bytes)
}

/// Returns a name such as `swift-otter-417`.
pub(super) fn name() -> Result<String, MlflowError> {
    let [first, second, high, low, ..] = ids::random_bytes().map_err(no_random_bytes)?;
    let word = |words: &'static [&'static str; 32], byte: u8| words[usize::from(byte) % words.len()];
    let number = u16::from_be_bytes([high, low]) % 1000;
    Ok(format!("{}-{}-{number}", word(&FIRST, first), word(&SECOND, second)))
}

fn no_random_bytes(_: std::io::Error) -> MlflowError {
    MlflowError::internal("the system gives no random bytes")
}
