//! Errors about an archive's keys, one variant for each decision a caller can make. Messages contain no key
//! material, only ids.

use std::io;
use std::path::PathBuf;

use super::KeyId;

/// Why a key was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key's file can't be read.
    #[error("read the key file {}", path.display())]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Users other than the owner may read or change the key's file.
    #[error("use the key file {}: its mode is {mode:03o}, so others may read or change it; run chmod 600 on it", path.display())]
    FileOpenToOthers {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// The file doesn't hold a key.
    #[error("use the key file {}: it has {bytes} bytes or more, which are neither 32 bytes nor 64 hexadecimal digits", path.display())]
    FileMalformed {
        /// The file.
        path: PathBuf,
        /// The number of bytes read.
        bytes: usize,
    },
    /// The operating system gave no random numbers.
    #[error("make a key: the operating system gives no random numbers")]
    Randomness,
    /// The archive is encrypted, and no key was given.
    #[error("open the archive: it is encrypted; give the file of key {}", listed(wanted))]
    Needed {
        /// The ids of keys that open it.
        wanted: Vec<KeyId>,
    },
    /// The key given doesn't open this archive.
    #[error("open the archive with key {given}: it takes key {}; give that one's file", listed(wanted))]
    Wrong {
        /// The id of the key given.
        given: KeyId,
        /// The ids of keys that open it.
        wanted: Vec<KeyId>,
    },
    /// A key was given, and the archive has checkpoints that aren't encrypted.
    #[error(
        "open the archive with a key: what it holds isn't encrypted; leave the key out, or push to a new archive, which is \
         encrypted from the first"
    )]
    Unneeded,
    /// Some of the archive's keys are wrapped for the given key, and some aren't: a rotation is in progress
    /// or was interrupted, or somebody restored old objects.
    #[error(
        "open {object} with key {given}: it isn't wrapped for that key as newly as others of the archive's keys are, but for {}; \
         run the rotation again with the old key, or put the newest keys/ back from a copy",
        listed(wanted)
    )]
    Unwrapped {
        /// The wrapped key's object.
        object: String,
        /// The id of the key given.
        given: KeyId,
        /// The ids of keys that it is wrapped for.
        wanted: Vec<KeyId>,
    },
    /// A wrapped key was changed, or belongs to another archive.
    #[error("unwrap {object}: it was changed since it was wrapped, or is another archive's; put it back from a copy")]
    Altered {
        /// The wrapped key's object.
        object: String,
    },
    /// An object was encrypted with a key that the archive doesn't have.
    #[error("open {object}: its key keys/{key}.json isn't in the archive; put it back from a copy")]
    Lost {
        /// The encrypted object.
        object: String,
        /// The id of its key.
        key: KeyId,
    },
    /// The keys are older than the objects they have encrypted.
    #[error(
        "open {object}: it is of generation {found} of the archive's keys, and those in keys/ are of generation {known}; \
         somebody put old keys back: put the newest there"
    )]
    RolledBack {
        /// The encrypted object.
        object: String,
        /// The object's generation of keys.
        found: u64,
        /// The generation of the keys in the archive.
        known: u64,
    },
    /// Keys can be made only for an empty archive.
    #[error("make keys for the archive: it has {what} already")]
    Taken {
        /// The existing content.
        what: &'static str,
    },
    /// A plain archive has no keys to rotate or show.
    #[error("rotate the archive's keys: it isn't encrypted")]
    Plain,
    /// A rotation to the same key that makes no new data key changes nothing.
    #[error("rotate the archive's keys: the new key is the old one; give another, or ask for a new data key")]
    Unchanged,
}

fn listed(ids: &[KeyId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}
