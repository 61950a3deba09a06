//! Jobs that are held, changed, chained and resumed, by the command line.

use super::training;
use crate::fixtures::product::{Product, assert_booked_exactly, attempts};

#[test]
fn a_held_job_waits_until_it_is_released() {
    let product = Product::up(&["a=cpu:1"]);
    let first = product.submit("name: first\nrun: exec sleep 60\n");
    let second = product.submit("name: second\nrun: exit 0\n");
    assert_eq!(product.run(&["hold", &second]).stdout, format!("{second}: held\n"));
    let changed = product.run(&["set", &second, "priority=high", "time_limit=1h"]);
    assert_eq!(changed.stdout, format!("{second}: priority set to 750, time limit set to 3600 s\n"));
    product.run(&["cancel", &first]);
    product.wait_state(&first, "cancelled");
    let explained = product.run(&["explain", &second]);
    assert!(explained.stdout.contains("a user holds it"), "{}", explained.stdout);
    assert_eq!(product.run(&["release", &second]).code, 0);
    product.wait_state(&second, "succeeded");
    let refused = product.run(&["hold", &second]);
    assert!(refused.code == 1 && refused.stderr.contains("G0303"), "{}", refused.stderr);
    let nonsense = product.run(&["set", &second, "priority"]);
    assert!(nonsense.code == 2 && nonsense.stderr.contains("KEY=VALUE"), "{}", nonsense.stderr);
}

/// The job waits while its code is edited, and runs what it was submitted with; so does the job that resumes it.
#[test]
fn a_waiting_job_runs_the_code_with_which_it_was_submitted() {
    let product = Product::up(&["a=cpu:1"]);
    let code = product.path("code");
    std::fs::create_dir(&code).expect("a folder");
    let write = |text: &str| std::fs::write(code.join("train.sh"), text).expect("a file");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
        let ran = std::process::Command::new("git").current_dir(&code).args(identity).args(arguments).output();
        String::from_utf8(ran.expect("git starts").stdout).expect("text").trim().to_owned()
    };
    write("echo says committed");
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "x"]);
    let commit = git(&["rev-parse", "HEAD"]);
    write("echo says submitted; echo kept >> out; wc -l < out; exit 3");
    let first = product.submit("name: first\nrun: exec sleep 60\n");
    let copied = "run: sh train.sh\nrecovery: {max_faults: 1}\nworkdir: {snapshot: code}\n";
    let copied = product.submit(copied);
    let cloned = product.submit("run: sh train.sh\nworkdir: {git: code, ref: main}\n");
    write("echo says edited");
    let gone = product.job_file("gone.yaml", "run: sh train.sh\nworkdir: {git: code, ref: gone}\n");
    let refused = product.run(&["submit", &gone]);
    assert!(refused.code == 1 && refused.stderr.contains("G0111"), "{} {}", refused.code, refused.stderr);
    product.run(&["cancel", &first]);
    let job = product.wait_state(&copied, "failed");
    assert_eq!((&job["code"]["commit"], &job["code"]["changed_files"]), (&commit.clone().into(), &1.into()), "{job:#}");
    let log = product.run(&["logs", &copied]).stdout;
    assert!(log.contains("says submitted") && log.contains('2'), "its attempts share what they write: {log}");
    assert!(!code.join("out").exists(), "the folder itself is left alone");
    product.wait_state(&cloned, "succeeded");
    assert!(product.run(&["logs", &cloned]).stdout.contains("says committed"));
    let shown = product.run(&["show", &cloned]).stdout;
    assert!(shown.contains(&format!("code         commit {commit}, as at submit; in ")), "{shown}");
    let resumed = product.json(&["resume", &copied])["job"].as_str().expect("an id").to_owned();
    product.wait_state(&resumed, "failed");
    assert!(product.run(&["logs", &resumed]).stdout.contains("says submitted"));
}

#[test]
fn the_configuration_is_read_again_while_jobs_run() {
    let mut product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let file = product.data().join("gangline.toml");
    std::fs::write(&file, "").expect("a configuration");
    product.start();
    let runs = product.submit("name: runs\nrun: exec sleep 60\n");
    std::fs::write(&file, "listen = '127.0.0.1:1'\n[[queue]]\nname = 'research'\n").expect("a configuration");
    let reloaded = product.run(&["reload"]);
    assert_eq!(
        (reloaded.code, &*reloaded.stdout),
        (0, "changed: queue; takes a restart: listen\n"),
        "{}",
        reloaded.stderr
    );
    let refused = product.run(&["submit", &product.job_file("job.yaml", "run: exit 0\n")]);
    assert!(refused.code == 4 && refused.stderr.contains("G0404"), "{}", refused.stderr);
    let waits = product.submit("name: waits\nqueue: research\nrun: exit 0\n");
    std::fs::write(&file, "[[queue]]\nname = 'research\n").expect("a configuration");
    let mistaken = product.run(&["reload"]);
    assert!(mistaken.code == 4 && mistaken.stderr.contains("G0505"), "{}", mistaken.stderr);
    let queues = product.json(&["queues"]);
    assert!(queues["queues"].as_array().is_some_and(|queues| queues.iter().any(|queue| queue["name"] == "research")));
    product.run(&["cancel", &runs]);
    product.wait_state(&waits, "succeeded");
    std::fs::remove_file(&file).expect("it is there");
    let gone = product.run(&["reload"]);
    assert!(gone.code == 4 && gone.stderr.contains("there is no configuration file"), "{}", gone.stderr);
    std::fs::write(&file, "[[queue]]\nname = 'other'\n").expect("a configuration");
    let pid = i32::try_from(product.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it runs");
    crate::fixtures::wait_for("the other queue", || {
        let queues = product.json(&["queues"]);
        queues["queues"].as_array()?.iter().any(|queue| queue["name"] == "other").then_some(())
    });
}

#[test]
fn a_chain_runs_in_order_and_ends_with_its_first_failure() {
    let product = Product::up(&["a=cpu:4"]);
    let mark = product.path("prepared");
    let prepare = product.submit(&format!("name: prepare\nrun: sleep 0.5; touch {}\n", mark.display()));
    let train = product.submit(&format!("name: train\nafter: {prepare}\nrun: test -e {}\n", mark.display()));
    let fails = format!("name: fails\nafter: {train}\nrun: exit 3\nrecovery: {{max_faults: 0}}\n");
    let fails = product.submit(&fails);
    let never = product.submit(&format!("name: never\nafter: {fails}\nrun: exit 0\n"));
    let always = product.submit(&format!("name: always\nafter: {{{fails}: any}}\nrun: exit 0\n"));
    product.wait_state(&train, "succeeded");
    product.wait_state(&fails, "failed");
    product.wait_state(&always, "succeeded");
    let cancelled = product.wait_state(&never, "cancelled");
    assert_eq!(attempts(&cancelled), 0, "{cancelled:#}");
    let because = cancelled["because"].as_str().unwrap_or_default();
    assert!(because.starts_with(&format!("{fails} did not succeed")), "{because}");
}

#[test]
fn a_resumed_job_goes_on_from_the_checkpoints_of_the_ended_one() {
    let product = Product::up(&["a=cpu:1"]);
    let folder = product.path("checkpoints");
    let steps = "--steps 100000 --checkpoint-every 5";
    let first = product.submit(&training(steps, 1, &folder.display().to_string()));
    product.wait_step(&first, 12);
    product.run(&["cancel", &first]);
    let ended = product.wait_state(&first, "cancelled");
    assert_booked_exactly(&ended);
    let saved = ended["checkpoints"]["last_step"].as_u64().expect("it saved");
    let resumed = product.json(&["resume", &first, "priority=high"])["job"].as_str().expect("an id").to_owned();
    assert_ne!(resumed, first);
    let job = product.wait_step(&resumed, saved + 1);
    assert_eq!((job["origin"].as_str(), job["priority"].as_u64()), (Some(first.as_str()), Some(750)));
    let log = product.run(&["logs", &resumed]);
    assert!(!log.stdout.contains("step 1/"), "it did not begin anew: {}", log.stdout);
    assert_eq!(product.job(&first)["usage"], ended["usage"], "what was booked stays");
    let refused = product.run(&["resume", &resumed]);
    assert!(refused.code == 1 && refused.stderr.contains("G0423"), "{}", refused.stderr);
    product.run(&["cancel", &resumed]);
}
