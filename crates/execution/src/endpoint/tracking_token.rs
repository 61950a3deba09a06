//! The token by which an attempt's ranks track experiments. It is made of the attempt's own token, which it doesn't reveal, and
//! names the attempt, so that a run belongs to its job without the client's help. It opens tracking and nothing else: a script
//! sends it to whoever listens at the control plane's URL, which proves nothing.

use std::fmt;

use gangline_base::{AttemptNumber, Epoch, JobId};

/// What the proof is for; another purpose has another one.
const PURPOSE: &str = "gangline 2026-11-27 token for tracking experiments";
/// What the tokens begin with.
const PREFIX: &str = "rank";

/// A token for tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackingToken {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptNumber,
    /// The epoch in which the attempt began.
    pub epoch: Epoch,
    proof: blake3::Hash,
}

impl TrackingToken {
    /// Makes the token of an attempt.
    #[must_use]
    pub fn of(job: JobId, attempt: AttemptNumber, epoch: Epoch, attempt_token: &str) -> TrackingToken {
        let proof = blake3::Hash::from_bytes(blake3::derive_key(PURPOSE, attempt_token.as_bytes()));
        TrackingToken { job, attempt, epoch, proof }
    }

    /// Reads a token, without knowing whether it is an attempt's.
    #[must_use]
    pub fn read(text: &str) -> Option<TrackingToken> {
        let mut parts = text.split('.');
        let (PREFIX, job, attempt, epoch, proof) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?)
        else {
            return None;
        };
        let token = TrackingToken {
            job: JobId(job.parse().ok()?),
            attempt: AttemptNumber(attempt.parse().ok()?),
            epoch: Epoch(u64::from_str_radix(epoch, 16).ok()?),
            proof: blake3::Hash::from_hex(proof).ok()?,
        };
        parts.next().is_none().then_some(token)
    }

    /// Reports whether the token was made of the attempt's own. The comparison takes the same time whatever it finds.
    #[must_use]
    pub fn is_of(&self, attempt_token: &str) -> bool {
        *self == TrackingToken::of(self.job, self.attempt, self.epoch, attempt_token)
    }
}

impl fmt::Display for TrackingToken {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrackingToken { job, attempt, epoch, proof } = self;
        write!(to, "{PREFIX}.{}.{}.{:016x}.{}", job.0, attempt.0, epoch.0, proof.to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_attempt_and_hides_the_attempts_own() {
        let token = TrackingToken::of(JobId(7), AttemptNumber(3), Epoch(0xab), "secret");
        let text = token.to_string();
        assert!(text.starts_with("rank.7.3.00000000000000ab.") && !text.contains("secret"));
        let read = TrackingToken::read(&text).expect("it is one");
        assert!(read.is_of("secret") && !read.is_of("another"));
    }

    #[test]
    fn a_token_of_one_attempt_is_none_of_another() {
        let text = TrackingToken::of(JobId(7), AttemptNumber(3), Epoch(1), "secret").to_string();
        // The proof alone says which attempt's token it was made of; the server looks that one up by the names.
        let other = TrackingToken::read(&text.replace("rank.7.3", "rank.8.3")).expect("it reads");
        assert!(!other.is_of("the other attempt's secret"));
        for wrong in ["", "rank", "rank.7.3.1", "user.7.3.1.00", "rank.x.3.1.00", &format!("{text}.x")] {
            assert_eq!(TrackingToken::read(wrong), None, "{wrong}");
        }
    }
}
