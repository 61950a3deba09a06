//! Ranks' logs, read in chunks. The cursor identifies its file by a digest of the file's beginning, since
//! every line begins with its time. A rotation between two chunks therefore neither repeats nor skips a line
//! that still exists. An inode number wouldn't do: a new file may get the number of the file just removed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path as FsPath;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use gangline_api as api;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::jobs::{missing, parse_job};
use super::segment::Segment;
use super::{App, ErrorBody, read as read_model};
use gangline_control::views::{self, NoLog, RankLog};

/// The largest chunk, in bytes.
const CHUNK_BYTES_MAX: u64 = 256 << 10;
/// Bytes at the beginning of a file that identify it: they include a line's time.
const HEAD_BYTES_MAX: u64 = 64;

/// Which piece of which log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    /// The attempt; the last one unless given.
    attempt: Option<u32>,
    /// The global rank; 0 unless given.
    rank: Option<u32>,
    /// What of it: what the rank wrote unless given.
    kind: Option<LogKind>,
    /// Where the piece before ended (`next`); from the beginning unless given.
    cursor: Option<String>,
}

/// What a log has.
#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogKind {
    /// What the rank wrote.
    Rank,
    /// What the setup command wrote on the rank's node.
    Setup,
    /// The stacks of the ranks of the rank's node when they hung.
    Stacks,
}

impl From<LogKind> for views::LogKind {
    fn from(kind: LogKind) -> Self {
        match kind {
            LogKind::Rank => views::LogKind::Rank,
            LogKind::Setup => views::LogKind::Setup,
            LogKind::Stacks => views::LogKind::Stacks,
        }
    }
}

/// A piece of a rank's log.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs", params(("job" = String, Path, description = "its id"), LogQuery),
    tag = "jobs", responses((status = 200, body = api::LogChunk), (status = 404, body = ErrorBody),
    (status = 410, body = ErrorBody)))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    Segment(job): Segment,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<api::LogChunk>, ApiError> {
    let Query(query) = query?;
    let id = parse_job(&job)?;
    let (attempt, rank) = (query.attempt, query.rank.unwrap_or(0));
    let kind = query.kind.map_or(views::LogKind::Rank, views::LogKind::from);
    let found = read_model(&app, move |views| views.log(id, attempt, rank, kind)).await?;
    let Some(found) = found else { return Err(missing(&app, id).await) };
    let cursor = query.cursor.as_deref().map(Cursor::parse).transpose()?;
    let log = found.map_err(|why| match why {
        NoLog::Unknown(why) => ApiError::no_log(why),
        NoLog::Removed(why) => ApiError::removed_log(why),
    })?;
    let piece = tokio::task::spawn_blocking(move || chunk(&log, cursor)).await;
    let chunk = piece.map_err(|_| ApiError::internal("reading a log panicked"))?;
    chunk.map(Json).map_err(|error| ApiError::no_log(format!("the log can't be read: {error}")))
}

/// A position in a rotated log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    offset: u64,
    /// A digest of the file's beginning, or of the part of it before the offset.
    head: u64,
}

impl Cursor {
    const START: Cursor = Cursor { offset: 0, head: 0 };

    fn parse(text: &str) -> Result<Cursor, ApiError> {
        let parts = text.split_once('-').and_then(|(offset, head)| {
            Some(Cursor { offset: offset.parse().ok()?, head: u64::from_str_radix(head, 16).ok()? })
        });
        parts.ok_or_else(|| ApiError::malformed(format!("\"{text}\" is not a cursor")))
    }

    fn at(file: &mut File, offset: u64) -> std::io::Result<Cursor> {
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(offset.min(HEAD_BYTES_MAX)).read_to_end(&mut head)?;
        let digest = blake3::hash(&head);
        let (first, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
        Ok(Cursor { offset, head: u64::from_le_bytes(*first) })
    }

    fn is_in(self, file: &mut File) -> std::io::Result<bool> {
        Ok(self.offset > 0 && file.metadata()?.len() >= self.offset && Cursor::at(file, self.offset)? == self)
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:016x}", self.offset, self.head)
    }
}

/// Returns the chunk that begins at the cursor.
fn chunk(log: &RankLog, cursor: Option<Cursor>) -> std::io::Result<api::LogChunk> {
    let mut files = open_files(&log.path)?;
    let mut next = cursor.unwrap_or(Cursor::START);
    // Reading starts with the cursor's file, or with the oldest if that file is gone.
    let mut first = None;
    for (index, file) in files.iter_mut().enumerate() {
        if next.is_in(file)? {
            first = Some(index);
        }
    }
    let mut offset = first.map_or(0, |_| next.offset);
    let count = files.len();
    let mut text = String::new();
    let mut is_at_end = files.is_empty();
    for (index, file) in files.iter_mut().enumerate().skip(first.unwrap_or(0)) {
        let is_last = index + 1 == count;
        let (piece, is_all) = read_lines(file, offset, is_last && !log.has_ended)?;
        is_at_end = is_last && is_all;
        if !piece.is_empty() {
            next = Cursor::at(file, offset + piece.len() as u64)?;
            text = String::from_utf8_lossy(&piece).into_owned();
            break;
        }
        offset = 0;
    }
    let is_end = log.has_ended && is_at_end;
    Ok(api::LogChunk { attempt: log.attempt, rank: log.rank, text, next: next.to_string(), is_end })
}

/// Opens the existing files, oldest first. The current file is opened first, so that a rotation meanwhile
/// makes it appear twice rather than not at all.
fn open_files(path: &FsPath) -> std::io::Result<Vec<File>> {
    let current = open(path)?;
    let rotated = open(&path.with_extension("log.1"))?;
    let inode = |file: &File| file.metadata().map(|metadata| metadata.ino());
    match (rotated, current) {
        (Some(rotated), Some(current)) if inode(&rotated)? == inode(&current)? => Ok(vec![current]),
        (rotated, current) => Ok(rotated.into_iter().chain(current).collect()),
    }
}

fn open(path: &FsPath) -> std::io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads whole lines from `offset` on, and says whether they reach the end of the file. If `may_grow`, an
/// unfinished last line is left for later.
fn read_lines(file: &mut File, offset: u64, may_grow: bool) -> std::io::Result<(Vec<u8>, bool)> {
    file.seek(SeekFrom::Start(offset))?;
    let mut piece = Vec::new();
    file.take(CHUNK_BYTES_MAX).read_to_end(&mut piece)?;
    let is_full = piece.len() as u64 == CHUNK_BYTES_MAX;
    let whole = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let cut = match (is_full, may_grow) {
        // A line longer than a chunk is cut, since the reader could not get past it otherwise.
        (true, _) if whole == 0 => piece.len(),
        (true, _) | (_, true) => whole,
        (false, false) => piece.len(),
    };
    piece.truncate(cut);
    Ok((piece, !is_full))
}
