//! A server that speaks as much of S3 and HTTP as a reader needs, counts what it is asked, and has faults.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Objects by name, below `/bucket/`.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    pub(crate) gets: AtomicUsize,
    pub(crate) heads: AtomicUsize,
    pub(crate) lists: AtomicUsize,
    /// Bytes of objects that were sent.
    pub(crate) sent: AtomicUsize,
    /// One GET in so many is refused with 503, and another is cut off; none if 0.
    pub(crate) faults_every: usize,
    /// Whether GETs are held until this is false again; of ranges from this byte on, if it is said.
    pub(crate) is_held: AtomicBool,
    pub(crate) held_from: usize,
    /// How long each answer takes.
    pub(crate) delay: Duration,
    /// Whether ranges and conditions are ignored.
    pub(crate) ignores_ranges: bool,
    pub(crate) ignores_conditions: bool,
    /// The access key of requests that aren't counted, if it is said.
    pub(crate) uncounted_key: Option<&'static str>,
    /// The state of the objects, which is a part of their ETags.
    pub(crate) state: AtomicUsize,
    /// The ranges that were asked for.
    pub(crate) asked: Mutex<Vec<(String, Range<usize>)>>,
}

/// What a request asks.
#[derive(Default)]
struct Asked {
    method: String,
    path: String,
    query: String,
    range: Option<Range<usize>>,
    condition: Option<String>,
    /// The `Authorization` header, which names the access key.
    authorization: String,
}

impl Server {
    /// Starts it; returns its address too.
    pub(crate) fn start(self) -> (Arc<Server>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Arc::new(self);
        let shared = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Else the second part of a small answer waits for an acknowledgement of the first, 40 ms.
                stream.set_nodelay(true).expect("a connection");
                let server = Arc::clone(&shared);
                std::thread::spawn(move || while server.answer(&stream).is_some() {});
            }
        });
        (server, address)
    }

    pub(crate) fn requests(&self) -> usize {
        [&self.gets, &self.heads, &self.lists].iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    fn tag(&self) -> String {
        format!("\"{}\"", self.state.load(Ordering::SeqCst))
    }

    /// Answers one request; none at the connection's end.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let asked = read(stream)?;
        let key = asked.path.trim_start_matches("/bucket/").to_owned();
        std::thread::sleep(self.delay);
        if asked.query.contains("list-type") {
            self.lists.fetch_add(1, Ordering::SeqCst);
            return send(stream, "200 OK", "", self.listing(&asked.query).as_bytes(), usize::MAX);
        }
        let Some(object) = self.objects.get(&key) else {
            self.heads.fetch_add(1, Ordering::SeqCst);
            return send(stream, "404 Not Found", "", b"", usize::MAX);
        };
        let tag = format!("ETag: {}\r\nLast-Modified: Wed, 25 Nov 2026 10:00:00 GMT\r\n", self.tag());
        if asked.method == "HEAD" {
            self.heads.fetch_add(1, Ordering::SeqCst);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{tag}\r\n", object.len());
            return (&*stream).write_all(head.as_bytes()).ok();
        }
        let range = asked.range.clone().unwrap_or(0..object.len());
        let is_counted = self.uncounted_key.is_none_or(|key| !asked.authorization.contains(key));
        let number = self.gets.fetch_add(usize::from(is_counted), Ordering::SeqCst) + 1;
        self.asked.lock().expect("no panic").push((key, range.clone()));
        while range.start >= self.held_from && self.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !self.ignores_conditions && asked.condition.is_some_and(|wanted| wanted != self.tag()) {
            return send(stream, "412 Precondition Failed", "", b"", usize::MAX);
        }
        if self.ignores_ranges || asked.range.is_none() {
            return send(stream, "200 OK", &tag, object, usize::MAX);
        }
        let tag = format!("ETag: {}\r\nLast-Modified: Wed, 25 Nov 2026 10:00:00 GMT\r\n", self.tag());
        let body = &object[range.start..range.end.min(object.len())];
        let headers =
            format!("{tag}Content-Range: bytes {}-{}/{}\r\n", range.start, range.start + body.len() - 1, object.len());
        let fault = number.checked_rem(self.faults_every);
        if fault == Some(1) {
            return send(stream, "503 Slow Down", "", b"", usize::MAX);
        }
        let is_cut = fault == Some(2);
        let most = if is_cut { body.len() / 2 } else { body.len() };
        self.sent.fetch_add(most, Ordering::SeqCst);
        send(stream, "206 Partial Content", &headers, body, most).filter(|()| !is_cut)
    }

    fn listing(&self, query: &str) -> String {
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default();
        let prefix = prefix.replace("%2F", "/");
        let listed = self.objects.iter().filter(|(key, _)| key.starts_with(&prefix));
        let contents = listed.fold(String::new(), |mut text, (key, object)| {
            let (tag, size) = (self.tag(), object.len());
            write!(
                text,
                "<Contents><Key>{key}</Key><LastModified>2026-11-25T10:00:00.000Z</LastModified><ETag>{tag}</ETag><Size>{size}</Size></Contents>"
            )
            .expect("text");
            text
        });
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
    }
}

/// Reads one request; none at the connection's end.
fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut asked = Asked { method, path: path.to_owned(), query: query.to_owned(), ..Asked::default() };
    while let Some(line) = lines.next()?.ok().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (start, end) = value.trim().strip_prefix("bytes=")?.split_once('-').expect("a range");
                let number = |text: &str| text.parse::<usize>().expect("a number");
                let end = if end.is_empty() { usize::MAX } else { number(end) + 1 };
                asked.range = Some(number(start)..end);
            }
            "authorization" => asked.authorization = value.trim().to_owned(),
            "if-match" => asked.condition = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Some(asked)
}

/// Sends so much of a body at most; none when the other side is gone.
fn send(mut stream: &TcpStream, status: &str, headers: &str, body: &[u8], most: usize) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..body.len().min(most)])).ok()
}
