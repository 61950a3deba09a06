//! `retention: {logs: keep, checkpoints: keep}`: what of a job stays, whatever the control plane's configuration removes.

use std::collections::BTreeSet;

use gangline_base::Pin;

use super::field::Field;
use super::problem::Problems;
use super::values;

/// What is kept by each key.
const PINS: [(&str, Pin); 4] =
    [("logs", Pin::Logs), ("samples", Pin::Samples), ("record", Pin::Record), ("checkpoints", Pin::Checkpoints)];
/// It stays.
const KEEP: &str = "keep";
/// It goes when the configuration says so, as without the key.
const POLICY: &str = "policy";

pub(super) fn read(field: Field<'_>, problems: &mut Problems) -> Option<BTreeSet<Pin>> {
    let section = field.section(problems, "retention")?;
    let mut pins = Some(BTreeSet::new());
    for (key, pin) in PINS {
        let is_kept = section.get_or(key, false, |field| {
            field.parsed(problems, |text| values::choice(text, &[KEEP, POLICY]).map(|word| word == KEEP))
        });
        match (is_kept, &mut pins) {
            (Some(true), Some(pins)) => drop(pins.insert(pin)),
            (Some(false), _) => {}
            _ => pins = None,
        }
    }
    pins
}
