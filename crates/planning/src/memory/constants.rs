//! The one table of constants of memory: each a physical property of software or driver, for every model and source the same.
//!
//! | constant | value | source |
//! |---|--:|---|
//! | [`FRAGMENTATION`] | 0.17 | reserved over allocated, of what comes and goes: dense rows of `memory_per_rank_b200.csv` |
//! | [`FRAGMENTATION_OF_EXPERTS`] | 0.38 | the same, mixtures |
//! | [`DRIVERS_PART`] | 0.0125 | PyTorch sees 39.39 of 40 GiB on A100, 79.15 of 80 on A100 and H100 |
//! | [`CONTEXT`] | 0.5 GiB | CUDA context with kernels loaded: 0.4 to 0.6 GiB by `nvidia-smi` on A100 and H100 |
//! | [`COLLECTIVES`] | 0.5 GiB | NCCL's channels of one communicator; 1 to 2 GiB of several |
//! | [`WORKSPACE`] | 66 MiB | cuBLAS: 32 MiB of PyTorch and 32 MiB of Transformer Engine on Hopper and later, and small tensors |
//! | [`EXPERT_COPIES`] | 5.2 | copies of a token's routed inputs while experts go backward: DeepSeek-V2 of the same table |
//! | [`NF4`], [`NF4_DOUBLE`] | 0.5625, 0.516 B | blocks of 64 with fp32 scales, or 8-bit scales in blocks of 256 (arXiv:2305.14314) |
//! | [`BUCKET`] | 5e8 | DeepSpeed's default `reduce_bucket_size`, elements |
//! | [`LIVE_PARAMETERS`] | 1e9 | DeepSpeed's default `stage3_max_live_parameters`, elements |

use crate::units::GIBIBYTE;

/// What the allocator reserves beyond what is allocated, as a part of what comes and goes within a step.
pub const FRAGMENTATION: f64 = 0.17;
/// The same where experts get another number of tokens each time.
pub const FRAGMENTATION_OF_EXPERTS: f64 = 0.38;
/// Part of an accelerator's memory that the driver keeps.
pub const DRIVERS_PART: f64 = 0.0125;
/// Bytes of a CUDA context and its kernels.
pub const CONTEXT: f64 = 0.5 * GIBIBYTE;
/// Bytes of NCCL's channels, for each way in which accelerators talk.
pub const COLLECTIVES: f64 = 0.5 * GIBIBYTE;
/// Bytes that matrix libraries keep to work in.
pub const WORKSPACE: f64 = 66.0 * 1_048_576.0;
/// Copies of routed inputs that live together in the backward pass of experts: gradients before and after each exchange.
pub const EXPERT_COPIES: f64 = 5.2;
/// Bytes of a parameter in 4-bit NormalFloat with an fp32 scale for 64.
pub const NF4: f64 = 0.5 + 4.0 / 64.0;
/// Bytes with the scales in 8 bits, and an fp32 scale for 256 of them.
pub const NF4_DOUBLE: f64 = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0);
/// Bytes of a moment in 8 bits with an fp32 scale for 256 (arXiv:2110.02861).
pub const MOMENT_8_BIT: f64 = 1.0 + 4.0 / 256.0;
/// Elements of a bucket of gradients.
pub const BUCKET: f64 = 5e8;
/// Elements of parameters that are kept whole at once.
pub const LIVE_PARAMETERS: f64 = 1e9;
/// Chunks of tokens in a chunked loss (torchtune's default).
pub const LOSS_CHUNKS: f64 = 8.0;
/// Layers whose parameters are whole at once: one is worked on while the next arrives.
pub const LAYERS_GATHERED: f64 = 2.0;
