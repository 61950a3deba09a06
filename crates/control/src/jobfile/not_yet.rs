//! What is part of the job file but not of the Engine yet: checked like everything else and then refused, never ignored.

use super::field::Section;
use super::problem::{Code, Problems, Refusal};

/// The most standby nodes.
const SPARES_MAX: u32 = 1_024;

/// Checks the keys that the Engine does not honour yet and then refuses them.
pub(super) fn refuse(top: &Section<'_>, problems: &mut Problems) {
    if let Some(field) = top.get("spares")
        && field.count(problems, 0..=SPARES_MAX).is_some_and(|spares| spares > 0)
    {
        problems
            .add(field.place(), refusal("\"spares\"", "leave it out; a lost node's gang is placed again elsewhere"));
    }
}

/// The refusal of something that is right but not honoured yet.
pub(super) fn refusal(what: &str, hint: impl Into<String>) -> Refusal {
    Refusal::new(Code::NotYetSupported, format!("not yet supported: {what}")).hint(hint)
}
