//! Decoders that mix state-space layers with a few of attention.

use super::super::config::{ConfigError, Fields};
use super::super::{Attention, Experts, FeedForward, Layer, Model, Norm, RouterBias, StateSpace};
use super::mixtures::experts;
use super::{grouped_with_bias, model, plain, together, words};

/// Most letters of a pattern: one for each layer.
const PATTERN_MAX: usize = 4096;
const PATTERN: &str = "hybrid_override_pattern";

/// Nemotron-H and Nemotron-3 (`NemotronHConfig`): a letter for each layer, `M` a state space, `*` attention, `-` dense work, `E` experts,
/// each behind a norm of its own. A mixer and the work that follows it are one [`Layer`] here.
pub(super) fn nemotron_h(fields: &Fields<'_>) -> Result<Model, ConfigError> {
    let pattern = fields.word(PATTERN)?.ok_or_else(|| fields.missing(PATTERN))?;
    let count = fields.layers()?;
    if pattern.len() as u64 != count || pattern.len() > PATTERN_MAX {
        let why = format!("there are {count} layers and {} letters", pattern.len());
        return Err(Fields::contradiction(PATTERN, "num_hidden_layers", why));
    }
    let mut layers: Vec<Layer> = Vec::new();
    for letter in pattern.chars() {
        match mixer(fields, letter)? {
            Some(attention) => {
                layers.push(Layer { attention, feed_forward: FeedForward::None, norms: 1, norm: Norm::Gain });
            }
            None => work_behind(fields, letter, &mut layers)?,
        }
    }
    let further_predictions = fields.layers_or("num_nextn_predict_layers", 0)?;
    Ok(Model { further_predictions, ..model(fields, words(fields, false)?, together(layers.into_iter()))? })
}

fn mixer(fields: &Fields<'_>, letter: char) -> Result<Option<Attention>, ConfigError> {
    match letter {
        'M' => Ok(Some(Attention::StateSpace(StateSpace {
            heads: fields.width(&["mamba_num_heads"])?,
            head_size: fields.width(&["mamba_head_dim"])?,
            groups: fields.width(&["n_groups"])?,
            state: fields.width(&["ssm_state_size"])?,
            kernel: fields.width(&["conv_kernel"])?,
        }))),
        '*' => Ok(Some(Attention::Grouped(grouped_with_bias(fields, false)?))),
        _ => Ok(None),
    }
}

/// Adds the work of this letter to the mixer before it.
fn work_behind(fields: &Fields<'_>, letter: char, layers: &mut [Layer]) -> Result<(), ConfigError> {
    let work = match letter {
        '-' => FeedForward::Dense(plain(fields.width(&["intermediate_size"])?, fields.flag_or(&["mlp_bias"], false)?)),
        'E' => FeedForward::Experts(mixture(fields)?),
        _ => return Err(fields.refused(PATTERN, "letters M, *, - and E")),
    };
    match layers.last_mut() {
        Some(layer) if layer.feed_forward == FeedForward::None => {
            layer.feed_forward = work;
            layer.norms += 1;
            Ok(())
        }
        _ => Err(fields.refused(PATTERN, "a pattern in which every - and E follows an M or *")),
    }
}

/// Squared-ReLU experts without gates; Super's and Ultra's see a narrower width (`moe_latent_size`).
fn mixture(fields: &Fields<'_>) -> Result<Experts, ConfigError> {
    let own = experts(fields, &["n_routed_experts"], fields.width(&["moe_intermediate_size"])?)?;
    let each = plain(own.each.inner, false);
    let shared_inner = fields.width_or(&["moe_shared_expert_intermediate_size"], 0)?;
    let latent = fields.optional_width(&["moe_latent_size"])?;
    Ok(Experts { each, shared_inner, latent, router_bias: RouterBias::Correction, ..own })
}
