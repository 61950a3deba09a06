//! Datasets behind HTTP, from a real server and with its faults.

#![cfg(feature = "s3")]
#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::Ordering;

use gangline_data::{Cache, CacheOptions, Error, Source, Target, TokenType, Width, Writer};
use server::Server;

fn cache(folder: &Path) -> Cache {
    let threads = NonZeroU32::new(4).unwrap();
    Cache::open(CacheOptions { root: folder.join("cache"), bytes_max: None, settings: BTreeMap::new(), threads })
        .unwrap()
}

fn bytes(count: u32) -> Vec<u8> {
    (0..count).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[1]).collect()
}

fn objects(all: &[(&str, u32)]) -> BTreeMap<String, Vec<u8>> {
    all.iter().map(|(name, count)| ((*name).to_owned(), bytes(*count))).collect()
}

fn source(folder: &Path, url: &str) -> Result<Source, Error> {
    Source::open_fetched(cache(folder).find(url)?, Some(TokenType::Uint16))
}

fn stored(source: &Source) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(source.tokens()).unwrap() * 2];
    source.copy(0..source.tokens(), Width::Stored, &mut bytes)?;
    Ok(bytes)
}

fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    causes.collect::<Vec<_>>().join(": ")
}

#[test]
fn an_object_is_read_in_ranges_through_faults_and_all_requests_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let served = Server { objects: objects(&[("set/a.bin", 20 << 20)]), faults_every: 4, ..Server::default() };
    let (server, address) = served.start();
    // A signature is sent, and is a part of nothing.
    let source = source(folder.path(), &format!("{address}/bucket/set/a.bin?sig=secret")).unwrap();
    assert!(stored(&source).unwrap() == bytes(20 << 20));
    let cached = source.cached().unwrap();
    let requests = cached.requests();
    assert_eq!(
        usize::try_from(requests.get + requests.head + requests.failed).unwrap(),
        server.requests(),
        "{requests:?}"
    );
    assert!(
        requests.get + requests.failed > 4 && requests.head == 1,
        "three ranges, the beginning, and faults: {requests:?}"
    );
    assert_eq!(usize::try_from(cached.fetched()).unwrap(), server.sent.load(Ordering::SeqCst));
    let held = cache(folder.path()).holdings().unwrap();
    assert_eq!(held[0].url, format!("{address}/bucket/set/a.bin"));
    drop(source);
    // It is there for those with another signature.
    let again = self::source(folder.path(), &format!("{address}/bucket/set/a.bin?sig=other")).unwrap();
    assert!(stored(&again).unwrap() == bytes(20 << 20));
    assert_eq!(again.cached().unwrap().fetched(), 0);
}

#[test]
fn a_folder_is_found_by_its_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(&folder.path().join("set"), Target::Gangline, TokenType::Uint16).unwrap();
    (0..300).for_each(|number| writer.push(&(number..number + 100).collect::<Vec<u64>>()).unwrap());
    writer.finish().unwrap();
    let local = Source::open(&folder.path().join("set"), None).unwrap();
    let files = fs::read_dir(folder.path().join("set")).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &Path| format!("set/{}", path.file_name().unwrap().to_str().unwrap());
    let objects = files.map(|path| (named(&path), fs::read(&path).unwrap())).collect();
    let (server, address) = Server { objects, ..Server::default() }.start();
    let remote = source(folder.path(), &format!("{address}/bucket/set")).unwrap();
    assert_eq!((remote.id(), remote.documents()), (local.id(), Some(300)));
    assert!(stored(&remote).unwrap() == stored(&local).unwrap());
    // The manifest is read to know the files, and kept as one of them.
    let asked = || (server.gets.load(Ordering::SeqCst), server.heads.load(Ordering::SeqCst));
    assert_eq!(asked(), (3, 3));
    let again = source(folder.path(), &format!("{address}/bucket/set")).unwrap();
    assert!(stored(&again).unwrap() == stored(&local).unwrap());
    assert_eq!(asked(), (3, 6), "it is looked at whether each is as it was");
    drop((again, remote));
    server.state.store(1, Ordering::SeqCst);
    drop(source(folder.path(), &format!("{address}/bucket/set")).unwrap());
    assert_eq!(asked(), (5, 9), "a manifest in another state is another copy; so are the documents' ends");
    let error = source(folder.path(), &format!("{address}/bucket/none")).unwrap_err().to_string();
    assert!(error.contains("no manifest.json and no index.json is there that names its files"), "{error}");
}

#[test]
fn an_empty_manifest_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let objects = BTreeMap::from([("set/manifest.json".to_owned(), Vec::new())]);
    let (_server, address) = Server { objects, ..Server::default() }.start();
    let error = source(folder.path(), &format!("{address}/bucket/set")).unwrap_err();
    assert!(whole(&error).contains("set/manifest.json"), "{}", whole(&error));
}

#[test]
fn a_server_that_ignores_ranges_is_refused_unless_the_object_is_one_range() {
    let folder = tempfile::tempdir().unwrap();
    let objects = objects(&[("set/large.bin", 9 << 20), ("set/small.bin", 1_000)]);
    let (server, address) = Server { objects, ignores_ranges: true, ..Server::default() }.start();
    let small = source(folder.path(), &format!("{address}/bucket/set/small.bin")).unwrap();
    assert!(stored(&small).unwrap() == bytes(1_000));
    let large = source(folder.path(), &format!("{address}/bucket/set/large.bin"));
    let error = large.and_then(|large| stored(&large)).unwrap_err();
    let said = whole(&error);
    assert!(
        said.contains("large.bin") && said.contains("the server ignores ranges: fetch the data to a disk"),
        "{said}"
    );
    assert!(server.gets.load(Ordering::SeqCst) <= 3, "it isn't asked again and again");
}

#[test]
fn an_object_that_changes_is_refused_whether_or_not_the_server_knows_conditions() {
    for ignores_conditions in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let objects = objects(&[("set/a.bin", 20 << 20)]);
        let (server, address) = Server { objects, ignores_conditions, ..Server::default() }.start();
        let source = source(folder.path(), &format!("{address}/bucket/set/a.bin")).unwrap();
        server.state.store(1, Ordering::SeqCst);
        let error = stored(&source).unwrap_err();
        assert!(matches!(error, Error::Changed { opened: 20_971_520, .. }), "{error}");
    }
}

#[test]
fn what_is_not_there_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = Server::default().start();
    let error = source(folder.path(), &format!("{address}/bucket/set/a.bin?sig=secret")).unwrap_err().to_string();
    assert!(error.contains("set/a.bin: there is no such object") && !error.contains("secret"), "{error}");
    assert_eq!(server.requests(), 1);
}
