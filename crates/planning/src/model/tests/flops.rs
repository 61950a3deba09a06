//! Operations against what benchmarks report: each reports tokens a second (or seconds a step) and TFLOP/s, which must fit together.

use super::super::catalog::find;
use super::super::flops::{FlopDefinition, Mask, tokens_seen};

/// TFLOP/s of so many tokens a second.
fn teraflops(model: &str, sequence: u64, tokens: f64, definition: FlopDefinition) -> f64 {
    find(model).unwrap().training_flops(sequence, definition).get() * tokens / 1e12
}

fn check(found: f64, reported: f64, tolerance: f64) {
    assert!((found / reported - 1.0).abs() < tolerance, "{found} but {reported} is reported");
}

#[test]
fn a_token_sees_half_the_sequence_or_its_window() {
    assert_eq!(tokens_seen(8, None, Mask::Full), 8.0);
    assert_eq!(tokens_seen(8, None, Mask::Causal), 4.5);
    // 1, 2, 3, 3, 3, 3, 3, 3
    assert_eq!(tokens_seen(8, Some(3), Mask::Causal), 21.0 / 8.0);
    assert_eq!(tokens_seen(8, Some(3), Mask::Full), 3.0);
    assert_eq!(tokens_seen(8, Some(100), Mask::Causal), 4.5);
    assert_eq!(tokens_seen(0, None, Mask::Causal), 0.0);
}

/// llm-foundry, H100 BF16, 512 GPUs:
/// <https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md>.
#[test]
fn mosaics_figures_count_all_parameters() {
    check(teraflops("mpt-70b", 2048, 1007.0, FlopDefinition::AllParameters), 408.0, 0.003);
    check(teraflops("mpt-7b", 2048, 9670.0, FlopDefinition::AllParameters), 417.0, 0.003);
}

/// Narayanan 2021, table 1: 1.7B in 32 GPUs at 137 TFLOP/s each. Its own estimate of the time: 8 T P / (n X).
#[test]
fn megatrons_hardware_figures_are_four_thirds_of_the_models() {
    let model = find("gpt-175b").unwrap();
    let hardware = model.training_flops(2048, FlopDefinition::MegatronHardware);
    let full = model.forward_flops(2048, Mask::Full).total() * 3.0;
    check(hardware / full, 4.0 / 3.0, 0.003);
}

/// Megatron-Bridge counts model operations behind the causal mask, multi-token prediction among them:
/// <https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/performance-summary.md>.
#[test]
fn megatron_bridges_figures_count_half_the_scores_and_multi_token_prediction() {
    let causal = FlopDefinition::ModelCausal;
    check(teraflops("llama-3.1-405b", 8192, 1048.0, causal), 2646.0, 0.005);
    check(teraflops("llama-3-70b", 4096, 4819.0, causal), 2083.0, 0.005);
    check(teraflops("qwen3-235b-a22b", 4096, 8816.0, causal), 1306.0, 0.005);
    check(teraflops("deepseek-v3", 4096, 6288.0, causal), 1635.0, 0.005);
}

#[test]
fn components_of_a_dense_model_add_up_to_two_for_each_element() {
    let model = find("llama-3-8b").unwrap();
    let flops = model.forward_flops(8192, Mask::Full);
    let core = 4.0 * 32.0 * 4096.0 * 8192.0;
    assert_eq!(flops.core.get(), core);
    assert_eq!(flops.total().get(), 2.0 * 7_504_658_432.0 + core);
    assert_eq!(
        flops.total().get() - core,
        2.0 * f64::from(u32::try_from(model.parameters().used_in_matrices / 64).unwrap()) * 64.0
    );
    assert_eq!(flops.further_predictions.get() + flops.experts.get() + flops.router.get(), 0.0);
    assert!(!model.has_experts());
}

#[test]
fn a_mixtures_token_pays_for_the_experts_it_goes_to() {
    let model = find("mixtral-8x7b").unwrap();
    let flops = model.forward_flops(4096, Mask::Causal);
    assert_eq!(flops.experts.get(), 2.0 * 32.0 * 2.0 * 3.0 * 4096.0 * 14336.0);
    assert_eq!(flops.router.get(), 2.0 * 32.0 * 4096.0 * 8.0);
    assert!(model.has_experts());
    let predicted = find("deepseek-v3").unwrap().forward_flops(4096, Mask::Causal);
    let share = predicted.further_predictions / predicted.total();
    assert!((0.02..0.05).contains(&share), "{share}");
}
