//! A program that is suspended between its last look at its lease and what it then does, for longer than the lease counts.
//! Meanwhile another takes the archive over and changes it. The first is then real: its thread is held in the middle of a push or
//! prune, on a remote in memory and in a folder, and goes on where it was.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gangline_base::Timestamp;
use gangline_objects::Folder;
use gangline_objects::{Fault, Object, Remote, State, Tag};

use super::shelf::Shelf;
use super::{Shelved, patient};
use crate::Step;
use crate::archive::fence::is_mark;
use crate::archive::lease::LEASE_TIME;
use crate::archive::{Archive, Error, Options, Rule};

/// Long after everything was put.
const LATER: Timestamp = Timestamp::from_unix_nanos(1 << 60);

/// Picks a change by what it does (true: it removes an object) and the object's name.
type Pick = fn(bool, &str) -> bool;

/// A remote whose user is suspended once, just before such a change.
struct Suspending<R> {
    remote: R,
    before: Pick,
    is_spent: AtomicBool,
    /// Says that it is suspended, and waits until it is told to go on.
    gate: Mutex<(Sender<()>, Receiver<()>)>,
}

impl<R> Suspending<R> {
    fn pass(&self, is_removal: bool, key: &str) {
        if (self.before)(is_removal, key) && !self.is_spent.swap(true, Ordering::SeqCst) {
            let gate = self.gate.lock().unwrap();
            gate.0.send(()).unwrap();
            // It goes on too when the test has failed.
            let _ = gate.1.recv();
        }
    }
}

impl<R: Remote> Remote for Suspending<R> {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.pass(false, key);
        self.remote.put(key, bytes)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.remote.get(key, range)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        self.remote.list(prefix)
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        self.pass(true, key);
        self.remote.delete(key)
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        self.remote.state(key)
    }

    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        self.pass(false, key);
        self.remote.put_if(key, bytes, tag)
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        self.pass(true, key);
        self.remote.delete_if(key, may)
    }
}

/// A clock that a test sets.
fn clock() -> (Arc<AtomicU64>, Options) {
    let nanos = Arc::new(AtomicU64::new(1));
    let read = Arc::clone(&nanos);
    let clock = move || Timestamp::from_unix_nanos(read.load(Ordering::SeqCst));
    (nanos, Options { clock: Arc::new(clock), ..patient(None) })
}

/// Runs `first` on a thread of its own until it is about to make such a change, lets its lease run out, runs `meanwhile`, and lets `first` go on: what came of it.
fn overtake<R: Remote + 'static, T: Send>(
    remote: R,
    before: Pick,
    first: impl FnOnce(&Archive) -> Result<T, Error> + Send,
    meanwhile: impl FnOnce(&Options),
) -> Result<T, Error> {
    let (nanos, options) = clock();
    let (suspended, is_suspended) = channel();
    let (go_on, may_go_on) = channel();
    let gate = Mutex::new((suspended, may_go_on));
    let remote = Suspending { remote, before, is_spent: AtomicBool::new(false), gate };
    let archive = Archive::over(Box::new(remote), &options);
    let archive = &archive;
    std::thread::scope(move |scope| {
        let first = scope.spawn(move || first(archive));
        is_suspended.recv_timeout(Duration::from_secs(60)).expect("it comes to that");
        nanos.fetch_add(u64::try_from(LEASE_TIME.as_nanos()).unwrap(), Ordering::SeqCst);
        meanwhile(&options);
        go_on.send(()).unwrap();
        first.join().unwrap()
    })
}

fn steps(archive: &Archive) -> Vec<u64> {
    archive.list().unwrap().iter().map(|listed| listed.step.0).collect()
}

fn assert_whole(archive: &Archive) {
    for step in steps(archive) {
        assert!(archive.verify(Step(step)).unwrap().is_good(), "step {step} is whole");
    }
}

/// A push of step 3, suspended before its catalog is put; meanwhile another prunes the checkpoint that it refers to.
fn overtaken_push<R: Remote + 'static>(remote: impl Fn() -> R, place: &Shelved) -> Archive {
    place.store_state(3);
    let late = overtake(
        remote(),
        |_, key| key.starts_with("catalogs/"),
        |archive| archive.push(&place.store, Step(3)),
        |options| {
            let second = Archive::over(Box::new(remote()), options);
            let pruned = second.prune(&[Rule::Last(1)], LATER, false).unwrap();
            assert_eq!(pruned.removed.len(), 1, "{pruned:?}");
            assert_eq!(second.is_fenced(), Some(true));
        },
    );
    assert!(matches!(late, Err(Error::LeaseLost { .. })), "{late:?}");
    Archive::over(Box::new(remote()), &clock().1)
}

#[test]
fn a_push_suspended_just_before_its_catalog_is_put_publishes_nothing_once_another_has_the_archive() {
    let place = Shelved::pushed(2);
    place.shelf.keep_conditions();
    let archive = overtaken_push(|| place.shelf.clone(), &place);
    assert_eq!(steps(&archive), [2]);
    assert_whole(&archive);
    // The mark in its place is in nobody's way.
    assert!(place.shelf.list("catalogs/").unwrap().iter().any(is_mark));
    archive.push(&place.store, Step(3)).unwrap();
    assert_eq!(steps(&archive), [2, 3]);
    assert_whole(&archive);
    assert!(!place.shelf.list("catalogs/").unwrap().iter().any(is_mark));
}

#[test]
fn the_same_holds_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("archive");
    let place = Shelved::with_steps(2);
    let remote = || Folder::new(root.clone());
    let before = Archive::over(Box::new(remote()), &clock().1);
    for step in 1..=2 {
        before.push(&place.store, Step(step)).unwrap();
    }
    let archive = overtaken_push(remote, &place);
    assert_eq!(steps(&archive), [2]);
    assert_whole(&archive);
    archive.push(&place.store, Step(3)).unwrap();
    assert_eq!(steps(&archive), [2, 3]);
    assert_whole(&archive);
}

#[test]
fn a_prune_suspended_before_it_removes_something_removes_nothing_once_another_has_the_archive() {
    let picks: [Pick; 2] =
        [|_, key| key.starts_with("catalogs/"), |is_removal, key| is_removal && key.starts_with("packs/")];
    for before in picks {
        let place = Shelved::pushed(3);
        place.shelf.keep_conditions();
        let late = overtake(
            place.shelf.clone(),
            before,
            |archive| archive.prune(&[Rule::Last(1)], LATER, false),
            |options| {
                let second = Archive::over(Box::new(place.shelf.clone()), options);
                for step in 1..=3 {
                    second.push(&place.store, Step(step)).unwrap();
                }
            },
        );
        assert!(matches!(late, Err(Error::LeaseLost { .. })), "{late:?}");
        place.assert_pulls(&[1, 2, 3]);
    }
}

#[test]
fn a_push_that_came_before_the_takeover_stays() {
    let place = Shelved::pushed(1);
    place.shelf.keep_conditions();
    place.store_state(2);
    // Its catalog is put; it is suspended before it gives the archive back.
    let put = overtake(
        place.shelf.clone(),
        |is_removal, key| is_removal && key.starts_with("leases/"),
        |archive| archive.push(&place.store, Step(2)),
        |options| {
            let second = Archive::over(Box::new(place.shelf.clone()), options);
            assert!(second.push(&place.store, Step(2)).unwrap().was_archived);
        },
    );
    assert!(put.is_ok(), "{put:?}");
    place.assert_pulls(&[1, 2]);
}

/// A remote that forgets the condition, as servers do that don't know it.
struct Forgetful(Shelf);

impl Remote for Forgetful {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.0.put(key, bytes)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.0.get(key, range)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        self.0.list(prefix)
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        self.0.delete(key)
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        self.0.state(key)
    }

    fn put_if(&self, key: &str, bytes: &[u8], _: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        self.0.put(key, bytes)?;
        Ok(self.0.state(key)?.map(|state| state.tag))
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        self.0.delete_if(key, may)
    }
}

#[test]
fn a_server_that_forgets_conditions_is_found_out_and_used_without_them() {
    let place = Shelved::with_steps(1);
    let archive = Archive::over(Box::new(Forgetful(place.shelf.clone())), &clock().1);
    assert_eq!(archive.is_fenced(), None, "not tried yet");
    archive.push(&place.store, Step(1)).unwrap();
    assert_eq!(archive.is_fenced(), Some(false));
    place.assert_pulls(&[1]);
    let keys: Vec<String> = place.shelf.objects().into_keys().collect();
    assert!(keys.iter().all(|key| !key.starts_with("probes/")), "{keys:?}");
}
