//! One run writes to a folder: another is refused, a newer attempt of the same takes over. Other processes are this test's own program.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use gangline_storage::{Error, Options, Step, Store};

use crate::{names, offered, open, save};

const FOLDER: &str = "GANGLINE_TEST_LEASE_FOLDER";
const RUN: &str = "GANGLINE_TEST_LEASE_RUN";
const TAG: &str = "GANGLINE_TEST_LEASE_TAG";

fn options(run: &str, tag: u64) -> Options {
    Options { run: Some(run.to_owned()), ..Options::writer(0, 1, tag) }
}

/// Not a test of its own: the other process. For each line that it reads it saves that step and says what came of it.
#[test]
fn other_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let (run, tag) = (std::env::var(RUN).unwrap(), std::env::var(TAG).unwrap().parse().unwrap());
    let say = |text: String| {
        println!("\nsaid {text}");
        std::io::stdout().flush().unwrap();
    };
    let store = match Store::open(folder, options(&run, tag)) {
        Ok(store) => store,
        Err(error) => return say(format!("refused: {error}")),
    };
    say("opened".to_owned());
    for line in std::io::stdin().lines() {
        let saved = save(&store, line.unwrap().parse().unwrap());
        say(saved.map_or_else(|error| format!("refused: {error}"), |_| "saved".to_owned()));
    }
}

struct Other {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(folder: &Path, run: &str, tag: u64) -> Other {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lease::other_process", "--nocapture"])
            .envs([(FOLDER, folder.to_str().unwrap()), (RUN, run), (TAG, &tag.to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        Other { process, said }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended without a word");
            if let Some(said) = line.trim().strip_prefix("said ") {
                return said.to_owned();
            }
        }
    }

    fn save(&mut self, step: u64) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{step}").unwrap();
        self.says()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn a_second_run_is_refused_by_name_until_the_first_has_died() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Other::start(folder.path(), "job-1", 1);
    assert_eq!(first.says(), "opened");
    assert_eq!(first.save(1), "saved");
    let refused = Store::open(folder.path(), options("job-2", 9)).err().unwrap();
    let Error::Held { run, process, .. } = &refused else { panic!("{refused}") };
    assert_eq!((run.as_str(), *process), ("job-1", first.process.id()));
    assert_eq!(first.save(2), "saved", "the refusal changed nothing");
    assert_eq!(offered(folder.path()), Some(2), "who only looks is never refused");
    first.kill();
    save(&open(folder.path(), options("job-2", 1)), 3).unwrap();
    assert_eq!(offered(folder.path()), Some(3));
}

#[test]
fn a_newer_attempt_takes_over_from_one_that_still_lives_and_that_one_saves_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut old = Other::start(folder.path(), "job-1", 1);
    assert_eq!(old.says(), "opened");
    assert_eq!(old.save(1), "saved");
    let new = open(folder.path(), options("job-1", 2));
    save(&new, 2).unwrap();
    assert!(old.save(3).starts_with("refused: write checkpoints to"), "it is fenced");
    assert_eq!(offered(folder.path()), Some(2));
    // The old one's end frees nothing that the new one holds.
    old.kill();
    let mut other = Other::start(folder.path(), "job-3", 5);
    assert!(other.says().starts_with("refused"));
    let mut older = Other::start(folder.path(), "job-1", 1);
    assert!(older.says().starts_with("refused"), "an older attempt is not a newer one");
    save(&new, 4).unwrap();
    drop(new);
    let mut other = Other::start(folder.path(), "job-3", 5);
    assert_eq!(other.says(), "opened");
    other.kill();
}

#[test]
fn one_process_may_open_a_folder_twice_and_leaves_nothing_locked_behind() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), options("job-1", 0));
    let second = open(folder.path(), options("job-1", 0));
    save(&first, 1).unwrap();
    save(&second, 2).unwrap();
    drop(first);
    save(&second, 3).unwrap();
    drop(second);
    assert_eq!(names(folder.path()), ["step-0000000002", "step-0000000003"]);
    let mut locks = std::fs::read_dir(folder.path().join(".gangline")).unwrap();
    assert!(!locks.any(|entry| entry.unwrap().path().extension().is_some_and(|kind| kind == "lock")));
    let mut other = Other::start(folder.path(), "job-2", 0);
    assert_eq!(other.says(), "opened");
    assert_eq!(other.save(4), "saved");
    other.kill();
}

#[test]
fn ranks_but_the_first_need_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path(), options("job-1", 0));
    let other = Options { run: Some("job-2".to_owned()), ..Options::writer(1, 2, 0) };
    assert_eq!(open(folder.path(), other).latest().unwrap().checkpoint.map(|info| info.step), None::<Step>);
}
