//! `gangline_diagnosis` on whatever libFuzzer comes up with: no panic, and twice the same verdict.
#![no_main]

use std::sync::OnceLock;

use gangline_diagnosis::{Evidence, Log, Rules};

static RULES: OnceLock<Rules> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let rules = RULES.get_or_init(|| Rules::new().expect("the rules that ship are right"));
    let classify = || {
        let log = Log { name: "fuzzed".to_owned(), text: input, ..Log::default() };
        rules.classify(&Evidence { logs: vec![log], ..Evidence::default() })
    };
    assert_eq!(classify(), classify());
});
