//! `Idempotency-Key`: what is sent again is answered again and done once.

use serde_json::{Value, json};

use crate::plane::{Answer, Plane};

fn post(plane: &Plane, path: &str, key: &str, body: &Value) -> Answer {
    let bearer = plane.bearer();
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), ("idempotency-key", key)];
    plane.send("POST", &format!("/api/v1{path}"), &headers, body.to_string().as_bytes())
}

fn job(plane: &Plane, name: &str) -> Value {
    let file = format!("name: {name}\nresources: {{accelerators: \"cpu:1\"}}\nrun: train\n");
    json!({"job_file": file, "directory": plane.folder.path()})
}

fn count(plane: &Plane) -> usize {
    plane.get("/jobs").json()["jobs"].as_array().expect("a list").len()
}

#[test]
fn every_change_that_is_sent_again_is_answered_as_at_first() {
    let plane = Plane::start();
    let sweep = json!({"job_file": "name: s\nrun: train\nsweep: {LR: [1, 2, 3]}\n", "directory": plane.folder.path()});
    let changes = [
        ("/jobs", job(&plane, "a")),
        ("/jobs", sweep),
        ("/jobs/job-1/cancel", json!({})),
        ("/sweeps/sweep-2/cancel", json!({})),
        ("/nodes/n1/drain", json!({"within_seconds": 600})),
        ("/nodes/n1/undrain", json!({})),
    ];
    let firsts: Vec<Answer> =
        (0..).zip(&changes).map(|(number, (path, body))| post(&plane, path, &format!("key-{number}"), body)).collect();
    assert_eq!(count(&plane), 4);
    for (number, ((path, body), first)) in (0..).zip(changes.iter().zip(&firsts)) {
        let again = post(&plane, path, &format!("key-{number}"), body);
        assert_eq!((first.status, again.status), (200, 200), "{path}: {first:?} {again:?}");
        assert_eq!((&again.text, again.header("content-type")), (&first.text, Some("application/json")), "{path}");
        assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), (None, Some("true")));
    }
    assert_eq!(count(&plane), 4, "nothing was submitted twice");
    assert_eq!(plane.get("/nodes").json()["nodes"][0]["status"], "ready", "and nothing was drained again");
}

#[test]
fn a_key_is_good_for_one_request_only() {
    let plane = Plane::start();
    assert_eq!(post(&plane, "/jobs", "k", &job(&plane, "a")).status, 200);
    let others = [("/jobs", job(&plane, "b")), ("/jobs/job-1/cancel", json!({})), ("/nodes/n1/undrain", json!({}))];
    for (path, body) in others {
        assert_eq!(post(&plane, path, "k", &body).refusal(), (422, "G0320".to_owned()), "{path}");
    }
    assert_eq!(count(&plane), 1);
    for key in ["", "two words", "caf\u{e9}", &"k".repeat(256)] {
        assert_eq!(post(&plane, "/jobs", key, &job(&plane, "c")).refusal(), (400, "G0306".to_owned()), "{key:?}");
    }
    assert_eq!(post(&plane, "/jobs", &"k".repeat(255), &job(&plane, "c")).status, 200);
    let big = json!({"job_file": "x".repeat(1 << 20), "directory": "/"});
    assert_eq!(post(&plane, "/jobs", "big", &big).refusal(), (413, "G0305".to_owned()));
    let denied =
        plane.send("POST", "/api/v1/jobs", &[("idempotency-key", "k")], job(&plane, "a").to_string().as_bytes());
    assert_eq!(denied.refusal(), (401, "G0301".to_owned()), "a key opens nothing");
}

/// What the job file named may be gone when its submission is sent again: it is on disk, and that is the answer.
#[test]
fn a_submission_is_remembered_when_its_folder_is_gone() {
    let plane = Plane::start();
    let work = tempfile::tempdir().expect("a folder");
    let body = json!({"job_file": "name: w\nworkdir: .\nrun: train\n", "directory": work.path()});
    let first = post(&plane, "/jobs", "k", &body);
    assert_eq!(first.status, 200, "{first:?}");
    drop(work);
    assert_eq!(post(&plane, "/jobs", "k", &body).text, first.text);
    assert_eq!(post(&plane, "/jobs", "other", &body).status, 400);
}

#[test]
fn requests_with_one_key_at_the_same_time_make_one_change() {
    let plane = Plane::start();
    let body = job(&plane, "a");
    for round in 0..20 {
        let key = format!("round-{round}");
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| post(&plane, "/jobs", &key, &body))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        assert!(answers.iter().all(|answer| answer.status == 200 && answer.text == answers[0].text), "{answers:?}");
    }
    assert_eq!(count(&plane), 20);
}

/// A stored answer that a disk has changed is neither given as if it were true, nor is its change made again.
#[test]
fn a_damaged_answer_is_refused_and_its_change_is_not_made_again() {
    let plane = Plane::start();
    assert_eq!(post(&plane, "/jobs", "k", &job(&plane, "a")).status, 200);
    assert_eq!(post(&plane, "/jobs", "other", &job(&plane, "b")).status, 200);
    let database = rusqlite::Connection::open(plane.folder.path().join("journal.sqlite")).expect("it opens");
    let sql = "UPDATE answers SET body = replace(body, 'job-1', 'job-7') WHERE key = 'k'";
    assert_eq!(database.execute(sql, []).expect("the statement is sound"), 1);
    for _ in 0..2 {
        let refused = post(&plane, "/jobs", "k", &job(&plane, "a"));
        assert_eq!(refused.refusal(), (409, "G0321".to_owned()));
        assert!(!refused.text.contains("job-7") && refused.text.contains("the change was made"), "{}", refused.text);
    }
    assert_eq!(count(&plane), 2, "nothing was submitted twice");
    assert_eq!(post(&plane, "/jobs", "other", &job(&plane, "b")).header("idempotency-replayed"), Some("true"));
}
