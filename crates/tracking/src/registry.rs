//! The model registry: registered models and their versions.

use crate::{Entry, Refusal, UnixMillis};

/// The stage of a version, which older clients use in place of aliases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// None.
    #[default]
    None,
    /// It is tried.
    Staging,
    /// It is in use.
    Production,
    /// It is no longer in use.
    Archived,
}

/// A name that points at a version of a registered model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alias {
    /// The alias.
    pub name: String,
    /// The number of the version.
    pub version: u32,
}

/// A named line of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredModel {
    /// Its name.
    pub name: String,
    /// What it is, in its users' words.
    pub description: Option<String>,
    /// When it was made.
    pub created: UnixMillis,
    /// When it or a version of it last changed.
    pub updated: UnixMillis,
    /// Its tags, by key.
    pub tags: Vec<Entry>,
    /// Its aliases, by name.
    pub aliases: Vec<Alias>,
    /// Of each stage the newest version.
    pub latest: Vec<ModelVersion>,
}

/// A version of a registered model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelVersion {
    /// The registered model.
    pub name: String,
    /// Its number, from 1; none is given twice.
    pub version: u32,
    /// What it is, in its users' words.
    pub description: Option<String>,
    /// When it was made.
    pub created: UnixMillis,
    /// When it last changed.
    pub updated: UnixMillis,
    /// Where the client says that its files come from, as a URI.
    pub source: String,
    /// Where its files lie, as a URI.
    pub storage_uri: String,
    /// The run that put it out.
    pub run: Option<String>,
    /// A link to that run elsewhere.
    pub run_link: Option<String>,
    /// The logged model that it was made of.
    pub logged_model: Option<String>,
    /// Its stage.
    pub stage: Stage,
    /// Its tags, by key.
    pub tags: Vec<Entry>,
    /// The aliases that point at it.
    pub aliases: Vec<String>,
}

impl Stage {
    /// All.
    pub const ALL: [Stage; 4] = [Stage::None, Stage::Staging, Stage::Production, Stage::Archived];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Stage::None => "None",
            Stage::Staging => "Staging",
            Stage::Production => "Production",
            Stage::Archived => "Archived",
        }
    }

    /// Reads a stage, in small or capital letters.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Stage, Refusal> {
        Stage::ALL.into_iter().find(|stage| stage.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let names = Stage::ALL.map(Stage::name).join(", ");
            Refusal::invalid(format!("Invalid Model Version stage: {text}. Value must be one of {names}."))
        })
    }
}
