//! Scenarios: scripts that play on the scheduling engine with a virtual clock, and read as documentation.
//!
//! A file `NAME.txt` is a transcript: comments (`#`), commands ([`command`] lists them), and under each command what it
//! printed, indented by four spaces. The test plays the commands and compares the whole transcript with the file;
//! `GANGLINE_BLESS=1 cargo test` writes what was printed into the files instead. Also proves on the way: each
//! decision is shown with its reason, and the engine's invariants are checked after every event.

mod command;
mod machine;
mod render;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};

use command::parse;
use stage::Stage;

/// What a command printed stands this far in.
const INDENT: &str = "    ";

/// The transcript of a script, whose own output lines don't count.
///
/// # Errors
/// `file:line: message` of the first command that can't be understood or played.
fn transcript(file: &str, script: &str) -> Result<String, String> {
    let mut stage = Stage::new();
    let mut text = String::new();
    for (index, line) in script.lines().enumerate().filter(|(_, line)| !line.starts_with(INDENT)) {
        text += &format!("{}\n", line.trim_end());
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let printed = parse(line).and_then(|command| stage.play(command));
        let printed = printed.map_err(|message| format!("{file}:{}: {message}", index + 1))?;
        for output in printed {
            text += &format!("{INDENT}{output}\n");
        }
    }
    Ok(text)
}

/// `file:line` with what was expected and what came, where the two first differ.
fn compare(file: &str, expected: &str, found: &str) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let longest = expected.len().max(found.len());
    let at = (0..longest).find(|at| expected.get(*at) != found.get(*at)).unwrap_or(longest);
    let line = |lines: &[&str]| lines.get(at).map_or("(the end)".to_owned(), |line| (*line).to_owned());
    Err(format!("{file}:{}: expected\n  {}\nbut it printed\n  {}", at + 1, line(&expected), line(&found)))
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = fs::read_dir(&folder).expect("the folder of scenarios can be read");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("its entries can be read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

fn play(path: &Path, is_blessed: bool) -> Result<(), String> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let file = format!("tests/scenarios/{name}");
    let script = fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
    if !script.starts_with("# ") {
        return Err(format!("{file}:1: a scenario begins with a comment that says what it shows"));
    }
    let text = transcript(&file, &script)?;
    if is_blessed {
        return fs::write(path, text).map_err(|e| format!("{file}: {e}"));
    }
    compare(&file, &script, &text)
}

/// Proves and, where the control plane is restarted, A-3, on examples that a person can follow.
#[test]
fn scenarios_print_what_their_files_say() {
    let is_blessed = std::env::var_os("GANGLINE_BLESS").is_some();
    let files = files();
    assert!(files.len() >= 15, "only {} scenarios were found", files.len());
    let failures: Vec<String> = files.iter().filter_map(|path| play(path, is_blessed).err()).collect();
    assert!(failures.is_empty(), "{}\n(GANGLINE_BLESS=1 accepts what was printed)", failures.join("\n"));
}

#[test]
fn a_bad_line_is_reported_with_its_place() {
    let check = |line: &str, message: &str| {
        let script = format!("# A bad line.\ncluster 2 nodes x 4 h100\nsubmit a gang=4\n{line}\n");
        assert_eq!(transcript("x.txt", &script), Err(format!("x.txt:4: {message}")), "{line}");
    };
    check("reboot n1", "there is no command \"reboot\"");
    check("fail n3", "there is no node \"n3\"");
    check("cancel b", "there is no job \"b\"");
    check("submit a gang=1", "there is a job \"a\" already");
    check("submit b", "gang=DEVICES is missing");
    check("submit b gang=6 per-node=4", "gang=6 is not a multiple of per-node=4");
    check("submit b gang=2 prioriti=high", "\"prioriti=high\" is not understood here");
    check("submit b gang=2 priority=1001", "1001 is above 1000");
    check("submit b gang=2 gang=3", "gang is given twice");
    check("submit b gang=-1", "\"-1\" is not a number that fits here");
    check("advance 10", "\"10\" is not a time: write it as 500ms, 30s, 10m or 2h");
    check("start a on", "what comes after \"on\" is missing");
    check("start a now", "\"now\" is not understood here");
    check("cluster 2 hosts x 4 h100", "expected \"nodes\", found \"hosts\"");
    check("show", "queue, nodes or a job is missing");
    check("reserve week nodes=n1 from=1h", "until=TIME is missing");
    check("restart losing 3", "the journal doesn't end with 3 decision(s)");
}

#[test]
fn a_changed_line_is_reported_with_its_place() {
    let script = "# Two lines.\ncluster 1 nodes x 1 cpu\nshow queue\n    nobody waits\n";
    let found = transcript("x.txt", script).expect("the script is good");
    assert_eq!(compare("x.txt", script, &found), Ok(()));
    let other = script.replace("nobody", "somebody");
    let message = compare("x.txt", &other, &found).expect_err("a line differs");
    assert_eq!(message, "x.txt:4: expected\n      somebody waits\nbut it printed\n      nobody waits");
    assert!(compare("x.txt", &format!("{script}more\n"), &found).is_err());
}
