//! Failures of a command, with the exit codes of [`Exit`].

use std::fmt::Write as _;
use std::process::ExitCode;

use gangline_api::{ErrorDetail, Exit};

use crate::output;

/// The failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The control plane refused the request.
    Api {
        /// The HTTP status.
        status: u16,
        /// The error in the answer.
        detail: ErrorDetail,
        /// The job file of the request, for the positions of problems.
        file: Option<String>,
    },
    /// The control plane can't be reached.
    Unreachable {
        /// What was tried and why it failed.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The process that answers can't prove to be the trusted control plane.
    Untrusted {
        /// Who answers, and where.
        message: String,
        /// What to do.
        hint: String,
    },
    /// Any failure on this side.
    Local {
        /// A stable code, if there is one.
        code: Option<&'static str>,
        /// What failed.
        message: String,
        /// What to do.
        hint: String,
    },
}

impl Failure {
    pub(crate) fn local(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::Local { code: None, message: message.into(), hint: hint.into() }
    }

    pub(crate) fn coded(code: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::Local { code: Some(code), message: message.into(), hint: hint.into() }
    }

    fn exit(&self) -> Exit {
        match self {
            Failure::Api { status, .. } => Exit::of_status(*status),
            Failure::Unreachable { .. } | Failure::Untrusted { .. } => Exit::Unreachable,
            Failure::Local { .. } => Exit::Failed,
        }
    }

    /// Returns the failure as the API shows it.
    pub(crate) fn detail(&self) -> ErrorDetail {
        let plain = |code: &str, message: &str, hint: &str| ErrorDetail {
            code: code.to_owned(),
            message: message.to_owned(),
            hint: hint.to_owned(),
            problems: Vec::new(),
        };
        match self {
            Failure::Api { detail, .. } => detail.clone(),
            Failure::Unreachable { message, hint } => plain("G0501", message, hint),
            Failure::Untrusted { message, hint } => plain("G0511", message, hint),
            Failure::Local { code, message, hint } => plain(code.unwrap_or(""), message, hint),
        }
    }

    /// Prints the failure on stderr and returns the exit code.
    pub(crate) fn report(&self, is_json: bool) -> ExitCode {
        let detail = self.detail();
        if is_json {
            let body = serde_json::json!({ "error": detail });
            output::tell(&body.to_string());
        } else {
            output::tell(self.render(&detail).trim_end());
        }
        ExitCode::from(self.exit().code())
    }

    fn render(&self, detail: &ErrorDetail) -> String {
        let mut text = String::new();
        let file = match self {
            Failure::Api { file: Some(file), .. } => file.as_str(),
            _ => "job file",
        };
        for problem in &detail.problems {
            let place = if problem.place.starts_with("--set") {
                problem.place.clone()
            } else {
                format!("{file}:{}", problem.place)
            };
            let hint = if problem.hint.is_empty() { String::new() } else { format!(" ({})", problem.hint) };
            // Writing to a String can't fail.
            let _ = writeln!(text, "{place}: {}: {}{hint}", problem.code, problem.message);
        }
        let code = if detail.code.is_empty() { String::new() } else { format!("[{}]", detail.code) };
        let _ = writeln!(text, "error{code}: {}", detail.message);
        if !detail.hint.is_empty() {
            let _ = writeln!(text, "  hint: {}", detail.hint);
        }
        text
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::local(error.to_string(), "")
    }
}
