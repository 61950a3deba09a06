//! What can be compared in a search, and with what.

use super::lexer::Name;
use super::{Field, Kind, Operator};
use crate::Refusal;

/// What is searched, which says what its filters may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Runs.
    Runs,
    /// Experiments.
    Experiments,
    /// Registered models.
    RegisteredModels,
    /// Versions of registered models.
    ModelVersions,
    /// Logged models.
    LoggedModels,
}

/// What may stand before the point of an identifier.
const ENTITIES: [(&str, Kind); 14] = [
    ("metric", Kind::Metric),
    ("metrics", Kind::Metric),
    ("parameter", Kind::Param),
    ("parameters", Kind::Param),
    ("param", Kind::Param),
    ("params", Kind::Param),
    ("tag", Kind::Tag),
    ("tags", Kind::Tag),
    ("attribute", Kind::Attribute),
    ("attributes", Kind::Attribute),
    ("attr", Kind::Attribute),
    ("run", Kind::Attribute),
    ("dataset", Kind::Dataset),
    ("datasets", Kind::Dataset),
];

impl Vocabulary {
    /// The attributes that hold numbers, and those that hold texts.
    fn attributes(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Vocabulary::Runs => {
                (&["start_time", "end_time"], &["run_id", "run_name", "user_id", "status", "artifact_uri"])
            }
            Vocabulary::Experiments => (&["creation_time", "last_update_time"], &["name", "experiment_id"]),
            Vocabulary::RegisteredModels => (&[], &["name"]),
            Vocabulary::ModelVersions => (&["version_number"], &["name", "run_id", "source_path"]),
            Vocabulary::LoggedModels => (
                &["creation_timestamp", "last_updated_timestamp"],
                &["name", "model_id", "model_type", "status", "source_run_id"],
            ),
        }
    }

    /// The attributes that results can be ordered by but not filtered by.
    fn only_ordering(self) -> &'static [&'static str] {
        match self {
            Vocabulary::RegisteredModels => &["timestamp", "last_updated_timestamp"],
            Vocabulary::ModelVersions => &["creation_timestamp", "last_updated_timestamp"],
            Vocabulary::Runs | Vocabulary::Experiments | Vocabulary::LoggedModels => &[],
        }
    }

    /// Returns what a name means in an order.
    pub(super) fn order_field(self, name: &Name) -> Result<Field, Refusal> {
        match name.entity {
            None if self.only_ordering().contains(&name.key.as_str()) => {
                Ok(Field { kind: Kind::Attribute, key: name.key.clone() })
            }
            _ => self.field(name),
        }
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Vocabulary::Runs => &[Kind::Metric, Kind::Param, Kind::Tag, Kind::Attribute, Kind::Dataset],
            Vocabulary::LoggedModels => &[Kind::Metric, Kind::Param, Kind::Tag, Kind::Attribute],
            Vocabulary::Experiments | Vocabulary::RegisteredModels | Vocabulary::ModelVersions => {
                &[Kind::Tag, Kind::Attribute]
            }
        }
    }

    /// The attributes with which `IN` is possible.
    pub(super) fn takes_list(self, field: &Field) -> bool {
        match field.kind {
            Kind::Dataset => true,
            Kind::Attribute => match self {
                Vocabulary::Experiments => field.key == "experiment_id",
                _ => matches!(field.key.as_str(), "run_id" | "source_run_id"),
            },
            Kind::Metric | Kind::Param | Kind::Tag => false,
        }
    }

    /// Returns what a name means.
    pub(super) fn field(self, name: &Name) -> Result<Field, Refusal> {
        let kind = match &name.entity {
            None => Kind::Attribute,
            Some(entity) => {
                let known = ENTITIES.into_iter().find(|(known, kind)| known == entity && self.kinds().contains(kind));
                let Some((_, kind)) = known else {
                    let valid: Vec<&str> = self.kinds().iter().map(|kind| kind.name()).collect();
                    let message = format!("Invalid entity type '{entity}'. Valid values are {}", valid.join(", "));
                    return Err(Refusal::invalid(message));
                };
                kind
            }
        };
        let key = name.key.as_str();
        let key = match kind {
            Kind::Metric | Kind::Param | Kind::Tag => key,
            Kind::Dataset if matches!(key, "name" | "digest" | "context") => key,
            Kind::Dataset => {
                let message = format!("Invalid dataset key '{key}' specified. Valid keys are name, digest, context");
                return Err(Refusal::invalid(message));
            }
            Kind::Attribute => self.attribute(key)?,
        };
        Ok(Field { kind, key: key.to_owned() })
    }

    fn attribute(self, key: &str) -> Result<&'static str, Refusal> {
        let translated = match (self, key) {
            (Vocabulary::Runs, "created" | "Created") => "start_time",
            (Vocabulary::Runs, "run name" | "Run name" | "Run Name") => "run_name",
            (Vocabulary::LoggedModels, "creation_time") => "creation_timestamp",
            _ => key,
        };
        let (numbers, texts) = self.attributes();
        let mut known = numbers.iter().chain(texts).copied();
        known.find(|known| *known == translated).ok_or_else(|| {
            let valid: Vec<&str> = numbers.iter().chain(texts).copied().collect();
            Refusal::invalid(format!("Invalid attribute key '{key}' specified. Valid keys are {}", valid.join(", ")))
        })
    }

    /// Reports whether a field holds a number.
    pub fn is_number(self, field: &Field) -> bool {
        match field.kind {
            Kind::Metric => true,
            Kind::Attribute => self.attributes().0.contains(&field.key.as_str()),
            Kind::Param | Kind::Tag | Kind::Dataset => false,
        }
    }
}

impl Kind {
    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Metric => "metric",
            Kind::Param => "parameter",
            Kind::Tag => "tag",
            Kind::Attribute => "attribute",
            Kind::Dataset => "dataset",
        }
    }
}

impl Operator {
    /// Returns the operator that a sign or a word stands for, if numbers or texts can be compared with it.
    pub(super) fn of(sign: &str, is_number: bool) -> Option<Operator> {
        match sign {
            "=" => Some(Operator::Equal),
            "!=" => Some(Operator::Unequal),
            ">" if is_number => Some(Operator::Greater),
            ">=" if is_number => Some(Operator::GreaterOrEqual),
            "<" if is_number => Some(Operator::Less),
            "<=" if is_number => Some(Operator::LessOrEqual),
            "LIKE" if !is_number => Some(Operator::Like),
            "ILIKE" if !is_number => Some(Operator::LikeAnyCase),
            _ => None,
        }
    }
}
