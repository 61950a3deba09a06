//! Versions of models that are checkpoints: what was done with them, and when one may be promoted.

use crate::{Refusal, UnixMillis};

/// The alias that only a verified checkpoint gets.
pub const PRODUCTION: &str = "production";

/// The checkpoint that a version of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointVersion {
    /// The folder of checkpoints that it was saved in.
    pub folder: String,
    /// Its step.
    pub step: u64,
    /// Hash over its step and every tensor, as 64 hexadecimal digits.
    pub content_hash: String,
    /// The folder that keeps it, whatever happens to the one it was saved in.
    pub pin: String,
    /// Where it came from, as a document of the API, written when the version was made.
    pub lineage: String,
}

/// What was done with a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// The version was made.
    Registered,
    /// Every byte was read and compared with its hash.
    Verified,
    /// An alias was pointed at it.
    Promoted,
    /// Its tensors were written to a folder for other tools.
    Exported,
}

/// An entry in the history of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEvent {
    /// When.
    pub at: UnixMillis,
    /// Who.
    pub by: String,
    /// What.
    pub action: ModelAction,
    /// The alias, the folder or whatever else says more; empty if nothing does.
    pub detail: String,
}

impl ModelAction {
    /// All.
    pub const ALL: [ModelAction; 4] =
        [ModelAction::Registered, ModelAction::Verified, ModelAction::Promoted, ModelAction::Exported];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ModelAction::Registered => "registered",
            ModelAction::Verified => "verified",
            ModelAction::Promoted => "promoted",
            ModelAction::Exported => "exported",
        }
    }

    /// Returns the action of a name.
    pub fn parse(name: &str) -> Option<ModelAction> {
        ModelAction::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Checks that an alias may point at a version that is a checkpoint with this history.
///
/// # Errors
/// If the alias asks for a verified checkpoint, and this one wasn't.
pub fn check_promotion(alias: &str, (name, version): (&str, u32), history: &[ModelEvent]) -> Result<(), Refusal> {
    let is_verified = history.iter().any(|event| event.action == ModelAction::Verified);
    if alias != PRODUCTION || is_verified {
        return Ok(());
    }
    let message = format!(
        "The alias '{alias}' asks for a verified checkpoint, and version {version} of {name} wasn't verified yet: \
         gangline models verify {name}/{version} reads every byte of it"
    );
    Err(Refusal::state(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_asks_for_a_verified_checkpoint_and_other_aliases_do_not() {
        let event = |action| ModelEvent { at: UnixMillis(1), by: "ada".into(), action, detail: String::new() };
        let fresh = [event(ModelAction::Registered), event(ModelAction::Exported)];
        let refused = check_promotion(PRODUCTION, ("gpt", 3), &fresh).expect_err("it wasn't verified");
        assert!(refused.message.contains("gangline models verify gpt/3"), "{refused}");
        check_promotion("candidate", ("gpt", 3), &fresh).expect("any version may be one");
        check_promotion(PRODUCTION, ("gpt", 3), &[event(ModelAction::Verified)]).expect("it was verified");
    }

    #[test]
    fn names_of_deeds_are_read_back() {
        assert!(ModelAction::ALL.into_iter().all(|action| ModelAction::parse(action.name()) == Some(action)));
        assert_eq!(ModelAction::parse("sold"), None);
    }
}
