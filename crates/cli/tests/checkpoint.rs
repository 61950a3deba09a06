//! `gangline checkpoint show`, `diff`, `export`, `import` and `bench`, by the real binary on real folders.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use gangline_storage::{DataType, Options, Step, Store, TensorView};
use serde_json::Value;
use tempfile::TempDir;

/// Number of the model's layers: enough for a long list.
const LAYERS: usize = 20;

/// A folder to work in.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
        command.arg("checkpoint").args(arguments).env_clear().current_dir(self.0.path());
        command.output().expect("gangline runs")
    }

    /// Runs the command, which must succeed, and returns its output.
    fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    /// Runs the command, which must exit with 1, and returns its stderr.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Saves a training state whose head and moments change with the step.
    fn save(&self, folder: &str, step: u8) {
        let store = Store::open(self.0.path().join(folder), Options { keep: None, ..Options::default() });
        let store = store.expect("a store");
        let (still, moving) = ([7; 64], [step; 64]);
        let mut named: Vec<(String, &[u8])> = vec![
            ("__gangline__.values".to_owned(), &still),
            ("model.head.weight".to_owned(), &moving),
            ("optimizer.state.head.weight.exp_avg".to_owned(), &moving),
        ];
        for layer in 0..LAYERS {
            named.push((format!("model.layers.{layer}.mlp.weight"), &still));
            named.push((format!("model.layers.{layer}.mlp.bias"), &still[..8]));
        }
        if step > 1 {
            named.push(("model.new".to_owned(), &still[..4]));
        }
        let shapes: Vec<[usize; 2]> = named.iter().map(|(_, data)| [data.len() / 4, 1]).collect();
        let views: Vec<TensorView<'_>> = named
            .iter()
            .zip(&shapes)
            .map(|((name, data), shape)| TensorView { name, data_type: DataType::F32, shape, data, part_of: None })
            .collect();
        let note = BTreeMap::from([("loss".to_owned(), format!("0.{step}"))]);
        store.save(Step(step.into()), &views, &note).and_then(|saving| saving.wait()).expect("a checkpoint");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn show_lists_tensors_and_makes_long_lists_short() {
    let place = Place::new();
    place.save("runs", 1);
    place.save("runs", 2);
    let text = place.say(&["show", "runs", "--step", "1"]);
    assert!(text.contains("loss") && text.contains("0.1") && text.contains("1 rank"), "{text}");
    let line = text.lines().find(|line| line.starts_with("model.layers.*.mlp.weight")).unwrap_or_default();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["20", "F32", "[16,", "1]", "1.2", "KiB", "20"]);
    let all = place.say(&["show", "runs", "--step", "1", "--all"]);
    assert!(all.contains("model.layers.19.mlp.bias") && !all.contains('*'), "{all}");
    let json = place.json(&["show", "runs"]);
    assert_eq!((json["step"].as_u64(), json["world_size"].as_u64()), (Some(2), Some(1)), "the newest");
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(2 * LAYERS + 4));
    assert_eq!(json["tensors"][1]["name"], "model.head.weight");
    assert!(place.refused(&["show", "runs", "--step", "9"]).contains("no checkpoint of step 9"));
    assert!(place.refused(&["show", "none"]).contains("there is no folder none"));
}

#[test]
fn show_reads_an_archive_as_it_reads_a_folder() {
    let place = Place::new();
    place.save("runs", 1);
    place.say(&["push", "runs", "archive"]);
    assert_eq!(place.json(&["show", "archive"]), place.json(&["show", "runs"]));
    assert!(place.json(&["diff", "runs", "archive"])["is_equal"].as_bool().expect("a verdict"));
    assert!(place.refused(&["show", "archive", "--step", "9"]).contains("step 9"));
    assert!(place.refused(&["export", "--hf", "archive", "out"]).contains("checkpoint pull archive"));
}

#[test]
fn diff_says_what_became_of_each_tensor() {
    let place = Place::new();
    place.save("runs", 1);
    place.save("runs", 2);
    let text = place.say(&["diff", "runs@1", "@2"]);
    assert!(text.contains("added") && text.contains("model.new") && text.contains("model.head.weight"), "{text}");
    assert!(!text.contains("layers"), "{text}");
    assert!(text.contains("41 equal (1.4 KiB), 2 changed (128 B), 1 added (4 B)"), "{text}");
    assert!(place.say(&["diff", "runs@1", "runs@2", "--all"]).contains("model.layers.7.mlp.weight"));
    let json = place.json(&["diff", "runs@2", "@1"]);
    assert_eq!(json["counts"]["removed"]["tensors"], 1);
    assert_eq!(json["is_equal"], false);
    assert!(place.say(&["diff", "runs@1", "@1", "--exit-code"]).contains("43 equal"));
    assert_eq!(place.run(&["diff", "runs@1", "@2", "--exit-code"]).status.code(), Some(1));
    assert!(place.refused(&["diff", "runs@1", "@7"]).contains("step 7"));
}

#[test]
fn diff_says_by_how_much_tensors_have_changed() {
    let place = Place::new();
    place.save("runs", 0);
    place.save("runs", 1);
    // Four bytes of 1 are a float of 2.4e-38.
    let text = place.say(&["diff", "runs@0", "@1", "--magnitudes"]);
    assert!(text.contains("MAX ABS") && text.contains("16 of 16") && text.contains("2.369e-38"), "{text}");
    let json = place.json(&["diff", "runs@1", "@0", "--magnitudes"]);
    let row = |name: &str| json["tensors"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    let head = &row("model.head.weight")["magnitude"];
    assert_eq!((head["elements"].as_u64(), head["changed"].as_u64()), (Some(16), Some(16)));
    assert_eq!((head["relative_l2"].as_f64(), head["nan_after"].as_u64()), (Some(1.0), Some(0)));
    assert!(row("model.layers.0.mlp.bias").get("magnitude").is_none(), "what is equal isn't read");
    place.say(&["push", "runs", "archive"]);
    assert!(place.refused(&["diff", "runs", "archive", "--magnitudes"]).contains("checkpoint pull"));
}

#[test]
fn what_torch_wrote_takes_python_and_the_refusal_says_what_is_lacking() {
    let place = Place::new();
    let folder = place.0.path();
    std::fs::create_dir(folder.join("dcp")).unwrap();
    std::fs::write(folder.join("dcp/.metadata"), "x").unwrap();
    std::fs::write(folder.join("zipped.pt"), b"PK\x03\x04 and more").unwrap();
    std::fs::write(folder.join("old.pt"), b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j").unwrap();
    for model in ["dcp", "zipped.pt", "old.pt"] {
        let refused = place.refused(&["import", model, "runs", "--step", "3", "--python", "/none/python"]);
        assert!(refused.contains("Python with torch and gangline, and /none/python doesn't run"), "{refused}");
        assert!(refused.contains(&format!("python -m gangline import {model} runs --step 3")), "{refused}");
        assert!(!folder.join("runs").exists());
    }
    let refused = place.refused(&["import", "dcp", "runs", "--step", "3", "--python", "/bin/false"]);
    assert!(refused.contains("/bin/false says"), "{refused}");
    let refused = place.refused(&["import", "dcp", "runs", "--step", "3", "--prefix", "model."]);
    assert!(refused.contains("without a prefix"), "{refused}");
}

#[test]
fn weights_go_out_and_come_in_again() {
    let place = Place::new();
    place.save("runs", 1);
    let hint = place.refused(&["export", "--hf", "runs", "out"]);
    assert!(hint.contains("--prefix model.") && hint.contains("model. (41 tensors, 1.4 KiB)"), "{hint}");
    assert!(hint.contains("optimizer. (1 tensors") && !hint.contains("__gangline__"), "{hint}");
    assert_eq!(place.run(&["export", "runs", "out"]).status.code(), Some(2), "the format has to be named");
    let exported = place.json(&["export", "--hf", "runs", "out", "--prefix", "model.", "--shard-size", "1KB"]);
    assert_eq!((exported["tensors"].as_u64(), exported["left_out"].as_u64()), (Some(41), Some(2)));
    let out = place.0.path().join("out");
    assert_eq!(
        names_in(&out),
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    );
    assert!(place.refused(&["export", "--hf", "runs", "out", "--prefix", "model."]).contains("not empty"));
    assert!(place.refused(&["export", "--hf", "runs", "x", "--prefix", "m."]).contains("there are model. (41"));
    let said = place.say(&["import", "out", "again", "--step", "1", "--prefix", "model."]);
    assert!(said.contains("41 tensors"), "{said}");
    assert!(place.say(&["verify", "again"]).contains("none found"));
    let json = place.json(&["diff", "runs", "again"]);
    assert_eq!((&json["counts"]["equal"]["tensors"], &json["counts"]["removed"]["tensors"]), (&41.into(), &2.into()));
    assert!(place.refused(&["import", "out", "again", "--step", "1"]).contains("another --step"));
    assert!(place.refused(&["import", "gone", "again", "--step", "2"]).contains("there is no gone"));
    std::fs::write(out.join("model-00002-of-00002.safetensors"), "x").expect("a file");
    let broken = place.refused(&["import", "out", "again", "--step", "2"]);
    assert!(broken.contains("model-00002-of-00002.safetensors") && broken.contains("too short"), "{broken}");
    assert_eq!(names_in(&place.0.path().join("again")), ["step-0000000001"]);
}

#[test]
fn bench_measures_and_leaves_nothing_behind() {
    let place = Place::new();
    let json = place.json(&["bench", ".", "--bytes", "912GB", "--gpus", "64"]);
    let rates = &json["measured"]["rates"];
    for rate in ["copy", "write", "read"] {
        assert!(rates[rate].as_f64().is_some_and(|rate| rate > 1e6), "{rate}: {rates}");
    }
    let forecast = &json["estimated"][0]["forecast"];
    assert_eq!((forecast["nodes"].as_u64(), forecast["bytes_per_node"].as_u64()), (Some(8), Some(114_000_000_000)));
    assert_eq!(forecast["goals"].as_array().map(Vec::len), Some(3));
    assert!(names_in(place.0.path()).is_empty());
    assert!(place.refused(&["bench", "none"]).contains("there is no folder none"));
    let senseless = place.run(&["bench", ".", "--model-size", "70"]);
    assert_eq!(senseless.status.code(), Some(2));
    assert!(place.refused(&["bench", "/proc"]).contains("/proc"));
}
