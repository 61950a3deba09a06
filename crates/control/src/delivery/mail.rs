//! Mails text by SMTP.

use std::fmt;
use std::io;
use std::time::Duration;

use gangline_base::EmailAddress;
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{Address, SmtpTransport, Transport};

use super::{Failure, Message};

/// How a connection to a mail server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte.
    Tls,
    /// TLS by STARTTLS, without which nothing is sent.
    Starttls,
    /// None.
    None,
}

/// The server by which messages are mailed.
#[derive(Clone)]
pub struct MailServer {
    /// Its name or address.
    pub host: String,
    /// Its port; the usual one if absent.
    pub port: Option<u16>,
    /// How the connection is protected.
    pub security: Security,
    /// The sender.
    pub from: EmailAddress,
    /// A user's name and password.
    pub login: Option<(String, String)>,
}

impl fmt::Debug for MailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailServer").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Sends mail.
pub(super) struct Mailer {
    transport: SmtpTransport,
    from: Mailbox,
}

impl Mailer {
    pub(super) fn new(server: &MailServer, try_max: Duration) -> io::Result<Mailer> {
        let tls = || TlsParameters::new(server.host.clone()).map_err(io::Error::other);
        let (tls, port) = match server.security {
            Security::Tls => (Tls::Wrapper(tls()?), 465),
            Security::Starttls => (Tls::Required(tls()?), 587),
            Security::None => (Tls::None, 25),
        };
        let builder = SmtpTransport::builder_dangerous(&server.host).port(server.port.unwrap_or(port)).tls(tls);
        let builder = builder.timeout(Some(try_max));
        let transport = match server.login.clone() {
            Some((user, password)) => builder.credentials(Credentials::new(user, password)).build(),
            None => builder.build(),
        };
        Ok(Mailer { transport, from: mailbox(&server.from).map_err(io::Error::other)? })
    }

    /// Sends once.
    pub(super) fn mail(&self, to: &EmailAddress, message: &Message) -> Result<(), Failure> {
        let built = || {
            let head = lettre::Message::builder().from(self.from.clone()).to(mailbox(to)?).subject(&message.subject);
            let head = head.header(ContentType::TEXT_PLAIN);
            head.body(message.text.clone()).map_err(|error| error.to_string())
        };
        let mail = built().map_err(Failure::ForGood)?;
        self.transport.send(&mail).map(drop).map_err(|error| {
            if error.is_permanent() {
                Failure::ForGood(error.to_string())
            } else {
                Failure::ForNow { cause: error.to_string(), pause: None }
            }
        })
    }
}

fn mailbox(address: &EmailAddress) -> Result<Mailbox, String> {
    let address: Address = address.as_str().parse().map_err(|_| format!("{address} can't be mailed to"))?;
    Ok(Mailbox::new(None, address))
}
