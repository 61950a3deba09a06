//! What is kept: durable, whole, and found again.

use std::path::Path;

use gangline_base::Timestamp;
use gangline_tracking::{
    CheckpointVersion, Code, Entry, ExperimentId, Lifecycle, Metric, ModelAction, ModelEvent, Point, RunStatus, Stage,
    UnixMillis, View,
};
use tempfile::TempDir;

use super::*;

const NOW: UnixMillis = UnixMillis(1_795_000_000_000);

fn now() -> Timestamp {
    Timestamp::from_unix_nanos(NOW.0.cast_unsigned() * 1_000_000)
}

fn open(folder: &Path) -> Service {
    Service::start(folder, Options { clock: now }).expect("the folder is writable")
}

fn fresh() -> (TempDir, Service) {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let service = open(folder.path());
    (folder, service)
}

fn new_run(id: &str) -> NewRun {
    NewRun {
        id: id.into(),
        experiment: ExperimentId(0),
        name: None,
        default_name: "swift-otter-1".into(),
        user: "ada".into(),
        start: NOW,
        tags: Vec::new(),
    }
}

fn make_run(handle: &Handle, id: &str) {
    let new = new_run(id);
    handle.write(move |writing| writing.create_run(new)).expect("a run");
}

fn logged(key: &str, step: i64, value: f64) -> Logged {
    let point = Point { at: UnixMillis(NOW.0 + step), step, value };
    let metric = Metric { key: key.into(), point };
    Logged { metric, model: None, dataset_name: None, dataset_digest: None }
}

fn log(handle: &Handle, run: &str, metrics: Vec<Logged>) -> Result<(), Failure> {
    let (run, batch) = (run.to_owned(), MetricBatch { metrics, ..MetricBatch::default() });
    handle.write(move |writing| writing.log_batch(&run, batch))
}

fn code(failure: Failure) -> Option<Code> {
    match failure {
        Failure::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

#[test]
fn a_history_of_many_parts_comes_back_whole_after_a_restart() {
    let (folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    let mut sent = Vec::new();
    for batch in 0..7 {
        let metrics: Vec<Logged> = (0..45)
            .map(|index| logged("loss", batch * 45 + index, f64::from(u8::try_from(index).expect("few"))))
            .collect();
        sent.extend(metrics.iter().map(|logged| logged.metric.point));
        log(&handle, "r1", metrics).expect("they are kept");
    }
    service.stop();
    let service = open(folder.path());
    let points = service.handle().read(|reading| reading.metric_history("r1", "loss")).expect("a history");
    assert_eq!(points, sent);
    let run = service.handle().read(|reading| reading.run("r1")).expect("a run");
    assert_eq!(run.metrics, [Metric { key: "loss".into(), point: sent[sent.len() - 1] }]);
    let curve =
        service.handle().read(|reading| reading.metric_curve("r1", "loss", Some((10, 19)), 3)).expect("a curve");
    assert_eq!(curve.iter().map(|point| point.step).collect::<Vec<_>>(), [10, 14, 19]);
    service.stop();
}

#[test]
fn points_that_were_logged_twice_are_shown_once() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    for _ in 0..3 {
        log(&handle, "r1", vec![logged("a", 1, f64::NAN), logged("a", 1, 0.0), logged("a", 0, 2.0)]).expect("kept");
    }
    let points = handle.read(|reading| reading.metric_history("r1", "a")).expect("a history");
    assert_eq!(points.len(), 3, "NaN and 0 are two values: {points:?}");
    service.stop();
}

#[test]
fn a_batch_is_kept_whole_or_not_at_all() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    let param = |value: &str| vec![Entry { key: "lr".into(), value: value.into() }];
    let batch = |value: &str, key: &str| MetricBatch {
        metrics: vec![logged(key, 1, 1.0)],
        params: param(value),
        tags: vec![Entry { key: key.into(), value: "x".into() }],
    };
    let first = batch("1", "first");
    handle.write(move |writing| writing.log_batch("r1", first)).expect("kept");
    let changed = batch("2", "second");
    let refused = handle.write(move |writing| writing.log_batch("r1", changed)).expect_err("a changed parameter");
    assert_eq!(code(refused), Some(Code::InvalidParameterValue));
    let run = handle.read(|reading| reading.run("r1")).expect("a run");
    assert_eq!(run.metrics.len(), 1);
    assert!(run.tags.iter().all(|tag| tag.key != "second"));
    service.stop();
}

/// Changes that wait together share a commit; one that is refused leaves the others alone.
#[test]
fn changes_of_many_threads_are_kept_beside_refused_ones() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                let run = format!("r{thread}");
                make_run(&handle, &run);
                for step in 0..40 {
                    log(&handle, &run, vec![logged("loss", step, 1.0)]).expect("kept");
                    log(&handle, &run, vec![logged("../loss", step, 1.0)]).expect_err("a bad key");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panicked"));
    for thread in 0..8 {
        let points = handle.read(|reading| reading.metric_history(&format!("r{thread}"), "loss")).expect("a history");
        assert_eq!(points.len(), 40);
    }
    service.stop();
}

#[test]
fn a_deleted_run_takes_nothing_until_it_is_restored() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    handle.write(|writing| writing.set_run_lifecycle("r1", Lifecycle::Deleted)).expect("it is deleted");
    let refused = log(&handle, "r1", vec![logged("a", 0, 1.0)]).expect_err("it is deleted");
    assert_eq!(code(refused), Some(Code::InvalidParameterValue));
    let search = Search { count_max: 10, ..Search::default() };
    let found = |view| {
        let page = handle.read(|reading| reading.search_runs(&[ExperimentId(0)], view, &search)).expect("a page");
        page.found.len()
    };
    assert_eq!((found(View::Active), found(View::Deleted), found(View::All)), (0, 1, 1));
    handle.write(|writing| writing.set_run_lifecycle("r1", Lifecycle::Active)).expect("it is restored");
    log(&handle, "r1", vec![logged("a", 0, 1.0)]).expect("kept");
    let change = RunChange { status: Some(RunStatus::Finished), ..RunChange::default() };
    let info = handle.write(|writing| writing.update_run("r1", change)).expect("it changes");
    assert_eq!((info.status, info.end), (RunStatus::Finished, None));
    service.stop();
}

#[test]
fn a_number_of_a_version_is_given_once() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    let version = |handle: &Handle| {
        let new = NewModelVersion { name: "net".into(), source: "s3://a".into(), ..NewModelVersion::default() };
        handle.write(move |writing| writing.create_model_version(new, NOW)).expect("a version").version
    };
    handle.write(|writing| writing.create_registered_model("net", None, &[], NOW)).expect("a model");
    assert_eq!((version(&handle), version(&handle)), (1, 2));
    handle.write(|writing| writing.set_alias("net", "champion", 2)).expect("an alias");
    handle.write(|writing| writing.delete_model_version("net", 2, NOW)).expect("it is deleted");
    assert_eq!(version(&handle), 3);
    let model = handle.read(|reading| reading.registered_model("net")).expect("a model");
    assert!(model.aliases.is_empty(), "no alias points at a version that is gone");
    service.stop();
}

/// A search that SQLite would find too long is the client's fault.
#[test]
fn a_search_of_too_many_datasets_is_refused() {
    let (_folder, service) = fresh();
    let search = |datasets: usize| {
        let datasets = vec![("corpus".to_owned(), None); datasets];
        let wanted = SearchLoggedModels { datasets, ..SearchLoggedModels::default() };
        service.handle().read(|reading| reading.search_logged_models(&wanted)).map(|page| page.found.len())
    };
    assert_eq!(search(20), Ok(0));
    assert_eq!(search(20_000).map_err(code), Err(Some(Code::InvalidParameterValue)));
    service.stop();
}

fn artifacts(folder: &Path, handle: Handle) -> ArtifactStore {
    let store = ArtifactStore::of(folder.join("artifacts"), handle, Remotes::default());
    store.prepare().expect("the folder is writable");
    store
}

pub(super) fn put(store: &ArtifactStore, path: &str, contents: &[u8]) -> Result<StoredArtifact, Failure> {
    let mut upload = store.begin(&format!("upload-{}", path.replace('/', "-")))?;
    upload.write(contents)?;
    store.put(path.into(), upload, NOW)
}

fn contents(store: &ArtifactStore, path: &str) -> Vec<u8> {
    let mut reader = store.read(path).expect("an artifact");
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece().expect("it can be read") {
        bytes.extend(piece);
    }
    assert_eq!(bytes.len() as u64, reader.stored().bytes);
    bytes
}

/// Files of the folder of contents, without the uploads.
fn files(folder: &Path) -> usize {
    let folders = std::fs::read_dir(folder.join("artifacts")).expect("a folder").map(|entry| entry.expect("an entry"));
    let folders = folders.filter(|entry| entry.file_name() != "incoming");
    folders.map(|entry| std::fs::read_dir(entry.path()).expect("a folder").count()).sum()
}

#[test]
fn equal_contents_are_kept_once_and_go_with_their_last_artifact() {
    let (folder, service) = fresh();
    let store = artifacts(folder.path(), service.handle());
    put(&store, "0/a/model/weights", b"weights").expect("kept");
    put(&store, "0/b/weights", b"weights").expect("kept");
    put(&store, "0/a/notes.txt", b"").expect("kept");
    assert_eq!(files(folder.path()), 2);
    assert_eq!(contents(&store, "0/b/weights"), b"weights");
    store.remove("0/a".into()).expect("a folder is removed whole");
    assert_eq!((files(folder.path()), contents(&store, "0/b/weights")), (1, b"weights".to_vec()));
    put(&store, "0/b/weights", b"better weights").expect("replaced");
    assert_eq!((files(folder.path()), contents(&store, "0/b/weights")), (1, b"better weights".to_vec()));
    store.remove("0/b/weights".into()).expect("removed");
    assert_eq!(files(folder.path()), 0);
    store.remove("0/b/weights".into()).expect_err("it is gone");
    service.stop();
}

#[test]
fn folders_are_listed_with_what_lies_in_them() {
    let (folder, service) = fresh();
    let store = artifacts(folder.path(), service.handle());
    for path in ["r/a/x", "r/a/y/z", "r/a b", "r/a.txt", "r/b", "r2/c"] {
        put(&store, path, path.as_bytes()).expect("kept");
    }
    let list = |path: &str| {
        let listed = store.list(path).expect("a listing");
        listed.into_iter().map(|entry| (entry.name, entry.bytes)).collect::<Vec<_>>()
    };
    let entry = |name: &str, bytes| (name.to_owned(), bytes);
    assert_eq!(list(""), [entry("r", None), entry("r2", None)]);
    assert_eq!(list("r"), [entry("a", None), entry("a b", Some(5)), entry("a.txt", Some(7)), entry("b", Some(3))]);
    assert_eq!(list("r/a"), [entry("x", Some(5)), entry("y", None)]);
    assert_eq!(list("r/b"), []);
    store.list("../r").expect_err("another place");
    for (path, reason) in [("r/b/c", "is an artifact"), ("r/a", "is a folder"), ("../a", "Invalid path")] {
        let refused = put(&store, path, b"x").expect_err(path).to_string();
        assert!(refused.contains(reason), "{path}: {refused}");
    }
    service.stop();
}

/// An upload that is cut off is never listed, and its file goes at the next start at the latest.
#[test]
fn what_was_cut_off_leaves_nothing() {
    let (folder, service) = fresh();
    let store = artifacts(folder.path(), service.handle());
    let mut upload = store.begin("one").expect("an upload");
    upload.write(b"half").expect("written");
    let incoming = folder.path().join("artifacts/incoming");
    let waiting = || std::fs::read_dir(&incoming).expect("a folder").count();
    assert_eq!(waiting(), 1);
    drop(upload);
    assert_eq!(waiting(), 0);
    std::fs::write(incoming.join("of a killed process"), b"half").expect("written");
    store.prepare().expect("the folder is there");
    assert_eq!((waiting(), store.list("").expect("a listing").len()), (0, 0));
    service.stop();
}

#[test]
fn a_newer_database_is_refused() {
    let (folder, service) = fresh();
    service.stop();
    let database = rusqlite::Connection::open(folder.path().join("tracking.db")).expect("it is there");
    database.pragma_update(None, "user_version", 99).expect("it is a test's");
    drop(database);
    let failure = Service::start(folder.path(), Options { clock: now }).expect_err("a newer version");
    assert!(failure.to_string().contains("a newer Gangline wrote it (version 99"), "{failure}");
}

/// Proves A-7 for tracking: after a failed commit nothing more is written, and what is durable can be read.
#[test]
fn a_failed_commit_poisons_the_writer_and_reading_goes_on() {
    let (folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    // A change that breaks off the transaction that it shares makes the commit fail.
    let broken = handle.write(|writing| Ok(writing.0.execute_batch("ROLLBACK")?)).expect_err("the commit fails");
    assert!(matches!(broken, Failure::Store(_)), "{broken:?}");
    let refused = log(&handle, "r1", vec![logged("a", 0, 1.0)]).expect_err("nothing more is written");
    assert!(matches!(refused, Failure::Poisoned(_)), "{refused:?}");
    assert!(handle.read(|reading| reading.run("r1")).is_ok());
    service.stop();
    let service = open(folder.path());
    log(&service.handle(), "r1", vec![logged("a", 0, 1.0)]).expect("a restart writes again");
    service.stop();
}

/// An error within a change is that change's alone.
#[test]
fn a_change_that_fails_in_the_database_leaves_others_alone() {
    let (folder, service) = fresh();
    let handle = service.handle();
    make_run(&handle, "r1");
    let database = rusqlite::Connection::open(folder.path().join("tracking.db")).expect("it is there");
    let trigger = "CREATE TRIGGER fails BEFORE INSERT ON run BEGIN SELECT RAISE(FAIL, 'no luck'); END";
    database.execute_batch(trigger).expect("it is a test's");
    let new = new_run("r2");
    assert!(matches!(handle.write(move |writing| writing.create_run(new)), Err(Failure::Store(_))));
    log(&handle, "r1", vec![logged("a", 0, 1.0)]).expect("others go on");
    service.stop();
}

fn checkpoint(step: u64) -> CheckpointVersion {
    CheckpointVersion {
        folder: "/runs/a".into(),
        step,
        content_hash: format!("{step:064x}"),
        pin: format!("/runs/a/.gangline/pinned/{step:064x}"),
        lineage: "{}".into(),
    }
}

fn register(handle: &Handle, name: &'static str, step: u64) -> (u32, bool) {
    let new = NewModelVersion { name: name.into(), source: format!("/runs/a@{step}"), ..NewModelVersion::default() };
    let registered = handle.write(move |writing| writing.register_checkpoint(new, &checkpoint(step), ("ada", NOW)));
    let (version, is_new) = registered.expect("it is kept");
    (version.version, is_new)
}

#[test]
fn a_checkpoint_is_one_version_of_a_model_however_often_it_is_registered() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    assert_eq!(register(&handle, "gpt", 20), (1, true));
    assert_eq!(register(&handle, "gpt", 40), (2, true));
    assert_eq!(register(&handle, "gpt", 20), (1, false));
    assert_eq!(register(&handle, "other", 20), (1, true));
    let found = handle.read(|reading| reading.checkpoint_version("gpt", 2)).expect("it is there");
    assert_eq!(found, Some(checkpoint(40)));
}

#[test]
fn production_waits_for_a_verified_checkpoint_by_whichever_way_it_is_asked_for() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    register(&handle, "gpt", 20);
    let promote = || handle.write(|writing| writing.promote(("gpt", 1), "production", "ada", NOW));
    let alias = |alias: &'static str| handle.write(move |writing| writing.set_alias("gpt", alias, 1));
    let stage = || handle.write(|writing| writing.move_to_stage(("gpt", 1), Stage::Production, false, NOW));
    for outcome in [promote(), alias("production"), stage().map(|_| ())] {
        assert_eq!(code(outcome.expect_err("it wasn't verified")), Some(Code::InvalidState));
    }
    alias("candidate").expect("any version may be one");
    let verified = ModelEvent { at: NOW, by: "bob".into(), action: ModelAction::Verified, detail: String::new() };
    handle.write(move |writing| writing.note_model_event("gpt", 1, &verified)).expect("it is kept");
    promote().expect("it was verified");
    promote().expect("a second time changes nothing");
    stage().expect("it was verified");
    let events = handle.read(|reading| reading.model_events("gpt", 1)).expect("its history");
    let actions: Vec<(&str, &str)> = events.iter().map(|event| (event.action.name(), event.by.as_str())).collect();
    assert_eq!(actions, [("registered", "ada"), ("verified", "bob"), ("promoted", "ada")]);
    for number in 0..150 {
        let exported =
            ModelEvent { at: NOW, by: "bob".into(), action: ModelAction::Exported, detail: number.to_string() };
        handle.write(move |writing| writing.note_model_event("gpt", 1, &exported)).expect("it is kept");
    }
    let events = handle.read(|reading| reading.model_events("gpt", 1)).expect("its history");
    assert_eq!((events.len(), events[3].detail.as_str()), (103, "50"), "the newest of each action are kept");
}

#[test]
fn a_pin_is_needed_until_the_last_version_of_its_checkpoint_is_deleted() {
    let (_folder, service) = fresh();
    let handle = service.handle();
    let pin = PinRow { folder: "/runs/a".into(), content_hash: checkpoint(20).content_hash };
    let unneeded = || handle.read(|reading| reading.unneeded_pins()).expect("the pins");
    let intended = pin.clone();
    handle.write(move |writing| writing.intend_pin(&intended)).expect("it is kept");
    assert_eq!(unneeded(), std::slice::from_ref(&pin), "as after a crash before the version was made");
    register(&handle, "gpt", 20);
    register(&handle, "other", 20);
    handle.write(|writing| writing.delete_model_version("gpt", 1, NOW)).expect("it is there");
    assert_eq!(unneeded(), []);
    handle.write(|writing| writing.delete_registered_model("other")).expect("it is there");
    assert_eq!(unneeded(), std::slice::from_ref(&pin));
    handle.write(move |writing| writing.forget_pin(&pin)).expect("it is kept");
    assert_eq!(unneeded(), []);
}

#[test]
fn a_database_of_the_first_version_gets_what_it_lacks() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let old = Connection::open(folder.path().join("tracking.db")).expect("a database");
    old.execute_batch(include_str!("schema.sql")).expect("its tables");
    let made = "INSERT INTO experiment VALUES (0, 'Default', '', 'active', 0, 0); PRAGMA user_version = 1;";
    old.execute_batch(made).expect("its rows");
    drop(old);
    let service = open(folder.path());
    make_run(&service.handle(), "r1");
    assert_eq!(register(&service.handle(), "gpt", 20), (1, true));
}

#[test]
fn a_copy_is_as_of_one_moment_while_runs_and_artifacts_come_and_go() {
    let (folder, service) = fresh();
    let data = folder.path().join("data");
    let moved = Service::start(&data.join(TRACKING_FOLDER), Options { clock: now }).expect("the folder is writable");
    service.stop();
    let handle = moved.handle();
    let artifacts =
        ArtifactStore::of(data.join(TRACKING_FOLDER).join(ARTIFACTS_FOLDER), handle.clone(), Remotes::default());
    artifacts.prepare().expect("the folder is writable");
    make_run(&handle, "r1");
    let put = |number: i64| {
        let mut upload = artifacts.begin(&format!("u{number}")).expect("an upload");
        upload.write(format!("contents {number}").as_bytes()).expect("there is room");
        artifacts.put(format!("0/r1/artifacts/a{number}"), upload, NOW).expect("it is kept");
    };
    put(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..60 {
                put(number);
                log(&handle, "r1", vec![logged("loss", number, 0.5)]).expect("they are kept");
                if number % 3 == 0 {
                    artifacts.remove(format!("0/r1/artifacts/a{}", number - 1)).expect("it is there");
                }
            }
        });
        for round in 0..5 {
            let to = folder.path().join(format!("copy-{round}"));
            let names = copy_tracking(&data, &to).expect("there is room");
            assert!(names.iter().all(|name| is_of_tracking(name)), "{names:?}");
            let copy = open(&to.join(TRACKING_FOLDER));
            let copied =
                ArtifactStore::of(to.join(TRACKING_FOLDER).join(ARTIFACTS_FOLDER), copy.handle(), Remotes::default());
            copied.prepare().expect("the folder is writable");
            for entry in copied.list("0/r1/artifacts").expect("a folder") {
                contents(&copied, &format!("0/r1/artifacts/{}", entry.name));
            }
            copy.stop();
        }
        writer.join().expect("no panic");
    });
    moved.stop();
    for strange in ["tracking/other", "tracking/artifacts/../../x", "tracking/artifacts/aa/bb", "x/tracking.db"] {
        assert!(!is_of_tracking(strange), "{strange}");
    }
}
