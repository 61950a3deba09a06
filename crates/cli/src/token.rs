//! `token`: makes links to the page, and replaces the users' token.

use clap::Subcommand;
use gangline_api as api;
use gangline_execution::endpoint::url;
use serde_json::json;

use crate::client::{Client, data_folder};
use crate::failure::Failure;
use crate::{Global, output};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a link to the page, which is good once and for some minutes
    Link,
    /// Replace the users' token: the one before is good no more, nor is any link or open page; running jobs go on
    Rotate,
}

pub(crate) fn run(global: &Global, command: &TokenCommand) -> Result<(), Failure> {
    let client = Client::connect(global)?;
    match command {
        TokenCommand::Link => {
            let link: api::PageLink = client.post("/links", &json!({}))?;
            if global.json {
                return output::json(&link);
            }
            let base = match &global.url {
                Some(url) => url.trim_end_matches('/').to_owned(),
                None => url(&data_folder(global)?)?,
            };
            output::say(&format!("{base}{}", link.path))?;
            output::tell(&format!("good once, for {} minutes", link.good_for_seconds / 60));
            Ok(())
        }
        TokenCommand::Rotate => {
            let rotated: api::TokenRotated = client.post("/token/rotate", &json!({}))?;
            if global.json {
                return output::json(&rotated);
            }
            output::say(&format!(
                "the token is replaced; the new one is in the file {} of the data folder",
                rotated.file
            ))
        }
    }
}
