//! A trace as Chrome's and Perfetto's trace events (JSON): a process for each data-parallel rank, and for each stage a
//! thread for what it computes and one for each way in which it communicates.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::operation::{Kind, Operation};
use super::read::Trace;

/// The share of a step's time that is left free behind it.
const GAP: f64 = 0.1;
const MICROSECONDS: f64 = 1e6;
const STREAMS: [&str; 3] = ["compute", "pipeline", "collectives"];

/// Writes all operations. Times in traces begin anew with each step, so the steps are put one behind the other.
///
/// # Errors
/// When `out` fails.
pub fn timeline(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let begins = begins(trace.operations());
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    let mut workers = BTreeMap::new();
    for operation in trace.operations() {
        let (measured, shown) = begins.get(&operation.step).copied().unwrap_or_default();
        let stream = stream(operation.kind);
        workers.entry((operation.dp_rank, operation.stage, stream)).or_insert(operation.rank);
        writeln!(
            out,
            "{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\
             \"args\":{{\"step\":{},\"rank\":{},\"sequence\":{},\"chunk\":{},\"microbatch\":{}}}}},",
            operation.kind.name(),
            STREAMS[stream],
            operation.dp_rank,
            thread(operation.stage, stream),
            (operation.start - measured + shown) * MICROSECONDS,
            operation.duration * MICROSECONDS,
            operation.step,
            operation.rank,
            operation.sequence,
            operation.chunk,
            operation.microbatch,
        )?;
    }
    let mut separator = "";
    for ((dp_rank, stage, stream), rank) in workers {
        let thread = thread(stage, stream);
        let head = |name: &str| format!("{{\"name\":\"{name}\",\"ph\":\"M\",\"pid\":{dp_rank},\"tid\":{thread}");
        let (process, name, order) = (head("process_name"), head("thread_name"), head("thread_sort_index"));
        writeln!(out, "{separator}{process},\"args\":{{\"name\":\"dp rank {dp_rank}\"}}}},")?;
        let stream = STREAMS[stream];
        writeln!(out, "{name},\"args\":{{\"name\":\"stage {stage} (rank {rank}): {stream}\"}}}},")?;
        write!(out, "{order},\"args\":{{\"sort_index\":{thread}}}}}")?;
        separator = ",\n";
    }
    out.write_all(b"\n]}\n")
}

/// When each step begins: in the trace, and as it is shown.
fn begins(operations: &[Operation]) -> BTreeMap<i64, (f64, f64)> {
    let mut spans: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    for operation in operations {
        let span = spans.entry(operation.step).or_insert((f64::INFINITY, f64::NEG_INFINITY));
        *span = (span.0.min(operation.start), span.1.max(operation.end()));
    }
    let mut shown = 0.0;
    let place = |(step, (begin, end)): (i64, (f64, f64))| {
        let at = shown;
        shown += (end - begin) * (1.0 + GAP);
        (step, (begin, at))
    };
    spans.into_iter().map(place).collect()
}

fn stream(kind: Kind) -> usize {
    match kind {
        Kind::ForwardCompute | Kind::BackwardCompute | Kind::Optimizer | Kind::Collection => 0,
        kind if kind.is_transfer() => 1,
        _ => 2,
    }
}

fn thread(stage: u32, stream: usize) -> u64 {
    u64::from(stage) * 3 + u64::try_from(stream).unwrap_or(0)
}
