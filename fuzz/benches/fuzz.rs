//! The fuzzer: libFuzzer over the reader that `GANGLINE_FUZZ_TARGET` names. `cargo xtask fuzz` builds it with the instrumentation
//! that it needs, gives it seeds and runs it.
#![no_main]

use std::sync::OnceLock;

use gangline_control::fuzz as control;
use gangline_data::fuzz as data;
use gangline_diagnosis::{Evidence, Log, Rules};
use gangline_storage::fuzz as storage;

/// What must hold of whatever a reader accepts.
type Target = fn(&[u8]);

/// Every reader, by the name that `cargo xtask fuzz` has for it.
const TARGETS: [(&str, Target); 16] = [
    ("catalog", storage::catalog),
    ("coded_tensor", storage::coded_tensor),
    ("data_compressed", data::compressed),
    ("data_index", data::indexes),
    ("data_state", data::state),
    ("diagnosis", diagnosis),
    ("foreign_index", storage::foreign_index),
    ("index", storage::index),
    ("job_file", control::job_file),
    ("journal_entry", control::journal_entry),
    ("journal_snapshot", control::journal_snapshot),
    ("lease", storage::lease),
    ("manifest", storage::manifest),
    ("report", control::report),
    ("shard_header", storage::shard_header),
    ("staged_note", storage::staged_note),
];

static TARGET: OnceLock<Target> = OnceLock::new();
static RULES: OnceLock<Rules> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.get_or_init(target)(input));

fn target() -> Target {
    let name = std::env::var("GANGLINE_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("GANGLINE_FUZZ_TARGET is {name:?}, which is no target")).1
}

/// A log: no panic, and twice the same verdict.
fn diagnosis(input: &[u8]) {
    let rules = RULES.get_or_init(|| Rules::new().expect("the rules that ship are right"));
    let classify = || {
        let log = Log { name: "fuzzed".to_owned(), text: input, ..Log::default() };
        rules.classify(&Evidence { logs: vec![log], ..Evidence::default() })
    };
    assert_eq!(classify(), classify());
}
