//! The TLS certificate that a control plane presents beyond loopback: one that the user provides, or a
//! self-signed one that it makes and keeps in the data folder. Clients trust the certificates named in the
//! data folder ([`gangline_execution::endpoint`]), so a self-signed certificate is as good as any.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_execution::files::write_durably;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// File in the data folder with the control plane's own private key and certificate.
const OWN_FILE: &str = "tls.pem";
/// The lines around a certificate in PEM (RFC 7468).
const MARKS: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// A certificate and its key, ready for use by a server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificates: String,
}

/// The reason why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read or written.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has no such item in PEM.
    #[error("{path} has no {expected} in PEM")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The item that should be in it.
        expected: &'static str,
        /// The parser's error.
        source: pem::Error,
    },
    /// The certificate and the key can't be used together.
    #[error("the certificate in {path} and its key can't be used")]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// The library's error.
        source: rustls::Error,
    },
    /// Clients would refuse the certificate.
    #[error("the certificate in {path} isn't good for \"{name}\", or those that signed it aren't with it in the file")]
    Untrusted {
        /// The certificate's file.
        path: PathBuf,
        /// A name or address by which clients reach the control plane.
        name: String,
        /// The verifier's error.
        source: rustls::Error,
    },
    /// A requested name is neither a host name nor an address.
    #[error("\"{name}\" is neither a host's name nor an address")]
    NoName {
        /// The name as given.
        name: String,
        /// The parser's error.
        source: InvalidDnsNameError,
    },
    /// No certificate can be made.
    #[error("make a certificate")]
    Make(#[from] rcgen::Error),
}

impl Tls {
    /// Loads the control plane's own certificate, or makes a new one if it isn't valid for all of `names`.
    ///
    /// # Errors
    /// Returns [`TlsError`] if the certificate can't be made or stored.
    pub fn own(folder: &Path, names: &[String]) -> Result<Tls, TlsError> {
        let path = folder.join(OWN_FILE);
        if let Ok(tls) = Tls::of_files(&path, &path, names) {
            return Ok(tls);
        }
        for name in names {
            server_name(name)?;
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "gangline");
        let certificate = params.self_signed(&key)?;
        let text = format!("{}{}", key.serialize_pem(), certificate.pem());
        write_durably(&path, text.as_bytes()).map_err(|source| TlsError::Io { path: path.clone(), source })?;
        Tls::of_files(&path, &path, names)
    }

    /// Loads a certificate and key that the user provides, for the given names and addresses.
    ///
    /// # Errors
    /// Returns [`TlsError`] if clients that trust the certificates in its file would refuse it now under one
    /// of these names.
    pub fn of_files(certificate: &Path, key: &Path, names: &[String]) -> Result<Tls, TlsError> {
        let path = certificate;
        let text = std::fs::read_to_string(path).map_err(|source| TlsError::Io { path: path.to_owned(), source })?;
        let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let malformed = |path: &Path, expected| {
            let path = path.to_owned();
            move |source| TlsError::Malformed { path, expected, source }
        };
        let chain = chain.map_err(malformed(path, "certificate"))?;
        let own = PrivateKeyDer::from_pem_file(key).map_err(malformed(key, "private key"))?;
        let unusable = |source| TlsError::Unusable { path: path.to_owned(), source };
        let (shown, signers) =
            chain.split_first().ok_or_else(|| malformed(path, "certificate")(pem::Error::NoItemsFound))?;
        let trust = verifier(&chain).map_err(unusable)?;
        for name in names {
            let server = server_name(name)?;
            let outcome = trust.verify_server_cert(shown, signers, &server, &[], UnixTime::now());
            let untrusted = |source| TlsError::Untrusted { path: path.to_owned(), name: name.clone(), source };
            outcome.map_err(untrusted)?;
        }
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, own))
            .map_err(unusable)?;
        Ok(Tls { config: Arc::new(config), certificates: only_certificates(&text) })
    }

    /// Returns the certificates that clients have to trust, as PEM.
    #[must_use]
    pub fn certificates(&self) -> &str {
        &self.certificates
    }

    /// Returns an acceptor that presents the certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }
}

/// Returns the verifier of a client that trusts only these certificates.
fn verifier(chain: &[CertificateDer<'static>]) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in chain {
        roots.add(certificate.clone())?;
    }
    let built =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider())).build();
    built.map_err(|error| rustls::Error::General(error.to_string()))
}

fn server_name(name: &str) -> Result<ServerName<'_>, TlsError> {
    ServerName::try_from(name).map_err(|source| TlsError::NoName { name: name.to_owned(), source })
}

/// Returns only the certificates of a PEM file, without keys.
fn only_certificates(text: &str) -> String {
    let mut kept = String::new();
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        is_inside |= line == MARKS[0];
        if is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
        is_inside &= line != MARKS[1];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn its_own_certificate_is_kept_while_it_is_good_and_made_again_otherwise() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = names(&["head", "127.0.0.1", "::1"]);
        let first = Tls::own(folder.path(), &one).expect("it is made");
        let again = Tls::own(folder.path(), &one).expect("it is read");
        assert_eq!(first.certificates(), again.certificates());
        assert!(!first.certificates().contains("PRIVATE KEY"), "the key stays here");
        let moved = Tls::own(folder.path(), &names(&["10.0.0.1"])).expect("it is made again");
        assert_ne!(moved.certificates(), first.certificates());
        std::fs::write(folder.path().join(OWN_FILE), "damaged").expect("a file");
        Tls::own(folder.path(), &one).expect("it is made again");
    }

    #[test]
    fn the_key_is_its_owners_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        Tls::own(folder.path(), &names(&["head"])).expect("it is made");
        let mode = std::fs::metadata(folder.path().join(OWN_FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Returns a certificate signed by an authority, the authority's own certificate, and the key.
    fn signed(expiry: (i32, u8, u8)) -> (String, String, String) {
        let authority_key = KeyPair::generate().expect("a key");
        let mut authority = CertificateParams::new(Vec::new()).expect("no names");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "authority");
        let own = authority.self_signed(&authority_key).expect("it is signed");
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names(&["head.example"])).expect("a name");
        params.not_after = rcgen::date_time_ymd(expiry.0, expiry.1, expiry.2);
        let certificate = params.signed_by(&key, &issuer).expect("it is signed");
        (certificate.pem(), own.pem(), key.serialize_pem())
    }

    /// A certificate that clients would refuse is refused at start, where it can be fixed.
    #[test]
    fn a_given_certificate_must_be_one_that_clients_take() {
        let folder = tempfile::tempdir().expect("a folder");
        let [certificate, key] = ["certificate", "key"].map(|name| folder.path().join(name));
        let head = names(&["head.example"]);
        let put = |chain: &str, secret: &str| {
            std::fs::write(&certificate, chain).expect("a file");
            std::fs::write(&key, secret).expect("a file");
        };
        let refused = |names: &[String]| Tls::of_files(&certificate, &key, names).expect_err("it is refused");
        let (own, authority, secret) = signed((2_100, 1, 1));
        put(&format!("{own}{authority}"), &secret);
        Tls::of_files(&certificate, &key, &head).expect("it is good");
        assert!(matches!(refused(&names(&["elsewhere.example"])), TlsError::Untrusted { .. }));
        assert!(matches!(refused(&names(&["no name"])), TlsError::NoName { .. }));
        put(&own, &secret);
        assert!(matches!(refused(&head), TlsError::Untrusted { .. }), "the authority isn't in the file");
        put(&format!("{own}{authority}"), &signed((2_100, 1, 1)).2);
        assert!(matches!(refused(&head), TlsError::Unusable { .. }), "another's key");
        put(&format!("{own}{authority}"), "nothing");
        assert!(matches!(refused(&head), TlsError::Malformed { expected: "private key", .. }));
        put("nothing", &secret);
        assert!(matches!(refused(&head), TlsError::Malformed { expected: "certificate", .. }));
        let (late, authority, secret) = signed((2_001, 1, 1));
        put(&format!("{late}{authority}"), &secret);
        assert!(matches!(refused(&head), TlsError::Untrusted { .. }), "it has expired");
        std::fs::remove_file(&certificate).expect("it was there");
        assert!(matches!(refused(&head), TlsError::Io { .. }));
    }
}
