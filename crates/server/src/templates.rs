//! Templates of job files: the files of a folder, which an administrator keeps.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use gangline_api as api;
use gangline_control::backup::TEMPLATES_FOLDER;
use gangline_specs::jobfile::FILE_MAX;

use super::error::ApiError;
use super::segment::Segment;
use super::{App, ErrorBody};

const ENDING: &str = ".yaml";
/// The most templates that are listed.
const LISTED_MAX: usize = 1_000;

/// The templates of a data folder.
#[derive(Clone, Debug)]
pub struct Templates {
    folder: PathBuf,
}

impl Templates {
    /// Returns those of a data folder, read anew for each job.
    #[must_use]
    pub fn of(data: &Path) -> Templates {
        Templates { folder: data.join(TEMPLATES_FOLDER) }
    }

    /// Returns the text of a template, whose name is that of its file without the ending. Blocks.
    ///
    /// # Errors
    /// Why there is none, as advice.
    pub(super) fn text(&self, name: &str) -> Result<String, String> {
        let mut text = String::new();
        let read = fs::File::open(self.path(name)).and_then(|file| {
            // A file that is too large is refused by its reader.
            file.take(FILE_MAX.0 + 1).read_to_string(&mut text)
        });
        match read {
            Ok(_) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.others()),
            Err(error) => Err(format!("{}: {error}", self.path(name).display())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{ENDING}"))
    }

    fn others(&self) -> String {
        let names = self.names();
        let folder = self.folder.display();
        if names.is_empty() { format!("put one into {folder}") } else { format!("there are: {}", names.join(", ")) }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(ENDING)?.to_owned()));
        let mut names: Vec<String> = names.take(LISTED_MAX).collect();
        names.sort();
        names
    }

    fn list(&self) -> Vec<api::Template> {
        self.names().into_iter().filter_map(|name| self.template(name)).collect()
    }

    /// Returns the template of this name, which is that of a file in the folder.
    fn find(&self, name: &str) -> Option<api::Template> {
        self.names().into_iter().find(|known| known == name).and_then(|name| self.template(name))
    }

    fn template(&self, name: String) -> Option<api::Template> {
        let text = self.text(&name).ok()?;
        Some(api::Template { name, text })
    }
}

/// All templates of job files.
#[utoipa::path(get, path = "/api/v1/templates", tag = "jobs",
    responses((status = 200, body = api::TemplateList)))]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<api::TemplateList>, ApiError> {
    let templates = app.templates.clone();
    let list = tokio::task::spawn_blocking(move || templates.list()).await;
    let templates = list.map_err(|_| ApiError::internal("listing templates panicked"))?;
    Ok(Json(api::TemplateList { templates }))
}

/// One template.
#[utoipa::path(get, path = "/api/v1/templates/{template}",
    params(("template" = String, Path, description = "its name")), tag = "jobs",
    responses((status = 200, body = api::Template), (status = 404, body = ErrorBody)))]
pub(super) async fn show(State(app): State<Arc<App>>, Segment(name): Segment) -> Result<Json<api::Template>, ApiError> {
    let templates = app.templates.clone();
    let find = move || templates.find(&name).ok_or(name);
    let found = tokio::task::spawn_blocking(find).await;
    let found = found.map_err(|_| ApiError::internal("reading a template panicked"))?;
    found.map(Json).map_err(|name| {
        let message = format!("there is no template \"{name}\"");
        ApiError::new(StatusCode::NOT_FOUND, "G0326", message, "gangline templates lists them")
    })
}
