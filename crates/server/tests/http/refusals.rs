//! Bad requests: every one is answered with a code, a sentence and a hint.

use serde_json::json;

use crate::plane::Plane;

#[test]
fn unknown_paths_and_methods_are_named_so() {
    let plane = Plane::start();
    let bearer = plane.bearer();
    let headers = [("authorization", bearer.as_str())];
    for path in ["/nowhere", "/api/v1", "/api/v2/jobs", "/api/v1/jobs/1/2/3", "/../etc/passwd"] {
        let answer = plane.send("GET", path, &headers, b"");
        assert_eq!(answer.refusal(), (404, "G0307".to_owned()), "{path}");
    }
    for (method, path) in
        [("DELETE", "/api/v1/jobs"), ("PUT", "/api/v1/jobs/1"), ("POST", "/"), ("GET", "/api/v1/supervisors/report")]
    {
        let answer = plane.send(method, path, &headers, b"");
        assert_eq!(answer.refusal(), (405, "G0307".to_owned()), "{method} {path}");
    }
}

/// Proves A-10 for bodies.
#[test]
fn a_body_over_the_limit_is_refused() {
    let plane = Plane::start();
    let big = "x".repeat(1 << 20);
    let answer = plane.submit_text(&format!("run: {big}"), false);
    assert_eq!(answer.refusal(), (413, "G0305".to_owned()));
    plane.submit("a", 1);
    let report = json!({"filler": "x".repeat(4 << 20)});
    assert_eq!(plane.report_with(&plane.launched().token, &report).refusal(), (413, "G0305".to_owned()));
    assert_eq!(plane.get("/jobs").status, 200, "and the next request is served");
}

#[test]
fn what_is_not_the_json_that_is_wanted_is_refused() {
    let plane = Plane::start();
    let bearer = plane.bearer();
    let json_type = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for body in ["", "{", "[]", "null", "{\"job_file\": 1, \"directory\": \"/\"}", "{\"job_file\": \"run: x\"}"] {
        let answer = plane.send("POST", "/api/v1/jobs", &json_type, body.as_bytes());
        assert_eq!(answer.refusal(), (400, "G0306".to_owned()), "{body}");
    }
    let untyped = plane.send("POST", "/api/v1/jobs", &json_type[..1], b"{}");
    assert_eq!(untyped.refusal(), (415, "G0306".to_owned()));
    let unknown = plane.post("/jobs", &json!({"job_file": "run: x", "directory": "/", "dry": true}));
    assert_eq!(unknown.refusal(), (400, "G0306".to_owned()));
    assert!(unknown.text.contains("dry"), "{unknown:?}");
    let relative = plane.post("/jobs", &json!({"job_file": "run: x", "directory": "work"}));
    assert_eq!(relative.refusal(), (400, "G0306".to_owned()));
}

#[test]
fn queries_and_path_pieces_that_make_no_sense_are_refused() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let malformed = [
        "/jobs?limits=3",
        "/jobs?limit=-1",
        "/jobs?limit=many",
        "/jobs/1/metrics/curves?pints=3",
        "/jobs/1/logs?rank=-1",
        "/jobs/1/logs?file=/etc/passwd",
        "/jobs/1/logs?cursor=zz",
        "/jobs/1/logs?cursor=1-zz",
        "/jobs/%ff",
    ];
    for path in malformed {
        assert_eq!(plane.get(path).refusal(), (400, "G0306".to_owned()), "{path}");
    }
    for path in [
        "/jobs/x",
        "/jobs/-1",
        "/jobs/99",
        "/jobs/99/explain",
        "/jobs/99/metrics",
        "/jobs/99/logs",
        "/jobs?before=x",
        "/jobs/..%2f..%2fetc",
    ] {
        assert_eq!(plane.get(path).refusal(), (404, "G0302".to_owned()), "{path}");
    }
    assert_eq!(plane.post("/nodes/n9/drain", &json!({})).refusal(), (404, "G0304".to_owned()));
    assert_eq!(plane.post("/nodes/..%2f/undrain", &json!({})).refusal(), (404, "G0304".to_owned()));
}

#[test]
fn bytes_that_are_not_http_end_the_connection_and_nothing_else() {
    let plane = Plane::start();
    assert_eq!(plane.raw(b"GEHT / HTTP/9.9\r\n\r\n").status, 400);
    assert_eq!(
        plane.raw(format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1 << 20)).as_bytes()).status / 100,
        4
    );
    assert_eq!(plane.get("/jobs").status, 200);
}
