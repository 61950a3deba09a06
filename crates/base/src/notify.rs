//! Who is told outside the platform when a job starts or ends.

use std::collections::BTreeSet;
use std::fmt;

/// The longest URL or address, in bytes.
const BYTES_MAX: usize = 2_048;

/// Whom a job tells, and of what. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// The URL to which a notice is posted.
    pub webhook: Option<WebhookUrl>,
    /// The address to which it is mailed.
    pub email: Option<EmailAddress>,
    /// What is told.
    pub on: BTreeSet<Occasion>,
}

impl Notify {
    /// Reports whether nobody is told anything.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        (self.webhook.is_none() && self.email.is_none()) || self.on.is_empty()
    }

    /// Returns the bytes of its texts.
    #[must_use]
    pub(crate) fn texts(&self) -> [Option<&str>; 2] {
        [self.webhook.as_ref().map(WebhookUrl::reveal), self.email.as_ref().map(EmailAddress::as_str)]
    }
}

/// What may be told of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occasion {
    /// Its first attempt was placed.
    Start,
    /// It ended, in whichever way.
    End,
    /// It ended without success, unless a user cancelled it.
    Failure,
}

impl Occasion {
    /// All of them.
    pub const ALL: [Occasion; 3] = [Occasion::End, Occasion::Failure, Occasion::Start];

    /// Returns its word in a job file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Occasion::Start => "start",
            Occasion::End => "end",
            Occasion::Failure => "failure",
        }
    }
}

/// The URL of a webhook. Whoever knows it may post there, so it is a secret: it is shown without its path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WebhookUrl(String);

impl WebhookUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub fn new(text: &str) -> Result<WebhookUrl, &'static str> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let host = rest.ok_or("has to begin with https:// or http://")?.split(['/', '?', '#']).next();
        if text.len() > BYTES_MAX {
            Err("is longer than 2048 bytes")
        } else if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            Err("has a space or a character that no URL has")
        } else if host.is_none_or(|host| host.is_empty() || host.starts_with(':')) {
            Err("names no host")
        } else if host.is_some_and(|host| host.contains('@')) {
            Err("may not have a user's name and password")
        } else {
            Ok(WebhookUrl(text.to_owned()))
        }
    }

    /// Returns the whole URL, for the request alone.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{host}/...")
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An e-mail address: one, without a display name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EmailAddress(String);

impl EmailAddress {
    /// Checks an address, as far as is needed to put it into a message's head.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub fn new(text: &str) -> Result<EmailAddress, &'static str> {
        // RFC 5321, section 4.5.3.1: a path has at most 256 octets with its brackets.
        const ADDRESS_BYTES_MAX: usize = 254;
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"<>(),;:\\\"[]".contains(&byte);
        let is_address = text.split_once('@').is_some_and(|(local, domain)| {
            !local.is_empty() && !domain.is_empty() && !domain.contains('@') && text.bytes().all(is_plain)
        });
        if is_address && text.len() <= ADDRESS_BYTES_MAX {
            Ok(EmailAddress(text.to_owned()))
        } else {
            Err("is no e-mail address such as me@example.org")
        }
    }

    /// Returns the address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_shown_without_what_makes_it_secret() {
        let url = WebhookUrl::new("https://hooks.example.org:8443/services/T0/B0/sEcReT?x=1").expect("a URL");
        assert_eq!(url.to_string(), "https://hooks.example.org:8443/...");
        assert!(!format!("{url:?}").contains("sEcReT"));
    }

    #[test]
    fn wrong_destinations_are_refused() {
        for (wrong, why) in [
            ("ftp://a", "https://"),
            ("hooks.example.org", "https://"),
            ("https://", "host"),
            ("http:///x", "host"),
            ("https://me:pw@host/", "password"),
            ("https://a b", "space"),
        ] {
            assert!(WebhookUrl::new(wrong).is_err_and(|said| said.contains(why)), "{wrong}");
        }
        assert!(EmailAddress::new("me+gangline@example.org").is_ok());
        for wrong in ["", "me", "@b", "a@", "a@b@c", "a b@c", "<a@b>", "a@b\r\nBcc: c@d", "a@b,c@d"] {
            assert!(EmailAddress::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
