//! Remote datasets that are fetched as they are read, and ahead of that, from a real server: what is asked for, what waits for
//! what, and what is given when things go wrong.

#![cfg(feature = "s3")]
#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gangline_data::order::Shuffle;
use gangline_data::{Cache, CacheOptions, Error, Loader, Options, RANGE_BYTES, Room, Source, TokenType, Width};
use server::Server;
use tempfile::TempDir;

const RANGE: usize = 8 << 20;
/// 4 KiB of tokens.
const LENGTH: u32 = 2_048;
/// Samples of a range of 8 MiB.
const IN_RANGE: u32 = (8 << 20) / (LENGTH * 2);
/// How long something may take that is about to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

/// Tokens that don't repeat soon.
fn bytes(count: usize) -> Vec<u8> {
    let words = (0..count.div_ceil(8) as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.flatten().take(count).collect()
}

/// Objects of several ranges.
fn objects() -> BTreeMap<String, Vec<u8>> {
    let all = bytes(5 * RANGE + 100);
    let (one, other) = all.split_at(3 * RANGE + 50);
    [("set/a.bin", one), ("set/b.bin", other)].map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).into()
}

fn options(shuffle: Shuffle, rank: u32, ranks: u32) -> Options {
    Options {
        sequence_length: nonzero(LENGTH),
        global_batch: nonzero(64),
        seed: 7,
        shuffle,
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: Some(1),
        rank,
        world_size: nonzero(ranks),
        threads: nonzero(1),
        packs_documents: false,
    }
}

/// A cache in a folder, of a node that asks this server.
fn cache(folder: &Path, address: &str, bytes_max: Option<u64>) -> Cache {
    let settings = [
        ("AWS_ENDPOINT_URL", address),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Cache::open(CacheOptions { root: folder.join("cache"), bytes_max, settings, threads: nonzero(4) }).unwrap()
}

fn loader(cache: &Cache, options: Options) -> Result<Loader, Error> {
    let source = Source::open_fetched(cache.find("s3://bucket/set")?, Some(TokenType::Uint16))?;
    Loader::new(vec![source], options)
}

/// The same data on this machine.
fn local(folder: &TempDir, options: Options) -> Loader {
    for (name, bytes) in objects() {
        fs::create_dir_all(folder.path().join("set")).unwrap();
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let source = Source::open(&folder.path().join("set"), Some(TokenType::Uint16)).unwrap();
    Loader::new(vec![source], options).unwrap()
}

fn next(loader: &mut Loader) -> Result<Vec<u8>, Error> {
    let mut inputs = vec![0; loader.rows().len() * LENGTH as usize * 2];
    loader.fill(&mut Room { width: Width::Stored, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    Ok(inputs)
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Proves A-16 of remote data.
#[test]
fn a_batch_comes_before_the_rest_of_the_set_is_there_and_what_is_missing_holds_up_its_own_batch_alone() {
    let folder = tempfile::tempdir().unwrap();
    let held = Server { objects: objects(), is_held: AtomicBool::new(true), held_from: 1, ..Server::default() };
    let (server, address) = held.start();
    let cache = cache(folder.path(), &address, None);
    // What a source is known by is at the objects' ends.
    let opening = std::thread::spawn({
        let cache = cache.clone();
        move || loader(&cache, options(Shuffle::None, 0, 1)).unwrap()
    });
    wait_until("the ends weren't asked for", || server.gets.load(Ordering::SeqCst) >= 2);
    server.is_held.store(false, Ordering::SeqCst);
    let mut remote = opening.join().unwrap();
    server.is_held.store(true, Ordering::SeqCst);
    let mut oracle = local(&folder, options(Shuffle::None, 0, 1));
    let batches_of_range = IN_RANGE / 64;
    // The last sample's label is in the next range.
    for batch in 0..batches_of_range - 1 {
        assert_eq!(next(&mut remote).unwrap(), next(&mut oracle).unwrap(), "batch {batch}");
    }
    // What comes behind it was asked for meanwhile, and is held.
    let is_asked = |from: usize| server.asked.lock().unwrap().iter().any(|(_, range)| range.start == from * RANGE);
    wait_until("nothing was fetched ahead", || is_asked(1) && is_asked(2));
    let waiting = std::thread::spawn(move || (next(&mut remote), remote));
    assert!(!waiting.is_finished());
    server.is_held.store(false, Ordering::SeqCst);
    let (given, mut remote) = waiting.join().unwrap();
    assert_eq!(given.unwrap(), next(&mut oracle).unwrap());
    assert!(remote.waited() > Duration::ZERO);
    let rest = oracle.batches().unwrap().1;
    for batch in 0..rest {
        assert_eq!(next(&mut remote).unwrap(), next(&mut oracle).unwrap(), "batch {batch} of the rest");
    }
}

#[test]
fn each_range_is_asked_for_once_by_all_ranks_of_all_jobs_of_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = Server { objects: objects(), ..Server::default() }.start();
    let read = |job: u32, rank: u32| {
        // Each opens the cache for itself, as a program does.
        let cache = cache(folder.path(), &address, None);
        let options = Options { seed: u64::from(job), ..options(Shuffle::default(), rank, 2) };
        let mut remote = loader(&cache, options).unwrap();
        (0..remote.batches().unwrap().0).map(|_| next(&mut remote).unwrap()).collect::<Vec<_>>()
    };
    let all: Vec<Vec<Vec<u8>>> = std::thread::scope(|scope| {
        let read = &read;
        let running: Vec<_> = (0..4).map(|number| scope.spawn(move || read(number / 2, number % 2))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, given) in (0..).zip(all) {
        let options =
            Options { seed: number / 2, ..options(Shuffle::default(), u32::try_from(number % 2).unwrap(), 2) };
        let mut oracle = local(&folder, options);
        for (batch, given) in given.into_iter().enumerate() {
            assert!(given == next(&mut oracle).unwrap(), "program {number}, batch {batch}");
        }
    }
    // Five ranges and one of a few bytes; and the beginning of each object.
    let mut asked = server.asked.lock().unwrap().clone();
    asked.sort_by_key(|(name, range)| (name.clone(), range.start, range.end));
    asked.dedup();
    assert_eq!(asked.len(), server.gets.load(Ordering::SeqCst), "nothing was asked for twice");
    let whole = asked.iter().filter(|(_, range)| range.start % RANGE == 0 && range.len() != 16_384);
    assert_eq!((whole.count(), asked.len()), (6, 8), "{asked:?}");
    assert_eq!((server.heads.load(Ordering::SeqCst), server.lists.load(Ordering::SeqCst)), (0, 4));
}

/// How often ranges are fetched for these batches if there is room for so many, and the one that `choose` says makes room.
fn fetched(batches: &[Vec<usize>], room: usize, choose: impl Fn(&[usize], usize) -> usize) -> usize {
    let (mut there, mut count) = (Vec::new(), 0);
    for (number, ranges) in batches.iter().enumerate() {
        for range in ranges {
            if let Some(at) = there.iter().position(|one| one == range) {
                let used = there.remove(at);
                there.push(used);
                continue;
            }
            if there.len() == room {
                there.remove(choose(&there, number));
            }
            there.push(*range);
            count += 1;
        }
    }
    count
}

#[test]
fn a_set_larger_than_the_cache_stays_within_the_limit_and_what_is_used_last_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = Server { objects: objects(), ..Server::default() }.start();
    let (room, limit) = (4, 4 * RANGE_BYTES);
    let cache = cache(folder.path(), &address, Some(limit));
    let options = Options {
        global_batch: nonzero(16),
        ..options(Shuffle::Blocks { block: nonzero(64), window: nonzero(2) }, 0, 1)
    };
    let mut remote = loader(&cache, options.clone()).unwrap();
    let mut oracle = local(&folder, options);
    let mut batches = Vec::new();
    for batch in 0..remote.batches().unwrap().0 {
        assert!(next(&mut remote).unwrap() == next(&mut oracle).unwrap(), "batch {batch}");
        let there: u64 = cache.holdings().unwrap().iter().map(|one| one.there).sum();
        assert!(there <= limit, "{there} bytes are there");
        // Samples run over the end of the first object, whose length is no multiple of theirs.
        let first = |number: u64| usize::try_from(number * u64::from(LENGTH) * 2).unwrap();
        let in_file =
            |byte: usize| if byte < 3 * RANGE + 50 { byte / RANGE } else { 4 + (byte - 3 * RANGE - 50) / RANGE };
        let ranges = oracle.samples().iter().flat_map(|sample| [first(sample.number), first(sample.number + 1) + 1]);
        let mut ranges: Vec<usize> = ranges.map(in_file).collect();
        ranges.sort_unstable();
        ranges.dedup();
        batches.push(ranges);
    }
    let next_use = |range: usize, after: usize| {
        (after..batches.len()).find(|number| batches[*number].contains(&range)).unwrap_or(usize::MAX)
    };
    let latest = |there: &[usize], now: usize| (0..there.len()).max_by_key(|at| next_use(there[*at], now)).unwrap();
    let (best, recent) = (fetched(&batches, room, latest), fetched(&batches, room, |_, _| 0));
    let ends = 4;
    let asked = server.gets.load(Ordering::SeqCst) - ends;
    // What is fetched ahead takes room from what is used later, but not twice.
    assert!(asked <= best * 5 / 4 + 2, "{asked} GETs; {best} are needed, {recent} by what was used longest ago");
    assert!(best * 5 / 4 + 2 < recent, "{best} are needed, {recent} by what was used longest ago");
}

#[test]
fn room_that_one_batch_needs_is_refused_if_there_is_less() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = Server { objects: objects(), ..Server::default() }.start();
    let cache = cache(folder.path(), &address, Some(100));
    let error = loader(&cache, options(Shuffle::Global, 0, 1)).and_then(|mut loader| next(&mut loader)).unwrap_err();
    assert!(error.to_string().contains("use cache_limit: "), "{error}");
    // It isn't fetched again and again for each of its samples.
    let cache = self::cache(folder.path(), &address, Some(3 * RANGE_BYTES));
    let before = server.gets.load(Ordering::SeqCst);
    let error = loader(&cache, options(Shuffle::Global, 0, 1)).and_then(|mut loader| next(&mut loader)).unwrap_err();
    assert!(error.to_string().contains("a batch needs 41943040 bytes of the cache at once, in 5 ranges"), "{error}");
    assert!(server.gets.load(Ordering::SeqCst) <= before + 4, "the objects' ends alone");
}

#[test]
fn an_object_that_changes_while_a_job_reads_it_is_an_error_and_never_a_mixture() {
    for ignores_conditions in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let changing = Server { objects: objects(), ignores_conditions, ..Server::default() };
        let (server, address) = changing.start();
        let cache = cache(folder.path(), &address, None);
        let mut remote = loader(&cache, options(Shuffle::None, 0, 1)).unwrap();
        server.state.store(1, Ordering::SeqCst);
        let error = loop {
            if let Err(error) = next(&mut remote) {
                break error.to_string();
            }
        };
        assert!(
            error.contains("s3://bucket/set/a.bin: it had 25165874 bytes when it was opened and was changed"),
            "{error}"
        );
    }
}

#[test]
fn refused_and_cut_answers_are_asked_for_again_and_all_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = Server { objects: objects(), faults_every: 5, ..Server::default() }.start();
    let cache = cache(folder.path(), &address, None);
    let mut remote = loader(&cache, options(Shuffle::default(), 0, 1)).unwrap();
    let mut oracle = local(&folder, options(Shuffle::default(), 0, 1));
    for batch in 0..remote.batches().unwrap().0 {
        assert!(next(&mut remote).unwrap() == next(&mut oracle).unwrap(), "batch {batch}");
    }
    let source = remote.sources()[0].cached().unwrap();
    let counted = source.requests();
    assert_eq!(usize::try_from(counted.get + counted.head + counted.list + counted.failed).unwrap(), server.requests());
    assert!(counted.get + counted.failed > 12 && counted.failed > 0, "there were faults: {counted:?}");
    let sent = u64::try_from(server.sent.load(Ordering::SeqCst)).unwrap();
    assert_eq!(source.fetched(), sent, "what broke off is paid for as well");
    assert!(sent > source.bytes(), "some of it came twice");
}
