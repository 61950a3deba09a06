//! How each family's `config.json` is read. A family is one function; what they share is here.
//!
//! Defaults are those of the family's configuration class in huggingface/transformers (`configuration_*.py`), shapes those of its
//! `modeling_*.py`; where a family isn't there, those of the code beside its weights.

mod decoders;
mod gpt;
mod hybrid;
mod latent;
mod mixtures;

use super::config::{ConfigError, Fields};
use super::{DenseFeedForward, Embedding, GroupedAttention, Layer, LayerGroup, Model, Norm, QkNorm};

/// Reads one family.
pub(super) type Reader = fn(&Fields<'_>) -> Result<Model, ConfigError>;

/// Each `model_type` that is known, in the order of the alphabet.
const FAMILIES: [(&str, Reader); 55] = [
    ("baichuan", decoders::internlm2),
    ("bloom", gpt::bloom),
    ("codegen", gpt::gptj),
    ("cohere", decoders::cohere),
    ("cohere2", decoders::cohere2),
    ("dbrx", mixtures::dbrx),
    ("deepseek", mixtures::deepseek),
    ("deepseek_v2", latent::deepseek),
    ("deepseek_v3", latent::deepseek_v3),
    ("falcon", gpt::falcon),
    ("gemma", decoders::gemma),
    ("gemma2", decoders::gemma2),
    ("gemma3", decoders::gemma3),
    ("gemma3_text", decoders::gemma3),
    ("glm", decoders::glm),
    ("glm4", decoders::glm4),
    ("glm4_moe", mixtures::glm4_moe),
    ("gpt2", gpt::gpt2),
    ("gpt_bigcode", gpt::gpt_bigcode),
    ("gpt_neo", gpt::gpt_neo),
    ("gpt_neox", gpt::gpt_neox),
    ("gpt_oss", mixtures::gpt_oss),
    ("gptj", gpt::gptj),
    ("granite", decoders::llama),
    ("granitemoe", mixtures::mixtral),
    ("grok-1", mixtures::grok),
    ("internlm", decoders::internlm),
    ("internlm2", decoders::internlm2),
    ("kimi_k2", latent::deepseek_v3),
    ("llama", decoders::llama),
    ("llama4", mixtures::llama4),
    ("llama4_text", mixtures::llama4),
    ("minimax_m2", mixtures::minimax_m2),
    ("ministral", decoders::mistral),
    ("mistral", decoders::mistral),
    ("mixtral", mixtures::mixtral),
    ("mpt", gpt::mpt),
    ("nemotron", decoders::nemotron),
    ("nemotron_h", hybrid::nemotron_h),
    ("olmo", decoders::olmo),
    ("olmo2", decoders::olmo2),
    ("olmo3", decoders::olmo3),
    ("olmoe", mixtures::olmoe),
    ("opt", gpt::opt),
    ("phi", gpt::phi),
    ("phi3", decoders::phi3),
    ("phimoe", mixtures::phimoe),
    ("qwen2", decoders::qwen2),
    ("qwen2_moe", mixtures::qwen2_moe),
    ("qwen3", decoders::qwen3),
    ("qwen3_moe", mixtures::qwen3_moe),
    ("seed_oss", decoders::seed_oss),
    ("smollm3", decoders::llama),
    ("stablelm", decoders::stablelm),
    ("starcoder2", decoders::starcoder2),
];

/// The reader of a `model_type`.
pub(super) fn reader(family: &str) -> Option<Reader> {
    FAMILIES.iter().find(|(name, _)| *name == family).map(|(_, reader)| *reader)
}

/// Every `model_type` that is known.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Names of the residual stream's width.
const HIDDEN: [&str; 4] = ["hidden_size", "n_embd", "d_model", "n_embed"];

/// Names of the number of heads.
const HEADS: [&str; 4] = ["num_attention_heads", "n_head", "n_heads", "num_heads"];

/// The width of the residual stream (h).
fn hidden(fields: &Fields<'_>) -> Result<u64, ConfigError> {
    fields.width(&HIDDEN)
}

/// Grouped attention without anything special; key and value heads are as many as query heads unless the configuration says so.
fn grouped(fields: &Fields<'_>) -> Result<GroupedAttention, ConfigError> {
    let head_size = match fields.optional_width(&["head_dim", "attention_head_dim"])? {
        Some(size) => size,
        None => head_size(hidden(fields)?, fields.width(&HEADS)?)?,
    };
    grouped_of(fields, head_size)
}

/// The same of heads of this size.
fn grouped_of(fields: &Fields<'_>, head_size: u64) -> Result<GroupedAttention, ConfigError> {
    let heads = fields.width(&HEADS)?;
    let kv_heads = fields.optional_width(&["num_key_value_heads"])?.unwrap_or(heads);
    check_groups(heads, kv_heads)?;
    Ok(GroupedAttention {
        heads,
        kv_heads,
        head_size,
        has_qkv_bias: false,
        has_output_bias: false,
        qk_norm: QkNorm::None,
        window: None,
        has_sinks: false,
        is_fused: false,
    })
}

/// What a head has where nothing says so: its part of the width.
fn head_size(hidden: u64, heads: u64) -> Result<u64, ConfigError> {
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    let why = format!("{heads} heads don't divide a width of {hidden}, and there is no `head_dim`");
    Err(Fields::contradiction("num_attention_heads", "hidden_size", why))
}

/// Each key head serves equally many query heads.
fn check_groups(heads: u64, kv_heads: u64) -> Result<(), ConfigError> {
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let why = format!("{heads} query heads can't share {kv_heads} key and value heads evenly");
    Err(Fields::contradiction("num_attention_heads", "num_key_value_heads", why))
}

/// Grouped attention whose four projections have biases if `attention_bias` says so.
fn grouped_with_bias(fields: &Fields<'_>, default: bool) -> Result<GroupedAttention, ConfigError> {
    let has_bias = fields.flag_or(&["attention_bias"], default)?;
    Ok(GroupedAttention { has_qkv_bias: has_bias, has_output_bias: has_bias, ..grouped(fields)? })
}

/// Gate, up and down of `intermediate_size`, without biases.
fn gated(fields: &Fields<'_>) -> Result<DenseFeedForward, ConfigError> {
    let inner = fields.width(&["intermediate_size"])?;
    Ok(DenseFeedForward { inner, is_gated: true, has_bias: false, is_fused: false })
}

/// Up and down of so many elements, with biases or without.
const fn plain(inner: u64, has_bias: bool) -> DenseFeedForward {
    DenseFeedForward { inner, is_gated: false, has_bias, is_fused: false }
}

/// Words come in by a matrix; positions are rotary. `is_tied`: whether the head is that matrix if the configuration doesn't say.
fn words(fields: &Fields<'_>, is_tied: bool) -> Result<Embedding, ConfigError> {
    let is_tied = fields.flag_or(&["tie_word_embeddings"], is_tied)?;
    Ok(Embedding { positions: 0, is_tied, has_head_bias: false, norm: None })
}

/// A model of these layers, its name still empty, with a norm before the head of the kind that its layers have.
fn model(fields: &Fields<'_>, embedding: Embedding, layers: Vec<LayerGroup>) -> Result<Model, ConfigError> {
    Ok(Model {
        name: String::new(),
        hidden: hidden(fields)?,
        vocabulary: fields.vocabulary()?,
        embedding,
        final_norm: layers.last().map(|group| group.layer.norm),
        layers,
        further_predictions: 0,
        context: None,
    })
}

/// The same layer over and over.
fn equal(fields: &Fields<'_>, layer: Layer) -> Result<Vec<LayerGroup>, ConfigError> {
    Ok(vec![LayerGroup { count: fields.layers()?, layer }])
}

/// Layers in order, equal neighbours together.
fn together(layers: impl Iterator<Item = Layer>) -> Vec<LayerGroup> {
    let mut groups: Vec<LayerGroup> = Vec::new();
    for layer in layers {
        match groups.last_mut() {
            Some(group) if group.layer == layer => group.count += 1,
            _ => groups.push(LayerGroup { count: 1, layer }),
        }
    }
    groups
}

/// How far back the layers of a family see if the configuration doesn't say so.
#[derive(Clone, Copy)]
struct Windows {
    /// Tokens; 0: no limit.
    tokens: u64,
    /// Of how many neighbouring layers one sees everything; 1: none of them is limited; 0: all are.
    full_every: u64,
    /// Whether that one is the last of its neighbours, and not the first.
    is_full_last: bool,
}

/// No layer is limited, unless `layer_types` says so.
const NO_WINDOW: Windows = Windows { tokens: 0, full_every: 1, is_full_last: true };

impl Windows {
    fn is_limited(self, place: u64) -> bool {
        match self.full_every {
            0 => true,
            every => {
                let full = if self.is_full_last { every - 1 } else { 0 };
                place % every != full
            }
        }
    }
}

/// Tokens that each layer sees back: by `layer_types` if it is there, and by the family's pattern if not. A window is as long as
/// `sliding_window` (or `attention_chunk_size`) says; null there means none.
fn windows(fields: &Fields<'_>, otherwise: Windows) -> Result<Vec<Option<u64>>, ConfigError> {
    let count = fields.layers()?;
    let tokens = match fields.is_null("sliding_window") {
        true => 0,
        false => fields.rows_or(&["sliding_window", "attention_chunk_size"], otherwise.tokens)?,
    };
    let window = (tokens > 0).then_some(tokens);
    let Some(kinds) = fields.words("layer_types")? else {
        return Ok((0..count).map(|place| window.filter(|_| otherwise.is_limited(place))).collect());
    };
    if kinds.len() as u64 != count {
        let why = format!("there are {count} layers and {} types of layers", kinds.len());
        return Err(Fields::contradiction("layer_types", "num_hidden_layers", why));
    }
    Ok(kinds.iter().map(|kind| window.filter(|_| *kind != "full_attention")).collect())
}

/// A layer with two norms, each before its work.
const fn layer(attention: GroupedAttention, work: DenseFeedForward, norm: Norm) -> Layer {
    use super::{Attention, FeedForward};
    Layer { attention: Attention::Grouped(attention), feed_forward: FeedForward::Dense(work), norms: 2, norm }
}

/// The layer, at each place with the window that is seen there.
fn with_windows(layer: Layer, windows: Vec<Option<u64>>) -> Vec<LayerGroup> {
    together(windows.into_iter().map(|window| seeing(layer, window)))
}

/// The layer with this window.
fn seeing(layer: Layer, window: Option<u64>) -> Layer {
    use super::Attention;
    match layer.attention {
        Attention::Grouped(attention) => {
            Layer { attention: Attention::Grouped(GroupedAttention { window, ..attention }), ..layer }
        }
        Attention::Latent(_) | Attention::StateSpace(_) => layer,
    }
}
