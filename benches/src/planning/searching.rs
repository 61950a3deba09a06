//! How long a whole search for a layout takes: bar 50 ms on one core for 70B on 1,024 accelerators.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gangline_planning::hardware::Cluster;
use gangline_planning::hardware::book::Book;
use gangline_planning::model::catalog;
use gangline_planning::search::search;
use gangline_planning::workload::{Optimizer, Precision, Task, Workload};

/// The longest that it may take.
const BAR: Duration = Duration::from_millis(50);
/// Searches, of which the median counts.
const ROUNDS: usize = 11;

/// Measures and prints; whether the bar held.
pub(super) fn run() -> Result<bool> {
    let book = Book::built_in();
    let workload = Workload {
        model: catalog::find("llama-3.1-70b").context("find llama-3.1-70b")?,
        task: Task::Pretrain,
        sequence: 8_192,
        global_batch: 1_024,
        precision: Precision::Bf16,
        optimizer: Optimizer::AdamW,
    };
    let cluster = Cluster {
        accelerator: book.accelerator("H100-SXM5-80GB").context("find the H100")?.value.clone(),
        accelerators: 1_024,
        per_node: 8,
        fabric: book.fabric("infiniband-ndr").context("find the fabric")?.value,
    };
    let mut tried = 0;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            tried = std::hint::black_box(search(&workload, &cluster, None)).tried;
            begun.elapsed()
        })
        .collect();
    times.sort();
    let time = times[ROUNDS / 2];
    let verdict = if time <= BAR { "holds" } else { "MISS " };
    println!(
        "{verdict} a search for 70B on 1,024 accelerators, {tried} possible layouts: {time:.1?} measured; bar {BAR:?}"
    );
    Ok(time <= BAR)
}
