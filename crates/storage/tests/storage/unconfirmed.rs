//! Saves that are copied while the caller goes on: none is visible before the caller's word that nothing changed.

use std::time::Duration;

use gangline_storage::{Confirmation, Error, NoteTypes, Options, Pending, Step, Store};

use crate::{names, note, offered, open, save, state, views};

/// Longer than a save of this little takes.
const A_WHILE: Duration = Duration::from_millis(200);

fn save_unconfirmed(store: &Store, step: u64) -> (Pending, Confirmation) {
    store.save_unconfirmed(Step(step), &views(&state(step)), (&note(), &NoteTypes::new()), &[]).unwrap()
}

/// Proves A-6.
#[test]
fn an_unconfirmed_save_is_invisible_until_it_is_confirmed() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path(), Options::default());
    save(&store, 1).unwrap();
    let (pending, confirmation) = save_unconfirmed(&store, 2);
    assert!(pending.wait_at_most(A_WHILE).is_none(), "it waits for the word");
    assert_eq!(store.latest().unwrap().checkpoint.unwrap().step, Step(1));
    confirmation.confirm();
    assert_eq!(pending.wait().unwrap().step, Step(2));
    assert_eq!(offered(place.path()), Some(2));
}

/// Proves A-6.
#[test]
fn a_save_whose_values_changed_fails_by_name_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path(), Options::default());
    save(&store, 1).unwrap();
    let (pending, confirmation) = save_unconfirmed(&store, 2);
    confirmation.refuse("model.weight");
    let error = pending.wait().unwrap_err();
    assert!(matches!(&error, Error::Changed { step: Step(2), .. }) && error.to_string().contains("model.weight"));
    let (pending, confirmation) = save_unconfirmed(&store, 3);
    drop(confirmation);
    assert!(matches!(pending.wait(), Err(Error::Closed)));
    assert_eq!((offered(place.path()), names(place.path())), (Some(1), vec!["step-0000000001".to_owned()]));
    save(&store, 4).unwrap();
    assert_eq!(offered(place.path()), Some(4), "the next save is none the worse");
}

#[test]
fn a_store_that_is_closed_gives_up_what_nobody_confirmed() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path(), Options::default());
    let (pending, confirmation) = save_unconfirmed(&store, 2);
    drop(store);
    assert!(matches!(pending.wait(), Err(Error::Closed)));
    confirmation.confirm();
    assert_eq!(offered(place.path()), None);
}
