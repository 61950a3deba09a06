//! Webhooks, and the messages that wait for them.
//!
//! A message is written in the transaction of its change, and removed once it was posted: a crash loses none, and may have one
//! posted twice. Each webhook's messages are posted in their order.

use gangline_tracking::{Refusal, UnixMillis, Webhook, WebhookEvent, check_webhook_name, check_webhook_url, limits};
use rusqlite::{OptionalExtension, Row, params};

use super::search::Page;
use super::{Failure, Reading, Writing};

const COLUMNS: &str = "SELECT id, uuid, name, url, description, is_active, created, updated FROM webhook";
/// The most webhooks.
const WEBHOOKS_MAX: u32 = 1000;
/// The most messages that wait for one webhook; more are not kept.
const WAITING_MAX: u32 = 10_000;
/// The longest secret, in letters.
const SECRET_MAX: usize = 1000;
/// The most messages that are due and returned at once: one of each webhook.
const DUE_MAX: u32 = 100;

/// A webhook to be made, or what changes of one.
#[derive(Clone, Debug, Default)]
pub struct WebhookChange {
    /// Its name.
    pub name: Option<String>,
    /// Where messages are posted.
    pub url: Option<String>,
    /// What it is for; empty for nothing.
    pub description: Option<String>,
    /// The events that it is subscribed to.
    pub events: Option<Vec<WebhookEvent>>,
    /// What messages are signed with; empty for nothing.
    pub secret: Option<String>,
    /// Whether it gets messages.
    pub is_active: Option<bool>,
}

/// A message that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The number of the message.
    pub id: i64,
    /// Where it is posted.
    pub url: String,
    /// What it is signed with.
    pub secret: Option<String>,
    /// The event.
    pub event: WebhookEvent,
    /// The event's data: JSON.
    pub data: String,
    /// How often it was tried.
    pub tries: u32,
}

impl WebhookChange {
    fn check(&self) -> Result<(), Refusal> {
        self.name.as_deref().map_or(Ok(()), check_webhook_name)?;
        self.url.as_deref().map_or(Ok(()), check_webhook_url)?;
        limits::check_length("description", limits::TAG_MAX, self.description.as_deref().unwrap_or_default())?;
        limits::check_length("secret", SECRET_MAX, self.secret.as_deref().unwrap_or_default())?;
        match &self.events {
            Some(events) if events.is_empty() => {
                Err(Refusal::invalid("Webhook events must be a non-empty list of WebhookEvent objects: []."))
            }
            _ => Ok(()),
        }
    }
}

impl Reading<'_> {
    /// Returns a webhook.
    ///
    /// # Errors
    /// If there is none.
    pub fn webhook(&self, id: &str) -> Result<Webhook, Failure> {
        self.webhook_row(id).map(|(_, webhook)| webhook)
    }

    /// Returns what messages of a webhook are signed with, if they are.
    ///
    /// # Errors
    /// If there is none.
    pub fn webhook_secret(&self, id: &str) -> Result<Option<String>, Failure> {
        let (row, _) = self.webhook_row(id)?;
        Ok(self.0.query_row("SELECT secret FROM webhook WHERE id = ?1", [row], |row| row.get(0))?)
    }

    /// Returns a page of webhooks, the newest first.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn webhooks(&self, count: usize, offset: usize) -> Result<Page<Webhook>, Failure> {
        let sql = format!("{COLUMNS} ORDER BY created DESC, id DESC LIMIT ?1 OFFSET ?2");
        let mut statement = self.0.prepare_cached(&sql)?;
        let [limit, skip] = [count + 1, offset].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let rows: Vec<(i64, Webhook)> = statement.query_map([limit, skip], webhook)?.collect::<Result<_, _>>()?;
        let next = (rows.len() > count).then_some(offset + count);
        let found = rows.into_iter().take(count).map(|(row, webhook)| self.with_events(row, webhook));
        Ok(Page { found: found.collect::<Result<_, Failure>>()?, next })
    }

    fn webhook_row(&self, id: &str) -> Result<(i64, Webhook), Failure> {
        let found =
            self.0.prepare_cached(&format!("{COLUMNS} WHERE uuid = ?1"))?.query_row([id], webhook).optional()?;
        let (row, webhook) = found.ok_or_else(|| Refusal::missing(format!("Webhook with ID {id} not found.")))?;
        Ok((row, self.with_events(row, webhook)?))
    }

    fn with_events(&self, row: i64, webhook: Webhook) -> Result<Webhook, Failure> {
        let mut statement = self.0.prepare_cached("SELECT entity, action FROM webhook_event WHERE webhook = ?1")?;
        let names: Vec<(String, String)> =
            statement.query_map([row], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let mut events: Vec<WebhookEvent> =
            names.iter().map(|(entity, action)| WebhookEvent::parse(entity, action)).collect::<Result<_, _>>()?;
        events.sort_by_key(|event| event.names());
        Ok(Webhook { events, ..webhook })
    }

    /// Returns the first message of each webhook, if it is due.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn due_deliveries(&self, now: UnixMillis) -> Result<Vec<Delivery>, Failure> {
        let sql = "SELECT d.id, w.url, w.secret, d.entity, d.action, d.data, d.tries
                   FROM webhook_delivery d JOIN webhook w ON w.id = d.webhook
                   WHERE d.id IN (SELECT min(id) FROM webhook_delivery GROUP BY webhook) AND d.due <= ?1
                   ORDER BY d.id LIMIT ?2";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut rows = statement.query(params![now.0, DUE_MAX])?;
        let mut due = Vec::new();
        while let Some(row) = rows.next()? {
            let (entity, action): (String, String) = (row.get(3)?, row.get(4)?);
            due.push(Delivery {
                id: row.get(0)?,
                url: row.get(1)?,
                secret: row.get(2)?,
                event: WebhookEvent::parse(&entity, &action)?,
                data: row.get(5)?,
                tries: row.get(6)?,
            });
        }
        Ok(due)
    }
}

impl Writing<'_> {
    /// Makes a webhook.
    ///
    /// # Errors
    /// If something of it can't be kept, or there are too many.
    pub fn create_webhook(&self, id: &str, new: WebhookChange, now: UnixMillis) -> Result<Webhook, Failure> {
        new.check()?;
        let count: u32 = self.0.query_row("SELECT count(*) FROM webhook", [], |row| row.get(0))?;
        if count >= WEBHOOKS_MAX {
            return Err(Refusal::invalid(format!("There are {WEBHOOKS_MAX} webhooks already: delete some.")).into());
        }
        let sql = "INSERT INTO webhook (uuid, name, url, description, secret, is_active, created, updated)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)";
        let (description, secret) = (set(new.description), set(new.secret));
        let is_active = new.is_active.unwrap_or(true);
        self.0.execute(sql, params![id, new.name, new.url, description, secret, is_active, now.0])?;
        self.set_events(self.0.last_insert_rowid(), &new.events.unwrap_or_default())?;
        self.reading().webhook(id)
    }

    /// Changes a webhook. Messages that wait are posted where it points then.
    ///
    /// # Errors
    /// If there is none, or something of it can't be kept.
    pub fn update_webhook(&self, id: &str, change: WebhookChange, now: UnixMillis) -> Result<Webhook, Failure> {
        change.check()?;
        let (row, _) = self.reading().webhook_row(id)?;
        let sql = "UPDATE webhook SET name = coalesce(?2, name), url = coalesce(?3, url),
                   is_active = coalesce(?4, is_active), updated = ?5 WHERE id = ?1";
        self.0.execute(sql, params![row, change.name, change.url, change.is_active, now.0])?;
        if let Some(description) = change.description {
            let sql = "UPDATE webhook SET description = ?2 WHERE id = ?1";
            self.0.execute(sql, params![row, set(Some(description))])?;
        }
        if let Some(secret) = change.secret {
            self.0.execute("UPDATE webhook SET secret = ?2 WHERE id = ?1", params![row, set(Some(secret))])?;
        }
        if let Some(events) = change.events {
            self.0.execute("DELETE FROM webhook_event WHERE webhook = ?1", [row])?;
            self.set_events(row, &events)?;
        }
        self.reading().webhook(id)
    }

    /// Deletes a webhook with the messages that wait for it.
    ///
    /// # Errors
    /// If there is none.
    pub fn delete_webhook(&self, id: &str) -> Result<(), Failure> {
        let (row, _) = self.reading().webhook_row(id)?;
        self.0.execute("DELETE FROM webhook_event WHERE webhook = ?1", [row])?;
        self.0.execute("DELETE FROM webhook_delivery WHERE webhook = ?1", [row])?;
        self.0.execute("DELETE FROM webhook WHERE id = ?1", [row])?;
        Ok(())
    }

    fn set_events(&self, row: i64, events: &[WebhookEvent]) -> Result<(), Failure> {
        let sql = "INSERT OR IGNORE INTO webhook_event (webhook, entity, action) VALUES (?1, ?2, ?3)";
        for event in events {
            let (entity, action) = event.names();
            self.0.execute(sql, params![row, entity, action])?;
        }
        Ok(())
    }

    /// Queues a message with this data, JSON, for each active webhook that is subscribed to an event. A webhook for which too many
    /// messages wait gets none.
    pub(super) fn queue_messages(&self, event: WebhookEvent, data: &str) -> Result<(), Failure> {
        let (entity, action) = event.names();
        let sql = "INSERT INTO webhook_delivery (webhook, entity, action, data, tries, due)
                   SELECT w.id, ?1, ?2, ?3, 0, 0 FROM webhook w JOIN webhook_event e ON e.webhook = w.id
                   WHERE w.is_active = 1 AND e.entity = ?1 AND e.action = ?2
                   AND (SELECT count(*) FROM webhook_delivery d WHERE d.webhook = w.id) < ?4";
        self.0.prepare_cached(sql)?.execute(params![entity, action, data, WAITING_MAX])?;
        Ok(())
    }

    /// Removes a message that was posted, or is given up.
    ///
    /// # Errors
    /// If it can't be.
    pub fn end_delivery(&self, id: i64) -> Result<(), Failure> {
        self.0.execute("DELETE FROM webhook_delivery WHERE id = ?1", [id])?;
        Ok(())
    }

    /// Notes that a message couldn't be posted, and is to be tried again at a time.
    ///
    /// # Errors
    /// If it can't be.
    pub fn put_delivery_off(&self, id: i64, due: UnixMillis) -> Result<(), Failure> {
        self.0.execute("UPDATE webhook_delivery SET tries = tries + 1, due = ?2 WHERE id = ?1", params![id, due.0])?;
        Ok(())
    }
}

/// Returns a text unless it is empty.
fn set(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn webhook(row: &Row<'_>) -> rusqlite::Result<(i64, Webhook)> {
    let webhook = Webhook {
        id: row.get(1)?,
        name: row.get(2)?,
        url: row.get(3)?,
        description: row.get(4)?,
        events: Vec::new(),
        is_active: row.get(5)?,
        created: UnixMillis(row.get(6)?),
        updated: UnixMillis(row.get(7)?),
    };
    Ok((row.get(0)?, webhook))
}
