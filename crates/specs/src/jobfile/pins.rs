//! The key `retention: {logs: keep, checkpoints: keep}`: data of a job that stays, whatever the configuration
//! removes.

use std::collections::BTreeSet;

use gangline_base::Pin;

use super::field::Field;
use super::problem::Problems;
use super::values;

/// The data that each key keeps.
const PINS: [(&str, Pin); 3] = [("logs", Pin::Logs), ("record", Pin::Record), ("checkpoints", Pin::Checkpoints)];
/// The data stays.
const KEEP: &str = "keep";
/// The configuration decides, as without the key.
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
