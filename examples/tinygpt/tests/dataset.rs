//! Learning from a dataset instead of text, through the node's cache.

use std::path::Path;
use std::process::{Command, Output};

use gangline_data::{Target, TokenType, Writer};

/// Writes a dataset of so many tokens.
fn dataset(path: &Path, data_type: TokenType) {
    let mut writer = Writer::create(path, Target::Gangline, data_type).expect("nothing is there");
    let tokens: Vec<u64> = (0..20_000).map(|token| token * token % 97).collect();
    writer.push(&tokens).and_then(|()| writer.finish()).expect("a dataset");
}

/// Trains a tiny model on the dataset at an address.
fn train(folder: &Path, address: &str, steps: u32, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinygpt"));
    command.env_clear().env("RAYON_NUM_THREADS", "1").envs(variables.iter().copied());
    command.args(["--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"]);
    command
        .args(["--steps", &steps.to_string(), "--data", address, "--checkpoint-dir"])
        .arg(folder.join("checkpoints"));
    command.output().expect("tinygpt starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_remote_dataset_is_learned_from_and_gone_on_with_in_the_nodes_cache() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    dataset(&folder.path().join("corpus"), TokenType::Uint8);
    let address = format!("file://{}", folder.path().join("corpus").display());
    let cache = folder.path().join("cache").display().to_string();
    let cache = [("GANGLINE_DATA_CACHE", cache.as_str())];
    let begun = text(&train(folder.path(), &address, 3, &cache));
    assert!(begun.contains("20000 bytes of text from 1 files") && begun.contains("validation loss "), "{begun}");
    let gone_on = text(&train(folder.path(), &address, 6, &cache));
    assert!(gone_on.contains("resumed from step 3") && gone_on.contains("step 6 loss "), "{gone_on}");
    assert!(folder.path().join("cache").is_dir());
}

#[test]
fn what_can_not_be_learned_from_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    dataset(&folder.path().join("words"), TokenType::Uint16);
    let words = folder.path().join("words").display().to_string();
    let refused = train(folder.path(), &words, 3, &[]);
    assert_eq!(refused.status.code(), Some(93), "{}", text(&refused));
    assert!(text(&refused).contains("words holds uint16, not uint8"), "{}", text(&refused));
    let homeless = text(&train(folder.path(), "file:///nowhere", 3, &[]));
    assert!(homeless.contains("GANGLINE_DATA_CACHE"), "{homeless}");
    let limit = [("HOME", "/tmp"), ("GANGLINE_DATA_CACHE_LIMIT", "much")];
    let wrong = text(&train(folder.path(), "file:///nowhere", 3, &limit));
    assert!(wrong.contains("GANGLINE_DATA_CACHE_LIMIT \"much\""), "{wrong}");
}
