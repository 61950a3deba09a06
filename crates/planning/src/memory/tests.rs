//! Measured figures that were checked by hand.

use super::*;
use crate::fixtures::{cluster, deepseek_v2, llama_3b, llama_70b, pretraining};
use crate::layout::{LossHead, Sharding};
use crate::units::Volume;
use crate::workload::{Lora, LoraForm, LoraTarget, Optimizer};

/// Stage memory of Megatron with Transformer Engine's loss, as SimuMax measured on B200.
fn megatron(model: crate::model::Model, sequence: u64, layout: &str, micro_batches: u64) -> Vec<StageMemory> {
    let mut layout = Layout::parse(layout).unwrap();
    layout.stack = Stack::Megatron;
    layout.loss = LossHead::Fused;
    let workload = pretraining(model, sequence, u64::from(layout.data) * micro_batches);
    estimate(&workload, &layout, &cluster(8)).stages
}

#[track_caller]
fn near(memory: Volume, measured_gib: f64, tolerance: f64) {
    let error = memory.gib() / measured_gib - 1.0;
    assert!(error.abs() < tolerance, "{:.2} GiB, measured {measured_gib}: {:+.2} %", memory.gib(), error * 100.0);
}

#[test]
fn llama_70b_of_12_layers_on_2_x_4_is_what_was_measured() {
    let memory = megatron(llama_70b(12), 4096, "tp=2,dp=4", 4)[0];
    // 6 + 12 / 4 bytes for 6.184e9 parameters; 33.5 s b h / t for each of 12 layers, and 4 a of sums.
    near(memory.weights + memory.gradients + memory.optimizer, 51.84, 0.001);
    near(memory.activations, 6.284, 0.01);
    near(memory.allocated(), 60.68, 0.01);
}

#[test]
fn the_first_stage_holds_two_micro_batches_and_the_last_the_logits() {
    let stages = megatron(llama_70b(12), 4096, "tp=1,pp=2,dp=4", 8);
    near(stages[0].allocated(), 68149.0 / 1024.0, 0.01);
    near(stages[1].allocated(), 64479.0 / 1024.0, 0.01);
    assert_eq!(stages[0].loss_head, Volume::ZERO);
}

#[test]
fn context_parallelism_is_what_was_measured() {
    near(megatron(llama_70b(12), 131_072, "tp=1,cp=8", 4)[0].allocated(), 147.99, 0.01);
    near(megatron(llama_70b(12), 32_768, "tp=2,cp=4", 4)[0].allocated(), 68.43, 0.01);
}

#[test]
fn experts_and_latent_attention_are_what_was_measured() {
    near(megatron(deepseek_v2(4), 4096, "ep=8,dp=8", 4)[0].allocated(), 45.63, 0.02);
    let stages = megatron(deepseek_v2(4), 4096, "ep=4,pp=2,dp=4", 4);
    near(stages[0].allocated(), 32343.0 / 1024.0, 0.02);
    near(stages[1].allocated(), 45775.0 / 1024.0, 0.02);
}

fn one(workload: &Workload, layout: &Layout) -> StageMemory {
    let estimate = estimate(workload, layout, &cluster(1));
    assert_eq!(estimate.stages.len(), 1);
    estimate.fullest()
}

fn lora(targets: &[LoraTarget]) -> Lora {
    Lora { rank: 32, targets: targets.to_vec(), form: LoraForm::Plain }
}

#[test]
fn adapters_beside_a_3b_model_are_what_peft_measured() {
    // peft's MetaMathQA comparison on L40S: 4 sequences of 768; rank 32 on q and v 20.76 GiB, full fine-tuning in bf16 36.20 GiB.
    let layout = Layout { micro_batch: 4, ..Layout::default() };
    let task = Task::Lora(lora(&[LoraTarget::Query, LoraTarget::Value]));
    let adapted = Workload { task, ..pretraining(llama_3b(), 768, 4) };
    near(one(&adapted, &layout).allocated(), 20.76, 0.05);
    let optimizer = Optimizer::AdamWPureBf16;
    let full = Workload { task: Task::FullFinetune, optimizer, ..pretraining(llama_3b(), 768, 4) };
    near(one(&full, &layout).allocated(), 36.20, 0.08);
}

#[test]
fn four_bits_leave_ends_and_norms_in_more() {
    let task = Task::Qlora { lora: lora(&[LoraTarget::Query]), is_double: true };
    let workload = Workload { task, optimizer: Optimizer::AdamWPureBf16, ..pretraining(llama_70b(80), 512, 1) };
    let memory = one(&workload, &Layout { loss: LossHead::Streamed, ..Layout::default() });
    // 80 layers x 855,638,016 in 4.127 bits, 2 x 1,050,673,152 and norms in 16, adapters of 80 x 32 x 16,384 in 16.
    let adapters = 80.0 * 32.0 * 16_384.0 * 2.0;
    let expected = 80.0 * 855_638_016.0 * 0.515_869_140_625 + 2.0 * (2.0 * 1_050_673_152.0 + 161.0 * 8192.0) + adapters;
    assert!((memory.weights.get() - expected).abs() < 1.0, "{} {expected}", memory.weights.get());
}

#[test]
fn each_stage_of_sharding_shares_out_more_states() {
    let states = |sharding| {
        let layout = Layout { data: 8, sharding, stack: Stack::DeepSpeed, ..Layout::default() };
        let memory = one(&pretraining(llama_3b(), 1, 8), &layout);
        [memory.weights, memory.gradients, memory.optimizer].map(|part| part.get() / 3_212_749_824.0)
    };
    // Rajbhandari 2020, figure 1: 2 + 2 + 12 bytes.
    assert_eq!(states(Sharding::None), [2.0, 2.0, 12.0]);
    assert_eq!(states(Sharding::Optimizer { ranks: 8 }), [2.0, 2.0, 1.5]);
    assert_eq!(states(Sharding::Gradients), [2.0, 0.25, 1.5]);
    assert_eq!(states(Sharding::Parameters { reshards: true }), [0.25, 0.25, 1.5]);
}

#[test]
fn optimizers_keep_what_their_papers_say() {
    let each = |optimizer| {
        let layout = Layout { stack: Stack::Megatron, ..Layout::default() };
        let memory = one(&Workload { optimizer, ..pretraining(llama_3b(), 1, 8) }, &layout);
        memory.optimizer.get() / 3_212_749_824.0
    };
    assert_eq!(each(Optimizer::AdamW), 12.0);
    assert_eq!(each(Optimizer::AdamWPureBf16), 4.0);
    assert_eq!((each(Optimizer::Muon), each(Optimizer::SgdMomentum)), (8.0, 8.0));
    assert!((each(Optimizer::AdamW8Bit) - 2.031_25).abs() < 1e-9);
    assert!(each(Optimizer::Adafactor) < 0.01 && each(Optimizer::Adafactor) > 0.0);
    assert_eq!(each(Optimizer::PagedAdamW8Bit), 0.0);
}

#[test]
fn gradients_are_summed_in_what_the_layout_says() {
    let of = |layout: &str| one(&pretraining(llama_3b(), 1, 8), &Layout::parse(layout).unwrap());
    let each = |memory: StageMemory| memory.gradients.get() / 3_212_749_824.0;
    assert_eq!(each(of("stack=megatron")), 4.0);
    assert_eq!(each(of("stack=megatron,gradients=16bit")), 2.0);
    // torchtitan: fp32 shards of weights, gradients and two moments among 8, and whole layers in 16 bits while they are worked on.
    let sharded = of("dp=8,zero=3,mbs=1");
    assert_eq!((sharded.weights + sharded.optimizer).get() / 3_212_749_824.0, 12.0 / 8.0);
    let kept = of("dp=8,zero=3:kept");
    assert!(kept.buffers - sharded.buffers > Volume::new(2.0 * 2.0e9), "whole parameters stay: {kept:?}");
}

#[test]
fn computing_again_and_streaming_the_loss_hold_less() {
    let of = |layout: &str| one(&pretraining(llama_3b(), 8192, 8), &Layout::parse(layout).unwrap());
    let (kept, again) = (of("stack=megatron"), of("stack=megatron,recompute=full"));
    assert!(again.activations < kept.activations * 0.3, "{again:?}");
    let (selective, unfused) =
        (of("stack=megatron,attention=unfused,recompute=selective"), of("stack=megatron,attention=unfused"));
    // 5as for each of 28 layers (arXiv:2205.05198): a = 24, s = 8192.
    let scores = unfused.activations - kept.activations;
    assert!((scores.get() - 28.0 * 5.0 * 24.0 * 8192.0 * 8192.0).abs() < 1.0, "{scores:?}");
    assert!(selective.allocated() < unfused.allocated());
    assert!(of("loss=streamed").loss_head < of("loss=chunked").loss_head);
    assert!(of("loss=chunked").loss_head < of("loss=full").loss_head);
    // The step within the backward pass has no gradients behind it.
    assert_eq!(of("step=within").gradients, Volume::ZERO);
}

#[test]
fn serving_holds_weights_keys_and_values() {
    let workload = Workload { task: Task::Inference, ..pretraining(llama_70b(80), 8192, 16) };
    let memory = one(&workload, &Layout::default());
    assert_eq!(memory.weights, Volume::new(2.0 * 70_553_706_496.0));
    // 2 x 2 x 8 x 128 bytes for each of 80 layers and 16 x 8192 tokens: 40 GiB.
    assert_eq!(memory.activations, Volume::from_gib(40.0));
    assert_eq!((memory.gradients, memory.optimizer, memory.loss_head), (Volume::ZERO, Volume::ZERO, Volume::ZERO));
}

#[test]
fn what_is_allocated_reserved_and_shown_is_told_apart() {
    let workload = pretraining(llama_70b(80), 8192, 512);
    let estimate = estimate(&workload, &Layout::parse("tp=8,pp=2,dp=4").unwrap(), &cluster(64));
    let fullest = estimate.fullest();
    assert!(fullest.allocated() < fullest.reserved() && fullest.reserved() < fullest.occupied());
    // 70B on 64 H100 with 2 stages: 6 + 12 / 4 bytes for 4.4e9 parameters, and activations of two micro-batches.
    assert!(estimate.fits() && estimate.has_room(), "{fullest:?}");
    let tight = MemoryEstimate { capacity: fullest.occupied(), ..estimate };
    assert!(tight.fits() && !tight.has_room(), "fragmentation alone has no room");
    let alone = super::estimate(&workload, &Layout::default(), &cluster(1));
    assert!(!alone.fits());
}
