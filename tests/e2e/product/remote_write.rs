//! Measurements that a real Prometheus takes by remote write, also those of the time in which it was away.

use crate::fixtures::metrics_server::{MetricsServer, PASSWORD};
use crate::fixtures::product::{Product, training};
use crate::fixtures::{try_for, wait_for};

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
    let Some(mut prometheus) = MetricsServer::prometheus(&product.path("prometheus")) else { return };
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
    let found = |prometheus: &MetricsServer, query: &str| prometheus.ask(query).filter(|found| found.len() == 1);
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
    let there = |prometheus: &MetricsServer| found(prometheus, &query)?[0]["value"][1].as_str()?.parse::<f64>().ok();
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
