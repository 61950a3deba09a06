//! Decoders with multi-head latent attention and mixtures of experts: DeepSeek and what followed it.

use super::super::config::{ConfigError, Fields};
use super::super::{Attention, FeedForward, LatentAttention, Layer, Model, Norm, RouterBias};
use super::mixtures::{dense_first, shared_and_corrected};
use super::{HEADS, model, words};

/// DeepSeek-V2 (`DeepseekV2Config`).
pub(super) fn deepseek(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    read(fields, RouterBias::None)
}

/// DeepSeek-V3 and R1 (`DeepseekV3Config`), Kimi K2: the load is balanced by a correction of the router.
pub(super) fn deepseek_v3(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    read(fields, RouterBias::Correction)
}

fn read(fields: &Fields<'_>, router_bias: RouterBias) -> Result<Model, ConfigError> {
    if fields.flag_or(&["attention_bias"], false)? {
        return Err(fields.refused("attention_bias", "false: no published model has biases in latent attention"));
    }
    let attention = LatentAttention {
        heads: fields.width(&HEADS)?,
        query_rank: fields.optional_width(&["q_lora_rank"])?,
        kv_rank: fields.width(&["kv_lora_rank"])?,
        nope_size: fields.width(&["qk_nope_head_dim"])?,
        rope_size: fields.width(&["qk_rope_head_dim"])?,
        value_size: fields.width(&["v_head_dim"])?,
    };
    let feed_forward = FeedForward::Experts(shared_and_corrected(fields, router_bias)?);
    let layer = Layer { attention: Attention::Latent(attention), feed_forward, norms: 2, norm: Norm::Gain };
    let further_predictions = fields.layers_or("num_nextn_predict_layers", 0)?;
    Ok(Model { further_predictions, ..model(fields, words(fields, false)?, dense_first(fields, layer)?)? })
}
