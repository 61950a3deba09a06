//! HTTP's basic authentication (RFC 7617), which MLflow's clients use with a user's name and a password: the password is the
//! token, whatever the name.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns the password of an `Authorization: Basic` header.
fn decoded(value: &str) -> Option<String> {
    let bytes = STANDARD.decode(value.strip_prefix("Basic ")?.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

/// Returns the password that a request shows.
pub(super) fn password(headers: &HeaderMap) -> Option<String> {
    decoded(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_what_follows_the_first_colon() {
        // RFC 7617's example.
        assert_eq!(decoded("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").as_deref(), Some("open sesame"));
        assert_eq!(decoded("Basic YTpiOmM=").as_deref(), Some("b:c"));
        for wrong in ["Basic QWxh", "Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Basic !!!", "Basic"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
