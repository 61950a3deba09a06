//! Visits to the page: a link works once and for a few minutes, and opens a session that allows reading only.
//! A link found later in a log or a browser's history opens nothing. Links and sessions live in memory, so a
//! restart ends them: whoever takes the port while the control plane is down may receive a browser's cookie,
//! but that cookie is worthless by then.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gangline_control::secret::random;

/// How long a link is valid.
pub const LINK_TIME_MAX: Duration = Duration::from_secs(600);
/// The most valid links; the oldest is dropped first.
const LINKS_MAX: usize = 16;
/// How long a session is valid.
pub(super) const SESSION_TIME_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The most valid sessions; the oldest is dropped first.
const SESSIONS_MAX: usize = 256;

/// The links and sessions that are valid now.
#[derive(Clone, Debug, Default)]
pub struct Visits(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    links: Vec<Secret>,
    sessions: Vec<Secret>,
}

#[derive(Debug)]
struct Secret {
    hash: blake3::Hash,
    until: Instant,
}

impl Visits {
    /// Returns the path of a new link to the page, with its code.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn link(&self) -> io::Result<String> {
        let code = random()?;
        remember(&mut self.known().links, LINKS_MAX, &code, LINK_TIME_MAX);
        Ok(format!("/?code={code}"))
    }

    /// Uses up a valid link's code and returns a new session for it.
    pub(super) fn open(&self, code: &str) -> io::Result<Option<String>> {
        let mut known = self.known();
        let Some(place) = find(&known.links, code) else { return Ok(None) };
        let session = random()?;
        known.links.remove(place);
        remember(&mut known.sessions, SESSIONS_MAX, &session, SESSION_TIME_MAX);
        Ok(Some(session))
    }

    /// Reports whether this session is valid.
    pub(super) fn is_open(&self, session: &str) -> bool {
        find(&self.known().sessions, session).is_some()
    }

    /// Ends all links and sessions.
    pub(super) fn end(&self) {
        *self.known() = Known::default();
    }

    /// Locks the state. A panic leaves it valid, since none can happen within a change.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(secrets: &mut Vec<Secret>, most: usize, secret: &str, time: Duration) {
    if secrets.len() >= most {
        secrets.remove(0);
    }
    secrets.push(Secret { hash: blake3::hash(secret.as_bytes()), until: Instant::now() + time });
}

fn find(secrets: &[Secret], secret: &str) -> Option<usize> {
    let (hash, now) = (blake3::hash(secret.as_bytes()), Instant::now());
    secrets.iter().position(|secret| secret.hash == hash && secret.until > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(visits: &Visits) -> String {
        let path = visits.link().expect("there is randomness");
        path.strip_prefix("/?code=").expect("a path with a code").to_owned()
    }

    fn open(visits: &Visits, code: &str) -> Option<String> {
        visits.open(code).expect("there is randomness")
    }

    #[test]
    fn a_link_is_good_once_and_only_while_it_is_fresh() {
        let visits = Visits::default();
        let (first, second) = (code(&visits), code(&visits));
        assert_ne!(first, second);
        let session = open(&visits, &first).expect("it is good");
        assert!(visits.is_open(&session) && !visits.is_open(&first));
        for bad in [first.as_str(), "", "wrong", &session] {
            assert_eq!(open(&visits, bad), None, "{bad}");
        }
        let late = Instant::now();
        visits.known().links.iter_mut().for_each(|link| link.until = late);
        assert_eq!(open(&visits, &second), None, "its time is over");
        visits.known().sessions.iter_mut().for_each(|session| session.until = late);
        assert!(!visits.is_open(&session));
    }

    /// Proves A-10 for links.
    #[test]
    fn there_are_only_so_many_and_all_can_be_ended() {
        let visits = Visits::default();
        let codes: Vec<String> = (0..=LINKS_MAX).map(|_| code(&visits)).collect();
        assert_eq!(open(&visits, &codes[0]), None, "the oldest has gone");
        let session = open(&visits, &codes[1]).expect("it is good");
        visits.end();
        assert!(!visits.is_open(&session));
        assert_eq!(open(&visits, &codes[LINKS_MAX]), None);
    }
}
