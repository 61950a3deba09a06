//! Rows of `memory_per_rank_b200.csv`: what Megatron allocated on every rank.
//!
//! Ranks are in Megatron's order: a stage's ranks are neighbours, and its greatest is compared, so a row is judged once for each stage. The
//! model has so many of its layers, and no further predictions. A row that says nothing else recomputes what its id says.

use gangline_planning::layout::{Layout, LossHead, Recompute, Sharding, Stack};
use gangline_planning::memory::estimate;
use gangline_planning::model::catalog::Catalog;
use gangline_planning::model::{Attention, FeedForward, LayerGroup, Model};
use gangline_planning::units::Volume;
use gangline_planning::workload::{Optimizer, Task, Workload};

use super::super::statistics::{Judgement, Pair, Statistics};
use super::super::table::{Row, Table};
use super::{cluster, words};
use words::has;

/// Judges each stage of each row, and says whether the bar holds.
pub(in super::super) fn judge(table: &Table) -> (Vec<Judgement>, bool) {
    let catalog = Catalog::built_in();
    let mut judgements = Vec::new();
    for row in &table.rows {
        let judged = |stage: usize, outcome| Judgement {
            row: format!("{}/stage-{stage}", row.text("id")),
            source: format!("allocated {}", row.text("model")),
            group: "allocated by rank",
            outcome,
        };
        match stages(&catalog, row) {
            Ok(pairs) => judgements.extend(pairs.into_iter().enumerate().map(|(stage, pair)| judged(stage, Ok(pair)))),
            Err(reason) => judgements.push(judged(0, Err(reason))),
        }
    }
    let statistics = Statistics::of(&judgements);
    let most = statistics.worst.as_ref().map_or(0.0, |(_, error)| error.abs());
    let holds = statistics.median <= 2.0 && most <= 5.0;
    println!(
        "{}  bar: median <= 2 %, worst <= 5 %: {}",
        statistics.line("allocated on every rank"),
        if holds { "held" } else { "NOT held" }
    );
    (judgements, holds)
}

fn stages(catalog: &Catalog, row: &Row) -> Result<Vec<Pair>, String> {
    let (workload, layout) = read(catalog, row)?;
    let capacity = words::capacity(row.text("gpu")).unwrap_or(Volume::from_gib(180.0));
    let predicted = estimate(&workload, &layout, &cluster(capacity)).stages;
    let ranks: Vec<f64> =
        row.text("per_rank_alloc_mb").split_whitespace().filter_map(|rank| rank.parse().ok()).collect();
    if ranks.is_empty() || !ranks.len().is_multiple_of(predicted.len()) {
        let measured = row.number("measured_alloc_gib_max").ok_or("no allocated memory")?;
        let most = predicted.iter().map(|stage| stage.allocated().gib()).fold(0.0, f64::max);
        return Ok(vec![Pair { predicted: most, measured }]);
    }
    let greatest = ranks.chunks(ranks.len() / predicted.len()).map(|ranks| ranks.iter().copied().fold(0.0, f64::max));
    let pair = |(measured, stage): (f64, &gangline_planning::memory::StageMemory)| Pair {
        predicted: stage.allocated().gib() * 1024.0,
        measured,
    };
    Ok(greatest.zip(&predicted).map(pair).collect())
}

fn read(catalog: &Catalog, row: &Row) -> Result<(Workload, Layout), String> {
    let name = row.text("model");
    let mut model = catalog.find(name).map_err(|_| format!("unknown model {name}"))?;
    model.further_predictions = 0;
    if has(row.text("source"), &["simumax"]) && has(name, &["405b"]) {
        as_in_simumax(&mut model);
    }
    if let Some(layers) = row.count("layers") {
        shorten(&mut model, u64::from(layers));
    }
    let degree = |column| row.count(column).unwrap_or(1);
    let (tensor, context) = (degree("tp"), degree("cp"));
    let shards = row.count("n_gpus").unwrap_or(1) / (tensor * degree("pp") * context);
    let data = row.count("dp").unwrap_or(shards).max(1);
    let said = row.text("recompute").to_lowercase();
    let recompute = match () {
        () if said.starts_with("selective") || has(row.text("id"), &["selective"]) => Recompute::Selective,
        () if said.starts_with("full") || has(row.text("id"), &["recomp"]) => Recompute::Full,
        () => Recompute::None,
    };
    let layout = Layout {
        tensor,
        is_sequence_parallel: tensor > 1 && row.text("sp") != "0",
        pipeline: degree("pp"),
        virtual_stages: degree("vpp"),
        context,
        expert: degree("ep"),
        expert_tensor: degree("etp"),
        data,
        sharding: if row.text("zero") == "0" { Sharding::None } else { Sharding::Optimizer { ranks: data * context } },
        micro_batch: degree("mbs"),
        recompute,
        stack: Stack::Megatron,
        loss: if row.text("ce_fusion").to_lowercase().starts_with("no") { LossHead::Full } else { LossHead::Fused },
        ..Layout::default()
    };
    let micro_batches = row.count("micro_batches").map_or(u64::from(layout.pipeline), u64::from);
    let workload = Workload {
        model,
        task: Task::Pretrain,
        sequence: u64::from(row.count("seq").ok_or("no sequence")?),
        global_batch: u64::from(data) * u64::from(layout.micro_batch) * micro_batches,
        precision: words::precision(row.text("precision").split(',').next().unwrap_or_default()),
        optimizer: Optimizer::AdamW,
    };
    Ok((workload, layout))
}

/// Keeps so many layers: of a mixture one dense layer, if it begins with such, and then experts, as SimuMax's runs do
/// (`run_pretrain_deepseekv2.sh`: `[0]*1+[1]*(L-1)`).
fn shorten(model: &mut Model, layers: u64) {
    let (Some(first), Some(last)) = (model.layers.first().copied(), model.layers.last().copied()) else { return };
    let is_mixed = matches!(first.layer.feed_forward, FeedForward::Dense(_))
        && matches!(last.layer.feed_forward, FeedForward::Experts(_));
    if is_mixed && layers > 1 {
        model.layers = vec![LayerGroup { count: 1, ..first }, LayerGroup { count: layers - 1, ..last }];
        return;
    }
    let mut left = layers;
    for group in &mut model.layers {
        group.count = group.count.min(left);
        left -= group.count;
    }
    model.layers.retain(|group| group.count > 0);
    if let Some(last) = model.layers.last_mut() {
        last.count += left;
    }
}

/// SimuMax's Llama 3 405B has 16 heads of keys and values (`run_pretrain_llama3.sh`), the published one 8.
fn as_in_simumax(model: &mut Model) {
    const HEADS: u64 = 16;
    for group in &mut model.layers {
        if let Attention::Grouped(attention) = &mut group.layer.attention {
            attention.kv_heads = HEADS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_stage() {
        let row = Row::of(&[
            ("id", "deepseekv2_tp1_ep4_pp2_dp4_l4"),
            ("model", "deepseekv2"),
            ("layers", "4"),
            ("seq", "4096"),
            ("n_gpus", "8"),
            ("pp", "2"),
            ("dp", "4"),
            ("ep", "4"),
            ("zero", "1"),
            ("micro_batches", "8"),
            ("precision", "bf16 params, fp32 grad accum"),
            ("ce_fusion", "yes (_cef)"),
            ("per_rank_alloc_mb", "32343 32343 32342 32343 45775 45775 45774 45776"),
        ]);
        let pairs = stages(&Catalog::built_in(), &row).unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.measured).collect::<Vec<_>>(), [32343.0, 45776.0]);
        assert!(pairs.iter().all(|pair| pair.error().abs() < 2.0), "{pairs:?}");
    }

    #[test]
    fn a_model_is_shortened_from_its_end() {
        let mut model = gangline_planning::model::catalog::find("deepseek-v2").unwrap();
        shorten(&mut model, 4);
        assert_eq!(model.layers.iter().map(|group| group.count).collect::<Vec<_>>(), [1, 3]);
        shorten(&mut model, 90);
        assert_eq!(model.layer_count(), 90);
        let mut later = gangline_planning::model::catalog::find("deepseekv3").unwrap();
        shorten(&mut later, 3);
        assert_eq!(later.layers.iter().map(|group| group.count).collect::<Vec<_>>(), [1, 2]);
        let mut dense = gangline_planning::model::catalog::find("llama3_405b").unwrap();
        as_in_simumax(&mut dense);
        shorten(&mut dense, 4);
        assert_eq!(dense.layer_count(), 4);
    }
}
