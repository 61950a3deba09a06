//! The key `workdir`: a folder in which the job runs as it is then, or code of which it runs a copy:
//! `{snapshot: FOLDER}` or `{git: URL, ref: NAME}`.

use std::path::{Path, PathBuf};

use gangline_base::{CheckpointPolicy, CodeCopy, CodeSource, JobSpec};

use super::Context;
use super::field::{Field, Section};
use super::job::absolute;
use super::problem::{Code, Place, Problems, Refusal, shown};
use super::yaml::Value;

/// The longest address or name of a commit, in bytes.
const GIT_BYTES_MAX: usize = 1_024;
/// How an address may begin. Git's other transports can run commands.
const TRANSPORTS: [&str; 5] = ["https://", "http://", "ssh://", "git://", "file:///"];

/// The value of `workdir`.
pub(super) struct Workdir {
    /// The folder as an absolute path, or the repository's address.
    pub(super) shown: String,
    /// The code to copy; none: the job runs in the folder itself.
    source: Option<CodeSource>,
    place: Place,
}

impl Workdir {
    /// Returns where the job file gives it.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Copies the code, if a copy is asked for.
    pub(super) fn copied(
        &self,
        job: &JobSpec,
        context: &Context<'_>,
        problems: &mut Problems,
    ) -> Option<Option<CodeCopy>> {
        let Some(source) = &self.source else { return Some(None) };
        // In a sweep the folder of checkpoints is the part before the job's id.
        let saves = job.checkpoint.path.as_deref().and_then(|path| path.split(CheckpointPolicy::JOB).next());
        match (context.copy_code)(source, saves.map(Path::new)) {
            Ok(code) => Some(Some(code)),
            Err(refused) => {
                let refusal = Refusal::new(Code::NoCopy, format!("\"workdir\" {}", refused.message));
                problems.add(&self.place, refusal.hint(refused.hint));
                None
            }
        }
    }
}

pub(super) fn read(top: &Section<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<Workdir> {
    let field = top.get("workdir");
    let Some(field) = field.filter(|field| matches!(field.node.value, Value::Mapping(_))) else {
        let written = field.map_or(Some("."), |field| field.text(problems))?;
        let place = field.map_or(&Place::START, |field| field.place());
        let shown = folder(written, place, context, problems)?;
        return Some(Workdir { shown, source: None, place: place.clone() });
    };
    let section = field.section(problems, "workdir")?;
    match (section.get("snapshot"), section.get("git"), section.get("ref")) {
        (Some(snapshot), None, None) => {
            let shown = folder(snapshot.text(problems)?, snapshot.place(), context, problems)?;
            let source = Some(CodeSource::Folder(shown.clone()));
            Some(Workdir { shown, source, place: snapshot.place().clone() })
        }
        (None, Some(git), reference) => {
            let url = git.parsed(problems, |text| url(context.base, text));
            let reference = match reference {
                None => None,
                Some(field) => Some(field.parsed(problems, name)?),
            };
            let shown = url?;
            let source = Some(CodeSource::Git { url: shown.clone(), reference });
            Some(Workdir { shown, source, place: git.place().clone() })
        }
        _ => {
            refuse_mixture(field, problems);
            None
        }
    }
}

fn refuse_mixture(field: Field<'_>, problems: &mut Problems) {
    let refusal = Refusal::new(Code::BadValue, "expects a folder, a snapshot of one, or a git repository");
    field.refuse(problems, refusal.hint("write a path, {snapshot: .} or {git: URL, ref: main}"));
}

fn folder(written: &str, place: &Place, context: &Context<'_>, problems: &mut Problems) -> Option<String> {
    let path: PathBuf = absolute(context.base, written);
    let Some(text) = path.to_str() else {
        problems.add(place, Refusal::new(Code::BadValue, "\"workdir\" leads to a path that is not UTF-8"));
        return None;
    };
    if !(context.is_folder)(&path) {
        let refusal = Refusal::new(Code::NoFolder, format!("\"workdir\" is no folder: {}", shown(text)));
        let hint = if written.starts_with('~') { "~ is not expanded, write the whole path" } else { "create it first" };
        problems.add(place, refusal.hint(hint));
        return None;
    }
    Some(text.to_owned())
}

/// Returns a repository's address: a URL, `user@host:path`, or a folder on this machine.
fn url(base: &Path, text: &str) -> Result<String, Refusal> {
    let wrong = |message: &str| Refusal::new(Code::BadValue, message.to_owned());
    if text.is_empty() || text.len() > GIT_BYTES_MAX || text.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(wrong("is no repository's address").hint("write https://HOST/PATH, git@HOST:PATH or a folder"));
    }
    if let Some(transport) = TRANSPORTS.iter().find(|transport| text.starts_with(**transport)) {
        let host = text[transport.len()..].split('/').next().unwrap_or_default();
        let user = host.rsplit_once('@').map_or("", |(user, _)| user);
        if user.contains(':') || (!user.is_empty() && transport.starts_with("http")) {
            let refusal = wrong("has a password, which would be kept and shown");
            return Err(refusal.hint("let git find it: see gitcredentials(7), or use ssh"));
        }
        return Ok(text.to_owned());
    }
    let host = text.split_once(':').map(|(host, _)| host).filter(|host| !host.contains('/'));
    match host {
        Some(host) if text.contains("::") || host.starts_with('-') || !host.contains('@') => {
            Err(wrong("has a transport that is not used").hint("write https://HOST/PATH or git@HOST:PATH"))
        }
        Some(_) => Ok(text.to_owned()),
        None => absolute(base, text).to_str().map(str::to_owned).ok_or_else(|| wrong("is a path that is not UTF-8")),
    }
}

/// Returns the name of a branch, a tag or a commit.
fn name(text: &str) -> Result<String, Refusal> {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+#@".contains(&byte);
    let is_name = text.bytes().all(is_sound) && !text.starts_with('-') && !text.contains("..");
    if text.is_empty() || text.len() > GIT_BYTES_MAX || !is_name {
        let refusal = Refusal::new(Code::BadValue, "is no name of a branch, a tag or a commit");
        return Err(refusal.hint("write {git: URL, ref: main}"));
    }
    Ok(text.to_owned())
}
