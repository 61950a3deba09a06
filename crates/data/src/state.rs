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
        if text.len() > STATE_BYTES_MAX {
            return Err(problem(format!(
                "a state of {} bytes is no loader's, which have {STATE_BYTES_MAX} at most",
                text.len()
            )));
        }
        let state: State =
            serde_json::from_str(text).map_err(|error| problem(format!("no state of a loader: {error}")))?;
        state.check_version()?;
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
