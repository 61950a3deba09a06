//! Sweeps and budgets over HTTP.

use serde_json::json;

use crate::plane::Plane;

const FILE: &str = "name: sft\nrun: train\nresources: {accelerators: \"cpu:1\"}\n\
    sweep: {parameters: {LR: [1, 2, 3]}, max_parallel: 1, early_stop: {min_steps: 10}}\n";

#[test]
fn a_sweep_is_submitted_shown_and_cancelled() {
    let plane = Plane::start();
    let dry = plane.submit_text(FILE, true).json();
    assert_eq!(dry["dry_run"]["would_start"]["placements"][0]["node"], "n1");
    let submitted = plane.submit_text(FILE, false).json();
    let sweep = &submitted["sweep_submitted"];
    assert_eq!((&sweep["sweep"], &sweep["jobs"]), (&json!("sweep-1"), &json!(["job-1", "job-2", "job-3"])));
    let shown = plane.get("/sweeps/sweep-1").json();
    assert_eq!((&shown["max_parallel"], &shown["early_stop"]["reduction"]), (&json!(1), &json!(3)));
    assert_eq!(shown["points"][1]["parameters"], json!([{"name": "LR", "value": "2"}]));
    assert_eq!(shown["points"][1]["because"], "1 job(s) of sweep-1 run, and at most 1 may at once (max_parallel)");
    let waits = plane.get("/jobs/job-2/explain").json();
    assert_eq!(waits["blocker"], json!({"is": "parallel", "sweep": "sweep-1", "holding": 1, "max_parallel": 1}));
    assert_eq!(plane.get("/jobs/job-2").json()["sweep"]["id"], "sweep-1");
    let cancelled = plane.post("/sweeps/sweep-1/cancel", &json!({})).json();
    assert_eq!(cancelled["jobs"][2], json!({"job": "job-3", "state": "cancelled"}));
}

#[test]
fn what_is_no_sweep_is_not_found() {
    let plane = Plane::start();
    plane.submit("a", 1);
    for path in
        ["/sweeps/sweep-1", "/sweeps/sweep-7", "/sweeps/job-1", "/sweeps/1", "/sweeps/sweep-18446744073709551615"]
    {
        assert_eq!(plane.get(path).refusal(), (404, "G0302".to_owned()), "{path}");
        assert_eq!(plane.post(&format!("{path}/cancel"), &json!({})).refusal(), (404, "G0302".to_owned()), "{path}");
    }
}

#[test]
fn a_sweep_that_does_not_fit_and_a_budget_without_a_price_are_refused() {
    let plane = Plane::start();
    let large = plane.submit_text(&FILE.replace("cpu:1", "cpu:3"), false);
    assert_eq!(large.refusal(), (422, "G0401".to_owned()));
    let message = large.json()["error"]["message"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(message.contains("\"sft/LR=1\" of a sweep of 3 can't be taken, so none is"), "{message}");
    let unpriced = plane.submit_text("run: x\nbudget: {usd: \"5\"}\n", false);
    assert_eq!(unpriced.refusal(), (422, "G0410".to_owned()));
    assert!(plane.get("/jobs").json()["jobs"].as_array().is_some_and(Vec::is_empty));
}
