//! Where something is sent, and one request to it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gangline_base::with_causes;
use gangline_execution::endpoint::agent;
use ureq::RequestBuilder;
use ureq::typestate::WithBody;

use crate::alerts::authorities;

/// The longest time of a request.
const REQUEST_MAX: Duration = Duration::from_secs(20);
/// Bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: u64 = 1_000;

/// Where something is sent.
#[derive(Clone)]
pub struct Receiver {
    /// The URL.
    pub url: String,
    /// What the header `Authorization` says, if the receiver wants one.
    pub authorization: Option<Authorization>,
    /// Headers of all requests, by name.
    pub headers: Vec<(String, String)>,
    /// Labels that everything gets, by name.
    pub labels: Vec<(String, String)>,
}

/// Who sends.
#[derive(Clone)]
pub enum Authorization {
    /// Whoever has this token.
    Token(String),
    /// A user with a password (RFC 7617).
    Basic(String, String),
}

impl Authorization {
    fn header(&self) -> String {
        match self {
            Authorization::Token(token) => format!("Bearer {token}"),
            Authorization::Basic(user, password) => format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("url", &self.url).field("labels", &self.labels).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Returns a client for requests to it.
    pub(crate) fn client(&self) -> Result<ureq::Agent, String> {
        let authorities = self.url.starts_with("https:").then(authorities).transpose()?;
        agent(REQUEST_MAX, authorities.as_deref()).map_err(|error| with_causes(&error))
    }

    /// Adds the headers that all requests to it have.
    pub(crate) fn dressed(&self, mut request: RequestBuilder<WithBody>) -> RequestBuilder<WithBody> {
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization.header()),
            None => request,
        }
    }
}

/// What became of a request.
pub(super) enum Outcome {
    Taken,
    /// Never to be sent again.
    Refused(String),
    /// To be sent again.
    Away(String),
}

/// A receiver, and the client that talks to it.
pub(super) struct Connection {
    pub(super) receiver: Receiver,
    /// The client, once there is one; made anew after a failure, since certificates may have changed.
    agent: Option<ureq::Agent>,
}

impl Connection {
    pub(super) fn new(receiver: Receiver) -> Connection {
        Connection { receiver, agent: None }
    }

    pub(super) fn post(&mut self, body: &[u8], headers: &[(&'static str, &'static str)]) -> Outcome {
        let agent = match self.agent.take().map_or_else(|| self.receiver.client(), Ok) {
            Ok(agent) => agent,
            Err(why) => return Outcome::Away(why),
        };
        let mut request = agent.post(&self.receiver.url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match self.receiver.dressed(request).send(body) {
            Err(error) => Outcome::Away(with_causes(&error)),
            Ok(answer) if answer.status().is_success() => {
                self.agent = Some(agent);
                Outcome::Taken
            }
            Ok(mut answer) => {
                let status = answer.status().as_u16();
                let said = answer.body_mut().with_config().limit(REFUSAL_BYTES_MAX).read_to_string();
                let said = format!("it answers with status {status}: {}", said.unwrap_or_default().trim());
                // Both protocols: 5xx and 429 pass, other refusals don't. A wrong token may be put right.
                if status >= 500 || [401, 403, 429].contains(&status) {
                    Outcome::Away(said)
                } else {
                    Outcome::Refused(said)
                }
            }
        }
    }
}
