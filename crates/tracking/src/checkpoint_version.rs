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
pub enum Deed {
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
    pub deed: Deed,
    /// The alias, the folder or whatever else says more; empty if nothing does.
    pub detail: String,
}

impl Deed {
    /// All.
    pub const ALL: [Deed; 4] = [Deed::Registered, Deed::Verified, Deed::Promoted, Deed::Exported];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Deed::Registered => "registered",
            Deed::Verified => "verified",
            Deed::Promoted => "promoted",
            Deed::Exported => "exported",
        }
    }

    /// Returns the deed of a name.
    pub fn parse(name: &str) -> Option<Deed> {
        Deed::ALL.into_iter().find(|deed| deed.name() == name)
    }
}

/// Checks that an alias may point at a version that is a checkpoint with this history.
///
/// # Errors
/// If the alias asks for a verified checkpoint, and this one wasn't.
pub fn check_promotion(alias: &str, (name, version): (&str, u32), history: &[ModelEvent]) -> Result<(), Refusal> {
    let is_verified = history.iter().any(|event| event.deed == Deed::Verified);
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
        let event = |deed| ModelEvent { at: UnixMillis(1), by: "ada".into(), deed, detail: String::new() };
        let fresh = [event(Deed::Registered), event(Deed::Exported)];
        let refused = check_promotion(PRODUCTION, ("gpt", 3), &fresh).expect_err("it wasn't verified");
        assert!(refused.message.contains("gangline models verify gpt/3"), "{refused}");
        check_promotion("candidate", ("gpt", 3), &fresh).expect("any version may be one");
        check_promotion(PRODUCTION, ("gpt", 3), &[event(Deed::Verified)]).expect("it was verified");
    }

    #[test]
    fn names_of_deeds_are_read_back() {
        assert!(Deed::ALL.into_iter().all(|deed| Deed::parse(deed.name()) == Some(deed)));
        assert_eq!(Deed::parse("sold"), None);
    }
}
