//! Exit codes of commands that call the API.

/// How a command ends when the API returns an error or doesn't answer. A command line that can't be parsed
/// ends with 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The request failed.
    Failed,
    /// The named thing doesn't exist, or no longer does.
    NotFound,
    /// The request was understood and refused.
    Refused,
    /// The API doesn't answer, or its server isn't trusted.
    Unreachable,
}

impl Exit {
    /// Returns how a command ends after this HTTP status, which isn't a success.
    #[must_use]
    pub fn of_status(status: u16) -> Exit {
        match status {
            404 | 410 => Exit::NotFound,
            401 | 403 | 422 | 429 => Exit::Refused,
            _ => Exit::Failed,
        }
    }

    /// Returns the exit code, which is stable.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Exit::Failed => 1,
            Exit::NotFound => 3,
            Exit::Refused => 4,
            Exit::Unreachable => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_exit_code() {
        let codes = [400, 401, 403, 404, 409, 410, 422, 429, 500, 503].map(|status| Exit::of_status(status).code());
        assert_eq!(codes, [1, 4, 4, 3, 1, 3, 4, 4, 1, 1]);
        assert_eq!(Exit::Unreachable.code(), 5);
    }
}
