//! Errors that are the platform's own: it lacks something for a while, or for good, which no job can help. What fails by one is
//! tried again later and counts for nothing.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// What the system says when it has no file descriptors, processes, memory, buffers or disk space left, or when a disk doesn't work.
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

/// Whether an error is the platform's own.
pub(crate) fn is_platforms(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| PLATFORMS.contains(&errno))
}

/// Why something could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// It is the platform's own.
    pub(crate) is_platforms: bool,
}

impl Problem {
    /// What was being done, and what the system said.
    pub(crate) fn of(doing: impl Display, error: &io::Error) -> Problem {
        Problem { message: format!("{doing}: {error}"), is_platforms: is_platforms(error) }
    }

    /// One of what was asked for.
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
