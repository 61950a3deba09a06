//! Checkpoints to S3 and back by the command line, against a real S3 server on a folder (s3s-fs), which may throttle.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use gangline_storage::{DataType, Options, Step, Store, TensorView};
use hyper::StatusCode;

use crate::fixtures::product::Product;
use crate::fixtures::s3::Server;
use crate::fixtures::{gangline, wait_for};

/// `gangline checkpoint` with the settings of a server.
impl Server {
    /// Runs `gangline checkpoint`.
    fn run(&self, secret: &str, arguments: &[&str]) -> Output {
        self.command(secret, arguments).output().expect("gangline runs")
    }

    fn command(&self, secret: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(gangline());
        command.arg("checkpoint").args(arguments).env_clear();
        command.envs(self.settings()).env("AWS_SECRET_ACCESS_KEY", secret);
        command
    }

    /// The same, when it has to be refused with these words.
    fn refuses(&self, arguments: &[&str], words: &str) {
        let output = self.run("secret", arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(words), "{arguments:?}: {said}");
    }

    /// A key's file that only its owner may read.
    fn key(&self, name: &str, digit: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, digit.repeat(64) + "\n").expect("a key's file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        path.to_str().expect("text").to_owned()
    }

    /// The same, when it has to go well.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run("secret", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

/// Saves a state of 1.2 MB that changes a little with each step, and a part of it not at all.
fn save(folder: &Path, step: u8) {
    let mut word = 7_u64;
    let mut bytes = |mask: u8| -> Vec<u8> {
        let element = |_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let [.., a, b, c] = word.to_le_bytes();
            [a & mask, b, c & 0x7f, 0x3c]
        };
        (0..100_000).flat_map(element).collect()
    };
    let (frozen, mut moving) = (bytes(0xff), bytes(0xf0));
    moving.iter_mut().step_by(4).for_each(|byte| *byte |= step);
    let tensor = |name, data| TensorView { name, data_type: DataType::F32, shape: &[100, 1_000], data, part_of: None };
    let store = Store::open(folder, Options { keep: None, ..Options::default() }).expect("a store");
    let views = [tensor("frozen", frozen.as_slice()), tensor("moving", moving.as_slice())];
    store.save(Step(step.into()), &views, &BTreeMap::new()).and_then(|saving| saving.wait()).expect("a checkpoint");
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").into();
        (name, std::fs::read(&path).expect("a file"))
    };
    entries.map(read).collect()
}

#[test]
fn checkpoints_go_to_s3_and_come_back_bit_for_bit_though_it_throttles() {
    let server = Server::start();
    let [store, back] = ["store", "back"].map(|name| server.path(name));
    let [store_text, back_text] = [&store, &back].map(|path| path.to_str().expect("text"));
    let archive = "s3://bucket/runs/7";
    for step in 1..=3 {
        save(&store, step);
        let said = server.say(&["push", store_text, archive, "--limit-mbps", "4000"]);
        assert!(said.contains(&format!("step {step}")), "{said}");
    }
    assert!(server.say(&["push", store_text, archive]).contains("already"));
    let listed: serde_json::Value = serde_json::from_str(&server.say(&["list", archive, "--json"])).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    assert!(server.say(&["verify", archive]).contains("none found"));
    server.say(&["pull", archive, back_text, "--step", "2"]);
    server.say(&["pull", archive, back_text]);
    for step in ["step-0000000002", "step-0000000003"] {
        assert_eq!(files(&back.join(step)), files(&store.join(step)), "{step}");
    }
    let dry = server.say(&["prune", archive, "--keep-last", "1", "--dry-run"]);
    assert!(dry.contains("would be removed"), "{dry}");
    let done = server.say(&["prune", archive, "--keep-last", "1", "--keep", "1"]);
    assert!(done.contains("kept: pinned") && done.contains("removed"), "{done}");
    let gone = server.run("secret", &["pull", archive, back_text, "--step", "2"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("step 2"), "{gone:?}");
    let third = server.path("third");
    server.say(&["pull", archive, third.to_str().expect("text"), "--step", "3"]);
    assert_eq!(files(&third.join("step-0000000003")), files(&store.join("step-0000000003")));
}

#[test]
fn an_encrypted_archive_in_s3_opens_only_with_its_key_which_can_be_replaced() {
    let server = Server::start();
    let (store, back) = (server.path("store"), server.path("back"));
    let [store_text, back_text] = [&store, &back].map(|path| path.to_str().expect("text"));
    let [old, new] = [("old", "a"), ("new", "b")].map(|(name, digit)| server.key(name, digit));
    let archive = "s3://bucket/sealed";
    for step in 1..=3 {
        save(&store, step);
        server.say(&["push", store_text, archive, "--key-file", &old]);
    }
    server.refuses(&["list", archive], "it is encrypted; give the file of key");
    server.refuses(&["list", archive, "--key-file", &new], "it takes key");
    assert!(server.say(&["verify", archive, "--key-file", &old]).contains("none found"));
    let shown = server.say(&["keys", "rotate", archive, "--key-file", &old, "--new-key-file", &new, "--new-data-key"]);
    assert!(shown.contains("1 data keys wrapped anew"), "{shown}");
    server.refuses(&["pull", archive, back_text, "--key-file", &old], "it takes key");
    save(&store, 4);
    server.say(&["push", store_text, archive, "--key-file", &new]);
    let shown: serde_json::Value =
        serde_json::from_str(&server.say(&["keys", "show", archive, "--key-file", &new, "--json"])).expect("JSON");
    let catalogs: Vec<_> = shown.as_array().expect("keys").iter().map(|key| key["catalogs"].as_u64()).collect();
    assert_eq!(catalogs, [Some(3), Some(1)]);
    let done = server.say(&["prune", archive, "--keep", "2", "--key-file", &new]);
    assert!(done.contains("removed"), "{done}");
    for step in ["2", "4"] {
        server.say(&["pull", archive, back_text, "--step", step, "--key-file", &new]);
        let name = format!("step-000000000{step}");
        assert_eq!(files(&back.join(&name)), files(&store.join(&name)), "{step}");
    }
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    server.refuses(&["list", archive, "--key-file", &new], "chmod 600");
    server.say(&["push", store_text, "s3://bucket/plain"]);
    server.refuses(&["list", "s3://bucket/plain", "--key-file", &old], "isn't encrypted");
    assert!(server.say(&["keys", "show", "s3://bucket/plain"]).contains("isn't encrypted"));
}

#[test]
fn a_wrong_key_and_a_missing_bucket_are_told_by_name() {
    let server = Server::start();
    let store = server.path("store");
    save(&store, 1);
    let store = store.to_str().expect("text");
    let denied = server.run("wrong", &["push", store, "s3://bucket/x"]);
    assert_eq!(denied.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&denied.stderr).contains("in the archive"), "{denied:?}");
    let missing = server.run("secret", &["push", store, "s3://nobody/x"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no such bucket"), "{missing:?}");
    let senseless = server.run("secret", &["push", store, "gopher://x"]);
    assert!(String::from_utf8_lossy(&senseless.stderr).contains("s3://bucket/prefix"), "{senseless:?}");
}

/// The last request of a writer that was killed is still on its way when the next has the archive already.
#[test]
fn a_killed_pushs_catalog_that_arrives_late_is_refused_by_the_server() {
    let server = Server::start();
    let store = server.path("store");
    let (store_text, archive) = (store.to_str().expect("text"), "s3://bucket/fenced");
    for step in 1..=2 {
        save(&store, step);
        server.say(&["push", store_text, archive]);
    }
    save(&store, 3);
    server.gate.is_armed.store(true, Ordering::SeqCst);
    let mut push = server.command("secret", &["push", store_text, archive]);
    let mut push = push.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("gangline runs");
    wait_for("the catalog", || server.gate.has_come.load(Ordering::SeqCst).then_some(()));
    push.kill().expect("it runs");
    push.wait().expect("it is dead");
    // Its checkpoint is made of what this removes.
    let pruned = server.say(&["prune", archive, "--keep-last", "1"]);
    assert!(pruned.contains("removed"), "{pruned}");
    server.gate.may_go.notify_one();
    let status = wait_for("the server's answer", || *server.gate.status.lock().expect("no panic"));
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    let steps = || {
        let listed: serde_json::Value = serde_json::from_str(&server.say(&["list", archive, "--json"])).expect("JSON");
        listed.as_array().expect("checkpoints").iter().filter_map(|one| one["step"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(steps(), [2]);
    assert!(server.say(&["verify", archive]).contains("none found"));
    server.say(&["push", store_text, archive]);
    assert_eq!(steps(), [2, 3]);
    assert!(server.say(&["verify", archive]).contains("none found"));
}

#[test]
fn a_folder_of_checkpoints_is_pruned_and_never_mixed_with_an_archive() {
    let server = Server::start();
    let (store, other) = (server.path("store"), server.path("other"));
    (1..=3).for_each(|step| save(&store, step));
    save(&other, 1);
    let [store_text, other_text] = [&store, &other].map(|path| path.to_str().expect("text"));
    server.refuses(&["push", store_text, store_text], "is a folder of checkpoints");
    server.refuses(&["push", store_text, other_text], "is a folder of checkpoints");
    server.refuses(&["prune", store_text, "--keep-every-steps", "2"], "how many of the newest good ones stay");
    server.refuses(&["prune", store_text, "--keep-last", "0"], "with N from 1 on");
    server.refuses(
        &["prune", server.folder.path().to_str().expect("text"), "--keep-last", "1"],
        "holds no complete checkpoint",
    );
    let before = files(&store.join("step-0000000001"));
    let dry = server.say(&["prune", store_text, "--keep-last", "2", "--dry-run"]);
    assert!(dry.contains("1  would be removed") && dry.matches("kept").count() == 2, "{dry}");
    assert_eq!(files(&store.join("step-0000000001")), before, "nothing was changed");
    assert!(!store.join("catalogs").exists() && !other.join("catalogs").exists());
    server.say(&["prune", store_text, "--keep-last", "2"]);
    let listed = server.say(&["list", store_text]);
    assert!(listed.lines().count() == 3 && listed.matches("not verified").count() == 2, "{listed}");
    assert_eq!(server.say(&["verify", store_text]).matches("none found").count(), 2);
}

#[test]
fn a_branch_that_was_given_up_is_shown_and_removed_only_when_that_is_asked_for() {
    let server = Server::start();
    let store = server.path("store");
    (5..=7).for_each(|step| save(&store, step));
    // A program that loads nothing and saves a lower step begins anew.
    save(&store, 1);
    let text = store.to_str().expect("text");
    let branches = server.say(&["branches", text]);
    let lines: Vec<&str> = branches.lines().skip(1).collect();
    assert!(lines.len() == 2 && lines[0].contains("abandoned") && lines[1].contains("current"), "{branches}");
    assert_eq!(server.say(&["list", text]).matches("of an abandoned branch").count(), 3);
    assert!(server.say(&["show", text]).contains("step          1"), "the newest is the newest save");
    let kept = server.say(&["prune", text, "--keep-last", "1"]);
    assert_eq!(kept.matches("kept").count(), 4, "{kept}");
    server.refuses(&["prune", text, "--above", "0"], "no other good checkpoint of the current branch");
    server.refuses(&["prune", text, "--abandoned", "--keep-last", "1"], "pruned in one way at a time");
    let name = lines[0].split_whitespace().next().expect("a name");
    let dry = server.say(&["prune", text, "--branch", name, "--dry-run"]);
    assert_eq!(dry.matches("would be removed").count(), 3, "{dry}");
    // An archive keeps them as well until they are named.
    let archive = server.path("archive");
    let archive = archive.to_str().expect("text");
    ["5", "7", "1"].iter().for_each(|step| drop(server.say(&["push", text, archive, "--step", step])));
    assert_eq!(server.say(&["prune", archive, "--keep-last", "1"]).matches("kept: abandoned").count(), 2);
    let back = server.path("back");
    assert!(server.say(&["pull", archive, back.to_str().expect("text")]).starts_with("step 1,"));
    assert_eq!(server.say(&["prune", archive, "--abandoned"]).matches("removed (").count(), 2);
    server.say(&["prune", text, "--abandoned"]);
    assert_eq!(server.say(&["branches", text]).lines().count(), 2);
    server.refuses(&["prune", text, "--branch", name], "branch");
}

#[test]
fn a_bucket_is_reached_by_a_profile_of_awss_tools() {
    let server = Server::start();
    let store = server.path("store");
    save(&store, 1);
    let aws = server.path(".aws");
    std::fs::create_dir(&aws).expect("a folder");
    let config = format!("[profile lab]\nregion = us-east-1\nendpoint_url = {}\n", server.address);
    std::fs::write(aws.join("config"), config).expect("a file");
    let keys = "[lab]\naws_access_key_id = key\naws_secret_access_key = secret\n";
    std::fs::write(aws.join("credentials"), keys).expect("a file");
    let push = |profile: &str| {
        let mut command = Command::new(gangline());
        command.args(["checkpoint", "push"]).arg(&store).arg("s3://bucket/by-profile").env_clear();
        command.env("HOME", server.folder.path()).env("AWS_PROFILE", profile).output().expect("gangline runs")
    };
    let pushed = push("lab");
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    let refused = push("labb");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("there is no profile labb"), "{said}");
}

#[test]
fn a_job_that_pushes_pays_for_what_the_archive_holds_and_for_its_requests() {
    let server = Server::start();
    let store = server.path("store");
    save(&store, 1);
    let mut product = Product::down(&["a=cpu:1"]);
    std::fs::create_dir_all(product.data()).expect("a folder");
    let prices = "[[storage.price]]\npath = 's3://bucket'\nusd_per_gib_month = '100'\n\
        [[storage.requests]]\naddress = 's3://bucket'\nusd_per_1000 = '0.4'\nusd_per_1000_writes = '5'\n";
    std::fs::write(product.data().join("gangline.toml"), prices).expect("a configuration");
    product.start();
    let settings: Vec<String> = server.settings().iter().map(|(name, value)| format!("{name}: \"{value}\"")).collect();
    let push = format!("{} checkpoint push {} s3://bucket/runs/7", gangline().display(), store.display());
    let job = product.submit(&format!("name: pushes\nenvs: {{{}}}\nrun: {push}\n", settings.join(", ")));
    product.wait_state(&job, "succeeded");
    let asked = product.json(&["show", &job])["dataset_reads"][0].clone();
    let put = asked["put"].as_i64().unwrap_or_default();
    assert!(asked["dataset"] == "s3://bucket/runs/7" && put >= 3, "{asked:#}");
    let lines = || {
        let cost = product.json(&["cost", "show", &job]);
        let lines = cost["total"]["lines"].as_array().cloned().unwrap_or_default();
        lines
            .into_iter()
            .map(|line| (line["line"].as_str().unwrap_or_default().to_owned(), line))
            .collect::<BTreeMap<_, _>>()
    };
    let paid = |line: &str| lines().get(line).and_then(|line| line["cost_nano_dollars"].as_i64()).unwrap_or_default();
    assert_eq!(paid("write_requests"), put * 5_000_000, "{:#?}", lines());
    assert!(paid("requests") > 0, "{:#?}", lines());
    let first = wait_for("the archive to cost something", || Some(paid("storage_archives")).filter(|cost| *cost > 0));
    wait_for("it to cost more", || (paid("storage_archives") > first).then_some(()));
    let usage = product.json(&["cost", "report", "--from", "1h", "--by", "job"]);
    let group = usage["groups"].as_array().and_then(|groups| groups.iter().find(|group| group["name"] == *job));
    assert!(group.is_some_and(|group| group["cost_nano_dollars"].as_i64() > Some(first)), "{usage:#}");
}
