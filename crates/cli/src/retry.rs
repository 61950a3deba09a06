//! Repeats a change whose answer was lost. Each change has an `Idempotency-Key`, so it is made once however
//! often it is sent (docs/reference/guarantees.md).

use std::io::ErrorKind;
use std::time::{Duration, Instant, SystemTime};

use crate::failure::Failure;
use crate::output;

/// The header that identifies a change.
pub(crate) const KEY_HEADER: &str = "idempotency-key";
/// Number of random bytes in a key, after the time.
const RANDOM_BYTES: usize = 10;
/// How long a change is repeated after its first answer was lost: a restarted control plane is back by then.
const RETRY_TIME_MAX: Duration = Duration::from_secs(30);
/// The first pause; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Codes of requests that weren't taken, or perhaps were: stopping or overloaded, and no answer in time.
const CODES_TO_ASK_AGAIN: [&str; 2] = ["G0308", "G0314"];

/// The reason there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nobody was reached, so the request wasn't taken.
    Unreached,
    /// The request may have been taken.
    Lost,
    /// Repeating it won't help.
    Final,
}

impl Loss {
    /// Classifies a connection's error.
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

    /// Classifies the control plane's error.
    pub(crate) fn by_answer(failure: &Failure) -> Loss {
        match failure {
            Failure::Api { detail, .. } if CODES_TO_ASK_AGAIN.contains(&detail.code.as_str()) => Loss::Lost,
            _ => Loss::Final,
        }
    }
}

/// No answer, or one that isn't a success.
pub(crate) struct Unanswered {
    /// The failure to report if the request isn't repeated.
    failure: Box<Failure>,
    loss: Loss,
}

impl Unanswered {
    pub(crate) fn new(failure: Failure, loss: Loss) -> Unanswered {
        Unanswered { failure: Box::new(failure), loss }
    }
}

/// Returns a unique key. It begins with the time in milliseconds, like a UUID of version 7 (RFC 9562, section
/// 5.7), so that keys of about the same time are neighbours in the control plane's index.
pub(crate) fn request_key() -> Result<String, Failure> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|error| Failure::local(format!("no random bytes: {error}"), ""))?;
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(key(since_epoch, random))
}

fn key(since_epoch: Duration, random: [u8; RANDOM_BYTES]) -> String {
    let time = since_epoch.as_millis() & ((1 << 48) - 1);
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{time:012x}{random}")
}

/// Calls `send` until there is an answer, or repeating is pointless. If nobody is reached at first it fails
/// at once.
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

    #[test]
    fn a_later_key_comes_after_an_earlier_one() {
        let at = |millis: u64, random: u8| key(Duration::from_millis(millis), [random; RANDOM_BYTES]);
        assert_eq!(at(1_795_540_000_000, 0xab), "01a20e861d00abababababababababab");
        assert!(at(9, 0xff) < at(10, 0) && at(0xff, 0xff) < at(0x100, 0));
    }
}
