//! Ranks' logs, piece by piece. The cursor names the file by its inode, so that a rotation between two pieces neither
//! repeats nor skips a line that is still there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use gangline_base::AttemptNumber;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::jobs::parse_job;
use super::{App, ErrorBody, read as read_model};
use crate::model::{JobRecord, read_job};
use crate::service::share_folder;
use crate::wire;

/// The largest piece, in bytes.
const CHUNK_BYTES_MAX: u64 = 256 << 10;

/// Which piece of which log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    /// The attempt; the last one unless given.
    attempt: Option<u32>,
    /// The global rank; 0 unless given.
    rank: Option<u32>,
    /// Where the piece before ended (`next`); from the beginning unless given.
    cursor: Option<String>,
}

/// A piece of a rank's log.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs", params(("job" = String, Path, description = "its id"), LogQuery),
    tag = "jobs", responses((status = 200, body = wire::LogChunk), (status = 404, body = ErrorBody)))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<wire::LogChunk>, ApiError> {
    let Query(query) = query?;
    let id = parse_job(&job)?;
    let found = read_model(&app, move |transaction| read_job(transaction, id)).await?;
    let (record, _) = found.ok_or_else(|| ApiError::no_job(&job))?;
    let cursor = query.cursor.as_deref().map(Cursor::parse).transpose()?;
    let log = find_log(&app.folder, &record, query.attempt, query.rank.unwrap_or(0))?;
    let piece = tokio::task::spawn_blocking(move || log.read(cursor)).await;
    let chunk = piece.map_err(|_| ApiError::internal("reading a log panicked"))?;
    chunk.map(Json).map_err(|error| ApiError::no_log(format!("the log can't be read: {error}")))
}

/// A place in a rotated log.
#[derive(Clone, Copy)]
struct Cursor {
    inode: u64,
    offset: u64,
}

impl Cursor {
    fn parse(text: &str) -> Result<Cursor, ApiError> {
        let parts = text
            .split_once('-')
            .and_then(|(inode, offset)| Some(Cursor { inode: inode.parse().ok()?, offset: offset.parse().ok()? }));
        parts.ok_or_else(|| ApiError::malformed(format!("\"{text}\" is not a cursor")))
    }
}

struct RankLog {
    attempt: u32,
    rank: u32,
    path: PathBuf,
    has_ended: bool,
}

fn find_log(data: &FsPath, record: &JobRecord, attempt: Option<u32>, rank: u32) -> Result<RankLog, ApiError> {
    let wanted = attempt.or_else(|| record.last_attempt().map(|attempt| attempt.number));
    let found = record.attempts.iter().find(|attempt| Some(attempt.number) == wanted);
    let attempt = found.ok_or_else(|| {
        let id = record.id;
        wanted.map_or_else(
            || ApiError::no_log(format!("{id} has not started yet")),
            |number| ApiError::no_log(format!("{id} has no attempt {number}")),
        )
    })?;
    let node = usize::try_from(rank / record.gang.ranks_per_node.max(1)).unwrap_or(usize::MAX);
    let share =
        attempt.shares.get(node).ok_or_else(|| ApiError::no_log(format!("{} has no rank {rank}", record.id)))?;
    let folder = share_folder(data, record.id, AttemptNumber(attempt.number), &share.node);
    let path = folder.join("logs").join(format!("rank-{rank}.log"));
    Ok(RankLog { attempt: attempt.number, rank, path, has_ended: attempt.ended_at.is_some() })
}

impl RankLog {
    fn read(&self, cursor: Option<Cursor>) -> std::io::Result<wire::LogChunk> {
        let rotated = open(&self.path.with_extension("log.1"))?;
        let current = open(&self.path)?;
        let mut files: Vec<(u64, File)> = rotated.into_iter().chain(current).collect();
        // From the file the cursor is in; if that is gone, from the oldest there is.
        let first = cursor.and_then(|cursor| files.iter().position(|(inode, _)| *inode == cursor.inode));
        let mut offset = first.and(cursor).map_or(0, |cursor| cursor.offset);
        let last = files.len().saturating_sub(1);
        let mut next = cursor.map_or_else(|| "0-0".to_owned(), |cursor| format!("{}-{}", cursor.inode, cursor.offset));
        let mut text = String::new();
        let mut is_at_end = files.is_empty();
        for (index, (inode, file)) in files.iter_mut().enumerate().skip(first.unwrap_or(0)) {
            let (piece, is_all) = read_lines(file, offset, index == last && !self.has_ended)?;
            offset += piece.len() as u64;
            text = String::from_utf8_lossy(&piece).into_owned();
            next = format!("{inode}-{offset}");
            is_at_end = index == last && is_all;
            if !piece.is_empty() {
                break;
            }
            offset = 0;
        }
        let is_end = self.has_ended && is_at_end;
        Ok(wire::LogChunk { attempt: self.attempt, rank: self.rank, text, next, is_end })
    }
}

fn open(path: &FsPath) -> std::io::Result<Option<(u64, File)>> {
    match File::open(path) {
        Ok(file) => Ok(Some((file.metadata()?.ino(), file))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole lines from `offset` on, and whether that is all there is. A line still being written waits (`may_grow`).
fn read_lines(file: &mut File, offset: u64, may_grow: bool) -> std::io::Result<(Vec<u8>, bool)> {
    file.seek(SeekFrom::Start(offset))?;
    let mut piece = Vec::new();
    file.take(CHUNK_BYTES_MAX).read_to_end(&mut piece)?;
    let is_full = piece.len() as u64 == CHUNK_BYTES_MAX;
    let whole = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let cut = if whole == 0 && (is_full || !may_grow) {
        piece.len()
    } else if may_grow || is_full {
        whole
    } else {
        piece.len()
    };
    piece.truncate(cut);
    Ok((piece, !is_full))
}
