//! Platform errors: failures for lack of a resource, which no job can help. An operation that fails with one
//! is retried later and isn't counted against the job.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// Errors of the system when it lacks file descriptors, processes, memory, buffers or disk space, or a disk
/// fails.
const PLATFORMS: [Errno; 10] = [
    Errno::MFILE,
    Errno::NFILE,
    Errno::AGAIN,
    Errno::NOMEM,
    Errno::NOBUFS,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::ROFS,
    Errno::IO,
    Errno::STALE,
];

/// Reports whether an error is the platform's own.
pub(crate) fn is_platforms(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| PLATFORMS.contains(&errno))
}

/// The reason something could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// Whether the platform is at fault.
    pub(crate) is_platforms: bool,
}

impl Problem {
    /// Describes the operation that failed and the system's error.
    pub(crate) fn of(doing: impl Display, error: &io::Error) -> Problem {
        Problem { message: format!("{doing}: {error}"), is_platforms: is_platforms(error) }
    }

    /// Describes a problem of the job's own request.
    pub(crate) fn asked(message: String) -> Problem {
        Problem { message, is_platforms: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_resources_is_the_platforms_and_a_missing_file_is_not() {
        let of = |errno: Errno| is_platforms(&errno.into());
        assert!(of(Errno::NOSPC) && of(Errno::MFILE) && of(Errno::AGAIN));
        assert!(!of(Errno::NOENT) && !of(Errno::ACCESS) && !is_platforms(&io::Error::other("?")));
    }
}
