//! MLflow's API: who may use it, and how it refuses. What it answers otherwise is compared with a real MLflow in
//! `python/tests/test_mlflow.py`.

use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_execution::endpoint::TrackingToken;
use serde_json::{Value, json};

use crate::plane::{Answer, Plane};

const TRACKING: &str = "/api/2.0/mlflow";
const ARTIFACTS: &str = "/api/2.0/mlflow-artifacts/artifacts";

fn post(plane: &Plane, authorization: &str, path: &str, body: &Value) -> Answer {
    let headers = [("authorization", authorization), ("content-type", "application/json")];
    plane.send("POST", &format!("{TRACKING}{path}"), &headers, body.to_string().as_bytes())
}

fn create_run(plane: &Plane, authorization: &str) -> Value {
    let answer = post(plane, authorization, "/runs/create", &json!({"experiment_id": "0", "start_time": 1}));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["run"].clone()
}

fn of_rank(plane: &Plane, job: JobId, epoch: Epoch) -> String {
    let attempt = AttemptNumber::FIRST;
    let token = plane.secrets.attempt_token(job, attempt, epoch);
    format!("Bearer {}", TrackingToken::of(job, attempt, epoch, &token))
}

#[test]
fn tracking_needs_a_token_and_what_clients_ask_first_needs_none() {
    let plane = Plane::start();
    for (method, path) in [
        ("POST", "/api/2.0/mlflow/runs/create"),
        ("GET", "/ajax-api/2.0/mlflow/experiments/search"),
        ("GET", ARTIFACTS),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/0/a"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/0/a"),
    ] {
        for bad in ["", "Bearer x", "Basic eDp4", "Bearer rank.1.1.0000000000000000.00"] {
            let answer = plane.send(method, path, &[("authorization", bad)], b"{}");
            assert_eq!(answer.status, 401, "{method} {path} {bad}");
        }
    }
    for path in ["/health", "/version", "/api/3.0/mlflow/server-info"] {
        assert_eq!(plane.send("GET", path, &[], b"").status, 200, "{path}");
    }
    create_run(&plane, &plane.bearer());
}

/// `user:TOKEN` in base64, as MLflow's clients send a user and a password.
#[test]
fn the_token_is_a_password_too() {
    let plane = Plane::start();
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("user:{}", plane.secrets.user_token());
    let mut encoded = String::new();
    for three in text.as_bytes().chunks(3) {
        let word = three.iter().fold(0_usize, |word, byte| word << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        let shown = (0..=three.len()).map(|place| char::from(digits[word >> (18 - 6 * place) & 63]));
        encoded.extend(shown);
    }
    create_run(&plane, &format!("Basic {encoded}"));
}

#[test]
fn a_ranks_token_opens_tracking_and_nothing_else_and_names_its_job() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let rank = of_rank(&plane, JobId(1), Epoch(7));
    let run = create_run(&plane, &rank);
    let tags = run["data"]["tags"].as_array().expect("tags").clone();
    let tag = |key: &str| tags.iter().find(|tag| tag["key"] == key).map(|tag| tag["value"].clone());
    assert_eq!((tag("gangline.job"), tag("gangline.attempt")), (Some(json!("job-1")), Some(json!("1"))));
    for (method, path) in [("GET", "/api/v1/jobs"), ("POST", "/api/v1/jobs/1/cancel"), ("GET", "/metrics")] {
        assert_eq!(plane.send(method, path, &[("authorization", rank.as_str())], b"{}").status, 401, "{path}");
    }
    // The proof of one attempt is none of another.
    let forged = rank.replace("rank.1.", "rank.2.");
    assert_eq!(post(&plane, &forged, "/experiments/search", &json!({})).status, 401);
    let own = plane.secrets.attempt_token(JobId(1), AttemptNumber::FIRST, Epoch(7));
    assert_eq!(post(&plane, &format!("Bearer {own}"), "/experiments/search", &json!({})).status, 401);
}

#[test]
fn a_ranks_token_changes_no_webhooks_and_registers_no_checkpoints() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let rank = of_rank(&plane, JobId(1), Epoch(7));
    let new = json!({"name": "n", "url": "http://127.0.0.1:9/", "events": [{"entity": "MODEL_VERSION", "action": "CREATED"}]});
    let refused = post(&plane, &rank, "/webhooks", &new);
    assert_eq!((refused.status, &refused.json()["error_code"]), (403, &json!("PERMISSION_DENIED")));
    let made = post(&plane, &plane.bearer(), "/webhooks", &new).json();
    let id = made["webhook"]["webhook_id"].as_str().expect("an id");
    assert_eq!(post(&plane, &rank, &format!("/webhooks/{id}/test"), &json!({})).status, 403);
    for method in ["PATCH", "DELETE"] {
        let path = format!("{TRACKING}/webhooks/{id}");
        let headers = [("authorization", rank.as_str()), ("content-type", "application/json")];
        assert_eq!(plane.send(method, &path, &headers, b"{}").status, 403, "{method}");
    }
    let headers = [("authorization", rank.as_str()), ("content-type", "application/json")];
    assert_eq!(plane.send("POST", "/api/v1/models/m/versions", &headers, b"{\"job\": \"job-1\"}").status, 401);
}

#[test]
fn what_is_not_offered_is_told_at_once() {
    let plane = Plane::start();
    for path in ["/traces/search", "/gateway/endpoints/list", "/runs/nothing"] {
        let answer = post(&plane, &plane.bearer(), path, &json!({}));
        assert_eq!((answer.status, &answer.json()["error_code"]), (404, &json!("ENDPOINT_NOT_FOUND")), "{path}");
    }
}

#[test]
fn malformed_requests_are_the_clients_fault() {
    let plane = Plane::start();
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let large = format!(r#"{{"name": "{}"}}"#, "x".repeat(1_010_000));
    for body in ["{", "[]", "7", deep.as_str(), large.as_str(), "{\"name\": 7}", "{\"name\": null}", "\u{0}"] {
        let headers = [("authorization", plane.bearer()), ("content-type", "application/json".into())];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let path = format!("{TRACKING}/experiments/create");
        let answer = plane.send("POST", &path, &headers, body.as_bytes());
        let shown: String = body.chars().take(20).collect();
        assert_eq!((answer.status, &answer.json()["error_code"]), (400, &json!("INVALID_PARAMETER_VALUE")), "{shown}");
    }
}

#[test]
fn artifacts_come_back_as_they_were_and_never_as_a_page() {
    let plane = Plane::start();
    let bearer = plane.bearer();
    let headers = [("authorization", bearer.as_str())];
    let page = b"<html><script>alert(1)</script></html>";
    let path = format!("{ARTIFACTS}/0/run/artifacts/report.html");
    assert_eq!(plane.send("PUT", &path, &headers, page).status, 200);
    let answer = plane.send("GET", &path, &headers, b"");
    assert_eq!((answer.status, answer.text.as_bytes()), (200, page.as_slice()));
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert!(answer.header("content-disposition").is_some_and(|value| value.starts_with("attachment")));
    let listed = plane.send("GET", &format!("{ARTIFACTS}?path=0/run/artifacts"), &headers, b"").json();
    assert_eq!(listed["files"], json!([{"path": "report.html", "is_dir": false, "file_size": page.len()}]));
    for elsewhere in ["0/..%2F..%2Ftoken", "%2E%2E/token", "0//token", "0/%00"] {
        let answer = plane.send("GET", &format!("{ARTIFACTS}/{elsewhere}"), &headers, b"");
        assert!(matches!(answer.status, 400 | 404), "{elsewhere}: {answer:?}");
    }
}
