//! Models and clusters for tests.

use crate::hardware::{Accelerator, Cluster, Fabric, Generation, Peaks};
use crate::model::{Model, config};
use crate::units::{Bandwidth, FlopRate, Seconds, Volume};
use crate::workload::{Optimizer, Precision, Task, Workload};

/// Llama 3 70B (arXiv:2407.21783, table 3) with so many layers.
pub(crate) fn llama_70b(layers: u64) -> Model {
    let text = format!(
        r#"{{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": {layers},
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false}}"#
    );
    config::read("llama-3-70b", &text).unwrap()
}

/// Llama 3.2 3B: 28 layers, tied head.
pub(crate) fn llama_3b() -> Model {
    let text = r#"{"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": true}"#;
    config::read("llama-3.2-3b", text).unwrap()
}

/// DeepSeek-V2 (arXiv:2405.04434) with so many layers, the first of which is dense.
pub(crate) fn deepseek_v2(layers: u64) -> Model {
    let text = format!(
        r#"{{"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_hidden_layers": {layers}, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 160,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400, "tie_word_embeddings": false}}"#
    );
    config::read("deepseek-v2", &text).unwrap()
}

/// Pre-training in bf16 with AdamW.
pub(crate) fn pretraining(model: Model, sequence: u64, global_batch: u64) -> Workload {
    Workload {
        model,
        task: Task::Pretrain,
        sequence,
        global_batch,
        precision: Precision::Bf16,
        optimizer: Optimizer::AdamW,
    }
}

/// So many accelerators of 80 GB in nodes of 8.
pub(crate) fn cluster(accelerators: u32) -> Cluster {
    let accelerator = Accelerator {
        name: "H100-SXM5-80GB".into(),
        generation: Generation::Hopper,
        memory: Volume::from_gib(80.0),
        memory_bandwidth: Bandwidth::new(3.35e12),
        fp32: FlopRate::new(67e12),
        peaks: Peaks { bf16: Some(FlopRate::new(989e12)), ..Peaks::default() },
        link: Bandwidth::new(450e9),
        link_domain: 8,
        host_link: Bandwidth::new(64e9),
        watts: 700.0,
    };
    let fabric = Fabric { per_accelerator: Bandwidth::new(50e9), latency: Seconds::new(5e-6) };
    Cluster { accelerator, accelerators, per_node: 8, fabric }
}
