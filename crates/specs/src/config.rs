//! The control plane's configuration file: the address to listen on, the nodes, and how they are shared.
//!
//! ```toml
//! listen = "127.0.0.1:7878"
//!
//! [[node]]
//! name = "box"
//! accelerators = "H100:8"
//! cpus = 96
//! memory = "2TiB"
//! price_per_accelerator_hour = "2.49"   # US dollars
//!
//! [[queue]]
//! name = "research"
//! quota = { H100 = 4 }
//!
//! [preemption]
//! min_runtime = "10m"
//!
//! [[price]]
//! accelerator = "H100"
//! usd_per_hour = "2.50"
//!
//! [fabric]                               # what one port carries, in Gbit/s
//! node_gbps = 3600
//! rack_gbps = 400
//! ```

mod artifacts;
mod billing;
mod budgets;
mod code;
mod export;
mod fabric;
mod limits;
mod overheads;
mod people;
mod preemption;
mod prices;
mod queues;
mod regions;
mod request_prices;
mod reservations;
mod retention;
mod scheduling;
mod smtp;
mod spares;
mod storage;
mod suspicion;
mod tls;

pub use artifacts::Artifacts;
pub use billing::Billing;
pub use budgets::{Budget, BudgetOf, WhenSpent};
pub use export::{Otlp, Receiver};
pub use overheads::{DeviceOverheads, Overheads, Power};
pub use people::People;
pub use prices::{Prices, agree_on_prices};
pub use regions::Regions;
pub use request_prices::RequestPrice;
pub use retention::{MetricRetention, Retention};
pub use smtp::{Smtp, SmtpSecurity};
pub use storage::{FolderPrice, Storage};
pub use tls::TlsFiles;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gangline_base::{AcceleratorKind, Bytes, DeviceLayout, Level, Money, NodeName, PoolName, QueueName};
use gangline_orchestration::{Configuration, InvalidConfiguration, Limits, Location, NodeCapacity, check_locations};
use serde::Deserialize;

/// The most accelerators on a node (A-10).
const ACCELERATORS_PER_NODE_MAX: u32 = 1_024;
/// The most nodes in a file (A-10).
const NODES_MAX: usize = 10_000;
/// The most accelerators in all: a gang with all of them still fits into one journal entry (A-10).
const ACCELERATORS_MAX: u64 = 262_144;
/// The highest price of an accelerator-hour: above any real one, and low enough that a year's bill can't
/// overflow.
const PRICE_MAX: Money = Money::from_nano_dollars(1_000_000_000_000);

/// A node and its price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The node's name.
    pub name: NodeName,
    /// The node's accelerators, cores and memory.
    pub capacity: NodeCapacity,
    /// The node's place in the network, as far as it is known.
    pub location: Location,
    /// How the node's accelerators are joined, as far as it is known.
    pub layout: DeviceLayout,
    /// The file with the output of `nvidia-smi topo -m` on the node; see [`NodeConfig::join_devices`].
    pub links_file: Option<String>,
    /// The name or address by which other nodes reach this one.
    pub address: String,
    /// The price of an accelerator-hour; `None` if the configuration names none.
    pub price_per_hour: Option<Money>,
}

/// The contents of a configuration file; a missing file counts as an empty one.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The address and port to listen on.
    pub listen: Option<String>,
    /// The name or address by which other machines reach the control plane's host.
    pub advertise: Option<String>,
    /// The user's certificate for connections beyond loopback; `None` means a self-made one.
    pub tls: Option<TlsFiles>,
    /// The file that locates the nodes: a network description that a launcher reads; see [`Config::locate`].
    pub topology_file: Option<String>,
    /// The file of alert rules and receivers, which telemetry reads.
    pub alerts_file: Option<String>,
    /// The folder of the journal, on a local disk, if it isn't the data folder.
    pub journal: Option<PathBuf>,
    /// The nodes.
    pub nodes: Vec<NodeConfig>,
    /// Environment variables that ranks inherit beside the usual ones: names, or prefixes followed by a star.
    pub inherit: Vec<String>,
    /// The launcher's own table; `None` means that gangs are started on this machine.
    pub launcher: Option<toml::Table>,
    /// The queues and rules by which the cluster is shared.
    pub sharing: Configuration,
    /// What queues may have of each cache of datasets.
    pub cache_quotas: BTreeMap<QueueName, Bytes>,
    /// Money for calendar periods, of whose use somebody is told.
    pub budgets: Vec<Budget>,
    /// The limits of what users may submit.
    pub limits: Limits,
    /// The rules of when data is removed.
    pub retention: Retention,
    /// What bills have besides the prices of devices.
    pub billing: Billing,
    /// Where the contents of artifacts are kept.
    pub artifacts: Artifacts,
    /// The server by which notices are mailed; `None` if there is none.
    pub smtp: Option<Smtp>,
    /// The largest copy of a job's code.
    pub snapshot_max: Bytes,
    /// Where measurements are sent as well; `None` if nowhere.
    pub remote_write: Option<Receiver>,
    /// Where queries about measurements are answered; `None` if by the series store alone.
    pub remote_read: Option<Receiver>,
    /// What is sent by OpenTelemetry's protocol, and where.
    pub otlp: Option<Otlp>,
}

/// The reason why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text isn't TOML of the expected shape; the message has the line.
    #[error("the configuration is not readable: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A node has an invalid value.
    #[error("node \"{node}\": {message}")]
    Node {
        /// The node's name as written.
        node: String,
        /// The defect.
        message: String,
    },
    /// A queue has an invalid value.
    #[error("queue \"{queue}\": {message}")]
    Queue {
        /// The queue's name as written.
        queue: String,
        /// The defect.
        message: String,
    },
    /// A budget is invalid.
    #[error("budget \"{budget}\": {message}")]
    Budget {
        /// The budget.
        budget: String,
        /// What is wrong.
        message: String,
    },
    /// A price is invalid.
    #[error("the price of {accelerator}: {message}")]
    Price {
        /// The kind of accelerator as written.
        accelerator: String,
        /// The defect.
        message: String,
    },
    /// A table has an invalid value.
    #[error("{table}: {message}")]
    Table {
        /// The table's name.
        table: &'static str,
        /// The defect.
        message: String,
    },
    /// The queues contradict each other.
    #[error(transparent)]
    Sharing(#[from] InvalidConfiguration),
    /// More accelerators than are supported.
    #[error("{count} accelerators are more than the {ACCELERATORS_MAX} there may be")]
    TooManyAccelerators {
        /// The number of accelerators.
        count: u64,
    },
    /// More nodes than one file may have.
    #[error("{count} nodes are more than the {NODES_MAX} one file may have")]
    TooManyNodes {
        /// The number of nodes.
        count: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileV1 {
    listen: Option<String>,
    advertise: Option<String>,
    tls: Option<TlsFiles>,
    topology_file: Option<String>,
    alerts_file: Option<String>,
    journal: Option<PathBuf>,
    region: Option<String>,
    #[serde(default)]
    inherit: Vec<String>,
    launcher: Option<toml::Table>,
    #[serde(default)]
    node: Vec<NodeV1>,
    #[serde(default)]
    queue: Vec<queues::QueueV1>,
    half_life_hours: Option<u32>,
    order: Option<queues::OrderV1>,
    #[serde(default)]
    price: Vec<prices::PriceV1>,
    #[serde(default)]
    budget: Vec<budgets::BudgetV1>,
    preemption: Option<preemption::PreemptionV1>,
    fabric: Option<fabric::FabricV1>,
    #[serde(default)]
    reservation: Vec<reservations::ReservationV1>,
    #[serde(default)]
    suspicion: suspicion::SuspicionV1,
    #[serde(default)]
    spares: spares::SparesV1,
    #[serde(default)]
    scheduling: scheduling::SchedulingV1,
    #[serde(default)]
    sbatch: scheduling::SbatchV1,
    #[serde(default)]
    limits: limits::LimitsV1,
    #[serde(default)]
    retention: retention::RetentionV1,
    #[serde(default)]
    overhead: Vec<overheads::OverheadV1>,
    energy: Option<overheads::EnergyV1>,
    people: Option<people::PeopleV1>,
    #[serde(default)]
    storage: storage::StorageV1,
    #[serde(default)]
    artifacts: artifacts::ArtifactsV1,
    smtp: Option<smtp::SmtpV1>,
    #[serde(default)]
    code: code::CodeV1,
    remote_write: Option<export::ReceiverV1>,
    remote_read: Option<export::ReceiverV1>,
    otlp: Option<export::OtlpV1>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeV1 {
    name: String,
    accelerators: String,
    pool: Option<String>,
    cpus: Option<u32>,
    memory: Option<String>,
    nvlink: Option<String>,
    rack: Option<String>,
    rail: Option<String>,
    block: Option<String>,
    pod: Option<String>,
    links_file: Option<String>,
    address: Option<String>,
    region: Option<String>,
    price_per_accelerator_hour: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config::parse("").expect("an empty file is sound")
    }
}

/// Returns what makes a refusal of a table's defect.
fn in_table(table: &'static str) -> impl FnOnce(String) -> ConfigError {
    move |message| ConfigError::Table { table, message }
}

impl Config {
    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`], which names the line or the node.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let file: FileV1 = toml::from_str(text)?;
        if file.node.len() > NODES_MAX {
            return Err(ConfigError::TooManyNodes { count: file.node.len() });
        }
        let mut nodes: Vec<NodeConfig> = Vec::with_capacity(file.node.len());
        let others = file.region.map(regions::name).transpose().map_err(in_table("region"))?;
        let mut regions = Regions { others, ..Regions::default() };
        for mut written in file.node {
            let name = written.name.clone();
            let refused = |message: String| ConfigError::Node { node: name.clone(), message };
            let region = written.region.take().map(regions::name).transpose().map_err(refused)?;
            let node = NodeConfig::try_from(written).map_err(refused)?;
            regions.nodes.extend(region.map(|region| (node.name.clone(), region)));
            nodes.push(node);
        }
        check(&nodes)?;
        let refused = |(queue, message)| ConfigError::Queue { queue, message };
        let (mut sharing, cache_quotas) =
            queues::read(file.queue, file.half_life_hours, file.order).map_err(refused)?;
        let refused = |(accelerator, message)| ConfigError::Price { accelerator, message };
        sharing.prices = prices::read(file.price).map_err(refused)?;
        let refused = |(budget, message)| ConfigError::Budget { budget, message };
        let budgets = budgets::read(file.budget, &sharing.queues).map_err(refused)?;
        sharing.fabric = file.fabric.map(Into::into);
        sharing.health = file.suspicion.into();
        sharing.reservations = file.reservation.into_iter().map(Into::into).collect();
        let rules = file.preemption.unwrap_or_default();
        sharing.preemption = rules.read().map_err(in_table("preemption"))?;
        sharing.spares = file.spares.read().map_err(in_table("spares"))?;
        file.scheduling.read(&mut sharing).map_err(in_table("scheduling"))?;
        sharing.aliases = file.sbatch.read();
        let limits = file.limits.read().map_err(in_table("limits"))?;
        let retention = file.retention.read().map_err(in_table("retention"))?;
        let billing = billing::read((file.overhead, file.energy), file.people, file.storage, regions)?;
        let artifacts = file.artifacts.read().map_err(in_table("artifacts"))?;
        let smtp = file.smtp.map(smtp::SmtpV1::read).transpose();
        let smtp = smtp.map_err(in_table("smtp"))?;
        let snapshot_max = file.code.read().map_err(in_table("code"))?;
        let remote_write = file.remote_write.map(export::ReceiverV1::of_remote_write).transpose();
        let remote_write = remote_write.map_err(in_table("remote_write"))?;
        let remote_read = file.remote_read.map(|read| read.of_remote_read(remote_write.as_ref())).transpose();
        let remote_read = remote_read.map_err(in_table("remote_read"))?;
        let otlp = file.otlp.map(export::OtlpV1::read).transpose().map_err(in_table("otlp"))?;
        sharing.check()?;
        let FileV1 { listen, advertise, tls, topology_file, alerts_file, journal, inherit, launcher, .. } = file;
        Ok(Config {
            listen,
            advertise,
            tls,
            topology_file,
            alerts_file,
            journal,
            inherit,
            nodes,
            cache_quotas,
            launcher,
            sharing,
            budgets,
            limits,
            retention,
            billing,
            artifacts,
            smtp,
            snapshot_max,
            remote_write,
            remote_read,
            otlp,
        })
    }
}

impl Config {
    /// Sets the location of each node that doesn't state its own.
    ///
    /// # Errors
    /// [`ConfigError`] if a node is in neither place, or two places contradict each other.
    pub fn locate(&mut self, places: &BTreeMap<String, Vec<(Level, String)>>) -> Result<(), ConfigError> {
        for node in self.nodes.iter_mut().filter(|node| node.location == Location::default()) {
            let missing = || ConfigError::Node {
                node: node.name.to_string(),
                message: "the topology file doesn't name it, and it says nothing itself".to_owned(),
            };
            let domains = places.get(node.name.as_str()).ok_or_else(missing)?;
            node.location = domains.iter().cloned().collect();
        }
        check(&self.nodes)
    }
}

/// Checks the nodes, whichever source named them.
///
/// # Errors
/// [`ConfigError`] if there are too many nodes or accelerators, two nodes of one name, or a price that
/// overflows a bill.
pub fn check(nodes: &[NodeConfig]) -> Result<(), ConfigError> {
    if nodes.len() > NODES_MAX {
        return Err(ConfigError::TooManyNodes { count: nodes.len() });
    }
    let count = nodes.iter().map(|node| u64::from(node.capacity.accelerators)).sum();
    if count > ACCELERATORS_MAX {
        return Err(ConfigError::TooManyAccelerators { count });
    }
    check_locations(nodes.iter().map(|node| (&node.name, &node.location))).map_err(|misplaced| {
        let message = misplaced.to_string();
        ConfigError::Node { node: misplaced.node.to_string(), message }
    })?;
    let mut names = BTreeSet::new();
    for node in nodes {
        let refused = |message: String| Err(ConfigError::Node { node: node.name.to_string(), message });
        if !names.insert(&node.name) {
            return refused("there are two nodes of this name".to_owned());
        }
        if node.price_per_hour.is_some_and(|price| price > PRICE_MAX) {
            return refused(format!("a price above {PRICE_MAX} for an accelerator-hour is surely a mistake"));
        }
    }
    Ok(())
}

impl NodeConfig {
    /// Sets how the node's accelerators are joined, for a layout that was read from `devices` of them.
    ///
    /// # Errors
    /// [`ConfigError`] if the node has another number of accelerators: the layout is another machine's.
    pub fn join_devices(&mut self, layout: DeviceLayout, devices: usize) -> Result<(), ConfigError> {
        let own = self.capacity.accelerators;
        if usize::try_from(own) != Ok(devices) {
            let message = format!("it has {own} accelerators, but its links_file describes {devices}");
            return Err(ConfigError::Node { node: self.name.to_string(), message });
        }
        self.layout = layout;
        Ok(())
    }
}

impl NodeV1 {
    /// Reads the location; domain names follow the rules of node names.
    fn location(&self) -> Result<Location, String> {
        let written = [
            (Level::Nvlink, &self.nvlink),
            (Level::Rack, &self.rack),
            (Level::RailGroup, &self.rail),
            (Level::Block, &self.block),
            (Level::Pod, &self.pod),
        ];
        let named = written.into_iter().filter_map(|(level, name)| name.as_ref().map(|name| (level, name)));
        named
            .map(|(level, name)| match NodeName::new(name) {
                Ok(_) => Ok((level, name.clone())),
                Err(error) => Err(format!("its {level}: {error}")),
            })
            .collect()
    }
}

impl TryFrom<NodeV1> for NodeConfig {
    type Error = String;

    fn try_from(node: NodeV1) -> Result<Self, String> {
        let location = node.location()?;
        let (accelerator, accelerators) = parse_accelerators(&node.accelerators)?;
        let pool = node.pool.map_or(Ok(PoolName::default()), |name| PoolName::new(&name)).map_err(|e| e.to_string())?;
        let memory = node
            .memory
            .map_or(Ok(Bytes(0)), |text| text.parse())
            .map_err(|e: gangline_base::InvalidBytes| e.to_string())?;
        let price = node.price_per_accelerator_hour.map(|text| text.parse()).transpose();
        Ok(NodeConfig {
            name: NodeName::new(&node.name).map_err(|e| e.to_string())?,
            capacity: NodeCapacity { pool, accelerator, accelerators, cpus: node.cpus.unwrap_or(0), memory },
            location,
            layout: DeviceLayout::default(),
            links_file: node.links_file,
            address: node.address.unwrap_or_else(|| "127.0.0.1".to_owned()),
            price_per_hour: price.map_err(|e: gangline_base::InvalidMoney| e.to_string())?,
        })
    }
}

/// Parses `H100:8` or `cpu:2`.
///
/// # Errors
/// A sentence that says what is expected.
pub fn parse_accelerators(text: &str) -> Result<(AcceleratorKind, u32), String> {
    let expected = || format!("\"{text}\" is not of the form KIND:COUNT such as H100:8 or cpu:2");
    let (kind, count) = text.split_once(':').ok_or_else(expected)?;
    let count: u32 = count.parse().map_err(|_| expected())?;
    if kind.is_empty() || count == 0 || count > ACCELERATORS_PER_NODE_MAX {
        return Err(expected());
    }
    Ok((AcceleratorKind(kind.to_owned()), count))
}

#[cfg(test)]
mod tests;
