//! A courier before real sockets: an HTTP server and an SMTP server of a few lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use gangline_base::{EmailAddress, Timestamp, WebhookUrl};
use serde_json::{Value, json};

use super::*;

/// The longest wait for a message that is on its way.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const QUICK: Timing = Timing {
    pause: Duration::from_millis(10),
    pause_max: Duration::from_millis(20),
    age_max: Duration::from_secs(60),
    try_max: Duration::from_secs(5),
};

fn now() -> Timestamp {
    let nanos = jiff::Timestamp::now().as_nanosecond();
    Timestamp::from_unix_nanos(u64::try_from(nanos).unwrap_or_default())
}

pub(crate) fn courier(mail: Option<MailServer>) -> Courier {
    Courier::start(Options { mail, timing: QUICK, clock: now }).expect("a thread")
}

fn message() -> Message {
    let body = json!({"text": "job-4 failed"});
    Message { subject: "job-4 failed".to_owned(), text: "job-4 failed: größer als\n.\nevery limit".to_owned(), body }
}

/// Answers each request with the next status, and passes on what was posted.
pub(crate) fn http_server(statuses: Vec<&'static str>) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/hook/sEcReT", listener.local_addr().expect("an address"));
    let (posted, posts) = channel();
    thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().expect("a connection");
            let body = read_request(&stream);
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).expect("an answer");
            posted.send(body).expect("a listener");
        }
    });
    (url, posts)
}

fn read_request(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).expect("JSON")
}

#[test]
fn a_webhook_that_fails_is_tried_again_and_one_that_refuses_is_not() {
    let (url, posts) = http_server(vec!["503 Busy", "200 OK"]);
    let (refusing, refused) = http_server(vec!["404 Not Found", "200 OK"]);
    let courier = courier(None);
    let webhook = |url: &str| Destination::Webhook(WebhookUrl::new(url).expect("a URL"));
    courier.send(Delivery { to: webhook(&url), message: message() });
    courier.send(Delivery { to: webhook(&refusing), message: message() });
    for _ in 0..2 {
        assert_eq!(posts.recv_timeout(PATIENCE), Ok(json!({"text": "job-4 failed"})));
    }
    assert_eq!(refused.recv_timeout(PATIENCE), Ok(json!({"text": "job-4 failed"})));
    // The next post to the refusing server is the next message, not the refused one.
    let next = Message { body: json!({"text": "job-5"}), ..message() };
    courier.send(Delivery { to: webhook(&refusing), message: next });
    assert_eq!(refused.recv_timeout(PATIENCE), Ok(json!({"text": "job-5"})));
}

/// Takes one mail, and returns the commands and the data.
fn smtp_server() -> (u16, Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (taken, mails) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let reader = BufReader::new(stream.try_clone().expect("a second handle"));
        let mut say = |text: &str| stream.write_all(format!("{text}\r\n").as_bytes()).expect("an answer");
        let (mut lines, mut is_data) = (Vec::new(), false);
        say("220 test");
        for line in reader.lines().map_while(Result::ok) {
            match (is_data, line.as_str()) {
                (true, ".") => {
                    is_data = false;
                    say("250 taken");
                    taken.send(std::mem::take(&mut lines)).expect("a listener");
                    continue;
                }
                (true, _) => {}
                (false, "DATA") => {
                    is_data = true;
                    say("354 go on");
                }
                (false, "QUIT") => return say("221 bye"),
                (false, _) => say("250 ok"),
            }
            lines.push(line);
        }
    });
    (port, mails)
}

#[test]
fn a_message_is_mailed_to_its_address_by_the_configured_server() {
    let (port, mails) = smtp_server();
    let from = EmailAddress::new("gangline@example.org").expect("an address");
    let server =
        MailServer { host: "127.0.0.1".to_owned(), port: Some(port), security: Security::None, from, login: None };
    let courier = courier(Some(server));
    assert!(courier.has_mail());
    let to = Destination::Email(EmailAddress::new("me@example.org").expect("an address"));
    courier.send(Delivery { to, message: message() });
    let mail = mails.recv_timeout(PATIENCE).expect("a mail").join("\n");
    for part in ["RCPT TO:<me@example.org>", "From: gangline@example.org", "Subject: job-4 failed"] {
        assert!(mail.contains(part), "{part} is not in {mail}");
    }
}
