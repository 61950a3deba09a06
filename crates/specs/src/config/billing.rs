//! What bills have besides the prices of devices: several tables of the configuration file.

use super::overheads::{self, Overheads};
use super::people::{self, People};
use super::regions::Regions;
use super::storage::{self, Storage};
use super::{ConfigError, in_table};

/// What bills have besides the prices of devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Billing {
    /// What devices cost beside their price.
    pub overheads: Overheads,
    /// What the people cost who look after incidents; `None` if bills have none.
    pub people: Option<People>,
    /// What stored data costs, and requests to object storage.
    pub storage: Storage,
}

/// Reads what bills have besides the prices of devices.
pub(super) fn read(
    (overhead, energy): (Vec<overheads::OverheadV1>, Option<overheads::EnergyV1>),
    people: Option<people::PeopleV1>,
    storage: storage::StorageV1,
    regions: Regions,
) -> Result<Billing, ConfigError> {
    let mut overheads = overheads::read(overhead).map_err(in_table("overhead"))?;
    overheads.energy = energy.map(overheads::EnergyV1::read).transpose().map_err(in_table("energy"))?;
    let people = people.map(people::PeopleV1::read).transpose().map_err(in_table("people"))?;
    let storage = storage.read(regions).map_err(in_table("storage"))?;
    Ok(Billing { overheads, people, storage })
}
