//! From S3: an epoch into an empty cache beside a plain reader of the same ranges, from the same server, and beside the peers; what a
//! node's jobs ask for together; and the first batch of a server that takes its time.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gangline_data::order::Shuffle;
use gangline_data::{Cache, CacheOptions, Room, Source, THREADS, TokenType, Width};

use super::peers::Peers;
use super::server::Server;
use super::{BATCH, LENGTH, SAMPLE_BYTES, SHARE_MIN, loader, loader_of_rank, read_through, settle};
use crate::report::{Bar, Report, median};

/// Bytes of a range that is asked for.
const RANGE: usize = 8 << 20;
/// Bytes of an object.
const OBJECT_BYTES: usize = 64 << 20;
const ROUNDS: usize = 3;
const MEGABYTE: f64 = 1e6;
/// What is enough, in MB/s, whatever a plain reader does: what the issue asks for.
const ENOUGH: f64 = 500.0;
/// How long the slow server takes for an answer.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// What the first batch may take beside two round trips.
const FIRST_MAX: Duration = Duration::from_millis(200);
const JOBS: usize = 4;
const RANKS: u32 = 2;

pub(super) fn measure(folder: &Path, peers: Option<&Peers>, bytes: &[u8], report: &mut Report) -> Result<()> {
    report.section(
        "Cold S3, a server in this process over loopback without TLS, 1 GiB in objects of 64 MiB; each begins with 1.5 GiB of memory that \
         the host has given (measured, medians of 3 rounds)",
    );
    let objects: BTreeMap<String, Vec<u8>> = bytes.chunks(OBJECT_BYTES).enumerate().map(named).collect();
    let ranges: usize = objects.values().map(|object| object.len().div_ceil(RANGE)).sum();
    let few = objects.iter().take(4).map(|(name, object)| (name.clone(), object.clone())).collect();
    let objects = objects.into_iter().chain(peers.map(Peers::sets).transpose()?.into_iter().flatten()).collect();
    let (server, address) = Server { objects, ..Server::default() }.start();
    let (mut ours, mut plain, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    let mut theirs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        settle(folder)?;
        plain.push(plain_reader(&address, &server)?);
        settle(folder)?;
        let before = server.gets.load(Ordering::SeqCst);
        ours.push(epoch(folder, &address)?);
        asked.push((server.gets.load(Ordering::SeqCst) - before) as f64);
        for (name, rate) in peers.map(|peers| peers.remote(&address)).transpose()?.into_iter().flatten() {
            theirs.entry(name).or_default().push(rate * SAMPLE_BYTES as f64 / MEGABYTE);
        }
    }
    let (ours, plain) = (median(ours), median(plain));
    report.figure("an epoch in the default order, with checksums, through an empty cache", ours, "MB/s", Bar::None);
    report.figure("a plain reader of the same ranges, 8 at a time, that keeps nothing", plain, "MB/s", Bar::None);
    let bar = Bar::AtLeast(ENOUGH.min(plain * SHARE_MIN));
    report.figure("the epoch, against 500 MB/s or 80 % of the plain reader", ours, "MB/s", bar);
    let most = (ranges + objects_of(&server)) as f64;
    report.figure(
        &format!("GETs of the epoch; {ranges} ranges, and the beginning of each object"),
        median(asked),
        "",
        Bar::AtMost(most),
    );
    for (name, rates) in theirs {
        report.peer(&format!("{name}: {:.0} MB/s, in the same rounds", median(rates)));
    }
    drop(server);
    node(folder, few, report)
}

fn named((number, object): (usize, &[u8])) -> (String, Vec<u8>) {
    (format!("set/tokens-{number:05}.bin"), object.to_vec())
}

fn objects_of(server: &Server) -> usize {
    server.objects.keys().filter(|name| name.starts_with("set/")).count()
}

/// Four jobs of two ranks each on a node, and then the first batch from a server that is far away.
fn node(folder: &Path, objects: BTreeMap<String, Vec<u8>>, report: &mut Report) -> Result<()> {
    report.section("A node of 4 jobs with 2 ranks each, and a server that answers after 20 ms; 256 MiB (measured)");
    let count = objects.len();
    let ranges: usize = objects.values().map(|object| object.len().div_ceil(RANGE)).sum();
    let far = Server { objects: objects.clone(), delay: ROUND_TRIP, ..Server::default() };
    let (server, address) = Server { objects, ..Server::default() }.start();
    let root = tempfile::tempdir_in(folder).context("make a folder")?;
    let read = |(job, rank): (usize, u32)| -> Result<()> {
        let source = found(root.path(), &address, Some(job))?;
        let world = NonZeroU32::new(RANKS).context("it isn't 0")?;
        read_through(&mut loader_of_rank(source, Shuffle::default(), (rank, world))?).map(drop)
    };
    let ranks = (0..JOBS).flat_map(|job| (0..RANKS).map(move |rank| (job, rank)));
    std::thread::scope(|scope| {
        let running: Vec<_> = ranks.map(|rank| scope.spawn(move || read(rank))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a reader doesn't panic"))
    })?;
    let most = (ranges + count) as f64;
    let gets = server.gets.load(Ordering::SeqCst) as f64;
    report.figure("GETs of all eight together, once for the node", gets, "", Bar::AtMost(most));
    let looks = loaded(&server.lists) + loaded(&server.heads);
    report.figure("LISTs and HEADs of all eight together; one for each object", looks, "", Bar::AtMost(count as f64));
    drop((server, root));
    let (_far, address) = far.start();
    let taken = (0..ROUNDS).map(|_| first_batch(folder, &address)).collect::<Result<Vec<_>>>()?;
    let taken = Duration::from_secs_f64(median(taken));
    report.time("the first batch of data that is 20 ms away, median of 3", taken, Some(FIRST_MAX + 2 * ROUND_TRIP));
    Ok(())
}

/// Seconds to the first batch through an empty cache.
fn first_batch(folder: &Path, address: &str) -> Result<f64> {
    let root = tempfile::tempdir_in(folder).context("make a folder")?;
    settle(folder)?;
    let began = Instant::now();
    let mut loader = loader(found(root.path(), address, None)?, Shuffle::default())?;
    let mut inputs = vec![0; BATCH * LENGTH * 8];
    loader.fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut [], positions: &mut [] })?;
    Ok(began.elapsed().as_secs_f64())
}

fn loaded(count: &AtomicUsize) -> f64 {
    count.load(Ordering::SeqCst) as f64
}

/// MB/s of an epoch into an empty cache.
fn epoch(folder: &Path, address: &str) -> Result<f64> {
    let root = tempfile::tempdir_in(folder).context("make a folder")?;
    let began = Instant::now();
    let mut loader = loader(found(root.path(), address, None)?, Shuffle::default())?;
    let samples = read_through(&mut loader)?;
    Ok(samples as f64 * SAMPLE_BYTES as f64 / began.elapsed().as_secs_f64() / MEGABYTE)
}

/// Opens the set, as a rank of a job's attempt if one is said.
fn found(root: &Path, address: &str, job: Option<usize>) -> Result<Source> {
    let settings = [
        ("AWS_ENDPOINT_URL", address),
        ("AWS_ACCESS_KEY_ID", "bench"),
        ("AWS_SECRET_ACCESS_KEY", "bench"),
        ("AWS_REGION", "us-east-1"),
    ];
    let mut settings = BTreeMap::from(settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
    settings.extend(job.map(|job| ("GANGLINE_ATTEMPT_DIR".to_owned(), format!("/attempts/{job}"))));
    let threads = NonZeroU32::new(THREADS).context("it isn't 0")?;
    let cache = Cache::open(CacheOptions { root: root.to_owned(), bytes_max: None, settings, threads })?;
    Ok(Source::open_fetched(cache.find("s3://bucket/set")?, Some(TokenType::Uint16))?)
}

/// MB/s of threads that ask for the same ranges by HTTP, and put each into the same memory.
fn plain_reader(address: &str, server: &Arc<Server>) -> Result<f64> {
    let sizes: Vec<(String, usize)> = server
        .objects
        .iter()
        .filter(|(name, _)| name.starts_with("set/"))
        .map(|(name, all)| (name.clone(), all.len()))
        .collect();
    let ranges: Vec<(String, usize, usize)> = sizes
        .iter()
        .flat_map(|(name, length)| {
            (0..*length).step_by(RANGE).map(move |start| (name.clone(), start, (start + RANGE).min(*length)))
        })
        .collect();
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let work = || -> Result<()> {
        let address = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).context("connect to the server")?;
        let mut body = vec![0; RANGE];
        while let Some((name, start, end)) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            let asked =
                format!("GET /bucket/{name} HTTP/1.1\r\nHost: {address}\r\nRange: bytes={start}-{}\r\n\r\n", end - 1);
            stream.write_all(asked.as_bytes())?;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            ensure!(head.starts_with(b"HTTP/1.1 206"), "the server refuses: {}", String::from_utf8_lossy(&head));
            stream.read_exact(&mut body[..end - start])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a reader doesn't panic"))
    })?;
    let bytes: usize = sizes.iter().map(|(_, length)| length).sum();
    Ok(bytes as f64 / began.elapsed().as_secs_f64() / MEGABYTE)
}
