//! A certificate of one's own, instead of the one that the control plane makes.

use serde::Deserialize;

/// `[tls]`: files in PEM, beside the configuration unless their paths say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate that is shown, first, and those that signed it.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}
