//! Queues and their usage, as stored on disk.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{AcceleratorKind, GpuSeconds, Money, QueueName, Timestamp};
use gangline_orchestration::RestartCosts;
use gangline_orchestration::{
    Configuration, HourQuota, HoursUsed, Period, PreemptionRules, QueueOrder, QueueSpec, Resource, Usage, Usages,
};
use serde::{Deserialize, Serialize};

use super::spares::SpareRulesV1;
use super::spec::millis;
use super::standing::{HealthPolicyV1, ReservationV1};
use super::topology::FabricV1;

#[derive(Serialize, Deserialize)]
pub(super) struct ConfigurationV1 {
    queues: Vec<QueueV1>,
    /// Missing in journals from before there were any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gpu_hours: Vec<HourQuotaV1>,
    half_life_ms: u64,
    /// Missing in journals from before there was a choice, when the order was by age.
    #[serde(default)]
    order: OrderV1,
    /// Missing in journals from before there was ageing, which replay without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ageing_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_queue: Option<QueueName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    aliases: BTreeMap<String, QueueName>,
    /// Nano-dollars per accelerator-hour.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prices: BTreeMap<String, Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fabric: Option<FabricV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    health: Option<HealthPolicyV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reservations: Vec<ReservationV1>,
    #[serde(default, skip_serializing_if = "SpareRulesV1::is_default")]
    spares: SpareRulesV1,
    #[serde(default)]
    preemption: Option<PreemptionV1>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OrderV1 {
    #[default]
    Fifo,
    ShortestExpected,
}

#[derive(Serialize, Deserialize)]
struct PreemptionV1 {
    reclaim: bool,
    by_priority: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    share_time: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    consolidate: bool,
    runtime_min_ms: u64,
    save_ms: u64,
    requeue_ms: u64,
    restore_ms: u64,
}

impl From<PreemptionRules> for PreemptionV1 {
    fn from(rules: PreemptionRules) -> Self {
        let PreemptionRules { reclaim, by_priority, share_time, consolidate, runtime_min, restart } = rules;
        PreemptionV1 {
            reclaim,
            by_priority,
            share_time,
            consolidate,
            runtime_min_ms: millis(runtime_min),
            save_ms: millis(restart.save),
            requeue_ms: millis(restart.requeue),
            restore_ms: millis(restart.restore),
        }
    }
}

impl From<PreemptionV1> for PreemptionRules {
    fn from(disk: PreemptionV1) -> Self {
        PreemptionRules {
            reclaim: disk.reclaim,
            by_priority: disk.by_priority,
            share_time: disk.share_time,
            consolidate: disk.consolidate,
            runtime_min: Duration::from_millis(disk.runtime_min_ms),
            restart: RestartCosts {
                save: Duration::from_millis(disk.save_ms),
                requeue: Duration::from_millis(disk.requeue_ms),
                restore: Duration::from_millis(disk.restore_ms),
            },
        }
    }
}

#[derive(Serialize, Deserialize)]
struct QueueV1 {
    name: QueueName,
    parent: Option<QueueName>,
    weight: NonZeroU32,
    quota: BTreeMap<String, u32>,
    borrowing_limit: BTreeMap<String, u32>,
}

#[derive(Serialize, Deserialize)]
struct HourQuotaV1 {
    queue: QueueName,
    /// Whole device-seconds.
    seconds: u64,
    per: PeriodV1,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PeriodV1 {
    Day,
    Week,
    Month,
}

/// The device time that a queue has used in a period.
#[derive(Serialize, Deserialize)]
pub(super) struct HoursUsedV1 {
    queue: QueueName,
    from: Timestamp,
    /// Device-time: whole seconds, then nanoseconds.
    used: (u64, u32),
    at: Timestamp,
}

/// Devices that a queue holds and has used; the sum over all queues has no name.
#[derive(Serialize, Deserialize)]
pub(super) struct QueueUsageV1 {
    queue: Option<QueueName>,
    usages: Vec<UsageV1>,
}

#[derive(Serialize, Deserialize)]
struct UsageV1 {
    resource: ResourceV1,
    held: u64,
    /// Units times time: whole seconds, then nanoseconds.
    served: (u64, u32),
    at: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResourceV1 {
    Accelerator(String),
    Cpus,
    Memory,
}

type Amounts = BTreeMap<AcceleratorKind, u32>;

fn amounts_to_disk(amounts: &Amounts) -> BTreeMap<String, u32> {
    amounts.iter().map(|(kind, count)| (kind.0.clone(), *count)).collect()
}

fn amounts_from_disk(amounts: BTreeMap<String, u32>) -> Amounts {
    amounts.into_iter().map(|(kind, count)| (AcceleratorKind(kind), count)).collect()
}

impl From<&Configuration> for ConfigurationV1 {
    fn from(configuration: &Configuration) -> Self {
        let queue = |queue: &QueueSpec| QueueV1 {
            name: queue.name.clone(),
            parent: queue.parent.clone(),
            weight: queue.weight,
            quota: amounts_to_disk(&queue.quota),
            borrowing_limit: amounts_to_disk(&queue.borrowing_limit),
        };
        ConfigurationV1 {
            queues: configuration.queues.iter().map(queue).collect(),
            gpu_hours: configuration.gpu_hours.iter().map(hours_to_disk).collect(),
            half_life_ms: millis(configuration.half_life),
            order: match configuration.order {
                QueueOrder::Fifo => OrderV1::Fifo,
                QueueOrder::ShortestExpected => OrderV1::ShortestExpected,
            },
            ageing_ms: configuration.ageing.map(millis),
            default_queue: configuration.default_queue.clone(),
            aliases: configuration.aliases.clone(),
            prices: configuration.prices.iter().map(|(kind, price)| (kind.0.clone(), *price)).collect(),
            fabric: configuration.fabric.as_ref().map(FabricV1::from),
            health: configuration.health.map(Into::into),
            reservations: configuration.reservations.iter().cloned().map(Into::into).collect(),
            spares: (&configuration.spares).into(),
            preemption: Some(configuration.preemption.into()),
        }
    }
}

impl From<ConfigurationV1> for Configuration {
    fn from(configuration: ConfigurationV1) -> Self {
        let queue = |queue: QueueV1| QueueSpec {
            name: queue.name,
            parent: queue.parent,
            weight: queue.weight,
            quota: amounts_from_disk(queue.quota),
            borrowing_limit: amounts_from_disk(queue.borrowing_limit),
        };
        Configuration {
            queues: configuration.queues.into_iter().map(queue).collect(),
            gpu_hours: configuration.gpu_hours.into_iter().map(hours_from_disk).collect(),
            half_life: Duration::from_millis(configuration.half_life_ms),
            order: match configuration.order {
                OrderV1::Fifo => QueueOrder::Fifo,
                OrderV1::ShortestExpected => QueueOrder::ShortestExpected,
            },
            ageing: configuration.ageing_ms.map(Duration::from_millis),
            default_queue: configuration.default_queue,
            aliases: configuration.aliases,
            prices: configuration.prices.into_iter().map(|(kind, price)| (AcceleratorKind(kind), price)).collect(),
            fabric: configuration.fabric.map(Into::into),
            health: configuration.health.map(Into::into),
            reservations: configuration.reservations.into_iter().map(Into::into).collect(),
            spares: configuration.spares.into(),
            // Journals without this field come from releases without preemption.
            preemption: configuration.preemption.map_or(PreemptionRules::OFF, Into::into),
        }
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

fn hours_to_disk((queue, quota): (&QueueName, &HourQuota)) -> HourQuotaV1 {
    let seconds = u64::try_from(quota.limit.nanos() / NANOS_PER_SECOND).unwrap_or(u64::MAX);
    let per = match quota.per {
        Period::Day => PeriodV1::Day,
        Period::Week => PeriodV1::Week,
        Period::Month => PeriodV1::Month,
    };
    HourQuotaV1 { queue: queue.clone(), seconds, per }
}

fn hours_from_disk(disk: HourQuotaV1) -> (QueueName, HourQuota) {
    let per = match disk.per {
        PeriodV1::Day => Period::Day,
        PeriodV1::Week => Period::Week,
        PeriodV1::Month => Period::Month,
    };
    (disk.queue, HourQuota { limit: GpuSeconds::from_nanos(u128::from(disk.seconds) * NANOS_PER_SECOND), per })
}

pub(super) fn used_to_disk((queue, hours): &(QueueName, HoursUsed)) -> HoursUsedV1 {
    let nanos = hours.used.nanos();
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos % NANOS_PER_SECOND).expect("a second has 10^9 nanoseconds");
    HoursUsedV1 { queue: queue.clone(), from: hours.from, used: (seconds, rest), at: hours.at }
}

pub(super) fn used_from_disk(disk: HoursUsedV1) -> (QueueName, HoursUsed) {
    let (seconds, nanos) = disk.used;
    let used = GpuSeconds::from_nanos(u128::from(seconds) * NANOS_PER_SECOND + u128::from(nanos));
    (disk.queue, HoursUsed { from: disk.from, used, at: disk.at })
}

pub(super) fn usages_to_disk((queue, usages): &(Option<QueueName>, Usages)) -> QueueUsageV1 {
    let usage = |(resource, usage): (&Resource, &Usage)| UsageV1 {
        resource: match resource {
            Resource::Accelerator(kind) => ResourceV1::Accelerator(kind.0.clone()),
            Resource::Cpus => ResourceV1::Cpus,
            Resource::Memory => ResourceV1::Memory,
        },
        held: usage.held,
        served: (usage.served.as_secs(), usage.served.subsec_nanos()),
        at: usage.at,
    };
    QueueUsageV1 { queue: queue.clone(), usages: usages.0.iter().map(usage).collect() }
}

pub(super) fn usages_from_disk(entry: QueueUsageV1) -> (Option<QueueName>, Usages) {
    let usage = |usage: UsageV1| {
        let resource = match usage.resource {
            ResourceV1::Accelerator(kind) => Resource::Accelerator(AcceleratorKind(kind)),
            ResourceV1::Cpus => Resource::Cpus,
            ResourceV1::Memory => Resource::Memory,
        };
        let (seconds, nanos) = usage.served;
        let served = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(u64::from(nanos)));
        (resource, Usage { held: usage.held, served, at: usage.at })
    };
    (entry.queue, Usages(entry.usages.into_iter().map(usage).collect()))
}
