//! The two secrets of a data folder: the users' token, and the key from which the token of each attempt is
//! derived.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use gangline_api::TOKEN_FILE;
use gangline_base::{AttemptNumber, Epoch, JobId, NodeName};
use gangline_execution::files::write_durably;

/// File name of the key for attempt tokens.
pub const KEY_FILE: &str = "attempt.key";
/// Random bytes in each secret; 64 hexadecimal digits on disk.
const SECRET_BYTES: usize = 32;
/// The most bytes read from a secret's file.
const FILE_BYTES_MAX: u64 = 1_024;

/// The secrets against which the control plane checks bearer tokens. Never printed.
#[derive(Clone)]
pub struct Secrets {
    user: Arc<RwLock<String>>,
    attempt_key: [u8; SECRET_BYTES],
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Reads the secrets of a data folder, creating them with mode 0600 at the first use.
    ///
    /// # Errors
    /// Fails if the files can't be read or created, or don't hold a secret.
    pub fn open(folder: &Path) -> io::Result<Secrets> {
        let user = Arc::new(RwLock::new(read_or_make(&folder.join(TOKEN_FILE))?));
        let attempt_key = *blake3::hash(read_or_make(&folder.join(KEY_FILE))?.as_bytes()).as_bytes();
        Ok(Secrets { user, attempt_key })
    }

    /// Reports whether `token` is the users' token, in constant time.
    #[must_use]
    pub fn is_user(&self, token: &str) -> bool {
        // blake3::Hash compares in constant time.
        blake3::hash(token.as_bytes()) == blake3::hash(self.user_token().as_bytes())
    }

    /// The users' token.
    #[must_use]
    pub fn user_token(&self) -> String {
        self.user.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the users' token; the old one becomes invalid. Attempts keep their tokens, so running jobs go
    /// on.
    ///
    /// # Errors
    /// Fails if the new token can't be stored in the data folder; the old one then stays valid.
    pub fn rotate(&self, folder: &Path) -> io::Result<()> {
        // Held while the file is written, so that after two concurrent rotations the file has the valid
        // token.
        let mut user = self.user.write().unwrap_or_else(PoisonError::into_inner);
        let token = random()?;
        write_durably(&folder.join(TOKEN_FILE), token.as_bytes())?;
        *user = token;
        Ok(())
    }

    /// Returns the token for the supervisors of an attempt that was placed in this epoch.
    #[must_use]
    pub fn attempt_token(&self, job: JobId, attempt: AttemptNumber, epoch: Epoch) -> String {
        self.attempt_hash(job, attempt, epoch).to_hex().to_string()
    }

    /// Reports whether `token` belongs to that attempt.
    #[must_use]
    pub fn is_attempt(&self, token: &str, job: JobId, attempt: AttemptNumber, epoch: Epoch) -> bool {
        blake3::Hash::from_hex(token).is_ok_and(|hash| hash == self.attempt_hash(job, attempt, epoch))
    }

    /// Returns the token for the agent of a node.
    #[must_use]
    pub fn agent_token(&self, node: &NodeName) -> String {
        self.agent_hash(node).to_hex().to_string()
    }

    /// Reports whether `token` belongs to the agent of that node.
    #[must_use]
    pub fn is_agent(&self, token: &str, node: &NodeName) -> bool {
        blake3::Hash::from_hex(token).is_ok_and(|hash| hash == self.agent_hash(node))
    }

    /// No attempt has such a name: theirs begin with a job's number.
    fn agent_hash(&self, node: &NodeName) -> blake3::Hash {
        blake3::keyed_hash(&self.attempt_key, format!("agent/{node}").as_bytes())
    }

    /// Attempts from before epochs were recorded have tokens derived without one.
    fn attempt_hash(&self, job: JobId, attempt: AttemptNumber, epoch: Epoch) -> blake3::Hash {
        let name =
            if epoch == Epoch::default() { format!("{job}/{attempt}") } else { format!("{job}/{attempt}/{epoch}") };
        blake3::keyed_hash(&self.attempt_key, name.as_bytes())
    }
}

/// Returns a new secret in hexadecimal digits.
pub fn random() -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes a temporary file and links it into place, so that nobody reads half a secret and the first of two
/// writers wins.
fn read_or_make(path: &Path) -> io::Result<String> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = random()?;
    let aside = path.with_extension(format!("new-{}", std::process::id()));
    remove_if_there(&aside)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&aside, path);
    remove_if_there(&aside)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    read(path)?.ok_or_else(|| io::Error::other(format!("{} was taken away", path.display())))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let text = text.trim().to_owned();
    let is_secret = text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_secret { Ok(Some(text)) } else { Err(io::Error::other(format!("{} does not hold a token", path.display()))) }
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
        assert!(again.is_user(&first.user_token()));
        assert!(!again.is_user(""));
        let mode = std::fs::metadata(folder.path().join(TOKEN_FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 2, "nothing is left beside the two secrets");
    }

    #[test]
    fn an_attempt_token_opens_only_its_attempt() {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::open(folder.path()).expect("made");
        let epoch = Epoch(7);
        let token = secrets.attempt_token(JobId(1), AttemptNumber(2), epoch);
        assert!(secrets.is_attempt(&token, JobId(1), AttemptNumber(2), epoch));
        assert!(!secrets.is_attempt(&token, JobId(1), AttemptNumber(3), epoch));
        assert!(!secrets.is_attempt(&token, JobId(12), AttemptNumber(2), epoch));
        assert!(!secrets.is_attempt(&token, JobId(1), AttemptNumber(2), Epoch(8)));
        assert!(!secrets.is_attempt(&token, JobId(1), AttemptNumber(2), Epoch::default()));
        assert!(!secrets.is_user(&token));
        assert!(!secrets.is_attempt("zz", JobId(1), AttemptNumber(2), epoch));
    }

    #[test]
    fn an_agents_token_opens_only_its_node() {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::open(folder.path()).expect("made");
        let node = |name: &str| NodeName::new(name).expect("a name");
        let token = secrets.agent_token(&node("n1"));
        assert!(secrets.is_agent(&token, &node("n1")));
        assert!(!secrets.is_agent(&token, &node("n11")) && !secrets.is_agent("", &node("n1")));
        assert!(!secrets.is_user(&token) && !secrets.is_agent(&secrets.user_token(), &node("n1")));
    }

    #[test]
    fn a_rotated_token_replaces_the_one_before_and_attempts_keep_theirs() {
        let folder = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::open(folder.path()).expect("made");
        let (before, shared) = (secrets.user_token(), secrets.clone());
        let attempt = secrets.attempt_token(JobId(1), AttemptNumber(1), Epoch(7));
        secrets.rotate(folder.path()).expect("the folder is writable");
        assert!(!shared.is_user(&before) && shared.is_user(&secrets.user_token()));
        assert!(shared.is_attempt(&attempt, JobId(1), AttemptNumber(1), Epoch(7)));
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(std::fs::read_to_string(&path).expect("a token"), shared.user_token());
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        secrets.rotate(&folder.path().join("nowhere")).expect_err("it can't be kept");
        assert!(shared.is_user(&std::fs::read_to_string(&path).expect("a token")), "the old one stays");
    }

    #[test]
    fn a_damaged_token_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(TOKEN_FILE), "short").expect("written");
        assert!(Secrets::open(folder.path()).is_err());
    }
}
