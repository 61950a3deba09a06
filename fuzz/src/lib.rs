//! Fuzzers of the parsers of bytes that somebody else may have written: `cargo xtask fuzz`. All of it is in `benches/fuzz.rs`.
