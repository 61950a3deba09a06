//! Advance reservations of nodes in the configuration file.

use gangline_base::{NodeName, QueueName, Timestamp};
use gangline_orchestration::AdvanceReservation;
use serde::{Deserialize, Deserializer, de};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReservationV1 {
    name: String,
    nodes: Vec<NodeName>,
    #[serde(deserialize_with = "moment")]
    from: Timestamp,
    #[serde(deserialize_with = "moment")]
    until: Timestamp,
    #[serde(default)]
    queues: Vec<QueueName>,
}

impl From<ReservationV1> for AdvanceReservation {
    fn from(written: ReservationV1) -> Self {
        let ReservationV1 { name, nodes, from, until, queues } = written;
        let (nodes, queues) = (nodes.into_iter().collect(), queues.into_iter().collect());
        AdvanceReservation { name, nodes, from, until, queues }
    }
}

/// Parses a time in RFC 3339.
fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
    let nanos = u64::try_from(time.as_nanosecond()).map_err(de::Error::custom)?;
    Ok(Timestamp::from_unix_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const WEEK: &str = "[[queue]]\nname='vision'\n[[reservation]]\nname='week'\nnodes=['n1','n2']\nqueues=['vision']\n\
        from='2026-12-01T08:00:00Z'\nuntil='2026-12-08T08:00:00+01:00'\n";

    #[test]
    fn a_reservation_is_read_with_its_window() {
        let sharing = Config::parse(WEEK).expect("a sound file").sharing;
        let [week] = sharing.reservations.as_slice() else { panic!("one: {sharing:?}") };
        assert_eq!((week.nodes.len(), week.queues.len()), (2, 1));
        assert_eq!(week.until.since(week.from).as_secs(), (7 * 24 - 1) * 3_600);
    }

    #[test]
    fn reservations_that_make_no_sense_are_refused() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        let second = WEEK.split_once("[[reservation]]").expect("it has one").1.replace("'week'", "'repair'");
        check(&format!("{WEEK}[[reservation]]{second}"), "\"week\" and \"repair\" both have n1 at one time");
        check(&WEEK.replace("2026-12-08", "2026-11-08"), "\"week\" is empty");
        check(&WEEK.replace("queues=['vision']", "queues=['visoin']"), "queue \"visoin\", which is not a queue here");
        check(&WEEK.replace("2026-12-01T08:00:00Z", "tomorrow"), "tomorrow");
    }
}
