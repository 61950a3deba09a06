//! `gangline plan` from the outside: plans as values, files of one's own, and what is refused. What it prints is in the guide.

use std::process::Command;

use serde_json::Value;

use crate::fixtures::gangline;

/// What a small Llama's `config.json` has.
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": false}"#;
const RUN: [&str; 8] = ["--model", "llama-3.1-8b", "--gpu", "h100", "--gpus", "8", "--price", "2.5"];

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn plan(arguments: &[&str]) -> Ran {
    let output = Command::new(gangline()).arg("plan").args(arguments).output().expect("gangline runs");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn json(arguments: &[&str]) -> Value {
    let ran = plan(&[arguments, &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

#[track_caller]
fn refused(arguments: &[&str], part: &str) {
    let ran = plan(arguments);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains(part) && ran.stderr.contains("G0601"), "{:?} does not say {part:?}", ran.stderr);
}

/// Proves A-9: the format is written down, and a change of it is seen. `GANGLINE_BLESS=1` writes it anew.
#[test]
fn the_schema_of_plans_is_the_documented_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/plan.schema.json");
    let printed = plan(&["schema"]).stdout;
    if std::env::var_os("GANGLINE_BLESS").is_some() {
        std::fs::write(path, &printed).expect("the schema can be written");
    }
    let documented = std::fs::read_to_string(path).expect("the schema is there");
    assert_eq!(printed, documented, "run this test with GANGLINE_BLESS=1 and look at the change");
    let schema: Value = serde_json::from_str(&printed).expect("JSON");
    let made = json(&RUN);
    let [known, made] = [&schema["properties"], &made].map(|value| value.as_object().expect("an object").clone());
    assert!(made.keys().eq(known.keys()), "{:?} {:?}", made.keys(), known.keys());
}

#[test]
fn a_plan_is_a_value_that_can_be_kept_and_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["a.json", "b.json"].map(|name| folder.path().join(name).to_str().expect("text").to_owned());
    let plans = [json(&RUN), json(&[&RUN[..], &["--optimizer", "adamw-8bit"]].concat())];
    for (path, plan) in paths.iter().zip(&plans) {
        std::fs::write(path, plan.to_string()).expect("a file");
    }
    assert_eq!(plans[0]["model"]["parameters"], 8_030_261_248_u64);
    assert_eq!(plans[0], json(&RUN), "the same request gives the same plan");
    let compared = plan(&["compare", &paths[0], &paths[1]]);
    let optimizer = compared.stdout.lines().find(|line| line.starts_with("optimizer")).expect("a row");
    assert!(optimizer.contains("adamw ") && optimizer.contains("adamw-8bit") && optimizer.ends_with("differs"));
    let same = plan(&["compare", &paths[0], &paths[0]]);
    assert!(same.stdout.lines().skip(1).all(|line| !line.ends_with("differs")), "{}", same.stdout);
    std::fs::write(&paths[1], "{}").expect("a file");
    refused(&["compare", &paths[0], &paths[1]], "it is no plan");
}

#[test]
fn a_model_of_ones_own_comes_from_its_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    let path = path.to_str().expect("text");
    let run = ["--config", path, "--gpu", "a100-80gb", "--gpus", "2", "--seq", "2048"];
    std::fs::write(path, CONFIG).expect("a file");
    assert_eq!(json(&run)["model"]["parameters"], 1_100_048_384, "TinyLlama's");
    std::fs::write(path, CONFIG.replace("\"hidden_size\": 2048, ", "")).expect("a file");
    refused(&run, "hidden_size");
    std::fs::write(path, CONFIG.replace("llama", "lama")).expect("a file");
    refused(&run, "llama");
    std::fs::write(path, CONFIG.replace("32, \"num_key", "33, \"num_key")).expect("a file");
    refused(&run, "num_attention_heads");
}

#[test]
fn hardware_of_ones_own_needs_its_units() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("own.toml");
    let path = path.to_str().expect("text");
    let run = |memory: &str| {
        let text = format!("[accelerator.\"H100-SXM5-80GB\"]\nvisible = \"{memory}\"\n");
        std::fs::write(path, text).expect("a file");
        [&RUN[..], &["--hardware", path]].concat()
    };
    assert_eq!(json(&run("100GiB"))["cluster"]["memory_bytes"], 107_374_182_400.0);
    refused(&run("100"), "visible");
}

#[test]
fn what_cannot_be_planned_says_what_to_change() {
    refused(&["--model", "llama-3.1-70x", "--gpu", "h100", "--gpus", "8"], "llama-3.1-70b");
    refused(&["--model", "llama-3.1-8b", "--gpu", "h1000", "--gpus", "8"], "H100");
    refused(&["--gpu", "h100", "--gpus", "8"], "--model");
    refused(&[&RUN[..], &["--task", "finetunes"]].concat(), "full-finetune");
    refused(&[&RUN[..], &["--seq", "0"]].concat(), "the sequence is 0");
    refused(&[&RUN[..], &["evaluate", "--layout", "dp=8"]].concat(), "behind it");
    refused(&[&["evaluate"], &RUN[..], &["--layout", "tp=3,dp=8"]].concat(), "24 accelerators, but there are 8");
}
