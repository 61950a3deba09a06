//! Who may do what.

use gangline_base::{AttemptNumber, Epoch, JobId};
use gangline_server::{Doors, serve};
use serde_json::Value;

use crate::plane::{Answer, Plane};

fn refused(answer: &Answer) {
    assert_eq!(answer.refusal(), (401, "G0301".to_owned()), "{answer:?}");
}

/// Every path and method of the document but those that are open to all.
fn closed_paths() -> Vec<(String, String)> {
    let document = serde_json::to_value(gangline_server::openapi_document()).expect("it is JSON");
    let paths = document["paths"].as_object().expect("an object").clone();
    let operations = |(path, item): (String, Value)| {
        let methods: Vec<String> = item.as_object().expect("an object").keys().cloned().collect();
        methods
            .into_iter()
            .map(move |method| (method.to_uppercase(), path.replace("{job}", "1").replace("{node}", "n1")))
    };
    let all: Vec<_> = paths.into_iter().flat_map(operations).filter(|(_, path)| path != "/api/v1/health").collect();
    assert!(all.len() >= 10, "{all:?}");
    all
}

#[test]
fn every_path_needs_the_users_token() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let page = format!("Bearer {}", plane.cookie().trim_start_matches("gangline_session="));
    let attempt = format!("Bearer {}", plane.secrets.attempt_token(JobId(1), AttemptNumber::FIRST, Epoch::default()));
    let basic = format!("Basic {}", plane.secrets.user_token());
    let short = format!("Bearer {}", &plane.secrets.user_token()[1..]);
    for (method, path) in closed_paths() {
        refused(&plane.send(&method, &path, &[], b""));
        for bad in ["", "Bearer", "Bearer ", "Bearer x", &page, &attempt, &basic, &short] {
            refused(&plane.send(&method, &path, &[("authorization", bad)], b""));
        }
    }
    assert_eq!(plane.job("1").state.name(), "starting", "and nothing was cancelled");
}

#[test]
fn health_and_the_document_are_open() {
    let plane = Plane::start();
    let health = plane.send("GET", "/api/v1/health", &[], b"");
    assert_eq!((health.status, health.json()["status"].as_str()), (200, Some("ok")));
    assert_eq!(plane.send("GET", "/api/v1/openapi.json", &[], b"").status, 200);
}

#[test]
fn the_pages_cookie_is_good_for_reading_only() {
    let plane = Plane::start();
    let job = plane.submit("a", 1);
    let cookie = format!("other=1; {}", plane.cookie());
    let headers = [("cookie", cookie.as_str())];
    assert_eq!(plane.send("GET", "/api/v1/jobs", &headers, b"").status, 200);
    refused(&plane.send("POST", &format!("/api/v1/jobs/{job}/cancel"), &headers, b""));
    refused(&plane.send("POST", "/api/v1/nodes/n1/drain", &headers, b""));
    let wrong = format!("gangline_session={}", plane.secrets.user_token());
    refused(&plane.send("GET", "/api/v1/jobs", &[("cookie", &wrong)], b""));
}

#[test]
fn requests_that_name_a_foreign_host_are_refused_whatever_they_carry() {
    let plane = Plane::start();
    let bearer = plane.bearer();
    for host in ["evil.example", "127.0.0.1.evil.example:7878", "10.0.0.1"] {
        for path in ["/", "/api/v1/jobs", "/api/v1/health"] {
            let answer = plane.send("GET", path, &[("host", host), ("authorization", &bearer)], b"");
            assert_eq!(answer.refusal(), (403, "G0309".to_owned()), "{host} {path}");
        }
    }
    assert_eq!(
        plane.send("GET", "/api/v1/jobs", &[("host", "localhost:1"), ("authorization", &bearer)], b"").status,
        200
    );
}

#[test]
fn a_listener_beyond_loopback_is_refused() {
    let plane = Plane::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let refused = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a free port");
        let doors = Doors { tcp: listener, tls: None, socket: None };
        serve(doors, plane.app.clone(), std::future::pending()).await
    });
    assert!(refused.expect_err("a refusal").to_string().contains("TLS"));
}
