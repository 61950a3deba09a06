//! Posts the messages of webhooks, as MLflow's server does it (3.17,
//! <https://mlflow.org/docs/latest/ml/webhooks/>): JSON, signed with HMAC-SHA256 if the webhook has a secret. A receiver that
//! doesn't take a message is tried again for about half an hour.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gangline_api::Time;
use gangline_base::{Timestamp, with_causes};
use gangline_store::tracking::{self, Delivery, Failure};
use gangline_tracking::{UnixMillis, WebhookEvent};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::value::RawValue;
use sha2::Sha256;

use crate::delivery::webhook::agent;
use crate::ids::uuid;

/// How long a receiver may take to answer.
const TRY_MAX: Duration = Duration::from_secs(10);
/// How often a message is tried before it is given up.
const TRIES_MAX: u32 = 12;
/// The pause after the first try; each is twice as long as the one before.
const PAUSE_MILLIS: i64 = 1_000;
/// The longest pause.
const PAUSE_MILLIS_MAX: i64 = 300_000;
/// The most bytes of an answer that a test shows.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
/// Answers of a receiver that may do better later.
const TRY_AGAIN: [u16; 3] = [408, 425, 429];

/// Posts messages. Cheap to clone. All of it blocks.
#[derive(Clone, Debug)]
pub struct Webhooks {
    tracking: tracking::Handle,
    clock: fn() -> Timestamp,
    /// Made at the first post, since reading the machine's certificates takes long.
    agent: Arc<OnceLock<ureq::Agent>>,
}

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tested {
    /// The status and the body of the answer, or why there was none.
    pub answer: Result<(u16, String), String>,
}

#[derive(serde::Serialize)]
struct Message<'a> {
    entity: &'a str,
    action: &'a str,
    timestamp: Time,
    data: &'a RawValue,
}

impl Webhooks {
    /// Returns what posts the messages of a control plane's webhooks.
    #[must_use]
    pub fn new(tracking: tracking::Handle, clock: fn() -> Timestamp) -> Webhooks {
        Webhooks { tracking, clock, agent: Arc::default() }
    }

    /// Posts the messages that are due, one after the other, until it is told to stop.
    pub fn post_due(&self, is_stopping: impl Fn() -> bool) {
        let now = UnixMillis::of((self.clock)());
        let due = match self.tracking.read(|reading| reading.due_deliveries(now)) {
            Ok(due) => due,
            // Without tracking there is nothing to post.
            Err(Failure::Stopped(_)) => return,
            Err(failure) => return tracing::warn!(error = with_causes(&failure), "messages of webhooks can't be read"),
        };
        for delivery in due {
            if is_stopping() {
                return;
            }
            if let Err(failure) = self.post(&delivery) {
                tracing::warn!(error = with_causes(&failure), "the state of a webhook's message can't be kept");
            }
        }
    }

    fn post(&self, delivery: &Delivery) -> Result<(), Failure> {
        let id = delivery.id;
        let cause = match self.send(&delivery.url, delivery.secret.as_deref(), delivery.event, &delivery.data) {
            Ok((200..=299, _)) => return self.tracking.write(move |writing| writing.end_delivery(id)),
            Ok((status, _)) if status < 500 && !TRY_AGAIN.contains(&status) => {
                tracing::warn!(event = ?delivery.event, status, "a webhook refuses its message");
                return self.tracking.write(move |writing| writing.end_delivery(id));
            }
            Ok((status, _)) => format!("it answered {status}"),
            Err(cause) => cause,
        };
        if delivery.tries + 1 >= TRIES_MAX {
            tracing::warn!(event = ?delivery.event, cause, "a webhook's message is given up");
            return self.tracking.write(move |writing| writing.end_delivery(id));
        }
        let pause =
            PAUSE_MILLIS.checked_shl(delivery.tries).map_or(PAUSE_MILLIS_MAX, |pause| pause.min(PAUSE_MILLIS_MAX));
        let due = UnixMillis(UnixMillis::of((self.clock)()).0 + pause);
        self.tracking.write(move |writing| writing.put_delivery_off(id, due))
    }

    /// Posts an example of a message, once.
    ///
    /// # Errors
    /// If there is no such webhook.
    pub fn test(&self, id: &str, event: Option<WebhookEvent>) -> Result<Tested, Failure> {
        let (webhook, secret) =
            self.tracking.read(|reading| Ok::<_, Failure>((reading.webhook(id)?, reading.webhook_secret(id)?)))?;
        let event = event.or(webhook.events.first().copied()).unwrap_or(WebhookEvent::ModelVersionCreated);
        let answer = self.send(&webhook.url, secret.as_deref(), event, example(event));
        Ok(Tested { answer })
    }

    /// Posts a message; returns the status and the beginning of the answer, or why there is none.
    fn send(&self, url: &str, secret: Option<&str>, event: WebhookEvent, data: &str) -> Result<(u16, String), String> {
        let now = (self.clock)();
        let (entity, action) = event.names();
        let data = serde_json::from_str(data).map_err(|error| format!("its data is damaged: {error}"))?;
        let body = serde_json::to_string(&Message { entity, action, timestamp: Time(now), data });
        let body = body.map_err(|error| error.to_string())?;
        let (delivery, seconds) =
            (uuid().map_err(|error| error.to_string())?, (now.unix_nanos() / 1_000_000_000).to_string());
        let mut request = self.agent.get_or_init(|| agent(TRY_MAX)).post(url).header("User-Agent", "gangline");
        request = request.header("Content-Type", "application/json");
        request = request.header("X-MLflow-Delivery-Id", &delivery).header("X-MLflow-Timestamp", &seconds);
        if let Some(secret) = secret {
            request = request.header("X-MLflow-Signature", signature(secret, &delivery, &seconds, &body)?);
        }
        let mut answer = request.send(&body).map_err(|error| error.to_string())?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        Ok((answer.status().as_u16(), text.unwrap_or_default()))
    }
}

/// Returns the signature of a message: base64 of HMAC-SHA256 of its id, its time and its body, with dots between them.
fn signature(secret: &str, delivery: &str, seconds: &str, body: &str) -> Result<String, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map_err(|error| error.to_string())?;
    mac.update(format!("{delivery}.{seconds}.{body}").as_bytes());
    Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

/// Returns the data of an event in a test.
fn example(event: WebhookEvent) -> &'static str {
    match event {
        WebhookEvent::RegisteredModelCreated => {
            r#"{"name": "example_model", "tags": {"example_key": "example_value"}, "description": "An example registered model"}"#
        }
        WebhookEvent::ModelVersionCreated => {
            r#"{"name": "example_model", "version": "1", "source": "models:/123", "run_id": "abcd1234abcd5678",
                "tags": {"example_key": "example_value"}, "description": "An example model version"}"#
        }
        WebhookEvent::ModelVersionTagSet => {
            r#"{"name": "example_model", "version": "1", "key": "example_key", "value": "example_value"}"#
        }
        WebhookEvent::ModelVersionTagDeleted => r#"{"name": "example_model", "version": "1", "key": "example_key"}"#,
        WebhookEvent::ModelVersionAliasCreated => {
            r#"{"name": "example_model", "alias": "example_alias", "version": "1"}"#
        }
        WebhookEvent::ModelVersionAliasDeleted => r#"{"name": "example_model", "alias": "example_alias"}"#,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_mlflows_server() {
        // Computed with mlflow.webhooks.delivery._generate_hmac_signature of MLflow 3.17.2.
        let signed = signature("secret", "d1", "1700000000", "{\"a\": 1}");
        assert_eq!(signed.as_deref(), Ok("v1,a6H6hbbrMljFhQoCEGh+3DUc1nt7GJ1ZUeydTgWFZ0Q="));
    }
}
