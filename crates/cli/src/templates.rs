//! `templates`: job files whose keys other job files take over.

use clap::Args;
use gangline_api as api;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Which template to print.
#[derive(Args, Debug)]
pub(crate) struct TemplatesArgs {
    /// Print this one
    template: Option<String>,
}

pub(crate) fn run(client: &Client, args: &TemplatesArgs, is_json: bool) -> Result<(), Failure> {
    if let Some(name) = &args.template {
        let template: api::Template = client.get(&format!("/templates/{}", path_segment(name)))?;
        return if is_json { output::json(&template) } else { output::print(&template.text) };
    }
    let list: api::TemplateList = client.get("/templates")?;
    if is_json {
        return output::json(&list);
    }
    if list.templates.is_empty() {
        output::tell("there are no templates: put a job file into the folder templates of the data folder");
        return Ok(());
    }
    output::print(&output::table(&["NAME", "WHAT"], list.templates.iter().map(row).collect()))
}

/// Shows a template by the comment that it begins with, or by its first line.
fn row(template: &api::Template) -> Vec<String> {
    let first = template.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    vec![template.name.clone(), first.trim_start_matches('#').trim().to_owned()]
}
