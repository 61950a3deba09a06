//! Two programs that would change one archive: never both at once, and never none for ever.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use gangline_base::Timestamp;
use gangline_objects::{Fault, Link, Object, Policy, Remote, State, Tag};

use super::shelf::{Act, Outcome, Shelf};
use super::{Shelved, patient};
use crate::Step;
use crate::archive::lease::{LEASE_TIME, Lease, RENEWAL_AGE, SILENCE_MAX};
use crate::archive::vault::KeyId;
use crate::archive::{Error, Options, Rule};

fn link(remote: impl Remote + 'static) -> Link {
    Link::new(Box::new(remote), Policy { bytes_per_second_max: None, first_pause: Duration::ZERO })
}

/// A clock that a test sets, and the options that have it.
fn clock() -> (Arc<AtomicU64>, Options) {
    let nanos = Arc::new(AtomicU64::new(1));
    let read = Arc::clone(&nanos);
    let options =
        Options { clock: Arc::new(move || Timestamp::from_unix_nanos(read.load(Ordering::Relaxed))), ..patient(None) };
    (nanos, options)
}

fn pass(nanos: &AtomicU64, time: Duration) {
    nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
}

fn take<'a>(link: &'a Link, options: &'a Options, name: u8) -> Result<Lease<'a>, Error> {
    Lease::take(link, &*options.clock, KeyId::from_bytes([name; KeyId::BYTES]), "test")
}

fn leases(shelf: &Shelf) -> Vec<(String, Vec<u8>)> {
    shelf.objects().into_iter().filter(|(key, _)| key.starts_with("leases/")).collect()
}

/// Puts a changed lease in the place of the one that is there.
fn change_lease(shelf: &Shelf, from: &str, to: &str) {
    let mut objects = shelf.objects();
    for (key, bytes) in leases(shelf) {
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(from), "{text}");
        let body = text.rsplit_once(",\"checksum\"").unwrap().0.replacen(from, to, 1);
        objects.insert(key, super::hostile::sealed(&body));
    }
    shelf.set(objects);
}

#[test]
fn who_comes_while_another_changes_the_archive_is_refused_by_name_and_reading_goes_on() {
    let place = Shelved::pushed(1);
    place.store_state(2);
    let options = patient(None);
    let link = link(place.shelf.clone());
    let lease = take(&link, &options, 7).unwrap();
    let before = place.shelf.objects();
    for refused in [
        place.archive.push(&place.store, Step(2)).map(drop),
        place.archive.prune(&[Rule::Last(1)], Timestamp::EPOCH, false).map(drop),
    ] {
        let Err(Error::Held { by, purpose, .. }) = refused else { panic!("{refused:?}") };
        assert!(by.contains(&std::process::id().to_string()) && purpose == "test", "{by}, {purpose}");
    }
    assert!(place.shelf.objects() == before, "nothing has changed");
    assert!(place.archive.prune(&[Rule::Last(1)], Timestamp::EPOCH, true).is_ok(), "a dry run only reads");
    place.assert_pulls(&[1]);
    lease.release();
    place.archive.push(&place.store, Step(2)).unwrap();
    assert_eq!(leases(&place.shelf), [], "who is done leaves no lease");
}

/// A remote on which another's lease appears between the first look and the put.
struct Intruded {
    shelf: Shelf,
    other: (String, Vec<u8>),
}

impl Remote for Intruded {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.shelf.put(&self.other.0, &self.other.1)?;
        self.shelf.put(key, bytes)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.shelf.get(key, range)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        self.shelf.list(prefix)
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        self.shelf.delete(key)
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        self.shelf.state(key)
    }

    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        self.shelf.put_if(key, bytes, tag)
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        self.shelf.delete_if(key, may)
    }
}

#[test]
fn of_two_that_come_at_once_the_later_gives_up() {
    let (_, options) = clock();
    let shelf = Shelf::default();
    let first = link(shelf.clone());
    let _lease = take(&first, &options, 1).unwrap();
    let other = leases(&shelf).remove(0);
    shelf.set(Default::default());
    let second = link(Intruded { shelf: shelf.clone(), other: other.clone() });
    assert!(matches!(take(&second, &options, 2), Err(Error::Held { .. })));
    assert_eq!(leases(&shelf), [other], "it took its own away");
}

#[test]
fn never_do_two_of_many_have_the_archive() {
    let (_, options) = clock();
    let (shelf, holders, held) = (Shelf::default(), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for name in 0..4 {
            let (shelf, options, holders, held) = (shelf.clone(), &options, &holders, &held);
            scope.spawn(move || {
                let link = link(shelf);
                for _ in 0..2_000 {
                    let Ok(lease) = take(&link, options, name) else { continue };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    held.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    holders.fetch_sub(1, Ordering::SeqCst);
                    lease.release();
                }
            });
        }
    });
    assert!(held.into_inner() > 100);
    assert_eq!(leases(&shelf), []);
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_its_owner_notices_before_anything_is_visible() {
    let (nanos, options) = clock();
    let shelf = Shelf::default();
    let link = link(shelf.clone());
    let old = take(&link, &options, 1).unwrap();
    pass(&nanos, LEASE_TIME - Duration::from_secs(1));
    assert!(matches!(take(&link, &options, 2), Err(Error::Held { .. })), "a second too early");
    pass(&nanos, Duration::from_secs(1));
    let new = take(&link, &options, 2).unwrap();
    assert!(matches!(old.check(), Err(Error::LeaseLost { .. })));
    assert!(matches!(old.keep(), Err(Error::LeaseLost { .. })));
    new.check().unwrap();
    assert_eq!(leases(&shelf).len(), 1, "the old one is taken away");
}

#[test]
fn a_push_that_was_suspended_does_not_publish_what_another_may_have_pruned() {
    let (nanos, options) = clock();
    let place = Shelved::with_options(1, &options);
    let passed = Arc::clone(&nanos);
    place.shelf.plan(move |_, key| {
        if key.starts_with("packs/") {
            pass(&passed, SILENCE_MAX);
        }
        Outcome::Done
    });
    let refused = place.archive.push(&place.store, Step(1)).unwrap_err();
    assert!(matches!(refused, Error::LeaseLost { .. }), "{refused:?}");
    place.shelf.heal();
    assert!(place.archive.list().unwrap().is_empty());
    place.archive.push(&place.store, Step(1)).unwrap();
}

#[test]
fn a_push_whose_lease_was_taken_away_publishes_nothing() {
    let place = Shelved::with_steps(1);
    place.shelf.plan(|act, key| {
        let is_lease = act == Act::Put && key.starts_with("leases/");
        if is_lease { Outcome::Lost } else { Outcome::Done }
    });
    let refused = place.archive.push(&place.store, Step(1)).unwrap_err();
    assert!(matches!(refused, Error::LeaseLost { .. }), "{refused:?}");
    assert!(place.archive.list().unwrap().is_empty());
}

#[test]
fn a_lease_is_renewed_while_its_owner_works() {
    let (nanos, options) = clock();
    let shelf = Shelf::default();
    let link = link(shelf.clone());
    let lease = take(&link, &options, 1).unwrap();
    for _ in 0..20 {
        let before = leases(&shelf);
        lease.keep().unwrap();
        assert_eq!(leases(&shelf), before, "not before it is time");
        pass(&nanos, RENEWAL_AGE);
        lease.keep().unwrap();
        assert_ne!(leases(&shelf), before);
        assert!(matches!(take(&link, &options, 2), Err(Error::Held { .. })));
    }
    pass(&nanos, SILENCE_MAX + Duration::from_secs(1));
    assert!(matches!(lease.keep(), Err(Error::LeaseLost { .. })), "silent for too long");
}

#[test]
fn the_lease_of_a_process_that_is_gone_counts_only_if_it_was_of_another_machine() {
    let (_, options) = clock();
    let began = |text: &str| text.split_once("\"began\":\"").unwrap().1.split_once('"').unwrap().0.to_owned();
    for is_elsewhere in [false, true] {
        let shelf = Shelf::default();
        let link = link(shelf.clone());
        let _lease = take(&link, &options, 1).unwrap();
        let text = String::from_utf8(leases(&shelf).remove(0).1).unwrap();
        // Another process that had this one's number.
        change_lease(&shelf, &format!("\"began\":\"{}\"", began(&text)), "\"began\":\"1\"");
        if is_elsewhere {
            change_lease(&shelf, "\"machine\":\"", "\"machine\":\"another, ");
            assert!(matches!(take(&link, &options, 2), Err(Error::Held { .. })));
        } else {
            take(&link, &options, 2).unwrap();
            assert_eq!(leases(&shelf).len(), 1);
        }
    }
}

#[test]
fn a_lease_that_cannot_be_read_is_not_passed_over() {
    let (_, options) = clock();
    let shelf = Shelf::default();
    let link = link(shelf.clone());
    let _lease = take(&link, &options, 1).unwrap();
    let mut objects = shelf.objects();
    objects.values_mut().next().unwrap()[30] ^= 1;
    shelf.set(objects);
    assert!(matches!(take(&link, &options, 2), Err(Error::Corrupt { .. })));
}
