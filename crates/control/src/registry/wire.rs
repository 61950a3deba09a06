//! Models and versions as the API shows them.

use gangline_api::{self as api, Time};
use gangline_base::Timestamp;
use gangline_store::tracking::{Failure, Reading};
use gangline_tracking::{ModelVersion, RegisteredModel, UnixMillis};

/// Returns a version, with its lineage if it is asked for.
pub(super) fn version(
    reading: &Reading<'_>,
    version: ModelVersion,
    has_lineage: bool,
) -> Result<api::ModelVersion, Failure> {
    let (name, number) = (version.name, version.version);
    let checkpoint = reading.checkpoint_version(&name, number)?;
    let events = reading.model_events(&name, number)?.into_iter();
    let event = |event: gangline_tracking::ModelEvent| api::ModelEvent {
        at: time(event.at),
        by: event.by,
        action: event.action.name().to_owned(),
        detail: event.detail,
    };
    let lineage = checkpoint.as_ref().filter(|_| has_lineage).map(|found| serde_json::from_str(&found.lineage));
    let unreadable = |error| Failure::Store(format!("the lineage of version {number} of {name} is damaged: {error}"));
    Ok(api::ModelVersion {
        number,
        description: version.description.unwrap_or_default(),
        created_at: time(version.created),
        source: version.source,
        aliases: version.aliases,
        run: version.run,
        pin: checkpoint.map(|checkpoint| checkpoint.pin),
        history: events.map(event).collect(),
        lineage: lineage.transpose().map_err(unreadable)?,
        model: name,
    })
}

pub(super) fn model(model: RegisteredModel, versions: Vec<api::ModelVersion>) -> api::Model {
    api::Model {
        name: model.name,
        description: model.description.unwrap_or_default(),
        aliases: model.aliases.into_iter().map(|alias| (alias.name, alias.version)).collect(),
        versions,
    }
}

fn time(UnixMillis(millis): UnixMillis) -> Time {
    Time(Timestamp::from_unix_nanos(millis.max(0).cast_unsigned().saturating_mul(1_000_000)))
}
