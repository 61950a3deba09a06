//! A lost answer: the control plane is killed with SIGKILL after it has made a change and before anybody hears of it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::fixtures::product::{Product, Ran};
use crate::fixtures::{is_running, kill, wait_for};

/// When the control plane dies.
#[derive(Clone, Copy)]
enum Death {
    /// Once the first byte of its answer is there: the change is made. The answer goes no further.
    BeforeTheAnswerIsHeard,
    /// This long after it has the request, whatever it has done by then.
    After(Duration),
}

/// Stands between the command line and the control plane, which it kills once when told to, and is found again after that.
struct Between {
    url: String,
    upstream: Arc<Mutex<String>>,
    kills: mpsc::Sender<(u32, Death)>,
}

impl Between {
    fn new(upstream: String) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let upstream = Arc::new(Mutex::new(upstream));
        let (kills, orders) = mpsc::channel::<(u32, Death)>();
        let to = Arc::clone(&upstream);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let to = to.lock().expect("nobody panicked").clone();
                let Ok(plane) = TcpStream::connect(to.trim_start_matches("http://")) else { continue };
                pass(client, plane, orders.try_recv().ok());
            }
        });
        Between { url, upstream, kills }
    }

    fn now_at(&self, upstream: String) {
        *self.upstream.lock().expect("nobody panicked") = upstream;
    }
}

/// One connection, to its end.
fn pass(mut client: TcpStream, mut plane: TcpStream, order: Option<(u32, Death)>) {
    let (mut from_client, mut to_plane) = (client.try_clone().expect("a socket"), plane.try_clone().expect("a socket"));
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&has_asked);
    let up = std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count @ 1..) = from_client.read(&mut bytes) {
            if to_plane.write_all(&bytes[..count]).is_err() {
                return;
            }
            asked.store(true, Ordering::SeqCst);
        }
        // The other side may be gone.
        let _ = to_plane.shutdown(std::net::Shutdown::Write);
    });
    if let Some((pid, Death::After(time))) = order {
        while !has_asked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(time);
        kill(pid);
    }
    let mut bytes = [0; 65_536];
    while let Ok(count @ 1..) = plane.read(&mut bytes) {
        if let Some((pid, Death::BeforeTheAnswerIsHeard)) = order {
            kill(pid);
            break;
        }
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Both may be gone by now.
    let _ = client.shutdown(std::net::Shutdown::Both);
    let _ = plane.shutdown(std::net::Shutdown::Both);
    up.join().expect("no thread panics");
}

fn names(product: &Product) -> Vec<String> {
    let jobs = product.json(&["ps", "--all"])["jobs"].as_array().expect("a list").clone();
    jobs.iter().map(|job| job["name"].as_str().expect("a name").to_owned()).collect()
}

/// Submits through what kills the control plane, starts that again, and gives the id that the command line ends with.
fn submit_through(product: &mut Product, between: &Between, name: &str, death: Death) -> String {
    let file = product.job_file(&format!("{name}.yaml"), &format!("name: {name}\nrun: exit 0\n"));
    let pid = product.pid();
    between.kills.send((pid, death)).expect("it listens");
    let client = product.spawn(&["submit", &file, "--json", "--url", &between.url]);
    wait_for("the control plane to be killed", || (!is_running(pid)).then_some(()));
    product.kill_control_plane();
    product.start();
    between.now_at(product.url());
    let ran = Ran::from(client.wait_with_output().expect("it runs"));
    assert_eq!(ran.code, 0, "{name}: {}", ran.stderr);
    ran.json()["job"].as_str().expect("an id").to_owned()
}

/// The control plane has committed the job and is killed before its answer is heard: the command line sends it again by itself
/// and learns the first one's id.
#[test]
fn a_submission_whose_answer_is_lost_with_the_control_plane_is_one_job() {
    let mut product = Product::up(&["a=cpu:1"]);
    let between = Between::new(product.url());
    let id = submit_through(&mut product, &between, "lost", Death::BeforeTheAnswerIsHeard);
    assert_eq!(names(&product), ["lost"]);
    product.wait_state(&id, "succeeded");
}

/// Killed at any moment between the request and its answer.
#[test]
fn a_submission_is_one_job_whenever_the_control_plane_is_killed() {
    let mut product = Product::up(&["a=cpu:1"]);
    let between = Between::new(product.url());
    let mut ids = Vec::new();
    for round in 0..8_u32 {
        let death = Death::After(Duration::from_micros(400) * round);
        ids.push(submit_through(&mut product, &between, &format!("round-{round}"), death));
    }
    let mut jobs = names(&product);
    jobs.sort();
    assert_eq!(jobs, (0..8).map(|round| format!("round-{round}")).collect::<Vec<_>>(), "each is there once");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
}

/// One that nobody takes is told at once.
#[test]
fn without_a_control_plane_a_submission_fails_at_once() {
    let mut product = Product::up(&["a=cpu:1"]);
    product.kill_control_plane();
    let file = product.job_file("job.yaml", "name: a\nrun: exit 0\n");
    let begun = std::time::Instant::now();
    let ran = product.run(&["submit", &file]);
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    assert!(begun.elapsed() < Duration::from_secs(15), "nothing is sent again");
}
