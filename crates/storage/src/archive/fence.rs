//! The fence: what a program does to an archive whose lease another has taken over comes too late.
//!
//! A lease alone doesn't keep that promise: its owner may be suspended after it looked at its lease and before its catalog is put.
//! So where a remote keeps conditions (`Link::keeps_conditions`), a catalog or key is changed in two steps. The owner first writes
//! into its lease which object it will change and what state that is in; then it changes the object on the condition that it
//! still is. Both are conditional, and who takes a lease over first changes the lease, then the object that it names. So
//! either the owner's change came before the takeover, or it fails, whatever any clock says.
//!
//! An object is changed without a change of what it says by a mark at its end. One that isn't there becomes a mark alone, which
//! readers pass over and the next change takes the place of.

use serde::{Deserialize, Serialize};

use super::Error;
use super::remote::{Link, Object, State, Tag};
use super::vault::KeyId;

/// What a mark begins with.
const MARK_MAGIC: &[u8; 8] = b"GLfence\x01";
/// The bytes of a mark: the magic, and what makes it differ from every other.
pub(crate) const MARK_BYTES: usize = MARK_MAGIC.len() + KeyId::BYTES;

/// A change that the owner of a lease is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The object.
    pub(crate) key: String,
    /// The state it will be changed from; none if it isn't there.
    pub(crate) from: Option<Tag>,
}

impl Intent {
    /// Sees to it that the change can't be made any more, unless it was.
    pub(crate) fn prevent(&self, link: &Link) -> Result<(), Error> {
        let state = link.state(&self.key)?;
        if state.as_ref().map(|state| &state.tag) != self.from.as_ref() {
            return Ok(());
        }
        let bytes = match state {
            None => Vec::new(),
            Some(State { bytes, .. }) => link.get(&self.key, 0..bytes)?,
        };
        // If that fails for its condition, the change came first.
        link.put_if(&self.key, &marked(&bytes)?, self.from.as_ref()).map(drop)
    }
}

/// The same object, with another mark.
fn marked(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let id = KeyId::random()?;
    Ok([unmarked(bytes), MARK_MAGIC, id.as_bytes()].concat())
}

/// What an object says, without its mark.
pub(crate) fn unmarked(bytes: &[u8]) -> &[u8] {
    match bytes.len().checked_sub(MARK_BYTES).map(|at| bytes.split_at(at)) {
        Some((body, mark)) if mark.starts_with(MARK_MAGIC) => body,
        _ => bytes,
    }
}

/// Whether an object is nothing but a mark: a change that was prevented.
pub(crate) fn is_mark(object: &Object) -> bool {
    object.bytes == MARK_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_changes_the_bytes_and_not_what_they_say() {
        let [first, second] = [b"{}".as_slice(), b""].map(|bytes| marked(bytes).unwrap());
        assert_eq!((unmarked(&first), unmarked(&second)), (b"{}".as_slice(), b"".as_slice()));
        let again = marked(&first).unwrap();
        assert_eq!((again.len(), unmarked(&again)), (first.len(), unmarked(&first)), "there is only one");
        assert_ne!(again, first);
        assert_eq!(unmarked(b"GLfence\x01"), b"GLfence\x01", "too short for one");
    }
}
