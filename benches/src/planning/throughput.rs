//! Published step times and tokens a second, beside the predicted ones.

use std::time::{Duration, Instant};

use gangline_planning::layout::Layout;
use gangline_planning::time::constants::Constants;
use gangline_planning::time::{estimate, estimate_with};
use gangline_planning::units::Seconds;

use super::rows::{self, Books, Run};
use super::statistics::{Judgement, Pair};
use super::table::{Row, Table};

/// Judges each row with the shipped constants.
pub(super) fn judge(table: &Table) -> Vec<Judgement> {
    let (runs, mut judgements) = runs(&table.rows);
    judgements.extend(runs.iter().map(|run| judged(&Constants::shipped(), run)));
    judgements
}

/// A row of a table of memory by rank, which has the step's time too, as one of throughput. Its source is named by the table's kind.
pub(super) fn of_ranks(row: &Row) -> Row {
    let seconds = row.number("measured_step_ms").map_or(String::new(), |milliseconds| (milliseconds / 1e3).to_string());
    let sharding = if row.text("zero") == "0" { "ddp" } else { "zero1" };
    let named = row.with("table", "ranks_b200").with("model", &row.text("model").replace("deepseekv", "deepseek-v"));
    let cut = named.with("layers_override", row.text("layers")).with("sharding", sharding);
    cut.with("precision", row.text("precision").split(',').next().unwrap_or_default()).with("step_time_s", &seconds)
}

/// The rows that can be predicted, and why others can't.
pub(super) fn runs(rows: &[Row]) -> (Vec<Run>, Vec<Judgement>) {
    let books = Books::built_in();
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    for row in rows {
        match rows::run(&books, row) {
            Ok(run) => runs.push(run),
            Err(reason) => refused.push(Judgement {
                row: row.text("id").to_owned(),
                source: row.source().to_owned(),
                group: "",
                outcome: Err(reason),
            }),
        }
    }
    (runs, refused)
}

/// Times that every run is estimated for the speed.
const SAMPLES: usize = 25;
/// Most that one estimate may take.
const ESTIMATE_MOST: Duration = Duration::from_micros(20);

/// Measures and prints how long one estimate takes, the median of several rounds over all runs; whether the bar held.
pub(super) fn speed(runs: &[Run]) -> bool {
    let Some(count) = u32::try_from(runs.len()).ok().filter(|count| *count > 0) else { return true };
    let round = || {
        let started = Instant::now();
        let all = runs.iter().map(|run| estimate(&run.workload, &run.layout, &run.cluster).total());
        std::hint::black_box(all.sum::<Seconds>());
        started.elapsed() / count
    };
    let mut samples: Vec<Duration> = std::iter::repeat_with(round).take(SAMPLES).collect();
    samples.sort_unstable();
    let median = samples[SAMPLES / 2];
    let verdict = if median <= ESTIMATE_MOST { "holds" } else { "MISS " };
    println!(
        "{verdict} one estimate of a step's time: {median:?} measured, median of {SAMPLES} rounds over {count} runs; bar {ESTIMATE_MOST:?}"
    );
    median <= ESTIMATE_MOST
}

/// Prints a run: its layout, its error, and each component's part of the time in percent.
pub(super) fn print(run: &Run) {
    let Run { workload, layout, cluster, .. } = run;
    let time = estimate(workload, layout, cluster);
    let part = |component: Seconds| component / time.total() * 100.0;
    let error = (time.total() / run.measured - 1.0) * 100.0;
    let (model, sequence, batch) = (&workload.model.name, workload.sequence, workload.global_batch);
    let what = format!(
        "{} {model} {:?} {:?} {} x{}",
        run.id, workload.task, workload.precision, cluster.accelerator.name, cluster.accelerators
    );
    let Layout { tensor, pipeline, virtual_stages, context, expert, data, micro_batch, .. } = layout;
    println!(
        "{error:+6.1} % {:>8.3} s  {what} s{sequence} g{batch} b{micro_batch} t{tensor} p{pipeline} v{virtual_stages} c{context} e{expert} d{data} \
         {:?}: compute {:.0} launch {:.0} tensor {:.0} context {:.0} expert {:.0} data {:.0} pipeline {:.0} bubble {:.0} optimizer {:.0} other {:.0}",
        run.measured.get(),
        layout.recompute,
        part(time.compute),
        part(time.launch),
        part(time.tensor),
        part(time.context),
        part(time.expert),
        part(time.data),
        part(time.pipeline),
        part(time.bubble),
        part(time.optimizer),
        part(time.other)
    );
}

/// What constants predict for a run.
pub(super) fn judged(constants: &Constants, run: &Run) -> Judgement {
    let time = estimate_with(constants, &run.workload, &run.layout, &run.cluster);
    let pair = Pair { predicted: time.total().get(), measured: run.measured.get() };
    Judgement { row: run.id.clone(), source: run.source.clone(), group: run.group, outcome: Ok(pair) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 8 H100s, with further fields or others.
    fn row(fields: &[(&str, &str)]) -> Row {
        let usual = [
            ("id", "x-1"),
            ("table", "x"),
            ("model", "Llama 3 8B"),
            ("gpu", "H100-SXM5-80GB"),
            ("n_gpus", "8"),
            ("precision", "bf16"),
            ("seq", "8192"),
            ("mbs", "1"),
            ("gbs", "128"),
            ("tok_s_gpu", "8000"),
        ];
        let all: Vec<(&str, &str)> = usual.iter().chain(fields).copied().collect();
        Row::of(&all)
    }

    fn only(fields: &[(&str, &str)]) -> Run {
        let (mut runs, refused) = runs(&[row(fields)]);
        assert_eq!((runs.len(), refused.len()), (1, 0), "{refused:?}");
        runs.remove(0)
    }

    fn reason(fields: &[(&str, &str)]) -> String {
        let (runs, refused) = runs(&[row(fields)]);
        assert!(runs.is_empty(), "{runs:?}");
        refused[0].outcome.clone().unwrap_err()
    }

    #[test]
    fn a_row_without_layout_is_inferred() {
        let run = only(&[]);
        assert_eq!((run.layout.data, run.layout.micro_batch, run.group), (8, 1, "dense"));
        assert_eq!(run.measured.get(), 8192.0 * 128.0 / 64000.0);
        let run = only(&[("tp", "2"), ("pp", "2"), ("mbs", ""), ("gbs", ""), ("ga", "4"), ("mbs", "2")]);
        assert_eq!((run.layout.data, run.workload.global_batch), (2, 16));
        assert!(only(&[("gbs", "4"), ("mbs", "")]).layout.context == 2, "a batch below the ranks cuts sequences");
    }

    #[test]
    fn spellings_of_sharding_frameworks_and_fabrics_are_understood() {
        use gangline_planning::layout::{AttentionKernel, Sharding, Stack};
        let run = only(&[("framework", "llm-foundry/Composer FSDP"), ("sharding", "fsdp_full (zero3)")]);
        assert_eq!((run.layout.stack, run.layout.kernel), (Stack::Fsdp, AttentionKernel::FlashFirst));
        assert_eq!(run.layout.sharding, Sharding::Parameters { reshards: true });
        let run = only(&[("framework", "NeMo"), ("sharding", "zero1 within 4 GPUs (hybrid)"), ("date", "v25.02")]);
        assert_eq!((run.layout.stack, run.layout.sharding), (Stack::Megatron, Sharding::Optimizer { ranks: 4 }));
        for (words, gigabits) in
            [("IB HDR 8x200Gb/s per node", 200.0), ("1600Gb/s RoCE per node", 200.0), ("400Gb/s per GPU", 400.0)]
        {
            assert_eq!(
                only(&[("internode", words)]).cluster.fabric.per_accelerator.get(),
                gigabits * 1e9 / 8.0,
                "{words}"
            );
        }
        assert_eq!(only(&[("date", "2021-04")]).layout.kernel, AttentionKernel::Unfused);
    }

    #[test]
    fn numbers_are_read_however_they_are_written() {
        use gangline_planning::layout::Recompute;
        let run = only(&[
            ("seq", "8K"),
            ("n_gpus", "8.0"),
            ("pp", "4"),
            ("vpp", "interleaved"),
            ("recompute", "none/unknown"),
        ]);
        assert_eq!((run.workload.sequence, run.layout.virtual_stages), (8192, 8));
        assert_eq!(run.layout.recompute, Recompute::None);
        assert_eq!(only(&[("recompute", "yes")]).layout.recompute, Recompute::Full);
        let run = only(&[("n_gpus", ""), ("dp", "16"), ("tp", "2"), ("gbs", "128")]);
        assert_eq!((run.cluster.accelerators, run.layout.data), (32, 16));
    }

    #[test]
    fn an_accelerator_with_less_power_is_found_by_its_family_and_slower() {
        let usual = only(&[("gpu", "H100-SXM5-80GB")]);
        let weak = only(&[("gpu", "H100-96GB (HBM2e, 500W)")]);
        assert_eq!(weak.cluster.accelerator.watts, 500.0);
        let time = |run: &Run| estimate(&run.workload, &run.layout, &run.cluster).total();
        assert!(time(&weak) > time(&usual) * 1.1);
    }

    #[test]
    fn a_row_that_cannot_be_judged_says_why() {
        assert_eq!(reason(&[("model", "Nonesuch-9B")]), "unknown model Nonesuch-9B");
        assert_eq!(reason(&[("gpu", "Voodoo 2")]), "unknown accelerator Voodoo 2");
        assert_eq!(reason(&[("seq", "")]), "no sequence length");
        assert_eq!(reason(&[("tp", "3")]), "tp x pp x cp = 3 doesn't divide the accelerators");
        assert_eq!(reason(&[("task", "dream")]), "unknown task dream");
        assert_eq!(
            reason(&[("tok_s_gpu", ""), ("tflops_gpu_reported", "400")]),
            "only operations a second, by a definition that doesn't determine the time"
        );
    }

    #[test]
    fn operations_of_the_hardware_by_megatrons_formula_are_a_time() {
        let run = only(&[
            ("model", "GPT-1.7B"),
            ("tok_s_gpu", ""),
            ("tflops_gpu_reported", "137"),
            ("tflops_kind", "HARDWARE flops"),
            ("seq", "2048"),
            ("gbs", "512"),
        ]);
        let operations = 96.0
            * 512.0
            * 2048.0
            * 24.0
            * 2304.0
            * 2304.0
            * (1.0 + 2048.0 / (6.0 * 2304.0) + 51200.0 / (16.0 * 24.0 * 2304.0));
        assert!((run.measured.get() / (operations / (8.0 * 137e12)) - 1.0).abs() < 1e-9);
    }
}
