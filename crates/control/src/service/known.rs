//! The idempotency keys under which an answer may be stored. Almost every key is new, and this set says so
//! without a database query, which would cost more than the rest of the request.
//!
//! The set holds the newest [`ANSWERS_MAX`] keys at least, and every key with a stored answer, since no more
//! answers than that are stored. A key in the set may have no answer, because its change was refused or its
//! answer was removed: the database decides.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

use gangline_store::db::Reader;
use gangline_store::model::{ANSWERS_MAX, RequestKey};
use gangline_store::ports::Queries as _;

/// A set of keys. The service's thread adds to it; every handle reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownKeys {
    known: Arc<Mutex<Known>>,
}

/// Two generations, so that old keys can be dropped all at once.
#[derive(Debug, Default)]
struct Known {
    newer: HashSet<u64>,
    older: HashSet<u64>,
    /// The stored answers couldn't be read, so any key may have one.
    is_unsure: bool,
}

impl KnownKeys {
    /// Adds the keys of all durable answers.
    pub(super) fn learn(&self, reader: &Reader) {
        let keys = reader.answer_keys(&mut |user, key| self.add(user, key));
        if let Err(error) = keys {
            warn!(%error, "the answers that are kept can't be read; they are looked for one by one");
            self.known().is_unsure = true;
        }
    }

    /// Adds a key, before its answer is stored.
    pub(super) fn add(&self, user: &str, key: &str) {
        let hash = hash_of(user, key);
        let mut known = self.known();
        if known.newer.len() >= ANSWERS_MAX {
            known.older = std::mem::take(&mut known.newer);
        }
        known.newer.insert(hash);
    }

    /// Reports whether an answer may be stored under this key.
    pub(super) fn may_have(&self, key: &RequestKey) -> bool {
        let hash = hash_of(&key.user, &key.key);
        let known = self.known();
        known.is_unsure || known.newer.contains(&hash) || known.older.contains(&hash)
    }

    /// Locks the set. A panic while it was locked leaves it valid, since each change to it is atomic.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes a key. A collision only costs a database query.
fn hash_of(user: &str, key: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let length = u64::try_from(user.len()).expect("u64 holds a usize on Linux");
    hasher.update(&length.to_le_bytes()).update(user.as_bytes()).update(key.as_bytes());
    let mut half = [0; 8];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str, key: &str) -> RequestKey {
        RequestKey { user: user.to_owned(), key: key.to_owned(), request: blake3::hash(b"") }
    }

    #[test]
    fn while_the_kept_answers_cannot_be_read_any_key_may_have_one() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("journal.sqlite"), "").expect("the folder is writable");
        let reader = Reader::open(folder.path()).expect("it is there, and without tables");
        let keys = KnownKeys::default();
        assert!(!keys.may_have(&key("ada", "k")));
        keys.learn(&reader);
        assert!(keys.may_have(&key("ada", "k")));
    }

    /// Proves A-10 for keys.
    #[test]
    fn the_newest_keys_are_known_and_only_so_many_more() {
        let keys = KnownKeys::default();
        for number in 0..3 * ANSWERS_MAX {
            keys.add("ada", &number.to_string());
        }
        let newest = 2 * ANSWERS_MAX..3 * ANSWERS_MAX;
        assert!(newest.into_iter().all(|number| keys.may_have(&key("ada", &number.to_string()))));
        assert!(!keys.may_have(&key("ada", "0")), "an old one is forgotten");
        assert!(!keys.may_have(&key("eve", "299999")), "a key is its user's own");
        let known = keys.known();
        assert!(known.newer.len() + known.older.len() <= 2 * ANSWERS_MAX);
    }
}
