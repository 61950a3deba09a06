//! Templates of job files.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A template: a job file whose keys other job files take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// Its text (YAML).
    pub text: String,
}

/// All templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// By their names.
    pub templates: Vec<Template>,
}
