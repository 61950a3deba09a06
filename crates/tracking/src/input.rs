//! What a run read.

use crate::{Entry, Refusal, limits};

/// A dataset, by what identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Its name.
    pub name: String,
    /// What tells its contents from those of others with its name.
    pub digest: String,
    /// The kind of its source, such as `local` or `hugging_face`.
    pub source_type: String,
    /// Where it comes from, as JSON.
    pub source: String,
    /// Its columns, as JSON.
    pub schema: Option<String>,
    /// Its statistics, as JSON.
    pub profile: Option<String>,
}

/// A dataset that a run read, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The dataset.
    pub dataset: Dataset,
    /// Tags; `mlflow.data.context` says what it was read for.
    pub tags: Vec<Entry>,
}

/// The most datasets of one request.
const INPUTS_MAX: usize = 1000;

impl Input {
    /// Checks the inputs of one request.
    ///
    /// # Errors
    /// Names the first field that is missing or too long.
    pub fn check_all(inputs: &[Input]) -> Result<(), Refusal> {
        limits::check_count("datasets", INPUTS_MAX, inputs.len())?;
        inputs.iter().enumerate().try_for_each(|(index, input)| input.check(index))
    }

    fn check(&self, index: usize) -> Result<(), Refusal> {
        let Dataset { name, digest, source_type, source, schema, profile } = &self.dataset;
        let required = [("name", name), ("digest", digest), ("source_type", source_type), ("source", source)];
        if let Some((field, _)) = required.into_iter().find(|(_, value)| value.is_empty()) {
            let path = format!("datasets[{index}].dataset.{field}");
            return Err(Refusal::invalid(format!("Missing value for required parameter '{path}'.")));
        }
        let profile = profile.as_deref().unwrap_or_default();
        let bounded = [
            ("dataset.name", 500, name.as_str()),
            ("dataset.digest", 36, digest),
            ("dataset.source", 65_535, source),
            ("dataset.schema", 1_048_575, schema.as_deref().unwrap_or_default()),
            ("dataset.profile", 16_777_215, profile),
        ];
        for (field, longest, value) in bounded {
            limits::check_length(&format!("datasets[{index}].{field}"), longest, value)?;
        }
        for tag in &self.tags {
            limits::check_length(&format!("datasets[{index}].tags.key"), 255, &tag.key)?;
            limits::check_length(&format!("datasets[{index}].tags.value"), 500, &tag.value)?;
        }
        Ok(())
    }
}
