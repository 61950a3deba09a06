//! Starts the thread that delivers notices of jobs, with the mail server that the configuration names.

use std::path::Path;

use gangline_control::delivery::{Courier, MailServer, Options, Security, Timing};
use gangline_specs::config::{Smtp, SmtpSecurity};

use crate::configuration::beside;
use crate::failure::Failure;
use crate::output;

/// Starts it. `path` is the configuration file's.
///
/// # Errors
/// G0505 if the password's file can't be read.
pub(crate) fn start(smtp: Option<&Smtp>, path: Option<&Path>) -> Result<Courier, Failure> {
    let mail = smtp.map(|smtp| mail_server(smtp, path)).transpose()?;
    let options = Options { mail, timing: Timing::default(), clock: output::now };
    Courier::start(options).map_err(|error| refused(&format!("the mail server can't be used: {error}")))
}

fn mail_server(smtp: &Smtp, path: Option<&Path>) -> Result<MailServer, Failure> {
    let login = smtp.login.as_ref().map(|(user, file)| {
        let file = path.map_or_else(|| file.into(), |path| beside(path, file));
        let read = std::fs::read_to_string(&file);
        let password = read.map_err(|error| refused(&format!("password_file {}: {error}", file.display())))?;
        Ok::<_, Failure>((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned()))
    });
    Ok(MailServer {
        host: smtp.host.clone(),
        port: smtp.port,
        security: match smtp.security {
            SmtpSecurity::Tls => Security::Tls,
            SmtpSecurity::Starttls => Security::Starttls,
            SmtpSecurity::None => Security::None,
        },
        from: smtp.from.clone(),
        login: login.transpose()?,
    })
}

fn refused(message: &str) -> Failure {
    let hint = "docs/reference/configuration.md describes the table [smtp]";
    Failure::coded("G0505", format!("smtp: {message}"), hint)
}
