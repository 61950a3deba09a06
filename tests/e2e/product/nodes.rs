//! What is wrong with a node itself: found by its supervisors' checks, and told by its kernel's log.

use std::path::{Path, PathBuf};

use crate::fixtures::product::Product;
use crate::fixtures::{try_for, wait_for};

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

/// A memory cgroup of either version, which the kernel kills processes in.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// None, having said so, where none can be made.
    #[expect(clippy::print_stdout, reason = "a test that is skipped says so (A-12)")]
    fn new(limit: u64) -> Option<MemoryGroup> {
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let made = versions.into_iter().find_map(|(root, file)| {
            let group = MemoryGroup(Path::new(root).join(format!("gangline-test-{}", std::process::id())));
            // Where memory is another version's business, a folder has no such file.
            let is_made = Path::new(root).join("cgroup.procs").exists() && std::fs::create_dir(&group.0).is_ok();
            let limited = is_made && group.0.join(file).exists() && group.set(file, &limit.to_string());
            limited.then_some(group)
        });
        if made.is_none() {
            println!("skipped: no memory cgroup can be made here (root and a writable /sys/fs/cgroup are needed)");
        }
        made
    }

    fn set(&self, file: &str, value: &str) -> bool {
        std::fs::write(self.0.join(file), value).is_ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its last processes may still be ending; one that was never made is not there.
        try_for(|| (std::fs::remove_dir(&self.0).is_ok() || !self.0.exists()).then_some(()));
    }
}

/// In a container, nobody can read the kernel's log.
#[test]
fn a_rank_that_its_cgroup_killed_for_memory_is_told_as_that_without_the_kernels_log() {
    let Some(group) = MemoryGroup::new(400 << 20) else { return };
    let mut product = Product::down(&["a=cpu:1"]);
    product.variable("GANGLINE_KERNEL_LOG", "/nowhere");
    let procs = group.0.join("cgroup.procs");
    let enter = format!("echo $$ > {} && exec \"$@\"", procs.display());
    product.started_by(&["sh", "-c", &enter, "sh"]);
    product.start();
    // What has no line's end grows in memory.
    let run = "exec tail /dev/zero";
    let id = product.submit(&format!("name: grows\nrecovery: {{max_faults: 0}}\nrun: {run}\n"));
    let job = wait_for("the rank to be killed", || {
        let job = product.job(&id);
        job["attempts"][0]["fault"].is_object().then_some(job)
    });
    let diagnosis = &job["attempts"][0]["fault"]["diagnosis"];
    assert_eq!(diagnosis["category"], "host_oom", "{job:#}");
    assert!(diagnosis["evidence"][0].as_str().is_some_and(|text| text.contains("oom_kill")), "{job:#}");
}
