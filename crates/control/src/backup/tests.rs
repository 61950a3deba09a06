//! Backups: whole, verified, restored.

use std::fs;
use std::path::Path;

use gangline_api::TOKEN_FILE;
use gangline_base::{JobId, Timestamp};
use gangline_store::db::{self, Sequence};
use gangline_store::tracking::{TRACKING_FOLDER, is_of_tracking};

use super::{Error, JOURNAL, MANIFEST_FILE, SERIES_FOLDER, backup, restore, verify};
use crate::secret;
use gangline_store::db::{Entry, Journal, Options};
use gangline_store::ports::{Batch, Changes};

const NOW: Timestamp = Timestamp::EPOCH;

fn commit(journal: &mut Journal, number: u64) {
    let records = [Entry { at: NOW, body: number.to_string().into_bytes() }];
    let batch = Batch { records: &records, given_out: JobId(number), changes: Changes::none() };
    journal.commit(batch).expect("there is room");
}

fn bodies(folder: &Path) -> Vec<String> {
    let (_, recovered) = Journal::open(folder, Options::default()).expect("it opens");
    recovered.records.iter().map(|record| String::from_utf8_lossy(&record.body).into_owned()).collect()
}

#[test]
fn a_backup_is_whole_while_the_journal_is_written() {
    let parent = tempfile::tempdir().expect("a folder");
    let data = parent.path().join("data");
    let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
    secret::Secrets::open(&data).expect("made");
    commit(&mut journal, 1);
    for round in 0..10_u64 {
        let to = parent.path().join(format!("backup-{round}"));
        let data = &data;
        std::thread::scope(|scope| {
            let taken = scope.spawn(move || backup(data, &to, true, NOW).map(|manifest| (manifest, to)));
            (0..30).for_each(|number| commit(&mut journal, 2 + round * 30 + number));
            let (manifest, to) = taken.join().expect("no panic").expect("it is whole");
            assert_eq!(verify(&to).expect("it is whole"), manifest);
            let restored = parent.path().join(format!("restored-{round}"));
            restore(&to, &restored, false, NOW).expect("there is room");
            let last = manifest.last_record.0;
            assert_eq!(bodies(&restored), (1..=last).map(|number| number.to_string()).collect::<Vec<_>>());
            assert!(last > round * 30, "as of the moment when it was asked for");
            assert!(restored.join(TOKEN_FILE).exists());
        });
    }
}

#[test]
fn a_backup_holds_experiments_and_artifacts_and_a_restore_puts_the_others_aside() {
    use gangline_store::tracking::{ARTIFACTS_FOLDER, ArtifactStore, NewExperiment, Options, Service};
    use gangline_tracking::UnixMillis;
    let parent = tempfile::tempdir().expect("a folder");
    let data = parent.path().join("data");
    let (mut journal, _) = Journal::open(&data, db::Options::default()).expect("a new journal opens");
    commit(&mut journal, 1);
    let open = |data: &Path| {
        let folder = data.join(TRACKING_FOLDER);
        let service = Service::start(&folder, Options { clock: || NOW }).expect("the folder is writable");
        let artifacts = ArtifactStore::of(folder.join(ARTIFACTS_FOLDER), service.handle(), Default::default());
        artifacts.prepare().expect("the folder is writable");
        (service, artifacts)
    };
    let (service, artifacts) = open(&data);
    let new = NewExperiment { name: "gpt".into(), artifact_location: None, tags: Vec::new() };
    service.handle().write(move |writing| writing.create_experiment(new, UnixMillis(1))).expect("it is kept");
    let mut upload = artifacts.begin("u").expect("an upload");
    upload.write(b"contents").expect("there is room");
    artifacts.put("1/r/artifacts/a".into(), upload, UnixMillis(1)).expect("it is kept");
    let to = parent.path().join("backup");
    let manifest = backup(&data, &to, true, NOW).expect("it is whole");
    assert_eq!(manifest.files.iter().filter(|file| is_of_tracking(&file.name)).count(), 2);
    service.stop();

    let restored = parent.path().join("restored");
    let (later, _) = open(&restored);
    later.stop();
    restore(&to, &restored, false, NOW).expect("there is room");
    assert!(restored.join("replaced-0-tracking/tracking.db").exists(), "what was there is kept");
    let (service, artifacts) = open(&restored);
    let found = service.handle().read(|reading| reading.experiment_by_name("gpt")).expect("it reads");
    assert!(found.is_some());
    artifacts.read("1/r/artifacts/a").expect("it is there");
    service.stop();
    std::fs::write(to.join(TRACKING_FOLDER).join("tracking.db"), "changed").expect("writable");
    assert!(matches!(verify(&to), Err(Error::Unusable { .. })));
}

/// Returns a journal whose oldest records are in the archive.
fn archived(data: &Path) -> Journal {
    let (mut journal, _) = Journal::open(data, Options::default()).expect("a new journal opens");
    (1..=20).for_each(|number| commit(&mut journal, number));
    journal.write_snapshot(b"state").expect("there is room");
    (21..=25).for_each(|number| commit(&mut journal, number));
    journal.press();
    journal.sync_anchor();
    let order = journal.order_archive().expect("there is something to archive");
    journal.archived(order.carry_out().expect("there is room"));
    journal.tidy().expect("there is room");
    journal
}

#[test]
fn the_history_archive_and_the_snapshots_are_in_a_backup() {
    let parent = tempfile::tempdir().expect("a folder");
    let [data, to, restored] = ["data", "backup", "restored"].map(|name| parent.path().join(name));
    let journal = archived(&data);
    let manifest = backup(&data, &to, true, NOW).expect("it is whole");
    assert_eq!(manifest.damage, None);
    let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    let beside = ["history/000000000001-000000000020.segment", "snapshots/000000000020.snapshot"];
    assert!(beside.iter().all(|name| names.contains(name)), "{names:?}");
    drop(journal);
    restore(&to, &restored, false, NOW).expect("there is room");
    let (journal, recovered) = Journal::open(&restored, Options::default()).expect("it opens");
    assert_eq!((recovered.snapshot.map(|found| found.sequence), recovered.records.len()), (Some(Sequence(20)), 5));
    let history = journal.reader().history(Sequence::ZERO, 100).expect("it is whole");
    assert_eq!(history.len(), 25);
    drop(journal);
    // A restore replaces all existing files.
    restore(&to, &data, true, NOW).expect("there is room");
    assert!(data.join("replaced-0-history").join(names_of(beside[0])).exists());
    assert!(Journal::open(&data, Options::default()).is_ok());
}

fn names_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[test]
fn a_damaged_segment_is_told_in_its_backup_and_a_changed_one_is_refused() {
    let parent = tempfile::tempdir().expect("a folder");
    let [data, whole, lacking] = ["data", "whole", "lacking"].map(|name| parent.path().join(name));
    drop(archived(&data));
    backup(&data, &whole, true, NOW).expect("it is whole");
    let segment = "history/000000000001-000000000020.segment";
    let mut bytes = fs::read(data.join(segment)).expect("it is there");
    bytes[30] ^= 1;
    // A new file: the one in the first backup may be a hard link to the original.
    fs::remove_file(data.join(segment)).expect("it is ours");
    fs::write(data.join(segment), &bytes).expect("it is ours");
    verify(&whole).expect("the first isn't touched");
    let manifest = backup(&data, &lacking, true, NOW).expect("the rest is worth a backup");
    assert!(manifest.damage.as_ref().is_some_and(|damage| damage.contains(segment)), "{:?}", manifest.damage);
    assert_eq!(verify(&lacking).expect("it is what its manifest says"), manifest);
    fs::remove_file(whole.join(segment)).expect("it is ours");
    assert!(matches!(verify(&whole), Err(Error::File { .. })));
    fs::write(whole.join(segment), &bytes).expect("it is ours");
    assert!(matches!(verify(&whole), Err(Error::Unusable { .. })));
}

#[test]
fn a_journal_that_is_there_is_put_aside_only_when_asked_and_its_ids_stay_used() {
    let parent = tempfile::tempdir().expect("a folder");
    let (data, to) = (parent.path().join("data"), parent.path().join("backup"));
    let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
    commit(&mut journal, 1);
    backup(&data, &to, true, NOW).expect("it is whole");
    commit(&mut journal, 2);
    assert!(matches!(restore(&to, &data, true, NOW), Err(Error::Journal(db::Error::InUse { .. }))));
    drop(journal);
    assert!(matches!(restore(&to, &data, false, NOW), Err(Error::HasJournal { .. })));
    assert!(matches!(backup(&data, &to, true, NOW), Err(Error::NotEmpty { .. })));
    restore(&to, &data, true, NOW).expect("there is room");
    let (_, recovered) = Journal::open(&data, Options::default()).expect("it opens");
    assert_eq!((recovered.records.len(), recovered.given_out), (1, Some(JobId(2))));
    assert!(data.join("replaced-0-journal.sqlite").exists());
}

#[test]
fn what_was_changed_or_cut_off_is_no_backup() {
    let parent = tempfile::tempdir().expect("a folder");
    let (data, to) = (parent.path().join("data"), parent.path().join("backup"));
    let (mut journal, _) = Journal::open(&data, Options::default()).expect("a new journal opens");
    commit(&mut journal, 1);
    backup(&data, &to, true, NOW).expect("it is whole");
    let path = to.join(JOURNAL[0]);
    let mut bytes = fs::read(&path).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).expect("it is ours");
    assert!(matches!(verify(&to), Err(Error::Unusable { .. })));
    assert!(matches!(restore(&to, &parent.path().join("new"), false, NOW), Err(Error::Unusable { .. })));
    assert!(!parent.path().join("new").exists());
    fs::remove_file(to.join(MANIFEST_FILE)).expect("it is ours");
    assert!(matches!(verify(&to), Err(Error::File { .. })));
}

#[test]
fn a_backup_holds_metrics_unless_they_are_left_out() {
    use gangline_telemetry::series::{Batch, Keep, Limits, Options, Query, Row, Scope, Service, Source};
    let parent = tempfile::tempdir().expect("a folder");
    let [data, whole, without] = ["data", "whole", "without"].map(|name| parent.path().join(name));
    let (mut journal, _) = Journal::open(&data, db::Options::default()).expect("a new journal opens");
    commit(&mut journal, 1);
    let scope = Scope::Job(JobId(1));
    let open = |data: &Path| {
        let options = Options { limits: Limits::default(), keep: Keep::default(), clock: || NOW };
        Service::start(data.join(SERIES_FOLDER), options).expect("the folder is writable")
    };
    let points = |service: &Service| {
        let answer = service.handle().query(&Query::all(scope.clone(), 10, 10)).expect("readable");
        answer.curves.iter().map(|curve| curve.buckets.len()).sum::<usize>()
    };
    let service = open(&data);
    for first in [0, 1] {
        let source = Source { scope: scope.clone(), attempt: None, node: None, rank: Some(0), device: None };
        let rows = vec![Row { at: NOW, step: None, values: vec![(0, 1.5)] }];
        let batch = Batch { source, first, names: vec!["loss".to_owned()], rows };
        let (reply, answer) = std::sync::mpsc::channel();
        service.handle().take(batch, move |stored| drop(reply.send(stored)));
        answer.recv().expect("it is answered").expect("there is room");
        // The first row is in a segment, the second in a log.
        if first == 0 {
            service.handle().flush().expect("there is room");
        }
    }
    let manifest = backup(&data, &whole, true, NOW).expect("it is whole");
    assert_eq!(manifest.files.iter().filter(|file| file.name.starts_with("series/")).count(), 2);
    let manifest = backup(&data, &without, false, NOW).expect("it is whole");
    assert!(manifest.files.iter().all(|file| !file.name.starts_with("series/")));
    service.stop();
    drop(journal);
    restore(&without, &data, true, NOW).expect("there is room");
    let kept = open(&data);
    assert_eq!(points(&kept), 2, "what isn't in a backup stays as it is");
    kept.stop();

    let restored = parent.path().join("restored");
    open(&restored).stop();
    restore(&whole, &restored, false, NOW).expect("there is room");
    assert!(restored.join("replaced-0-series").exists(), "what was there is kept");
    let service = open(&restored);
    assert_eq!(points(&service), 2);
    service.stop();
    let segment = fs::read_dir(whole.join("series")).expect("a folder").flatten().next().expect("a file").path();
    fs::remove_file(&segment).expect("it is ours");
    fs::write(&segment, "changed").expect("writable");
    assert!(matches!(verify(&whole), Err(Error::Unusable { .. })));
}

#[test]
fn a_backup_holds_jobs_code_and_templates() {
    let parent = tempfile::tempdir().expect("a folder");
    let [data, to, restored] = ["data", "backup", "restored"].map(|name| parent.path().join(name));
    let (mut journal, _) = Journal::open(&data, db::Options::default()).expect("a new journal opens");
    commit(&mut journal, 1);
    let files = ["code/trees/abc", "code/contents/12/34", "code/jobs/job-1/abc/train.py", "templates/small.yaml"];
    for name in files {
        fs::create_dir_all(data.join(name).parent().expect("a folder")).expect("writable");
        fs::write(data.join(name), name).expect("writable");
    }
    std::os::unix::fs::symlink(data.join(TOKEN_FILE), data.join("templates/link.yaml")).expect("writable");
    backup(&data, &to, true, NOW).expect("it is whole");
    fs::write(data.join("templates/small.yaml"), "changed").expect("writable");
    verify(&to).expect("a template that is edited isn't the backup's");
    restore(&to, &restored, false, NOW).expect("there is room");
    let found = files.map(|name| fs::read_to_string(restored.join(name)).ok());
    assert_eq!(found, [Some(files[0]), Some(files[1]), None, Some(files[3])].map(|text| text.map(str::to_owned)));
    assert!(!restored.join("templates/link.yaml").exists(), "a link isn't followed");
}
