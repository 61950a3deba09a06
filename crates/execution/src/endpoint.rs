//! How clients and supervisors reach a control plane, given its data folder: through the Unix socket there,
//! or, from other machines and where the folder can hold no socket, through its URL with the certificates
//! that are trusted for it. Either way the control plane proves that it owns the folder before it is sent
//! anything; an impostor that takes its place while it is down learns nothing and can command nothing. A
//! plain `http` URL proves nothing and is not used; it exists for browsers, for users who name it explicitly,
//! and for supervisors of the previous release, which know nothing else.

mod socket;
mod tracking_token;
mod transport;

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::DefaultResolver;

pub use socket::{DataFolder, Impostor, SOCKET_FILE, is_down};
pub use tracking_token::TrackingToken;

use crate::files::write_durably;
use transport::SocketConnector;

/// File in the data folder with the control plane's URL as its only line.
pub const ENDPOINT_FILE: &str = "endpoint";
/// File next to it, if the URL is an `https` one: PEM with the control plane's certificate and those that
/// signed it.
pub const CERTIFICATE_FILE: &str = "certificate.pem";

/// Writes to the data folder how the control plane is reached: the certificates first, since readers of the
/// URL need them.
///
/// # Errors
/// If a file can't be written.
pub fn publish(folder: &Path, url: &str, certificates: Option<&str>) -> io::Result<()> {
    if let Some(certificates) = certificates {
        write_durably(&folder.join(CERTIFICATE_FILE), certificates.as_bytes())?;
    }
    write_durably(&folder.join(ENDPOINT_FILE), format!("{url}\n").as_bytes())
}

/// Host part of requests over the socket; it is never looked up.
const SOCKET_URL: &str = "http://127.0.0.1";
/// Maximum size of the URL or the certificates, in bytes (A-10).
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Header of supervisors' reports: `JOB/ATTEMPT/EPOCH` in numbers, the epoch as it is printed. It lets the
/// control plane check the attempt's token before it reads the body. Supervisors of the previous release
/// don't send it.
pub const ATTEMPT_HEADER: &str = "gangline-attempt";

/// A connection to a control plane that proves to be the owner of its data folder.
#[derive(Clone, Debug)]
pub struct Way {
    /// Base URL of requests.
    pub url: String,
    /// The HTTP client.
    pub agent: ureq::Agent,
    is_socket: bool,
}

/// The reason a control plane can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum WayError {
    /// The folder, or a file in it, can't be read.
    #[error("read {path}: {source}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Nobody listens at the socket, and the URL isn't one that proves anything.
    #[error("find a control plane: nobody listens at {path}, and {url} could be anybody's")]
    Down {
        /// Path of the socket.
        path: PathBuf,
        /// The URL.
        url: String,
    },
    /// Another user's process listens at the socket, or the socket can't be used.
    #[error("reach the control plane at {path}: {source}")]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The certificates are invalid.
    #[error("use the certificates for {url}: {source}")]
    Certificates {
        /// The control plane's URL.
        url: String,
        /// The cause.
        source: Box<ureq::Error>,
    },
}

impl WayError {
    /// Reports whether somebody other than the folder's owner answers.
    #[must_use]
    pub fn is_impostor(&self) -> bool {
        matches!(self, WayError::Socket { source, .. } if is_impostor(source))
    }
}

impl Way {
    /// Finds the control plane of a data folder. Its requests take at most `time_max`.
    ///
    /// # Errors
    /// [`WayError`] if it can't be reached now: it may be down, or an impostor in its place.
    pub fn find(folder: &Path, time_max: Duration) -> Result<Way, WayError> {
        let held =
            DataFolder::open(folder).map_err(|source| WayError::Unreadable { path: folder.to_owned(), source })?;
        match held.connect(time_max) {
            Ok(_) => Ok(Way::by_socket(folder, time_max)),
            Err(error) if is_down(&error) => Way::by_url(folder, &held, time_max),
            Err(source) => Err(WayError::Socket { path: folder.join(SOCKET_FILE), source }),
        }
    }

    /// Returns the way to a URL that is trusted by what `agent` trusts.
    pub(crate) fn at(url: &str, agent: ureq::Agent) -> Way {
        Way { url: url.trim_end_matches('/').to_owned(), agent, is_socket: false }
    }

    /// Reports whether this is the folder's socket rather than a URL.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.is_socket
    }

    fn by_socket(folder: &Path, time_max: Duration) -> Way {
        let connector = SocketConnector { folder: folder.to_owned(), time_max };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(time_max))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .build();
        let agent = ureq::Agent::with_parts(config, connector, DefaultResolver::default());
        Way { url: SOCKET_URL.to_owned(), agent, is_socket: true }
    }

    /// Connects by TLS, trusting only the folder's certificates.
    fn by_url(folder: &Path, held: &DataFolder, time_max: Duration) -> Result<Way, WayError> {
        let read = |name: &str| {
            read_owned(held, name).map_err(|source| WayError::Unreadable { path: folder.join(name), source })
        };
        let url = String::from_utf8_lossy(&read(ENDPOINT_FILE)?).trim().trim_end_matches('/').to_owned();
        if !url.starts_with("https://") {
            return Err(WayError::Down { path: folder.join(SOCKET_FILE), url });
        }
        match agent(time_max, Some(&read(CERTIFICATE_FILE)?)) {
            Ok(agent) => Ok(Way { url, agent, is_socket: false }),
            Err(source) => Err(WayError::Certificates { url, source: Box::new(source) }),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_socket { SOCKET_FILE } else { &self.url })
    }
}

/// Reads a small file of the folder that only the folder's owner or root could have written.
fn read_owned(folder: &DataFolder, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    folder.open_owned(name)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the URL from a data folder.
///
/// # Errors
/// If it can't be read, or another user wrote it.
pub fn url(folder: &Path) -> io::Result<String> {
    let bytes = read_owned(&DataFolder::open(folder)?, ENDPOINT_FILE)?;
    Ok(String::from_utf8_lossy(&bytes).trim().trim_end_matches('/').to_owned())
}

/// Returns the certificates from a data folder.
///
/// # Errors
/// If they can't be read, or another user wrote them.
pub fn certificates(folder: &Path) -> io::Result<Vec<u8>> {
    read_owned(&DataFolder::open(folder)?, CERTIFICATE_FILE)
}

/// Creates an HTTP client that gives up after `time_max` and trusts these certificates (PEM); without
/// certificates it doesn't use TLS. It follows no redirects and uses no proxies, since its requests carry a
/// token.
///
/// # Errors
/// If the certificates are invalid.
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

/// Reports whether the other end isn't the trusted control plane: it showed another certificate, or one for
/// another name, or doesn't own the data folder.
#[must_use]
pub fn is_untrusted(error: &ureq::Error) -> bool {
    let is_refusal = |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(_));
    match error {
        ureq::Error::Rustls(error) => is_refusal(error),
        ureq::Error::Io(error) => {
            is_impostor(error) || error.get_ref().and_then(|error| error.downcast_ref()).is_some_and(is_refusal)
        }
        _ => false,
    }
}

fn is_impostor(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Impostor>())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn a_url_in_the_clear_is_no_way_and_one_with_tls_needs_its_certificates() {
        let folder = tempfile::tempdir().expect("a folder");
        let find = || Way::find(folder.path(), SOON).expect_err("there is no way");
        assert!(matches!(find(), WayError::Unreadable { .. }));
        publish(folder.path(), "http://127.0.0.1:1", None).expect("it is written");
        assert_eq!(url(folder.path()).expect("a file"), "http://127.0.0.1:1");
        assert!(matches!(find(), WayError::Down { .. }));
        publish(folder.path(), "https://host:1", None).expect("it is written");
        assert!(matches!(find(), WayError::Unreadable { .. }), "its certificates are missing");
        publish(folder.path(), "https://host:1", Some("pem")).expect("it is written");
        assert!(matches!(find(), WayError::Certificates { .. }));
        assert_eq!(certificates(folder.path()).expect("a file"), b"pem");
    }

    #[test]
    fn the_socket_is_the_way_however_long_the_path_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("x".repeat(200));
        std::fs::create_dir(&deep).expect("a folder");
        let held = DataFolder::open(&deep).expect("it is there");
        let listener = UnixListener::bind(held.place(SOCKET_FILE)).expect("it is bound");
        let answer = std::thread::spawn(move || {
            // One connection that identifies the peer, one for the request.
            drop(listener.accept());
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut asked = [0; 16];
            stream.read_exact(&mut asked).expect("it asks");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").expect("it listens");
            asked
        });
        let way = Way::find(&deep, SOON).expect("it answers");
        let mut response = way.agent.get(format!("{}/x", way.url)).call().expect("an answer");
        assert_eq!(response.body_mut().read_to_string().expect("text"), "hi");
        assert_eq!(answer.join().expect("nobody panicked"), *b"GET /x HTTP/1.1\r");
        // The file of the socket is left, but nobody listens.
        publish(&deep, "http://127.0.0.1:1", None).expect("it is written");
        assert!(matches!(Way::find(&deep, SOON), Err(WayError::Down { .. })));
    }

    #[test]
    fn a_silent_control_plane_costs_no_more_than_the_time_given() {
        let folder = tempfile::tempdir().expect("a folder");
        let held = DataFolder::open(folder.path()).expect("it is there");
        let _listener = UnixListener::bind(held.place(SOCKET_FILE)).expect("it is bound");
        let way = Way::find(folder.path(), Duration::from_millis(200)).expect("somebody listens");
        let error = way.agent.get(format!("{}/x", way.url)).call().expect_err("nobody answers");
        assert!(matches!(error, ureq::Error::Timeout(_)), "{error:?}");
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        for text in ["", "pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
            agent(Duration::from_secs(1), Some(text.as_bytes())).expect_err(text);
        }
        agent(Duration::from_secs(1), None).expect("without TLS nothing is needed");
    }
}
