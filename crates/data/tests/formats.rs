//! Every format that is read as it lies: the stream is what was written, and what is damaged is refused.

#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

use std::fs;
use std::path::{Path, PathBuf};

use gangline_data::{Error, Format, Source, Target, TokenType, Width, Writer};

/// The tokens of a source.
fn tokens(source: &Source) -> Vec<i64> {
    let mut bytes = vec![0; usize::try_from(source.tokens()).unwrap() * 8];
    source.copy(0..source.tokens(), Width::Int64, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn stored(tokens: &[u16]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn write(path: &Path, bytes: &[u8]) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    path.to_owned()
}

fn refusal(path: &Path, data_type: Option<TokenType>) -> String {
    Source::open(path, data_type).unwrap_err().to_string()
}

/// Documents with lengths around nothing.
fn documents() -> Vec<Vec<u64>> {
    (0..300_u64).map(|number| (0..number * 7 % 31).map(|at| (number * 131 + at) % 60_000).collect()).collect()
}

fn written(path: &Path, target: Target, data_type: TokenType) {
    let mut writer = Writer::create(path, target, data_type).unwrap();
    documents().iter().for_each(|document| writer.push(document).unwrap());
    assert_eq!(writer.finish().unwrap().documents, 300);
}

#[test]
fn both_formats_that_are_written_are_read_back_with_their_documents() {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<i64> = documents().concat().into_iter().map(u64::cast_signed).collect();
    let lengths: Vec<u64> = documents().iter().map(|document| document.len() as u64).collect();
    for (target, data_type) in [
        (Target::Gangline, TokenType::Uint16),
        (Target::Gangline, TokenType::Uint32),
        (Target::Gangline, TokenType::Int64),
        (Target::Megatron, TokenType::Uint16),
        (Target::Megatron, TokenType::Int32),
    ] {
        let path = folder.path().join(format!("{target:?}-{data_type:?}"));
        written(&path, target, data_type);
        let source = Source::open(&path, None).unwrap();
        assert_eq!((source.data_type(), source.documents()), (data_type, Some(300)));
        assert_eq!(tokens(&source), all);
        assert_eq!(source.document_lengths().collect::<Vec<_>>(), lengths);
        assert_eq!(source.has_checksums(), target == Target::Gangline);
        source.verify(Some(60_000), &mut |_| {}).unwrap();
        let error = source.verify(Some(39_000), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("a token that isn't in a vocabulary of 39000"), "{error}");
        let again = Writer::create(&path, target, data_type).unwrap_err().to_string();
        assert!(again.contains("is there already"), "{again}");
    }
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("partial")), "{names:?}");
}

#[test]
fn every_flipped_bit_of_a_block_is_found_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    written(&path, Target::Gangline, TokenType::Uint16);
    let file = path.join("tokens-00000.bin");
    let good = fs::read(&file).unwrap();
    for bit in (0..good.len() * 8).step_by(97) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, &bad).unwrap();
        let source = Source::open(&path, None).unwrap();
        let mut room = [0; 16];
        let error = source.copy(0..2, Width::Int64, &mut room).unwrap_err().to_string();
        assert!(
            error.contains("tokens-00000.bin at byte 0: the block of") && error.contains("another checksum"),
            "{error}"
        );
    }
}

#[test]
fn a_writer_that_was_killed_leaves_nothing_under_its_name_and_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let mut killed = Writer::create(&path, Target::Gangline, TokenType::Uint16).unwrap();
    killed.push(&[1, 2, 3]).unwrap();
    drop(killed);
    assert!(!path.exists());
    written(&path, Target::Gangline, TokenType::Uint16);
    assert_eq!(Source::open(&path, None).unwrap().documents(), Some(300));
}

#[test]
fn tokens_that_do_not_fit_and_nothing_at_all_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let mut writer = Writer::create(&path, Target::Gangline, TokenType::Uint16).unwrap();
    let error = writer.push(&[1, 65_536]).unwrap_err().to_string();
    assert!(error.contains("token 65536 of document 0 doesn't fit uint16"), "{error}");
    assert!(writer.finish().unwrap_err().to_string().contains("it has no tokens"));
    let error = Writer::create(&path, Target::Megatron, TokenType::Uint32).unwrap_err().to_string();
    assert!(error.contains("Megatron's format has no uint32"), "{error}");
}

#[test]
fn raw_files_of_a_folder_are_one_stream_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("b.bin"), &stored(&[4, 5]));
    write(&folder.path().join("a.bin"), &stored(&[1, 2, 3]));
    write(&folder.path().join("notes.txt"), b"other things");
    let source = Source::open(folder.path(), Some(TokenType::Uint16)).unwrap();
    assert_eq!((tokens(&source), source.files(), source.documents()), (vec![1, 2, 3, 4, 5], 2, None));
    let mut across = [0; 6];
    source.copy(2..5, Width::Stored, &mut across).unwrap();
    assert_eq!(across, *stored(&[3, 4, 5]));
    assert!(refusal(folder.path(), None).contains("a.bin doesn't say what its tokens are"));
    write(&folder.path().join("c.bin"), &[1, 2, 3]);
    assert!(refusal(folder.path(), Some(TokenType::Uint16)).contains("c.bin at byte 0: 3 bytes are no whole number"));
}

#[test]
fn a_source_is_known_by_its_content_wherever_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let id = |name: &str, bytes: &[u16]| {
        let path = write(&folder.path().join(name), &stored(bytes));
        Source::open(&path, Some(TokenType::Uint16)).unwrap().id()
    };
    assert_eq!(id("here.bin", &[1, 2, 3]), id("there.bin", &[1, 2, 3]));
    assert_ne!(id("here.bin", &[1, 2, 3]), id("other.bin", &[1, 2, 4]));
    assert_ne!(id("here.bin", &[1, 2, 3]), id("longer.bin", &[1, 2, 3, 0]));
}

#[test]
fn datatroves_notes_say_the_type_and_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("000.ds"), &stored(&[1, 2, 3, 4]));
    write(&folder.path().join("000.ds.metadata"), b"gpt2|2\n4\n4 T");
    let ends: Vec<u8> = [1_u64, 4].iter().flat_map(|end| end.to_le_bytes()).collect();
    write(&folder.path().join("000.ds.index"), &ends);
    let source = Source::open(&path, None).unwrap();
    assert_eq!((tokens(&source), source.documents()), (vec![1, 2, 3, 4], Some(2)));
    assert_eq!(source.document_lengths().collect::<Vec<_>>(), [1, 3]);
    assert!(refusal(&path, Some(TokenType::Uint32)).contains("000.ds holds uint16"));
    write(&folder.path().join("000.ds.index"), &ends[..8]);
    assert!(refusal(&path, None).contains("its documents end at token 1, and there are 4"));
}

/// A shard as MosaicML Streaming writes it (streaming/base/format/mds/writer.py): an `int` column beside the tokens.
fn mds(folder: &Path, rows: &[[u16; 3]], compression: &str) {
    let config = b"{}";
    let head = 4 + 4 * (rows.len() + 1) + config.len();
    let offsets = (0..=rows.len()).map(|row| u32::try_from(head + row * 14).unwrap());
    let mut shard = u32::try_from(rows.len()).unwrap().to_le_bytes().to_vec();
    shard.extend(offsets.flat_map(u32::to_le_bytes));
    shard.extend(config);
    for row in rows {
        shard.extend(7_u64.to_le_bytes());
        shard.extend(stored(row));
    }
    write(&folder.join("shard.00000.mds"), &shard);
    let (bytes, rows) = (shard.len(), rows.len());
    let index = format!(
        r#"{{"version": 2, "shards": [{{"column_encodings": ["int", "ndarray:uint16:3"], "column_names": ["number", "tokens"],
        "column_sizes": [8, 6], "compression": {compression}, "format": "mds", "hashes": [], "samples": {rows}, "size_limit": 67108864,
        "raw_data": {{"basename": "shard.00000.mds", "bytes": {bytes}, "hashes": {{}}}}, "version": 2, "zip_data": null}}]}}"#
    );
    write(&folder.join("index.json"), index.as_bytes());
}

#[test]
fn rows_of_mds_are_a_stream_of_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    mds(folder.path(), &[[1, 2, 3], [4, 5, 6]], "null");
    let source = Source::open(folder.path(), None).unwrap();
    assert_eq!((source.format(), tokens(&source)), (Format::Rows, vec![1, 2, 3, 4, 5, 6]));
    mds(folder.path(), &[[1, 2, 3]], "\"lz4:3\"");
    assert!(refusal(folder.path(), None).contains("shard.00000.mds is compressed by lz4:3: zstd, gz, br, bz2 and"));
    mds(folder.path(), &[[1, 2, 3]], "\"zstd\"");
    assert!(refusal(folder.path(), None).contains("shard.00000.mds is compressed by zstd, and has no zip_data"));
}

#[test]
fn shards_that_are_cut_off_or_point_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    mds(folder.path(), &[[1, 2, 3], [4, 5, 6]], "null");
    let (shard, index) = (folder.path().join("shard.00000.mds"), folder.path().join("index.json"));
    let (good, text) = (fs::read(&shard).unwrap(), fs::read_to_string(&index).unwrap());
    fs::write(&shard, &good[..good.len() - 1]).unwrap();
    assert!(refusal(folder.path(), None).contains("index.json says it has 46 bytes, and it has 45"));
    for (at, byte, expected) in [
        (0, 9, "it has 9 rows, and index.json says 2"),
        (7, 255, "row 0 ends at byte"),
        (11, 255, "row 1 ends at byte"),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        fs::write(&shard, &bad).unwrap();
        let error = refusal(folder.path(), None);
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&shard, &good).unwrap();
    fs::write(&index, text.replace("shard.00000.mds", "../shard.00000.mds")).unwrap();
    assert!(refusal(folder.path(), None).contains("is no name of a file in this folder"));
    fs::write(&index, text.replace("ndarray:uint16:3", "pkl")).unwrap();
    assert!(refusal(folder.path(), None).contains("column tokens is \"pkl\""));
    fs::write(&index, "{}").unwrap();
    assert!(refusal(folder.path(), None).contains("neither shards (MDS) nor chunks"));
}

#[test]
fn chunks_of_litdata_are_a_stream_of_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let mut chunk: Vec<u8> = [2_u32, 16, 20, 26].into_iter().flat_map(u32::to_le_bytes).collect();
    chunk.extend(stored(&[1, 2, 3, 4, 5]));
    write(&folder.path().join("chunk-0-0.bin"), &chunk);
    let index = |more: &str, dim: u32| {
        let index = format!(
            r#"{{"chunks": [{{"chunk_bytes": 10, "chunk_size": 2, "dim": {dim}, "filename": "chunk-0-0.bin"}}],
            "config": {{"compression": {more}, "data_format": ["no_header_tensor:20"], "encryption": null}}}}"#
        );
        write(&folder.path().join("index.json"), index.as_bytes());
    };
    index("null", 5);
    assert_eq!(tokens(&Source::open(folder.path(), None).unwrap()), [1, 2, 3, 4, 5]);
    index("null", 6);
    assert!(refusal(folder.path(), None).contains("it has 26 bytes, and index.json says 6 tokens behind 16 bytes"));
    index("\"gz\"", 5);
    assert!(refusal(folder.path(), None).contains("its chunks are compressed by gz: zstd is read"));
}

#[test]
fn a_megatron_pair_that_does_not_fit_is_refused_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    written(&path, Target::Megatron, TokenType::Uint16);
    let bin = folder.path().join("data.bin");
    for spelled in ["data", "data.bin", "data.idx"] {
        assert_eq!(Source::open(&folder.path().join(spelled), None).unwrap().format(), Format::Megatron);
    }
    let good = fs::read(&bin).unwrap();
    fs::write(&bin, &good[..good.len() - 2]).unwrap();
    let error = refusal(&path, None);
    assert!(error.contains("data.bin at byte") && error.contains("its index covers"), "{error}");
}

/// A file that is cut short by another while it is open: by truncation, as in life.
#[test]
fn a_file_that_was_cut_short_is_told_before_the_next_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder.path().join("a.bin"), &[1; 4_096]);
    let source = Source::open(&path, Some(TokenType::Uint16)).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(1_024).unwrap();
    assert!(matches!(source.check(), Err(Error::Changed { opened: 4_096, .. })));
}

#[test]
fn what_holds_no_tokens_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        refusal(folder.path(), None).contains("no manifest.json, no index.json, and no file whose name ends with .bin")
    );
    assert!(refusal(&folder.path().join("none"), None).contains("no such file or folder"));
}

/// What the formats' own writers wrote (`fixtures/writers/write.py`), token by token.
#[test]
fn what_the_real_writers_write_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers");
    let documents: Vec<Vec<i64>> =
        (0..10_i64).map(|d| (0..d * 3).map(|n| (d * 131 + n * 7) % 60_000).collect()).collect();
    let all = documents.concat();
    let lengths: Vec<u64> = documents.iter().map(|document| document.len() as u64).collect();
    let open = |name: &str| Source::open(&folder.join(name), None).unwrap();
    for (name, data_type) in [("megatron-uint16.bin", TokenType::Uint16), ("megatron-int32.bin", TokenType::Int32)] {
        let source = open(name);
        assert_eq!((source.format(), source.data_type(), tokens(&source)), (Format::Megatron, data_type, all.clone()));
        assert_eq!(source.document_lengths().collect::<Vec<_>>(), lengths);
    }
    let datatrove = open("datatrove.ds");
    assert_eq!((datatrove.data_type(), tokens(&datatrove)), (TokenType::Uint16, all.clone()));
    assert_eq!(datatrove.document_lengths().collect::<Vec<_>>(), lengths);
    assert_eq!(tokens(&open("flat.npy")), all);
    assert_eq!(tokens(&open("matrix.npy")), (0..24).collect::<Vec<_>>());
    assert_eq!(tokens(&open("litdata")), all);
    // Eight rows of 16, in several shards, beside a column of texts of different lengths.
    let mds = open("mds");
    assert_eq!(tokens(&mds), all[..128]);
    let unpacked = tempfile::tempdir().unwrap();
    let (mds, litdata) = (all[..128].to_vec(), all);
    let compressed = ["zstd", "gz", "br", "bz2", "snappy"].map(|by| (format!("mds-{by}"), &mds));
    for (name, expected) in compressed.into_iter().chain([("litdata-zstd".to_owned(), &litdata)]) {
        let read = || tokens(&Source::open_unpacking(&folder.join(&name), None, unpacked.path()).unwrap());
        assert_eq!(read(), *expected, "{name}");
        let there = || fs::read_dir(unpacked.path()).unwrap().count();
        let before = there();
        assert_eq!((read(), there()), (expected.clone(), before), "nothing is unpacked twice");
    }
    let refused = refusal(&folder.join("mds-zstd"), None);
    assert!(refused.contains("shard.00000.mds.zstd is compressed, and there is no folder"), "{refused}");
}

/// A shard that is damaged, cut off, or not what the index says is refused, and nothing of it stays.
#[test]
fn a_compressed_shard_that_is_damaged_is_refused() {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers/mds-zstd");
    let (folder, unpacked) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in fs::read_dir(&written).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let refused = || Source::open_unpacking(folder.path(), None, unpacked.path()).unwrap_err().to_string();
    let shard = folder.path().join("shard.00001.mds.zstd");
    let good = fs::read(&shard).unwrap();
    fs::write(&shard, &good[..good.len() - 9]).unwrap();
    assert!(
        refused().contains("shard.00001.mds.zstd at byte 206: index.json says it has 215 bytes, and it has 206"),
        "{}",
        refused()
    );
    let mut bad = good.clone();
    bad[4] ^= 0xff;
    bad[20..60].fill(0xff);
    fs::write(&shard, &bad).unwrap();
    assert!(refused().contains("shard.00001.mds.zstd"), "{}", refused());
    fs::write(&shard, &good).unwrap();
    // A shard that holds more than the index says mustn't fill the disk.
    let index = folder.path().join("index.json");
    let right = fs::read_to_string(&index).unwrap();
    fs::write(&index, right.replace("\"bytes\": 275", "\"bytes\": 274")).unwrap();
    assert!(refused().contains("it holds more than the 274 bytes that it should"), "{}", refused());
    fs::write(&index, right).unwrap();
    assert_eq!(tokens(&Source::open_unpacking(folder.path(), None, unpacked.path()).unwrap()).len(), 128);
    let partial = |name: std::ffi::OsString| name.to_string_lossy().ends_with("partial");
    assert!(!fs::read_dir(unpacked.path()).unwrap().any(|file| partial(file.unwrap().file_name())));
}

/// The other way round: Megatron's index is the same bytes as its own writer's.
#[test]
fn megatrons_pair_is_written_as_its_own_writer_does() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers");
    for (name, data_type) in [("megatron-uint16", TokenType::Uint16), ("megatron-int32", TokenType::Int32)] {
        let mut writer = Writer::create(&folder.path().join(name), Target::Megatron, data_type).unwrap();
        for d in 0..10_u64 {
            writer.push(&(0..d * 3).map(|n| d * 131 + n * 7).collect::<Vec<_>>()).unwrap();
        }
        writer.finish().unwrap();
        for end in ["bin", "idx"] {
            let file = format!("{name}.{end}");
            let (mine, theirs) =
                (fs::read(folder.path().join(&file)).unwrap(), fs::read(fixtures.join(&file)).unwrap());
            let is_same = mine == theirs;
            assert!(is_same, "{file}: {} and {} bytes", mine.len(), theirs.len());
        }
    }
}
