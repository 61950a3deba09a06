//! Schedules over HTTP.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use serde_json::{Value, json};

use crate::plane::{PATIENCE, Plane, now};

/// Hours by which the server's clock is ahead.
static AHEAD: AtomicU64 = AtomicU64::new(0);
const HOUR: Duration = Duration::from_secs(3_600);

/// Always a minute past an hour, which moves only when the test says so.
fn clock() -> Timestamp {
    let hours = now().unix_nanos() / u64::try_from(HOUR.as_nanos()).expect("a small number");
    let ahead = u32::try_from(hours + AHEAD.load(Ordering::SeqCst)).expect("a small number");
    Timestamp::EPOCH + HOUR * ahead + Duration::from_secs(60)
}

fn create(plane: &Plane, cron: &str, job_file: &str) -> crate::plane::Answer {
    let job = json!({"job_file": job_file, "directory": "/"});
    plane.post("/schedules", &json!({"cron": cron, "job": job}))
}

/// An hour passes. The server looks at its schedules when one of them is changed, and finds the time there.
fn an_hour_later(plane: &Plane, until: impl Fn(&Value) -> bool) -> Value {
    AHEAD.fetch_add(1, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert_eq!(plane.post("/schedules/schedule-1/resume", &json!({})).status, 200);
        let shown = plane.get("/schedules").json()["schedules"][0].clone();
        if until(&shown) {
            return shown;
        }
        assert!(Instant::now() < deadline, "waited too long: {shown:#}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_job_file_is_submitted_at_each_of_its_times_unless_its_last_job_is_live() {
    let plane = Plane::with_clock(clock);
    plane.submit("holds-both-slots", 2);
    let made = create(&plane, "@hourly", "name: nightly\nrun: train\n");
    assert_eq!((made.status, &made.json()["id"]), (200, &json!("schedule-1")), "{made:?}");
    assert_eq!(plane.get("/jobs").json()["jobs"].as_array().map(Vec::len), Some(1), "nothing is submitted yet");
    let submitted = |job: &'static str| move |shown: &Value| shown["last"]["submitted"] == job;
    let shown = an_hour_later(&plane, submitted("job-2"));
    assert_eq!(
        (&shown["name"], &shown["submitter"], &shown["left_out"]),
        (&json!("nightly"), &json!("ada"), &json!(0))
    );
    assert_eq!(plane.job("job-2").name, "nightly");
    let left_out = an_hour_later(&plane, |shown| shown["left_out"] == 1);
    assert_eq!(left_out["last"]["failure"], "job-2 of the time before is still live");
    assert_eq!(plane.post("/jobs/job-2/cancel", &json!({})).status, 200);
    an_hour_later(&plane, submitted("job-3"));
    let paused = plane.post("/schedules/schedule-1/pause", &json!({})).json();
    assert_eq!((&paused["is_paused"], &paused["next"]), (&json!(true), &Value::Null));
    let plane = plane.restart();
    let kept = plane.get("/schedules").json()["schedules"][0].clone();
    assert_eq!((&kept["last"]["submitted"], &kept["is_paused"]), (&json!("job-3"), &json!(true)));
    assert_eq!(plane.post("/schedules/schedule-1/remove", &json!({})).status, 200);
    assert_eq!(plane.get("/schedules").json()["schedules"], json!([]));
}

#[test]
fn a_time_that_never_comes_a_wrong_job_file_and_a_schedule_that_is_not_there_are_refused() {
    let plane = Plane::start();
    let good = "run: train\n";
    for (cron, message) in [
        ("0 3 * *", "the time \"0 3 * *\" is no time that comes again"),
        ("0 0 30 2 *", "the time \"0 0 30 2 *\" never comes"),
    ] {
        let refused = create(&plane, cron, good);
        assert_eq!(refused.refusal(), (422, "G0324".to_owned()));
        let told = refused.json()["error"]["message"].to_string();
        assert!(serde_json::from_str::<String>(&told).is_ok_and(|told| told.starts_with(message)), "{told}");
    }
    let wrong = create(&plane, "@daily", "nun: train\n");
    assert_eq!(wrong.refusal(), (400, "G0100".to_owned()));
    assert_eq!(plane.post("/schedules/schedule-7/pause", &json!({})).refusal(), (404, "G0323".to_owned()));
    assert_eq!(create(&plane, "@daily", good).status, 200);
    assert_eq!(plane.post("/schedules/schedule-1/skip", &json!({})).status, 404);
    while create(&plane, "@daily", good).status == 200 {}
    assert_eq!(create(&plane, "@daily", good).refusal(), (429, "G0325".to_owned()));
    assert_eq!(plane.get("/schedules").json()["schedules"].as_array().map(Vec::len), Some(256));
}
