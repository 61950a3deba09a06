//! The one table of what this model of time takes from measurement: physical, global, the same for every run.
//!
//! A constant is either fixed (a data sheet, a benchmark of one part) or fitted on published step times, starting from a prior that has a
//! source and staying within bounds that physics allows. No constant belongs to a row, a model or a source. Values are of the fit of
//! 2026-11-22 on 956 published runs. Their tables, `throughput.csv` and the step times of `memory_per_rank_b200.csv`, aren't in the
//! repository.
//! `cargo xtask bench planning --fit` prints the fit on all sources; without `--rows`, the benchmark also predicts each source by a fit
//! on all others.

/// Names a constant. The order is that of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Constant {
    /// Greatest part of the 16-bit peak that matrix products reach: Volta and Turing.
    Gemm16Volta,
    /// The same: Ampere and Ada.
    Gemm16Ampere,
    /// The same: Hopper.
    Gemm16Hopper,
    /// The same: Blackwell, throttled by power.
    Gemm16Blackwell,
    /// The same: MI200 and MI300.
    Gemm16Cdna,
    /// The same: MI350.
    Gemm16Cdna4,
    /// The same: TPU.
    Gemm16Tpu,
    /// Greatest part of the 8-bit peak: Ada and Hopper.
    Gemm8Hopper,
    /// The same: Blackwell.
    Gemm8Blackwell,
    /// The same: AMD.
    Gemm8Cdna,
    /// The same: TPU.
    Gemm8Tpu,
    /// Greatest part of the 4-bit peak.
    Gemm4,
    /// Power of watts for each operation of the peak that the rate goes with, since Hopper.
    PowerBound,
    /// Greatest part of the fp32 or tf32 peak.
    Gemm32,
    /// Waves of tiles lost in each product's last, partly filled wave.
    WaveLoss,
    /// Inner elements of a product during which the matrix units fill and drain.
    InnerFill,
    /// Part of the 16-bit peak that tiled attention reaches with heads of 128: Volta.
    AttentionVolta,
    /// The same: Ampere and Ada (second generation of kernels).
    AttentionAmpere,
    /// The same: Hopper with kernels made for Ampere.
    AttentionHopperPortable,
    /// The same: Hopper with its own kernels.
    AttentionHopper,
    /// The same: Blackwell.
    AttentionBlackwell,
    /// The same: AMD.
    AttentionCdna,
    /// The same: TPU.
    AttentionTpu,
    /// What first-generation tiled kernels reach of the second.
    AttentionFirst,
    /// Elements of a head whose softmax costs as much as its products.
    AttentionSoftmax,
    /// Bytes that unfused attention moves for each score, forward.
    UnfusedBytes,
    /// Part of the memory's rate that streaming kernels reach.
    Memory,
    /// Bytes moved by element-wise kernels, of those that fused kernels need.
    ElementwiseFused,
    /// The same without a compiler or fused kernels.
    ElementwiseEager,
    /// The same of Megatron before 2022.
    ElementwiseEarly,
    /// Bytes of casts and scales for 8-bit products, of what one pass each needs.
    Cast,
    /// Bytes that adding a gradient to the fp32 sum moves, of one read and one write.
    Accumulate,
    /// Time of XLA's linear layers, of hand-tuned libraries' (partial recompute, sharded layouts).
    Xla,
    /// Part of a scale-up link that rings reach.
    Link,
    /// Part of a fabric that rings reach.
    Fabric,
    /// Part of the host link that copies reach.
    HostLink,
    /// Seconds of a step on a ring inside a scale-up domain.
    LinkLatency,
    /// Seconds of a step on a ring between nodes, besides the fabric's own latency.
    FabricLatency,
    /// Part of tensor-parallel communication hidden behind products cut for it.
    TensorOverlap,
    /// Part of gradients' and parameters' communication hidden, once a step.
    DataOverlap,
    /// Part of parameters' gathering and gradients' scattering hidden, each layer.
    ShardOverlap,
    /// Part of transfers between stages hidden.
    PipelineOverlap,
    /// Part of ring attention's transfers hidden.
    ContextOverlap,
    /// Part of experts' all-to-all hidden.
    ExpertOverlap,
    /// Kernels of a layer forward, that the host launches one by one.
    Kernels,
    /// Further kernels of a layer with experts.
    ExpertKernels,
    /// The same for each expert on the accelerator.
    EachExpertKernels,
    /// Bytes moved to bring an element to its expert and back.
    PermuteBytes,
    /// Time of experts' products, of as many dense ones.
    GroupedLoss,
    /// Part that is left of permutation, casts, element-wise work, uneven groups and exposed exchange where experts are fused.
    UnfusedExperts,
    /// Time of a state-space layer's core, of its products at attention's rate.
    StateSpaceLoss,
    /// Seconds of a launch.
    Launch,
    /// Load of the fullest expert's rank, of the mean.
    ExpertImbalance,
    /// Seconds of a step outside the model: data, logs, clipping.
    StepFixed,
    /// Part of a step lost to the slowest with each doubling of nodes.
    Straggling,
    /// Parameters that a host updates in a second, for each accelerator.
    HostUpdate,
    /// Bytes moved for each element of an embedded token.
    EmbeddingBytes,
    /// Bytes moved for each logit.
    HeadBytes,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Which.
    pub constant: Constant,
    /// Its value as shipped.
    pub value: f64,
    /// What it was taken for before any fit.
    pub prior: f64,
    /// How far from the prior a fit may go before it costs, as a logarithm; none: it is not fitted.
    pub spread: Option<f64>,
    /// Least and greatest that is possible.
    pub bounds: (f64, f64),
    /// Where prior and value come from.
    pub source: &'static str,
}

/// Number of constants.
pub const COUNT: usize = 58;

const fn fixed(constant: Constant, value: f64, source: &'static str) -> Entry {
    Entry { constant, value, prior: value, spread: None, bounds: (value, value), source }
}

/// Value, prior, spread, bounds.
type Fit = (f64, f64, f64, (f64, f64));

const fn fitted(constant: Constant, fit: Fit, source: &'static str) -> Entry {
    Entry { constant, value: fit.0, prior: fit.1, spread: Some(fit.2), bounds: fit.3, source }
}

/// Every constant, in order.
pub const TABLE: [Entry; COUNT] = table();

#[rustfmt::skip]
const fn table() -> [Entry; COUNT] {
    use Constant as C;
    const PART: (f64, f64) = (0.0, 1.0);
    [
        fitted(C::Gemm16Volta, (0.793, 0.75, 0.12, (0.4, 0.95)), "prior: cuBLAS on V100"),
        fitted(C::Gemm16Ampere, (0.837, 0.85, 0.12, (0.4, 0.95)), "prior: MAMF 0.87 (stas00/ml-engineering)"),
        fitted(C::Gemm16Hopper, (0.729, 0.74, 0.12, (0.4, 0.95)), "prior: MAMF 0.80, less at 700 W for hours"),
        fitted(C::Gemm16Blackwell, (0.52, 0.66, 0.12, (0.4, 0.95)), "prior: MAMF 0.73 to 0.78, as much less for hours as Hopper"),
        fitted(C::Gemm16Cdna, (0.5, 0.5, 0.12, (0.3, 0.95)), "prior: MAMF 0.51 to 0.60"),
        fitted(C::Gemm16Cdna4, (0.6, 0.6, 0.12, (0.3, 0.95)), "prior: MAMF 0.68"),
        fitted(C::Gemm16Tpu, (0.672, 0.75, 0.12, (0.4, 0.95)), "prior: XLA on systolic arrays"),
        fitted(C::Gemm8Hopper, (0.69, 0.68, 0.12, (0.4, 0.95)), "prior: MAMF 0.71 to 0.73"),
        fitted(C::Gemm8Blackwell, (0.625, 0.65, 0.12, (0.3, 0.95)), "prior: MAMF 0.72 to 0.76"),
        fitted(C::Gemm8Cdna, (0.457, 0.45, 0.12, (0.3, 0.95)), "prior: that of 16 bits"),
        fitted(C::Gemm8Tpu, (0.605, 0.65, 0.12, (0.3, 0.95)), "prior: a little less than 16 bits"),
        fitted(C::Gemm4, (0.481, 0.5, 0.12, (0.2, 0.95)), "prior: bound by power"),
        fitted(C::PowerBound, (0.841, 0.7, 0.3, (0.0, 1.0)), "prior: between bound by clocks and bound by watts"),
        fixed(C::Gemm32, 0.8, "cuBLAS outside and inside the matrix units"),
        fitted(C::WaveLoss, (0.356, 0.4, 0.5, (0.0, 1.0)), "prior: half a wave without stream-K (arXiv:2301.03598)"),
        fixed(C::InnerFill, 96.0, "prologue and epilogue of a tile: three steps of 32"),
        fixed(C::AttentionVolta, 0.4, "no tiled kernels of note"),
        fitted(C::AttentionAmpere, (0.568, 0.55, 0.3, (0.2, 0.75)), "prior: arXiv:2307.08691, forward and backward"),
        fitted(C::AttentionHopperPortable, (0.309, 0.34, 0.3, (0.15, 0.75)), "prior: arXiv:2307.08691: 335 of 989 TFLOP/s"),
        fitted(C::AttentionHopper, (0.452, 0.5, 0.3, (0.2, 0.75)), "prior: arXiv:2407.08608 and cuDNN, causal"),
        fitted(C::AttentionBlackwell, (0.38, 0.45, 0.3, (0.15, 0.75)), "prior: cuDNN, causal"),
        fitted(C::AttentionCdna, (0.341, 0.3, 0.3, (0.1, 0.75)), "prior: composable kernels"),
        fitted(C::AttentionTpu, (0.372, 0.4, 0.3, (0.1, 0.75)), "prior: splash attention"),
        fitted(C::AttentionFirst, (0.6, 0.6, 0.3, (0.3, 1.0)), "prior: arXiv:2307.08691: second generation is 1.7 to 2 times as fast"),
        fixed(C::AttentionSoftmax, 32.0, "exponentials beside products, arXiv:2407.08608 section 2.2"),
        fitted(C::UnfusedBytes, (11.1, 14.0, 0.5, (6.0, 30.0)), "prior: write, softmax, dropout and read of 2-byte scores"),
        fixed(C::Memory, 0.85, "STREAM-like kernels"),
        fitted(C::ElementwiseFused, (1.12, 1.0, 0.5, (0.5, 3.0)), "prior: the count in layer.rs"),
        fitted(C::ElementwiseEager, (1.89, 2.0, 0.5, (1.0, 5.0)), "prior: each pass of a fused kernel is about two"),
        fitted(C::ElementwiseEarly, (1.06, 1.3, 0.5, (0.5, 4.0)), "prior: fused bias, GELU and dropout (arXiv:1909.08053)"),
        fitted(C::Cast, (0.974, 1.0, 0.5, (0.1, 4.0)), "prior: one read, a row-wise and a column-wise write"),
        fitted(C::Accumulate, (0.854, 1.0, 0.5, (0.1, 2.0)), "prior: read and write of 4 bytes"),
        fitted(C::Xla, (1.15, 1.15, 0.3, (1.0, 1.6)), "prior: products are recomputed in part"),
        fitted(C::Link, (0.78, 0.78, 0.2, (0.5, 0.95)), "prior: NCCL 232 of 300, 370 of 450, 682 of 900 GB/s"),
        fitted(C::Fabric, (0.631, 0.8, 0.3, (0.3, 0.97)), "prior: NCCL 24 of 25, 48 of 50 GB/s, less with many rails"),
        fixed(C::HostLink, 0.8, "pinned copies"),
        fitted(C::LinkLatency, (3.88e-06, 4e-6, 0.5, (1e-6, 2e-5)), "prior: NCCL's small messages"),
        fitted(C::FabricLatency, (1.04e-05, 1e-5, 0.5, (1e-6, 1e-4)), "prior: NCCL's small messages"),
        fitted(C::TensorOverlap, (0.761, 0.6, 0.5, PART), "prior: user buffers of Transformer Engine"),
        fitted(C::DataOverlap, (0.508, 0.7, 0.5, PART), "prior: buckets behind the last backward pass"),
        fitted(C::ShardOverlap, (0.582, 0.8, 0.5, PART), "prior: prefetch, less what both take from each other"),
        fitted(C::PipelineOverlap, (0.655, 0.5, 0.5, PART), "prior: interleaving hides one direction"),
        fixed(C::ContextOverlap, 0.6, "ring attention, arXiv:2310.01889"),
        fitted(C::ExpertOverlap, (0.198, 0.2, 0.5, PART), "prior: little without a second batch"),
        fixed(C::Kernels, 40.0, "profiles of a layer, forward"),
        fitted(C::ExpertKernels, (60.0, 60.0, 0.5, (10.0, 300.0)), "prior: router, permutation and exchange, unfused"),
        fitted(C::EachExpertKernels, (2.0, 2.0, 0.5, (0.1, 10.0)), "prior: a product and its casts"),
        fitted(C::PermuteBytes, (45.0, 24.0, 0.5, (4.0, 60.0)), "prior: permute, pad, unpermute, weigh and sum: six passes"),
        fitted(C::GroupedLoss, (1.3, 1.3, 0.2, (1.0, 2.5)), "prior: uneven groups and small products"),
        fitted(C::UnfusedExperts, (0.275, 0.3, 0.5, (0.0, 1.0)), "prior: one read and write of six passes, and what the graph doesn't hide"),
        fitted(C::StateSpaceLoss, (2.33, 2.0, 0.5, (1.0, 20.0)), "prior: chunks' states go through memory"),
        fitted(C::Launch, (6e-06, 6e-6, 0.5, (1e-6, 3e-5)), "prior: PyTorch's launch rate"),
        fixed(C::ExpertImbalance, 1.0, "balanced by force in benchmarks, and by losses or biases in runs"),
        fitted(C::StepFixed, (0.00976, 1e-2, 0.5, (1e-3, 1e-1)), "prior: profiles"),
        fitted(C::Straggling, (0.00641, 6e-3, 0.5, (0.0, 2e-2)), "prior: 2 to 4 % from 8 to 2,048 GPUs"),
        fixed(C::HostUpdate, 1.6e9, "4 s for 6.3e9 parameters, LambdaLabs guide chapter 5"),
        fixed(C::EmbeddingBytes, 12.0, "gather and scatter"),
        fixed(C::HeadBytes, 16.0, "logits, softmax and gradient: 2 + 4 + 4 + 4 + 2"),
    ]
}

/// A value for each constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    values: [f64; COUNT],
}

impl Constants {
    /// The table's.
    #[must_use]
    pub const fn shipped() -> Self {
        let mut values = [0.0; COUNT];
        let mut index = 0;
        while index < COUNT {
            values[index] = TABLE[index].value;
            index += 1;
        }
        Constants { values }
    }

    /// Those before any fit.
    #[must_use]
    pub const fn priors() -> Self {
        let mut values = [0.0; COUNT];
        let mut index = 0;
        while index < COUNT {
            values[index] = TABLE[index].prior;
            index += 1;
        }
        Constants { values }
    }

    /// One of them.
    #[must_use]
    pub const fn get(&self, constant: Constant) -> f64 {
        self.values[constant as usize]
    }

    /// The same with one of them changed, as far as its bounds allow.
    #[must_use]
    pub fn with(&self, constant: Constant, value: f64) -> Self {
        let (least, greatest) = TABLE[constant as usize].bounds;
        let mut changed = self.clone();
        changed.values[constant as usize] = value.clamp(least, greatest);
        changed
    }
}

impl Default for Constants {
    fn default() -> Self {
        Constants::shipped()
    }
}

/// The shipped values, made once by the compiler.
pub(super) const SHIPPED: &Constants = &Constants::shipped();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_within_its_bounds() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.constant as usize, index, "{entry:?}");
            let (least, greatest) = entry.bounds;
            assert!(least <= entry.value && entry.value <= greatest, "{entry:?}");
            assert!(least <= entry.prior && entry.prior <= greatest, "{entry:?}");
        }
    }

    #[test]
    fn a_changed_constant_stays_within_its_bounds() {
        let changed = Constants::shipped().with(Constant::Link, 7.0);
        assert_eq!(changed.get(Constant::Link), 0.95);
        assert_eq!(changed.get(Constant::Fabric), Constants::shipped().get(Constant::Fabric));
        assert_eq!(Constants::shipped().with(Constant::Memory, 0.1), Constants::shipped());
    }
}
