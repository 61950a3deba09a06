//! Counts of models whose tensors are published, component by component.

use std::num::NonZeroU64;

use super::super::catalog::find;
use super::super::config::read;
use super::super::lora::LoraError;
use super::super::{Model, Norm};
use crate::units::real;
use crate::workload::{Lora, LoraForm, LoraTarget};

fn llama_3_2_3b() -> Model {
    let config = r#"{"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": true, "head_dim": 128}"#;
    read("llama-3.2-3b", config).unwrap()
}

fn deepseek_v3() -> Model {
    let config = r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 129280, "num_nextn_predict_layers": 1}"#;
    read("deepseek-v3", config).unwrap()
}

fn falcon_40b() -> Model {
    let config = r#"{"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "vocab_size": 65024, "new_decoder_architecture": true, "bias": false}"#;
    read("falcon-40b", config).unwrap()
}

fn lora(rank: u64, targets: &[LoraTarget], form: LoraForm) -> Lora {
    Lora { rank, targets: targets.to_vec(), form }
}

#[test]
fn a_dense_models_components_add_up_to_what_is_published() {
    let count = llama_3_2_3b().parameters();
    assert_eq!((count.total, count.active), (3_212_749_824, 3_212_749_824));
    assert_eq!((count.words, count.embedding, count.head, count.norms), (394_002_432, 394_002_432, 0, 3072));
    assert_eq!(count.total, count.embedding + count.layers + count.head + count.norms);
    assert_eq!(count.used_in_matrices, count.total - 28 * 2 * 3072 - 3072);
}

#[test]
fn deepseek_v3s_published_count_includes_the_routers_corrections() {
    let count = deepseek_v3().parameters();
    assert_eq!((count.total, count.corrections), (671_026_404_352, 14_848));
    assert_eq!(count.total + count.corrections, 671_026_419_200);
    assert_eq!(count.active / 100_000_000, 375);
    // https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md states about 11.5B for the module of
    // multi-token prediction alone.
    assert_eq!(count.further_predictions / 100_000_000, 116);
}

/// The same of Kimi K2: 60 layers of 384 experts.
#[test]
fn kimi_k2s_published_count_includes_the_routers_corrections() {
    let count = find("kimi-k2").unwrap().parameters();
    assert_eq!((count.corrections, count.total + count.corrections), (23_040, 1_026_408_232_448));
}

#[test]
fn experts_are_counted_apart_from_the_rest_of_their_layer() {
    let model = deepseek_v3();
    let layer = model.layers[1].layer.parameters(model.hidden);
    assert_eq!(layer.expert, 3 * 7168 * 2048);
    assert_eq!(layer.experts, 256 * layer.expert);
    assert_eq!(layer.used, layer.without_experts() + 8 * layer.expert);
    assert_eq!(layer.total(), layer.attention + layer.feed_forward + layer.router + layer.norms + layer.experts);
    assert_eq!(layer.norms, 2 * 7168 + 1536 + 512);
}

#[test]
fn an_opt_has_two_positions_more_than_it_says() {
    let config = r#"{"model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096}"#;
    let model = read("opt-6.7b", config).unwrap();
    assert_eq!(model.parameters().total, 6_658_473_984);
    assert_eq!((model.embedding.positions, model.final_norm), (2050, Some(Norm::GainAndBias)));
}

#[test]
fn the_longest_sequence_is_the_one_named_or_the_one_that_stretched_positions_reach() {
    let context = |fields: &str| {
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 512 {fields}}}"#
        );
        read("small", &config).unwrap().context
    };
    assert_eq!((context(""), context(r#", "max_position_embeddings": 2048"#)), (None, Some(2048)));
    let yarn = r#""rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}"#;
    assert_eq!(context(&format!(r#", "max_position_embeddings": 32768, {yarn}"#)), Some(131_072));
    assert_eq!(context(&yarn.replace("\"rope", ", \"rope").replace("32768", "-1")), None);
}

#[test]
fn every_other_layer_of_gemma_2_sees_a_window() {
    let config = r#"{"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000}"#;
    let model = read("gemma-2-2b", config).unwrap();
    assert_eq!(model.parameters().total, 2_614_341_888);
    let windows: Vec<bool> = model.layers.iter().map(|group| format!("{group:?}").contains("Some(4096)")).collect();
    assert_eq!(windows, [true, false].repeat(13));
    let kinds: Vec<u64> = model.kinds().iter().map(|kind| kind.count).collect();
    assert_eq!(kinds, [13, 13]);
}

/// Counts of PEFT's method comparison (MetaMathQA) and of litgpt's resource tables.
#[test]
fn adapters_train_what_peft_and_litgpt_print() {
    let qv = [LoraTarget::Query, LoraTarget::Value];
    let work = [LoraTarget::Down, LoraTarget::Gate, LoraTarget::Up];
    let trained = |lora: Lora| llama_3_2_3b().lora_parameters(&lora).unwrap();
    assert_eq!(trained(lora(32, &qv, LoraForm::Plain)), 9_175_040);
    assert_eq!(trained(lora(64, &qv, LoraForm::Plain)), 18_350_080);
    assert_eq!(trained(lora(10, &work, LoraForm::Plain)), 9_461_760);
    assert_eq!(trained(lora(32, &qv, LoraForm::WeightDecomposed)), 9_289_728);
    assert_eq!(trained(lora(32, &qv, LoraForm::FrozenDown)), 3_670_016);
    assert_eq!(trained(lora(32, &qv, LoraForm::FrozenUp)), 5_505_024);
    let blocks = NonZeroU64::new(2).unwrap();
    assert_eq!(trained(lora(14, &work, LoraForm::BlockDiagonal { blocks })), 8_429_568);
    assert_eq!(falcon_40b().lora_parameters(&lora(8, &qv, LoraForm::Plain)), Ok(12_042_240));
}

#[test]
fn a_fused_matrix_has_one_adapter() {
    let fused = lora(8, &[LoraTarget::QueryKeyValue], LoraForm::Plain);
    assert_eq!(falcon_40b().lora_parameters(&fused), Ok(60 * 8 * (8192 + 8192 + 2 * 512)));
    let (model, target) = ("llama-3.2-3b".to_owned(), LoraTarget::QueryKeyValue);
    assert_eq!(llama_3_2_3b().lora_parameters(&fused), Err(LoraError::NotThere { model, target }));
    assert!(falcon_40b().all_linear().contains(&LoraTarget::QueryKeyValue));
    assert!(!falcon_40b().all_linear().contains(&LoraTarget::Gate));
    assert_eq!(llama_3_2_3b().all_linear().len(), 7);
}

#[test]
fn impossible_adapters_are_refused() {
    let qv = [LoraTarget::Query, LoraTarget::Value];
    assert_eq!(llama_3_2_3b().lora_parameters(&lora(0, &qv, LoraForm::Plain)), Err(LoraError::Rank { rank: 0 }));
    let most = lora(u64::MAX, &qv, LoraForm::Plain);
    assert_eq!(llama_3_2_3b().lora_parameters(&most), Err(LoraError::Rank { rank: u64::MAX }));
    assert_eq!(llama_3_2_3b().lora_parameters(&lora(8, &[], LoraForm::Plain)), Err(LoraError::NoTarget));
}

/// Where no exact count is published: the sizes in the names and on the model cards, in all and for each token.
#[test]
fn mixtures_and_hybrids_come_to_what_their_names_say() {
    for (name, billions, active) in [
        ("nemotron-h-8b", 8.1, 8.1),
        ("nemotron-3-super", 120.7, 12.8),
        ("nemotron-3-ultra", 549.3, 56.1),
        // 230B A10B: without words and head 9.8.
        ("minimax-m2", 228.7, 11.0),
        ("llama-4-maverick", 400.7, 17.2),
        ("glm-4.5", 352.8, 33.6),
    ] {
        let count = find(name).unwrap().parameters();
        let rounded = [count.total, count.active].map(|count| (real(count) / 1e8).round() / 10.0);
        assert_eq!(rounded, [billions, active], "{name}");
    }
}
