//! Whom a job tells, as stored on disk. The webhook's URL is in the journal, as the job's environment is; no answer of
//! the API has it.

use std::collections::BTreeSet;
use std::fmt;

use gangline_base::{EmailAddress, Notify, Occasion, WebhookUrl};
use serde::{Deserialize, Serialize};

use super::Error;

/// Whom a job tells, version 1.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NotifyV1 {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    webhook: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    email: Option<String>,
    on: BTreeSet<OccasionV1>,
}

impl fmt::Debug for NotifyV1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotifyV1").field("on", &self.on).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OccasionV1 {
    Start,
    End,
    Failure,
}

impl NotifyV1 {
    /// Returns the stored form; none for a job that tells nobody.
    pub(super) fn of(notify: &Notify) -> Option<NotifyV1> {
        (*notify != Notify::default()).then(|| NotifyV1 {
            webhook: notify.webhook.as_ref().map(|url| url.reveal().to_owned()),
            email: notify.email.as_ref().map(ToString::to_string),
            on: notify.on.iter().copied().map(OccasionV1::from).collect(),
        })
    }
}

impl TryFrom<NotifyV1> for Notify {
    type Error = Error;

    fn try_from(notify: NotifyV1) -> Result<Notify, Error> {
        let webhook = notify.webhook.as_deref().map(WebhookUrl::new).transpose();
        let email = notify.email.as_deref().map(EmailAddress::new).transpose();
        Ok(Notify {
            webhook: webhook.map_err(|_| Error::Impossible("webhook"))?,
            email: email.map_err(|_| Error::Impossible("email"))?,
            on: notify.on.into_iter().map(Occasion::from).collect(),
        })
    }
}

impl From<Occasion> for OccasionV1 {
    fn from(occasion: Occasion) -> OccasionV1 {
        match occasion {
            Occasion::Start => OccasionV1::Start,
            Occasion::End => OccasionV1::End,
            Occasion::Failure => OccasionV1::Failure,
        }
    }
}

impl From<OccasionV1> for Occasion {
    fn from(occasion: OccasionV1) -> Occasion {
        match occasion {
            OccasionV1::Start => Occasion::Start,
            OccasionV1::End => Occasion::End,
            OccasionV1::Failure => Occasion::Failure,
        }
    }
}
