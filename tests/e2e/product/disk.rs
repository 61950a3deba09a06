//! What the disk can do to the journal: fill up, and change bytes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;

use crate::fixtures::product::{Product, rank_pid};
use crate::fixtures::{is_running, wait_for};

/// A file system of its own size, unmounted at the end.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    /// None if mounting isn't permitted here.
    fn mount(path: &Path, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(path).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "tmpfs"])
            .arg(path)
            .output();
        mounted.is_ok_and(|output| output.status.success()).then(|| SmallDisk { path: path.to_owned() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because a supervisor may still be ending.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

/// Proves on a disk that is really full: the journal says so and refuses changes, the running job goes on, and
/// after a restart with room it is all there.
#[test]
fn a_full_disk_poisons_the_journal_and_harms_no_job() {
    let mut product = Product::down(&["a=cpu:2"]);
    let Some(disk) = SmallDisk::mount(&product.data(), "3m") else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    product.start();
    let mark = product.path("go");
    let run = format!("name: runs\nrun: while [ ! -e {} ]; do sleep 0.05; done\n", mark.display());
    let id = product.submit(&run);
    let pid = wait_for("a rank", || rank_pid(&product.job(&id), 0, 0));
    let filler = disk.path.join("filler");
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=4096"]).arg(format!("of={}", filler.display())).output();

    let file = product.job_file("more.yaml", &format!("name: more\nrun: 'true # {}'\n", "x".repeat(60_000)));
    let refused = wait_for("the full disk to be noticed", || {
        let ran = product.run(&["submit", &file]);
        (ran.code != 0).then_some(ran)
    });
    assert!(refused.stderr.contains("G0207"), "{}", refused.stderr);
    let again = product.run(&["submit", &file]);
    assert!(again.code == 1 && again.stderr.contains("G0207"), "every later change is refused: {}", again.stderr);
    assert!(is_running(pid), "the running job is unharmed");
    assert_eq!(product.json(&["show", &id])["state"], "running", "what is durable can be read");

    // Without a control plane the supervisor has something to log, and nowhere to.
    product.kill_control_plane();
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(50));
        assert!(is_running(pid), "a supervisor that can't write its log goes on");
    }
    std::fs::remove_file(&filler).expect("the filler goes");
    product.start();
    assert_eq!(rank_pid(&product.job(&id), 0, 0), Some(pid), "the same rank runs");
    std::fs::write(&mark, "").expect("a mark");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
}

/// Flips a bit in a record's body, counted from the end.
fn damage(product: &Product, from_the_end: i64) {
    let connection = Connection::open(product.data().join("journal.sqlite")).expect("the journal");
    let sequence: i64 = connection
        .query_row("SELECT max(sequence) - ?1 FROM records", [from_the_end], |row| row.get(0))
        .expect("records");
    let mut body: Vec<u8> = connection
        .query_row("SELECT body FROM records WHERE sequence = ?1", [sequence], |row| row.get(0))
        .expect("a record");
    body[0] ^= 1;
    connection.execute("UPDATE records SET body = ?1 WHERE sequence = ?2", (body, sequence)).expect("damaged");
}

/// Proves A-3 with damage: a torn last record is dropped with a warning, and what it decided is decided again.
#[test]
fn a_torn_last_record_is_dropped_with_a_warning() {
    let mut product = Product::up(&["a=cpu:1"]);
    let id = product.submit("name: waits\nrun: exit 0\n");
    product.wait_state(&id, "succeeded");
    product.kill_control_plane();
    damage(&product, 0);
    product.start();
    let log = std::fs::read_to_string(product.path("up.log")).expect("a log");
    assert!(log.contains("WARN") && log.contains("put aside the last record"), "{log}");
    let next = product.submit("name: next\nrun: exit 0\n");
    product.wait_state(&next, "succeeded");
}

#[test]
fn corruption_in_the_middle_refuses_to_start_and_says_what_to_do() {
    let mut product = Product::up(&["a=cpu:1"]);
    let id = product.submit("name: done\nrun: exit 0\n");
    product.wait_state(&id, "succeeded");
    product.kill_control_plane();
    damage(&product, 4);
    let refused = product.start_refused();
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("G0204") && refused.stderr.contains("--accept-loss-after"), "{}", refused.stderr);
    let sound = refused
        .stderr
        .split("--accept-loss-after ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned));
    product.option("--accept-loss-after", &sound.expect("a number"));
    product.start();
    let mark = product.path("ran");
    let next = product.submit(&format!("name: next\nrun: touch {}\n", mark.display()));
    assert_ne!(next, id, "the lost job's id isn't given out again");
    product.wait_state(&next, "succeeded");
    assert!(mark.exists(), "the new job really ran");
}
