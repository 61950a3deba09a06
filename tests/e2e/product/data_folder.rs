//! What happens to a data folder in life: its journal is put back by hand, or damaged; it is copied, backed up and restored.

use std::fs;
use std::process::Command;

use crate::fixtures::product::{Product, rank_pid};
use crate::fixtures::{is_running, wait_for};

fn shell(script: &str) {
    let status = Command::new("sh").args(["-euc", script]).status().expect("a shell runs");
    assert!(status.success(), "{script}");
}

/// The number that a refusal names.
fn accepted_after(refusal: &str) -> String {
    let after = refusal.split("--accept-loss-after ").nth(1).unwrap_or_else(|| panic!("no way out: {refusal}"));
    after.chars().take_while(char::is_ascii_digit).collect()
}

/// Proves A-14: after files were put back by hand, ids, folders and logs of the lost past are never used again.
#[test]
fn a_journal_that_was_put_back_is_refused_and_then_uses_nothing_twice() {
    let mut product = Product::up(&["a=cpu:1"]);
    let data = product.data();
    let copy = product.path("copy");
    let out = product.path("out");
    let job = |word: &str| format!("name: {word}\nrun: echo {word}; echo {word} >> {}\n", out.display());
    let first = product.submit(&job("first"));
    product.wait_state(&first, "succeeded");
    let (from, to) = (data.display(), copy.display());
    shell(&format!("mkdir {to}; cp {from}/journal.sqlite* {to}"));
    for word in ["second", "third"] {
        let id = product.submit(&job(word));
        product.wait_state(&id, "succeeded");
    }
    product.kill_control_plane();
    shell(&format!("rm {from}/journal.sqlite*; cp {to}/journal.sqlite* {from}"));
    let refused = product.start_refused();
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("G0210") && refused.stderr.contains("job ids up to job-3"), "{}", refused.stderr);
    product.option("--accept-loss-after", &accepted_after(&refused.stderr));
    product.start();
    let other = product.submit(&job("other"));
    assert_eq!(other, "job-4");
    product.wait_state(&other, "succeeded");
    let log = product.run(&["logs", &other]).stdout;
    assert!(log.ends_with(" other\n") && log.lines().count() == 1, "its own log: {log}");
    assert_eq!(fs::read_to_string(&out).expect("jobs wrote"), "first\nsecond\nthird\nother\n", "and it really ran");
    assert_eq!(product.run(&["show", "job-2"]).code, 3, "the lost job is unknown");
}

/// Proves A-14: one flipped bit in the write-ahead log of a control plane that was killed.
#[test]
fn a_flipped_bit_in_the_log_is_told_and_costs_only_what_is_named() {
    let mut product = Product::up(&["a=cpu:1"]);
    let ids: Vec<String> = (0..6).map(|_| product.submit("name: j\nrun: sleep 60\n")).collect();
    product.kill_control_plane();
    let path = product.data().join("journal.sqlite-wal");
    let mut log = fs::read(&path).expect("there is a log");
    let middle = log.len() / 2;
    log[middle] ^= 4;
    fs::write(&path, log).expect("it is ours");
    let refused = product.start_refused();
    assert!(refused.stderr.contains("G0210") && refused.stderr.contains("job ids up to job-6"), "{}", refused.stderr);
    product.option("--accept-loss-after", &accepted_after(&refused.stderr));
    product.start();
    let next = product.submit("name: next\nrun: sleep 60\n");
    assert_eq!(next, "job-7");
    for id in ids.iter().chain([&next]) {
        if product.run(&["show", id]).code == 0 {
            assert_eq!(product.run(&["cancel", id]).code, 0);
        }
    }
}

/// Proves A-14: a copy that is started on the same machine leaves the original's processes alone.
#[test]
fn a_copy_of_the_data_folder_kills_nothing_and_says_what_it_is() {
    let mut product = Product::up(&["a=cpu:1"]);
    let id = product.submit("name: long\nrun: sleep 600\n");
    let pid = wait_for("a rank to run", || rank_pid(&product.job(&id), 0, 0));
    product.kill_control_plane();
    let mut copy = Product::down(&["a=cpu:1"]);
    shell(&format!("cp -a {} {}", product.data().display(), copy.data().display()));
    copy.change("--lease", "300");
    copy.option("--orphan-after", "1");
    copy.start();
    let shown = copy.wait_state(&id, "cancelled");
    assert!(shown.to_string().contains("of which this data folder is a copy"), "{shown:#}");
    let log = fs::read_to_string(copy.path("up.log")).expect("a log");
    assert!(log.contains("this data folder is a copy of"), "{log}");
    let own = copy.submit("name: own\nrun: sleep 3\n");
    copy.wait_state(&own, "succeeded");
    assert!(is_running(pid), "the original's rank goes on");
    product.start();
    let again = product.job(&id);
    assert_eq!((again["state"].as_str(), rank_pid(&again, 0, 0)), (Some("running"), Some(pid)), "{again:#}");
    assert_eq!(product.run(&["cancel", &id]).code, 0);
    product.wait_state(&id, "cancelled");
}

#[test]
fn a_backup_of_a_running_control_plane_is_restored_elsewhere_and_over_a_damaged_journal() {
    let mut product = Product::up(&["a=cpu:1"]);
    let done = product.submit("name: done\nrun: \"true\"\n");
    product.wait_state(&done, "succeeded");
    let running = product.submit("name: running\nrun: sleep 600\n");
    product.wait_state(&running, "running");
    let waiting = product.submit("name: waiting\nrun: \"true\"\n");
    let backup = product.path("backup");
    let backup = backup.to_str().expect("text");
    let made = product.json(&["backup", backup]);
    assert_eq!(made["last_job"], 3, "{made:#}");
    let again = product.run(&["backup", backup]);
    assert!(again.code == 1 && again.stderr.contains("G0211"), "{}", again.stderr);
    assert_eq!(product.run(&["backup", "--verify", backup]).code, 0);

    let mut elsewhere = Product::down(&["a=cpu:1"]);
    assert_eq!(elsewhere.run(&["restore", backup]).code, 0);
    elsewhere.start();
    assert_eq!(elsewhere.job(&done)["state"], "succeeded");
    assert_eq!(elsewhere.run(&["cancel", &running]).code, 0);
    elsewhere.wait_state(&waiting, "succeeded");

    let later = product.submit("name: later\nrun: \"true\"\n");
    let held = product.run(&["restore", "--replace", backup]);
    assert!(held.code == 1 && held.stderr.contains("G0201"), "{}", held.stderr);
    product.kill_control_plane();
    fs::write(product.data().join("journal.sqlite"), "damaged").expect("it is ours");
    assert!(product.start_refused().stderr.contains("G0203"));
    let kept = product.run(&["restore", backup]);
    assert!(kept.code == 1 && kept.stderr.contains("--replace"), "{}", kept.stderr);
    assert_eq!(product.run(&["restore", "--replace", backup]).code, 0);
    product.start();
    assert_eq!(product.job(&running)["state"], "running", "its supervisor is taken up again");
    assert_eq!(product.run(&["show", &later]).code, 3, "what came after the backup is gone");
    let next = product.submit("name: next\nrun: \"true\"\n");
    assert_eq!(next, "job-5", "and its id isn't given out again");
    assert_eq!(product.run(&["cancel", &running]).code, 0);
    product.wait_state(&next, "succeeded");
}

#[test]
fn read_models_that_a_disk_has_changed_are_told_and_made_again_from_the_journal() {
    let mut product = Product::up(&["a=cpu:1"]);
    let done = product.submit("name: done\nrun: \"true\"\n");
    product.wait_state(&done, "succeeded");
    let shown = product.job(&done);
    let held = product.run(&["rebuild"]);
    assert!(held.code == 1 && held.stderr.contains("G0201"), "{}", held.stderr);
    product.kill_control_plane();
    assert_eq!(product.run(&["rebuild", "--check"]).code, 0, "nothing differs");
    let database = rusqlite::Connection::open(product.data().join("journal.sqlite")).expect("it opens");
    database.execute("UPDATE ledger SET cost_nano_dollars = 7, idle = idle + 1", []).expect("the statement is sound");
    database.execute("DELETE FROM jobs", []).expect("the statement is sound");
    drop(database);
    let told = product.run(&["rebuild", "--check"]);
    assert!(told.code == 1 && told.stderr.contains("G0213"), "{}", told.stderr);
    assert!(told.stdout.contains("the row of job-1 is missing"), "{}", told.stdout);
    let made = product.json(&["rebuild"]);
    assert_eq!((made["jobs"]["remade"].as_u64(), made["bookings"]["remade"].as_u64()), (Some(1), Some(1)), "{made:#}");
    assert_eq!(product.run(&["rebuild", "--check"]).code, 0, "nothing differs any more");
    product.start();
    let again = product.job(&done);
    for key in ["state", "usage", "progress", "submitted_at", "ended_at", "because"] {
        assert_eq!(again[key], shown[key], "{key}");
    }
}
