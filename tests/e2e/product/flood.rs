//! Others who hold connections and send bodies: what a normal client feels of it, and what it costs in memory. The control
//! plane may have as many files open as most systems allow, 1024. Proves A-10.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gangline_execution::endpoint::DataFolder;

use crate::fixtures::PATIENCE;
use crate::fixtures::product::Product;

const IDLE: usize = 1_000;
const SLOW: usize = 200;
/// Requests of which one in a hundred may be slower than the figure that is compared.
const REQUESTS: usize = 300;
/// One try without others in the way is enough, and a crowd that slows clients down spoils all of them.
const TRIES: usize = 8;
/// The crowd may cost a request this much, however quick it is without: the crowd's own process takes its share of the cores.
const SLACK: Duration = Duration::from_millis(5);

fn limited() -> Product {
    let mut product = Product::down(&["a=cpu:1"]);
    product.started_by(&["prlimit", "--nofile=1024"]);
    product.start();
    product
}

/// What asks as the command line does, by a connection of its own each time.
struct Client {
    address: String,
    folder: DataFolder,
    request: String,
}

impl Client {
    fn of(product: &Product) -> Client {
        let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
        let request = format!(
            "GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
            token.trim()
        );
        let folder = DataFolder::open(&product.data()).expect("it is there");
        Client { address: product.url().trim_start_matches("http://").to_owned(), folder, request }
    }

    fn ask(&self, mut stream: impl Read + Write) {
        stream.write_all(self.request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is answered in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// How long all but one in a hundred requests take, by the port and by the socket.
    fn p99(&self) -> [Duration; 2] {
        let by_port = || {
            let stream = TcpStream::connect(&self.address).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a sound time");
            self.ask(stream);
        };
        let by_socket = || {
            let stream: UnixStream = self.folder.connect(PATIENCE).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a sound time");
            self.ask(stream);
        };
        [p99_of(by_port), p99_of(by_socket)]
    }
}

fn p99_of(act: impl Fn()) -> Duration {
    let one = |_| {
        let began = Instant::now();
        act();
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..REQUESTS).map(one).collect();
    times.sort();
    times[REQUESTS * 99 / 100]
}

/// Connections that are opened again when they are closed.
struct Crowd {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Crowd {
    fn at(address: &str) -> Crowd {
        let (is_over, address) = (Arc::new(AtomicBool::new(false)), address.to_owned());
        let over = is_over.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut crowd: Vec<Option<TcpStream>> =
                (0..IDLE + SLOW).map(|_| TcpStream::connect(&address).ok()).collect();
            ready.send(()).expect("somebody waits");
            while !over.load(Ordering::SeqCst) {
                crowd.iter_mut().enumerate().for_each(|(place, stream)| annoy(stream, place < SLOW, &address));
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        is_ready.recv().expect("the crowd is there");
        Crowd { is_over, thread: Some(thread) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("nobody panicked");
        }
    }
}

/// One byte more of a request that never ends, or nothing.
fn annoy(connection: &mut Option<TcpStream>, is_slow: bool, address: &str) {
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true)?;
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => return Ok::<_, std::io::Error>(false),
        }
        Ok(!is_slow || stream.write_all(b"x").is_ok())
    };
    if !connection.as_mut().is_some_and(|stream| is_open(stream).unwrap_or(false)) {
        *connection = TcpStream::connect(address).ok();
        if let Some(stream) = connection.as_mut().filter(|_| is_slow) {
            // It may be turned out at once.
            let _ = stream.write_all(b"GET /api/v1/queues HTTP/1.1\r\nx-slow: ");
        }
    }
}

#[test]
fn a_crowd_of_silent_and_slow_connections_slows_nobody_down() {
    let product = limited();
    let client = Client::of(&product);
    client.p99();
    // The best of several tries: what else this machine does is no part of it.
    let mut tries: Vec<([Duration; 2], [Duration; 2])> = Vec::new();
    for _ in 0..TRIES {
        let without = client.p99();
        let crowd = Crowd::at(&client.address);
        tries.push((without, client.p99()));
        drop(crowd);
        let (without, with) = &tries[tries.len() - 1];
        println!("p99 by port and socket: {without:?} without, {with:?} with {IDLE} idle and {SLOW} slow connections");
        if (0..2).all(|door| with[door] <= 2 * without[door] + SLACK) {
            return;
        }
    }
    panic!("a crowd makes a normal client slower: {tries:?}");
}

/// Resident memory, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn bodies_of_those_without_a_token_cost_no_memory() {
    let product = limited();
    let client = Client::of(&product);
    client.p99();
    let before = resident(product.pid());
    let body = vec![b'x'; 4 << 20];
    let mut most = before;
    for path in ["/api/v1/jobs", "/api/v1/supervisors/report"] {
        let open = |place: usize| {
            let mut stream = TcpStream::connect(&client.address).expect("it listens");
            stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a sound time");
            // Some say how much it is, and some that it comes in pieces.
            let length = if place.is_multiple_of(2) { "content-length: 4194304" } else { "transfer-encoding: chunked" };
            let head =
                format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n{length}\r\n\r\n");
            let begun = if place.is_multiple_of(2) { head } else { head + "400000\r\n" };
            // It is refused while it sends.
            let _ = stream.write_all(begun.as_bytes()).and_then(|()| stream.write_all(&body));
            stream
        };
        let connections: Vec<TcpStream> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..150).map(|place| scope.spawn(move || open(place))).collect();
            most = most.max(resident(product.pid()));
            threads.into_iter().map(|thread| thread.join().expect("nobody panicked")).collect()
        });
        most = most.max(resident(product.pid()));
        drop(connections);
    }
    println!("{before} KiB before, at most {most} KiB with 150 bodies of 4 MiB without a token");
    assert!(most < before + (16 << 10), "{before} KiB before, {most} KiB after");
}
