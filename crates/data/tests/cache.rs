//! The cache of remote datasets, from a folder: fetched once, bounded, and never wrong. `crates/cli/tests/data.rs` has it from S3,
//! among processes that are killed.

#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use gangline_data::{
    Cache, CacheOptions, Error, Fetched, QUOTA_VARIABLE, RANGE_BYTES, Source, TokenType, Width, holdings_of,
};
use tempfile::TempDir;

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts raw tokens into a dataset; returns its address.
    fn put(&self, set: &str, name: &str, tokens: &[u16]) -> String {
        fs::create_dir_all(self.path(set)).unwrap();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        fs::write(self.path(set).join(name), bytes).unwrap();
        format!("file://{}", self.path(set).display())
    }

    fn cache(&self, bytes_max: Option<u64>) -> Cache {
        let threads = NonZeroU32::new(4).unwrap();
        Cache::open(CacheOptions { root: self.path("cache"), bytes_max, settings: BTreeMap::new(), threads }).unwrap()
    }

    fn fetch(&self, url: &str) -> Result<Fetched, Error> {
        self.cache(None).fetch(url, &|_, _| {})
    }
}

fn tokens(source: &Source) -> Result<Vec<i64>, Error> {
    let mut bytes = vec![0; usize::try_from(source.tokens()).unwrap() * 8];
    source.copy(0..source.tokens(), Width::Int64, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
}

#[test]
fn a_dataset_is_fetched_once_and_is_the_data_that_it_is_where_it_lies() {
    let place = Place::new();
    place.put("set", "a.bin", &[1, 2, 3]);
    let url = place.put("set", "b.bin", &(0..60_000).collect::<Vec<u16>>());
    let fetched: Vec<Fetched> = thread::scope(|scope| {
        let running: Vec<_> = (0..8).map(|_| scope.spawn(|| place.fetch(&url).unwrap())).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fetched.iter().map(|one| one.fetched()).sum::<u64>(), 120_006, "once for all");
    let here = Source::open(&place.path("set"), Some(TokenType::Uint16)).unwrap();
    let expected = tokens(&here).unwrap();
    for fetched in fetched {
        assert_eq!(fetched.bytes(), 120_006);
        let source = Source::open_fetched(fetched, Some(TokenType::Uint16)).unwrap();
        assert_eq!((source.id(), tokens(&source).unwrap()), (here.id(), expected.clone()));
        assert!(source.has_checksums() && !here.has_checksums());
    }
    let one = place.fetch(&format!("{url}/a.bin")).unwrap();
    assert_eq!(fs::read(one.path()).unwrap(), [1, 0, 2, 0, 3, 0]);
}

/// The index names the compressed files, which are fetched when the dataset is opened and read unpacked.
#[test]
fn compressed_shards_are_unpacked_in_the_cache() {
    let written = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers");
    let place = Place::new();
    for name in ["mds-zstd", "mds-snappy", "litdata-zstd"] {
        let plain = written.join(name.split_once('-').unwrap().0);
        let expected = tokens(&Source::open(&plain, None).unwrap()).unwrap();
        let found = || place.cache(None).find(&format!("file://{}", written.join(name).display())).unwrap();
        let source = Source::open_fetched(found(), None).unwrap();
        assert_eq!(tokens(&source).unwrap(), expected);
        let again = Source::open_fetched(found(), None).unwrap();
        assert_eq!((again.id(), again.cached().unwrap().fetched()), (source.id(), 0));
    }
    let unpacked =
        fs::read_dir(place.path("cache/unpacked")).unwrap().filter(|found| found.as_ref().unwrap().path().is_file());
    assert_eq!(unpacked.count(), 9 + 9 + 3);
}

#[test]
fn what_is_here_of_each_dataset_is_known_until_it_makes_room() {
    let place = Place::new();
    let held = || {
        let all = holdings_of(&place.path("cache")).unwrap();
        all.into_iter().map(|one| (one.url, one.here, one.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(held(), []);
    let many = vec![7; usize::try_from(2 * RANGE_BYTES).unwrap()];
    let url = place.put("set", "large.bin", &many);
    place.put("set", "small.bin", &[1, 2, 3]);
    let bytes = 4 * RANGE_BYTES + 6;
    let found = place.cache(None).find(&url).unwrap();
    assert_eq!(held(), [], "nothing was read of it");
    let source = Source::open_fetched(found, Some(TokenType::Uint16)).unwrap();
    source.copy(0..1, Width::Int64, &mut [0; 8]).unwrap();
    assert_eq!(held(), [(url.clone(), RANGE_BYTES + 6, bytes)], "a range of the larger one");
    drop(source);
    let one = place.fetch(&format!("{url}/small.bin")).unwrap();
    assert_eq!(held(), [(url.clone(), RANGE_BYTES + 6, bytes), (format!("{url}/small.bin"), 6, 6)]);
    drop(one);
    let other = place.put("other", "a.bin", &many);
    drop(place.cache(Some(4 * RANGE_BYTES)).fetch(&other, &|_, _| {}).unwrap());
    assert_eq!(held(), [(other.clone(), 4 * RANGE_BYTES, 4 * RANGE_BYTES)]);
    assert_eq!(
        fs::read_dir(place.path("cache").join("datasets")).unwrap().count(),
        1,
        "lists don't outlive their copies"
    );
}

/// The first program fetches; what others, or the same one later, find here counts once for each.
#[test]
fn what_programs_found_here_and_what_they_fetched_is_counted() {
    let place = Place::new();
    let many = vec![7; usize::try_from(2 * RANGE_BYTES).unwrap()];
    let url = place.put("set", "large.bin", &many);
    let counted = || {
        let all = place.cache(None).holdings().unwrap();
        all.into_iter().map(|one| (one.found, one.fetched)).collect::<Vec<_>>()
    };
    let open = || Source::open_fetched(place.cache(None).find(&url).unwrap(), Some(TokenType::Uint16)).unwrap();
    let first = open();
    first.copy(0..1, Width::Int64, &mut [0; 8]).unwrap();
    first.copy(0..1, Width::Int64, &mut [0; 8]).unwrap();
    assert_eq!(counted(), [(0, RANGE_BYTES)]);
    let second = open();
    for _ in 0..3 {
        second.copy(1..2, Width::Int64, &mut [0; 8]).unwrap();
    }
    assert_eq!(counted(), [(RANGE_BYTES, RANGE_BYTES)]);
    tokens(&second).unwrap();
    assert_eq!(counted(), [(RANGE_BYTES, 4 * RANGE_BYTES)], "three ranges more");
    drop((first, second));
    drop(place.fetch(&url).unwrap());
    assert_eq!(counted(), [(5 * RANGE_BYTES, 4 * RANGE_BYTES)], "all four by a third program");
}

#[test]
fn a_changed_object_is_another_copy_and_a_missing_one_is_told() {
    let place = Place::new();
    let url = place.put("set", "a.bin", &[1, 2, 3]);
    let before = Source::open_fetched(place.fetch(&format!("{url}/a.bin")).unwrap(), Some(TokenType::Uint16)).unwrap();
    place.put("set", "a.bin", &[4, 5, 6]);
    let after = Source::open_fetched(place.fetch(&format!("{url}/a.bin")).unwrap(), Some(TokenType::Uint16)).unwrap();
    assert_eq!((tokens(&before).unwrap(), tokens(&after).unwrap()), (vec![1, 2, 3], vec![4, 5, 6]));
    let error = place.fetch(&format!("{url}/none.bin")).unwrap_err().to_string();
    assert!(error.contains("set/none.bin: there is no such object"), "{error}");
    let error = place.fetch(&format!("file://{}", place.path("nothing").display())).unwrap_err().to_string();
    assert!(error.contains("0 objects are there"), "{error}");
    assert!(matches!(place.fetch("gopher://x/y.bin"), Err(Error::Remote { .. })));
}

#[test]
fn every_flipped_bit_of_a_copy_is_found_before_it_is_given_and_the_object_is_fetched_anew() {
    let place = Place::new();
    let numbers: Vec<u16> = (0..2_000).collect();
    let url = place.put("set", "a.bin", &numbers) + "/a.bin";
    let expected: Vec<i64> = numbers.into_iter().map(i64::from).collect();
    drop(place.fetch(&url).unwrap());
    for bit in (0..4_000 * 8).step_by(997) {
        let fetched = place.fetch(&url).unwrap();
        let mut bytes = fs::read(fetched.path()).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // In place, as a disk would do it.
        fs::write(fetched.path(), &bytes).unwrap();
        let source = Source::open_fetched(fetched, Some(TokenType::Uint16)).unwrap();
        assert_eq!(tokens(&source).unwrap(), expected, "bit {bit}");
        assert_eq!(source.cached().unwrap().fetched(), 4_000, "bit {bit}");
        // Who looks for the cause finds what was there.
        let kept = fs::read_dir(place.path("cache/quarantine")).unwrap().next().unwrap().unwrap().path();
        assert_eq!(fs::read(&kept).unwrap(), bytes);
        fs::remove_file(kept).unwrap();
    }
}

#[test]
fn a_queue_makes_room_among_what_it_fetched_itself() {
    let place = Place::new();
    let url = |number: u16| place.put(&format!("set-{number}"), "a.bin", &[number; 500]) + "/a.bin";
    let urls: Vec<String> = (0..5).map(url).collect();
    let of = |queue: &str, bytes: u64| {
        let settings = BTreeMap::from([(QUOTA_VARIABLE.to_owned(), format!("{queue}={bytes}"))]);
        let threads = NonZeroU32::new(4).unwrap();
        Cache::open(CacheOptions { root: place.path("cache"), bytes_max: None, settings, threads }).unwrap()
    };
    let (nlp, vision) = (of("nlp", 2_000), of("vision", 5_000));
    let fetch = |cache: &Cache, number: usize| cache.fetch(&urls[number], &|_, _| {});
    drop(fetch(&vision, 0).unwrap());
    drop(fetch(&nlp, 1).unwrap());
    let held = fetch(&nlp, 2).unwrap();
    // What another queue fetched is read without a charge.
    assert_eq!(fetch(&nlp, 0).unwrap().fetched(), 0);
    let has = |cache: &Cache| -> Vec<(String, u64, u64)> {
        cache.queues().unwrap().into_iter().map(|one| (one.queue, one.here, one.bytes_max)).collect()
    };
    let both = |nlp: u64| [("nlp".to_owned(), nlp, 2_000), ("vision".to_owned(), 1_000, 5_000)];
    assert_eq!(has(&vision), both(2_000));
    // The second of its copies makes room, not the one that is used, nor another queue's, though that was used before.
    let third = fetch(&nlp, 3).unwrap();
    assert_eq!((third.fetched(), has(&nlp)), (1_000, both(2_000).into()));
    assert_eq!(fetch(&vision, 0).unwrap().fetched(), 0);
    let error = fetch(&nlp, 4).unwrap_err().to_string();
    assert!(error.contains("use cache_quota") && error.contains("what queue nlp may have"), "{error}");
    drop((held, third));
    assert_eq!((fetch(&nlp, 4).unwrap().fetched(), has(&nlp)), (1_000, both(2_000).into()));
    // Without a quota nothing is charged.
    assert_eq!(fetch(&place.cache(None), 1).unwrap().fetched(), 1_000);
    assert_eq!(has(&nlp), both(2_000));
    let settings = BTreeMap::from([(QUOTA_VARIABLE.to_owned(), "nlp".to_owned())]);
    let refused = CacheOptions { root: place.path("cache"), bytes_max: None, settings, threads: NonZeroU32::MIN };
    assert!(Cache::open(refused).unwrap_err().to_string().contains("not QUEUE=BYTES"));
}

#[test]
fn copies_used_longest_ago_make_room_and_those_in_use_do_not() {
    let place = Place::new();
    let url = |number: u16| place.put(&format!("set-{number}"), "a.bin", &[number; 500]) + "/a.bin";
    let urls: Vec<String> = (0..4).map(url).collect();
    let cache = place.cache(Some(2_500));
    let fetch = |number: usize| cache.fetch(&urls[number], &|_, _| {});
    let held = fetch(0).unwrap();
    drop(fetch(1).unwrap());
    // The first is used, the second not.
    assert_eq!(fetch(2).unwrap().fetched(), 1_000);
    let there: Vec<(String, bool)> = cache.holdings().unwrap().into_iter().map(|one| (one.url, one.is_used)).collect();
    assert_eq!(there, [(urls[0].clone(), true), (urls[2].clone(), false)]);
    let other = fetch(3).unwrap();
    let error = fetch(1).unwrap_err().to_string();
    assert!(
        error.contains("1000 bytes more don't fit the cache") && error.contains("2000 of it are in use"),
        "{error}"
    );
    drop((held, other));
    assert_eq!(fetch(1).unwrap().fetched(), 1_000);
    let bytes = |folder: PathBuf| -> u64 {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        files.filter(|file| file.path().extension().is_none()).map(|file| file.metadata().unwrap().len()).sum()
    };
    assert!(bytes(place.path("cache/objects")) <= 2_500);
    let error = place.cache(Some(10)).fetch(&urls[0], &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("use cache_limit"), "{error}");
}

#[test]
fn what_is_known_of_a_copy_may_be_damaged_and_the_object_is_then_fetched_anew() {
    let place = Place::new();
    let url = place.put("set", "a.bin", &[7; 1_000]) + "/a.bin";
    drop(place.fetch(&url).unwrap());
    let part = |end: &str| {
        let files = fs::read_dir(place.path("cache/objects")).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|found| found == end)).unwrap()
    };
    for (end, at, fetched) in [("json", 60, 0), ("ranges", 20, 2_000), ("ranges", 0, 2_000)] {
        let mut bytes = fs::read(part(end)).unwrap();
        bytes[at] ^= 1;
        fs::write(part(end), bytes).unwrap();
        let again = place.fetch(&url).unwrap();
        again.verify().unwrap();
        assert_eq!(again.fetched(), fetched, "{end}");
    }
    // A list that was cut short, and a copy that was.
    fs::write(part("ranges"), []).unwrap();
    assert_eq!(place.fetch(&url).unwrap().fetched(), 2_000);
    let copy = part("json").with_extension("");
    fs::File::options().write(true).open(copy).unwrap().set_len(1_000).unwrap();
    let again = place.fetch(&url).unwrap();
    again.verify().unwrap();
    assert_eq!(again.fetched(), 2_000);
}

/// One user's data isn't another's, however open the folder around the cache is.
#[test]
fn another_user_of_the_node_reads_nothing_of_the_cache() {
    let place = Place::new();
    let url = place.put("set", "a.bin", &[1, 2, 3, 4]);
    place.fetch(&url).unwrap().fetch_all(&|_, _| {}).unwrap();
    let root = place.path("cache");
    for folder in [place.path(""), root.clone()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let entries = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    assert!(folders.iter().any(|folder| folder.ends_with("objects")), "{folders:?}");
    for folder in folders {
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
        // Only root can be somebody else.
        if rustix::process::geteuid().is_root() {
            let listed = Command::new("ls").arg(&folder).uid(65_534).gid(65_534).output().unwrap();
            assert!(!listed.status.success() && listed.stdout.is_empty(), "{}", folder.display());
        }
    }
}
