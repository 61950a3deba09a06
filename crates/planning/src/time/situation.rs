//! Workload, layout and cluster as the numbers that the formulas of time take.

use super::constants::{Constant, Constants};
use crate::hardware::{Accelerator, Cluster, Generation};
use crate::layout::{AttentionKernel, Layout, Recompute, Stack};
use crate::units::{Bandwidth, FlopRate, real};
use crate::workload::{Precision, Task, Workload};

/// Everything that the formulas look at.
pub(super) struct Situation<'a> {
    pub(super) constants: &'a Constants,
    pub(super) workload: &'a Workload,
    pub(super) layout: &'a Layout,
    pub(super) cluster: &'a Cluster,
    /// Tokens of a micro-batch on one accelerator: b s / c.
    pub(super) tokens: f64,
    /// Tokens of a sequence.
    pub(super) sequence: f64,
    /// t.
    pub(super) tensor: f64,
    /// t if sequence parallelism cuts element-wise work too, otherwise 1.
    pub(super) sequence_cut: f64,
    /// p.
    pub(super) pipeline: f64,
    /// v.
    pub(super) chunks: f64,
    /// c.
    pub(super) context: f64,
    /// e.
    pub(super) expert: f64,
    /// D.
    pub(super) data: f64,
    /// Micro-batches of a step (m).
    pub(super) micro_batches: f64,
    pub(super) device: Device,
    pub(super) passes: Passes,
}

/// What an accelerator reaches.
pub(super) struct Device {
    /// Rate of linear layers' products.
    pub(super) linear: FlopRate,
    /// Rate of the head's products, which stay in 16 bits.
    pub(super) head: FlopRate,
    /// Peak that attention's kernels are measured against.
    pub(super) attention: FlopRate,
    /// Rate of the memory.
    pub(super) memory: Bandwidth,
    /// Units that take a tile each.
    pub(super) units: f64,
    /// Whether linear layers take 8 bits or fewer, which are cast from 16.
    pub(super) is_cast: bool,
}

/// What is computed in a step.
#[derive(Clone, Copy)]
pub(super) struct Passes {
    /// Whether there is a backward pass.
    pub(super) is_trained: bool,
    /// Whether the layers' own weights have gradients.
    pub(super) has_weight_gradients: bool,
    /// Whether weights lie in 4 bits and are unpacked before each use.
    pub(super) is_packed: bool,
}

impl<'a> Situation<'a> {
    pub(super) fn new(
        constants: &'a Constants,
        workload: &'a Workload,
        layout: &'a Layout,
        cluster: &'a Cluster,
    ) -> Self {
        let tensor = f64::from(layout.tensor.max(1));
        let (data, micro_batch) = (f64::from(layout.data.max(1)), f64::from(layout.micro_batch.max(1)));
        let context = f64::from(layout.context.max(1));
        let sequence = real(workload.sequence);
        Situation {
            constants,
            workload,
            layout,
            cluster,
            tokens: micro_batch * sequence / context,
            sequence,
            tensor,
            sequence_cut: if layout.is_sequence_parallel { tensor } else { 1.0 },
            pipeline: f64::from(layout.pipeline.max(1)),
            chunks: f64::from(layout.virtual_stages.max(1)),
            context,
            expert: f64::from(layout.expert.max(1)),
            data,
            micro_batches: (real(workload.global_batch) / (data * micro_batch)).max(1.0),
            device: Device::new(constants, &cluster.accelerator, workload.precision),
            passes: Passes::of(&workload.task),
        }
    }

    /// A constant's value.
    pub(super) const fn constant(&self, constant: Constant) -> f64 {
        self.constants.get(constant)
    }

    /// Whether the software is of the time before tiled attention, when little was overlapped.
    pub(super) fn is_early(&self) -> bool {
        self.layout.kernel == AttentionKernel::Unfused
    }

    /// How often a layer's forward pass runs: again if the layer is recomputed.
    pub(super) fn is_recomputed(&self) -> bool {
        self.passes.is_trained && self.layout.recompute == Recompute::Full
    }

    /// Bytes that element-wise kernels move, of those that fused ones need.
    pub(super) fn elementwise(&self) -> f64 {
        let constant = match self.layout.stack {
            _ if self.is_early() => Constant::ElementwiseEarly,
            Stack::Megatron | Stack::Xla => Constant::ElementwiseFused,
            Stack::Fsdp | Stack::DeepSpeed | Stack::Plain if self.layout.is_compiled => Constant::ElementwiseFused,
            Stack::Fsdp | Stack::DeepSpeed | Stack::Plain => Constant::ElementwiseEager,
        };
        self.constant(constant)
    }
}

impl Passes {
    const fn of(task: &Task) -> Self {
        match task {
            Task::Pretrain | Task::ContinualPretrain | Task::FullFinetune => {
                Passes { is_trained: true, has_weight_gradients: true, is_packed: false }
            }
            Task::Lora(_) => Passes { is_trained: true, has_weight_gradients: false, is_packed: false },
            Task::Qlora { .. } => Passes { is_trained: true, has_weight_gradients: false, is_packed: true },
            Task::Inference => Passes { is_trained: false, has_weight_gradients: false, is_packed: false },
        }
    }
}

impl Device {
    fn new(constants: &Constants, accelerator: &Accelerator, precision: Precision) -> Self {
        let (peak, width) = linear_peak(accelerator, precision);
        let half = half_peak(accelerator);
        let is_wide = matches!(width, Width::Bits32);
        let (head, head_width) = if is_wide { (peak, width) } else { (half, Width::Bits16) };
        let generation = accelerator.generation;
        let power = power(constants, accelerator);
        Device {
            linear: peak * (constants.get(gemm(generation, width)) * power),
            head: head * (constants.get(gemm(generation, head_width)) * power),
            attention: if is_wide { peak } else { half },
            memory: accelerator.memory_bandwidth * constants.get(Constant::Memory),
            units: units(generation),
            is_cast: matches!(width, Width::Bits8 | Width::Bits4),
        }
    }
}

/// Watts for each 16-bit TFLOP/s of the accelerators for which a generation's parts of the peak are stated: H100 SXM and GB200.
const fn stated_power(generation: Generation) -> Option<f64> {
    match generation {
        Generation::Hopper => Some(700.0 / 989.4),
        Generation::Blackwell => Some(1200.0 / 2500.0),
        _ => None,
    }
}
/// Most that a greater power limit gains: beyond, clocks end.
const POWER_MOST: f64 = 1.25;

/// Products are bound by power since Hopper: what an accelerator reaches goes with (watts / peak)^x. A Hopper with more power than the
/// SXM board isn't faster (its clocks end; MAMF of GH200 beside H100).
fn power(constants: &Constants, accelerator: &Accelerator) -> f64 {
    let Some(stated) = stated_power(accelerator.generation).filter(|_| accelerator.watts > 0.0) else { return 1.0 };
    let each = accelerator.watts / (half_peak(accelerator).get() / 1e12);
    let most = if accelerator.generation == Generation::Hopper { 1.0 } else { POWER_MOST };
    (each / stated).powf(constants.get(Constant::PowerBound)).min(most)
}

/// Width of a product's inputs, as the matrix units see them.
#[derive(Clone, Copy)]
enum Width {
    Bits32,
    Bits16,
    Bits8,
    Bits4,
}

/// The peak that linear layers are measured against; what an accelerator can't do, it does in the next wider format.
fn linear_peak(accelerator: &Accelerator, precision: Precision) -> (FlopRate, Width) {
    let peaks = &accelerator.peaks;
    let narrow = match precision {
        Precision::Fp32 => return (accelerator.fp32, Width::Bits32),
        Precision::Tf32 => return (peaks.tf32.unwrap_or(accelerator.fp32), Width::Bits32),
        Precision::Fp4 => peaks.fp4.map(|peak| (peak, Width::Bits4)),
        Precision::Fp16 | Precision::Bf16 | Precision::Fp8 => None,
    };
    let is_narrow = matches!(precision, Precision::Fp4 | Precision::Fp8);
    let eight = peaks.fp8.filter(|_| is_narrow).map(|peak| (peak, Width::Bits8));
    narrow.or(eight).unwrap_or((half_peak(accelerator), Width::Bits16))
}

fn half_peak(accelerator: &Accelerator) -> FlopRate {
    accelerator.peaks.bf16.or(accelerator.peaks.fp16).unwrap_or(accelerator.fp32)
}

const fn gemm(generation: Generation, width: Width) -> Constant {
    match (width, generation) {
        (Width::Bits32, _) => Constant::Gemm32,
        (Width::Bits4, _) => Constant::Gemm4,
        (Width::Bits8, Generation::Blackwell) => Constant::Gemm8Blackwell,
        (Width::Bits8, Generation::Cdna2 | Generation::Cdna3 | Generation::Cdna4) => Constant::Gemm8Cdna,
        (Width::Bits8, Generation::Tpu) => Constant::Gemm8Tpu,
        (Width::Bits8, _) => Constant::Gemm8Hopper,
        (Width::Bits16, Generation::Volta | Generation::Turing) => Constant::Gemm16Volta,
        (Width::Bits16, Generation::Ampere | Generation::Ada | Generation::Other) => Constant::Gemm16Ampere,
        (Width::Bits16, Generation::Hopper) => Constant::Gemm16Hopper,
        (Width::Bits16, Generation::Blackwell) => Constant::Gemm16Blackwell,
        (Width::Bits16, Generation::Cdna2 | Generation::Cdna3) => Constant::Gemm16Cdna,
        (Width::Bits16, Generation::Cdna4) => Constant::Gemm16Cdna4,
        (Width::Bits16, Generation::Tpu) => Constant::Gemm16Tpu,
    }
}

/// Multiprocessors of the largest part of a generation (data sheets); one wave of tiles fills them.
const fn units(generation: Generation) -> f64 {
    match generation {
        Generation::Volta => 80.0,
        Generation::Turing => 40.0,
        Generation::Ampere | Generation::Other => 108.0,
        Generation::Ada => 128.0,
        Generation::Hopper => 132.0,
        Generation::Blackwell => 148.0,
        Generation::Cdna2 => 110.0,
        Generation::Cdna3 => 304.0,
        Generation::Cdna4 => 256.0,
        Generation::Tpu => 64.0,
    }
}
