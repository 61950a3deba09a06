//! Why the coder refuses.

use crate::Element;

/// Why something can't be coded, or isn't what was coded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller gave no whole number of elements.
    #[error("code {bytes} bytes of {element:?}: give a multiple of {}", element.size())]
    Ragged {
        /// The type of the elements.
        element: Element,
        /// Bytes given.
        bytes: usize,
    },
    /// The caller gave a base of another length than the data.
    #[error("code {bytes} bytes against a base of {base}: give a base of the same length")]
    BaseLength {
        /// Bytes of the data.
        bytes: usize,
        /// Bytes of the base.
        base: usize,
    },
    /// The caller gave more than a block holds.
    #[error("code a block of {bytes} bytes: give at most {max}")]
    BlockTooLong {
        /// Bytes given.
        bytes: usize,
        /// Bytes of a block at most.
        max: usize,
    },
    /// The block was coded against a base: give it to decode.
    #[error("decode a difference: give the base that it was coded against")]
    BaseMissing,
    /// The data was written by a newer program.
    #[error("decode version {found}: this program reads up to version {known}")]
    Version {
        /// The version found.
        found: u8,
        /// The newest version known here.
        known: u8,
    },
    /// The coded length isn't what the caller expects: a header lies, or the wrong data was fetched.
    #[error("decode {found} bytes where {expected} are expected")]
    Length {
        /// Bytes the caller makes room for.
        expected: u64,
        /// Bytes the header promises.
        found: u64,
    },
    /// The coded bytes break the format's rules: they were damaged, or never written by this coder.
    #[error("decode damaged bytes: {what}")]
    Malformed {
        /// The rule they break.
        what: &'static str,
    },
    /// All rules hold, but what was decoded isn't what was coded: damage, or the wrong base.
    #[error("decode a block: its checksum doesn't match (damaged, or not the base it was coded against)")]
    Checksum,
}

/// A rule of the format that is broken.
pub(crate) fn malformed(what: &'static str) -> Error {
    Error::Malformed { what }
}
