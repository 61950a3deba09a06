//! The table `[tls]`: a user's own certificate instead of the one that the control plane makes.

use serde::Deserialize;

/// Files in PEM; relative paths start at the configuration's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The file with the server's certificate first, then those of its authorities.
    pub certificate: String,
    /// The file with the certificate's private key.
    pub key: String,
}
