//! Metrics: posted by supervisors, asked for by users.

use std::process::{Command, Stdio};

use gangline_base::{JobId, Timestamp};
use gangline_execution::protocol::SupervisorSpec;
use gangline_telemetry::series::{Batch, Error, Row, Scope, Source};
use serde_json::{Value, json};

use crate::plane::{Answer, Plane};

const SECOND: u64 = 1_000_000_000;

/// Rows `first..first + count` of a rank: a step, its loss (NaN at step 3) and its learning rate each second.
pub(crate) fn report(spec: &SupervisorSpec, rank: u32, first: u64, count: u64) -> Value {
    let row = |number: u64| {
        let loss = if number == 3 { json!("NaN") } else { json!(number) };
        let at = 1_800_000_000 * SECOND + number * SECOND;
        json!({"at": at, "step": number, "values": [[0, loss], [1, 3e-11]]})
    };
    let rows: Vec<Value> = (first..first + count).map(row).collect();
    let batch = json!({"rank": rank, "first": first, "names": ["loss", "lr"], "rows": rows});
    json!({"version": 1, "job": spec.job, "attempt": spec.attempt, "epoch": spec.epoch, "node": spec.node, "batches": [batch]})
}

pub(crate) fn post(plane: &Plane, token: &str, spec: &SupervisorSpec, report: &Value) -> Answer {
    let attempt = format!("{}/{}/{:016x}", spec.job, spec.attempt, spec.epoch);
    let bearer = format!("Bearer {token}");
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/json"), ("gangline-attempt", &attempt)];
    plane.send("POST", "/api/v1/supervisors/metrics", &headers, report.to_string().as_bytes())
}

fn get(plane: &Plane, path: &str) -> Value {
    let answer = plane.get(path);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn metrics_of_all_ranks_are_listed_and_drawn_after_a_restart_too() {
    let mut plane = Plane::start();
    plane.submit("a", 1);
    let spec = plane.launched();
    for rank in [0, 1] {
        assert_eq!(post(&plane, &spec.token, &spec, &report(&spec, rank, 0, 5)).json()["stored"], json!([5]));
    }
    // The answer was lost: the rows come again, with new ones.
    assert_eq!(post(&plane, &spec.token, &spec, &report(&spec, 0, 0, 8)).json()["stored"], json!([8]));
    for _ in 0..2 {
        let list = get(&plane, "/jobs/1/metrics");
        let of = |metric: &Value| {
            (metric["metric"].clone(), metric["source"]["rank"].clone(), metric["values"]["count"].clone())
        };
        let found: Vec<_> = list["metrics"].as_array().expect("a list").iter().map(of).collect();
        let expected = [("loss", 0, 7), ("lr", 0, 8), ("loss", 1, 4), ("lr", 1, 5)];
        assert_eq!(found, expected.map(|(name, rank, count)| (json!(name), json!(rank), json!(count))));
        assert_eq!(list["metrics"][0]["values"]["not_finite"], 1);

        let curves = get(&plane, "/jobs/1/metrics/curves?metric=loss&rank=0&from_step=2&to_step=4");
        let points = curves["curves"][0]["points"].as_array().expect("points").clone();
        let last: Vec<Value> = points.iter().map(|point| point["last"].clone()).collect();
        assert_eq!(last, [json!(2.0), json!("NaN"), json!(4.0)], "{curves}");
        assert_eq!((&points[1]["mean"], &points[0]["at"]), (&Value::Null, &json!("2027-01-15T08:00:02Z")));
        assert_eq!(curves["curves"][0]["resolution"], "point");
        let one = get(&plane, "/jobs/1/metrics/curves?metric=loss&rank=0&points=1");
        assert_eq!(one["curves"][0]["points"][0]["max"], json!(7.0));
        plane = plane.restart();
    }
}

#[test]
fn only_an_attempts_own_token_adds_to_its_metrics() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let spec = plane.launched();
    let good = report(&spec, 0, 0, 5);
    for token in [String::new(), "x".to_owned(), plane.secrets.user_token()] {
        assert_eq!(post(&plane, &token, &spec, &good).refusal(), (401, "G0301".to_owned()));
    }
    let mut other = good.clone();
    other["job"] = json!(2);
    assert_eq!(post(&plane, &spec.token, &spec, &other).refusal(), (401, "G0301".to_owned()));
    assert_eq!(get(&plane, "/jobs/1/metrics")["metrics"], json!([]));
}

#[test]
fn metrics_that_make_no_sense_are_refused_and_hurt_nobody() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let spec = plane.launched();
    let good = report(&spec, 0, 0, 5);
    let many = vec![good["batches"][0].clone(); 1_025];
    let rows = vec![good["batches"][0]["rows"][0].clone(); 10_001];
    let with = |place: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(place).expect("it is there") = value;
        bad
    };
    for bad in [
        with("/batches/0/rows/0/values/0/1", json!("nan")),
        with("/batches/0/rows/0/values/0/1", json!(null)),
        with("/batches/0/rows/0/step", json!(-1)),
        with("/batches/0/rank", json!(u32::MAX)),
        with("/batches/0/first", json!(u64::MAX)),
        with("/batches/0/rows", Value::Array(rows)),
        with("/batches", Value::Array(many)),
        with("/node", json!("../n1")),
    ] {
        assert_eq!(post(&plane, &spec.token, &spec, &bad).refusal(), (400, "G0306".to_owned()));
    }
    assert_eq!(post(&plane, &spec.token, &spec, &with("/version", json!(2))).refusal(), (400, "G0310".to_owned()));
    // An index without a name costs that value only.
    let nameless = with("/batches/0/rows/0/values/0/0", json!(7));
    assert_eq!(post(&plane, &spec.token, &spec, &nameless).json()["stored"], json!([5]));
    for (path, refusal) in [
        ("/jobs/9/metrics", (404, "G0302")),
        ("/jobs/9/metrics/curves", (404, "G0302")),
        ("/jobs/1/metrics/curves?points=many", (400, "G0306")),
        ("/jobs/1/metrics/curves?node=..%2f", (400, "G0306")),
        ("/jobs/1/metrics/curves?from=yesterday", (400, "G0306")),
    ] {
        assert_eq!(plane.get(path).refusal(), (refusal.0, refusal.1.to_owned()), "{path}");
    }
}

/// Without a series store (a newer release wrote it) everything else goes on, and who asks for metrics is told why there are none.
#[test]
fn a_closed_series_store_says_why_and_stops_nothing_else() {
    let plane = Plane::start();
    let newer = [b"GLSERIES", &2_u32.to_le_bytes()[..], &[0; 100]].concat();
    std::fs::write(plane.folder.path().join("series/segment-0000000001"), newer).expect("the folder is writable");
    let plane = plane.restart();
    plane.submit("a", 1);
    let spec = plane.launched();
    let refused = post(&plane, &spec.token, &spec, &report(&spec, 0, 0, 5));
    assert_eq!(refused.refusal(), (503, "G0322".to_owned()));
    assert!(refused.text.contains("its format is version 2"), "{refused:?}");
    assert_eq!(plane.get("/jobs/1/metrics").refusal(), (503, "G0322".to_owned()));
    plane.report(&spec, &crate::plane::running(&spec));
    assert_eq!(get(&plane, "/jobs/1")["state"], "running");
}

/// Proves A-15: while the series store hangs and more samples come than may wait, jobs are submitted and are durable as ever.
#[test]
fn a_flood_of_samples_into_a_store_that_hangs_delays_no_commit() {
    let plane = Plane::start();
    let (hung, is_hung) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let batch = |first: u64| Batch {
        source: Source { scope: Scope::Job(JobId(1)), attempt: None, node: None, rank: Some(0), device: None },
        first,
        names: vec!["loss".to_owned()],
        rows: vec![Row { at: Timestamp::EPOCH, step: None, values: vec![(0, 1.0)] }],
    };
    // The reply is called on the store's own thread, which hangs in it as it would in a write to a disk that hangs.
    plane.app.series.take(batch(0), move |_| {
        hung.send(()).expect("the test waits");
        // The sender goes at the test's end.
        let _ = released.recv();
    });
    is_hung.recv().expect("the store took the batch");
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for number in 1..10_000 {
        let count = std::sync::Arc::clone(&refused);
        plane.app.series.take(batch(number), move |outcome| {
            if matches!(outcome, Err(Error::Overloaded)) {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }
    assert!(refused.load(std::sync::atomic::Ordering::Relaxed) > 1_000, "what is too much is refused at once");
    plane.submit("first", 1);
    let spec = plane.launched();
    let refusal = post(&plane, &spec.token, &spec, &report(&spec, 0, 0, 1)).refusal();
    assert_eq!(refusal, (503, "G0308".to_owned()), "supervisors are told to come again");
    plane.submit("second", 1);
    assert_eq!(get(&plane, "/jobs")["jobs"].as_array().map(Vec::len), Some(2));
    drop(release);
    let plane = plane.restart();
    assert_eq!(get(&plane, "/jobs")["jobs"].as_array().map(Vec::len), Some(2), "both were durable");
}

/// What Prometheus scrapes is what its own checker asks for, in both formats that it reads.
#[test]
fn prometheus_own_checker_finds_nothing_wrong_with_the_metrics() {
    let plane = Plane::start();
    plane.submit("a", 1);
    plane.launched();
    let bearer = plane.bearer();
    let scrape = |accept: &str| plane.send("GET", "/metrics", &[("authorization", &bearer), ("accept", accept)], b"");
    let text = scrape("text/plain").text;
    for line in [
        "gangline_healthy 1",
        "gangline_jobs_submitted_total 1",
        "gangline_accelerators{accelerator=\"cpu\",state=\"held\"} 1",
        "gangline_queue_jobs{queue=\"default\",state=\"running\"} 1",
        "gangline_series_failing 0",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
    }
    let open = scrape("application/openmetrics-text; version=1.0.0");
    assert!(open.text.ends_with("# EOF\n") && open.text.contains("# TYPE gangline_jobs_submitted counter"), "{open:?}");
    assert!(open.header("content-type").is_some_and(|kind| kind.starts_with("application/openmetrics-text")));
    assert_eq!(plane.send("GET", "/metrics", &[], b"").refusal(), (401, "G0301".to_owned()));
    promtool(&["check", "metrics"], &text);
}

/// The rules for Prometheus fire as their test says, and look at nothing that isn't there.
#[test]
fn the_rules_for_prometheus_hold_and_name_metrics_that_there_are() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prometheus");
    let plane = Plane::start();
    let bearer = plane.bearer();
    let text = plane.send("GET", "/metrics", &[("authorization", &bearer)], b"").text;
    let rules = std::fs::read_to_string(folder.join("gangline.rules.yml")).expect("it is there");
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named = rules.split(|letter| !is_name(letter)).filter(|word| word.starts_with("gangline_"));
    // A receiver's counters are there once a receiver is, and a queue's once there is one.
    let named: Vec<&str> =
        named.filter(|name| !name.contains("alert_messages") && !name.contains("queue_jobs")).collect();
    assert!(named.len() >= 6, "{named:?}");
    for name in named {
        assert!(text.lines().any(|line| line.starts_with(name)), "no {name} in\n{text}");
    }
    promtool(&["test", "rules", &folder.join("gangline.rules.test.yml").display().to_string()], "");
}

/// The dashboard for Grafana asks for metrics that there are, in expressions that Prometheus understands.
#[test]
fn the_dashboard_for_grafana_asks_for_what_prometheus_has() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prometheus");
    let text = std::fs::read_to_string(folder.join("gangline.dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("an expression")).collect();
    assert!(expressions.len() >= 20, "{expressions:?}");
    let plane = Plane::start();
    plane.submit("a", 1);
    let bearer = plane.bearer();
    let scraped = plane.send("GET", "/metrics", &[("authorization", &bearer)], b"").text;
    let [dcgm, exposition] =
        [include_str!("../../../telemetry/src/collectors/gpu/dcgm.rs"), include_str!("../../src/exposition.rs")];
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = expressions.iter().flat_map(|expression| expression.split(|letter| !is_name(letter)));
    for name in words.filter(|word| word.starts_with("gangline_") || word.starts_with("DCGM_")) {
        // Alerts and their receivers have samples only once there are some.
        let is_known = scraped.lines().any(|line| line.starts_with(name))
            || exposition.contains(&format!("\"{}\"", name.trim_end_matches("_total")))
            || dcgm.contains(name);
        assert!(is_known, "no {name} in\n{scraped}");
    }
    let rule = |(number, expression): (usize, &&str)| {
        let expression = expression.replace("$instance", ".*");
        format!("      - {{record: 'panel:{number}', expr: '{}'}}\n", expression.replace('\'', "''"))
    };
    let rules: String = expressions.iter().enumerate().map(rule).collect();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), format!("groups:\n  - name: panels\n    rules:\n{rules}")).expect("it is writable");
    promtool(&["check", "rules", &file.path().display().to_string()], "");
}

/// Runs Prometheus' own checker; it has to be content. Where it isn't installed this is said.
fn promtool(arguments: &[&str], input: &str) {
    let started = Command::new("promtool").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    match started {
        Ok(mut checker) => {
            let mut stdin = checker.stdin.take().expect("it is piped");
            // One that reads no input may have ended already.
            let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
            drop(stdin);
            let said = checker.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success() && !text.contains("error"), "{arguments:?}: {said:?}");
        }
        Err(error) if std::env::var_os("CI").is_none() => skip(&error),
        Err(error) => panic!("promtool can't be started: {error}"),
    }
}

#[expect(clippy::print_stderr, reason = "a skip says why")]
fn skip(error: &std::io::Error) {
    eprintln!("skipped: promtool's checks: {error}");
}
