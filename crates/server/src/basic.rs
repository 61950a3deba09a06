//! HTTP's basic authentication (RFC 7617), which MLflow's clients use with a user's name and a password: the password is the
//! token, whatever the name.

use axum::http::{HeaderMap, header};

/// Returns the password of an `Authorization: Basic` header.
fn decoded(value: &str) -> Option<String> {
    let bytes = base64(value.strip_prefix("Basic ")?.trim())?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

/// Returns the password that a request shows.
pub(super) fn password(headers: &HeaderMap) -> Option<String> {
    decoded(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6 | u32::from(value)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
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
