//! The largest that users may send: whatever it is, the control plane takes it or refuses it with a figure, goes on, and
//! starts again.

use gangline_base::Bytes;
use gangline_orchestration::{Limits, UserLimits};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;

use crate::plane::{Answer, Plane};

/// Random submissions of a run of the property.
const SUBMISSIONS: u32 = 12;
/// The largest job file.
const FILE_BYTES_MAX: usize = 256 << 10;
/// The longest text of a job file that a rank could be given.
const TEXT_BYTES_MAX: usize = 120_000;

fn seeds(count: u32) -> String {
    (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(", ")
}

fn database_bytes(plane: &Plane) -> u64 {
    let size = |name: &str| std::fs::metadata(plane.folder.path().join(name)).map_or(0, |file| file.len());
    size("journal.sqlite") + size("journal.sqlite-wal")
}

/// It is as well as ever: it says so, takes another job, and lists what there is.
fn assert_well(plane: &Plane, after: &str) {
    assert_eq!(plane.get("/health").json()["status"], "ok", "after {after}");
    let id = plane.submit("small", 1);
    assert_eq!(plane.get("/jobs?limit=500").status, 200, "after {after}");
    assert_eq!(plane.post(&format!("/jobs/{id}/cancel"), &json!({})).status, 200, "after {after}");
}

/// Taken whole, or refused with what it has and may have.
fn assert_answered(answer: &Answer, what: &str) {
    match answer.status {
        200 => {}
        413 | 422 | 429 => drop(answer.refusal()),
        400 => assert_eq!(answer.refusal().1, "G0100", "{what}: {answer:?}"),
        _ => panic!("{what}: {} {}", answer.status, &answer.text[..answer.text.len().min(300)]),
    }
}

/// Proves A-10: nine kilobytes of job file once made a record that the journal choked on.
#[test]
fn a_sweep_over_large_values_takes_no_more_than_was_sent() {
    let plane = Plane::start();
    plane.submit("first", 2);
    let before = database_bytes(&plane);
    let file = format!("run: train\nsweep: {{PROMPT: ['{}'], SEED: [{}]}}\n", "x".repeat(5_000), seeds(1_000));
    let answer = plane.submit_text(&file, false);
    assert_eq!(answer.status, 200, "{answer:?}");
    // A thousand rows of a job each, and the sweep once.
    let grown = database_bytes(&plane) - before;
    assert!(grown < 4 << 20, "the database grew by {grown} bytes");
    assert_well(&plane, "the sweep");
    let sweep = plane.get("/sweeps/sweep-2").json();
    assert_eq!(sweep["points"].as_array().map(Vec::len), Some(1_000));
    let listed = sweep["points"][7]["parameters"][0]["value"].as_str().map(str::to_owned).unwrap_or_default();
    assert_eq!(listed, format!("{}...", "x".repeat(253)), "a listing doesn't repeat a long value a thousand times");
    let job = plane.get("/jobs/job-9").json();
    assert_eq!(job["sweep"]["parameters"][0]["value"].as_str().map(str::len), Some(5_000));
    assert_eq!((&job["run"], &job["sweep"]["parameters"][1]["value"]), (&json!("train"), &json!("7")));
    let plane = plane.restart();
    assert_eq!(plane.get("/jobs/job-9").json()["sweep"]["parameters"][1]["value"], "7");
    // The ranks of a point have its values.
    assert_eq!(plane.post("/jobs/job-1/cancel", &json!({})).status, 200);
    assert_well(&plane, "a restart");
}

/// A job file near the limit, of a random shape.
fn large_file(random: &mut ChaCha8Rng) -> (String, Vec<String>) {
    let mut below = |count: usize| usize::try_from(random.next_u64()).unwrap_or(usize::MAX) % count;
    let text = |bytes: usize| ["x", "\\u0007", "\\\"", "\u{1f6f7}"][bytes % 4].repeat(bytes / 6);
    let mut file = format!("name: large\nrun: \"train {}\"\n", text(below(TEXT_BYTES_MAX)));
    if below(2) == 0 {
        file.push_str(&format!("setup: \"true {}\"\n", text(below(TEXT_BYTES_MAX))));
    }
    let overrides =
        (0..below(5)).map(|number| format!("envs.E{number}={}", "y".repeat(below(TEXT_BYTES_MAX)))).collect();
    let left = |file: &String| FILE_BYTES_MAX.saturating_sub(file.len() + 2_000);
    let shape = below(4);
    let long = format!("\"{}\"", text(below(left(&file).clamp(1, TEXT_BYTES_MAX))));
    match shape {
        0 => file.push_str(&format!("envs: {{LONG: {long}}}\n")),
        1 => file.push_str(&format!("sweep: {{LONG: [{long}], SEED: [{}]}}\n", seeds(1_000))),
        2 => {
            let each = left(&file) / 500;
            let value = |number: usize| format!("\"{number}{}\"", "z".repeat(each.saturating_sub(8)));
            let values: Vec<String> = (0..499).map(value).collect();
            file.push_str(&format!("sweep: {{LONG: [{}], TWO: [a, b]}}\n", values.join(", ")));
        }
        _ => {
            let each = left(&file) / 64;
            let one = |number: usize| format!("P{number}: [\"{}\"]", "w".repeat(each.saturating_sub(16)));
            let ones: Vec<String> = (0..63).map(one).collect();
            file.push_str(&format!("sweep: {{{}, SEED: [{}]}}\n", ones.join(", "), seeds(500)));
        }
    }
    (file, overrides)
}

/// Proves A-10: nothing that a client sends poisons the journal, stops the service, or keeps it from starting again.
#[test]
fn the_largest_that_clients_may_send_leaves_it_well() {
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let plane = Plane::start();
    plane.submit("holder", 2);
    let folder = plane.folder.path().to_owned();
    let mut taken = 0;
    for number in 0..SUBMISSIONS {
        let (file, overrides) = large_file(&mut random);
        let end = &file[file.floor_char_boundary(file.len() - 60)..];
        let what = format!("submission {number} of {} bytes: {end}", file.len());
        for is_dry in [true, false] {
            let body = json!({"job_file": file, "directory": folder, "dry_run": is_dry, "set": overrides});
            let answer = plane.post("/jobs", &body);
            assert_answered(&answer, &what);
            taken += u32::from(answer.status == 200 && !is_dry);
            if let Some(sweep) = answer.json()["sweep_submitted"]["sweep"].as_str() {
                let shown = plane.get(&format!("/sweeps/{sweep}"));
                assert_eq!(shown.status, 200, "{what}");
                assert!(shown.text.len() < 24 << 20, "{what}: {} bytes are shown", shown.text.len());
            }
        }
        assert_well(&plane, &what);
    }
    assert!(taken > SUBMISSIONS / 3, "only {taken} of {SUBMISSIONS} were taken: the property tries too little");
    let waiting = plane.get("/queues").json()["queues"][0]["waiting"].clone();
    let plane = plane.restart();
    assert_eq!(plane.get("/queues").json()["queues"][0]["waiting"], waiting);
    assert_well(&plane, "a restart");
}

#[test]
fn what_is_too_large_is_refused_with_its_figure() {
    let plane = Plane::start();
    let folder = plane.folder.path();
    let set: Vec<String> = (0..5).map(|number| format!("envs.E{number}={}", "y".repeat(110_000))).collect();
    let text = "\\a".repeat(60_000);
    let file = format!("run: \"x {text}\"\nsetup: \"x {text}\"\n");
    let answer = plane.post("/jobs", &json!({"job_file": file, "directory": folder, "set": set}));
    assert_eq!(answer.refusal(), (422, "G0412".to_owned()), "{answer:?}");
    let message = answer.json()["error"]["message"].as_str().map(str::to_owned).unwrap_or_default();
    assert_eq!(message, "it takes 1.2 MiB where it is stored, and a submission may take 1.0 MiB");
    assert_well(&plane, "a refusal");
}

/// Nobody can fill the platform for the others, and what has ended counts no more.
#[test]
fn a_user_has_so_many_jobs_and_bytes_at_most() {
    let user = UserLimits { jobs_max: 4, bytes_max: Bytes(100_000) };
    let plane = Plane::limited(Limits { user, ..Limits::default() });
    plane.submit("holder", 2);
    let sweep = plane.submit_text("run: x\nsweep: {SEED: [1, 2, 3, 4]}\n", false);
    assert_eq!(sweep.refusal(), (429, "G0413".to_owned()));
    let message = sweep.json()["error"]["message"].as_str().map(str::to_owned).unwrap_or_default();
    assert_eq!(message, "ada has 1 job(s) that wait or run, and with 4 more they would be over the limit of 4");
    assert_eq!(plane.submit_text("run: x\nsweep: {SEED: [1, 2, 3]}\n", false).status, 200);
    assert_eq!(plane.submit_text("run: x\n", false).refusal(), (429, "G0413".to_owned()));
    assert_eq!(plane.submit_text("run: x\n", true).refusal(), (429, "G0413".to_owned()), "a dry run says so as well");
    assert_eq!(plane.post("/sweeps/sweep-2/cancel", &json!({})).status, 200);
    let long = format!("run: x {}\n", "y".repeat(60_000));
    assert_eq!(plane.submit_text(&long, false).status, 200);
    let second = plane.submit_text(&long, false);
    assert_eq!(second.refusal(), (429, "G0414".to_owned()));
    assert!(second.text.contains("the jobs of ada take"), "{second:?}");
    assert_eq!(plane.submit_text("run: x\n", false).status, 200, "a small one has room");
}

/// Whatever page is asked for: the jobs on it say what they wait for, however many wait before them.
#[test]
fn every_job_of_a_page_says_what_it_waits_for() {
    let plane = Plane::start();
    plane.submit("holder", 2);
    for _ in 0..3 {
        assert_eq!(plane.submit_text(&format!("run: x\nsweep: {{SEED: [{}]}}\n", seeds(1_000)), false).status, 200);
    }
    for page in ["/jobs?limit=500", "/jobs?before=job-1500&limit=100", "/jobs?before=job-100"] {
        let jobs = plane.get(page).json()["jobs"].as_array().cloned().unwrap_or_default();
        let waiting = jobs.iter().filter(|job| job["state"] == "waiting");
        let reasons: Vec<&str> = waiting.filter_map(|job| job["because"].as_str()).collect();
        assert!(reasons.len() > 90, "{page}");
        assert!(reasons.iter().all(|reason| reason.ends_with("; held by job-1")), "{page}: {:?}", reasons.first());
    }
    let points = plane.get("/sweeps/sweep-2002").json()["points"].clone();
    assert_eq!(points[999]["because"], points[0]["because"]);
}
