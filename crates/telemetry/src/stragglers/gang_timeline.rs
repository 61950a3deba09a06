//! Reported steps as Chrome's and Perfetto's trace events (JSON): a process for each node, a thread for each rank.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gangline_base::Phase;

use super::gang::RankStep;

const MICROSECONDS: f64 = 1e6;

/// Writes all steps with their phases; `nodes` has the node of each rank.
///
/// # Errors
/// When `out` fails.
pub fn gang_timeline(steps: &[RankStep], nodes: &BTreeMap<u32, String>, out: &mut impl Write) -> io::Result<()> {
    let begin = steps.iter().map(|step| step.end - step.seconds).fold(f64::INFINITY, f64::min);
    let mut names: Vec<&str> = nodes.values().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let process = |rank: &u32| nodes.get(rank).and_then(|node| names.binary_search(&node.as_str()).ok()).unwrap_or(0);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    for step in steps {
        let from = step.end - step.seconds - begin;
        event(out, (process(&step.rank), step), ("step", &format!("step {}", step.step)), (from, step.seconds))?;
        let mut at = from;
        // Only the sums of phases are known; training loops go through them in this order.
        for phase in Phase::ALL {
            let Some(seconds) = step.phases.get(&phase).copied().filter(|seconds| *seconds > 0.0) else { continue };
            event(out, (process(&step.rank), step), ("phase", phase.name()), (at, seconds))?;
            at += seconds;
        }
    }
    let ranks: std::collections::BTreeSet<u32> = steps.iter().map(|step| step.rank).collect();
    let mut separator = "";
    for rank in ranks {
        let (process, node) = (process(&rank), nodes.get(&rank).map_or("?", String::as_str));
        let head = |name: &str| format!("{{\"name\":\"{name}\",\"ph\":\"M\",\"pid\":{process},\"tid\":{rank}");
        // Names of nodes have no character that JSON escapes.
        writeln!(out, "{separator}{},\"args\":{{\"name\":\"{node}\"}}}},", head("process_name"))?;
        write!(out, "{},\"args\":{{\"name\":\"rank {rank}\"}}}}", head("thread_name"))?;
        separator = ",\n";
    }
    out.write_all(b"\n]}\n")
}

fn event(
    out: &mut impl Write,
    (process, step): (usize, &RankStep),
    (category, name): (&str, &str),
    (from, seconds): (f64, f64),
) -> io::Result<()> {
    let RankStep { rank, step, .. } = step;
    writeln!(
        out,
        "{{\"name\":\"{name}\",\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":{process},\"tid\":{rank},\"ts\":{:.3},\"dur\":{:.3},\
         \"args\":{{\"step\":{step}}}}},",
        from * MICROSECONDS,
        seconds * MICROSECONDS,
    )
}
