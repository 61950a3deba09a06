//! Models that others saved, written here by the safetensors crate, which is theirs; and files that lie.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use gangline_storage::{DataType, Error, ExportOptions, Flaw, Options, Step, Store, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::{files, open, save};

fn bytes(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|index| u8::try_from((index * 29 + seed) % 256).unwrap()).collect()
}

/// Writes a file of tensors of elements of two bytes, by name and length.
fn write_file(path: &Path, tensors: &[(&str, usize)]) {
    let data: Vec<Vec<u8>> = tensors.iter().map(|(name, length)| bytes(name.len(), 2 * length)).collect();
    let views = tensors
        .iter()
        .zip(&data)
        .map(|((name, length), data)| (*name, TensorView::new(Dtype::BF16, vec![*length], data).unwrap()));
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

fn write_index(folder: &Path, places: &[(&str, &str)]) -> PathBuf {
    let places: BTreeMap<&str, &str> = places.iter().copied().collect();
    let path = folder.join("model.safetensors.index.json");
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": places});
    std::fs::write(&path, index.to_string()).unwrap();
    path
}

/// A model in two files, of which one tensor is larger than a block.
fn write_model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    write_file(&model.join("model-00001-of-00002.safetensors"), &[("a.weight", 3_000_001), ("empty", 0)]);
    write_file(&model.join("model-00002-of-00002.safetensors"), &[("b.bias", 7)]);
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    write_index(&model, &[("a.weight", first), ("b.bias", second), ("empty", first)]);
    model
}

fn store_in(folder: &Path) -> Store {
    let path = folder.join("store");
    std::fs::create_dir_all(&path).unwrap();
    open(&path, Options::reader())
}

#[test]
fn a_model_in_files_becomes_a_checkpoint_and_leaves_again_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (model, store) = (write_model(folder.path()), store_in(folder.path()));
    let imported = store.import(&model, Step(4), "model.").unwrap();
    assert_eq!((imported.files, imported.tensors), (2, 3));
    assert!(store.verify(Step(4)).unwrap().is_good());
    let loaded = store.load(Step(4)).unwrap();
    let tensor = |name: &str, length: usize| Tensor {
        name: format!("model.{name}"),
        data_type: DataType::Bf16,
        shape: vec![length],
        data: bytes(name.len(), 2 * length),
    };
    assert!(loaded.tensors == [tensor("a.weight", 3_000_001), tensor("b.bias", 7), tensor("empty", 0)]);
    assert_eq!(imported.content_hash, loaded.info.content_hash);
    let out = folder.path().join("out");
    let options = ExportOptions { prefix: "model.".to_owned(), ..ExportOptions::default() };
    store.open_step(Step(4)).unwrap().export(&out, &options).unwrap();
    let again = store.import(&out.join("model.safetensors"), Step(5), "model.").unwrap();
    assert_eq!(store.load(Step(5)).unwrap().tensors, loaded.tensors);
    assert_eq!(again.files, 1);
    // A writer goes on from there.
    let writer = open(store.path(), Options { keep: None, ..Options::default() });
    save(&writer, 6).unwrap();
    assert_eq!(writer.list().unwrap().len(), 3);
}

#[test]
fn a_step_that_is_there_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (model, store) = (write_model(folder.path()), store_in(folder.path()));
    store.import(&model, Step(4), "").unwrap();
    let before = files(store.path());
    let refused = store.import(&model, Step(4), "").unwrap_err();
    assert!(matches!(refused, Error::Occupied { .. }), "{refused:?}");
    assert_eq!(files(store.path()), before);
}

/// Imports from a path has to be refused with these words, and the store left as it was.
fn check_refused(model: &Path, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let refused = store.import(model, Step(1), "").unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(says), "{text:?} does not say {says:?}");
    assert!(matches!(refused, Error::Corrupt { .. } | Error::InvalidTensor { .. }), "{refused:?}");
    assert!(files(store.path()).is_empty());
    assert!(std::fs::read_dir(store.path()).unwrap().next().is_none(), "{text}");
}

/// A file with this header and so many bytes of data.
fn check_header_refused(json: &str, data: usize, says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file.resize(file.len() + data, 0);
    std::fs::write(&path, file).unwrap();
    check_refused(&path, says);
}

/// Proves A-10 for files that others wrote.
#[test]
fn headers_that_lie_are_refused_by_the_rule_that_they_break() {
    let declared = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let check = |json: &str, says: &str| check_header_refused(json, 4, says);
    check("[]", "not a JSON object");
    check(&"[".repeat(100_000), "not a JSON object");
    check(&format!(r#"{{"a":{}"#, r#"{"x":"#.repeat(100_000)), "not a JSON object");
    check("{}", "don't fill the file");
    check(&declared("a", "Q4", "[8]", "[0,4]"), "element type");
    check(&declared("a", "U8", "[4]", "[4,0]"), "ends before it starts");
    check(&declared("a", "U8", "[5]", "[0,4]"), "don't fit");
    check(&declared("a", "U8", "[-4]", "[0,4]"), "not a JSON object");
    check(&declared("a", "U8", "[18446744073709551615,2]", "[0,4]"), "don't fit");
    check(&declared("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]", "[0,4]"), "more than 16 dimensions");
    check(&declared("a", "U8", "[4]", "[1,5]"), "overlap or leave a gap");
    check(&declared("a", "U8", "[3]", "[0,3]"), "don't fill the file");
    check(&declared("a", "U8", "[5]", "[0,5]"), "don't fill the file");
    check(&declared("", "U8", "[4]", "[0,4]"), "empty");
    check(&declared("a\\u0000b", "U8", "[4]", "[0,4]"), "control character");
    check(&declared(&"n".repeat(513), "U8", "[4]", "[0,4]"), "longer than 512 bytes");
    let half = |offsets: &str| format!(r#""a":{{"dtype":"U8","shape":[2],"data_offsets":{offsets}}}"#);
    check(&format!("{{{},{}}}", half("[0,2]"), half("[2,4]")), "twice");
    let other = half("[1,3]").replace("\"a\"", "\"b\"");
    check(&format!("{{{},{other}}}", half("[0,2]")), "overlap");
    let far = format!("[{},{}]", u64::MAX - 3, u64::MAX);
    check(&format!("{{{},{}}}", half("[0,2]"), declared("b", "U8", "[3]", &far).trim_matches(['{', '}'])), "");
}

#[test]
fn headers_that_claim_more_than_the_file_holds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (claimed, says) in [(u64::MAX, "longer than 100 MB"), (100_000_000, "longer than the file")] {
        std::fs::write(&path, [claimed.to_le_bytes().as_slice(), b"{}"].concat()).unwrap();
        check_refused(&path, says);
    }
    std::fs::write(&path, b"abc").unwrap();
    check_refused(&path, "too short");
    check_refused(&folder.path().join("none.safetensors"), "missing");
    check_refused(Path::new("/dev/zero"), "it is no file");
}

/// Proves A-10 for indexes that others wrote.
#[test]
fn indexes_that_lie_are_refused_and_lead_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret.safetensors");
    write_file(&secret, &[("a", 2)]);
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    write_file(&model.join("one.safetensors"), &[("a", 2), ("b", 2)]);
    write_file(&model.join("two.safetensors"), &[("a", 2)]);
    let absolute = secret.to_str().unwrap();
    for file in ["../secret.safetensors", absolute, "x/../../secret.safetensors", ".safetensors", "one.pt", ""] {
        write_index(&model, &[("a", file)]);
        check_refused(&model, "plain one");
    }
    let check = |text: &str, says: &str| {
        std::fs::write(model.join("model.safetensors.index.json"), text).unwrap();
        check_refused(&model, says);
        check_refused(&model.join("model.safetensors.index.json"), says);
    };
    check("", "not a JSON object");
    check(&"[".repeat(100_000), "not a JSON object");
    check(r#"{"weight_map":[]}"#, "not a JSON object");
    check(r#"{"weight_map":{"a":7}}"#, "not a JSON object");
    check(r#"{"weight_map":{}}"#, "names no tensor");
    check(r#"{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}"#, "twice");
    check(r#"{"weight_map":{"a":"one.safetensors"}}"#, "doesn't say");
    check(r#"{"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors"}}"#, "and it isn't");
    check(r#"{"weight_map":{"a":"three.safetensors"}}"#, "missing");
    std::fs::remove_file(model.join("model.safetensors.index.json")).unwrap();
    check_refused(&model, "several safetensors files");
    let bare = folder.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    check_refused(&bare, "no safetensors file");
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = write_model(folder.path());
    let path = model.join("model-00002-of-00002.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let store = store_in(folder.path());
        let refused = store.import(&model, Step(1), "").unwrap_err();
        assert!(matches!(&refused, Error::Corrupt { path: named, flaw: Flaw::Malformed { .. }, .. } if *named == path));
    }
}

#[test]
fn a_disk_that_fills_leaves_the_store_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let model = write_model(folder.path());
    for fails_at in 0..16 {
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let hook = move |act: gangline_storage::DiskAct, path: &Path| {
            let is_write = act == gangline_storage::DiskAct::Write && path.to_string_lossy().contains("imported");
            let number = seen.fetch_add(usize::from(is_write), std::sync::atomic::Ordering::SeqCst);
            let is_it = is_write && number == fails_at;
            if is_it { Err(std::io::Error::from(std::io::ErrorKind::StorageFull)) } else { Ok(()) }
        };
        let path = folder.path().join(format!("store-{fails_at}"));
        std::fs::create_dir(&path).unwrap();
        let store = open(&path, Options { disk_hook: Some(std::sync::Arc::new(hook)), ..Options::reader() });
        match store.import(&model, Step(1), "") {
            Err(error) => {
                assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
                assert!(std::fs::read_dir(&path).unwrap().next().is_none(), "write {fails_at}");
            }
            Ok(_) => assert!(fails_at >= 6, "write {fails_at} was there, and it failed"),
        }
    }
}
