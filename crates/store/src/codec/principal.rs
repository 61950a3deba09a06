//! On whose authority an event happened, beside the event in its body.

use gangline_base::Principal;
use gangline_orchestration::Event;
use serde::Deserialize;

use super::entry::{event_to_disk, version_of};
use super::{Error, encode_by};

/// Encodes an event as the body of a journal record, with the principal on whose authority it happened.
#[must_use]
pub fn encode_event(event: &Event, by: &Principal) -> Vec<u8> {
    encode_by(version_of(event), by, event_to_disk(event))
}

/// Returns the principal in the body of a journal record; `None` for decisions, results of attempts, and events
/// of earlier releases.
///
/// # Errors
/// Returns an [`Error`] for a body that this version can't read.
pub fn principal_of(body: &[u8]) -> Result<Option<Principal>, Error> {
    #[derive(Deserialize)]
    struct OnlyPrincipal {
        by: Option<String>,
    }
    let by = serde_json::from_slice::<OnlyPrincipal>(body)?.by;
    by.map(|text| Principal::parse(&text).ok_or(Error::Impossible("principal"))).transpose()
}
