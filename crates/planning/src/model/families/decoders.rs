//! Decoders of Llama's kind: rotary positions, a norm before each work, no positions stored.

use super::super::config::{ConfigError, Fields};
use super::super::{DenseFeedForward, GroupedAttention, Layer, Model, Norm, QkNorm};
use super::{
    NO_WINDOW, Windows, equal, gated, grouped, grouped_with_bias, layer, model, plain, windows, with_windows, words,
};

/// Llama 1 to 3.3, CodeLlama, Yi, TinyLlama, SmolLM (`LlamaConfig`); Granite, SmolLM3.
pub(super) fn llama(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let work = DenseFeedForward { has_bias: fields.flag_or(&["mlp_bias"], false)?, ..gated(fields)? };
    let layer = layer(grouped_with_bias(fields, false)?, work, Norm::Gain);
    let is_tied = matches!(fields.family(), "granite" | "smollm3");
    model(fields, words(fields, is_tied)?, equal(fields, layer)?)
}

/// Mistral (`MistralConfig`): every layer has the window, 4096 unless it is null.
pub(super) fn mistral(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let seen = windows(fields, Windows { tokens: 4096, full_every: 0, is_full_last: true })?;
    let layer = layer(grouped(fields)?, gated(fields)?, Norm::Gain);
    model(fields, words(fields, false)?, with_windows(layer, seen))
}

/// Qwen2 and Qwen2.5 (`Qwen2Config`): queries, keys and values have biases.
pub(super) fn qwen2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { has_qkv_bias: true, ..grouped(fields)? };
    let layer = layer(attention, gated(fields)?, Norm::Gain);
    model(fields, words(fields, false)?, with_windows(layer, qwen_windows(fields)?))
}

/// Qwen3 (`Qwen3Config`): norms of queries and keys instead.
pub(super) fn qwen3(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { qk_norm: QkNorm::PerHead, ..grouped_with_bias(fields, false)? };
    let layer = layer(attention, gated(fields)?, Norm::Gain);
    model(fields, words(fields, false)?, with_windows(layer, qwen_windows(fields)?))
}

/// Only with `use_sliding_window` have layers a window: those from `max_window_layers` (28) on.
pub(super) fn qwen_windows(fields: &Fields<'_>) -> Result<Vec<Option<u64>>, ConfigError> {
    if !fields.flag_or(&["use_sliding_window"], false)? {
        return Ok(vec![None; usize::try_from(fields.layers()?).unwrap_or(0)]);
    }
    let first = fields.layers_or("max_window_layers", 28)?;
    let all = windows(fields, Windows { tokens: 4096, full_every: 0, is_full_last: true })?;
    Ok(all.into_iter().zip(0..).map(|(window, place)| window.filter(|_| place >= first)).collect())
}

/// Phi-3 and Phi-4 (`Phi3Config`): queries, keys and values are one matrix, gate and up another.
pub(super) fn phi3(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { is_fused: true, ..grouped(fields)? };
    let work = DenseFeedForward { is_fused: true, ..gated(fields)? };
    let seen = windows(fields, Windows { tokens: 0, full_every: 0, is_full_last: true })?;
    model(fields, words(fields, false)?, with_windows(layer(attention, work, Norm::Gain), seen))
}

/// OLMo 1 (`OlmoConfig`): its norms learn nothing.
pub(super) fn olmo(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let layer = layer(grouped_with_bias(fields, false)?, gated(fields)?, Norm::Plain);
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// OLMo 2 (`Olmo2Config`): norms behind each work, and of all queries and keys.
pub(super) fn olmo2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    model(fields, words(fields, false)?, equal(fields, olmo2_layer(fields)?)?)
}

/// OLMo 3 (`Olmo3Config`): three of four layers see 4096 tokens.
pub(super) fn olmo3(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let seen = windows(fields, Windows { tokens: 4096, full_every: 4, is_full_last: true })?;
    model(fields, words(fields, false)?, with_windows(olmo2_layer(fields)?, seen))
}

fn olmo2_layer(fields: &Fields<'_>) -> Result<Layer, ConfigError> {
    let attention = GroupedAttention { qk_norm: QkNorm::Full, ..grouped_with_bias(fields, false)? };
    Ok(layer(attention, gated(fields)?, Norm::Gain))
}

/// Gemma 1 (`GemmaConfig`).
pub(super) fn gemma(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    model(fields, words(fields, true)?, equal(fields, gemma_layer(fields, 2)?)?)
}

/// Gemma 2 (`Gemma2Config`): norms before and behind each work; every other layer, from the first, sees 4096 tokens.
pub(super) fn gemma2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let seen = windows(fields, Windows { tokens: 4096, full_every: 2, is_full_last: true })?;
    model(fields, words(fields, true)?, with_windows(gemma_layer(fields, 4)?, seen))
}

/// Gemma 3 (`Gemma3TextConfig`): five of six layers see 4096 tokens; norms of queries and keys.
pub(super) fn gemma3(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let full_every = fields.layers_or("sliding_window_pattern", 6)?;
    let seen = windows(fields, Windows { tokens: 4096, full_every, is_full_last: true })?;
    let mut layer = gemma_layer(fields, 4)?;
    if let super::super::Attention::Grouped(attention) = &mut layer.attention {
        attention.qk_norm = QkNorm::PerHead;
    }
    model(fields, words(fields, true)?, with_windows(layer, seen))
}

/// A head has 256 elements if nothing says so, whatever the width.
fn gemma_layer(fields: &Fields<'_>, norms: u64) -> Result<Layer, ConfigError> {
    let head_size = fields.optional_width(&["head_dim"])?.unwrap_or(256);
    let attention = super::grouped_of(fields, head_size)?;
    let has_bias = fields.flag_or(&["attention_bias"], false)?;
    let attention = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..attention };
    Ok(Layer { norms, ..layer(attention, gated(fields)?, Norm::Gain) })
}

/// GLM-4 0414 (`Glm4Config`): four norms.
pub(super) fn glm4(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    model(fields, words(fields, false)?, equal(fields, Layer { norms: 4, ..glm_layer(fields)? })?)
}

/// GLM-4 9B (`GlmConfig`).
pub(super) fn glm(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    model(fields, words(fields, false)?, equal(fields, glm_layer(fields)?)?)
}

/// Queries, keys and values have biases; gate and up are one matrix.
fn glm_layer(fields: &Fields<'_>) -> Result<Layer, ConfigError> {
    let has_qkv_bias = fields.flag_or(&["attention_bias"], false)?;
    let attention = GroupedAttention { has_qkv_bias, ..grouped(fields)? };
    Ok(layer(attention, DenseFeedForward { is_fused: true, ..gated(fields)? }, Norm::Gain))
}

/// Seed-OSS (`SeedOssConfig`): biases of queries, keys and values, and of the output apart.
pub(super) fn seed_oss(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_qkv_bias = fields.flag_or(&["attention_bias"], true)?;
    let has_output_bias = fields.flag_or(&["attention_out_bias"], false)?;
    let attention = GroupedAttention { has_qkv_bias, has_output_bias, ..grouped(fields)? };
    let work = DenseFeedForward { has_bias: fields.flag_or(&["mlp_bias"], false)?, ..gated(fields)? };
    model(fields, words(fields, false)?, equal(fields, layer(attention, work, Norm::Gain))?)
}

/// InternLM 1 (`InternLMConfig`, beside its weights): attention has biases.
pub(super) fn internlm(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_bias = fields.flag_or(&["bias"], true)?;
    let attention = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..grouped(fields)? };
    model(fields, words(fields, false)?, equal(fields, layer(attention, gated(fields)?, Norm::Gain))?)
}

/// InternLM 2 (`InternLM2Config`, beside its weights), Baichuan: queries, keys and values are one matrix.
pub(super) fn internlm2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_bias = fields.flag_or(&["bias"], false)?;
    let attention =
        GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, is_fused: true, ..grouped(fields)? };
    model(fields, words(fields, false)?, equal(fields, layer(attention, gated(fields)?, Norm::Gain))?)
}

/// Nemotron-3 8B and 22B, Nemotron-4 and Minitron (`NemotronConfig`): squared ReLU without a gate, norms with biases (LayerNorm1P).
pub(super) fn nemotron(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let work = plain(fields.width(&["intermediate_size"])?, fields.flag_or(&["mlp_bias"], false)?);
    let layer = layer(grouped_with_bias(fields, false)?, work, Norm::GainAndBias);
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// StarCoder2 (`Starcoder2Config`): biases everywhere, no gate.
pub(super) fn starcoder2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_bias = fields.flag_or(&["use_bias"], true)?;
    let attention = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..grouped(fields)? };
    let work = plain(fields.width(&["intermediate_size"])?, has_bias);
    let seen = windows(fields, Windows { tokens: 0, full_every: 0, is_full_last: true })?;
    model(fields, words(fields, true)?, with_windows(layer(attention, work, Norm::GainAndBias), seen))
}

/// StableLM 3B and 2 (`StableLmConfig`): norms with biases, one where attention and work are side by side; 12B has norms of each head.
pub(super) fn stablelm(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_qkv_bias = fields.flag_or(&["use_qkv_bias"], false)?;
    let qk_norm = norm_of_heads(fields, "qk_layernorm")?;
    let attention = GroupedAttention { has_qkv_bias, qk_norm, ..grouped(fields)? };
    let norms = if fields.flag_or(&["use_parallel_residual"], false)? { 1 } else { 2 };
    let layer = Layer { norms, ..layer(attention, gated(fields)?, Norm::GainAndBias) };
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// Each head has a gain of its own, which is as many as one gain of all heads' width.
fn norm_of_heads(fields: &Fields<'_>, name: &'static str) -> Result<QkNorm, ConfigError> {
    Ok(if fields.flag_or(&[name], false)? { QkNorm::Full } else { QkNorm::None })
}

/// Command R (`CohereConfig`): attention and work side by side behind one norm without a bias; R+ has norms of each head.
pub(super) fn cohere(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    read_cohere(fields, NO_WINDOW)
}

/// Command R7B and A (`Cohere2Config`): three of four layers see 4096 tokens.
pub(super) fn cohere2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let full_every = fields.layers_or("sliding_window_pattern", 4)?;
    read_cohere(fields, Windows { tokens: 4096, full_every, is_full_last: true })
}

fn read_cohere(fields: &Fields<'_>, otherwise: Windows) -> Result<Model, ConfigError> {
    let qk_norm = norm_of_heads(fields, "use_qk_norm")?;
    let attention = GroupedAttention { qk_norm, ..grouped_with_bias(fields, false)? };
    let layer = Layer { norms: 1, ..layer(attention, gated(fields)?, Norm::Gain) };
    model(fields, words(fields, true)?, with_windows(layer, windows(fields, otherwise)?))
}
