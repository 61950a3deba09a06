//! Copies of real folders and repositories, unpacked again.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use gangline_base::{Bytes, CodeCopy, CodeSource, JobId, Timestamp};
use gangline_specs::jobfile::NotCopied;

use super::{CodeStore, folder_of, prune, unpack};

/// A folder with code, and a data folder beside it.
struct Bench {
    root: tempfile::TempDir,
    store: CodeStore,
}

impl Bench {
    fn new() -> Bench {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("code")).expect("a folder");
        let store = CodeStore::new(&root.path().join("data"), Bytes(10_000));
        Bench { root, store }
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn code(&self) -> PathBuf {
        self.root.path().join("code")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.code().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn copy(&self) -> Result<CodeCopy, NotCopied> {
        let folder = self.code().to_str().expect("text").to_owned();
        self.store.copy(&CodeSource::Folder(folder), Some(&self.code().join("saved")), false)
    }

    fn clone_of(&self, reference: Option<&str>) -> Result<CodeCopy, NotCopied> {
        let url = self.code().to_str().expect("text").to_owned();
        self.store.copy(&CodeSource::Git { url, reference: reference.map(str::to_owned) }, None, false)
    }

    fn unpacked(&self, job: u64, code: &CodeCopy) -> PathBuf {
        let folder = folder_of(&self.data(), JobId(job), code);
        unpack(&self.data(), &folder).expect("it is kept");
        folder
    }

    fn git(&self, arguments: &[&str]) -> String {
        let identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"];
        let ran = Command::new("git").current_dir(self.code()).args(identity).args(arguments).output();
        let ran = ran.expect("git starts");
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text").trim().to_owned()
    }

    fn commit(&self) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", "x"]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn names(&self, folder: &str) -> usize {
        let count = |folder: &Path| fs::read_dir(folder).map_or(0, Iterator::count);
        let folder = self.data().join("code").join(folder);
        match folder.ends_with("contents") {
            true => fs::read_dir(&folder).map_or(0, |first| first.flatten().map(|first| count(&first.path())).sum()),
            false => count(&folder),
        }
    }
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("a file")
}

#[test]
fn a_copy_has_what_gitignore_leaves_and_later_edits_do_not_reach_it() {
    let bench = Bench::new();
    bench.write("train.py", "first");
    bench.write("lib/deep/mod.py", "deep");
    bench.write(".gitignore", "data/\n*.pt\n");
    bench.write("data/tokens.bin", "x");
    bench.write("model.pt", "x");
    bench.write("saved/step-1", "a checkpoint");
    bench.write("lib/run.sh", "#!/bin/sh\n");
    fs::create_dir(bench.code().join("empty")).expect("a folder");
    symlink("lib/run.sh", bench.code().join("link")).expect("a link");
    fs::set_permissions(bench.code().join("lib/run.sh"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let code = bench.copy().expect("it is small");
    assert_eq!((code.commit.as_deref(), code.changed_files), (None, 0));
    bench.write("train.py", "second");
    let folder = bench.unpacked(1, &code);
    assert_eq!((text(folder.join("train.py")), text(folder.join("lib/deep/mod.py"))), ("first".into(), "deep".into()));
    assert_eq!(fs::read_link(folder.join("link")).expect("a link"), Path::new("lib/run.sh"));
    let mode = fs::metadata(folder.join("lib/run.sh")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "{mode:o}");
    assert!(folder.join("empty").is_dir() && folder.join(".gitignore").is_file());
    for left_out in ["data", "model.pt", "saved"] {
        assert!(!folder.join(left_out).exists(), "{left_out}");
    }
    // What a job writes stays for its next attempt, and reaches no other job.
    fs::write(folder.join("out.txt"), "mine").expect("it is the job's");
    assert_eq!(text(bench.unpacked(1, &code).join("out.txt")), "mine");
    assert!(!bench.unpacked(2, &code).join("out.txt").exists());
}

#[test]
fn what_copies_have_in_common_is_kept_once() {
    let bench = Bench::new();
    bench.write("a.py", "a");
    bench.write("b.py", "b");
    let first = bench.copy().expect("it is small");
    assert_eq!(bench.copy().expect("it is small"), first);
    bench.write("a.py", "changed");
    let second = bench.copy().expect("it is small");
    assert_ne!(first.tree, second.tree);
    assert_eq!((bench.names("trees"), bench.names("contents")), (2, 3));
}

#[test]
fn the_commit_and_the_differences_from_it_are_recorded() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write("a.py", "one\n");
    let commit = bench.commit();
    assert_eq!(bench.copy().expect("it is small").changed_files, 0);
    bench.write("a.py", "two\n");
    bench.write("new.py", "new\n");
    let code = bench.copy().expect("it is small");
    assert_eq!((code.commit.as_deref(), code.changed_files), (Some(commit.as_str()), 2));
    let folder = bench.unpacked(1, &code);
    assert_eq!((text(folder.join("a.py")), text(folder.join("new.py"))), ("two\n".into(), "new\n".into()));
    let changes = text(folder.with_file_name("changes.diff"));
    assert!(changes.contains("-one\n+two\n"), "{changes}");
    assert!(!folder.join(".git").exists());
}

#[test]
fn what_can_not_be_copied_is_refused_by_its_name() {
    let refused = |bench: &Bench| {
        let NotCopied { message, hint } = bench.copy().expect_err("a refusal");
        format!("{message} ({hint})")
    };
    let bench = Bench::new();
    bench.write("train.py", "small");
    bench.write("weights/model.bin", &"x".repeat(10_000));
    let message = refused(&bench);
    assert!(message.contains("more than 9.7 KiB") && message.contains("weights (9.7 KiB)"), "{message}");
    assert!(message.contains(".gitignore") && message.contains("code.snapshot_max"), "{message}");
    bench.write(".ganglineignore", "weights\n");
    bench.copy().expect("it is named there");
    let _socket = UnixListener::bind(bench.code().join("socket")).expect("a socket");
    let message = refused(&bench);
    assert!(message.contains("/socket, which is neither a file") && message.contains(".gitignore"), "{message}");
    let gone = CodeSource::Folder(bench.root.path().join("gone").to_str().expect("text").to_owned());
    bench.store.copy(&gone, None, false).expect_err("it isn't there");
}

#[test]
fn a_dry_run_keeps_nothing() {
    let bench = Bench::new();
    bench.write("train.py", "first");
    let source = CodeSource::Folder(bench.code().to_str().expect("text").to_owned());
    let dry = bench.store.copy(&source, None, true).expect("it is small");
    assert!(!bench.data().exists());
    assert_eq!(dry, bench.store.copy(&source, None, false).expect("it is small"));
}

#[test]
fn a_branch_a_tag_and_a_commit_are_cloned_once_and_others_are_refused() {
    let bench = Bench::new();
    bench.git(&["init", "-q", "-b", "main"]);
    bench.write("a.py", "one");
    let first = bench.commit();
    bench.git(&["tag", "-a", "v1", "-m", "a tag with a message"]);
    bench.write("a.py", "two");
    let second = bench.commit();
    bench.write("a.py", "not committed");
    let of = |reference| bench.clone_of(reference).expect("it has it");
    let head = of(None);
    assert_eq!((head.commit.as_deref(), head.changed_files), (Some(second.as_str()), 0));
    assert_eq!((of(Some("main")), of(Some(&second))), (head.clone(), head.clone()));
    assert_eq!(of(Some("v1")).commit, Some(first.clone()));
    assert_eq!(text(bench.unpacked(1, &of(Some("v1"))).join("a.py")), "one");
    assert_eq!((bench.names("commits"), bench.names("clones")), (2, 0));
    // The commit is known: the repository isn't asked for it again.
    fs::rename(bench.code().join(".git"), bench.code().join("git")).expect("a folder");
    assert_eq!(of(Some(&first)).commit, Some(first));
    let message = bench.clone_of(Some("main")).expect_err("no repository").message;
    let expected = format!("can't be cloned: '{}' does not appear to be a git repository", bench.code().display());
    assert_eq!(message, expected, "git's advice on rights comes after this");
    fs::rename(bench.code().join("git"), bench.code().join(".git")).expect("a folder");
    let refused = bench.clone_of(Some("gone")).expect_err("it has none").message;
    assert!(refused.contains("has no branch, tag or commit \"gone\""), "{refused}");
    let refused = bench.clone_of(Some(&"0".repeat(40))).expect_err("it has none").message;
    assert!(refused.contains("has no branch, tag or commit \"0000"), "{refused}");
}

#[test]
fn a_copy_that_was_changed_on_disk_is_not_unpacked() {
    let bench = Bench::new();
    bench.write("a.py", "one");
    let code = bench.copy().expect("it is small");
    let folder = folder_of(&bench.data(), JobId(1), &code);
    let list = bench.data().join("code/trees").join(&code.tree);
    let sound = text(&list);
    fs::write(&list, sound.replace("a.py", "../../b")).expect("a file");
    unpack(&bench.data(), &folder).expect_err("its list was changed");
    fs::write(&list, sound).expect("a file");
    let contents = bench.data().join("code/contents");
    let first = fs::read_dir(&contents).expect("a folder").flatten().next().expect("a content").path();
    let content = fs::read_dir(first).expect("a folder").flatten().next().expect("a content").path();
    fs::write(&content, "two").expect("a file");
    unpack(&bench.data(), &folder).expect_err("its content was changed");
    assert!(!folder.exists());
    fs::write(&content, "one").expect("a file");
    assert_eq!(text(bench.unpacked(1, &code).join("a.py")), "one");
}

#[test]
fn a_copy_stays_for_who_needs_it_and_for_a_day() {
    let bench = Bench::new();
    bench.write("a.py", "one");
    let code = bench.copy().expect("it is small");
    let (now, later) = (Timestamp::from_unix_nanos(0), Timestamp::from_unix_nanos(u64::MAX / 2));
    let kept = |live: &BTreeSet<(String, String)>, now| {
        prune(&bench.data(), live, now).expect("the folder is there");
        (bench.names("trees"), bench.names("contents"), bench.names("jobs"))
    };
    let (nobody, job) = (BTreeSet::new(), BTreeSet::from([("job-1".to_owned(), code.tree.clone())]));
    assert_eq!(kept(&nobody, now), (1, 1, 0), "it is young");
    assert_eq!(kept(&job, later), (1, 1, 0), "its job waits");
    bench.unpacked(1, &code);
    fs::create_dir_all(bench.data().join("jobs/job-1")).expect("a folder");
    assert_eq!(kept(&nobody, later), (1, 1, 1), "its job's files are kept");
    fs::remove_dir(bench.data().join("jobs/job-1")).expect("a folder");
    assert_eq!(kept(&nobody, later), (0, 0, 0));
    unpack(&bench.data(), &folder_of(&bench.data(), JobId(1), &code)).expect_err("it is gone");
}
