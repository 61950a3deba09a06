//! On whose authority something happens: every request and event has a principal.

use std::fmt;

use crate::{AttemptNumber, JobId, Submitter};

/// On whose authority a request is made or an event happens. Its text form names the kind first, so a user who
/// is called "service" is told from the service: `user:ada`, `attempt:job-42/3`, `service`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    /// The control plane itself: timers, surveys of nodes, the reconciliation at a start.
    #[default]
    Service,
    /// A user, proved by a token.
    User(Submitter),
    /// The supervisors of an attempt, proved by the attempt's token.
    Attempt {
        /// The job.
        job: JobId,
        /// The attempt.
        attempt: AttemptNumber,
    },
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Service => f.write_str("service"),
            Principal::User(user) => write!(f, "user:{user}"),
            Principal::Attempt { job, attempt } => write!(f, "attempt:{job}/{}", attempt.0),
        }
    }
}

impl Principal {
    /// Returns the principal with this text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Principal> {
        match text.split_once(':') {
            None => (text == "service").then_some(Principal::Service),
            Some(("user", name)) => Some(Principal::User(Submitter(name.to_owned()))),
            Some(("attempt", rest)) => {
                let (job, attempt) = rest.strip_prefix("job-")?.split_once('/')?;
                let (job, attempt) = (JobId(job.parse().ok()?), AttemptNumber(attempt.parse().ok()?));
                Some(Principal::Attempt { job, attempt })
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_principal_is_read_as_it_is_written_and_nothing_else_is_one() {
        let user = |name: &str| Principal::User(Submitter(name.to_owned()));
        let attempt = Principal::Attempt { job: JobId(42), attempt: AttemptNumber(3) };
        let known = [
            (Principal::Service, "service"),
            (user("ada"), "user:ada"),
            (user("service"), "user:service"),
            (user("a:b/c"), "user:a:b/c"),
            (attempt, "attempt:job-42/3"),
        ];
        for (principal, text) in known {
            assert_eq!((principal.to_string().as_str(), Principal::parse(text)), (text, Some(principal.clone())));
        }
        for text in ["", "ada", "Service", "group:a", "attempt:42/3", "attempt:job-42", "attempt:job-x/1"] {
            assert_eq!(Principal::parse(text), None, "{text:?}");
        }
    }
}
