//! Alerts and silences as they outlive a restart: JSON with a version.

use gangline_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::alert::{Alert, Silence};
use super::engine::Engine;
use super::rule::Rule;

/// The version of the format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct SavedV1 {
    version: u32,
    last_id: u64,
    alerts: Vec<Alert>,
    ended: Vec<Alert>,
    silences: Vec<Silence>,
}

/// Why what was saved can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It isn't what was written.
    #[error("it is damaged")]
    Damaged(#[from] serde_json::Error),
    /// A newer release wrote it.
    #[error("it has version {0}, which is newer than this release")]
    Newer(u32),
}

impl Engine {
    /// Returns alerts and silences as text.
    ///
    /// # Panics
    /// Never: all of it can be JSON.
    #[must_use]
    pub fn save(&self) -> String {
        let saved = SavedV1 {
            version: VERSION,
            last_id: self.last_id,
            alerts: self.alerts.values().cloned().collect(),
            ended: self.ended.clone(),
            silences: self.silences.clone(),
        };
        serde_json::to_string(&saved).expect("it has no maps, and no keys that aren't texts")
    }

    /// Returns an engine with these rules that goes on with what was saved. Times in the future, of a clock that was
    /// wrong, count as now.
    ///
    /// # Errors
    /// [`Unreadable`]; nothing is known then.
    pub fn restore(rules: Vec<Rule>, saved: &str, now: Timestamp) -> Result<Engine, Unreadable> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(saved)?;
        if version > VERSION {
            return Err(Unreadable::Newer(version));
        }
        let saved: SavedV1 = serde_json::from_str(saved)?;
        let mut engine = Engine::new(rules);
        engine.last_id = saved.last_id;
        for mut alert in saved.alerts {
            alert.since = alert.since.min(now);
            alert.told_at = alert.told_at.map(|at| at.min(now));
            alert.clear_since = alert.clear_since.map(|at| at.min(now));
            engine.alerts.insert((alert.rule.clone(), alert.subject.clone()), alert);
        }
        (engine.ended, engine.silences) = (saved.ended, saved.silences);
        Ok(engine)
    }
}
