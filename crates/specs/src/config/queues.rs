//! The queues of the configuration file.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AcceleratorKind, QueueName};
use gangline_orchestration::{Configuration, QueueOrder, QueueSpec};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueV1 {
    name: String,
    parent: Option<String>,
    weight: Option<NonZeroU32>,
    #[serde(default)]
    quota: BTreeMap<String, u32>,
    #[serde(default)]
    borrowing_limit: BTreeMap<String, u32>,
}

impl QueueV1 {
    /// Returns the name as written, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn read(self) -> Result<QueueSpec, String> {
        let name = |text: &str| QueueName::new(text).map_err(|error| error.to_string());
        let by_kind = |amounts: BTreeMap<String, u32>| {
            amounts.into_iter().map(|(kind, count)| (AcceleratorKind(kind), count)).collect()
        };
        Ok(QueueSpec {
            name: name(&self.name)?,
            parent: self.parent.as_deref().map(name).transpose()?,
            weight: self.weight.unwrap_or(NonZeroU32::MIN),
            quota: by_kind(self.quota),
            borrowing_limit: by_kind(self.borrowing_limit),
        })
    }
}

/// The order of a queue's jobs of one priority.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderV1 {
    Fifo,
    ShortestExpected,
}

/// Returns the queues and the half-life for the engine; an error names the queue.
pub(super) fn read(
    queues: Vec<QueueV1>,
    half_life_hours: Option<u32>,
    order: Option<OrderV1>,
) -> Result<Configuration, (String, String)> {
    let queue = |written: QueueV1| {
        let name = written.name().to_owned();
        written.read().map_err(|message| (name, message))
    };
    let queues = queues.into_iter().map(queue).collect::<Result<_, _>>()?;
    let default = Configuration::default();
    let half_life = half_life_hours.map_or(default.half_life, |hours| Duration::from_hours(u64::from(hours)));
    let order = order.map_or(default.order, |order| match order {
        OrderV1::Fifo => QueueOrder::Fifo,
        OrderV1::ShortestExpected => QueueOrder::ShortestExpected,
    });
    Ok(Configuration { queues, half_life, order, ..default })
}

#[cfg(test)]
mod tests {
    use gangline_orchestration::QueueOrder;

    use crate::config::Config;

    const TEAMS: &str = "half_life_hours = 24\n[[queue]]\nname = 'research'\nquota = {H100 = 16}\nborrowing_limit = {H100 = 8}\n\
        [[queue]]\nname = 'nlp'\nparent = 'research'\nweight = 2\nquota = {H100 = 12}";

    #[test]
    fn queues_are_read_with_their_parents() {
        let sharing = Config::parse(TEAMS).expect("a sound file").sharing;
        assert_eq!(sharing.half_life.as_secs(), 86_400);
        let [research, nlp] = sharing.queues.as_slice() else { panic!("two queues: {sharing:?}") };
        assert_eq!(nlp.parent.as_ref(), Some(&research.name));
        assert_eq!((nlp.weight.get(), research.weight.get()), (2, 1));
        let kind = gangline_base::AcceleratorKind("H100".to_owned());
        assert_eq!((research.limit(&kind), nlp.limit(&kind)), (Some(24), None));
    }

    #[test]
    fn the_order_is_read_and_first_come_first_served_is_the_default() {
        let order = |text: &str| Config::parse(text).expect("a sound file").sharing.order;
        assert_eq!(order(""), QueueOrder::Fifo);
        assert_eq!(order("order = 'shortest-expected'"), QueueOrder::ShortestExpected);
        assert_eq!(order("order = 'fifo'"), QueueOrder::Fifo);
        let refused = Config::parse("order = 'random'").expect_err("a refusal").to_string();
        assert!(refused.contains("fifo"), "{refused:?} names what there is");
    }

    #[test]
    fn contradictory_queues_are_refused() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check(&TEAMS.replace("H100 = 12", "H100 = 17"), "raise its quota or lower theirs");
        check(&TEAMS.replace("parent = 'research'", "parent = 'reserch'"), "\"reserch\", which is not a queue here");
        check(&TEAMS.replace("name = 'nlp'", "name = 'research'"), "two queues");
        check("[[queue]]\nname='a'\nparent='b'\n[[queue]]\nname='b'\nparent='a'", "its own parent");
        check("[[queue]]\nname='a'\nweight=0", "nonzero");
        check("[[queue]]\nname='a/b'", "a/b");
        check("[[queue]]\nname='a'\nqota={}", "qota");
        check("half_life_hours = 0", "half-life");
    }
}
