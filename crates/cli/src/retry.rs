//! Sending a change again when its answer was lost. Each has an `Idempotency-Key`, so that it is made once however often it is
//! sent (docs/guarantees.md).

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::output;

/// The header that names a change.
pub(crate) const KEY_HEADER: &str = "idempotency-key";
/// Random bytes in a key.
const KEY_BYTES: usize = 16;
/// How long a change is sent again after its first answer was lost: a control plane that is started again is back by then.
const RETRY_TIME_MAX: Duration = Duration::from_secs(30);
/// The first pause; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Codes that say that a request wasn't taken, or perhaps was: stopping or overloaded, and no answer in time.
const CODES_TO_ASK_AGAIN: [&str; 2] = ["G0308", "G0314"];

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nobody was reached, so nothing was asked for.
    Unreached,
    /// The request may have been taken.
    Lost,
    /// Sending it again won't help.
    Final,
}

impl Loss {
    /// By what the connection ended with.
    pub(crate) fn of(error: &ureq::Error) -> Loss {
        match error {
            ureq::Error::Io(error) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::AddrNotAvailable => Loss::Unreached,
                ErrorKind::InvalidData | ErrorKind::PermissionDenied => Loss::Final,
                _ => Loss::Lost,
            },
            ureq::Error::ConnectionFailed => Loss::Unreached,
            ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => Loss::Lost,
            _ => Loss::Final,
        }
    }

    /// By what the control plane said.
    pub(crate) fn by_answer(failure: &Failure) -> Loss {
        match failure {
            Failure::Api { detail, .. } if CODES_TO_ASK_AGAIN.contains(&detail.code.as_str()) => Loss::Lost,
            _ => Loss::Final,
        }
    }
}

/// No answer, or one that isn't a success.
pub(crate) struct Unanswered {
    /// What to tell if it isn't sent again.
    failure: Box<Failure>,
    loss: Loss,
}

impl Unanswered {
    pub(crate) fn new(failure: Failure, loss: Loss) -> Unanswered {
        Unanswered { failure: Box::new(failure), loss }
    }
}

/// A key that nobody else has.
pub(crate) fn request_key() -> Result<String, Failure> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Failure::local(format!("no random bytes: {error}"), ""))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Calls `send` until there is an answer, or it is no use. One that nobody was there to take at first fails at once.
pub(crate) fn until_answered<T>(mut send: impl FnMut() -> Result<T, Unanswered>) -> Result<T, Failure> {
    let mut lost_at: Option<Instant> = None;
    let mut pause = PAUSE_MIN;
    loop {
        let Unanswered { failure, loss } = match send() {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        let is_hopeless = loss == Loss::Final || loss == Loss::Unreached && lost_at.is_none();
        if is_hopeless || lost_at.is_some_and(|at| at.elapsed() >= RETRY_TIME_MAX) {
            return Err(*failure);
        }
        if lost_at.is_none() {
            lost_at = Some(Instant::now());
            output::tell("no answer came; the request is sent again, and is done once");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(losses: &[Loss], expected: (bool, usize)) {
        let mut sent = 0;
        let answered = until_answered(|| {
            sent += 1;
            losses.get(sent - 1).map_or(Ok(()), |loss| Err(Unanswered::new(Failure::local("lost", ""), *loss)))
        });
        assert_eq!((answered.is_ok(), sent), expected, "{losses:?}");
    }

    #[test]
    fn only_what_may_have_been_taken_is_sent_again() {
        check(&[], (true, 1));
        check(&[Loss::Unreached], (false, 1));
        check(&[Loss::Final], (false, 1));
        check(&[Loss::Lost, Loss::Unreached, Loss::Lost], (true, 4));
        check(&[Loss::Lost, Loss::Final], (false, 2));
    }

    #[test]
    fn no_two_keys_are_alike() {
        let keys: Vec<String> = (0..100).map(|_| request_key().expect("random bytes")).collect();
        assert!(keys.iter().enumerate().all(|(place, key)| key.len() == 32 && !keys[..place].contains(key)));
    }
}
