//! Webhooks: addresses to which changes of the model registry are posted.

use crate::{Refusal, UnixMillis, limits};

/// The longest name, in letters.
const NAME_MAX: usize = 63;

/// A change that a webhook can subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebhookEvent {
    /// A registered model was made.
    RegisteredModelCreated,
    /// A version was made.
    ModelVersionCreated,
    /// A tag of a version was set.
    ModelVersionTagSet,
    /// A tag of a version was removed.
    ModelVersionTagDeleted,
    /// An alias was pointed at a version.
    ModelVersionAliasCreated,
    /// An alias was removed.
    ModelVersionAliasDeleted,
}

/// A webhook. Its secret isn't shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where messages are posted.
    pub url: String,
    /// What it is for.
    pub description: Option<String>,
    /// The events that it is subscribed to.
    pub events: Vec<WebhookEvent>,
    /// Whether it gets messages.
    pub is_active: bool,
    /// When it was made.
    pub created: UnixMillis,
    /// When it last changed.
    pub updated: UnixMillis,
}

impl WebhookEvent {
    /// All.
    pub const ALL: [WebhookEvent; 6] = [
        WebhookEvent::RegisteredModelCreated,
        WebhookEvent::ModelVersionCreated,
        WebhookEvent::ModelVersionTagSet,
        WebhookEvent::ModelVersionTagDeleted,
        WebhookEvent::ModelVersionAliasCreated,
        WebhookEvent::ModelVersionAliasDeleted,
    ];

    /// Returns what changes and how, in small letters.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            WebhookEvent::RegisteredModelCreated => ("registered_model", "created"),
            WebhookEvent::ModelVersionCreated => ("model_version", "created"),
            WebhookEvent::ModelVersionTagSet => ("model_version_tag", "set"),
            WebhookEvent::ModelVersionTagDeleted => ("model_version_tag", "deleted"),
            WebhookEvent::ModelVersionAliasCreated => ("model_version_alias", "created"),
            WebhookEvent::ModelVersionAliasDeleted => ("model_version_alias", "deleted"),
        }
    }

    /// Reads an event, in small or capital letters.
    ///
    /// # Errors
    /// If it is none that a webhook can subscribe to.
    pub fn parse(entity: &str, action: &str) -> Result<WebhookEvent, Refusal> {
        let is_it = |event: &WebhookEvent| {
            let (known, how) = event.names();
            known.eq_ignore_ascii_case(entity) && how.eq_ignore_ascii_case(action)
        };
        WebhookEvent::ALL.into_iter().find(is_it).ok_or_else(|| {
            let known = WebhookEvent::ALL.map(|event| format!("{}.{}", event.names().0, event.names().1)).join(", ");
            let event = format!("{}.{}", entity.to_lowercase(), action.to_lowercase());
            Refusal::invalid(format!("A webhook can't subscribe to {event}. Events are {known}."))
        })
    }
}

/// Checks the name of a webhook.
///
/// # Errors
/// If it is empty, too long, or has other signs than letters, digits, dots, underscores and hyphens.
pub fn check_webhook_name(name: &str) -> Result<(), Refusal> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    let is_end = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    if name.len() <= NAME_MAX
        && name.chars().all(is_plain)
        && is_end(name.chars().next())
        && is_end(name.chars().last())
    {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "Webhook name '{name}' is invalid. It must start and end with a letter or digit, be less than 63 characters long, \
         and contain only letters, digits, dots (.), underscores (_), and hyphens (-)."
    )))
}

/// Checks the URL of a webhook. Other than MLflow's server, ours may call private addresses and `http`: those who may make
/// webhooks may run jobs in the same network.
///
/// # Errors
/// If it isn't an `http` or `https` URL with a host.
pub fn check_webhook_url(url: &str) -> Result<(), Refusal> {
    limits::check_length("url", limits::URI_MAX, url)?;
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = host else {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let message = format!("Invalid webhook URL scheme: '{scheme}'. Allowed schemes are: https, http.");
        return Err(Refusal::invalid(message));
    };
    if rest.is_empty() || rest.starts_with(['/', ':', '?', '#']) || rest.contains(char::is_whitespace) {
        return Err(Refusal::invalid(format!("Webhook URL must include a hostname: '{url}'")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_clients_write_them() {
        for event in WebhookEvent::ALL {
            let (entity, action) = event.names();
            assert_eq!(WebhookEvent::parse(&entity.to_uppercase(), &action.to_uppercase()), Ok(event));
        }
        let refused = WebhookEvent::parse("PROMPT", "CREATED").expect_err("there are no prompts");
        assert!(refused.message.contains("prompt.created") && refused.message.contains("model_version_alias.created"));
    }

    #[test]
    fn names_and_urls_that_cannot_be_are_refused() {
        ["a", "a-b_c.d", &"x".repeat(63)].into_iter().for_each(|name| check_webhook_name(name).expect(name));
        ["", "-a", "a-", "a b", "ä", &"x".repeat(64)].into_iter().for_each(|name| {
            check_webhook_name(name).expect_err(name);
        });
        ["https://h", "http://127.0.0.1:8/x?y"].into_iter().for_each(|url| check_webhook_url(url).expect(url));
        ["", "ftp://h", "h", "https://", "https:///x", "http://a b"].into_iter().for_each(|url| {
            check_webhook_url(url).expect_err(url);
        });
    }
}
