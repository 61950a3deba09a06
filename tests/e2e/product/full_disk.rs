//! A disk that fills up below a job's checkpoints: the node's agent sees it, the job fails by it, and both are told.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::disk::SmallDisk;
use super::telemetry::{Alertmanager, webhook};
use crate::fixtures::product::{Product, training};
use crate::fixtures::{PATIENCE, wait_for};

/// Checks that the time of a job is all there by Google's names.
fn goodput_adds_up(product: &Product, id: &str) {
    let goodput = product.json(&["goodput", id]);
    let number = |value: &Value| value.as_f64().expect("a number");
    let (runtime, ettr) = (number(&goodput["runtime_goodput"]), number(&goodput["ettr"]));
    assert!(0.0 < ettr && ettr <= runtime && runtime < 1.0 && goodput["disruptions"] == 1, "{goodput:#}");
    let exported = product.json(&["goodput", id, "--ml-goodput"]);
    let badput: f64 = exported["badput_time"].as_object().expect("times").values().filter_map(Value::as_f64).sum();
    let elapsed = number(&exported["total_elapsed_time"]);
    assert!((number(&exported["goodput_time"]["TOTAL"]) + badput - elapsed).abs() < 1e-6, "{exported:#}");
}

/// Fills up what is free. A job that removes an old checkpoint makes room again.
fn fill(disk: &SmallDisk) {
    let filler = format!("of={}", disk.path.join("filler").display());
    // It ends by the full disk.
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=4096", "oflag=append", "conv=notrunc", &filler]).output();
}

#[test]
fn a_disk_that_fills_up_below_the_checkpoints_is_why_the_job_fails_and_both_are_told() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(disk) = SmallDisk::mount_image(&product.path("image"), &product.path("disk")) else {
        println!("skipped: a full disk below a job: mounting an image by a loop device is not permitted here");
        return;
    };
    product.change("--agent-every", "1");
    let (url, bodies) = webhook();
    let alertmanager = Alertmanager::start(&product.path(""));
    let manager =
        alertmanager.as_ref().map(|manager| format!("[[receiver]]\nname='am'\nalertmanager='{}'\n", manager.url));
    let rules = format!(
        "every = '500ms'\n[[receiver]]\nname='hook'\nwebhook='{url}'\n{}\
         [[rule]]\nname='node_disk_nearly_full'\nmetric='host.filesystem_used_ratio'\nabove=0.995\nsummary='{{subject}}: {{parts}}'\n",
        manager.unwrap_or_default()
    );
    std::fs::create_dir_all(product.data()).expect("a folder");
    std::fs::write(product.data().join("alerts.toml"), rules).expect("it is writable");
    product.start();
    let folder = disk.path.join("checkpoints").display().to_string();
    let shape = "recovery: {max_faults: 1}\nresources: {accelerators: \"cpu:1\"}";
    let id = product.submit(&training(shape, "--steps 100000 --checkpoint-every 5 --step-time-min 20", &folder));
    wait_for("a checkpoint", || product.job(&id)["checkpoints"]["last_step"].as_u64());
    wait_for("the job to fail", || {
        fill(&disk);
        (product.job(&id)["state"] == "failed").then_some(())
    });

    let why = product.json(&["why", &id]);
    let fault = &why["fault"];
    assert_eq!(
        (&fault["fault"]["diagnosis"]["subcategory"], &fault["in_a_row"]),
        (&"disk_full".into(), &2.into()),
        "{why:#}"
    );
    let text = product.run(&["why", &id]).stdout;
    assert!(text.starts_with(&format!("{id}: a disk")) && text.contains("No space left on device"), "{text}");
    assert!(text.contains("2 in a row in this way") && text.contains("do: free space"), "{text}");

    goodput_adds_up(&product, &id);
    let (mut failed, mut full): (Option<Value>, Option<Value>) = (None, None);
    let deadline = Instant::now() + PATIENCE;
    while failed.is_none() || full.is_none() {
        let body = bodies.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let (_, body) = body.unwrap_or_else(|_| panic!("not told of both: {failed:?}, {full:?}"));
        for alert in body["alerts"].as_array().expect("a list").iter().filter(|alert| alert["state"] == "firing") {
            match alert["rule"].as_str() {
                Some("job_failed") => failed = Some(alert.clone()),
                Some("node_disk_nearly_full") => full = Some(alert.clone()),
                _ => {}
            }
        }
    }
    let summary = |alert: &Option<Value>| alert.as_ref().and_then(|alert| alert["summary"].as_str().map(str::to_owned));
    // Other disks of this machine may be as full.
    let full = summary(&full).unwrap_or_default();
    assert!(full.starts_with("node a: ") && full.contains(&*disk.path.display().to_string()), "{full}");
    let said = summary(&failed).unwrap_or_default();
    assert!(said.starts_with(&format!("{id} failed: a disk")), "{said}");
    if let Some(manager) = &alertmanager {
        wait_for("Alertmanager to have both", || {
            (manager.has("job_failed", &id) && manager.has("node_disk_nearly_full", "node a")).then_some(())
        });
    }
    let shown = product.run(&["show", &id]).stdout;
    assert!(shown.contains(&format!("warning: {id} failed: a disk")), "{shown}");
}
