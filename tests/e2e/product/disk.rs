//! What the disk can do to the journal: fill up, and change bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;

use crate::fixtures::product::{Product, rank_pid};
use crate::fixtures::{is_running, wait_for};

/// A file system of its own size, unmounted at the end.
pub(super) struct SmallDisk {
    pub(super) path: std::path::PathBuf,
}

impl SmallDisk {
    /// None if mounting isn't permitted here.
    fn mount(path: &Path, size: &str) -> Option<SmallDisk> {
        SmallDisk::mount_with(path, &format!("size={size}"))
    }

    fn mount_with(path: &Path, options: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(path).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("{options},mode=700"), "tmpfs"])
            .arg(path)
            .output();
        mounted.is_ok_and(|output| output.status.success()).then(|| SmallDisk { path: path.to_owned() })
    }

    /// One of 16 MiB as disks have it, ext4 in a file. None if that isn't permitted here.
    pub(super) fn mount_image(image: &Path, path: &Path) -> Option<SmallDisk> {
        std::fs::create_dir_all(path).expect("a folder");
        let file = std::fs::File::create(image).expect("an image");
        file.set_len(16 << 20).expect("room for it");
        let run = |program: &str, arguments: &[&str], places: &[&Path]| {
            let output = Command::new(program).args(arguments).args(places).output();
            output.is_ok_and(|output| output.status.success())
        };
        let is_mounted = run("mkfs.ext4", &["-q"], &[image]) && run("mount", &["-o", "loop"], &[image, path]);
        is_mounted.then(|| SmallDisk { path: path.to_owned() })
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

/// The status that the control plane gives of itself, to anybody.
fn health(product: &Product) -> String {
    let address = product.url();
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
    stream
        .write_all(b"GET /api/v1/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is text");
    answer.split(' ').nth(1).expect("a status line").to_owned()
}

/// Submits jobs until the full disk shows, and gives the ids of those that were taken.
fn fill_up(product: &Product, disk: &SmallDisk) -> Vec<String> {
    let filler = format!("of={}", disk.path.join("filler").display());
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=4096"]).arg(filler).output();
    let file = product.job_file("more.yaml", &format!("name: more\nrun: 'true # {}'\n", "x".repeat(60_000)));
    let mut taken = Vec::new();
    loop {
        let ran = product.run(&["submit", &file, "--json"]);
        if ran.code != 0 {
            assert!(ran.stderr.contains("G0207"), "{}", ran.stderr);
            return taken;
        }
        taken.push(ran.json()["job"].as_str().expect("an id").to_owned());
        assert!(taken.len() < 1_000, "the disk is full");
    }
}

/// Proves A-7 on a disk that is really full and then isn't: the control plane says 503, heals by itself, and has what it had
/// acknowledged and nothing that it hadn't. The process is the same.
#[test]
fn a_control_plane_heals_by_itself_when_its_disk_has_room_again() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(disk) = SmallDisk::mount(&product.data(), "6m") else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    product.start();
    let mark = product.path("go");
    let run = format!("name: runs\nrun: while [ ! -e {} ]; do sleep 0.05; done\n", mark.display());
    let id = product.submit(&run);
    let pid = wait_for("a rank", || rank_pid(&product.job(&id), 0, 0));
    let plane = product.pid();
    assert_eq!(health(&product), "200");
    for round in 0..2 {
        let taken = fill_up(&product, &disk);
        assert_eq!(health(&product), "503", "round {round}");
        // It looks once or twice and finds no room.
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(health(&product), "503", "round {round}");
        std::fs::remove_file(disk.path.join("filler")).expect("the filler goes");
        wait_for("it to heal", || (health(&product) == "200").then_some(()));
        let more = product.json(&["ps"])["jobs"].as_array().expect("a list").clone();
        let more: Vec<&str> = more.iter().filter_map(|job| job["id"].as_str()).filter(|job| *job != id).collect();
        assert_eq!(
            more.iter().rev().copied().collect::<Vec<_>>(),
            taken,
            "round {round}: what was acknowledged is there"
        );
        for job in &taken {
            assert_eq!(product.run(&["cancel", job]).code, 0);
        }
    }
    assert!(is_running(plane) && is_running(pid), "neither the control plane nor the job was started again");
    std::fs::write(&mark, "").expect("a mark");
    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "{job:#}");
}

/// Told to exit, it ends with status 1 and the reason, for a service manager that restarts it.
#[test]
fn a_control_plane_that_is_to_exit_on_a_full_disk_does() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(disk) = SmallDisk::mount(&product.data(), "3m") else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    product.option("--on-journal-failure", "exit");
    product.start();
    let plane = product.pid();
    let taken = fill_up(&product, &disk);
    wait_for("the control plane to end", || (!is_running(plane)).then_some(()));
    let log = std::fs::read_to_string(product.path("up.log")).expect("a log");
    assert!(log.contains("error[G0207]") && log.contains("no space left"), "{log}");
    assert_eq!(product.ended(), Some(1));
    std::fs::remove_file(disk.path.join("filler")).expect("the filler goes");
    product.start();
    for job in taken {
        product.wait_state(&job, "succeeded");
    }
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
    let refused = product.start_refused();
    assert!(refused.stderr.contains("G0204"), "it was acknowledged: {}", refused.stderr);
    // As after a power cut, when the disk holds neither that record nor the anchor written after it.
    for name in ["journal.anchor", "high-water"] {
        std::fs::remove_file(product.data().join(name)).expect("there is an anchor");
    }
    product.start();
    let log = std::fs::read_to_string(product.path("up.log")).expect("a log");
    assert!(log.contains("WARN") && log.contains("put aside the last record"), "{log}");
    let next = product.submit("name: next\nrun: exit 0\n");
    product.wait_state(&next, "succeeded");
}

/// Proves A-13 for jobs that wait to be started: a data folder without room for another file costs them time and nothing else.
#[test]
fn a_data_folder_without_inodes_makes_jobs_wait_and_is_told() {
    let mut product = Product::down(&["a=cpu:1"]);
    let Some(disk) = SmallDisk::mount_with(&product.data(), "size=64m,nr_inodes=400") else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    product.start();
    let fillers = disk.path.join("fillers");
    std::fs::create_dir(&fillers).expect("a folder");
    let made = (0..).map_while(|number| std::fs::write(fillers.join(number.to_string()), "").ok()).count();
    assert!(made > 10, "the disk has room for files at first");
    let ids: Vec<String> = (0..3).map(|_| product.submit("name: waits\nrun: exit 0\n")).collect();
    let health = || {
        let mut answer = ureq::get(format!("{}/api/v1/health", product.url())).call().expect("it answers");
        answer.body_mut().read_json::<serde_json::Value>().expect("JSON")
    };
    let unwell = wait_for("the control plane to say what is wrong", || {
        let health = health();
        (health["status"] == "unwell").then_some(health)
    });
    assert!(unwell["reason"].as_str().is_some_and(|reason| reason.contains("No space left on device")), "{unwell}");
    let first = product.job(&ids[0]);
    let because = first["because"].as_str().unwrap_or_default();
    assert!(because.contains("waits to be started") && because.contains("No space left on device"), "{first:#}");
    std::fs::remove_dir_all(&fillers).expect("it is ours");
    for id in &ids {
        let job = product.wait_state(id, "succeeded");
        assert_eq!((job["faults"].as_u64(), job["attempts"].as_array().map(Vec::len)), (Some(0), Some(1)), "{job:#}");
    }
    assert_eq!(health()["status"], "ok");
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
