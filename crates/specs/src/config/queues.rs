//! The queues of the configuration file.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AcceleratorKind, Bytes, GpuSeconds, InvalidBytes, QueueName};
use gangline_orchestration::{Configuration, HourQuota, Period, QueueOrder, QueueSpec};
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
    gpu_hours: Option<GpuHoursV1>,
    /// The most bytes of each cache of datasets that its jobs may have, such as `500GB`.
    data_cache: Option<String>,
}

/// How many GPU-hours a queue may use in each period.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuHoursV1 {
    limit: NonZeroU32,
    per: PeriodV1,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PeriodV1 {
    Day,
    Week,
    Month,
}

impl From<GpuHoursV1> for HourQuota {
    fn from(written: GpuHoursV1) -> Self {
        let hour = GpuSeconds::of(1, Duration::from_hours(1)).nanos();
        let limit = GpuSeconds::from_nanos(hour * u128::from(written.limit.get()));
        let per = match written.per {
            PeriodV1::Day => Period::Day,
            PeriodV1::Week => Period::Week,
            PeriodV1::Month => Period::Month,
        };
        HourQuota { limit, per }
    }
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

/// What queues may have of each cache of datasets.
pub(super) type CacheQuotas = BTreeMap<QueueName, Bytes>;

/// Returns the queues and the half-life for the engine, and what queues may have of caches; an error names the queue.
pub(super) fn read(
    queues: Vec<QueueV1>,
    half_life_hours: Option<u32>,
    order: Option<OrderV1>,
) -> Result<(Configuration, CacheQuotas), (String, String)> {
    let (mut gpu_hours, mut quotas) = (BTreeMap::new(), CacheQuotas::new());
    let queue = |mut written: QueueV1| -> Result<QueueSpec, (String, String)> {
        let (name, hours, quota) = (written.name().to_owned(), written.gpu_hours, written.data_cache.take());
        let quota = quota.map(|text| text.parse::<Bytes>()).transpose();
        let quota = quota.map_err(|error: InvalidBytes| (name.clone(), format!("data_cache: {error}")))?;
        let spec = written.read().map_err(|message| (name, message))?;
        gpu_hours.extend(hours.map(|hours| (spec.name.clone(), hours.into())));
        quotas.extend(quota.map(|quota| (spec.name.clone(), quota)));
        Ok(spec)
    };
    let queues: Vec<QueueSpec> = queues.into_iter().map(queue).collect::<Result<_, _>>()?;
    let default = Configuration::default();
    let half_life = half_life_hours.map_or(default.half_life, |hours| Duration::from_hours(u64::from(hours)));
    let order = order.map_or(default.order, |order| match order {
        OrderV1::Fifo => QueueOrder::Fifo,
        OrderV1::ShortestExpected => QueueOrder::ShortestExpected,
    });
    Ok((Configuration { queues, gpu_hours, half_life, order, ..default }, quotas))
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
    fn what_a_queue_may_have_of_caches_is_read_in_bytes() {
        let text = |quota: &str| TEAMS.replace("weight = 2", &format!("data_cache = '{quota}'"));
        let quotas: Vec<_> = Config::parse(&text("500GB")).expect("a sound file").cache_quotas.into_iter().collect();
        let [(queue, quota)] = quotas.as_slice() else { panic!("one quota: {quotas:?}") };
        assert_eq!((queue.as_str(), quota.0), ("nlp", 500_000_000_000));
        let refused = Config::parse(&text("much")).expect_err("a refusal").to_string();
        assert!(refused.contains("nlp") && refused.contains("data_cache: "), "{refused}");
    }

    #[test]
    fn gpu_hours_are_read_with_their_period() {
        let text = TEAMS.replace("weight = 2", "gpu_hours = {limit = 5000, per = 'month'}");
        let sharing = Config::parse(&text).expect("a sound file").sharing;
        let quotas: Vec<_> = sharing.gpu_hours.iter().collect();
        let [(queue, quota)] = quotas.as_slice() else { panic!("one quota: {quotas:?}") };
        assert_eq!(
            (queue.as_str(), quota.limit.to_string().as_str(), quota.per.name()),
            ("nlp", "18000000.000", "month")
        );
        let refused = |text: &str| {
            let text = TEAMS.replace("weight = 2", text);
            Config::parse(&text).expect_err("a refusal").to_string()
        };
        assert!(refused("gpu_hours = {limit = 5, per = 'year'}").contains("`month`"));
        assert!(refused("gpu_hours = {limit = 0, per = 'day'}").contains("nonzero"));
        assert!(refused("gpu_hours = {limit = 5}").contains("per"));
        assert!(refused("gpu_hours = {limit = 5, per = 'day', kind = 'H100'}").contains("kind"));
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
