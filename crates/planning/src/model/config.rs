//! A Hugging Face `config.json` as a [`Model`].
//!
//! Read like bytes of a stranger: its size, each number in it and the model's size are bounded, and a field that is missing, of the
//! wrong kind or against another is named. What a field left out means is what the family's class in transformers says.

use serde_json::{Map, Value};

use super::families;
use super::{LayerGroup, Model};
use crate::names::{listed, nearest};
use crate::units::real;

/// Longest text that is read, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most layers of a model.
const LAYERS_MAX: u64 = 1 << 12;
/// Greatest width, or number of heads.
const WIDTH_MAX: u64 = 1 << 20;
/// Most words, or positions, of an embedding.
const ROWS_MAX: u64 = 1 << 25;
/// The names of the longest sequence, by family.
const CONTEXT: [&str; 5] =
    ["max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length"];
/// Most experts of a layer.
const EXPERTS_MAX: u64 = 1 << 14;
/// Most parameters of a model: below, counts are exact as floating point too.
const PARAMETERS_MAX: u128 = 1 << 53;

/// Why a configuration is no model.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is no configuration but something big.
    #[error("config.json has {bytes} bytes, more than {TEXT_BYTES_MAX}: give the model's config.json")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// The text isn't JSON.
    #[error("config.json is not a JSON object")]
    Malformed(#[source] serde_json::Error),
    /// No architecture of this name is known.
    #[error("`model_type` is `{name}`, which is not supported: the nearest are {}", listed(nearest))]
    UnknownType {
        /// What the configuration says.
        name: String,
        /// Known names.
        nearest: Vec<String>,
    },
    /// A field is missing that has no default.
    #[error("config.json lacks `{field}`, which {family} needs")]
    Missing {
        /// The field.
        field: String,
        /// The configuration's `model_type`.
        family: String,
    },
    /// A field isn't what it should be.
    #[error("`{field}` in config.json is {found}: it should be {expected}")]
    Unfit {
        /// The field.
        field: String,
        /// What it is.
        found: String,
        /// What is expected.
        expected: String,
    },
    /// Two fields can't both be.
    #[error("`{field}` and `{other}` in config.json contradict each other: {why}")]
    Contradiction {
        /// One.
        field: String,
        /// The other.
        other: String,
        /// Why they can't both be.
        why: String,
    },
    /// The sizes make a model that can't be.
    #[error("config.json describes {parameters} parameters, more than 2^53: check its sizes")]
    TooLarge {
        /// How many there would be.
        parameters: u128,
    },
}

/// Reads the text of a `config.json`. The model is called as `name` says.
///
/// # Errors
/// [`ConfigError`] names the field and says what to change.
pub fn read(name: &str, text: &str) -> Result<Model, ConfigError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ConfigError::TooLong { bytes: text.len() });
    }
    let map: Map<String, Value> = serde_json::from_str(text).map_err(ConfigError::Malformed)?;
    read_map(name, &map)
}

/// The same, of what a parser has made of the text.
pub(crate) fn read_map(name: &str, map: &Map<String, Value>) -> Result<Model, ConfigError> {
    // Models that see, too, keep the language model's fields apart.
    let map = match map.get("text_config") {
        Some(Value::Object(text)) if text.contains_key("model_type") => text,
        _ => map,
    };
    let fields = Fields { map, family: family_of(map)? };
    let Some(reader) = families::reader(&fields.family) else {
        let nearest = nearest(&fields.family, families::names());
        return Err(ConfigError::UnknownType { name: fields.family, nearest });
    };
    let model = Model { name: name.to_owned(), context: fields.context()?, ..reader(&fields)? };
    bounded(model)
}

fn family_of(map: &Map<String, Value>) -> Result<String, ConfigError> {
    let missing = || ConfigError::Missing { field: "model_type".to_owned(), family: "a model".to_owned() };
    let value = map.get("model_type").ok_or_else(missing)?;
    value.as_str().map(str::to_owned).ok_or_else(|| unfit("model_type", value, "a name such as \"llama\""))
}

/// The model, unless it has more parameters than can be counted exactly.
fn bounded(model: Model) -> Result<Model, ConfigError> {
    let of_group = |group: &LayerGroup| {
        let layer = group.layer.parameters(model.hidden);
        u128::from(group.count) * u128::from(layer.total())
    };
    let outside = 2 * u128::from(model.hidden) * u128::from(model.vocabulary + model.embedding.positions);
    let parameters = outside + model.layers.iter().map(of_group).sum::<u128>();
    if parameters > PARAMETERS_MAX { Err(ConfigError::TooLarge { parameters }) } else { Ok(model) }
}

/// The fields of a configuration, read by name and checked.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    family: String,
}

impl Fields<'_> {
    /// The configuration's `model_type`.
    pub(crate) fn family(&self) -> &str {
        &self.family
    }

    /// Under whichever of its names the field is there, and not null.
    fn value(&self, names: &[&'static str]) -> Option<(&'static str, &Value)> {
        let mut there = names.iter().filter_map(|name| Some((*name, self.map.get(*name)?)));
        there.find(|(_, value)| !value.is_null())
    }

    /// Whether the field is there and null.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    fn count_within(&self, names: &[&'static str], most: u64) -> Result<Option<u64>, ConfigError> {
        let Some((name, value)) = self.value(names) else { return Ok(None) };
        match value.as_u64() {
            Some(count) if count <= most => Ok(Some(count)),
            _ => Err(unfit(name, value, &format!("a whole number of at most {most}"))),
        }
    }

    /// A field that there must be, at least 1.
    fn positive(&self, names: &[&'static str], most: u64) -> Result<u64, ConfigError> {
        match self.count_within(names, most)? {
            Some(0) => Err(unfit(names[0], &Value::from(0), "at least 1")),
            Some(count) => Ok(count),
            None => Err(self.missing(names[0])),
        }
    }

    /// That a field is missing.
    pub(crate) fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Missing { field: field.to_owned(), family: self.family.clone() }
    }

    /// That a field has a value which this family can't have.
    pub(crate) fn refused(&self, field: &str, expected: &str) -> ConfigError {
        unfit(field, self.map.get(field).unwrap_or(&Value::Null), expected)
    }

    /// That two fields can't both be.
    pub(crate) fn contradiction(field: &str, other: &str, why: String) -> ConfigError {
        ConfigError::Contradiction { field: field.to_owned(), other: other.to_owned(), why }
    }

    /// A width that there must be.
    pub(crate) fn width(&self, names: &[&'static str]) -> Result<u64, ConfigError> {
        self.positive(names, WIDTH_MAX)
    }

    /// A width that may be left out, and may be 0.
    pub(crate) fn width_or(&self, names: &[&'static str], default: u64) -> Result<u64, ConfigError> {
        Ok(self.count_within(names, WIDTH_MAX)?.unwrap_or(default))
    }

    /// A width that may be left out, and is at least 1.
    pub(crate) fn optional_width(&self, names: &[&'static str]) -> Result<Option<u64>, ConfigError> {
        match self.value(names) {
            None => Ok(None),
            Some(_) => self.width(names).map(Some),
        }
    }

    /// The number of layers.
    pub(crate) fn layers(&self) -> Result<u64, ConfigError> {
        self.positive(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"], LAYERS_MAX)
    }

    /// The number of layers of some kind, which may be left out.
    pub(crate) fn layers_or(&self, name: &'static str, default: u64) -> Result<u64, ConfigError> {
        Ok(self.count_within(&[name], LAYERS_MAX)?.unwrap_or(default))
    }

    /// The number of words.
    pub(crate) fn vocabulary(&self) -> Result<u64, ConfigError> {
        self.positive(&["vocab_size"], ROWS_MAX)
    }

    /// The number of learned positions, or of tokens in a window.
    pub(crate) fn rows_or(&self, names: &[&'static str], default: u64) -> Result<u64, ConfigError> {
        Ok(self.count_within(names, ROWS_MAX)?.unwrap_or(default))
    }

    /// The longest sequence that the model is for. Stretched rotary positions reach `factor` times as far as the original
    /// ones (transformers, `modeling_rope_utils.py`).
    fn context(&self) -> Result<Option<u64>, ConfigError> {
        let named = self.count_within(&CONTEXT, ROWS_MAX)?.filter(|positions| *positions > 0);
        let stretched = self.map.get("rope_scaling").and_then(|scaling| {
            let original =
                scaling.get("original_max_position_embeddings")?.as_u64().filter(|rows| *rows <= ROWS_MAX)?;
            let reach = real(original) * scaling.get("factor")?.as_f64()?;
            // What isn't a number of positions, such as a negative one, doesn't parse.
            format!("{reach:.0}").parse::<u64>().ok().filter(|rows| *rows <= ROWS_MAX)
        });
        Ok(named.max(stretched))
    }

    /// The number of experts, which there must be.
    pub(crate) fn experts(&self, names: &[&'static str]) -> Result<u64, ConfigError> {
        self.positive(names, EXPERTS_MAX)
    }

    /// Yes or no.
    pub(crate) fn flag_or(&self, names: &[&'static str], default: bool) -> Result<bool, ConfigError> {
        let Some((name, value)) = self.value(names) else { return Ok(default) };
        value.as_bool().ok_or_else(|| unfit(name, value, "true or false"))
    }

    /// A word.
    pub(crate) fn word(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        let Some((name, value)) = self.value(&[name]) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| unfit(name, value, "a word"))
    }

    /// A list of words, at most one for each layer.
    pub(crate) fn words(&self, name: &'static str) -> Result<Option<Vec<&str>>, ConfigError> {
        let Some((name, value)) = self.value(&[name]) else { return Ok(None) };
        let refused = || unfit(name, value, "a list of words, one for each layer");
        let list = value.as_array().filter(|list| list.len() as u64 <= LAYERS_MAX).ok_or_else(refused)?;
        list.iter().map(Value::as_str).collect::<Option<Vec<_>>>().map(Some).ok_or_else(refused)
    }

    /// A list of layers' places, counted from 0; empty if it is left out.
    pub(crate) fn places(&self, name: &'static str) -> Result<Vec<u64>, ConfigError> {
        let Some((name, value)) = self.value(&[name]) else { return Ok(Vec::new()) };
        let refused = || unfit(name, value, "a list of layers, counted from 0");
        let list = value.as_array().filter(|list| list.len() as u64 <= LAYERS_MAX).ok_or_else(refused)?;
        list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>().ok_or_else(refused)
    }

    /// The fields inside a field.
    pub(crate) fn inside(&self, name: &'static str) -> Result<Option<Fields<'_>>, ConfigError> {
        let Some((name, value)) = self.value(&[name]) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| unfit(name, value, "an object"))?;
        Ok(Some(Fields { map, family: self.family.clone() }))
    }
}

/// Longest value that an error shows, in characters.
const SHOWN_MAX: usize = 40;

fn unfit(field: &str, value: &Value, expected: &str) -> ConfigError {
    let found: String = value.to_string().chars().take(SHOWN_MAX).collect();
    ConfigError::Unfit { field: field.to_owned(), found, expected: expected.to_owned() }
}
