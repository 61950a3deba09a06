//! What a real Slurm does with a gang's allocation: it comes late, is suspended, or first powers its node up.

use std::thread::sleep;
use std::time::Duration;

use crate::fixtures::product::attempts;
use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::wait_for;

/// What an administrator suspends stands still without a fault, says so, and goes on.
#[test]
fn a_gang_that_slurm_suspends_is_shown_and_goes_on() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(1);
    let go = on.product.path("go");
    let run = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let id = on.product.submit(&format!("name: one\nresources: {{accelerators: \"H100:1\"}}\nrun: {run}\n"));
    on.product.wait_state(&id, "running");
    let slurm_job = on.jobs("RUNNING").remove(0);
    let slurm_job = slurm_job.split(' ').next().expect("an id");
    on.slurm("scontrol", &["suspend", slurm_job]);
    let says = |words: &str| on.product.run(&["show", &id]).stdout.contains(words).then_some(());
    wait_for("the suspension to be shown", || says("Slurm has suspended its job"));
    // Longer than a supervisor may be silent.
    sleep(Duration::from_secs(3));
    on.slurm("scontrol", &["resume", slurm_job]);
    wait_for("the resumption to be shown", || says("Slurm has resumed its job"));
    std::fs::write(&go, "").expect("a file");
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}

/// A node that Slurm has powered down to save power is there for gangs: Slurm powers it up for the first one.
#[test]
fn a_node_that_slurm_has_powered_down_is_woken_for_a_gang() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    let (asleep, woken) = (on.product.path("asleep"), on.product.path("woken"));
    let script = |name: &str, file: &std::path::Path| {
        let path = on.product.path(name);
        std::fs::write(&path, format!("#!/bin/sh\ntouch {}\n", file.display())).expect("it is writable");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
        path.display().to_string()
    };
    let power = format!(
        "SuspendProgram={}\nResumeProgram={}\nSuspendTime=600\nSuspendTimeout=1\nResumeTimeout=60\n",
        script("suspend", &asleep),
        script("resume", &woken)
    );
    let conf = std::fs::read_to_string(on.slurm.conf()).expect("a configuration");
    std::fs::write(on.slurm.conf(), conf + &power).expect("it is writable");
    on.slurm("scontrol", &["reconfigure"]);
    on.product.start();
    on.wait_node("n1", "ready");
    on.slurm("scontrol", &["update", "nodename=n1", "state=power_down"]);
    wait_for("the node to be powered down", || asleep.exists().then_some(()));
    on.slurm.kill_node(1);
    wait_for("Slurm to know", || (on.slurm("sinfo", &["--noheader", "--format=%t"]) == "idle~").then_some(()));
    // A control plane that starts now sees nothing of the node but that.
    on.product.kill_control_plane();
    on.product.start();
    on.wait_node("n1", "ready");
    let id = on.product.submit("name: wakes\nresources: {accelerators: \"H100:1\"}\nrun: exit 0\n");
    wait_for("the node to be powered up", || woken.exists().then_some(()));
    // The machine takes a while to boot, which is no fault of anybody.
    sleep(Duration::from_secs(3));
    assert_eq!(attempts(&on.product.job(&id)), 1);
    on.slurm.boot_node(1).expect("it starts");
    let job = on.product.wait_state(&id, "succeeded");
    assert_eq!((attempts(&job), job["faults"].as_u64()), (1, Some(0)), "{job:#}");
}

/// A gang that waits in Slurm's queue holds nothing, so it costs nothing: what is booked is what Slurm says it allocated.
#[test]
fn what_is_booked_is_what_slurm_allocated() {
    if !is_possible() {
        return;
    }
    let mut on = OnSlurm::down(1);
    let config = on.product.path("gangline.toml");
    std::fs::write(&config, "[launcher]\nkind = 'slurm'\npending_seconds_max = 120\n").expect("it is writable");
    on.product.option("--config", config.to_str().expect("text"));
    on.product.start();
    on.wait_node("n1", "ready");
    on.slurm("scontrol", &["update", "partitionname=main", "state=down"]);
    let id = on.product.submit("name: one\nresources: {accelerators: \"H100:2\"}\nrun: sleep 4\n");
    wait_for("the wait to be shown", || {
        let shown = on.product.run(&["show", &id]).stdout;
        shown.contains("waits in Slurm's queue, and holds no slots meanwhile").then_some(())
    });
    // The wait has to differ from the few seconds by which Slurm's whole seconds and ours may.
    sleep(Duration::from_secs(8));
    on.slurm("scontrol", &["update", "partitionname=main", "state=up"]);
    let job = on.product.wait_state(&id, "succeeded");
    wait_for("Slurm to be done with it", || on.jobs("RUNNING,COMPLETING,PENDING").is_empty().then_some(()));
    let ran = on.slurm("squeue", &["--noheader", "--states=all", "--format=%M"]);
    let (minutes, seconds) = ran.split_once(':').expect("MINUTES:SECONDS");
    let ran = minutes.parse::<f64>().expect("a number") * 60.0 + seconds.parse::<f64>().expect("a number");
    let booked = job["usage"]["gpu_seconds"].as_f64().expect("a number") / 2.0;
    assert!(booked >= 4.0 && (booked - ran).abs() <= 2.0, "{booked} s booked of each slot, {ran} s by Slurm: {job:#}");
    let shown = on.product.run(&["show", &id]).stdout;
    assert!(shown.contains("allocated by Slurm: from "), "{shown}");
}
