//! Logs, piece by piece.

use std::fs::{OpenOptions, create_dir_all, rename};
use std::io::Write;
use std::path::PathBuf;

use gangline_api::LogChunk;
use gangline_execution::protocol::SupervisorSpec;

use crate::plane::{Plane, succeeded};

/// A job whose first rank logs.
struct Logging {
    plane: Plane,
    spec: SupervisorSpec,
    log: PathBuf,
    lines: u32,
}

impl Logging {
    fn start() -> Logging {
        let plane = Plane::start();
        plane.submit("a", 1);
        let spec = plane.launched();
        let folder = spec.folder.join("logs");
        create_dir_all(&folder).expect("the folder is writable");
        Logging { plane, spec, log: folder.join("rank-0.log"), lines: 0 }
    }

    fn write(&self, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.log).expect("the folder is writable");
        file.write_all(text.as_bytes()).expect("there is room");
    }

    /// Writes a line as the shim would, each with a time of its own, and returns it.
    fn line(&mut self) -> String {
        self.lines += 1;
        let line = format!("2026-11-21T09:30:00.{:06}Z O line\n", self.lines);
        self.write(&line);
        line
    }

    fn rotate(&self) {
        rename(&self.log, self.log.with_extension("log.1")).expect("the folder is writable");
    }

    fn read(&self, query: &str) -> LogChunk {
        let answer = self.plane.get(&format!("/jobs/1/logs?{query}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("a piece")
    }

    /// Everything from a cursor on, and the cursor behind it.
    fn follow(&self, cursor: &str) -> (String, String) {
        let (mut text, mut cursor) = (String::new(), cursor.to_owned());
        for _ in 0..100 {
            let chunk = self.read(&format!("cursor={cursor}"));
            cursor = chunk.next;
            if chunk.text.is_empty() {
                return (text, cursor);
            }
            text.push_str(&chunk.text);
        }
        panic!("a log has an end");
    }
}

#[test]
fn a_line_that_is_still_being_written_is_withheld_until_it_is_whole() {
    let mut job = Logging::start();
    let first = job.line();
    job.write("half a");
    let chunk = job.read("rank=0&attempt=1");
    assert_eq!((chunk.text.as_str(), chunk.is_end, chunk.attempt), (first.as_str(), false, 1));
    let again = job.read(&format!("cursor={}", chunk.next));
    assert_eq!((again.text.as_str(), again.next.as_str()), ("", chunk.next.as_str()));
    job.write(" line\n");
    assert_eq!(job.follow(&chunk.next).0, "half a line\n");
}

#[test]
fn the_last_half_line_of_a_rank_that_has_ended_is_shown_and_then_it_ends() {
    let mut job = Logging::start();
    let first = job.line();
    job.write("killed in the mid");
    assert!(job.plane.report(&job.spec, &succeeded(&job.spec)).end_acknowledged);
    let chunk = job.read("");
    assert_eq!((chunk.text, chunk.is_end), (format!("{first}killed in the mid"), true));
    let after = job.read(&format!("cursor={}", chunk.next));
    assert_eq!((after.text.as_str(), after.is_end), ("", true));
}

#[test]
fn a_rotation_neither_repeats_nor_skips_a_line() {
    let mut job = Logging::start();
    let mut written = job.line();
    let (mut read, mut cursor) = job.follow("0-0");
    for round in 0..6 {
        written.push_str(&job.line());
        job.rotate();
        if round % 2 == 0 {
            written.push_str(&job.line());
        }
        let (text, next) = job.follow(&cursor);
        read.push_str(&text);
        cursor = next;
        let (nothing, same) = job.follow(&cursor);
        assert_eq!((nothing.as_str(), &same), ("", &cursor), "nothing is repeated");
    }
    assert_eq!(read, written);
}

#[test]
fn a_reader_that_was_away_for_two_rotations_goes_on_with_the_oldest_line_there_is() {
    let mut job = Logging::start();
    job.line();
    let (_, cursor) = job.follow("0-0");
    job.rotate();
    let mut left = String::new();
    for _ in 0..4 {
        left = job.line();
        job.rotate();
    }
    left.push_str(&job.line());
    assert_eq!(job.follow(&cursor).0, left, "a new file with an old one's inode is not taken for it");
}

/// Proves A-10 for logs: a piece has a limit, and the next goes on exactly there.
#[test]
fn a_large_log_comes_in_pieces() {
    let job = Logging::start();
    let text: String = (0..20_000).map(|number| format!("{number:06} and some text that takes room\n")).collect();
    job.write(&text);
    let first = job.read("");
    assert!(first.text.len() <= 256 << 10 && first.text.ends_with('\n'));
    assert_eq!(job.follow("0-0").0, text);
    let endless = "x".repeat(600_000);
    job.write(&endless);
    job.write("\n");
    assert!(job.follow(&first.next).0.ends_with(&format!("{endless}\n")), "a line longer than a piece is no end");
}

#[test]
fn what_has_no_log_is_named_and_nothing_else_can_be_read() {
    let job = Logging::start();
    std::fs::write(job.log.with_file_name("secret.log"), "secret\n").expect("the folder is writable");
    for query in ["rank=1", "rank=4294967295", "attempt=2", "attempt=0"] {
        let answer = job.plane.get(&format!("/jobs/1/logs?{query}"));
        assert_eq!(answer.refusal(), (404, "G0311".to_owned()), "{query}");
    }
    for query in ["rank=../secret", "rank=0%2f..%2fsecret", "attempt=..", "attempt=1%2f..%2f1"] {
        let answer = job.plane.get(&format!("/jobs/1/logs?{query}"));
        assert_eq!(answer.refusal(), (400, "G0306".to_owned()), "{query}");
    }
    assert_eq!(job.read("").text, "", "a log that isn't there yet is empty, not an error");
    let waiting = job.plane.submit("second", 2);
    let answer = job.plane.get(&format!("/jobs/{waiting}/logs"));
    assert_eq!(answer.refusal(), (404, "G0311".to_owned()));
}
