//! Posts JSON. Redirects aren't followed and the answer's body isn't read: only its status counts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gangline_base::WebhookUrl;
use rustls::crypto::ring::default_provider;
use serde_json::Value;
use tracing::warn;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::Failure;

/// Answers of a receiver that may do better later: too slow, too early, too many.
const TRY_AGAIN: [u16; 3] = [408, 425, 429];

/// Posts to webhooks.
pub(super) struct Poster {
    /// Made at the first post, since reading the machine's certificates takes long.
    agent: OnceLock<ureq::Agent>,
    try_max: Duration,
}

impl Poster {
    pub(super) fn new(try_max: Duration) -> Poster {
        Poster { agent: OnceLock::new(), try_max }
    }

    /// Posts once. The URL is in no failure's text.
    pub(super) fn post(&self, url: &WebhookUrl, body: &Value) -> Result<(), Failure> {
        let agent = self.agent.get_or_init(|| agent(self.try_max));
        let request = agent.post(url.reveal()).header("User-Agent", "gangline");
        let answer = request.send_json(body).map_err(|error| failed(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let cause = format!("it answered {}", status.as_u16());
        if status.is_server_error() || TRY_AGAIN.contains(&status.as_u16()) {
            let after = answer.headers().get("retry-after").and_then(|after| after.to_str().ok()?.parse().ok());
            return Err(Failure::ForNow { cause, pause: after.map(Duration::from_secs) });
        }
        Err(Failure::ForGood(cause))
    }
}

fn failed(error: &ureq::Error) -> Failure {
    match error {
        ureq::Error::BadUri(_) => Failure::ForGood("its URL can't be used".to_owned()),
        ureq::Error::Timeout(_) => Failure::ForNow { cause: "it didn't answer in time".to_owned(), pause: None },
        ureq::Error::HostNotFound => Failure::ForNow { cause: "there is no such host".to_owned(), pause: None },
        ureq::Error::Io(error) => Failure::ForNow { cause: error.to_string(), pause: None },
        ureq::Error::ConnectionFailed => Failure::ForNow { cause: "it can't be reached".to_owned(), pause: None },
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
            Failure::ForNow { cause: "its certificate isn't trusted by this machine".to_owned(), pause: None }
        }
        _ => Failure::ForNow { cause: "the connection failed".to_owned(), pause: None },
    }
}

/// Returns a client that trusts what this machine trusts, and goes by the proxy that the environment names.
pub(crate) fn agent(try_max: Duration) -> ureq::Agent {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        warn!("this machine has no certificates of authorities: webhooks by https can't be posted");
    }
    let roots = found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned());
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(roots.collect())))
        .build();
    let config = ureq::Agent::config_builder().timeout_global(Some(try_max)).http_status_as_error(false);
    config.max_redirects(0).max_redirects_will_error(false).tls_config(tls).build().new_agent()
}
