//! What is old goes by itself, and whoever asks for it is told when and why.

use crate::fixtures::product::Product;
use crate::fixtures::wait_for;

/// Ages that a test can wait for.
const SHORT: &str = "[retention]\nlogs = '4s'\nfailed_logs = '4s'\nolder_attempts = '4s'\njobs = '10s'\n\
                     lost = '4s'\nevery = '1s'\n";

#[test]
fn logs_and_records_of_jobs_that_ended_go_and_the_rest_stays() {
    let mut product = Product::down(&["a=cpu:2"]);
    let config = product.job_file("gangline.toml", SHORT);
    product.option("--config", &config);
    product.start();
    let kept = product.path("kept");
    std::fs::write(&kept, "kept").expect("a file");
    let job = product.submit(&format!(
        "name: links\nqueue: research\nresources: {{accelerators: \"cpu:1\"}}\n\
         run: echo here; ln -s {} \"$(dirname \"$GANGLINE_SOCKET\")/link\" || true; mkdir -p \"$GANGLINE_CHECKPOINT_DIR\"; \
         echo weights > \"$GANGLINE_CHECKPOINT_DIR/weights\"\n",
        product.path("").display()
    ));
    let running = product.submit(
        "name: runs\nqueue: research\nresources: {accelerators: \"cpu:1\"}\nrun: echo still here; exec sleep 600\n",
    );
    product.wait_state(&job, "succeeded");
    assert!(product.run(&["logs", &job]).stdout.contains("here"), "its logs are there at first");
    let gone = wait_for("the logs to go", || Some(product.run(&["logs", &job])).filter(|ran| ran.code != 0));
    assert_eq!(gone.code, 3, "{}", gone.stderr);
    for part in ["G0318", &format!("the logs of attempt 1 of {job} were removed at "), "retention.logs is 4s"] {
        assert!(gone.stderr.contains(part), "{part:?} isn't in {}", gone.stderr);
    }
    let folder = product.data().join("jobs").join(&job);
    wait_for("its folder to go", || (!folder.exists()).then_some(()));
    let shown = product.run(&["explain", &job]).stdout;
    assert!(shown.contains("were removed because retention.logs is 4s"), "{shown}");
    assert!(product.data().join("checkpoints").join(&job).join("weights").exists(), "checkpoints stay");
    assert!(kept.exists(), "nothing beyond a link is touched");
    assert!(product.run(&["logs", &running]).stdout.contains("still here"), "a live job's logs stay");
    // Killed at any point, the next start goes on.
    product.kill_control_plane();
    product.start();
    let gone = wait_for("the record to go", || Some(product.run(&["show", &job])).filter(|ran| ran.code != 0));
    assert_eq!(gone.code, 3, "{}", gone.stderr);
    assert!(gone.stderr.contains(&format!("{job} ended long ago, and its record was removed")), "{}", gone.stderr);
    assert!(product.run(&["logs", &running]).stdout.contains("still here"), "a live job's logs stay");
    let listed = product.json(&["ps"]);
    assert_eq!(listed["jobs"].as_array().map(Vec::len), Some(1), "{listed:#}");
    let log = std::fs::read_to_string(product.path("up.log")).expect("a log");
    assert!(log.contains("removed what was old"), "{log}");
    assert!(!log.contains("can't be removed"), "{log}");
    product.run(&["cancel", &running]);
}

#[test]
fn what_is_due_is_shown_before_it_goes_and_showing_it_changes_nothing() {
    let mut product = Product::down(&["a=cpu:1"]);
    let own = product.job_file("own.toml", "[retention]\nevery = '1s'\n");
    let short = product.job_file("short.toml", SHORT);
    product.option("--config", &own);
    product.start();
    let text = "name: hello\nqueue: research\nresources: {accelerators: \"cpu:1\"}\nrun: echo hello\n";
    let job = product.submit(text);
    product.wait_state(&job, "succeeded");
    let due = wait_for("logs to be due", || {
        let shown = product.json(&["retention", "--config", &short]);
        shown["due"].as_array().filter(|due| !due.is_empty()).cloned()
    });
    assert_eq!((due[0]["rule"].as_str(), due[0]["jobs"].as_u64()), (Some("logs"), Some(1)), "{due:?}");
    assert!(due[0]["bytes"].as_u64() > Some(0), "{due:?}");
    let shown = product.run(&["retention", "--config", &own]).stdout;
    assert!(shown.ends_with("the next pass removes:\n  nothing\n"), "a month is kept: {shown}");
    assert!(product.run(&["logs", &job]).stdout.contains("hello"));
}
