//! What holds of any estimate, and the exact time of small cases.

use super::constants::Constant as C;
use super::*;
use crate::hardware::Fabric;
use crate::hardware::book::Book;
use crate::layout::{AttentionKernel, Offload, Recompute, Sharding, Stack};
use crate::model::catalog;
use crate::units::Bandwidth;
use crate::workload::{Lora, LoraForm, LoraTarget, Optimizer, Precision, Task};

fn cluster(accelerator: &str, accelerators: u32) -> Cluster {
    let accelerator = Book::built_in().accelerator(accelerator).unwrap().value.clone();
    let fabric = Fabric { per_accelerator: Bandwidth::new(50e9), latency: Seconds::new(2e-6) };
    Cluster { accelerator, accelerators, per_node: 8, fabric }
}

fn workload(model: &str, global_batch: u64) -> Workload {
    Workload {
        model: catalog::find(model).unwrap(),
        task: Task::Pretrain,
        sequence: 8192,
        global_batch,
        precision: Precision::Bf16,
        optimizer: Optimizer::AdamW,
    }
}

/// Llama 3 8B on 8 H100, data parallel as Megatron has it.
fn usual() -> (Workload, Layout, Cluster) {
    let layout =
        Layout { data: 8, sharding: Sharding::Optimizer { ranks: 8 }, stack: Stack::Megatron, ..Layout::default() };
    (workload("llama-3-8b", 128), layout, cluster("H100-SXM5-80GB", 8))
}

/// Llama 3 70B on 64 H100: 4 ways tensor, 4 stages.
fn large() -> (Workload, Layout, Cluster) {
    let layout = Layout {
        tensor: 4,
        is_sequence_parallel: true,
        pipeline: 4,
        virtual_stages: 5,
        data: 4,
        sharding: Sharding::Optimizer { ranks: 4 },
        stack: Stack::Megatron,
        ..Layout::default()
    };
    (workload("llama-3-70b", 128), layout, cluster("H100-SXM5-80GB", 64))
}

fn seconds(run: &(Workload, Layout, Cluster)) -> f64 {
    estimate(&run.0, &run.1, &run.2).total().get()
}

#[test]
fn no_step_is_faster_than_its_products_at_peak() {
    let (workload, layout, cluster) = usual();
    let tokens = real(workload.sequence * workload.global_batch);
    let least = 6.0 * tokens * real(workload.model.parameters().used_in_matrices) / (8.0 * 989.4e12);
    let time = estimate(&workload, &layout, &cluster);
    assert!(time.compute.get() > least / 0.85, "{time:?}");
    assert!(time.total().get() < least * 2.5, "{time:?}");
}

#[test]
fn components_that_a_layout_lacks_take_no_time() {
    let (workload, layout, cluster) = usual();
    let time = estimate(&workload, &layout, &cluster);
    let none = [time.tensor, time.context, time.expert, time.pipeline, time.bubble];
    assert_eq!(none, [Seconds::ZERO; 5]);
    assert!(time.data > Seconds::ZERO && time.optimizer > Seconds::ZERO);
    let (workload, layout, cluster) = large();
    let time = estimate(&workload, &layout, &cluster);
    assert!([time.tensor, time.data, time.pipeline, time.bubble].iter().all(|part| *part > Seconds::ZERO), "{time:?}");
}

#[test]
fn the_bubble_is_a_stage_for_each_other_stage_and_less_when_interleaved() {
    let constants = Constants::shipped().with(C::PipelineOverlap, 1.0);
    let (workload, mut layout, cluster) = large();
    let interleaved = estimate_with(&constants, &workload, &layout, &cluster).bubble;
    layout.virtual_stages = 1;
    let plain = estimate_with(&constants, &workload, &layout, &cluster).bubble;
    assert!((plain / interleaved - 5.0).abs() < 1e-9, "{plain:?} {interleaved:?}");
}

#[test]
fn twice_the_batch_takes_nearly_twice_the_time() {
    let mut run = usual();
    let once = seconds(&run);
    run.0.global_batch *= 2;
    let ratio = seconds(&run) / once;
    assert!(ratio > 1.9 && ratio < 2.0, "{ratio}");
}

#[test]
fn recompute_costs_a_forward_pass_at_most() {
    let mut run = usual();
    let none = seconds(&run);
    run.1.recompute = Recompute::Selective;
    let selective = seconds(&run);
    run.1.recompute = Recompute::Full;
    let full = seconds(&run);
    assert!(none < selective && selective < full && full < none * 1.36, "{none} {selective} {full}");
}

#[test]
fn frozen_weights_save_their_gradients_products() {
    let mut run = usual();
    let full = seconds(&run);
    let lora = Lora { rank: 16, targets: vec![LoraTarget::Query, LoraTarget::Value], form: LoraForm::Plain };
    run.0.task = Task::Lora(lora.clone());
    let adapted = seconds(&run);
    assert!(adapted > full * 0.6 && adapted < full * 0.8, "{adapted} {full}");
    run.0.task = Task::Qlora { lora, is_double: true };
    assert!(seconds(&run) > adapted, "unpacking takes time");
    run.0.task = Task::Inference;
    assert!(seconds(&run) < full / 2.5);
}

#[test]
fn narrow_products_are_faster_but_attention_is_not() {
    let mut run = usual();
    let wide = seconds(&run);
    run.0.precision = Precision::Fp8;
    let narrow = seconds(&run);
    assert!(narrow < wide * 0.85 && narrow > wide * 0.5, "{narrow} {wide}");
    run.2 = cluster("A100-SXM4-80GB", 8);
    let on_ampere = seconds(&run);
    run.0.precision = Precision::Bf16;
    assert_eq!(on_ampere, seconds(&run), "without 8-bit units, 16 bits are used");
}

#[test]
fn shared_parameters_cost_communication_that_a_slow_fabric_shows() {
    let (workload, _, _) = usual();
    let layout =
        Layout { data: 64, sharding: Sharding::Parameters { reshards: true }, stack: Stack::Fsdp, ..Layout::default() };
    let mut cluster = cluster("H100-SXM5-80GB", 64);
    let fast = estimate(&workload, &layout, &cluster);
    cluster.fabric.per_accelerator = Bandwidth::new(1.5e9);
    let slow = estimate(&workload, &layout, &cluster);
    assert!(slow.data > fast.data * 10.0, "{slow:?} {fast:?}");
    assert!((slow.compute / fast.compute - 1.0).abs() < 1e-9);
    let kept = Layout { sharding: Sharding::Parameters { reshards: false }, ..layout };
    assert!(estimate(&workload, &kept, &cluster).data < slow.data);
}

#[test]
fn overlap_of_tensor_parallelism_hides_its_part() {
    let (workload, mut layout, cluster) = large();
    let exposed = estimate(&workload, &layout, &cluster).tensor;
    layout.is_tensor_overlapped = true;
    let hidden = estimate(&workload, &layout, &cluster).tensor;
    let part = Constants::shipped().get(C::TensorOverlap);
    assert!((hidden / exposed - (1.0 - part)).abs() < 1e-9);
    layout.tensor = 16;
    layout.data = 1;
    assert!(estimate(&workload, &layout, &cluster).tensor > exposed, "beyond a node, tensor parallelism is slow");
}

#[test]
fn nothing_hides_behind_work_that_there_is_not() {
    let (workload, layout, _) = usual();
    let mut layout = Layout { tensor: 8, is_sequence_parallel: true, data: 1, sharding: Sharding::None, ..layout };
    // Cards without links of their own: tensor parallelism goes over the host's, and takes longer than the products.
    let cards = cluster("RTX 4090", 8);
    let exposed = estimate(&workload, &layout, &cards);
    layout.is_tensor_overlapped = true;
    let hidden = estimate(&workload, &layout, &cards);
    assert!(exposed.tensor > exposed.compute);
    assert!(exposed.tensor - hidden.tensor <= exposed.compute, "{exposed:?} {hidden:?}");
}

#[test]
fn fused_experts_cost_less_beyond_their_products_and_their_exchange_hides() {
    let cluster = cluster("GB200", 8);
    let sharding = Sharding::Optimizer { ranks: 8 };
    let layout = Layout { data: 8, expert: 8, micro_batch: 4, sharding, stack: Stack::Megatron, ..Layout::default() };
    let mut workload = workload("qwen3-30b-a3b", 512);
    workload.precision = Precision::Fp8;
    let apart = estimate(&workload, &layout, &cluster);
    let fused = estimate(&workload, &Layout { has_fused_experts: true, ..layout }, &cluster);
    assert!(fused.compute < apart.compute && fused.launch == Seconds::ZERO);
    let left = Constants::shipped().get(C::UnfusedExperts);
    assert!((fused.expert / apart.expert - left).abs() < 1e-9);
}

#[test]
fn unfused_attention_and_first_kernels_are_slower() {
    let mut run = usual();
    run.1.stack = Stack::Plain;
    let tiled = seconds(&run);
    run.1.kernel = AttentionKernel::FlashFirst;
    let first = seconds(&run);
    run.1.kernel = AttentionKernel::Unfused;
    assert!(tiled < first && first < seconds(&run));
}

#[test]
fn the_hosts_update_is_slower_than_the_accelerators() {
    let mut run = usual();
    let time = estimate(&run.0, &run.1, &run.2).optimizer;
    run.1.offload = Offload::Optimizer;
    assert!(estimate(&run.0, &run.1, &run.2).optimizer > time * 5.0);
}

#[test]
fn experts_beyond_links_wait_for_the_fabric() {
    let workload = workload("qwen3-30b-a3b", 512);
    let layout = |expert| Layout {
        data: 64,
        expert,
        sharding: Sharding::Optimizer { ranks: 64 },
        stack: Stack::Megatron,
        ..Layout::default()
    };
    let cluster = cluster("H100-SXM5-80GB", 64);
    let inside = estimate(&workload, &layout(8), &cluster).expert;
    let outside = estimate(&workload, &layout(32), &cluster).expert;
    assert!(outside > inside * 2.0, "{outside:?} {inside:?}");
    assert_eq!(estimate(&workload, &layout(1), &cluster).expert, Seconds::ZERO);
}

#[test]
fn every_model_on_every_accelerator_has_a_time() {
    let models = catalog::Catalog::built_in();
    let book = Book::built_in();
    let (usual, _, eight) = usual();
    for (name, _) in models.entries() {
        let workload = Workload { model: models.find(name).unwrap(), ..usual.clone() };
        for (accelerator, fact) in book.accelerators() {
            let cluster = Cluster { accelerator: fact.value.clone(), ..eight.clone() };
            let layout = Layout { data: 8, sharding: Sharding::Parameters { reshards: true }, ..Layout::default() };
            let total = estimate(&workload, &layout, &cluster).total().get();
            assert!(total.is_finite() && total > 0.0, "{name} on {accelerator}: {total}");
        }
    }
}

#[test]
fn a_layout_of_zeros_counts_as_ones() {
    let (workload, layout, cluster) = usual();
    let one = Layout { data: 1, micro_batch: 1, ..layout };
    let zero =
        Layout { data: 0, micro_batch: 0, tensor: 0, pipeline: 0, virtual_stages: 0, context: 0, expert: 0, ..one };
    assert_eq!(estimate(&workload, &zero, &cluster), estimate(&workload, &one, &cluster));
}

#[test]
fn reducing_gradients_takes_longer_between_nodes() {
    let (workload, layout, _) = usual();
    let inside = gradient_reduction(&workload, &layout, &cluster("H100-SXM5-80GB", 8));
    let wide = Layout { data: 64, ..layout };
    let mut slow = cluster("H100-SXM5-80GB", 64);
    slow.fabric.per_accelerator = Bandwidth::new(3e9);
    assert!(gradient_reduction(&workload, &wide, &slow) > inside * 5.0);
}
