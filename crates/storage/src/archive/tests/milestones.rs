//! Milestones: what is left of a checkpoint is exact, is marked, and is never taken for the whole.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use gangline_base::Timestamp;

use super::{Shelved, contents};
use crate::archive::catalog::Form;
use crate::archive::{Error, Reason, Rule};
use crate::{Step, Tensor};

fn later() -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(1 << 30)
}

/// The newest, and the bf16 copies, what is frozen and one moment of each second step.
fn rules() -> [Rule; 1] {
    let keep = vec!["cop*".to_owned(), "frozen".to_owned(), "*ment".to_owned()];
    [Rule::Milestones { every: NonZeroU64::new(2).unwrap(), keep }]
}

fn pack_bytes(place: &Shelved) -> u64 {
    let objects = place.shelf.objects();
    objects.iter().filter(|(key, _)| key.starts_with("packs/")).map(|(_, bytes)| bytes.len() as u64).sum()
}

/// The tensors of a safetensors file: name, type, shape, bytes.
fn tensors(path: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
    assert_eq!((8 + header.len()) % 4_096, 0);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let tensor = |(name, value): (&String, &serde_json::Value)| {
        let numbers: [Vec<usize>; 2] =
            ["shape", "data_offsets"].map(|member| serde_json::from_value(value[member].clone()).unwrap());
        let [shape, range] = numbers;
        let data_type = serde_json::from_value(value["dtype"].clone()).unwrap();
        Tensor { name: name.clone(), data_type, shape, data: data[range[0]..range[1]].to_vec() }
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

fn assert_is_milestone(place: &Shelved, step: u64) {
    let refused = place.archive.pull(Some(Step(step)), &place.elsewhere("back")).unwrap_err();
    assert!(matches!(refused, Error::Milestone { lacking: 6, .. }), "{refused:?}");
    assert!(place.archive.verify(Step(step)).unwrap().is_good());
    let folder = tempfile::tempdir_in(place.place.folder.path()).unwrap();
    let archived = place.archive.pull_milestone(Step(step), folder.path()).unwrap();
    assert_eq!(archived.tensors, 3);
    let names: Vec<String> = contents(folder.path()).into_keys().collect();
    assert_eq!(names, ["shard-00000-of-00001.safetensors"]);
    let mut expected = place.store.load(Step(step)).unwrap().tensors;
    expected.retain(|tensor| ["copy", "frozen", "moment"].contains(&tensor.name.as_str()));
    assert_eq!(tensors(&folder.path().join(&names[0])), expected, "step {step}");
}

#[test]
fn of_checkpoints_that_go_milestones_keep_the_named_tensors_bit_for_bit() {
    for key in [None, Some(1)] {
        let place = Shelved::pushed_with(7, key);
        let before = pack_bytes(&place);
        let promised = place.archive.prune(&rules(), later(), true).unwrap();
        assert_eq!(pack_bytes(&place), before);
        let done = place.archive.prune(&rules(), later(), false).unwrap();
        assert_eq!((&done.milestones, &done.removed), (&promised.milestones, &promised.removed));
        let steps = |all: &[(Step, crate::Bytes)]| all.iter().map(|(step, _)| step.0).collect::<Vec<_>>();
        assert_eq!((steps(&done.milestones), steps(&done.removed)), (vec![1, 2, 4, 6], vec![3, 5]));
        assert!(done.milestones.iter().all(|(_, bytes)| bytes.0 == 12_000 + 20_000 + 12_000));
        for step in [1, 2, 4, 6] {
            assert_is_milestone(&place, step);
        }
        place.assert_pulls(&[7]);
        assert!(pack_bytes(&place) < before / 4 * 3, "{} of {before} bytes", pack_bytes(&place));
        let listed = place.archive.list().unwrap();
        let is_milestone = |one: &crate::archive::Listed| one.catalog.as_ref().unwrap().milestone.is_some();
        assert_eq!(listed.iter().map(is_milestone).collect::<Vec<_>>(), [true, true, true, true, false]);
        let forms = place.catalog(4).chunks;
        assert!(forms.iter().any(|chunk| matches!(chunk.form, Form::Difference { .. })), "to the milestone before");
        let again = place.archive.prune(&rules(), later(), false).unwrap();
        assert_eq!((again.milestones.len(), again.removed.len(), again.freed.0), (0, 0, 0));
        let why = |step| again.kept.iter().find(|(kept, _)| *kept == Step(step)).unwrap().1.clone();
        assert_eq!((why(2), why(7)), (vec![Reason::Milestone], vec![Reason::Newest]));
    }
}

#[test]
fn a_milestone_is_no_checkpoint_to_other_rules_and_pushing_makes_it_whole_again() {
    let place = Shelved::pushed(5);
    place.archive.prune(&rules(), later(), false).unwrap();
    let refused = place.archive.pull_milestone(Step(5), place.place.folder.path()).unwrap_err();
    assert!(matches!(refused, Error::Whole { step: Step(5) }), "{refused:?}");
    place.store_state(8);
    place.archive.push(&place.store, Step(8)).unwrap();
    place.archive.push(&place.store, Step(2)).unwrap();
    place.assert_pulls(&[2, 5, 8]);
    let pruned = place.archive.prune(&[Rule::Last(2), Rule::Pinned([Step(4)].into())], later(), false).unwrap();
    let kept: Vec<u64> = pruned.kept.iter().map(|(step, _)| step.0).collect();
    assert_eq!(kept, [4, 5, 8], "of the last two no milestone is one; the one that is named stays");
    assert_is_milestone(&place, 4);
}

#[test]
fn a_prune_to_milestones_killed_between_any_two_changes_leaves_every_step_whole_or_a_milestone() {
    let place = Shelved::pushed(5);
    let begin = place.shelf.objects();
    for changes in 0..1_000 {
        place.shelf.set(begin.clone());
        place.shelf.die_after(changes);
        let outcome = place.archive.prune(&rules(), later(), false);
        place.shelf.heal();
        place.assert_pulls(&[5]);
        for listed in place.archive.list().unwrap() {
            assert!(place.archive.verify(listed.step).unwrap().is_good(), "killed after {changes} changes");
        }
        place.archive.prune(&rules(), later(), false).unwrap();
        for step in [1, 2, 4] {
            assert_is_milestone(&place, step);
        }
        if outcome.is_ok() {
            assert!(changes > 8, "{changes} changes");
            return;
        }
    }
    panic!("a prune makes fewer than a thousand changes");
}

#[test]
fn a_milestone_of_nothing_is_refused_and_nothing_changes() {
    let place = Shelved::pushed(3);
    let before = place.shelf.objects();
    let rule = Rule::Milestones { every: NonZeroU64::MIN, keep: vec!["weights.*".to_owned()] };
    for is_dry_run in [true, false] {
        let refused = place.archive.prune(std::slice::from_ref(&rule), later(), is_dry_run).unwrap_err();
        assert!(matches!(refused, Error::NothingKept { step: Step(1), .. }), "{refused:?}");
    }
    assert!(place.shelf.objects() == before);
}
