//! Targets of the fuzzers (`fuzz/`): the readers of headers, indexes, manifests and states. None panics, and what they
//! accept lies in its file.

use crate::compressed;
use crate::source::fuzz;
use crate::state::State;

/// A compressed file, behind a byte that says how.
pub fn compressed(bytes: &[u8]) {
    compressed::fuzz(bytes);
}

/// The beginning of a file, an index of Megatron's, MDS's or LitData's, or a manifest.
pub fn indexes(bytes: &[u8]) {
    fuzz::indexes(bytes);
}

/// A loader's state.
pub fn state(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(state) = State::from_json(text) else { return };
    assert_eq!(State::from_json(&state.to_json()).ok(), Some(state), "a state is read back");
}
