//! Several nodes: ranks by hand, ranks in network namespaces, and a pool's nodes by a job.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{gangline, json};

/// Arguments with checks that cost next to nothing: these tests are about the network.
const RANK: [&str; 6] = ["doctor", "--rank", "--only", "limits", "--size", "1MiB"];

/// Starts a rank.
fn rank(command: &mut Command, number: usize, count: usize, master: (&str, u16)) -> Child {
    command.env("RANK", number.to_string()).env("WORLD_SIZE", count.to_string());
    command.env("MASTER_ADDR", master.0).env("MASTER_PORT", master.1.to_string());
    command.env("TORCHELASTIC_RUN_ID", "test").env("GANGLINE_NODE", format!("n{number}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a rank starts")
}

/// Returns a port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn ended(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().expect("a rank ends")).collect()
}

/// Returns the text that rank 0 printed between the marks.
fn report(outputs: &[Output]) -> Value {
    for output in outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
    let (_, rest) = text.split_once("--- report ---").unwrap_or_else(|| panic!("no report: {text}"));
    let (report, _) = rest.split_once("--- end of report ---").expect("its end");
    serde_json::from_str(report).expect("JSON")
}

#[test]
fn three_ranks_meet_measure_each_other_and_sum_up() {
    let port = port();
    let start = |number| rank(&mut gangline(Path::new("/"), &RANK), number, 3, ("127.0.0.1", port));
    let report = report(&ended((0..3).map(start).collect()));
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(3), "{report:#}");
    let pairs = report["pairs"].as_array().expect("pairs");
    assert_eq!(pairs.len(), 3);
    for pair in pairs {
        assert!(pair["figures"]["forward_bytes_per_second"].as_f64().is_some_and(|rate| rate > 1e6), "{pair:#}");
        assert!(pair["figures"]["latency_micros"].as_f64().is_some_and(|latency| latency > 0.0), "{pair:#}");
    }
    assert_eq!(report["ring"]["ranks"], 3);
    assert!(report["ring"]["bus_bytes_per_second"].as_f64().is_some_and(|rate| rate > 1e6), "{report:#}");
}

/// Foreign connections to rank 0 are closed, and a rank of another run isn't mistaken for one of this.
#[test]
fn strangers_do_no_harm() {
    let port = port();
    let start = |number| rank(&mut gangline(Path::new("/"), &RANK), number, 2, ("127.0.0.1", port));
    let first = start(0);
    let ends_at = Instant::now() + Duration::from_secs(30);
    let mut stranger = loop {
        match std::net::TcpStream::connect(("127.0.0.1", port)) {
            Ok(stranger) => break stranger,
            Err(error) => assert!(Instant::now() < ends_at, "rank 0 doesn't listen: {error}"),
        }
        std::thread::yield_now();
    };
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
    let report = report(&ended(vec![first, start(1)]));
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(2), "{report:#}");
}

/// A network of namespaces: three nodes on a bridge, with addresses that nobody else has.
struct Network {
    name: String,
}

impl Network {
    /// Makes the network; none without the right to do so.
    fn new() -> Option<Network> {
        let network = Network { name: format!("gl{}", std::process::id()) };
        let bridge = network.name.clone();
        let made =
            ip(&["netns", "add", &bridge]) && network.inside(&["link", "add", "name", "bridge0", "type", "bridge"]);
        (made && network.inside(&["link", "set", "dev", "bridge0", "up"]) && (0..3).all(|node| network.add(node)))
            .then_some(network)
    }

    /// Runs a command in the namespace that has the bridge.
    fn inside(&self, words: &[&str]) -> bool {
        ip(&[&["-n", &self.name], words].concat())
    }

    fn node(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    fn add(&self, node: usize) -> bool {
        let (name, port) = (self.node(node), format!("p{node}"));
        ip(&["netns", "add", &name])
            && self.inside(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])
            && self.inside(&["link", "set", &port, "up", "master", "bridge0"])
            && ip(&["-n", &name, "address", "add", &format!("10.77.0.{}/24", node + 1), "dev", "eth0"])
            && ip(&["-n", &name, "link", "set", "eth0", "up"])
            && ip(&["-n", &name, "link", "set", "lo", "up"])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (0..3).map(|node| self.node(node)).chain([self.name.clone()]) {
            // One that was never made is not there.
            ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn a_slow_link_is_found_between_nodes_of_their_own_networks() {
    let Some(network) = Network::new() else {
        println!("skipped: no network namespaces here (root and iproute2 are needed)");
        return;
    };
    let slow = network.node(2);
    let shaped = Command::new("tc")
        .args([
            "-n", &slow, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency",
            "50ms",
        ])
        .stderr(Stdio::null())
        .status();
    if !shaped.is_ok_and(|status| status.success()) {
        println!("skipped: tc can't slow a link here");
        return;
    }
    let start = |number: usize| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.node(number), env!("CARGO_BIN_EXE_gangline")]).args(RANK);
        rank(&mut command, number, 3, ("10.77.0.1", 29_400))
    };
    let report = report(&ended((0..3).map(start).collect()));
    assert_eq!(report["nodes"][2]["address"], "10.77.0.3");
    let named: Vec<&Value> = report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|finding| finding["subject"] == "n2" && finding["verdict"] == "warning")
        .collect();
    assert!(
        named.iter().any(|finding| finding["measured"].as_str().is_some_and(|text| text.starts_with("sends at 0.0"))),
        "{report:#}"
    );
}

/// A control plane with two nodes that are both this machine.
struct Plane {
    up: Child,
    data: tempfile::TempDir,
}

impl Plane {
    fn up() -> Plane {
        let data = tempfile::tempdir().expect("a folder");
        let words = [
            "up",
            "--data",
            "data",
            "--listen",
            "127.0.0.1:0",
            "--node",
            "a=cpu:1",
            "--node",
            "b=cpu:1",
            "--heartbeat",
            "100",
        ];
        let log = std::fs::File::create(data.path().join("up.log")).expect("a log");
        let up = gangline(data.path(), &words).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        let plane = Plane { up, data };
        let ends_at = Instant::now() + Duration::from_secs(60);
        while !plane.run(&["queues"]).status.success() {
            assert!(Instant::now() < ends_at, "the control plane doesn't answer");
        }
        plane
    }

    fn run(&self, words: &[&str]) -> Output {
        gangline(self.data.path(), &[words, &["--data", "data"]].concat()).output().expect("gangline runs")
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

#[test]
fn a_pool_is_checked_by_a_job_and_its_report_comes_back() {
    let plane = Plane::up();
    let output = plane.run(&["doctor", "--pool", "--only", "limits", "--only", "space", "--size", "1MiB", "--json"]);
    let report = json(&output);
    let names: Vec<&str> =
        report["nodes"].as_array().expect("nodes").iter().filter_map(|node| node["node"].as_str()).collect();
    assert_eq!(names, ["a", "b"], "{report:#}");
    assert_eq!(report["pairs"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["ring"]["ranks"], 2);
    let checked =
        report["nodes"][1]["findings"].as_array().expect("findings").iter().any(|finding| finding["check"] == "space");
    assert!(checked, "{report:#}");
    let problems = |finding: &Value| ["warning", "failed", "hung"].contains(&finding["verdict"].as_str().unwrap_or(""));
    let has_problems = report["findings"].as_array().into_iter().flatten().any(problems)
        || report["nodes"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|node| node["findings"].as_array())
            .flatten()
            .any(problems);
    assert_eq!(output.status.code(), Some(i32::from(has_problems)));
    let one = plane.run(&["doctor", "--nodes", "b", "--only", "limits", "--size", "1MiB"]);
    let text = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(text.contains("doctor of 1 node(s)") && text.contains(" b "), "{text}");
    for (words, said) in
        [(["--pool", "gpus"], "pool gpus has no node that takes jobs"), (["--nodes", "z"], "has no node z")]
    {
        let refused = plane.run(&[&["doctor"], &words[..]].concat());
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && text.contains(said), "{text}");
    }
}
