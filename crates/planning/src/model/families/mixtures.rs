//! Decoders with mixtures of experts and grouped attention.

use super::super::config::{ConfigError, Fields};
use super::super::{
    Attention, DenseFeedForward, Embedding, Experts, FeedForward, GroupedAttention, Layer, LayerGroup, Model, Norm,
    QkNorm, RouterBias,
};
use super::decoders::qwen_windows;
use super::{
    Windows, check_groups, equal, gated, grouped, grouped_with_bias, model, seeing, together, windows, with_windows,
    words,
};

/// Gated experts of this inner width, `num_experts_per_tok` of which a token goes to, without anything shared.
pub(super) fn experts(fields: &Fields<'_>, names: &[&'static str], inner: u64) -> Result<Experts, ConfigError> {
    let count = fields.experts(names)?;
    let active = fields.experts(&["num_experts_per_tok", "num_experts_per_token"])?;
    check_active(active, count, names[0])?;
    Ok(plain_experts(count, active, inner))
}

/// A token can't go to more experts than there are.
fn check_active(active: u64, count: u64, field: &str) -> Result<(), ConfigError> {
    if active <= count {
        return Ok(());
    }
    let why = format!("a token can't go to {active} of {count} experts");
    Err(Fields::contradiction("num_experts_per_tok", field, why))
}

/// Gated experts without biases, nothing shared.
const fn plain_experts(count: u64, active: u64, inner: u64) -> Experts {
    let each = DenseFeedForward { inner, is_gated: true, has_bias: false, is_fused: false };
    let (shared_inner, has_shared_gate) = (0, false);
    Experts { count, active, each, shared_inner, has_shared_gate, router_bias: RouterBias::None, latent: None }
}

/// A layer with a mixture and two norms without biases.
const fn sparse(attention: GroupedAttention, experts: Experts) -> Layer {
    let (attention, feed_forward) = (Attention::Grouped(attention), FeedForward::Experts(experts));
    Layer { attention, feed_forward, norms: 2, norm: Norm::Gain }
}

/// Mixtral (`MixtralConfig`); Granite's mixtures (`GraniteMoeConfig`).
pub(super) fn mixtral(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let experts = experts(fields, &["num_local_experts"], fields.width(&["intermediate_size"])?)?;
    let seen = windows(fields, Windows { tokens: 0, full_every: 0, is_full_last: true })?;
    let layer = sparse(grouped_with_bias(fields, false)?, experts);
    model(fields, words(fields, fields.family() == "granitemoe")?, with_windows(layer, seen))
}

/// Phi-3.5-MoE (`PhimoeConfig`): norms and attention have biases, and the head may have one.
pub(super) fn phimoe(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let experts = experts(fields, &["num_local_experts"], fields.width(&["intermediate_size"])?)?;
    let layer = Layer { norm: Norm::GainAndBias, ..sparse(grouped_with_bias(fields, false)?, experts) };
    let has_head_bias = fields.flag_or(&["lm_head_bias"], false)?;
    let seen = windows(fields, Windows { tokens: 0, full_every: 0, is_full_last: true })?;
    model(fields, Embedding { has_head_bias, ..words(fields, false)? }, with_windows(layer, seen))
}

/// DBRX (`DbrxConfig`): its sizes are inside `attn_config` and `ffn_config`; queries, keys and values are one matrix.
pub(super) fn dbrx(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let (inside, missing) = (fields.inside("ffn_config")?, || fields.missing("ffn_config"));
    let work = inside.ok_or_else(missing)?;
    let count = work.experts(&["moe_num_experts"])?;
    let active = work.experts(&["moe_top_k"])?;
    check_active(active, count, "moe_num_experts")?;
    let all = grouped(fields)?;
    let kv_heads = match fields.inside("attn_config")? {
        Some(attention) => attention.optional_width(&["kv_n_heads"])?.unwrap_or(all.heads),
        None => all.heads,
    };
    check_groups(all.heads, kv_heads)?;
    let experts = plain_experts(count, active, work.width(&["ffn_hidden_size"])?);
    let layer = sparse(GroupedAttention { kv_heads, is_fused: true, ..all }, experts);
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// MiniMax-M2 (`MiniMaxM2Config`): norms of all queries and keys, corrected routing.
pub(super) fn minimax_m2(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let own = experts(fields, &["num_local_experts"], fields.width(&["intermediate_size"])?)?;
    let qk_norm = if fields.flag_or(&["use_qk_norm"], true)? { QkNorm::Full } else { QkNorm::None };
    let attention = GroupedAttention { qk_norm, ..grouped(fields)? };
    let layer = sparse(attention, Experts { router_bias: RouterBias::Correction, ..own });
    model(fields, words(fields, false)?, equal(fields, layer)?)
}

/// DeepSeek-MoE 16B (`DeepseekConfig`, beside its weights): first layers dense, experts that all tokens go to.
pub(super) fn deepseek(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let layer = sparse(grouped_with_bias(fields, false)?, shared_and_corrected(fields, RouterBias::None)?);
    model(fields, words(fields, false)?, dense_first(fields, layer)?)
}

/// Grok-1 (xai-org/grok-1, `model.py`): four norms, words tied.
pub(super) fn grok(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let experts = experts(fields, &["num_experts"], fields.width(&["intermediate_size"])?)?;
    let layer = Layer { norms: 4, ..sparse(grouped(fields)?, experts) };
    model(fields, words(fields, true)?, equal(fields, layer)?)
}

/// OLMoE (`OlmoeConfig`): norms of all queries and keys.
pub(super) fn olmoe(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let experts = experts(fields, &["num_experts"], fields.width(&["intermediate_size"])?)?;
    let attention = GroupedAttention { qk_norm: QkNorm::Full, ..grouped_with_bias(fields, false)? };
    model(fields, words(fields, false)?, equal(fields, sparse(attention, experts))?)
}

/// Qwen1.5-MoE and Qwen2-MoE (`Qwen2MoeConfig`): biases of queries, keys and values; a shared expert behind a switch.
pub(super) fn qwen2_moe(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { has_qkv_bias: true, ..grouped(fields)? };
    let shared_inner = fields.width(&["shared_expert_intermediate_size"])?;
    let own = experts(fields, &["num_experts"], fields.width(&["moe_intermediate_size"])?)?;
    qwen(fields, attention, Experts { shared_inner, has_shared_gate: true, ..own })
}

/// Qwen3-MoE (`Qwen3MoeConfig`): norms of queries and keys, nothing shared.
pub(super) fn qwen3_moe(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { qk_norm: QkNorm::PerHead, ..grouped_with_bias(fields, false)? };
    let experts = experts(fields, &["num_experts"], fields.width(&["moe_intermediate_size"])?)?;
    qwen(fields, attention, experts)
}

/// Every `decoder_sparse_step`th layer is a mixture, those in `mlp_only_layers` aren't.
fn qwen(fields: &Fields<'_>, attention: GroupedAttention, experts: Experts) -> Result<Model, ConfigError> {
    let step = fields.layers_or("decoder_sparse_step", 1)?.max(1);
    let dense_places = fields.places("mlp_only_layers")?;
    let sparse = sparse(attention, experts);
    let is_dense = |place: u64| dense_places.contains(&place) || !(place + 1).is_multiple_of(step);
    let has_dense = (0..fields.layers()?).any(is_dense);
    let dense = if has_dense { FeedForward::Dense(gated(fields)?) } else { FeedForward::None };
    let layers = qwen_windows(fields)?.into_iter().zip(0..).map(|(window, place)| {
        let layer = if is_dense(place) { Layer { feed_forward: dense, ..sparse } } else { sparse };
        seeing(layer, window)
    });
    model(fields, words(fields, false)?, together(layers))
}

/// gpt-oss (`GptOssConfig`): biases everywhere, sinks, every other layer sees 128 tokens.
pub(super) fn gpt_oss(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let attention = GroupedAttention { has_sinks: true, ..grouped_with_bias(fields, true)? };
    let own = experts(fields, &["num_local_experts"], fields.width(&["intermediate_size"])?)?;
    let each = DenseFeedForward { has_bias: true, ..own.each };
    let layer = sparse(attention, Experts { each, router_bias: RouterBias::Learned, ..own });
    let seen = windows(fields, Windows { tokens: 128, full_every: 2, is_full_last: true })?;
    model(fields, words(fields, false)?, with_windows(layer, seen))
}

/// GLM-4.5 (`Glm4MoeConfig`): first layers dense, a shared expert, corrected routing, biases of queries, keys and values.
pub(super) fn glm4_moe(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let has_qk_norm = fields.flag_or(&["use_qk_norm"], false)?;
    let qk_norm = if has_qk_norm { QkNorm::PerHead } else { QkNorm::None };
    let has_qkv_bias = fields.flag_or(&["attention_bias"], false)?;
    let attention = GroupedAttention { has_qkv_bias, qk_norm, ..grouped(fields)? };
    let layer = sparse(attention, shared_and_corrected(fields, RouterBias::Correction)?);
    let layers = dense_first(fields, layer)?;
    let further_predictions = fields.layers_or("num_nextn_predict_layers", 0)?;
    Ok(Model { further_predictions, ..model(fields, words(fields, false)?, layers)? })
}

/// DeepSeek's mixture: routed experts of `moe_intermediate_size`, and `n_shared_experts` of the same size that all tokens go to.
pub(super) fn shared_and_corrected(fields: &Fields<'_>, router_bias: RouterBias) -> Result<Experts, ConfigError> {
    let inner = fields.width(&["moe_intermediate_size"])?;
    let shared_inner = inner * fields.width_or(&["n_shared_experts"], 0)?;
    let own = experts(fields, &["n_routed_experts", "num_experts"], inner)?;
    Ok(Experts { shared_inner, router_bias, ..own })
}

/// The first `first_k_dense_replace` layers are dense.
pub(super) fn dense_first(fields: &Fields<'_>, sparse: Layer) -> Result<Vec<LayerGroup>, ConfigError> {
    let count = fields.layers()?;
    let first = fields.layers_or("first_k_dense_replace", 0)?;
    if first > count {
        let why = format!("{first} of {count} layers can't be dense");
        return Err(Fields::contradiction("first_k_dense_replace", "num_hidden_layers", why));
    }
    let mut groups = Vec::with_capacity(2);
    if first > 0 {
        let layer = Layer { feed_forward: FeedForward::Dense(gated(fields)?), ..sparse };
        groups.push(LayerGroup { count: first, layer });
    }
    if first < count {
        groups.push(LayerGroup { count: count - first, layer: sparse });
    }
    Ok(groups)
}

/// Llama 4 (`Llama4TextConfig`): one expert and a shared one; three of four layers see their chunk of 8192 tokens.
pub(super) fn llama4(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let inner = fields.width(&["intermediate_size"])?;
    let own = experts(fields, &["num_local_experts"], inner)?;
    let sparse = sparse(grouped_with_bias(fields, false)?, Experts { shared_inner: inner, ..own });
    let step = fields.layers_or("interleave_moe_layer_step", 1)?.max(1);
    let dense_inner = fields.width_or(&["intermediate_size_mlp"], inner)?;
    let dense = FeedForward::Dense(DenseFeedForward { inner: dense_inner, ..own.each });
    let seen = windows(fields, Windows { tokens: 8192, full_every: 4, is_full_last: true })?;
    let layers = seen.into_iter().zip(1..).map(|(window, nth): (_, u64)| {
        let layer = if nth.is_multiple_of(step) { sparse } else { Layer { feed_forward: dense, ..sparse } };
        seeing(layer, window)
    });
    model(fields, words(fields, false)?, together(layers))
}
