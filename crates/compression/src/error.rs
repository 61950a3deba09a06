//! Errors of the coder.

use crate::Element;

/// Why data can't be coded, or isn't valid coded data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The length isn't a whole number of elements.
    #[error("code {bytes} bytes of {element:?}: give a multiple of {}", element.size())]
    Ragged {
        /// The type of the elements.
        element: Element,
        /// Bytes given.
        bytes: usize,
    },
    /// The base and the data differ in length.
    #[error("code {bytes} bytes against a base of {base}: give a base of the same length")]
    BaseLength {
        /// Bytes of the data.
        bytes: usize,
        /// Bytes of the base.
        base: usize,
    },
    /// The data is longer than a block.
    #[error("code a block of {bytes} bytes: give at most {max}")]
    BlockTooLong {
        /// Bytes given.
        bytes: usize,
        /// The most bytes of a block.
        max: usize,
    },
    /// The block was coded against a base, which is needed to decode it.
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
    /// The coded length isn't the expected one: a header is wrong, or the wrong data was fetched.
    #[error("decode {found} bytes where {expected} are expected")]
    Length {
        /// The expected bytes.
        expected: u64,
        /// The bytes in the header.
        found: u64,
    },
    /// The coded bytes break the format's rules: they are damaged, or not from this coder.
    #[error("decode damaged bytes: {what}")]
    Malformed {
        /// The rule that is broken.
        what: &'static str,
    },
    /// The format is valid, but the decoded bytes differ from the coded ones: damage, or the wrong base.
    #[error("decode a block: its checksum doesn't match (damaged, or not the base it was coded against)")]
    Checksum,
}

/// Returns a `Malformed` error.
pub(crate) fn malformed(what: &'static str) -> Error {
    Error::Malformed { what }
}
