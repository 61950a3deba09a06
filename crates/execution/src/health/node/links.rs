//! Checks how this machine's GPUs are joined, by `nvidia-smi topo -m`: all by NVLink, or some pairs only by
//! PCIe.

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};
use crate::inventory::{Link, LinkMatrix, printed_links, read_links};

/// Maximum number of pairs that are named.
const PAIRS_NAMED_MAX: usize = 6;

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    let Some(printed) = printed_links() else {
        return vec![Finding::not_here("nvidia-smi can't be run")];
    };
    match read_links(&printed) {
        Ok(matrix) => vec![judge(&matrix)],
        Err(error) => vec![Finding::unknown("", format!("nvidia-smi topo -m:{error}"), "report this with its output")],
    }
}

fn judge(matrix: &LinkMatrix) -> Finding {
    let count = matrix.gpus.len();
    if count < 2 {
        return Finding::fine("", format!("{count} GPU: nothing to join"));
    }
    let pairs = || (0..count).flat_map(|one| (0..one).map(move |other| (other, one)));
    let link = |(one, other): (usize, usize)| matrix.gpus[one].gpus[other];
    let without: Vec<(usize, usize)> =
        pairs().filter(|pair| !matches!(link(*pair), Link::NvLink(_) | Link::Same)).collect();
    let all = pairs().count();
    if without.is_empty() {
        let fewest = pairs().map(link).min_by_key(|link| if let Link::NvLink(count) = link { *count } else { 0 });
        let fewest = fewest.map(|link| link.to_string()).unwrap_or_default();
        return Finding::fine("", format!("{count} GPUs, each joined with each by NVLink ({fewest} at least)"));
    }
    let named: Vec<String> =
        without.iter().take(PAIRS_NAMED_MAX).map(|pair| format!("{}-{} {}", pair.0, pair.1, link(*pair))).collect();
    let more = without.len().saturating_sub(PAIRS_NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let measured = format!("{} of {all} pairs of GPUs have no NVLink: {}{more}", without.len(), named.join(", "));
    let todo = if without.len() == all {
        "keep tensor parallelism off this machine; if it should have NVLink, look at nvidia-smi nvlink -s and the fabric manager"
    } else {
        "keep tensor parallel groups within the GPUs that NVLink joins; Gangline places jobs so by itself"
    };
    Finding::fine("", measured).wrong(
        Verdict::Warning,
        Reason {
            expected: "NVLink between all",
            why: "between these GPUs data goes over PCIe, at 25 to 50 GB/s a direction instead of hundreds (published)",
            todo,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Finding {
        judge(&read_links(text).expect("a matrix"))
    }

    #[test]
    fn a_full_mesh_is_fine_and_islands_are_named() {
        let full = check("\tGPU0\tGPU1\nGPU0\tX\tNV18\nGPU1\tNV18\tX\n");
        assert_eq!((full.verdict, full.measured.contains("NV18")), (Verdict::Fine, true), "{full:?}");
        let islands = check("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSYS\nGPU1\tNV4\tX\tSYS\nGPU2\tSYS\tSYS\tX\n");
        assert_eq!(islands.verdict, Verdict::Warning);
        assert_eq!(islands.measured, "2 of 3 pairs of GPUs have no NVLink: 0-2 SYS, 1-2 SYS");
        let pcie = check("\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n");
        assert!(pcie.todo.contains("tensor parallelism off"), "{pcie:?}");
        assert_eq!(check("\tGPU0\nGPU0\tX\n").verdict, Verdict::Fine);
    }
}
