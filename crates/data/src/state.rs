//! What a checkpoint keeps of a loader: where it is in the order, and what tells that order from others.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The version of states that are written.
pub(crate) const STATE_VERSION: u32 = 1;
/// The longest state, in bytes of its JSON.
pub const STATE_BYTES_MAX: usize = 200;

/// A place in the order; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the format.
    pub version: u32,
    /// Which data.
    pub data: String,
    /// Which order: of the seed, the shuffle, the part and the weights so far.
    pub order: String,
    /// Tokens of a sample.
    pub sequence_length: u32,
    /// Batches that were trained on.
    pub steps: u64,
    /// The next sample's position in the order.
    pub sample: u64,
}

impl State {
    /// Its JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a state has string keys and plain values")
    }

    /// Reads its JSON.
    ///
    /// # Errors
    /// When it isn't a state, or of an unknown version.
    pub fn from_json(text: &str) -> Result<State, Error> {
        let problem = |problem: String| Error::OtherState { problem };
        let check_length = |bytes: usize| {
            let text = format!("a state of {bytes} bytes is no loader's, which have {STATE_BYTES_MAX} at most");
            if bytes > STATE_BYTES_MAX { Err(problem(text)) } else { Ok(()) }
        };
        check_length(text.len())?;
        let state: State =
            serde_json::from_str(text).map_err(|error| problem(format!("no state of a loader: {error}")))?;
        state.check_version()?;
        // Written without its keys, as an array, it may be shorter than it is.
        check_length(state.to_json().len())?;
        Ok(state)
    }

    pub(crate) fn check_version(&self) -> Result<(), Error> {
        if self.version == STATE_VERSION {
            return Ok(());
        }
        let problem = format!("version {} of its state is unknown here; there is {STATE_VERSION}", self.version);
        Err(Error::OtherState { problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_as_long_as_it_is_written_in_full() {
        let array = |order: usize| format!("[1,\"\",\"{}\",7,7,6]", "p".repeat(order));
        let state = State::from_json(&array(20)).expect("a state");
        assert_eq!(State::from_json(&state.to_json()).expect("the same"), state);
        let text = array(150);
        assert!(text.len() <= STATE_BYTES_MAX);
        assert!(State::from_json(&text).is_err_and(|error| error.to_string().contains("200 at most")));
    }
}
