//! The table `[smtp]`: the server by which notices are mailed. Without it no job may ask for mail.

use gangline_base::EmailAddress;
use serde::Deserialize;

/// The server by which notices are mailed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smtp {
    /// The server's name or address.
    pub host: String,
    /// The port; by default the usual one of how the connection is protected.
    pub port: Option<u16>,
    /// How the connection is protected.
    pub security: SmtpSecurity,
    /// The sender.
    pub from: EmailAddress,
    /// The user's name, and the file with the password; relative paths start at the configuration's folder.
    pub login: Option<(String, String)>,
}

/// How a connection to a mail server is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpSecurity {
    /// TLS from the first byte (port 465).
    #[default]
    Tls,
    /// TLS by STARTTLS, without which nothing is sent (port 587).
    Starttls,
    /// None (port 25): for a relay on the same machine.
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SmtpV1 {
    host: String,
    port: Option<u16>,
    #[serde(default)]
    security: SmtpSecurity,
    from: String,
    username: Option<String>,
    password_file: Option<String>,
}

impl SmtpV1 {
    /// Returns the server; an error says which value is invalid.
    pub(super) fn read(self) -> Result<Smtp, String> {
        let SmtpV1 { host, port, security, from, username, password_file } = self;
        if host.is_empty() {
            return Err("host is empty".to_owned());
        }
        let from = EmailAddress::new(&from).map_err(|why| format!("from {why}"))?;
        let login = match (username, password_file) {
            (None, None) => None,
            (Some(username), Some(file)) => Some((username, file)),
            _ => return Err("username and password_file belong together".to_owned()),
        };
        if login.is_some() && security == SmtpSecurity::None {
            return Err("a password isn't sent without TLS: set security to tls or starttls".to_owned());
        }
        Ok(Smtp { host, port, security, from, login })
    }
}

#[cfg(test)]
mod tests {
    use super::SmtpSecurity;
    use crate::config::Config;

    #[test]
    fn a_mail_server_is_named_whole_or_refused() {
        let read = |text: &str| Config::parse(&format!("[smtp]\n{text}")).map(|config| config.smtp);
        let whole = "host = 'mail'\nfrom = 'gangline@example.org'\n";
        let found = read(whole).expect("sound").expect("a server");
        assert_eq!((found.host.as_str(), found.security, found.login), ("mail", SmtpSecurity::Tls, None));
        assert_eq!(Config::default().smtp, None);
        let check = |text: &str, part: &str| {
            let message = read(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("host = 'mail'", "from");
        check("host = 'mail'\nfrom = 'me'", "smtp: from is no e-mail address");
        check(&format!("{whole}username = 'me'"), "belong together");
        check(&format!("{whole}username = 'me'\npassword_file = 'p'\nsecurity = 'none'"), "without TLS");
        check(&format!("{whole}security = 'ssl'"), "ssl");
        check(&format!("{whole}pass = 'x'"), "pass");
    }
}
