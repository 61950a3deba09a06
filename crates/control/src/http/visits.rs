//! Visits to the page: a link is good once and for a few minutes, and opens a session that is good for reading only. What
//! ends up in a log, a browser's history or over somebody's shoulder opens nothing afterwards. All of it lives in memory,
//! so a restart ends it: who takes the port while the control plane is down may be shown a browser's cookie, but one that is
//! worth nothing any more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::secret::random;

/// For how long a link is good.
pub const LINK_TIME_MAX: Duration = Duration::from_secs(600);
/// How many links may be good at a time; the oldest goes first.
const LINKS_MAX: usize = 16;
/// For how long a session is good.
pub(super) const SESSION_TIME_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How many sessions may be good at a time; the oldest goes first.
const SESSIONS_MAX: usize = 256;

/// The links and sessions that are good now.
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
    /// The path of a new link to the page, with its code.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn link(&self) -> io::Result<String> {
        let code = random()?;
        remember(&mut self.known().links, LINKS_MAX, &code, LINK_TIME_MAX);
        Ok(format!("/?code={code}"))
    }

    /// A session for a link's code, if it was good. It is so no more.
    pub(super) fn open(&self, code: &str) -> io::Result<Option<String>> {
        let mut known = self.known();
        let Some(place) = find(&known.links, code) else { return Ok(None) };
        let session = random()?;
        known.links.remove(place);
        remember(&mut known.sessions, SESSIONS_MAX, &session, SESSION_TIME_MAX);
        Ok(Some(session))
    }

    /// Whether this is a session.
    pub(super) fn is_open(&self, session: &str) -> bool {
        find(&self.known().sessions, session).is_some()
    }

    /// Ends all links and sessions.
    pub(super) fn end(&self) {
        *self.known() = Known::default();
    }

    /// What is in there is whole between any two statements that could panic.
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
