//! Decoders of GPT's kind: norms with biases, no gate, often learned positions.

use super::super::config::{ConfigError, Fields};
use super::super::{Embedding, GroupedAttention, Layer, Model, Norm};
use super::{
    Windows, check_groups, equal, grouped, head_size, hidden, layer, model, plain, windows, with_windows, words,
};

/// Attention whose projections all have biases.
const fn biased(attention: GroupedAttention) -> GroupedAttention {
    GroupedAttention { has_qkv_bias: true, has_output_bias: true, ..attention }
}

/// Names of the inner width; a family's default is 4h.
fn inner(fields: &Fields<'_>) -> Result<u64, ConfigError> {
    let four = 4 * hidden(fields)?;
    fields.width_or(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"], four)
}

/// GPT-2 (`GPT2Config`), and GPT-3, whose shape it shares; Megatron-LM's GPT with its padded vocabulary.
pub(super) fn gpt2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let positions = fields.rows_or(&["n_positions", "max_position_embeddings"], 1024)?;
    let embedding = Embedding { positions, ..words(fields, true)? };
    let attention = GroupedAttention { is_fused: true, ..biased(grouped(fields)?) };
    let layer = layer(attention, plain(inner(fields)?, true), Norm::GainAndBias);
    model(fields, embedding, equal(fields, layer)?)
}

/// StarCoder 1 (`GPTBigCodeConfig`): the same with one head of keys and values.
pub(super) fn gpt_bigcode(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let positions = fields.rows_or(&["n_positions"], 1024)?;
    let embedding = Embedding { positions, ..words(fields, true)? };
    let all = grouped(fields)?;
    let kv_heads = if fields.flag_or(&["multi_query"], true)? { 1 } else { all.heads };
    let attention = GroupedAttention { kv_heads, is_fused: true, ..biased(all) };
    model(fields, embedding, equal(fields, layer(attention, plain(inner(fields)?, true), Norm::GainAndBias))?)
}

/// GPT-NeoX, Pythia, StableLM alpha (`GPTNeoXConfig`): rotary positions, an own head.
pub(super) fn gpt_neox(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_bias = fields.flag_or(&["attention_bias"], true)?;
    let plain_attention = GroupedAttention { is_fused: true, ..grouped(fields)? };
    let attention = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..plain_attention };
    let layer = layer(attention, plain(inner(fields)?, true), Norm::GainAndBias);
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// GPT-Neo (`GPTNeoConfig`): queries, keys and values have no biases; every other layer sees 256 tokens.
pub(super) fn gpt_neo(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let positions = fields.rows_or(&["max_position_embeddings"], 2048)?;
    let embedding = Embedding { positions, ..words(fields, true)? };
    let attention = GroupedAttention { has_output_bias: true, ..grouped(fields)? };
    let layer = layer(attention, plain(inner(fields)?, true), Norm::GainAndBias);
    let tokens = fields.rows_or(&["window_size"], 256)?;
    let seen = windows(fields, Windows { tokens, full_every: 2, is_full_last: false })?;
    model(fields, embedding, with_windows(layer, seen))
}

/// GPT-J (`GPTJConfig`), CodeGen: one norm before both works; only the work and the head have biases.
pub(super) fn gptj(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let embedding = Embedding { has_head_bias: true, ..words(fields, false)? };
    let layer = Layer { norms: 1, ..layer(grouped(fields)?, plain(inner(fields)?, true), Norm::GainAndBias) };
    model(fields, embedding, equal(fields, layer)?)
}

/// Phi 1, 1.5 and 2 (`PhiConfig`): one norm before both works; biases everywhere, at the head too.
pub(super) fn phi(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    if fields.flag_or(&["qk_layernorm"], false)? {
        return Err(fields.refused("qk_layernorm", "false: no published Phi has norms of its queries"));
    }
    let embedding = Embedding { has_head_bias: true, ..words(fields, false)? };
    let layer = Layer { norms: 1, ..layer(biased(grouped(fields)?), plain(inner(fields)?, true), Norm::GainAndBias) };
    model(fields, embedding, equal(fields, layer)?)
}

/// OPT (`OPTConfig`): two positions more than it says.
pub(super) fn opt(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let width = hidden(fields)?;
    if fields.width_or(&["word_embed_proj_dim"], width)? != width {
        return Err(fields.refused("word_embed_proj_dim", "`hidden_size`: OPT-350M's projections are not supported"));
    }
    let positions = fields.rows_or(&["max_position_embeddings"], 2048)? + 2;
    let embedding = Embedding { positions, ..words(fields, true)? };
    let has_bias = fields.flag_or(&["enable_bias"], true)?;
    let attention = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..grouped(fields)? };
    let layer = layer(attention, plain(inner(fields)?, has_bias), Norm::GainAndBias);
    let mut model = model(fields, embedding, equal(fields, layer)?)?;
    if !fields.flag_or(&["do_layer_norm_before"], true)? {
        model.final_norm = None;
    }
    Ok(model)
}

/// BLOOM (`BloomConfig`): positions as biases of attention (ALiBi), a norm behind the embedding.
pub(super) fn bloom(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let embedding = Embedding { norm: Some(Norm::GainAndBias), ..words(fields, true)? };
    let attention = GroupedAttention { is_fused: true, ..biased(grouped(fields)?) };
    let layer = layer(attention, plain(4 * hidden(fields)?, true), Norm::GainAndBias);
    model(fields, embedding, equal(fields, layer)?)
}

/// Falcon (`FalconConfig`): 7B has one head of keys and values and one norm, 40B and 180B groups and two norms, RW none of that.
pub(super) fn falcon(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let all = grouped(fields)?;
    let is_new = fields.flag_or(&["new_decoder_architecture"], false)?;
    let kv_heads = match (is_new, fields.flag_or(&["multi_query"], true)?) {
        (true, _) => fields.optional_width(&["num_kv_heads", "n_head_kv"])?.unwrap_or(all.heads),
        (false, true) => 1,
        (false, false) => all.heads,
    };
    check_groups(all.heads, kv_heads)?;
    let has_bias = fields.flag_or(&["bias"], false)?;
    let biases = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..all };
    let attention = GroupedAttention { kv_heads, is_fused: true, ..biases };
    let is_parallel = fields.flag_or(&["parallel_attn"], true)?;
    let norms = match (is_new, is_parallel) {
        (true, _) => fields.width_or(&["num_ln_in_parallel_attn"], 2)?,
        (false, true) => 1,
        (false, false) => 2,
    };
    let layer = Layer { norms, ..layer(attention, plain(inner(fields)?, has_bias), Norm::GainAndBias) };
    model(fields, words(fields, true)?, equal(fields, layer)?)
}

/// MPT (`MptConfig`; llm-foundry's `MPTConfig`): without `no_bias` everything has biases, without ALiBi positions are learned.
pub(super) fn mpt(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_bias = !fields.flag_or(&["no_bias"], true)?;
    let norm = if has_bias { Norm::GainAndBias } else { Norm::Gain };
    let heads = fields.width(&["n_heads", "num_attention_heads"])?;
    let inside = fields.inside("attn_config")?;
    let (has_alibi, kv_heads) = match &inside {
        None => (true, heads),
        Some(inside) => {
            let one = inside.word("attn_type")? == Some("multiquery_attention");
            let default = if one { 1 } else { heads };
            (inside.flag_or(&["alibi"], true)?, inside.optional_width(&["kv_n_heads"])?.unwrap_or(default))
        }
    };
    check_groups(heads, kv_heads)?;
    let biases = GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..grouped(fields)? };
    let head_size = head_size(hidden(fields)?, heads)?;
    let attention = GroupedAttention { heads, kv_heads, head_size, is_fused: true, ..biases };
    let inner = fields.width_or(&["expansion_ratio"], 4)? * hidden(fields)?;
    let positions = if has_alibi { 0 } else { fields.rows_or(&["max_seq_len"], 2048)? };
    let embedding = Embedding { positions, ..words(fields, true)? };
    model(fields, embedding, equal(fields, layer(attention, plain(inner, has_bias), norm))?)
}
