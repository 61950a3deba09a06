//! Who gets in, and who is believed: the socket in the data folder, others who take the control plane's place while it is
//! down, links to the page and tokens. Proves A-13 for a control plane that isn't one.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::fixtures::product::{Product, attempts, rank_pid};
use crate::fixtures::stranger::{STRANGER, may_be_somebody_else, take_port, take_socket};
use crate::fixtures::{is_running, wait_for};

/// Orders that end an attempt, to whoever obeys; and a job list, to whoever believes it.
const STOP: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 174\r\n\r\n\
    {\"version\":1,\"stop\":{\"grace_ms\":0,\"reason\":\"because\"},\"rendezvous\":null,\"samples_stored\":0,\
    \"end_acknowledged\":true,\"stay\":false,\"report_within_ms\":null,\"jobs\":[],\"next\":null}";

fn token(product: &Product) -> String {
    std::fs::read_to_string(product.data().join("token")).expect("a token").trim().to_owned()
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

fn contact_is_lost(product: &Product) {
    let log = product.data().join("jobs/job-1/attempt-1/a/supervisor.log");
    wait_for("the supervisor to miss its control plane", || {
        let log = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        log.contains("no contact with the control plane").then_some(())
    });
}

/// The job that was running goes on and ends under the control plane that comes back.
fn is_taken_up(product: &mut Product, id: &str, pid: u32, go: &Path) {
    assert!(is_running(pid), "nobody has ended its rank");
    product.start();
    assert_eq!(rank_pid(&product.job(id), 0, 0), Some(pid), "the same rank runs");
    std::fs::write(go, "").expect("the file can be written");
    let job = product.wait_state(id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}

fn running(product: &Product) -> (String, u32, std::path::PathBuf) {
    let go = product.path("go");
    let id = product.submit(&format!("name: waits\nrun: until [ -e {} ]; do sleep 0.05; done\n", go.display()));
    let pid = wait_for("a rank", || rank_pid(&product.job(&id), 0, 0));
    (id, pid, go)
}

#[test]
fn whoever_takes_the_port_of_a_control_plane_that_is_down_learns_and_orders_nothing() {
    if !may_be_somebody_else() {
        println!("skipped: it takes root to act as another user");
        return;
    }
    let mut product = Product::up(&["a=cpu:1"]);
    let (id, pid, go) = running(&product);
    let address = product.url().trim_start_matches("http://").to_owned();
    product.kill_control_plane();
    let heard = take_port(&address, STOP);
    contact_is_lost(&product);
    let ran = product.run(&["ps"]);
    assert_eq!(ran.code, 5, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("G0501") && ran.stderr.contains("control.sock"), "{}", ran.stderr);
    assert_eq!(heard.text(), "", "nobody has said a word to it");
    is_taken_up(&mut product, &id, pid, &go);
    assert_eq!(heard.text(), "");
}

/// Even where the data folder was opened to all, so that another user could put a socket there.
#[test]
fn whoever_puts_a_socket_into_the_data_folder_learns_and_orders_nothing() {
    if !may_be_somebody_else() {
        println!("skipped: it takes root to act as another user");
        return;
    }
    let mut product = Product::up(&["a=cpu:1"]);
    let (id, pid, go) = running(&product);
    product.kill_control_plane();
    open_to_all(product.path(".").as_path(), 0o755);
    open_to_all(&product.data(), 0o777);
    let socket = product.data().join("control.sock");
    let heard = take_socket(&socket, STOP);
    contact_is_lost(&product);
    let ran = product.run(&["ps"]);
    assert_eq!(ran.code, 5, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("G0511") && ran.stderr.contains(&format!("user {STRANGER}")), "{}", ran.stderr);
    // Nor does somebody else's word count on whom to trust instead.
    std::fs::remove_file(&socket).expect("the folder is ours");
    let endpoint = product.data().join("endpoint");
    std::fs::write(&endpoint, "https://127.0.0.1:1\n").expect("the folder is ours");
    std::os::unix::fs::chown(&endpoint, Some(STRANGER), None).expect("we are root");
    let ran = product.run(&["ps"]);
    assert!(ran.stderr.contains("belongs to user"), "{}", ran.stderr);
    assert_eq!(heard.text(), "", "nobody has said a word to it");
    is_taken_up(&mut product, &id, pid, &go);
    assert_eq!(heard.text(), "");
}

/// Whoever has the usual port can't keep a control plane from starting, unless somebody has asked for that port.
#[test]
fn a_control_plane_starts_though_somebody_has_the_usual_port() {
    // An error means that somebody has it already.
    let taken = std::net::TcpListener::bind("127.0.0.1:7878");
    let mut product = Product::down(&["a=cpu:1"]);
    product.listen("127.0.0.1:7878");
    let refused = product.start_refused();
    assert!(refused.code == 1 && refused.stderr.contains("G0503"), "{}", refused.stderr);
    product.listen("");
    product.start();
    assert!(!product.url().ends_with(":7878"), "{}", product.url());
    let id = product.submit("name: short\nrun: echo said\n");
    product.wait_state(&id, "succeeded");
    drop(taken);
}

#[test]
fn the_socket_is_for_the_owner_of_the_data_folder() {
    let product = Product::up(&["a=cpu:1"]);
    let socket = product.data().join("control.sock");
    let found = std::fs::symlink_metadata(&socket).expect("it is there");
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let folder = std::fs::metadata(product.data()).expect("it is there");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    if !may_be_somebody_else() {
        println!("skipped: it takes root to act as another user");
        return;
    }
    for (path, mode) in
        [(product.path("."), 0o755), (product.data(), 0o755), (socket, 0o666), (product.data().join("token"), 0o644)]
    {
        open_to_all(&path, mode);
    }
    let program = product.path("gangline");
    // By a process of its own: what another test's thread starts meanwhile would inherit a file that this process writes, and a
    // program that somebody may write to can't be started.
    let copied = std::process::Command::new("cp").arg(crate::fixtures::gangline()).arg(&program).status();
    assert!(copied.expect("cp starts").success());
    let stranger = STRANGER.to_string();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", &stranger, "--regid", &stranger, "--clear-groups"]).arg(&program);
        command.args(arguments).arg("--data").arg(product.data()).output().expect("setpriv runs")
    };
    let refused = run(&["ps"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(5), "the modes are wide open, and the token known: {said}");
    let granted = run(&["ps", "--url", &product.url()]);
    assert!(granted.status.success(), "{}", String::from_utf8_lossy(&granted.stderr));
}

#[test]
fn a_folder_that_can_hold_no_socket_has_tls_instead() {
    let mut product = Product::down(&["a=cpu:1"]);
    product.without_socket();
    product.start();
    assert!(product.url().starts_with("https://127.0.0.1:"), "{}", product.url());
    let id = product.submit("name: short\nrun: echo said\n");
    product.wait_state(&id, "succeeded");
    assert!(product.run(&["logs", &id]).stdout.contains("said"));
}

#[test]
fn a_data_folder_with_a_long_path_has_its_socket() {
    let mut product = Product::down(&["a=cpu:1"]);
    let deep = product.path(&"deep".repeat(40));
    product.keep_in(&deep);
    product.start();
    let id = product.submit("name: short\nrun: echo said\n");
    product.wait_state(&id, "succeeded");
    assert!(product.url().starts_with("http://"), "it needs no TLS");
}

#[test]
fn a_start_prints_a_link_and_no_token() {
    let product = Product::up(&["a=cpu:1"]);
    let log = std::fs::read_to_string(product.path("up.log")).expect("a log");
    assert!(!log.contains(&token(&product)), "{log}");
    let printed = log.lines().find_map(|line| line.strip_prefix("page: ")).expect("a link");
    let printed = printed.split(' ').next().expect("a link").to_owned();
    let another = product.run(&["token", "link"]).stdout.trim().to_owned();
    assert_ne!(printed, another);
    let agent = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().new_agent();
    for link in [printed, another] {
        let status = |_| agent.get(&link).call().expect("an answer").status().as_u16();
        assert_eq!([0, 1].map(status), [303, 401], "{link} is good once");
    }
}

#[test]
fn another_token_ends_the_one_before_and_no_job() {
    let product = Product::up(&["a=cpu:1"]);
    let (id, pid, go) = running(&product);
    let before = token(&product);
    let old = product.job_file("old-token", &before);
    assert_eq!(product.run(&["ps", "--token-file", &old]).code, 0);
    let ran = product.run(&["token", "rotate"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_ne!(token(&product), before);
    assert!(!ran.stdout.contains(&token(&product)) && !ran.stderr.contains(&token(&product)), "it isn't printed");
    assert_eq!(product.run(&["ps", "--token-file", &old]).code, 4, "the old one is good no more");
    assert!(is_running(pid));
    std::fs::write(&go, "").expect("the file can be written");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}
