//! Submitting, looking, cancelling.

use gangline_api::{self as api, JobState};
use serde_json::json;

use crate::plane::{Plane, sample, succeeded};

#[test]
fn problems_of_a_job_file_come_with_code_place_and_hint() {
    let plane = Plane::start();
    let answer = plane.submit_text("name: a\nrun: train\nnum_node: 2\npriority: 2000\n", false);
    assert_eq!(answer.refusal(), (400, "G0100".to_owned()));
    let problems = answer.json()["error"]["problems"].clone();
    let shown: Vec<(&str, &str)> = problems
        .as_array()
        .expect("a list")
        .iter()
        .map(|problem| (problem["code"].as_str().expect("a code"), problem["place"].as_str().expect("a place")))
        .collect();
    assert_eq!(shown, [("G0103", "3:1"), ("G0108", "4:11")]);
    assert!(problems[0]["hint"].as_str().is_some_and(|hint| hint.contains("num_nodes")), "{problems}");
    let folder = plane.folder.path();
    let set = plane.post("/jobs", &json!({"job_file": "run: x", "directory": folder, "set": ["nothing"]}));
    assert_eq!(set.json()["error"]["problems"][0]["place"], "--set nothing");
    assert!(plane.get("/jobs").json()["jobs"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_dry_run_says_where_it_would_start_or_why_it_would_wait() {
    let plane = Plane::start();
    let file = |slots: u32| format!("run: x\nresources: {{accelerators: \"cpu:{slots}\"}}\n");
    let start = plane.submit_text(&file(2), true).json();
    assert_eq!(start["dry_run"]["would_start"]["placements"], json!([{"node": "n1", "devices": [0, 1]}]));
    let holder = plane.submit("a", 1);
    let wait = plane.submit_text(&file(2), true).json();
    let explanation = &wait["dry_run"]["would_wait"]["explanation"];
    assert_eq!(
        (&explanation["blocker"]["is"], &explanation["blocker"]["holders"]),
        (&json!("not_enough_free"), &json!([holder]))
    );
    let never = plane.submit_text(&file(3), true);
    assert_eq!(never.refusal(), (422, "G0401".to_owned()));
    let hint = never.json()["error"]["hint"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(hint.contains("what would fit: at most cpu:2"), "{hint}");
    assert_eq!(plane.get("/jobs").json()["jobs"].as_array().map(Vec::len), Some(1), "nothing was submitted");
}

#[test]
fn a_job_goes_from_submission_to_its_bill() {
    let plane = Plane::start();
    let id = plane.submit("a", 2);
    let spec = plane.launched();
    let explained = plane.get(&format!("/jobs/{id}/explain")).json();
    assert_eq!(explained["state"], "starting");
    plane.store(&spec, &[sample(1)]);
    assert_eq!(plane.job(&id).state, JobState::Running);
    assert!(plane.report(&spec, &succeeded(&spec)).end_acknowledged);
    let job = plane.job(&id);
    assert_eq!((job.state, job.submitter.as_str(), job.progress.loss), (JobState::Succeeded, "ada", Some(4.999)));
    let buckets: u64 = job.usage.buckets.iter().map(|line| line.gpu_nanoseconds).sum();
    assert!(buckets > 0);
    assert_eq!(buckets, job.usage.gpu_nanoseconds);
    assert_eq!(plane.get(&format!("/jobs/{id}/explain")).json()["summary"], "succeeded");
    let cancel = plane.post(&format!("/jobs/{id}/cancel"), &json!({}));
    assert_eq!(cancel.refusal(), (409, "G0303".to_owned()));
    assert_eq!(plane.post("/jobs/77/cancel", &json!({})).refusal(), (404, "G0302".to_owned()));
}

#[test]
fn a_waiting_job_says_what_it_waits_for_and_can_be_cancelled() {
    let plane = Plane::start();
    let first = plane.submit("first", 2);
    let second = plane.submit("second", 1);
    let because = plane.job(&second).because;
    assert!(because.contains(&format!("held by {first}")), "{because}");
    let listed: api::JobList = serde_json::from_value(plane.get("/jobs").json()).expect("a list");
    assert_eq!(listed.jobs[0].because, because, "the list says the same");
    let answer = plane.post(&format!("/jobs/{second}/cancel"), &json!({}));
    assert_eq!(answer.json()["state"], "cancelled");
    let queues = plane.get("/queues").json();
    assert_eq!((&queues["queues"][0]["running"], &queues["queues"][0]["waiting"]), (&json!([first]), &json!([])));
}

#[test]
fn a_waiting_job_is_held_changed_and_released_and_an_ended_one_resumed() {
    let plane = Plane::start();
    let first = plane.submit("first", 2);
    let second = plane.submit("second", 1);
    let change = |job: &str, body: serde_json::Value| plane.post(&format!("/jobs/{job}/change"), &body);
    let set = json!({"priority": "high", "time_limit": "2h"});
    let answer = change(&second, json!({"hold": true, "set": set})).json();
    assert_eq!(answer["changed"], json!(["held", "priority set to 750", "time limit set to 7200 s"]));
    assert_eq!(plane.get(&format!("/jobs/{second}/explain")).json()["blocker"]["is"], "held");
    assert_eq!(plane.job(&second).priority, 750);
    assert_eq!(change(&second, json!({"hold": false})).json()["changed"], json!(["released"]));
    assert_eq!(change(&second, json!({"hold": false})).json()["changed"], json!([]));
    assert_eq!(change(&second, json!({"set": {"priority": "2000"}})).refusal(), (400, "G0107".to_owned()));
    assert_eq!(change(&second, json!({"set": {"run": "x"}})).refusal(), (400, "G0107".to_owned()));
    assert_eq!(change(&first, json!({"hold": true})).refusal(), (409, "G0421".to_owned()));
    assert_eq!(change("job-77", json!({"hold": true})).refusal(), (404, "G0302".to_owned()));
    let resume = |job: &str| plane.post(&format!("/jobs/{job}/resume"), &json!({}));
    assert_eq!(resume(&second).refusal(), (409, "G0423".to_owned()));
    plane.post(&format!("/jobs/{second}/cancel"), &json!({}));
    assert_eq!(resume(&second).json(), json!({"job": "job-3", "name": "second", "queue": "default"}));
    assert_eq!(plane.job("job-3").origin.as_deref(), Some(&*second));
    let failed = plane.submit_text(&format!("run: x\nafter: {second}\n"), false);
    assert_eq!(failed.refusal(), (409, "G0422".to_owned()));
}

#[test]
fn the_list_goes_on_where_a_page_ended() {
    let plane = Plane::start();
    for number in 0..5 {
        plane.submit(&format!("job-{number}"), 1);
    }
    let mut seen = Vec::new();
    let mut path = "/jobs?limit=2".to_owned();
    for _ in 0..10 {
        let list: api::JobList = serde_json::from_value(plane.get(&path).json()).expect("a list");
        assert!(list.jobs.len() <= 2);
        seen.extend(list.jobs.into_iter().map(|job| job.id));
        let Some(next) = list.next else { break };
        path = format!("/jobs?limit=2&before={next}");
    }
    assert_eq!(seen, ["job-5", "job-4", "job-3", "job-2", "job-1"]);
    assert_eq!(plane.get("/jobs?limit=4000000000").json()["jobs"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_live_job_is_listed_whatever_has_ended_since() {
    let plane = Plane::start();
    let runs = plane.submit("runs", 2);
    let mut ended: Vec<String> = (0..120).map(|number| plane.submit(&format!("ended-{number}"), 1)).collect();
    for job in &ended {
        plane.post(&format!("/jobs/{job}/cancel"), &json!({}));
    }
    let waits = plane.submit("waits", 1);
    let list = |path: &str| -> (Vec<String>, Option<String>) {
        let list: api::JobList = serde_json::from_value(plane.get(path).json()).expect("a list");
        (list.jobs.into_iter().map(|job| job.id).collect(), list.next)
    };
    assert_eq!(list("/jobs?standing=live"), (vec![waits.clone(), runs.clone()], None));
    assert_eq!(list("/jobs?standing=live&limit=1"), (vec![waits.clone()], Some(waits.clone())));
    assert_eq!(list(&format!("/jobs?standing=live&limit=1&before={waits}")).0, [runs.as_str()]);
    ended.reverse();
    assert_eq!(list("/jobs?standing=ended&limit=500"), (ended, None));
    assert_eq!(plane.get("/jobs?standing=none").status, 400);
    assert_eq!(list("/jobs?state=waiting,starting").0, [waits.clone(), runs.clone()]);
    assert_eq!(list("/jobs?name=WAIT&standing=live"), (vec![waits.clone()], None));
    assert_eq!(list("/jobs?standing=live&user=nobody"), (vec![], None));
    assert_eq!(list("/jobs?since=2500-01-01T00:00:00Z"), (vec![], None));
    let refused = plane.get("/jobs?state=done");
    assert!(refused.status == 400 && refused.json().to_string().contains("succeeded"), "it names the states");
    let page = crate::page::page(&plane);
    let at = |id: &str| page.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("{id} is not on the page"));
    assert!(at(&runs) < at(&waits) && at(&waits) < at("job-121"), "what runs comes first, then what waits");
}

#[test]
fn a_drained_node_takes_nothing_until_it_is_taken_back() {
    let plane = Plane::start();
    assert_eq!(plane.post("/nodes/n1/drain", &json!({})).json()["status"], "draining");
    let id = plane.submit("a", 1);
    assert!(plane.job(&id).because.contains("draining: n1"));
    assert_eq!(plane.post("/nodes/n1/undrain", &json!({})).json()["status"], "ready");
    assert_eq!(plane.launched().job, 1);
    assert_eq!(plane.get("/nodes").json()["nodes"][0]["slots"][0]["job"], id);
}

/// Where a page of the database isn't one any more, the list has all jobs but those on it, and tells which these are.
#[test]
fn a_malformed_page_hides_only_its_own_jobs_from_the_list() {
    const PAGE_BYTES: usize = 4_096;
    let plane = Plane::start();
    for number in 1..=60 {
        plane.submit(&format!("needle-{number}"), 1);
    }
    let path = plane.folder.path().join("journal.sqlite");
    let database = rusqlite::Connection::open(&path).expect("it opens");
    database.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).expect("nobody is in the way");
    let mut bytes = std::fs::read(&path).expect("it is readable");
    let needle = br#""id":30,"name":"needle-30""#;
    let at = bytes.windows(needle.len()).rposition(|window| window == needle).expect("it is there");
    bytes[at / PAGE_BYTES * PAGE_BYTES] ^= 1;
    std::fs::write(&path, &bytes).expect("the file is ours");
    // Whoever reads forgets the pages that it knows.
    plane.submit("last", 1);
    let list = plane.get("/jobs?limit=500");
    assert_eq!(list.status, 200, "{}", list.text);
    let list = list.json();
    let names = |key: &str| list[key].as_array().cloned().unwrap_or_default();
    let (shown, damaged) = (names("jobs").len(), names("damaged"));
    assert_eq!(shown + damaged.len(), 61);
    assert!(damaged.contains(&"job-30".into()) && damaged.len() < 20, "{damaged:?}");
    let before = plane.get("/jobs?before=job-40&limit=5").json();
    assert_eq!(before["jobs"].as_array().map_or(0, Vec::len) + before["damaged"].as_array().map_or(0, Vec::len), 5);
    assert_eq!(plane.get("/jobs/job-30").refusal(), (503, "G0203".to_owned()));
    assert_eq!(plane.get("/jobs/job-61").status, 200);
}
