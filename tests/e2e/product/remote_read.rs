//! Queries that a real Prometheus or VictoriaMetrics answers, which has by remote write what the series store has lost.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fixtures::metrics_server::{MetricsServer, PASSWORD, USER};
use crate::fixtures::product::{Product, training};
use crate::fixtures::wait_for;

/// A rule that every node breaks whose memory is known.
const RULE: &str = "every = '200ms'\n[[rule]]\nname = 'memory'\nmetric = 'host.memory_bytes'\nabove = 1\n\
    severity = 'warning'\nsummary = '{subject} has memory'\nhint = 'none'\n";

/// A metric of the control plane itself.
fn own(product: &Product, name: &str) -> Option<f64> {
    let token = std::fs::read_to_string(product.data().join("token")).expect("a token");
    let answer =
        ureq::get(format!("{}/metrics", product.url())).header("authorization", format!("Bearer {}", token.trim()));
    let text = answer.call().expect("it answers").body_mut().read_to_string().expect("text");
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.parse().ok()
}

fn curve(product: &Product, id: &str, options: &[&str]) -> Option<Vec<Value>> {
    let all = product.json(&[&["series", id, "--metric", "loss", "--rank", "0"], options].concat());
    all["curves"].as_array()?.first()?["points"].as_array().cloned()
}

/// The time of a point to the millisecond, its step and its value.
type Point = (String, u64, f64);

fn point(point: &Value) -> Point {
    let at = point["at"].as_str().expect("a time").to_owned();
    (at, point["first_step"].as_u64().expect("a step"), point["last"].as_f64().expect("a loss"))
}

fn sums(points: &[Value]) -> (u64, f64, f64, u64, u64) {
    let all = |key: &str| points.iter().map(|point| point[key].as_f64().expect("a number")).collect::<Vec<f64>>();
    let steps = |key: &str| points.iter().map(|point| point[key].as_u64().expect("a step")).collect::<Vec<u64>>();
    let count = points.iter().map(|point| point["count"].as_u64().expect("a count")).sum();
    let (least, most) =
        (all("min").into_iter().fold(f64::MAX, f64::min), all("max").into_iter().fold(f64::MIN, f64::max));
    (count, least, most, steps("first_step")[0], *steps("last_step").last().expect("it isn't empty"))
}

/// Trains for 300 steps, and returns the job.
fn train(product: &Product, folder: &str) -> String {
    let folder = product.path(folder).display().to_string();
    let options = "--steps 300 --checkpoint-every 100 --step-time-min 10";
    let id = product.submit(&training("resources: {accelerators: \"cpu:1\"}", options, &folder));
    product.wait_state(&id, "succeeded");
    id
}

/// Nobody reads the node's memory any more: only the server has the readings of the last minutes.
fn await_alert(product: &Product) {
    wait_for("the rule about nodes to be broken", || {
        let alerts = product.json(&["alerts"]).to_string();
        (alerts.contains("node a has memory") && alerts.contains("firing")).then_some(())
    });
}

fn check(start: fn(&std::path::Path) -> Option<MetricsServer>) {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(mut server) = start(&product.path("server")) else { return };
    let config = product.path("gangline.toml");
    let access = format!("user = '{USER}'\ntoken_file = 'password'\n");
    let sent =
        format!("[remote_write]\nurl = '{}'\n{access}labels = {{ cluster = 'here' }}\n", server.url("/api/v1/write"));
    std::fs::write(product.path("password"), PASSWORD).expect("it is writable");
    std::fs::write(&config, &sent).expect("it is writable");
    product.option("--config", config.to_str().expect("text"));
    product.change("--agent-every", "1");
    product.start();
    let id = train(&product, "checkpoints");
    let here = wait_for("the store to have the losses", || {
        curve(&product, &id, &["--points", "1000"]).filter(|points| points.len() == 300)
    });
    let here: Vec<Point> = here.iter().map(point).collect();
    // Of several steps within a millisecond the first is sent.
    let sent_points = here.iter().map(|(at, _, _)| at).collect::<BTreeSet<_>>().len();
    let count = format!("count_over_time(gangline_rank_loss{{job_id=\"{id}\",rank=\"0\"}}[1h])");
    wait_for("the server to have the losses", || {
        let there: usize = server.ask(&count)?.first()?["value"][1].as_str()?.parse().ok()?;
        (there == sent_points).then_some(())
    });
    let of_node = "count_over_time(gangline_host_memory_bytes{node=\"a\",cluster=\"here\"}[1h])";
    wait_for("two readings of a node's memory", || {
        let there: f64 = server.ask(of_node)?.first()?["value"][1].as_str()?.parse().ok()?;
        (there >= 2.0).then_some(())
    });

    // A store without anything, and a server that has it.
    product.kill_control_plane();
    std::fs::remove_dir_all(product.data().join("series")).expect("the store's folder");
    let read = format!("{sent}[remote_read]\nurl = '{}'\n{access}", server.url(""));
    std::fs::write(&config, read).expect("it is writable");
    std::fs::write(product.data().join("alerts.toml"), RULE).expect("it is writable");
    product.change("--agent-every", "0");
    product.start();
    assert_eq!(own(&product, "gangline_remote_read_failing"), Some(0.0));
    let there = curve(&product, &id, &["--points", "1000"]).expect("the server has it");
    let there: Vec<Point> = there.iter().map(point).collect();
    // VictoriaMetrics keeps 12 digits.
    let is_same = |one: &Point, other: &Point| one.0 == other.0 && one.1 == other.1 && (one.2 - other.2).abs() < 1e-9;
    let is_here = |one: &Point| here.iter().any(|other| is_same(one, other));
    assert!(there.len() == sent_points && there.iter().all(is_here), "{here:?}\n{there:?}");
    let few = curve(&product, &id, &["--points", "20"]).expect("the server sums it up");
    let losses = || there.iter().map(|(_, _, loss)| *loss);
    let (least, most) = (losses().fold(f64::MAX, f64::min), losses().fold(f64::MIN, f64::max));
    let expected = (there.len() as u64, least, most, there[0].1, there[there.len() - 1].1);
    assert_eq!(sums(&few), expected, "{few:?}");
    assert!((2..=20).contains(&few.len()), "{} points", few.len());
    let some = curve(&product, &id, &["--points", "1000", "--from-step", "100", "--to-step", "199"]).expect("steps");
    let wanted: Vec<u64> = there.iter().map(|(_, step, _)| *step).filter(|step| (100..200).contains(step)).collect();
    assert_eq!(some.iter().map(|one| point(one).1).collect::<Vec<u64>>(), wanted);
    let of_node = product.json(&["series", "--node", "a", "--metric", "host.memory_bytes"]);
    assert!(of_node["curves"][0]["points"].as_array().is_some_and(|points| points.len() >= 2), "{of_node}");
    await_alert(&product);

    // While the server is away, the store has what came since the start.
    server.kill();
    let id = train(&product, "more");
    assert!(curve(&product, &id, &["--points", "1000"]).is_some_and(|points| points.len() > 100));
    assert_eq!(own(&product, "gangline_remote_read_failing"), Some(1.0));
    server.start_again().expect("it starts");
    wait_for("the server to be asked again", || {
        let _ = curve(&product, &id, &[]);
        (own(&product, "gangline_remote_read_failing")? < 1.0).then_some(())
    });
}

#[test]
fn prometheus_answers_for_a_store_that_is_gone_and_the_store_for_prometheus() {
    check(MetricsServer::prometheus);
}

#[test]
fn victoria_metrics_answers_for_a_store_that_is_gone_and_the_store_for_it() {
    check(MetricsServer::victoria_metrics);
}
