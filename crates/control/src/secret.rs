//! The two secrets of a data folder: the users' token, and the key from which each attempt's token is derived.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gangline_base::{AttemptNumber, JobId};

/// The name of the users' token in the data folder.
pub const TOKEN_FILE: &str = "token";
/// The name of the key of attempt tokens.
const KEY_FILE: &str = "attempt.key";
/// Bytes of randomness in each; 64 hexadecimal digits on disk.
const SECRET_BYTES: usize = 32;

/// What the control plane checks bearers against. Never printed.
#[derive(Clone)]
pub struct Secrets {
    user: blake3::Hash,
    user_token: String,
    attempt_key: [u8; SECRET_BYTES],
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Reads the secrets of a data folder, making them at its first use, with mode 0600.
    ///
    /// # Errors
    /// If the files can't be read or made, or hold something else than a secret.
    pub fn open(folder: &Path) -> io::Result<Secrets> {
        let user_token = read_or_make(&folder.join(TOKEN_FILE))?;
        let attempt_key = *blake3::hash(read_or_make(&folder.join(KEY_FILE))?.as_bytes()).as_bytes();
        Ok(Secrets { user: blake3::hash(user_token.as_bytes()), user_token, attempt_key })
    }

    /// Whether this is the users' token. Takes the same time whatever is wrong with it.
    #[must_use]
    pub fn is_user(&self, token: &str) -> bool {
        // blake3::Hash compares in constant time.
        blake3::hash(token.as_bytes()) == self.user
    }

    /// The users' token, for the link to the page.
    #[must_use]
    pub fn user_token(&self) -> &str {
        &self.user_token
    }

    /// The token of an attempt's supervisors.
    #[must_use]
    pub fn attempt_token(&self, job: JobId, attempt: AttemptNumber) -> String {
        blake3::keyed_hash(&self.attempt_key, format!("{job}/{attempt}").as_bytes()).to_hex().to_string()
    }

    /// Whether this is the token of that attempt.
    #[must_use]
    pub fn is_attempt(&self, token: &str, job: JobId, attempt: AttemptNumber) -> bool {
        blake3::Hash::from_hex(token)
            .is_ok_and(|hash| hash == blake3::keyed_hash(&self.attempt_key, format!("{job}/{attempt}").as_bytes()))
    }
}

fn read_or_make(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let mut bytes = [0; SECRET_BYTES];
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(text)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut text = String::new();
            File::open(path)?.take(1_024).read_to_string(&mut text)?;
            let text = text.trim().to_owned();
            let is_secret = text.len() == 2 * SECRET_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
            if is_secret {
                Ok(text)
            } else {
                Err(io::Error::other(format!("{} does not hold a token", path.display())))
            }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_private_and_stay_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Secrets::open(folder.path()).expect("made");
        let again = Secrets::open(folder.path()).expect("read");
        assert!(again.is_user(first.user_token()));
        assert!(!again.is_user(""));
        let mode = std::fs::metadata(folder.path().join(TOKEN_FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_attempt_token_opens_only_its_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::open(folder.path()).expect("made");
        let token = secrets.attempt_token(JobId(1), AttemptNumber(2));
        assert!(secrets.is_attempt(&token, JobId(1), AttemptNumber(2)));
        assert!(!secrets.is_attempt(&token, JobId(1), AttemptNumber(3)));
        assert!(!secrets.is_attempt(&token, JobId(12), AttemptNumber(2)));
        assert!(!secrets.is_user(&token));
        assert!(!secrets.is_attempt("zz", JobId(1), AttemptNumber(2)));
    }

    #[test]
    fn a_damaged_token_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(TOKEN_FILE), "short").expect("written");
        assert!(Secrets::open(folder.path()).is_err());
    }
}
