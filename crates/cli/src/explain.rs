//! `explain`: tells why a job waits, or runs where it does; with `--log`, why a run failed, from its logs
//! alone.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_diagnosis::{Evidence, HEAD_BYTES_MAX, KernelLog, LeftOut, Log, Rules, TAIL_BYTES_MAX, Verdict};

use crate::client::Client;
use crate::failure::Failure;
use crate::{Global, jobs, output};

/// Maximum number of logs; more ranks must be passed as one launcher's output.
const FILES_MAX: usize = 4_096;
/// Number of bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// A job, or logs.
#[derive(Args, Debug)]
#[command(
    override_usage = "gangline explain <JOB>\n       gangline explain --log <FILE>... [--kernel <FILE>...] [--exit-code <CODE>]"
)]
pub(crate) struct ExplainArgs {
    /// A job or a sweep, as job-3 or sweep-3
    #[arg(required_unless_present_any = ["log", "kernel"], conflicts_with_all = ["log", "kernel"])]
    job: Option<String>,
    /// Say why a run failed, from these logs of it: one for each rank, or one of all; - is standard input
    #[arg(long, num_args = 1.., value_name = "FILE")]
    log: Vec<PathBuf>,
    /// What the kernel said meanwhile, as from dmesg
    #[arg(long, num_args = 1.., value_name = "FILE")]
    kernel: Vec<PathBuf>,
    /// What the run returned
    #[arg(long, value_name = "CODE", conflicts_with = "job", allow_negative_numbers = true)]
    exit_code: Option<i32>,
}

pub(crate) fn run(global: &Global, args: &ExplainArgs) -> Result<(), Failure> {
    match &args.job {
        Some(job) => jobs::explain(&Client::connect(global)?, job, global.json),
        None => explain_logs(args, global.json),
    }
}

fn explain_logs(args: &ExplainArgs, is_json: bool) -> Result<(), Failure> {
    if args.log.len() + args.kernel.len() > FILES_MAX {
        let message = format!("failed to read the logs: there are more than {FILES_MAX}");
        return Err(Failure::coded("G0701", message, "pass the launcher's output, which has all ranks"));
    }
    // A large file is read in parts; several files get an equal share each.
    let share = (args.log.len() + args.kernel.len()).max(1);
    let read = |path: &PathBuf| read(path, HEAD_BYTES_MAX / share, TAIL_BYTES_MAX / share);
    let texts: Vec<Window> = args.log.iter().map(read).collect::<Result<_, _>>()?;
    let kernels: Vec<Window> = args.kernel.iter().map(read).collect::<Result<_, _>>()?;
    let logs = args.log.iter().zip(&texts).map(|(path, window)| Log {
        name: path.display().to_string(),
        rank: rank_of(path).filter(|_| args.log.len() > 1),
        text: &window.bytes,
        left_out: window.left_out,
        ..Log::default()
    });
    let kernels = args.kernel.iter().zip(&kernels);
    let kernels = kernels.map(|(path, window)| KernelLog { node: stem(path), text: &window.bytes }).collect();
    let evidence = Evidence { logs: logs.collect(), kernels, exit_code: args.exit_code, ..Evidence::default() };
    let broken = |error| Failure::local(format!("failed to make the rules: {error}"), "this is a bug, report it");
    let verdict = Rules::new().map_err(broken)?.classify(&evidence);
    if is_json { output::json(&verdict) } else { output::print(&text(&verdict)) }
}

/// Formats a verdict for people: what, why, who, what to do.
fn text(verdict: &Verdict) -> String {
    let (category, certainty) = (verdict.category, verdict.certainty.name());
    let mut text = format!(
        "{category}/{}: {} (estimated; confidence {certainty}, {:.2})\n",
        verdict.subcategory, verdict.summary, verdict.confidence
    );
    let lead = |is_first: bool, word: &'static str| if is_first { word } else { "" };
    for (index, quote) in verdict.evidence.iter().enumerate() {
        let line = if quote.line > 0 { format!(":{}", quote.line) } else { String::new() };
        let quoted = output::shorten(&quote.text, 160);
        // Writing to a String can't fail.
        let _ = writeln!(text, "  {:<8} {}{line}: {quoted}", lead(index == 0, "because"), quote.log);
    }
    let rank = verdict.rank.map(|rank| format!("rank {rank}"));
    let node = verdict.node.as_ref().map(|node| format!("node {node}"));
    let places: Vec<String> = rank.into_iter().chain(node).collect();
    if !places.is_empty() {
        let _ = writeln!(text, "  {:<8} {}", "where", places.join(" on "));
    }
    let _ = writeln!(text, "  {:<8} {}", "do", verdict.advice);
    for (index, other) in verdict.alternatives.iter().enumerate() {
        let (category, subcategory) = (other.category, &other.subcategory);
        let _ = writeln!(text, "  {:<8} {category}/{subcategory}", lead(index == 0, "or else"));
    }
    text
}

/// The part of a file that is examined: its beginning and its end.
struct Window {
    bytes: Vec<u8>,
    left_out: Option<LeftOut>,
}

fn read(path: &Path, head_max: usize, tail_max: usize) -> Result<Window, Failure> {
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::IsADirectory => "name the files in the folder, as --log DIR/*.log",
            _ => "",
        };
        Failure::coded("G0701", format!("failed to read the log {}: {error}", path.display()), hint)
    };
    let window = if path == Path::new("-") {
        window(&mut std::io::stdin().lock(), head_max, tail_max)
    } else {
        File::open(path).and_then(|mut file| window(&mut file, head_max, tail_max))
    };
    let window = window.map_err(failed)?;
    if window.bytes.starts_with(&[0x1f, 0x8b]) || window.bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let message = format!("failed to read the log {}: it is compressed", path.display());
        return Err(Failure::coded("G0701", message, "zcat FILE | gangline explain --log -"));
    }
    if is_binary(&window.bytes) {
        let message = format!("failed to read the log {}: it is not text", path.display());
        return Err(Failure::coded("G0701", message, "name what the run printed"));
    }
    Ok(window)
}

/// Reports whether too much of the beginning is unprintable. Good logs may have a few such bytes: holes,
/// broken lines.
fn is_binary(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(64 << 10)];
    let is_control = |byte: &&u8| byte.is_ascii_control() && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x08 | 0x1b);
    beginning.iter().filter(is_control).count() * 10 > beginning.len()
}

/// Reads to the end in bounded memory, and counts the lines between the beginning and the end that are left
/// out.
fn window(reader: &mut dyn Read, head_max: usize, tail_max: usize) -> std::io::Result<Window> {
    let (mut head, mut tail) = (Vec::new(), VecDeque::new());
    let (mut lines, mut tail_bytes, mut is_cut) = (0, 0, false);
    reader.take(u64::try_from(head_max).unwrap_or(u64::MAX)).read_to_end(&mut head)?;
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        reader.take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            break;
        }
        tail_bytes += chunk.len();
        tail.push_back(chunk);
        while tail_bytes > tail_max.max(CHUNK_BYTES)
            && let Some(old) = tail.pop_front()
        {
            tail_bytes -= old.len();
            lines += old.iter().filter(|byte| **byte == b'\n').count();
            is_cut = true;
        }
    }
    let left_out = is_cut.then_some(LeftOut { at: head.len() + 1, lines: lines.saturating_sub(1) });
    if is_cut {
        head.push(b'\n');
    }
    tail.into_iter().for_each(|chunk| head.extend(chunk));
    Ok(Window { bytes: head, left_out })
}

/// Returns the rank that a path names: rank3.log, rank_3/stderr.
fn rank_of(path: &Path) -> Option<u32> {
    let path = path.to_string_lossy().to_lowercase();
    let (_, rest) = path.rsplit_once("rank")?;
    let rest = rest.trim_start_matches(['_', '-', '.', '=']);
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "kernel".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_large_log_the_beginning_and_the_end_are_kept_and_lines_are_counted() {
        let line = [vec![b'x'; 1_023], b"\n".to_vec()].concat();
        let text = [b"first\n".to_vec(), line.repeat(8 << 10), b"last\n".to_vec()].concat();
        let window = window(&mut text.as_slice(), 64 << 10, 2 << 20).unwrap();
        assert!(window.bytes.len() < 4 << 20);
        assert!(window.bytes.starts_with(b"first\n") && window.bytes.ends_with(b"\nlast\n"));
        let left_out = window.left_out.unwrap();
        let kept = window.bytes.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(kept + left_out.lines, (8 << 10) + 2);
    }

    #[test]
    fn a_small_log_is_kept_whole() {
        let window = window(&mut &b"one\ntwo"[..], 4, 1 << 20).unwrap();
        assert_eq!((window.bytes.as_slice(), window.left_out), (&b"one\ntwo"[..], None));
    }

    #[test]
    fn the_rank_is_read_from_a_path() {
        let check = |path: &str, rank: Option<u32>| assert_eq!(rank_of(Path::new(path)), rank, "{path}");
        check("logs/rank_3.log", Some(3));
        check("Rank12/stderr", Some(12));
        check("ranking/train.log", None);
    }

    #[test]
    fn a_missing_log_a_folder_and_a_compressed_one_are_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let (packed, binary) = (folder.path().join("a.log.gz"), folder.path().join("a.out"));
        std::fs::write(&packed, [0x1f, 0x8b, 8, 0]).unwrap();
        std::fs::write(&binary, [0x7f, b'E', b'L', b'F', 0, 0, 0, 1]).unwrap();
        for path in [folder.path(), &folder.path().join("missing"), &packed, &binary] {
            let failure = read(path, 10, 10).err().map(|failure| format!("{failure:?}")).unwrap();
            assert!(failure.contains("G0701") && failure.contains(&path.display().to_string()), "{failure}");
        }
    }
}
