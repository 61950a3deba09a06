//! Random ids of what tracking keeps.

use std::io;

/// Returns 16 random bytes.
///
/// # Errors
/// If the system gives none.
pub fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Returns 32 random hexadecimal digits, as MLflow's ids of runs.
///
/// # Errors
/// If the system gives no random bytes.
pub fn hex_id() -> io::Result<String> {
    random_bytes().map(hex)
}

/// Returns a random UUID (RFC 9562, version 4).
///
/// # Errors
/// If the system gives no random bytes.
pub fn uuid() -> io::Result<String> {
    let mut bytes = random_bytes()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(bytes);
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_version_4() {
        let id = uuid().expect("random bytes");
        assert_eq!((id.len(), &id[14..15], id.matches('-').count()), (36, "4", 4), "{id}");
    }
}
