//! A remote that throttles, times out, loses or cuts off, and pushes and prunes that are killed between any two changes.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::Timestamp;
use gangline_objects::TRIES_MAX;

use super::shelf::{Act, Outcome};
use super::{Shelved, contents, state};
use crate::archive::vault::Vault;
use crate::archive::{Error, Rule};
use crate::{Digest, Flaw, Step};

/// Long after everything was put.
const LATER: Duration = Duration::from_secs(1 << 30);

fn later() -> Timestamp {
    Timestamp::EPOCH + LATER
}

/// The objects that pushes of these steps leave when nothing goes wrong.
fn undisturbed(steps: u64) -> BTreeMap<String, Digest> {
    let place = Shelved::with_steps(steps);
    for step in 1..=steps {
        place.archive.push(&place.store, Step(step)).unwrap();
    }
    place.shelf.summary(&Vault::Plain)
}

#[test]
fn what_passes_is_tried_again_and_every_push_still_ends_well() {
    let packs = undisturbed(2).keys().filter(|key| key.starts_with("packs/")).count();
    assert!(packs >= 5, "{packs} packs");
    for outcome in [Outcome::Refused, Outcome::Unanswered, Outcome::Short] {
        for acts in [[Act::Put, Act::Put], [Act::Get, Act::List]] {
            let place = Shelved::with_steps(2);
            let mut is_second = false;
            place.shelf.plan(move |act, _| {
                is_second = !is_second && acts.contains(&act) && (outcome != Outcome::Short || act == Act::Get);
                if is_second { outcome } else { Outcome::Done }
            });
            place.archive.push(&place.store, Step(1)).unwrap();
            place.archive.push(&place.store, Step(2)).unwrap();
            place.assert_pulls(&[1, 2]);
        }
    }
}

#[test]
fn a_remote_that_goes_on_refusing_is_given_up_by_name_and_nothing_is_visible() {
    for refused in ["packs/", "catalogs/"] {
        let place = Shelved::with_steps(1);
        place.shelf.plan(
            move |act, key| {
                if act == Act::Put && key.starts_with(refused) { Outcome::Refused } else { Outcome::Done }
            },
        );
        let failed = place.archive.push(&place.store, Step(1)).unwrap_err();
        let Error::Remote { act: "put", key, tries: TRIES_MAX, source } = &failed else { panic!("{failed:?}") };
        assert!(key.starts_with(refused) && source.to_string().contains("503"), "{failed:?}");
        assert!(place.archive.list().unwrap().is_empty());
    }
}

#[test]
fn what_does_not_pass_is_not_tried_again() {
    let place = Shelved::with_steps(1);
    place.shelf.plan(|act, _| if act == Act::Put { Outcome::Denied } else { Outcome::Done });
    let failed = place.archive.push(&place.store, Step(1)).unwrap_err();
    assert!(matches!(failed, Error::Remote { tries: 1, .. }), "{failed:?}");
}

#[test]
fn an_object_that_is_too_short_is_not_asked_for_again() {
    let place = Shelved::with_steps(1);
    place.archive.push(&place.store, Step(1)).unwrap();
    let mut objects = place.shelf.objects();
    let packs: Vec<&mut Vec<u8>> =
        objects.iter_mut().filter(|(key, _)| key.starts_with("packs/")).map(|(_, bytes)| bytes).collect();
    packs.into_iter().for_each(|pack| pack.truncate(pack.len() / 2));
    place.shelf.set(objects);
    place.shelf.acts();
    let report = place.archive.verify(Step(1)).unwrap();
    assert!(!report.is_good());
    let asked = place.shelf.acts().iter().filter(|(act, key)| *act == Act::Get && key.starts_with("packs/")).count();
    let answered = report.tensors_good + report.problems.len();
    assert!(asked <= answered, "{asked} requests for {answered} answers");
}

/// Proves A-6 for the archive: a checkpoint is there whole or not at all, whenever the pushing process dies.
#[test]
fn a_push_killed_between_any_two_objects_leaves_nothing_visible_and_the_next_goes_on_where_it_was() {
    let whole = undisturbed(2);
    let mut resumed = Vec::new();
    for changes in 0..1_000 {
        let place = Shelved::with_steps(2);
        place.archive.push(&place.store, Step(1)).unwrap();
        place.shelf.die_after(changes);
        let outcome = place.archive.push(&place.store, Step(2));
        place.shelf.heal();
        if outcome.is_ok() {
            assert!(changes > 3, "a push of some packs and a catalog");
            assert_eq!(place.shelf.summary(&Vault::Plain), whole);
            // The first change is the lease, the last but one the catalog, the last the lease's end.
            let expected: Vec<usize> = std::iter::once(0).chain(0..changes - 1).collect();
            assert_eq!(resumed, expected, "each pack that was there is not put again");
            return;
        }
        let steps: Vec<Step> = place.archive.list().unwrap().iter().map(|listed| listed.step).collect();
        assert_eq!(steps, [Step(1)], "killed after {changes} changes");
        place.assert_pulls(&[1]);
        let again = place.archive.push(&place.store, Step(2)).unwrap();
        resumed.push(again.packs_resumed);
        assert_eq!(place.shelf.summary(&Vault::Plain), whole, "killed after {changes} changes");
        place.assert_pulls(&[1, 2]);
    }
    panic!("a push makes fewer than a thousand changes");
}

#[test]
fn a_pack_that_is_lost_without_an_error_is_missed_before_the_catalog_is_put() {
    let place = Shelved::with_steps(1);
    let mut puts = 0;
    place.shelf.plan(move |act, _| {
        puts += usize::from(act == Act::Put);
        // The first is the lease.
        if act == Act::Put && puts == 3 { Outcome::Lost } else { Outcome::Done }
    });
    let failed = place.archive.push(&place.store, Step(1)).unwrap_err();
    assert!(matches!(&failed, Error::Corrupt { flaw: Flaw::Missing, .. }), "{failed:?}");
    assert!(place.archive.list().unwrap().is_empty());
    place.shelf.heal();
    let again = place.archive.push(&place.store, Step(1)).unwrap();
    assert_eq!(again.packs_put, 1, "only what was lost");
    place.assert_pulls(&[1]);
}

#[test]
fn a_damaged_pack_of_a_push_before_is_put_again() {
    let place = Shelved::with_steps(1);
    place.shelf.die_after(3);
    place.archive.push(&place.store, Step(1)).unwrap_err();
    place.shelf.heal();
    let mut objects = place.shelf.objects();
    let mut packs = objects.iter_mut().filter(|(key, _)| key.starts_with("packs/"));
    packs.next().unwrap().1[100] ^= 1;
    place.shelf.set(objects);
    let again = place.archive.push(&place.store, Step(1)).unwrap();
    assert_eq!(again.packs_resumed, 1);
    assert_eq!(place.shelf.summary(&Vault::Plain), undisturbed(1));
}

#[test]
fn a_damaged_base_is_done_without_and_a_lost_pack_is_not_referred_to() {
    for is_lost in [false, true] {
        let place = Shelved::with_steps(2);
        place.archive.push(&place.store, Step(1)).unwrap();
        let mut objects = place.shelf.objects();
        for (_, pack) in objects.iter_mut().filter(|(key, _)| key.starts_with("packs/")) {
            let middle = pack.len() / 2;
            pack[middle] ^= 1;
        }
        objects.retain(|key, _| !(is_lost && key.starts_with("packs/")));
        place.shelf.set(objects);
        let pushed = place.archive.push(&place.store, Step(2)).unwrap();
        assert!(pushed.differences.0 == 0, "{pushed:?}");
        if is_lost {
            place.assert_pulls(&[2]);
            assert!(!place.archive.verify(Step(1)).unwrap().is_good());
            assert!(
                !place.archive.push(&place.store, Step(1)).unwrap().was_archived,
                "put again, since packs are lost"
            );
            place.assert_pulls(&[1]);
        }
    }
}

#[test]
fn a_prune_killed_between_any_two_objects_leaves_what_stays_whole_and_the_next_ends_it() {
    let rules = [Rule::Last(1), Rule::EverySteps(std::num::NonZeroU64::new(3).unwrap())];
    let expected = {
        let place = Shelved::pushed(6);
        place.archive.prune(&rules, later(), false).unwrap();
        place.shelf.summary(&Vault::Plain)
    };
    for changes in 0..1_000 {
        let place = Shelved::pushed(6);
        place.shelf.die_after(changes);
        let outcome = place.archive.prune(&rules, later(), false);
        place.shelf.heal();
        place.assert_pulls(&[1, 3, 6]);
        place.archive.prune(&rules, later(), false).unwrap();
        assert_eq!(place.shelf.summary(&Vault::Plain), expected, "killed after {changes} changes");
        place.assert_pulls(&[1, 3, 6]);
        if outcome.is_ok() {
            assert!(changes > 3);
            return;
        }
    }
    panic!("a prune makes fewer than a thousand changes");
}

#[test]
fn a_dry_run_says_what_a_prune_then_does_and_does_nothing() {
    let place = Shelved::pushed(6);
    let before = place.shelf.objects();
    let packs = |objects: &BTreeMap<String, Vec<u8>>| -> u64 {
        objects.iter().filter(|(key, _)| key.starts_with("packs/")).map(|(_, bytes)| bytes.len() as u64).sum()
    };
    place.shelf.acts();
    let promised = place.archive.prune(&[Rule::Last(2)], later(), true).unwrap();
    assert!(place.shelf.acts().iter().all(|(act, _)| matches!(act, Act::Get | Act::List)));
    assert_eq!(promised.removed.iter().map(|(step, _)| step.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let done = place.archive.prune(&[Rule::Last(2)], later(), false).unwrap();
    assert_eq!(done, promised);
    assert!(done.freed.0 > 0);
    assert_eq!(packs(&before) - packs(&place.shelf.objects()), done.freed.0);
    assert_eq!(packs(&place.shelf.objects()), done.stored.0);
    place.assert_pulls(&[5, 6]);
}

#[test]
fn nothing_is_pruned_while_a_catalog_cannot_be_read_or_what_stays_lacks_a_pack() {
    let check = |damage: fn(&mut BTreeMap<String, Vec<u8>>)| {
        let place = Shelved::pushed(3);
        let mut objects = place.shelf.objects();
        damage(&mut objects);
        place.shelf.set(objects.clone());
        let refused = place.archive.prune(&[Rule::Last(1)], later(), false).unwrap_err();
        assert!(matches!(refused, Error::Corrupt { .. }), "{refused:?}");
        assert!(place.shelf.objects() == objects, "nothing has changed");
    };
    check(|objects| objects.values_mut().next().unwrap()[20] ^= 1);
    check(|objects| objects.retain(|key, _| !key.starts_with("packs/")));
    check(|objects| objects.values_mut().for_each(|bytes| bytes.truncate(bytes.len() - 1)));
}

#[test]
fn packs_of_a_push_under_way_are_not_strays_for_a_day() {
    let place = Shelved::pushed(1);
    place.shelf.die_after(2);
    place.store_state(2);
    place.archive.push(&place.store, Step(2)).unwrap_err();
    place.shelf.heal();
    let hour = Duration::from_secs(3_600);
    let rules = [Rule::EveryHours(NonZeroU32::MIN)];
    let pruned = |age: Duration| place.archive.prune(&rules, Timestamp::EPOCH + age, false).unwrap().packs_removed;
    assert_eq!(pruned(23 * hour), 0);
    assert_eq!(pruned(24 * hour), 1);
}

#[test]
fn a_pull_that_fails_leaves_the_store_as_it_was() {
    let place = Shelved::pushed(1);
    let back = place.elsewhere("back");
    for act in 0..1_000 {
        let mut acts = 0;
        place.shelf.plan(move |_, _| {
            acts += 1;
            if acts > act { Outcome::Denied } else { Outcome::Done }
        });
        let pulled = place.archive.pull(None, &back);
        place.shelf.heal();
        if pulled.is_ok() {
            assert!(act > 3);
            return;
        }
        assert_eq!(contents(back.path()), BTreeMap::new(), "failed after {act} acts");
        assert_eq!(state(1).len(), place.store.load(Step(1)).unwrap().tensors.len());
    }
    panic!("a pull asks for fewer than a thousand things");
}
