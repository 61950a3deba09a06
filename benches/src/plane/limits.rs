//! What this machine allows, measured in the same run: the disk's fsyncs, and the least that a server could do.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::client::{Door, whole_length};

/// The file that is written again and again, as a write-ahead log is.
const FILE_BYTES: u64 = 32 << 20;
/// What the least server answers, as long as the answer to an admission.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 75\r\n\
    date: Tue, 24 Nov 2026 10:00:00 GMT\r\n\r\n{\"submitted\":{\"job\":\"job-1234567\",\"name\":\"llama-8b-sft\",\"queue\":\"default\"}}";

/// How often a second so many bytes can be written and made durable in this folder, one after the other.
///
/// # Errors
/// When the disk refuses.
pub(super) fn fsyncs_a_second(folder: &Path, bytes: usize, time: Duration) -> Result<f64> {
    let path = folder.join("limit");
    let file = File::create(&path).context("make a file")?;
    let piece = vec![0x5a; bytes.max(1)];
    let places = (FILE_BYTES / piece.len() as u64).max(1);
    for place in 0..places {
        file.write_all_at(&piece, place * piece.len() as u64).context("fill a file")?;
    }
    file.sync_all().context("sync a file")?;
    let (began, mut count) = (Instant::now(), 0_u64);
    while began.elapsed() < time {
        file.write_all_at(&piece, (count % places) * piece.len() as u64).context("write a file")?;
        file.sync_data().context("sync a file")?;
        count += 1;
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    std::fs::remove_file(&path).context("remove a file")?;
    Ok(rate)
}

/// A server that reads requests and answers each with the same: a thread for each connection, and nothing else.
///
/// # Errors
/// When there is no port.
pub(super) fn least_server() -> Result<Door> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr().context("find a port")?.to_string();
    // It ends with this process, and costs nothing while nobody asks.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    Ok(Door { address, token: "0".repeat(64) })
}

fn answer_all(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&piece[..count]);
        if request.len() >= whole_length(&request)? {
            stream.write_all(ANSWER)?;
            request.clear();
        }
    }
}
