//! The metadata that a trainer saves with the tensors: text by name, and the types of numbers and booleans.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::within;

/// The most bytes of metadata, names and values together.
pub const METADATA_BYTES_MAX: usize = 64 << 10;

/// The beginning of the names by which a trainer's libraries say where a checkpoint came from, such as `gangline.data`. Ranks
/// of a gang needn't agree on these: rank 0's are kept.
pub const ORIGIN_PREFIX: &str = "gangline.";

/// The original type of a value that is stored as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteType {
    /// An integer, in decimal.
    Integer,
    /// A floating-point number, as the shortest text that parses to it; also `nan`, `inf` and `-inf`.
    Float,
    /// `true` or `false`.
    Boolean,
}

/// Types of metadata values by name; values without a type are text.
pub type NoteTypes = BTreeMap<String, NoteType>;

impl NoteType {
    /// Reports whether the text is a value of this type.
    #[must_use]
    pub fn fits(self, text: &str) -> bool {
        match self {
            NoteType::Integer => {
                let digits = text.strip_prefix('-').unwrap_or(text);
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            }
            NoteType::Float => text.parse::<f64>().is_ok(),
            NoteType::Boolean => matches!(text, "true" | "false"),
        }
    }
}

/// Checks metadata before it is saved.
pub(crate) fn check(metadata: &BTreeMap<String, String>, types: &NoteTypes) -> Result<(), Error> {
    let bytes = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    within("bytes of metadata", bytes, METADATA_BYTES_MAX)?;
    match fault(metadata, types) {
        Some(why) => Err(Error::InvalidOptions { why }),
        None => Ok(()),
    }
}

/// Returns the rule that the types break, if any.
pub(crate) fn fault(metadata: &BTreeMap<String, String>, types: &NoteTypes) -> Option<&'static str> {
    let fits = |(name, kind): (&String, &NoteType)| metadata.get(name).is_some_and(|text| kind.fits(text));
    (!types.iter().all(fits)).then_some("a note of the metadata isn't of the type that it is said to be")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fits_the_type_that_it_reads_back_as() {
        let check = |kind: NoteType, good: &[&str], bad: &[&str]| {
            good.iter().for_each(|text| assert!(kind.fits(text), "{text}"));
            bad.iter().for_each(|text| assert!(!kind.fits(text), "{text}"));
        };
        check(NoteType::Integer, &["0", "-7", "123456789012345678901234567890"], &["", "-", "1.5", "+1", " 1"]);
        check(NoteType::Float, &["0.5", "1e-08", "nan", "inf", "-inf", "3"], &["", "low"]);
        check(NoteType::Boolean, &["true", "false"], &["True", "1"]);
    }
}
