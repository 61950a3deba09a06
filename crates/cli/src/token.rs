//! `token`: makes links to the page and tokens of agents, and replaces the users' token.

use clap::Subcommand;
use gangline_api as api;
use gangline_base::NodeName;
use gangline_control::secret::KEY_FILE;
use gangline_execution::endpoint::url;
use serde_json::json;

use crate::client::{Client, data_folder};
use crate::failure::Failure;
use crate::up::open_secrets;
use crate::{Global, output};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a link to the page, which is good once and for some minutes
    Link,
    /// Replace the users' token: the one before is good no more, nor is any link or open page; running jobs go on
    Rotate,
    /// Print the token of a node's agent, which is good for its reports and nothing else
    Agent {
        /// The node's name
        node: String,
    },
}

pub(crate) fn run(global: &Global, command: &TokenCommand) -> Result<(), Failure> {
    let client = || Client::connect(global);
    match command {
        TokenCommand::Agent { node } => of_agent(global, node),
        TokenCommand::Link => {
            let link: api::PageLink = client()?.post("/links", &json!({}))?;
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
            let rotated: api::TokenRotated = client()?.post("/token/rotate", &json!({}))?;
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

/// Makes the token from the key in the data folder, which only the control plane's owner can read.
fn of_agent(global: &Global, node: &str) -> Result<(), Failure> {
    let name = NodeName::new(node).map_err(|error| Failure::coded("G0505", error.to_string(), ""))?;
    let folder = data_folder(global)?;
    if !folder.join(KEY_FILE).exists() {
        let message = format!("no control plane has run in {}", folder.display());
        return Err(Failure::Unreachable { message, hint: "name its folder with --data".to_owned() });
    }
    let token = open_secrets(&folder)?.agent_token(&name);
    if global.json { output::json(&json!({ "node": node, "token": token })) } else { output::say(&token) }
}
