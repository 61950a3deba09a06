//! How a control plane is reached: a file with its URL and, if it is to be reached by TLS, the certificates that are
//! trusted for it in a file beside that one. Whoever may read the data folder trusts these and no others, so a control
//! plane needs no public authority, and none can pretend to be it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::files::{read_bounded, write_durably};

/// In the data folder: the control plane's URL as the only line.
pub const ENDPOINT_FILE: &str = "endpoint";
/// Beside it, if the URL is an `https` one: PEM with the certificate that the control plane shows and those that signed it.
pub const CERTIFICATE_FILE: &str = "certificate.pem";

/// Says in the data folder how the control plane is reached: the certificates first, since who reads the URL needs them.
///
/// # Errors
/// If a file can't be written.
pub fn publish(folder: &Path, url: &str, certificates: Option<&str>) -> io::Result<()> {
    if let Some(certificates) = certificates {
        write_durably(&folder.join(CERTIFICATE_FILE), certificates.as_bytes())?;
    }
    write_durably(&folder.join(ENDPOINT_FILE), format!("{url}\n").as_bytes())
}

/// The certificates beside an endpoint file; none if the URL isn't an `https` one.
///
/// # Errors
/// If they are needed and can't be read.
pub fn certificates(endpoint_file: &Path, url: &str) -> io::Result<Option<Vec<u8>>> {
    url.starts_with("https://").then(|| read_bounded(&endpoint_file.with_file_name(CERTIFICATE_FILE))).transpose()
}

/// An HTTP client that gives up after `time_max` and trusts these certificates (PEM), and without any no TLS at all. It
/// follows no redirections and knows no proxies: what it sends has a token.
///
/// # Errors
/// If these aren't certificates.
pub fn agent(time_max: Duration, certificates: Option<&[u8]>) -> Result<ureq::Agent, ureq::Error> {
    let mut roots: Vec<Certificate<'static>> = Vec::new();
    for item in certificates.into_iter().flat_map(parse_pem) {
        if let PemItem::Certificate(certificate) = item? {
            roots.push(certificate);
        }
    }
    if certificates.is_some() && roots.is_empty() {
        return Err(ureq::Error::Tls("there is no certificate in the file"));
    }
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .build();
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(time_max))
        .http_status_as_error(false)
        .proxy(None)
        .max_redirects(0)
        .tls_config(tls);
    Ok(config.build().new_agent())
}

/// Whether what answered wasn't the control plane that is trusted: it showed another certificate, or one for another name.
#[must_use]
pub fn is_untrusted(error: &ureq::Error) -> bool {
    let is_refusal = |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(_));
    match error {
        ureq::Error::Rustls(error) => is_refusal(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|error| error.downcast_ref()).is_some_and(is_refusal),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_only_where_they_are_needed() {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = folder.path().join(ENDPOINT_FILE);
        publish(folder.path(), "http://127.0.0.1:1", None).expect("it is written");
        assert_eq!(std::fs::read_to_string(&endpoint).expect("a file"), "http://127.0.0.1:1\n");
        assert_eq!(certificates(&endpoint, "http://127.0.0.1:1").expect("none is needed"), None);
        certificates(&endpoint, "https://host:1").expect_err("they are missing");
        publish(folder.path(), "https://host:1", Some("pem")).expect("it is written");
        assert_eq!(certificates(&endpoint, "https://host:1").expect("a file").as_deref(), Some(b"pem".as_slice()));
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        for text in ["", "pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
            agent(Duration::from_secs(1), Some(text.as_bytes())).expect_err(text);
        }
        agent(Duration::from_secs(1), None).expect("without TLS nothing is needed");
    }
}
