//! Costs over HTTP.

use serde_json::json;

use crate::plane::Plane;

#[test]
fn a_bill_has_groups_and_lines_and_a_request_that_is_none_is_refused() {
    let plane = Plane::start();
    let job = plane.submit("a", 1);
    let report = plane.get("/cost/report?from=2020-01-01T00:00:00Z&by=job").json();
    let names: Vec<&str> =
        report["groups"].as_array().expect("groups").iter().filter_map(|group| group["name"].as_str()).collect();
    assert!(names.contains(&"(idle)") && names.contains(&job.as_str()), "{report:#}");
    assert_eq!((&report["by"], &report["idle"], &report["estimated_jobs"]), (&json!("job"), &json!("own"), &json!(1)));
    assert_eq!(report["beyond_capacity_seconds"], "0.000000000");
    let shared = plane.get("/cost/report?from=2020-01-01T00:00:00Z&by=user&idle=shared").json();
    assert_eq!(shared["groups"].as_array().map(Vec::len), Some(1), "whoever held a device has what was idle too");

    for (query, said) in [
        ("from=2020-01-01T00:00:00Z&by=zebra", "write one of queue, user, job, name, node, accelerator"),
        ("from=2020-01-01T00:00:00Z&by=node&idle=shared", "idle devices of a node are in its own group"),
        ("from=2020-01-01T00:00:00Z&idle=theirs", "write own or shared"),
        ("from=2020-01-01T00:00:00Z&to=2019-01-01T00:00:00Z", "it has to start before it ends"),
        ("from=yesterday", "from"),
        ("since=2020-01-01T00:00:00Z", "since"),
    ] {
        let refused = plane.get(&format!("/cost/report?{query}"));
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
        assert!(refused.json()["error"]["message"].to_string().contains(said), "{query}: {refused:?}");
    }
    let long = plane.get("/cost/usage?from=2020-01-01T00:00:00Z");
    assert!(long.status == 400 && long.json()["error"]["message"].to_string().contains("31 days"), "{long:?}");
}

#[test]
fn a_jobs_cost_its_rows_and_its_estimate_are_there() {
    let plane = Plane::start();
    let job = plane.submit("a", 1);
    let cost = plane.get(&format!("/cost/jobs/{job}")).json();
    assert_eq!((&cost["job"], &cost["name"], &cost["user"]), (&json!(job), &json!("a"), &json!("ada")));
    assert_eq!(plane.get("/cost/jobs/job-99").status, 404);
    let today = plane.get("/cost/usage?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z").json();
    assert_eq!(today["rows"], json!([]), "nothing was there in January");
    assert!(plane.get("/cost/demand?from=2020-01-01T00:00:00Z").json()["kinds"].as_array().is_some());
    let file = json!({"job_file": "name: b\nrun: train\nresources: {accelerators: \"cpu:2\"}\ntime_limit: 2h\n", "directory": "/"});
    let estimate = plane.post("/cost/estimate", &file).json();
    assert_eq!((&estimate["devices"], &estimate["time_limit_seconds"]), (&json!(2), &json!(7_200)), "{estimate}");
    let refused = plane.post("/cost/estimate", &json!({"job_file": "name: b\nrnu: train\n", "directory": "/"}));
    assert_eq!(refused.refusal(), (400, "G0100".to_owned()));
    assert_eq!(plane.get("/jobs").json()["jobs"].as_array().map(Vec::len), Some(1), "an estimate submits nothing");
}

#[test]
fn a_forecast_is_what_was_spent_and_what_is_spent_lately() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let forecast = plane.get("/cost/forecast?by=user").json();
    let number = |value: &serde_json::Value| value.as_i64().expect("a number");
    let groups = forecast["groups"].as_array().expect("groups");
    assert!(groups.iter().any(|group| group["name"] == "ada"), "{forecast:#}");
    for group in groups.iter().chain([&forecast["total"]]) {
        for at_end in ["at_end_by_day_nano_dollars", "at_end_by_week_nano_dollars"] {
            assert!(number(&group[at_end]) >= number(&group["spent_nano_dollars"]), "{group:#}");
        }
    }
    let text = |name: &str| forecast[name].as_str().expect("a time").to_owned();
    assert!(
        text("from").ends_with("-01T00:00:00Z") && text("until").ends_with("-01T00:00:00Z"),
        "this month: {forecast:#}"
    );
    for (query, said) in [
        ("until=2020-01-01T00:00:00Z", "one that is to come"),
        ("from=2200-01-01T00:00:00Z&until=2200-02-01T00:00:00Z", "from a time that has passed"),
        ("by=zebra", "write one of queue, user"),
        ("to=2200-01-01T00:00:00Z", "to"),
    ] {
        let refused = plane.get(&format!("/cost/forecast?{query}"));
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
        assert!(refused.json()["error"]["message"].to_string().contains(said), "{query}: {refused:?}");
    }
}

#[test]
fn budgets_say_how_far_they_are_spent() {
    let plane = Plane::start();
    plane.submit("a", 1);
    let list = plane.get("/cost/budgets").json();
    let [all, adas] = list["budgets"].as_array().map(Vec::as_slice).expect("a list") else { panic!("two: {list:#}") };
    assert_eq!((&all["of"], &all["per"], &adas["of"]), (&json!("everything"), &json!("month"), &json!("user ada")));
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for budget in [all, adas] {
        assert!(number(&budget["forecast_share"]) >= number(&budget["spent_share"]), "{budget:#}");
        let spent = number(&budget["spent_nano_dollars"]) / number(&budget["limit_nano_dollars"]);
        assert!((spent - number(&budget["spent_share"])).abs() < 1e-9, "{budget:#}");
    }
    assert!(number(&all["spent_nano_dollars"]) >= number(&adas["spent_nano_dollars"]), "idle devices count too");
}
