//! Who comes through the doors, and how far: limits of connections, of times, and of what is read of whom. Proves A-10.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gangline_execution::endpoint::DataFolder;

use crate::plane::{Plane, running};

/// Far less than any time-out of the server.
const SOON: Duration = Duration::from_secs(5);

fn connect(plane: &Plane) -> TcpStream {
    let stream = TcpStream::connect(plane.address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a sound time");
    stream
}

/// What comes until the connection ends, or nothing more does.
fn answer(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    // A connection may be reset when what it has sent isn't read.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn nobody_waits_for_the_body_of_somebody_without_a_token() {
    let plane = Plane::start();
    for path in ["/api/v1/jobs", "/api/v1/supervisors/report"] {
        for secret in
            ["", "authorization: Bearer wrong\r\n", "authorization: Bearer wrong\r\ngangline-attempt: 1/1\r\n"]
        {
            let mut stream = connect(&plane);
            let began = Instant::now();
            let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{secret}content-length: 4000000\r\n\r\n");
            stream.write_all(format!("{head}{}", "x".repeat(200)).as_bytes()).expect("it is sent");
            let said = answer(stream);
            assert!(said.starts_with("HTTP/1.1 401") && said.contains("G0301"), "{path} {secret}: {said}");
            assert!(began.elapsed() < SOON, "{path} {secret}");
        }
    }
}

#[test]
fn who_asks_at_once_is_answered_however_many_keep_silent() {
    let plane = Plane::start();
    let mut known = connect(&plane);
    let bearer = plane.bearer();
    let ask = |stream: &mut TcpStream| {
        let head = format!("GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it is there");
        let mut bytes = [0; 12];
        stream.read_exact(&mut bytes).expect("it answers");
        assert_eq!(bytes, *b"HTTP/1.1 200");
    };
    ask(&mut known);
    // More strangers than there may be at a time, of those files that this process may have open.
    let files_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let strangers_max = (files_max / 4).min(512);
    let mut silent: Vec<TcpStream> = (0..strangers_max + 50).map(|_| connect(&plane)).collect();
    for stream in silent.iter_mut().step_by(2) {
        // It may have been turned out already.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: loc");
    }
    assert_eq!(plane.get("/queues").status, 200, "a newcomer is answered");
    ask(&mut connect(&plane));
    let mut first = silent.swap_remove(0);
    let ended = first.read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "the oldest has made room: {ended:?}");
    let mut rest = vec![0; 1_024];
    let more = known.read(&mut rest).expect("it is there");
    assert!(more > 0, "who is known has kept its connection");
    ask(&mut known);
}

#[test]
fn the_socket_leads_to_the_same_api_and_asks_for_the_same_token() {
    let plane = Plane::start();
    let ask = |bearer: &str| {
        let held = DataFolder::open(plane.folder.path()).expect("it is there");
        let mut stream: UnixStream = held.connect(SOON).expect("it listens");
        let head = format!(
            "GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it is sent");
        answer(stream)
    };
    assert!(ask(&plane.bearer()).starts_with("HTTP/1.1 200"));
    assert!(ask("Bearer wrong").starts_with("HTTP/1.1 401"));
}

/// The release before has supervisors that don't name their attempt in a header. Their reports begin with it.
#[test]
fn a_report_of_the_release_before_counts() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let spec = plane.launched();
    let send = |token: &str, body: &[u8]| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        plane.send("POST", "/api/v1/supervisors/report", &headers, body).status
    };
    let report = serde_json::to_vec(&running(&spec)).expect("a report is JSON");
    assert_eq!(send("wrong", &report), 401);
    assert_eq!(send(&spec.token, b"{\"version\":1}"), 401, "it doesn't say of what");
    assert_eq!(plane.job("1").attempts[0].shares[0].state, "launching", "nothing was taken in");
    assert_eq!(send(&spec.token, &report), 200);
}

#[test]
fn a_header_that_names_another_attempt_than_the_report_is_refused() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let spec = plane.launched();
    let mut report = serde_json::to_value(running(&spec)).expect("a report is JSON");
    report["attempt"] = serde_json::json!(2);
    assert_eq!(plane.report_with(&spec.token, &report).refusal(), (401, "G0301".to_owned()));
}

#[test]
fn the_users_token_can_be_replaced_which_ends_sessions_too() {
    let plane = Plane::start();
    let (before, cookie) = (plane.bearer(), plane.cookie());
    let session = |cookie: &str| plane.send("GET", "/", &[("cookie", cookie)], b"").status;
    assert_eq!(session(&cookie), 200);
    assert_eq!(plane.send("POST", "/api/v1/token/rotate", &[("cookie", &cookie)], b"").status, 401);
    let answer = plane.post("/token/rotate", &serde_json::json!({}));
    assert_eq!((answer.status, answer.json()["file"].as_str()), (200, Some("token")));
    assert!(!answer.text.contains(&plane.secrets.user_token()));
    assert_eq!(plane.send("GET", "/api/v1/jobs", &[("authorization", &before)], b"").status, 401);
    assert_eq!(plane.get("/jobs").status, 200);
    assert_eq!(session(&cookie), 401);
    let link = plane.post("/links", &serde_json::json!({}));
    let path = link.json()["path"].as_str().expect("a path").to_owned();
    assert_eq!(plane.send("GET", &path, &[], b"").status, 303);
}

#[test]
fn a_request_whose_head_does_not_come_ends_its_connection() {
    let plane = Plane::start();
    let ends = |begun: &[u8]| {
        let mut stream = TcpStream::connect(plane.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a sound time");
        stream.write_all(begun).expect("it is sent");
        stream
    };
    // The waits go on side by side.
    for mut stream in [ends(b""), ends(b"GET / HTTP/1.1\r\nhost: loc"), ends(b"POST /api/v1/jobs HTTP/1.1\r\n")] {
        let ended = stream.read(&mut [0; 1]).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    }
}
