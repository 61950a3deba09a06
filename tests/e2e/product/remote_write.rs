//! Measurements that a real Prometheus takes by remote write, also those of the time in which it was away.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::fixtures::product::{Product, training};
use crate::fixtures::{try_for, wait_for};

/// The password that Prometheus wants, and its bcrypt, as Prometheus has it.
const PASSWORD: &str = "push-secret";
const PASSWORD_HASH: &str = "$2b$04$3cJZWuWyWeHRWX6F1RxKcuL2JQLLJ2qb0SwR0mI6qHCqvjTKkaacq";

/// A Prometheus that scrapes nothing, and answers only the user `gang`.
struct Prometheus {
    folder: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Prometheus {
    /// Returns none, and says so, where it isn't installed.
    #[expect(clippy::print_stderr, reason = "a skip says why")]
    fn start(folder: &Path) -> Option<Prometheus> {
        let port = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it is bound").port();
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(folder.join("prometheus.yml"), "scrape_configs: []\n").expect("it is writable");
        let users = format!("basic_auth_users: {{gang: '{PASSWORD_HASH}'}}\n");
        std::fs::write(folder.join("web.yml"), users).expect("it is writable");
        let mut prometheus = Prometheus { folder: folder.to_owned(), port, process: None };
        if let Err(error) = prometheus.start_again() {
            eprintln!("skipped: remote write: prometheus can't be started: {error}");
            return None;
        }
        Some(prometheus)
    }

    fn start_again(&mut self) -> std::io::Result<()> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", self.folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", self.folder.join("data").display()));
        command.arg(format!("--web.config.file={}", self.folder.join("web.yml").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{}", self.port)).arg("--web.enable-remote-write-receiver");
        self.process = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The values of a query now; none while it can't answer.
    fn ask(&self, query: &str) -> Option<Vec<Value>> {
        let basic = format!("Basic {}", STANDARD.encode(format!("gang:{PASSWORD}")));
        let asked = ureq::get(self.url("/api/v1/query")).query("query", query).header("authorization", basic);
        let answer = asked.call().ok()?;
        let answer: Value = serde_json::from_reader(answer.into_body().into_reader()).ok()?;
        answer["data"]["result"].as_array().cloned()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A metric of the control plane itself.
fn own(product: &Product, name: &str) -> f64 {
    let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
    let answer =
        ureq::get(format!("{}/metrics", product.url())).header("authorization", format!("Bearer {}", token.trim()));
    let text = answer.call().expect("it answers").body_mut().read_to_string().expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

/// The number of a job's steps whose time the control plane has.
fn steps(product: &Product, id: &str) -> f64 {
    let all = product.json(&["series", id, "--metric", "gangline.step_seconds", "--points", "10000"]);
    let points = all["curves"][0]["points"].as_array().cloned().unwrap_or_default();
    points.iter().filter_map(|point| point["count"].as_f64()).sum()
}

#[test]
fn prometheus_gets_the_measurements_of_ranks_and_nodes_also_those_of_its_absence() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(mut prometheus) = Prometheus::start(&product.path("prometheus")) else { return };
    let config = product.path("gangline.toml");
    let text = format!(
        "[remote_write]\nurl = '{}'\nuser = 'gang'\ntoken_file = 'password'\nheaders = {{ X-Scope-OrgID = 'ml' }}\n\
         labels = {{ cluster = 'here' }}\n",
        prometheus.url("/api/v1/write")
    );
    std::fs::write(&config, text).expect("it is writable");
    std::fs::write(product.path("password"), format!("{PASSWORD}\n")).expect("it is writable");
    product.option("--config", config.to_str().expect("text"));
    product.change("--agent-every", "1");
    product.start();
    let folder = product.path("checkpoints").display().to_string();
    let options = "--steps 100000 --checkpoint-every 50 --step-time-min 20";
    let id = product.submit(&training("resources: {accelerators: \"cpu:1\"}", options, &folder));
    let of_job = format!("{{job_id=\"{id}\",cluster=\"here\",rank=\"0\",node=\"a\",attempt=\"1\"}}");
    let found = |prometheus: &Prometheus, query: &str| prometheus.ask(query).filter(|found| found.len() == 1);
    wait_for("a loss", || found(&prometheus, &format!("gangline_rank_loss{of_job}")));
    wait_for("a node's memory", || found(&prometheus, "gangline_host_memory_bytes{node=\"a\",cluster=\"here\"}"));

    prometheus.kill();
    let failing = "gangline_remote_write_failing";
    wait_for("the absence to be noticed", || (own(&product, failing) > 0.0).then_some(()));
    let step = product.job(&id)["progress"]["step"].as_u64().unwrap_or_default();
    product.wait_step(&id, step + 100);
    prometheus.start_again().expect("it starts");
    // The pause between two tries is up to half a minute.
    let is_back = (0..2).find_map(|_| try_for(|| (own(&product, failing) < 1.0).then_some(())));
    assert!(is_back.is_some(), "it is not found again");
    assert_eq!(product.run(&["cancel", &id]).code, 0);
    product.wait_state(&id, "cancelled");
    let query = format!("count_over_time(gangline_rank_step_seconds{of_job}[1h])");
    let there = |prometheus: &Prometheus| found(prometheus, &query)?[0]["value"][1].as_str()?.parse::<f64>().ok();
    // What the supervisor had not sent yet at the end comes after it. On a machine that is busy a few steps in a hundred may be told within a
    // millisecond of another; those of Prometheus' absence are far more than that.
    let same = try_for(|| {
        let here = steps(&product, &id);
        there(&prometheus).filter(|there| here > 100.0 && (0.0..=here / 15.0).contains(&(here - there)))
    });
    assert!(same.is_some(), "{} steps here, {:?} there", steps(&product, &id), there(&prometheus));
    for outcome in ["dropped", "refused"] {
        let name = format!("gangline_remote_write_samples_total{{outcome=\"{outcome}\"}}");
        assert!(own(&product, &name) < 1.0, "{outcome}");
    }
}
