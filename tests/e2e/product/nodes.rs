//! What is wrong with a node itself: found by its supervisors' checks, and told by its kernel's log.

use std::path::Path;

use crate::fixtures::product::Product;
use crate::fixtures::wait_for;

/// Four nodes, of which one may be suspect, and a kernel's log of their own.
fn up() -> Product {
    let mut product = Product::down(&["a=cpu:1", "b=cpu:1", "c=cpu:1", "d=cpu:1"]);
    let log = product.path("kmsg").to_str().expect("text").to_owned();
    std::fs::write(&log, "").expect("the folder is writable");
    product.variable("GANGLINE_KERNEL_LOG", &log);
    let config = product.path("gangline.toml");
    std::fs::write(&config, "[suspicion]\n").expect("the folder is writable");
    product.option("--config", config.to_str().expect("text"));
    product.start();
    product
}

/// A shell command that logs as the kernel does, now.
fn logs(log: &Path, text: &str) -> String {
    let now = "$(cut -d ' ' -f 1 /proc/uptime | tr -d .)0000";
    format!("echo \"3,1,{now},-;{text}\" >> {}", log.display())
}

fn status(product: &Product, name: &str) -> (String, String) {
    let nodes = product.json(&["nodes"]);
    let node = nodes["nodes"].as_array().expect("nodes").iter().find(|node| node["name"] == name).expect("it is there");
    let text = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("status_reason"))
}

#[test]
fn a_gpu_that_falls_off_the_bus_is_the_nodes_fault_and_the_job_goes_on_elsewhere() {
    let product = up();
    let falls = logs(&product.path("kmsg"), "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
    let run = format!("if [ $GANGLINE_ATTEMPT = 1 ]; then {falls}; exit 1; fi; echo went on");
    let id = product.submit(&format!("name: falls\nresources: {{accelerators: \"cpu:1\"}}\nrun: |\n  {run}\n"));
    let job = product.wait_state(&id, "succeeded");
    let (first, second) = (&job["attempts"][0], &job["attempts"][1]);
    assert_eq!(first["fault"]["diagnosis"]["category"], "hardware", "{job:#}");
    assert_eq!(first["fault"]["diagnosis"]["subcategory"], "xid79");
    assert_ne!(first["shares"][0]["node"], second["shares"][0]["node"], "{job:#}");
    let node = first["fault"]["node"].as_str().expect("a node");
    assert_eq!(status(&product, node).0, "suspect");
}

#[test]
fn a_check_that_finds_a_fault_makes_the_node_suspect_and_leaves_its_job_alone() {
    let product = up();
    let fails = logs(&product.path("kmsg"), "blk_update_request: I/O error, dev nvme0n1, sector 7");
    let done = product.path("done");
    let id = product.submit(&format!(
        "name: calm\nresources: {{accelerators: \"cpu:1\"}}\nrun: |\n  {fails}; until [ -e {} ]; do sleep 0.1; done\n",
        done.display()
    ));
    let node = wait_for("a node", || {
        let job = product.job(&id);
        job["attempts"][0]["shares"][0]["node"].as_str().map(str::to_owned)
    });
    let reason = wait_for("the node to be suspect", || {
        let (status, reason) = status(&product, &node);
        (status == "suspect").then_some(reason)
    });
    assert!(reason.contains("kernel-log I/O errors: 1 line(s)") && reason.contains("nvme0n1"), "{reason}");
    std::fs::write(done, "").expect("the folder is writable");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
}
