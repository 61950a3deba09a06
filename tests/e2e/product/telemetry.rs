//! Alerts to a webhook and to a real Alertmanager, and why jobs are slow, from real jobs on one control plane.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixtures::product::Product;
use crate::fixtures::{PATIENCE, try_for, wait_for};

/// Between two evaluations of the rules.
const EVERY: Duration = Duration::from_millis(500);

/// A server that takes webhooks, and passes each on with the time at which it came.
pub(super) fn webhook() -> (String, Receiver<(Instant, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/hook", listener.local_addr().expect("it is bound"));
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (at, body) = (Instant::now(), body_of(&mut stream));
            // The sender may have gone, and the test may be over.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            if sender.send((at, body)).is_err() {
                return;
            }
        }
    });
    (url, bodies)
}

fn body_of(stream: &mut TcpStream) -> Value {
    let (mut reader, mut length, mut line) = (BufReader::new(stream), 0, String::new());
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the whole body");
    serde_json::from_slice(&body).expect("JSON")
}

/// A real Alertmanager on a port of its own choice, that tells nobody.
pub(super) struct Alertmanager {
    process: Child,
    pub(super) url: String,
}

impl Alertmanager {
    /// Returns none, and says so, where it isn't installed.
    #[expect(clippy::print_stderr, reason = "a skip says why")]
    pub(super) fn start(folder: &Path) -> Option<Alertmanager> {
        let config = folder.join("alertmanager.yml");
        std::fs::write(&config, "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n").expect("it is writable");
        let started = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", folder.join("alertmanager").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="])
            .stderr(Stdio::piped())
            .spawn();
        let mut process = match started {
            Ok(process) => process,
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: alerts to Alertmanager: prometheus-alertmanager can't be started: {error}");
                return None;
            }
            Err(error) => panic!("prometheus-alertmanager can't be started: {error}"),
        };
        let mut log = BufReader::new(process.stderr.take().expect("it is piped")).lines();
        let address = log.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("address=127.0.0.1:")?;
            rest.split_whitespace().next().map(|port| format!("127.0.0.1:{}", port.trim_matches('"')))
        });
        // It stops at a pipe that nobody reads.
        std::thread::spawn(move || log.for_each(drop));
        Some(Alertmanager { process, url: format!("http://{}", address.expect("it says where it listens")) })
    }

    /// The alerts that it has, by name.
    fn alerts(&self) -> Vec<Value> {
        let answer = ureq::get(format!("{}/api/v2/alerts", self.url)).call();
        let text = answer.expect("it answers").body_mut().read_to_string().expect("text");
        serde_json::from_str(&text).expect("JSON")
    }

    pub(super) fn has(&self, name: &str, subject: &str) -> bool {
        let is_it = |alert: &Value| alert["labels"]["alertname"] == name && alert["labels"]["subject"] == subject;
        self.alerts().iter().any(is_it)
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A mail server that passes on what it is told, mail by mail.
fn mail_server() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (sender, mails) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The test may be over.
            let _ = sender.send(take_mail(stream));
        }
    });
    (port, mails)
}

fn take_mail(mut stream: TcpStream) -> String {
    let reader = BufReader::new(stream.try_clone().expect("a second handle"));
    // The sender may go at any time.
    let mut say = |text: &str| drop(stream.write_all(format!("{text}\r\n").as_bytes()));
    let (mut mail, mut is_data) = (String::new(), false);
    say("220 test");
    for line in reader.lines().map_while(Result::ok) {
        match (is_data, line.as_str()) {
            (true, ".") => {
                say("250 taken");
                return mail;
            }
            (true, _) => {}
            (false, "DATA") => {
                is_data = true;
                say("354 go on");
            }
            (false, _) => say("250 ok"),
        }
        mail.push_str(&line);
        mail.push('\n');
    }
    mail
}

fn train(product: &Product, name: &str, data: &str, compute: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (script, module) = (root.join("fixtures/slow.py"), root.join("../python/gangline/_report.py"));
    let (place, module) = (product.path(name), module.display().to_string());
    let envs = format!(
        "{{REPORT_MODULE: \"{module}\", PLACE: \"{}\", DATA: \"{data}\", COMPUTE: \"{compute}\"}}",
        place.display()
    );
    let run = format!("python3 {}", script.display());
    let plan = "{tokens_per_second_per_accelerator: 1e6, mfu: 0.5}";
    product.submit(&format!(
        "name: {name}\nresources: {{accelerators: \"cpu:2\"}}\nplan: {plan}\nenvs: {envs}\nrun: {run}\n"
    ))
}

/// Waits until a webhook says that this rule's alert about a job is in this state. Returns when it came, and the alert.
fn told(bodies: &Receiver<(Instant, Value)>, rule: &str, state: &str) -> (Instant, Value) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (at, body) = bodies.recv_timeout(left).unwrap_or_else(|_| panic!("nobody was told that {rule} is {state}"));
        let alerts = body["alerts"].as_array().expect("a list").clone();
        if let Some(alert) = alerts.into_iter().find(|alert| alert["rule"] == rule && alert["state"] == state) {
            return (at, alert);
        }
    }
}

/// Waits until enough steps are judged and rank 1 alone slows its job down in this way, and returns that cause. There may be others: tests
/// that run beside this one load the machine.
fn cause(product: &Product, id: &str, kind: &str) -> Value {
    let mut seen = Value::Null;
    let found = try_for(|| {
        seen = product.json(&["why", id]);
        let is_it = |cause: &&Value| cause["kind"] == kind && cause["ranks"] == json!([1]);
        let cause = seen["causes"].as_array()?.iter().find(is_it)?;
        (seen["steps"].as_u64() >= Some(20)).then(|| cause.clone())
    });
    found.unwrap_or_else(|| panic!("{kind} of rank 1 is no cause: {seen:#}"))
}

/// Alerts fire within an evaluation and a second, reach a webhook and Alertmanager, and `why` names the slow data loader and the
/// slow rank.
#[test]
fn slow_jobs_are_explained_and_alerts_reach_whom_they_should() {
    let mut product = Product::down(&["a=cpu:4"]);
    let (url, bodies) = webhook();
    let (smtp_port, mails) = mail_server();
    let alertmanager = Alertmanager::start(&product.path(""));
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it is bound");
    let of_manager = |manager: &Alertmanager| format!("[[receiver]]\nname='am'\nalertmanager='{}'\n", manager.url);
    let rules = format!(
        "every = '500ms'\noff = ['disk_nearly_full']\n[[receiver]]\nname='hook'\nwebhook='{url}'\n\
         [[receiver]]\nname='post'\nemail='me@example.org'\nseverity='critical'\n[[receiver]]\nname='gone'\nslack='http://{closed}/secret'\n{}\
         [[rule]]\nname='hot'\nmetric='heat'\nabove=10\nclear=5\nseverity='critical'\n\
         [[rule]]\nname='data_stall'\nsignal='data_stall'\nabove=0.4\n",
        alertmanager.as_ref().map(of_manager).unwrap_or_default()
    );
    std::fs::create_dir_all(product.data()).expect("a folder");
    std::fs::write(product.data().join("alerts.toml"), rules).expect("it is writable");
    let smtp = format!("[smtp]\nhost='127.0.0.1'\nport={smtp_port}\nsecurity='none'\nfrom='gangline@example.org'\n");
    std::fs::write(product.data().join("gangline.toml"), smtp).expect("it is writable");
    product.start();

    let loads = train(&product, "loads", "1,60", "20,20");
    let lags = train(&product, "lags", "1,1", "20,80");
    let starved = cause(&product, &loads, "data");
    let cost = starved["cost_nano_dollars_per_hour"].as_f64().expect("the nodes have a price");
    let share = starved["share"].as_f64().expect("a number");
    assert!(share > 0.0 && (cost - share * 80e6).abs() < 1e3, "of two devices at $0.04: {starved:#}");
    cause(&product, &lags, "straggler");
    of_steps(&product, &lags);

    let (_, stall) = told(&bodies, "data_stall", "firing");
    assert_eq!((&stall["subject"], &stall["parts"][0]), (&Value::from(loads.clone()), &Value::from("rank 1 on a")));
    let hot = product.path("lags.hot");
    let latencies = [(); 3].map(|()| {
        let begun = Instant::now();
        std::fs::write(&hot, "").expect("it is writable");
        let (at, alert) = told(&bodies, "hot", "firing");
        assert_eq!((&alert["subject"], &alert["severity"]), (&Value::from(lags.clone()), &Value::from("critical")));
        std::fs::remove_file(&hot).expect("it was just written");
        told(&bodies, "hot", "resolved");
        at - begun
    });
    eprintln!("measured: from a rank's value to the webhook {latencies:.0?}, evaluations every {EVERY:?}");
    let best = latencies.into_iter().min().expect("three");
    assert!(best <= EVERY + Duration::from_secs(1), "{latencies:?}");

    let mail = mails.recv_timeout(PATIENCE).expect("a mail");
    let is_mailed = mail.contains("RCPT TO:<me@example.org>") && mail.contains("Subject: [gangline] critical: heat of");
    assert!(is_mailed, "{mail}");

    of_what_fires(&product, &loads);
    if let Some(manager) = &alertmanager {
        wait_for("Alertmanager's alert", || manager.has("data_stall", &loads).then_some(()));
    }
    product.kill_control_plane();
    product.start();
    let kept: BTreeSet<String> = wait_for("the kept silence", || {
        let list = product.json(&["alerts"]);
        let by = list["silences"].as_array()?.iter().map(|silence| silence["comment"].to_string());
        list["evaluated_at"].is_string().then(|| by.collect())
    });
    assert_eq!(kept, BTreeSet::from(["\"known\"".to_owned()]));
    std::fs::write(product.path("loads.end"), "").expect("it is writable");
    product.wait_state(&loads, "succeeded");
    told(&bodies, "data_stall", "resolved");
    if let Some(manager) = &alertmanager {
        wait_for("the alert's end", || (!manager.has("data_stall", &loads)).then_some(()));
    }
}

/// What the reported steps say of a rank that computes for 80 ms where the other one takes 20 ms: alike, both would take 50 ms.
fn of_steps(product: &Product, job: &str) {
    let file = product.path("steps.json");
    let found = product.json(&["stragglers", job, "--last", "20", "--perfetto", file.to_str().expect("text")]);
    let slowdown = found["slowdown"].as_f64().expect("a number");
    assert!((1.2..1.8).contains(&slowdown), "{found:#}");
    assert_eq!(
        (&found["by_rank"][0]["rank"], &found["by_phase"][0]["phase"]),
        (&json!(1), &json!("compute")),
        "{found:#}"
    );
    let of_first = found["by_rank"][0]["slowdown"].as_f64().expect("a number");
    assert!((of_first - slowdown).abs() < 0.1 * slowdown, "it explains nearly all: {found:#}");
    // Of the newest steps one rank may have reported one more than the other.
    let steps = found["steps"].as_array().map_or(0, Vec::len);
    assert!((15..=20).contains(&steps), "{found:#}");
    let text = std::fs::read_to_string(&file).expect("it is written");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let drawn = |category: &str| events.iter().filter(|event| event["cat"] == category).collect::<Vec<_>>();
    assert!((2 * steps..=40).contains(&drawn("step").len()), "two ranks");
    let lasts = |event: &&&Value| event["tid"] == 1 && event["name"] == "compute";
    let phases = drawn("phase");
    let computes = phases.iter().filter(lasts).filter_map(|event| event["dur"].as_f64()).filter(|dur| *dur > 70_000.0);
    assert!(computes.count() >= 15, "the slow rank computes, in microseconds: {phases:?}");
    let text = product.run(&["why", job]).stdout;
    assert!(text.contains("straggler: ") && text.contains("rank 1") && text.lines().count() <= 10, "{text}");
    let text = product.run(&["stragglers", job]).stdout;
    assert!(text.contains("times as long as without stragglers") && text.contains("compute"), "{text}");
    let refused = product.run(&["stragglers", job, "--attempt", "7"]);
    assert!(refused.code != 0 && refused.stderr.contains("G0802"), "{}", refused.stderr);
    let refused = product.run(&["stragglers", job, "--layout", "dp=2"]);
    assert!(refused.stderr.contains("cannot be used with"), "{}", refused.stderr);
}

/// Processes that compete for a node's processors, and give way to all others.
struct Neighbours(Vec<Child>);

impl Neighbours {
    fn start(count: usize) -> Neighbours {
        let start = |_| Command::new("nice").args(["-n", "19", "sh", "-c", "while :; do :; done"]).spawn();
        Neighbours((0..count).map(start).map(|process| process.expect("nice starts")).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Other load on a job's node is named, and a job that is slower than planned fires an alert that says how much.
#[test]
fn other_load_on_the_node_is_named_and_a_job_below_its_plan_is_told() {
    let mut product = Product::down(&["a=cpu:2"]);
    product.change("--agent-every", "1");
    let (url, bodies) = webhook();
    let rules = format!(
        "every = '500ms'\n[[receiver]]\nname='hook'\nwebhook='{url}'\n\
         [[rule]]\nname='below_plan'\nsignal='plan_share'\nbelow=0.8\nfor='0s'\nseverity='warning'\nsummary='{{subject}} at {{value}}'\n"
    );
    std::fs::create_dir_all(product.data()).expect("a folder");
    std::fs::write(product.data().join("alerts.toml"), rules).expect("it is writable");
    product.start();
    let job = train(&product, "slow", "1,1", "20,20");
    let (_, alert) = told(&bodies, "below_plan", "firing");
    let summary = alert["summary"].as_str().expect("text");
    assert!(alert["subject"] == *job && summary.starts_with(&format!("{job} at 0.")), "{alert}");
    let plan = &product.job(&job)["plan"];
    assert!(
        plan["planned_mfu"] == 0.5 && plan["tokens_per_second_per_accelerator"].as_f64() < Some(50.0 / 0.02),
        "{plan}"
    );
    if !Path::new("/proc/pressure/cpu").exists() {
        eprintln!("skipped: other load on a node: this kernel has no pressure stall information");
        return;
    }
    let _neighbours = Neighbours::start(4 * std::thread::available_parallelism().map_or(2, usize::from));
    let said = wait_for("the other load to be named", || {
        let text = product.run(&["why", &job]).stdout;
        text.contains("host_contention").then_some(text)
    });
    assert!(said.contains("processes on a wait for a CPU") && said.contains("of its plan"), "{said}");
}

/// Alerts as the command line has them: listed, acknowledged, silenced; the unreachable receiver is shown without its address.
fn of_what_fires(product: &Product, job: &str) {
    let list = product.json(&["alerts"]);
    let alerts = list["alerts"].as_array().expect("a list");
    let stall = alerts.iter().find(|alert| alert["rule"] == "data_stall").expect("it fires");
    let id = stall["id"].to_string();
    let shown = product.job(job)["alerts"][0].as_str().expect("a sentence").to_owned();
    assert!(shown.starts_with("warning: data_stall of ") && shown.contains("rank 1 on a"), "{shown}");
    let acknowledged = product.json(&["alerts", "ack", &id]);
    assert!(acknowledged["acknowledged_by"].is_string(), "{acknowledged}");
    let silence = product.json(&["alerts", "silence", "--rule", "hot", "--for", "1h", "--comment", "known"]);
    assert_eq!(silence["rule"], "hot");
    let text = product.run(&["alerts"]);
    assert!(text.stdout.contains("takes care") && text.stdout.contains(job), "{}", text.stdout);
    assert!(
        text.stderr.contains("the slack \"gone\" can't be reached") && !text.stderr.contains("secret"),
        "{}",
        text.stderr
    );
    let refused = |arguments: &[&str], code: &str| {
        let ran = product.run(arguments);
        assert!(ran.code == 3 && ran.stderr.contains(code), "{arguments:?}: {} {}", ran.code, ran.stderr);
    };
    refused(&["alerts", "ack", "999999"], "G0652");
    refused(&["alerts", "silence", "--rule", "nothing"], "G0652");
    refused(&["alerts", "unsilence", "999999"], "G0652");
    refused(&["why", "job-99"], "G0302");
}

/// A file of rules with a mistake is refused with its place: alone, and by a control plane that would start with it.
#[test]
fn a_file_of_alert_rules_with_a_mistake_keeps_the_control_plane_from_starting() {
    let product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let file = product.data().join("alerts.toml");
    std::fs::write(&file, "every = '1s'\n[[rule]]\nname = 'a'\nsignal = 'noise'\nabove = 1\n").expect("it is writable");
    let place = format!("{}:4:10: there is no signal", file.display());
    for ran in [product.start_refused(), product.run(&["alerts", "check", &file.display().to_string()])] {
        assert!(ran.code == 1 && ran.stderr.contains("G0651") && ran.stderr.contains(&place), "{}", ran.stderr);
    }
    std::fs::write(&file, "[[receiver]]\nname = 'post'\nemail = 'me@example.org'\n").expect("it is writable");
    let ran = product.start_refused();
    assert!(ran.code == 1 && ran.stderr.contains("G0651") && ran.stderr.contains("no mail server"), "{}", ran.stderr);
}

/// Rules and receivers change with a reload: what fires goes on under the new rules, and a mistake changes nothing.
#[test]
fn alerts_follow_a_file_of_rules_that_is_read_again() {
    let mut product = Product::down(&["a=cpu:2"]);
    let (url, bodies) = webhook();
    std::fs::create_dir_all(product.data()).expect("a folder");
    let file = product.data().join("alerts.toml");
    let write = |rules: &str| std::fs::write(&file, rules).expect("it is writable");
    let hot = "[[rule]]\nname='hot'\nmetric='heat'\nabove=10\nclear=5\n";
    write(&format!("every = '10m'\n{hot}"));
    product.start();
    wait_for("the first evaluation", || product.json(&["alerts"])["evaluated_at"].is_string().then_some(()));
    // The next evaluation is ten minutes away, unless a reload changes that.
    write(&format!("every = '1s'\n{hot}"));
    assert_eq!(product.run(&["reload"]).stdout, "changed: alerts\n");
    let job = train(&product, "warm", "1,1", "20,20");
    std::fs::write(product.path("warm.hot"), "").expect("it is writable");
    let firing = || {
        let list = product.json(&["alerts"]);
        let alerts = list["alerts"].as_array().cloned().unwrap_or_default();
        alerts.into_iter().find(|alert| alert["rule"] == "hot")
    };
    let before = wait_for("the alert to fire", firing);
    write(&format!("every = '500ms'\n[[receiver]]\nname='hook'\nwebhook='{url}'\n{hot}severity='critical'\n"));
    assert_eq!(product.run(&["reload"]).stdout, "changed: alerts\n");
    assert_eq!(product.json(&["alerts"])["every_seconds"], 0.5);
    assert_eq!(firing().map(|alert| alert["id"].clone()), Some(before["id"].clone()), "it is the same alert");
    assert_eq!(product.run(&["reload"]).stdout, "nothing to change\n");
    write("every = '500ms'\n[[rule]]\nname='hot'\nsignal='noise'\nabove=1\n");
    let refused = product.run(&["reload"]);
    assert!(refused.code == 4 && refused.stderr.contains(":4:8: there is no signal"), "{}", refused.stderr);
    std::fs::remove_file(product.path("warm.hot")).expect("it is there");
    let (_, resolved) = told(&bodies, "hot", "resolved");
    assert_eq!(resolved["subject"], Value::from(job), "the new receiver is told, and the old rules are in force");
    write("every = '500ms'\n");
    assert_eq!(product.run(&["reload"]).stdout, "changed: alerts\n");
    std::fs::write(product.path("warm.hot"), "").expect("it is writable");
    wait_for("an evaluation", || {
        let list = product.json(&["alerts"]);
        list["receivers"].as_array().is_none_or(Vec::is_empty).then_some(())
    });
    assert_eq!(firing(), None, "the rule is gone");
}
