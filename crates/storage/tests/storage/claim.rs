//! A claim that a checkpoint was saved is looked at.

use std::collections::BTreeMap;

use gangline_storage::{Claim, Options, Step, Store, look_for};

use super::{state, views};

#[test]
fn a_claim_holds_if_the_store_has_the_step_or_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let check = |step: u64, expected: Claim| assert_eq!(look_for(&root, Step(step)).unwrap(), expected, "step {step}");
    check(5, Claim::NoStore);
    let store = Store::open(&root, Options::default()).unwrap();
    check(5, Claim::NoStore);
    let tensors = state(5);
    store.save(Step(5), &views(&tensors), &BTreeMap::new()).unwrap().wait().unwrap();
    check(4, Claim::Durable);
    check(5, Claim::Durable);
    check(6, Claim::Absent);
    let manifest = root.join("step-0000000005/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    check(5, Claim::Absent);
}

#[test]
fn other_files_make_no_store() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model-5.pt"), "torch").unwrap();
    std::fs::create_dir(folder.path().join("step-0000000005")).unwrap();
    assert_eq!(look_for(folder.path(), Step(5)).unwrap(), Claim::NoStore);
    std::fs::create_dir(folder.path().join(".partial-0000000007-by-3-of-1")).unwrap();
    assert_eq!(look_for(folder.path(), Step(7)).unwrap(), Claim::Absent);
}
