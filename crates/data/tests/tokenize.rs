//! Tokens of text: the tokenizer's own for each document, the same on any number of threads, and the same after a kill.

#![cfg(feature = "tokenize")]
#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use gangline_data::tokenize::{End, Options, Tokenized, tokenize};
use gangline_data::{Source, TokenType, Width};
use tempfile::TempDir;
use tokenizers::Tokenizer;

/// A byte-level BPE of GPT-2's kind with a few merges, which asks for truncation and padding, as some published files do.
fn tokenizer(folder: &Path) -> PathBuf {
    let letters: Vec<String> = ('!'..='~').map(String::from).chain(["Ġ".to_owned(), "Ċ".to_owned()]).collect();
    let merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")];
    let merged = merges.iter().map(|(left, right)| format!("{left}{right}"));
    let mut vocabulary: BTreeMap<String, usize> = letters.iter().cloned().chain(merged).zip(0..).collect();
    vocabulary.insert("<|end|>".to_owned(), 200);
    let text = serde_json::json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!" },
        "added_tokens": [{ "id": 200, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": merges.map(|(left, right)| [left, right]) },
    });
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("tokenizer.json"), text.to_string()).unwrap();
    fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": {"content": "<|end|>"}}"#).unwrap();
    folder.join("tokenizer.json")
}

fn texts() -> Vec<String> {
    (0..600).map(|number| "the thing in the rain ".repeat(number % 7) + &number.to_string()).collect()
}

fn jsonl(texts: &[String]) -> String {
    texts.iter().fold(String::new(), |mut lines, text| {
        writeln!(lines, "{}", serde_json::json!({ "id": 1, "text": text })).unwrap();
        lines
    })
}

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        tokenizer(&place.path("tokenizer"));
        fs::create_dir(place.path("text")).unwrap();
        let texts = texts();
        fs::write(place.path("text/a.jsonl"), jsonl(&texts[..500])).unwrap();
        fs::write(place.path("text/b.jsonl"), jsonl(&texts[500..599])).unwrap();
        fs::write(place.path("text/c.txt"), &texts[599]).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self, output: &str) -> Options {
        Options {
            input: self.path("text"),
            output: self.path(output),
            tokenizer: self.path("tokenizer"),
            key: "text".to_owned(),
            end: End::OfTokenizer,
            adds_special: false,
            data_type: None,
            threads: NonZeroU32::MIN,
            file_bytes: 4_000,
        }
    }

    fn refusal(&self, change: impl FnOnce(&mut Options)) -> String {
        let mut options = self.options("refused");
        change(&mut options);
        let error = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
        assert!(!self.path("refused").exists());
        error
    }
}

fn run(options: &Options) -> Tokenized {
    tokenize(options, &mut |_| {}).unwrap()
}

/// Every file of a folder.
fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap())).collect()
}

#[test]
fn documents_have_the_tokens_that_the_library_gives_for_each_alone_and_their_end() {
    let place = Place::new();
    let made = run(&place.options("tokens"));
    assert_eq!((made.data_type, made.vocabulary, made.written.documents), (TokenType::Uint16, 201, 600));
    let mut library = Tokenizer::from_file(place.path("tokenizer/tokenizer.json")).unwrap();
    library.with_truncation(None).unwrap();
    library.with_padding(None);
    let encode = |text: String| -> Vec<i64> {
        let encoding = library.encode(text, false).unwrap();
        encoding.get_ids().iter().copied().chain([200]).map(i64::from).collect()
    };
    let expected: Vec<Vec<i64>> = texts().into_iter().map(encode).collect();
    assert!(expected.iter().any(|tokens| tokens.len() > 9), "longer than the padding");
    let source = Source::open(&place.path("tokens"), None).unwrap();
    let mut bytes = vec![0; usize::try_from(source.tokens()).unwrap() * 8];
    source.copy(0..source.tokens(), Width::Int64, &mut bytes).unwrap();
    let tokens: Vec<i64> = bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    assert_eq!(tokens, expected.concat());
    let lengths: Vec<u64> = expected.iter().map(|tokens| tokens.len() as u64).collect();
    assert_eq!(source.document_lengths().collect::<Vec<_>>(), lengths);
    source.verify(Some(made.vocabulary), &mut |_| {}).unwrap();
    assert!(source.files() > 3, "files are ended at the size that was asked for");
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let place = Place::new();
    run(&place.options("one"));
    run(&Options { threads: NonZeroU32::new(7).unwrap(), ..place.options("seven") });
    assert_eq!(content(&place.path("one")), content(&place.path("seven")));
}

/// Stops a run by what stops one in life, a line that is no JSON; then the line is put right. A kill is the same to what is on
/// disk: `crates/cli/tests/data.rs` kills the real program.
#[test]
fn a_run_that_stopped_goes_on_behind_the_last_file_and_writes_the_same_bytes() {
    let place = Place::new();
    run(&place.options("whole"));
    let good = fs::read_to_string(place.path("text/b.jsonl")).unwrap();
    let modified = fs::metadata(place.path("text/b.jsonl")).unwrap().modified().unwrap();
    let put = |text: &str| {
        fs::write(place.path("text/b.jsonl"), text).unwrap();
        fs::File::options().write(true).open(place.path("text/b.jsonl")).unwrap().set_modified(modified).unwrap();
    };
    put(&good.replacen("{\"id\"", "[\"id\"", 1));
    let options = place.options("tokens");
    let error = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("b.jsonl at byte 0: line 1: it is no JSON"), "{error}");
    assert!(!options.output.exists() && place.path("tokens.progress").exists());
    put(&good);
    let made = run(&options);
    assert!(made.resumed.documents > 100 && made.resumed.documents < 500, "{:?}", made.resumed);
    assert_eq!(content(&place.path("tokens")), content(&place.path("whole")));
    assert!(!place.path("tokens.progress").exists() && !place.path("tokens.partial").exists());
    let again = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
    assert!(again.contains("is there already"), "{again}");
}

#[test]
fn an_unfinished_output_of_another_job_or_a_damaged_record_is_refused() {
    let place = Place::new();
    fs::write(place.path("text/d.jsonl"), "{\"text\": 5}\n").unwrap();
    let options = place.options("tokens");
    let error = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("d.jsonl at byte 0: line 1: its \"text\" is no text"), "{error}");
    let other = Options { end: End::None, ..options.clone() };
    let error = tokenize(&other, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("other options: go on with those, or remove"), "{error}");
    fs::remove_file(place.path("text/d.jsonl")).unwrap();
    let error = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("other text"), "{error}");
    let mut record = fs::read(place.path("tokens.progress")).unwrap();
    record[40] ^= 1;
    fs::write(place.path("tokens.progress"), record).unwrap();
    let error = tokenize(&options, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("tokens.progress at byte 0") && error.contains("remove it"), "{error}");
    fs::remove_file(place.path("tokens.progress")).unwrap();
    assert_eq!(run(&options).resumed.documents, 0);
}

#[test]
fn what_makes_no_tokens_is_refused_with_what_to_do() {
    let place = Place::new();
    let check = |found: String, expected: &str| assert!(found.contains(expected), "{found}");
    check(place.refusal(|options| options.input = place.path("tokenizer")), "no file of text: .jsonl, .ndjson or .txt");
    check(place.refusal(|options| options.tokenizer = place.path("text/a.jsonl")), "no tokenizer");
    check(place.refusal(|options| options.tokenizer = place.path("none")), "no such file or folder");
    check(
        place.refusal(|options| options.end = End::Token("<eos>".to_owned())),
        "use end_token: \"<eos>\" isn't in the vocabulary",
    );
    check(
        place.refusal(|options| options.key = "content".to_owned()),
        "it has no \"content\": say which key has the text (it has id, text)",
    );
    fs::remove_file(place.path("tokenizer/tokenizer_config.json")).unwrap();
    check(place.refusal(|_| {}), "tokenizer_config.json isn't there to say it: name the token that ends a document");
    fs::write(place.path("text/a.jsonl"), b"{\"text\": \"\xff\"}\n").unwrap();
    check(place.refusal(|options| options.end = End::None), "a.jsonl at byte 0: line 1: it is no JSON");
}

#[test]
fn a_vocabulary_that_is_too_large_for_the_type_is_refused() {
    let place = Place::new();
    let path = place.path("tokenizer/tokenizer.json");
    let large = fs::read_to_string(&path).unwrap().replace(":200", ":70000");
    fs::write(&path, large).unwrap();
    let error = place.refusal(|options| options.data_type = Some(TokenType::Uint16));
    assert!(error.contains("largest token is 70000, which doesn't fit uint16: use uint32"), "{error}");
    assert_eq!(run(&place.options("tokens")).data_type, TokenType::Uint32);
}

#[test]
fn two_programs_do_not_write_one_output() {
    let place = Place::new();
    let _first =
        gangline_data::Writer::create(&place.path("refused"), gangline_data::Target::Gangline, TokenType::Uint16)
            .unwrap();
    let error = place.refusal(|_| {});
    assert!(error.contains("another program is writing") && error.contains("refused.partial"), "{error}");
}
