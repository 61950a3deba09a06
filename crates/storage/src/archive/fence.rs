//! The fence: once another program has taken over the lease of an archive, no change by the former owner
//! succeeds.
//!
//! A lease alone doesn't guarantee that: its owner may be suspended between checking its lease and putting
//! its catalog. So where a remote keeps conditions (`Link::keeps_conditions`), a catalog or key is changed in
//! two steps. The owner first writes into its lease the object that it will change and that object's state;
//! then it changes the object on the condition that the state is still the same. Both writes are conditional,
//! and a program that takes a lease over first changes the lease, then the object that it names. So the
//! owner's change either came before the takeover or fails, whatever any clock says.
//!
//! A mark at the end of an object changes its state without changing its content. A missing object becomes a
//! mark alone, which readers skip and the next change replaces.

use gangline_objects::{Link, Object, State, Tag};
use serde::{Deserialize, Serialize};

use super::Error;
use super::vault::KeyId;

/// The magic of a mark.
const MARK_MAGIC: &[u8; 8] = b"GLfence\x01";
/// The bytes of a mark: the magic, and a random id that makes it unique.
pub(crate) const MARK_BYTES: usize = MARK_MAGIC.len() + KeyId::BYTES;

/// A change that the owner of a lease is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// The object's name.
    pub(crate) key: String,
    /// The object's state before the change; none if it doesn't exist.
    pub(crate) from: Option<Tag>,
}

impl Intent {
    /// Makes the change impossible, unless it has been made already.
    pub(crate) fn prevent(&self, link: &Link) -> Result<(), Error> {
        let state = link.state(&self.key)?;
        if state.as_ref().map(|state| &state.tag) != self.from.as_ref() {
            return Ok(());
        }
        let bytes = match state {
            None => Vec::new(),
            Some(State { bytes, .. }) => link.get(&self.key, 0..bytes)?,
        };
        // If the condition fails, the change came first.
        link.put_if(&self.key, &marked(&bytes)?, self.from.as_ref())?;
        Ok(())
    }
}

/// Returns the same object with a new mark.
fn marked(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let id = KeyId::random()?;
    Ok([unmarked(bytes), MARK_MAGIC, id.as_bytes()].concat())
}

/// Returns an object's content without its mark.
pub(crate) fn unmarked(bytes: &[u8]) -> &[u8] {
    match bytes.len().checked_sub(MARK_BYTES).map(|at| bytes.split_at(at)) {
        Some((body, mark)) if mark.starts_with(MARK_MAGIC) => body,
        _ => bytes,
    }
}

/// Reports whether an object is a mark alone: a change to it was prevented.
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
