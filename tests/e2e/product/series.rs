//! Metrics from the ranks to the command line: all of them, once, and through a killed control plane.

use std::path::Path;

use serde_json::{Value, json};

use crate::fixtures::product::Product;
use crate::fixtures::wait_for;

fn job(product: &Product, shape: &str, envs: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (script, module) = (root.join("fixtures/reporting.py"), root.join("../python/gangline/_report.py"));
    let envs = format!("{{REPORT_MODULE: \"{}\", {envs}}}", module.display());
    product.submit(&format!("name: measures\n{shape}envs: {envs}\nrun: python3 {}\n", script.display()))
}

/// Name, rank, number of finite values and the last value of each metric that a rank reported.
fn metrics(product: &Product, id: &str) -> Vec<Value> {
    let list = product.json(&["series", id]);
    let ours = |metric: &&Value| !metric["metric"].as_str().is_some_and(|name| name.starts_with("gangline."));
    let of = |metric: &Value| {
        json!([metric["metric"], metric["source"]["rank"], metric["values"]["count"], metric["values"]["last"]])
    };
    list["metrics"].as_array().expect("a list").iter().filter(ours).map(of).collect()
}

fn expected(ranks: u32) -> Vec<Value> {
    let of_rank = |rank: u32| {
        let loss = f64::from(rank) + 0.1;
        let lr = 10.0 * 1e-11;
        [("eval/f1", 10, 1.0), ("loss", 9, loss), ("lr", 10, lr), ("tokens", 10, 64.0)]
            .map(|(name, count, last)| json!([name, rank, count, last]))
    };
    (0..ranks).flat_map(of_rank).collect()
}

#[test]
fn every_metric_of_every_rank_is_there_at_the_end() {
    let product = Product::up(&["a=cpu:2"]);
    let id = job(&product, "resources: {accelerators: \"cpu:2\"}\n", "");
    product.wait_state(&id, "succeeded");
    wait_for("all metrics", || (metrics(&product, &id) == expected(2)).then_some(()));
    let curve = product.json(&["series", &id, "--metric", "loss", "--rank", "1", "--from-step", "3", "--to-step", "5"]);
    let points = curve["curves"][0]["points"].as_array().expect("points").clone();
    let last: Vec<Value> = points.iter().map(|point| point["last"].clone()).collect();
    assert_eq!(last, [json!(1.0 + 1.0 / 3.0), json!("NaN"), json!(1.2)]);
    let data = product.json(&["series", &id, "--metric", "gangline.data_seconds", "--points", "1"]);
    assert_eq!(data["curves"][0]["points"][0]["count"], 9, "of each step after the first: {data}");
    let text = product.run(&["series", &id]);
    assert!(
        text.code == 0 && text.stdout.contains("eval/f1") && text.stderr.is_empty(),
        "{}{}",
        text.stdout,
        text.stderr
    );
    assert_eq!(product.run(&["series", "job-9"]).code, 3);
    let shown = product.job(&id)["metrics"].clone();
    let f1 = shown.as_array().expect("a list").iter().find(|value| value["metric"] == "eval/f1").cloned();
    let f1 = f1.unwrap_or_else(|| panic!("the last value: {shown:#}"));
    assert_eq!((&f1["rank"], &f1["last"], &f1["step"]), (&json!(0), &json!(1.0), &json!(10)), "{shown:#}");
    let report = product.run(&["show", &id]).stdout;
    assert!(report.contains("  metrics      eval/f1 1, lr 1.0000e-10 (measured, at last)\n"), "{report}");
}

/// Ten thousand names cost the names beyond the limit, which is said, and nothing else.
#[test]
fn a_flood_of_names_is_bounded_and_said() {
    let product = Product::up(&["a=cpu:1"]);
    let id = job(&product, "", "FLOOD: \"10000\"");
    product.wait_state(&id, "succeeded");
    let text = wait_for("the end of the flood", || {
        let ran = product.run(&["series", &id]);
        ran.stderr.contains("values were refused").then_some(ran)
    });
    let listed = text.stdout.lines().filter(|line| line.starts_with("flood-")).count();
    assert!((400..512).contains(&listed), "{listed} names");
    assert_eq!(metrics(&product, &id).iter().filter(|metric| metric[0] == "loss").count(), 1);
}

/// Proves A-13 for metrics: what was measured while the control plane was dead arrives once it is back, and what it had isn't lost.
#[test]
fn a_killed_control_plane_costs_no_metric() {
    let mut product = Product::up(&["a=cpu:2"]);
    let go = product.path("go");
    let waits = format!("GO: \"{}\"", go.display());
    let first = job(&product, "", &waits);
    wait_for("the first job's metrics", || (metrics(&product, &first) == expected(1)).then_some(()));
    product.kill_control_plane();
    std::fs::write(&go, "").expect("the folder is writable");
    wait_for("the late metric to be reported", || product.path("go.said").exists().then_some(()));
    product.start();
    let second = job(&product, "", "");
    for id in [&first, &second] {
        product.wait_state(id, "succeeded");
    }
    wait_for("all metrics", || (metrics(&product, &second) == expected(1)).then_some(()));
    let with_late = [&expected(1)[..1], &[json!(["late", 0, 1, 11.0])], &expected(1)[1..]].concat();
    wait_for("the late metric", || (metrics(&product, &first) == with_late).then_some(()));
}
