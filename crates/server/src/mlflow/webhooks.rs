//! Webhooks of the model registry.

use axum::routing::MethodFilter;
use gangline_store::tracking::WebhookChange;
use gangline_tracking::{Webhook, WebhookEvent};
use serde_json::{Value, json};

use super::answer::MlflowError;
use super::fields::Fields;
use super::{DELETE, GET, Handler, PATCH, POST, Tracking, names, wire};

/// The paths below `/api/2.0/mlflow`.
pub(super) const ROUTES: &[(MethodFilter, &str, Handler)] = &[
    (POST, "/webhooks", create),
    (GET, "/webhooks", list),
    (GET, "/webhooks/{webhook_id}", show),
    (PATCH, "/webhooks/{webhook_id}", update),
    (DELETE, "/webhooks/{webhook_id}", delete),
    (POST, "/webhooks/{webhook_id}/test", test),
];

const COUNT: usize = 100;
const COUNT_MAX: usize = 1000;

fn create(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    require_user(&fields)?;
    let new = change(&mut fields)?;
    for (name, is_missing) in
        [("name", new.name.is_none()), ("url", new.url.is_none()), ("events", new.events.is_none())]
    {
        if is_missing {
            return Err(MlflowError::missing_parameter(name));
        }
    }
    let (id, now) = (names::uuid()?, tracking.now());
    let webhook = tracking.store.write(move |writing| writing.create_webhook(&id, new, now))?;
    Ok(json!({"webhook": shown(&webhook)}))
}

fn list(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let (count, offset) = (fields.count(COUNT, COUNT_MAX)?, fields.offset()?);
    let page = tracking.store.read(|reading| reading.webhooks(count, offset))?;
    Ok(wire::page("webhooks", &page, shown))
}

fn show(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    let id = fields.required("webhook_id")?;
    Ok(json!({"webhook": shown(&tracking.store.read(|reading| reading.webhook(&id))?)}))
}

fn update(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    require_user(&fields)?;
    let (id, change, now) = (fields.required("webhook_id")?, change(&mut fields)?, tracking.now());
    let webhook = tracking.store.write(move |writing| writing.update_webhook(&id, change, now))?;
    Ok(json!({"webhook": shown(&webhook)}))
}

fn delete(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    require_user(&fields)?;
    let id = fields.required("webhook_id")?;
    tracking.store.write(move |writing| writing.delete_webhook(&id))?;
    Ok(json!({}))
}

fn test(tracking: &Tracking, mut fields: Fields) -> Result<Value, MlflowError> {
    require_user(&fields)?;
    let id = fields.required("webhook_id")?;
    let event = fields.object("event")?.map(event).transpose()?;
    let result = match tracking.webhooks.test(&id, event)?.answer {
        Ok((status, body)) => json!({"success": status < 400, "response_status": status, "response_body": body}),
        Err(cause) => json!({"success": false, "error_message": format!("Failed to test webhook: {cause}")}),
    };
    Ok(json!({"result": result}))
}

/// A rank's token makes no webhooks: they call addresses from the control plane's machine.
fn require_user(fields: &Fields) -> Result<(), MlflowError> {
    match fields.attempt() {
        None => Ok(()),
        Some(_) => Err(MlflowError::denied("a job's token can't change webhooks: use the data folder's")),
    }
}

fn change(fields: &mut Fields) -> Result<WebhookChange, MlflowError> {
    let events: Vec<WebhookEvent> = fields.objects("events")?.into_iter().map(event).collect::<Result<_, _>>()?;
    let is_active = match fields.word("status")?.as_deref() {
        None => None,
        Some("ACTIVE") => Some(true),
        Some("DISABLED") => Some(false),
        Some(other) => {
            let message = format!("Invalid webhook status: '{other}'. Valid are ACTIVE, DISABLED.");
            return Err(MlflowError::invalid(message));
        }
    };
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(WebhookChange {
        name: filled(fields.text("name")?),
        url: filled(fields.text("url")?),
        description: fields.text("description")?,
        events: (!events.is_empty()).then_some(events),
        secret: fields.text("secret")?,
        is_active,
    })
}

fn event(mut fields: Fields) -> Result<WebhookEvent, MlflowError> {
    Ok(WebhookEvent::parse(&fields.required("entity")?, &fields.required("action")?)?)
}

fn shown(webhook: &Webhook) -> Value {
    let event = |event: &WebhookEvent| {
        let (entity, action) = event.names();
        json!({"entity": entity.to_uppercase(), "action": action.to_uppercase()})
    };
    wire::Object::new()
        .with("webhook_id", webhook.id.as_str())
        .with("name", webhook.name.as_str())
        .with_some("description", webhook.description.as_deref())
        .with("url", webhook.url.as_str())
        .with_list("events", &webhook.events, event)
        .with("status", if webhook.is_active { "ACTIVE" } else { "DISABLED" })
        .with("creation_timestamp", webhook.created.0)
        .with("last_updated_timestamp", webhook.updated.0)
        .done()
}
