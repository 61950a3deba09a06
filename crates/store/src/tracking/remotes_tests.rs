//! Artifacts whose contents are elsewhere: whole, found again, and gone with their last artifact.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_base::Timestamp;

use super::tests::put;
use super::*;

fn start(folder: &Path) -> Service {
    Service::start(folder, Options { clock: || Timestamp::from_unix_nanos(1) }).expect("the folder is writable")
}

fn store(service: &Service, folder: &Path, address: Option<&Path>) -> ArtifactStore {
    let address = address.map(|path| path.to_str().expect("text"));
    let remotes = Remotes::new(address, false, BTreeMap::new()).expect("a folder");
    let store = ArtifactStore::of(folder.join("artifacts"), service.handle(), remotes);
    store.prepare().expect("the folder is writable");
    store
}

fn contents(store: &ArtifactStore, path: &str) -> Result<Vec<u8>, Failure> {
    let mut reader = store.read(path)?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        bytes.extend(piece);
    }
    Ok(bytes)
}

fn files(place: &Path) -> Vec<PathBuf> {
    let of =
        |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    of(place).flat_map(|folder| of(&folder).collect::<Vec<_>>()).collect()
}

#[test]
fn contents_stay_where_they_were_put_whatever_the_configuration_says_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let [own, first, second] = ["own", "first", "second"].map(|name| folder.path().join(name));
    let service = start(&own);
    put(&store(&service, &own, None), "0/a", b"in the data folder").expect("kept");
    put(&store(&service, &own, Some(&first)), "0/b", b"at the first place").expect("kept");
    let last = store(&service, &own, Some(&second));
    put(&last, "0/c", b"in the data folder").expect("kept");
    for (path, expected) in
        [("0/a", "in the data folder"), ("0/b", "at the first place"), ("0/c", "in the data folder")]
    {
        assert_eq!(contents(&last, path), Ok(expected.into()), "{path}");
    }
    assert_eq!((files(&first).len(), files(&second).len()), (1, 1));
    last.remove("0/a".into()).expect("removed");
    assert_eq!(contents(&last, "0/c"), Ok(b"in the data folder".to_vec()), "the same contents elsewhere stay");
    last.remove("0".into()).expect("removed");
    assert_eq!((files(&first).len(), files(&second).len()), (0, 0));
    service.stop();
}

#[test]
fn two_databases_at_one_place_delete_nothing_of_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, other, place] = ["one", "other", "place"].map(|name| folder.path().join(name));
    let (first, second) = (start(&one), start(&other));
    let (first_store, second_store) = (store(&first, &one, Some(&place)), store(&second, &other, Some(&place)));
    for store in [&first_store, &second_store] {
        put(store, "0/a", b"weights").expect("kept");
    }
    first_store.remove("0/a".into()).expect("removed");
    assert_eq!(contents(&second_store, "0/a"), Ok(b"weights".to_vec()));
    [first, second].into_iter().for_each(Service::stop);
}

#[test]
fn what_was_changed_or_cannot_be_kept_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let [own, place] = ["own", "place"].map(|name| folder.path().join(name));
    let service = start(&own);
    let kept = store(&service, &own, Some(&place));
    put(&kept, "0/a", b"weights").expect("kept");
    std::fs::write(&files(&place)[0], b"weighty").expect("it is ours");
    let failure = contents(&kept, "0/a").expect_err("it is changed").to_string();
    assert!(failure.contains("have changed since they were kept") && failure.contains("place"), "{failure}");
    let mut part = kept.read("0/a").expect("it is there").within(0..3);
    assert_eq!(part.next_piece(), Ok(Some(b"wei".to_vec())));

    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, b"").expect("it is ours");
    let refused = put(&store(&service, &own, Some(&in_the_way)), "0/b", b"x").expect_err("no folder").to_string();
    assert!(refused.contains("file"), "{refused}");
    assert_eq!(kept.list("0").expect("a listing").len(), 1);
    assert_eq!(std::fs::read_dir(own.join("artifacts/incoming")).expect("a folder").count(), 0);
    service.stop();
}

/// A backup names contents that are elsewhere, and has those of the data folder.
#[test]
fn a_copy_leaves_contents_that_are_elsewhere_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let [data, place, to] = ["data", "place", "to"].map(|name| folder.path().join(name));
    let own = data.join(TRACKING_FOLDER);
    let service = start(&own);
    put(&store(&service, &own, None), "0/a", b"inside").expect("kept");
    put(&store(&service, &own, Some(&place)), "0/b", b"elsewhere").expect("kept");
    assert_eq!(copy_tracking(&data, &to).expect("there is room").len(), 2);
    service.stop();
    let restored = to.join(TRACKING_FOLDER);
    let service = start(&restored);
    let copied = store(&service, &restored, None);
    assert_eq!((contents(&copied, "0/a"), contents(&copied, "0/b")), (Ok(b"inside".into()), Ok(b"elsewhere".into())));
    service.stop();
}
