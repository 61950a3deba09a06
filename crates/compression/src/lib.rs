//! The lossless tensor coder of the checkpoint store: compresses the bytes of a tensor, and restores them bit
//! for bit.
//!
//! Keeps A-1 (pure: no I/O, no clock, no threads) and A-10 (blocks, tables and lengths are limited; input is
//! checked before it is used, and decoding takes no more memory than a few blocks).
//!
//! How it works, from the outside in:
//!
//! * A tensor is cut into **blocks** of [`BLOCK_BYTES`] that are coded independently ([`Coder::encode`],
//!   [`Decoder::decode`]), so that they can be coded in parallel and read at random. [`encode_tensor`] and
//!   [`decode_tensor`] put them behind an index.
//! * A block's elements are rotated by one bit, so that a float's exponent fills a byte, and split into
//!   **byte planes**. In trained weights the exponent has 2 to 3 bits of information and the mantissa nearly
//!   8 in each byte, as ZipNN observed (Hershcovitch et al., 2024, arXiv 2411.05239).
//! * Each plane is **entropy coded**, or stored raw if a sample shows no gain: with Huffman codes (Huffman
//!   1952; canonical, at most 11 bits, four streams, as in zstd's format, RFC 8878) at [`Effort::Inline`];
//!   with range asymmetric numeral systems (Duda 2013, arXiv 1311.2540) at [`Effort::Tiering`], and where one
//!   symbol dominates.
//! * With a **base** (the same tensor in an earlier checkpoint), elements may be coded as differences of
//!   their order-preserving integers (Lindstrom and Isenburg 2006, "Fast and efficient compression of
//!   floating-point data"), and `Tiering` picks a table by the base's exponent: small weights move by more
//!   units in the last place than large ones. Each block is measured to see whether a difference pays.
//! * Without a base, the exponents of a matrix (above all Adam's moments) are predicted from the rows above
//!   and the elements to the left, at `Tiering` and if [`Source::columns`] gives the length of a row.
//! * A bf16 copy of an fp32 master need not be stored at all: [`derives_bf16`].

mod block;
mod coder;
mod contexts;
mod decoder;
mod derived;
mod element;
mod error;
mod histogram;
mod huffman;
mod model;
mod planes;
mod rans;
#[cfg(test)]
mod round_trip_tests;
mod surroundings;
mod tensor;
mod transform;
mod wire;

pub use block::{BLOCK_BYTES, BLOCK_OVERHEAD_MAX, Header, inspect};
pub use coder::{Coder, Effort, Source, Summary};
pub use decoder::Decoder;
pub use derived::{Rounding, derive_bf16, derives_bf16};
pub use element::Element;
pub use error::Error;
pub use tensor::{Layout, decode_tensor, encode_tensor, layout};
pub use transform::Transform;
