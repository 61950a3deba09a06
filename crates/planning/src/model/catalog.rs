//! Models by the names that people call them.
//!
//! Facts are in `catalog.toml`, each with its source; a name is found whatever its case, separators, vendor and words such as
//! `-instruct`. Names that say only a size (`7b`, `70b`) mean the model that was usual when people wrote so, and say which one.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Model;
use super::config::{ConfigError, read_map};
use crate::names::{listed, nearest};

/// The facts that come with this program.
const BUILT_IN: &str = include_str!("catalog.toml");
/// Longest name that is looked up, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// No model has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no model is called `{name}`: the nearest are {}; or give its config.json", listed(nearest))]
pub struct UnknownModel {
    /// The name, cut to what is looked up.
    pub name: String,
    /// Names that are known.
    pub nearest: Vec<String>,
}

/// Models by name.
#[derive(Clone, Debug)]
pub struct Catalog {
    entries: BTreeMap<String, Entry>,
    /// By key: the name as it is written, and its entry. A key without dots is there if it means one name only.
    names: BTreeMap<String, (String, String)>,
}

/// What is known of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Other names.
    #[serde(default)]
    pub names: Vec<String>,
    /// Where the facts are from.
    pub source: String,
    /// The published count of parameters, if there is one.
    pub parameters: Option<u64>,
    /// The fields of its config.json that matter.
    pub(super) config: Map<String, Value>,
}

impl Entry {
    /// The model, called like this.
    ///
    /// # Errors
    /// [`ConfigError`], if the facts are none: a test reads all that come with this program.
    pub fn model(&self, name: &str) -> Result<Model, ConfigError> {
        read_map(name, &self.config)
    }
}

impl Catalog {
    /// The models that come with this program.
    ///
    /// # Panics
    /// If their facts are malformed; a test reads them.
    #[must_use]
    pub fn built_in() -> Self {
        Self::read(BUILT_IN).expect("the built-in catalog is read by a test")
    }

    /// The models of a catalog's text.
    ///
    /// # Errors
    /// If the text isn't a catalog; it says where.
    pub(crate) fn read(text: &str) -> Result<Self, toml::de::Error> {
        let entries: BTreeMap<String, Entry> = toml::from_str(text)?;
        let mut names = BTreeMap::new();
        let mut without_dots: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
        for (entry, facts) in &entries {
            for name in std::iter::once(entry).chain(&facts.names) {
                let found = (name.clone(), entry.clone());
                if !name.contains('/') {
                    without_dots.entry(key(name).replace('.', "")).or_default().push(found.clone());
                }
                names.insert(exact(name), found);
            }
        }
        for (key, found) in without_dots {
            if let [only] = found.as_slice() {
                names.entry(key).or_insert_with(|| only.clone());
            }
        }
        Ok(Catalog { entries, names })
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`UnknownModel`] with the nearest names.
    ///
    /// # Panics
    /// If the facts of a built-in model are none; a test reads all of them.
    pub fn find(&self, name: &str) -> Result<Model, UnknownModel> {
        let short: String = name.chars().take(NAME_BYTES_MAX).collect();
        let found = self.names.get(&exact(&short)).or_else(|| self.names.get(&key(&short)));
        match found {
            Some((called, entry)) => {
                Ok(self.entries[entry].model(called).expect("every built-in model is read by a test"))
            }
            None => {
                let known = self.names.values().map(|(called, _)| called.as_str());
                Err(UnknownModel { nearest: nearest(&short, known), name: short })
            }
        }
    }

    /// Every model with what is known of it, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }
}

/// The model of this name among those that come with this program; many are found faster in one [`Catalog`].
///
/// # Errors
/// [`UnknownModel`] with the nearest names.
pub fn find(name: &str) -> Result<Model, UnknownModel> {
    Catalog::built_in().find(name)
}

/// Words that say how a model was tuned or is stored, and vendors: they don't change its shape.
const DROPPED: [&str; 22] = [
    "instruct",
    "base",
    "chat",
    "hf",
    "it",
    "pt",
    "bf16",
    "fp8",
    "thinking",
    "reasoning",
    "preview",
    "meta",
    "nvidia",
    "google",
    "openai",
    "model",
    "inst",
    "sft",
    "megatron",
    "mlperf",
    "nemo",
    "pretrain",
];

/// A name by its letters, digits and dots alone, without vendor, what is in parentheses at its end, and the words above.
fn key(name: &str) -> String {
    let plain = name.split('(').next().unwrap_or(name);
    let own = plain.rsplit('/').next().unwrap_or(plain).to_lowercase();
    let words = own.split(|c: char| !c.is_alphanumeric() && c != '.');
    words.filter(|word| !DROPPED.contains(word)).collect()
}

/// The same with the vendor, for the few names that differ by it.
fn exact(name: &str) -> String {
    name.to_lowercase().split(|c: char| !c.is_alphanumeric() && !"./".contains(c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_the_parameters_that_are_published() {
        let catalog = Catalog::built_in();
        let mut wrong = Vec::new();
        for (name, entry) in catalog.entries() {
            let count = entry.model(name).unwrap_or_else(|error| panic!("{name}: {error}")).parameters();
            if entry.parameters.is_some_and(|published| published != count.total) {
                wrong.push(format!("{name}: {} but {:?}", count.total, entry.parameters));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_name_is_of_one_model() {
        let catalog = Catalog::built_in();
        let mut keys = BTreeMap::new();
        for (entry, facts) in catalog.entries() {
            for name in std::iter::once(entry).chain(facts.names.iter().map(String::as_str)) {
                assert_eq!(keys.insert(exact(name), entry), None, "{name}");
                let found = catalog.find(name).unwrap();
                assert_eq!(found.name, name);
                assert_eq!(found.layers, facts.model(name).unwrap().layers, "{name}");
            }
        }
    }

    #[test]
    fn spelling_vendor_and_tuning_do_not_matter() {
        let catalog = Catalog::built_in();
        for (written, called) in [
            ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
            ("Llama 3.1 70B", "llama-3.1-70b"),
            ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
            ("llama3_70b", "llama-3-70b"),
            ("llama31-405b", "llama-3.1-405b"),
            ("Llama 2 7 B", "llama-2-7b"),
            ("GPT-3 175B", "gpt-3-175b"),
            ("GPT3-175B", "gpt-3-175b"),
            ("13B", "13b"),
            ("phi-1.5 1.3 B", "phi-1.5-1.3b"),
            ("StableLM Alpha 3 B", "stablelm-alpha-3b"),
            ("Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b-v0.1"),
            ("mosaicml/mpt-7b", "mosaicml/mpt-7b"),
            ("MPT-7b", "mpt-7b"),
            ("deepseekv3", "deepseek-v3"),
            ("GPT-1.7B", "gpt-1.7b"),
            ("GPT3-22B", "gpt-3-22b"),
            ("GPT-13B", "gpt-13b"),
            ("Megatron GPT-3 175B (MLPerf 4.0)", "gpt-3-175b"),
            ("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
            ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
            ("google/gemma-2-9b-it", "gemma-2-9b"),
            ("llama2_13b_chat", "llama-2-13b"),
        ] {
            assert_eq!(catalog.find(written).map(|model| model.name).as_deref(), Ok(called), "{written}");
        }
        assert_eq!(find("13B").unwrap().layers, find("llama-2-13b").unwrap().layers);
    }

    #[test]
    fn a_misspelt_name_is_told_the_nearest() {
        let error = find("llama-3.1-71b").unwrap_err();
        assert!(error.nearest.contains(&"llama-3.1-70b".to_owned()), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("no model is called `llama-3.1-71b`: the nearest are `"), "{text}");
        assert!(text.ends_with("; or give its config.json"), "{text}");
        assert_eq!(find(&"llama".repeat(100_000)).unwrap_err().name.len(), 256);
        assert!(find("").is_err());
        assert!(find("instruct").is_err());
    }

    /// llm-foundry's own `NumParams`, 8 sequence lengths of 9 models:
    /// <https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md>.
    #[test]
    fn an_mpt_has_as_many_positions_as_its_sequences() {
        for (name, sequence, parameters) in [
            ("MPT-125m", 65_536, 174_070_272),
            ("MPT-1b", 512, 1_312_804_864),
            ("MPT-7b", 8192, 6_684_024_832),
            ("MPT-30b", 4096, 29_989_894_144),
            ("MPT-70b", 2048, 64_862_437_376),
        ] {
            assert_eq!(find(name).unwrap().with_positions(sequence).parameters().total, parameters, "{name}");
        }
        let rotary = find("llama-3-8b").unwrap();
        assert_eq!(rotary.clone().with_positions(65_536), rotary);
    }
}
