//! Agents: their readings become the node's metrics, what they find its history and the engine's suspicion.

use gangline_base::NodeName;
use serde_json::{Value, json};

use crate::plane::{Answer, Plane};

const SECOND: u64 = 1_000_000_000;

fn token(plane: &Plane, node: &str) -> String {
    plane.secrets.agent_token(&NodeName::new(node).expect("a name"))
}

/// Two rows of the node and one of its device 1, from `first` on.
fn report(first: u64, findings: &Value) -> Value {
    let row = |number: u64, value: f64| json!({"at": 1_800_000_000 * SECOND + number * SECOND, "step": null, "values": [[0, value]]});
    let node = json!({"device": null, "first": first, "names": ["host.cpu_busy_ratio"],
        "rows": [row(first, 0.5), row(first + 1, 0.7)]});
    let gpu = json!({"device": 1, "first": first, "names": ["gpu.sm_active_ratio"], "rows": [row(first, 0.9)]});
    json!({"version": 1, "node": "n1", "started_at": 1_799_999_000 * SECOND, "every_ms": 1000, "batches": [node, gpu],
        "findings": findings, "hung": ["NVML"]})
}

fn post(plane: &Plane, node: &str, token: &str, report: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), ("gangline-node", node)];
    plane.send("POST", "/api/v1/agents/report", &headers, report.to_string().as_bytes())
}

fn get(plane: &Plane, path: &str) -> Value {
    let answer = plane.get(path);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Dashboards for NVIDIA's exporter find its names, and whose GPU it is.
#[test]
fn readings_of_gpus_have_the_names_of_dcgms_exporter_too() {
    let plane = Plane::start();
    let bearer = plane.bearer();
    let scrape = || plane.send("GET", "/metrics/dcgm", &[("authorization", &bearer)], b"");
    assert_eq!((scrape().status, scrape().text.as_str()), (200, ""));
    let at = crate::plane::now().unix_nanos() - SECOND;
    let rows = |value: f64| json!([{"at": at, "step": null, "values": [[0, value], [1, 7.0]]}]);
    let batch = |device: u32, value: f64| {
        let names = ["gpu.utilization_ratio", "gpu.ecc_uncorrected_total"];
        json!({"device": device, "first": 0, "names": names, "rows": rows(value)})
    };
    let report = json!({"version": 1, "node": "n1", "started_at": 1, "every_ms": 1000, "hung": [], "findings": null,
        "batches": [batch(0, 0.25), batch(1, 0.5)]});
    assert_eq!(post(&plane, "n1", &token(&plane, "n1"), &report).status, 200);
    let job = plane.submit("a", 1);
    plane.launched();
    let text = scrape().text;
    let of = |device: u32, rest: &str| {
        format!("{{gpu=\"{device}\",device=\"nvidia{device}\",modelName=\"cpu\",Hostname=\"n1\"{rest}}}")
    };
    let held = format!(",hpc_job=\"{job}\"");
    for line in [
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge".to_owned(),
        format!("DCGM_FI_DEV_GPU_UTIL{} 25", of(0, &held)),
        format!("DCGM_FI_DEV_GPU_UTIL{} 50", of(1, "")),
        "# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter".to_owned(),
        format!("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{} 7", of(1, "")),
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
    }
    assert_eq!(plane.send("GET", "/metrics/dcgm", &[], b"").refusal(), (401, "G0301".to_owned()));
}

#[test]
fn readings_and_faults_of_a_node_are_there_after_a_restart_too() {
    let mut plane = Plane::start();
    let fault = json!([{"place": "gpu gpu 1", "measured": "a row couldn't be remapped", "is_fault": true},
        {"place": "memory", "measured": "little is free", "is_fault": false}]);
    let answer = post(&plane, "n1", &token(&plane, "n1"), &report(10, &json!(null)));
    assert_eq!(answer.json()["stored"], json!([12, 11]), "{answer:?}");
    for _ in 0..2 {
        // The second time it is a repetition, after a restart.
        assert_eq!(post(&plane, "n1", &token(&plane, "n1"), &report(12, &fault)).status, 200);
        let detail = get(&plane, "/nodes/n1");
        assert_eq!(detail["node"]["name"], "n1");
        assert_eq!((&detail["agent"]["every_seconds"], &detail["agent"]["hung"]), (&json!(1.0), &json!(["NVML"])));
        let kinds: Vec<&str> =
            detail["history"].as_array().expect("a list").iter().filter_map(|e| e["kind"].as_str()).collect();
        assert_eq!(kinds, ["warning", "fault", "agent"], "{detail:#}");
        assert_eq!(detail["problems"].as_array().map(Vec::len), Some(2));
        let metrics = get(&plane, "/nodes/n1/metrics");
        let of = |metric: &Value| {
            (metric["metric"].clone(), metric["source"]["device"].clone(), metric["values"]["last"].clone())
        };
        let found: Vec<_> = metrics["metrics"].as_array().expect("a list").iter().map(of).collect();
        let expected = [("host.cpu_busy_ratio", json!(null), 0.7), ("gpu.sm_active_ratio", json!(1), 0.9)];
        assert_eq!(found, expected.map(|(name, device, last)| (json!(name), device, json!(last))));
        let curves = get(&plane, "/nodes/n1/metrics/curves?metric=host.cpu_busy_ratio&from=2027-01-15T08:00:11Z");
        assert_eq!(curves["curves"][0]["points"].as_array().map(Vec::len), Some(3), "{curves}");
        plane = plane.restart();
    }
    post(&plane, "n1", &token(&plane, "n1"), &report(14, &json!([])));
    plane.post("/nodes/n1/drain", &json!({}));
    let detail = get(&plane, "/nodes/n1");
    assert_eq!(detail["problems"], json!([]));
    assert_eq!((&detail["history"][0]["kind"], &detail["history"][1]["kind"]), (&json!("drained"), &json!("over")));
}

#[test]
fn an_agent_speaks_for_its_own_node_only_and_sense_is_asked_of_it() {
    let plane = Plane::start();
    let fine = report(0, &json!(null));
    let own = token(&plane, "n1");
    for (node, token) in [("n1", ""), ("n1", "zz"), ("n2", own.as_str()), ("", own.as_str())] {
        assert_eq!(post(&plane, node, token, &fine).status, 401, "{node} {token}");
    }
    assert_eq!(post(&plane, "n2", &token(&plane, "n2"), &fine).status, 401, "it reports of n1");
    let with = |key: &str, value: Value| {
        let mut report = fine.clone();
        report[key] = value;
        report
    };
    let other = with("node", json!("n2"));
    assert_eq!(post(&plane, "n2", &token(&plane, "n2"), &other).refusal(), (404, "G0304".to_owned()));
    let many = json!(vec![json!({"place": "x", "measured": "y", "is_fault": true}); 33]);
    for bad in [with("version", json!(9)), with("findings", many), with("batches", json!("x")), json!([])] {
        let status = post(&plane, "n1", &own, &bad).status;
        assert!((400..500).contains(&status), "{status}: {bad}");
    }
    let device = json!([{"device": 5_000, "first": 0, "names": [], "rows": []}]);
    assert_eq!(post(&plane, "n1", &own, &with("batches", device)).status, 400);
    let users = format!("Bearer {own}");
    assert_eq!(plane.send("GET", "/api/v1/nodes", &[("authorization", &users)], b"").status, 401, "it is no user");
    for path in ["/nodes/n9", "/nodes/n9/metrics", "/nodes/n9/metrics/curves"] {
        assert_eq!(plane.get(path).status, 404, "{path}");
    }
}
