//! The table `[storage]` of the configuration file: what stored data costs, how often it is measured, and what requests cost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::{Bytes, Money};
use serde::Deserialize;

use super::regions::Regions;
use super::request_prices::{self, RequestPrice, RequestPriceV1};
use crate::jobfile::parse_age;

/// The value for storage that isn't measured.
const NEVER: &str = "never";
/// The pause between two measurements, unless the file sets it.
const EVERY: Duration = Duration::from_mins(10);
/// The longest such pause.
const EVERY_MAX: Duration = Duration::from_hours(24);
/// The most prices.
const PRICES_MAX: usize = 1_000;
/// The highest price of a GB or GiB for a month: above any real one.
const PRICE_MAX: Money = Money::from_nano_dollars(100_000_000_000);
/// The hours of a month, unless the file sets them: a twelfth of a year of 8,760 hours.
const MONTH_HOURS: u32 = 730;

/// What stored data costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The pause between two measurements; `None`: storage isn't measured, and no bill has it.
    pub measure_every: Option<Duration>,
    /// The prices, by folder.
    pub prices: Vec<FolderPrice>,
    /// What requests to object storage cost, and where the objects are.
    pub requests: Vec<RequestPrice>,
    /// Where the nodes are that read them.
    pub regions: Regions,
}

/// The price of what lies in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderPrice {
    /// The folder, or the address of archives.
    pub path: PathBuf,
    /// What a unit costs for a month.
    pub per_month: Money,
    /// The unit: a GB or a GiB.
    pub unit: Bytes,
    /// The hours of a month.
    pub month_hours: u32,
}

impl Default for Storage {
    fn default() -> Self {
        Storage { measure_every: Some(EVERY), prices: Vec::new(), requests: Vec::new(), regions: Regions::default() }
    }
}

impl Storage {
    /// Returns the price of a folder: that of the innermost folder around it that has one.
    #[must_use]
    pub fn price_of(&self, folder: &Path) -> Option<&FolderPrice> {
        let around = self.prices.iter().filter(|price| folder.starts_with(&price.path));
        around.max_by_key(|price| price.path.components().count())
    }

    /// Returns the price of what is at an address: that of the longest address at or above it, or of the folder around it if it is one.
    #[must_use]
    pub fn price_of_address(&self, address: &str) -> Option<&FolderPrice> {
        self.price_of(Path::new(address.strip_prefix("file://").unwrap_or(address)))
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StorageV1 {
    measure_every: Option<String>,
    #[serde(default)]
    price: Vec<FolderPriceV1>,
    #[serde(default)]
    requests: Vec<RequestPriceV1>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FolderPriceV1 {
    path: PathBuf,
    usd_per_gb_month: Option<String>,
    usd_per_gib_month: Option<String>,
    month_hours: Option<u32>,
}

impl StorageV1 {
    /// Returns the prices; an error says which one is invalid.
    pub(super) fn read(self, regions: Regions) -> Result<Storage, String> {
        let measure_every = match self.measure_every.as_deref() {
            None => Some(EVERY),
            Some(NEVER) => None,
            Some(text) => {
                Some(parse_age(text).map_err(|message| format!("measure_every {message}, or write \"{NEVER}\""))?)
            }
        };
        if measure_every.is_some_and(|every| every.is_zero() || every > EVERY_MAX) {
            return Err(format!("measure_every has to be from 1s to 24h, or \"{NEVER}\""));
        }
        if self.price.len() > PRICES_MAX {
            return Err(format!("there are more than {PRICES_MAX} prices"));
        }
        let mut prices: Vec<FolderPrice> = Vec::new();
        for written in self.price {
            let path = written.path.clone();
            let refused = |message: String| format!("the price of {}: {message}", path.display());
            if prices.iter().any(|known| known.path == path) {
                return Err(refused("there are two prices for it".to_owned()));
            }
            prices.push(written.read().map_err(refused)?);
        }
        Ok(Storage { measure_every, prices, requests: request_prices::read(self.requests)?, regions })
    }
}

impl FolderPriceV1 {
    fn read(self) -> Result<FolderPrice, String> {
        if !self.path.is_absolute() && !self.path.starts_with("s3:") {
            return Err("`path` has to be absolute, or an address such as s3://bucket".to_owned());
        }
        let (key, text, unit) = match (self.usd_per_gb_month, self.usd_per_gib_month) {
            (Some(text), None) => ("usd_per_gb_month", text, 1_000_000_000),
            (None, Some(text)) => ("usd_per_gib_month", text, 1 << 30),
            _ => return Err("write one of `usd_per_gb_month` (10^9 bytes) and `usd_per_gib_month` (2^30)".to_owned()),
        };
        let per_month: Money = text.parse().map_err(|error| format!("`{key}`: {error}"))?;
        if per_month < Money::ZERO || per_month > PRICE_MAX {
            return Err(format!("`{key}` has to be from 0 to {PRICE_MAX}"));
        }
        let month_hours = self.month_hours.unwrap_or(MONTH_HOURS);
        // From a month of 28 days to one of 31.
        if !(672..=744).contains(&month_hours) {
            return Err(
                "`month_hours` has to be from 672 to 744: providers use 720, 730, or those of the month".to_owned()
            );
        }
        Ok(FolderPrice { path: self.path, per_month, unit: Bytes(unit), month_hours })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Storage, String> {
        Config::parse(text).map(|config| config.billing.storage).map_err(|error| error.to_string())
    }

    #[test]
    fn the_innermost_folder_with_a_price_counts() {
        let text = "[storage]\nmeasure_every = '1h'\n[[storage.price]]\npath = '/'\nusd_per_gb_month = '0.05'\n\
            [[storage.price]]\npath = '/lustre'\nusd_per_gib_month = '0.145'\nmonth_hours = 720\n";
        let storage = read(text).expect("a sound file");
        assert_eq!(storage.measure_every, Some(Duration::from_hours(1)));
        let of = |folder: &str| storage.price_of(Path::new(folder)).map(|price| (price.unit.0, price.month_hours));
        assert_eq!(of("/lustre/gpt/a"), Some((1 << 30, 720)));
        assert_eq!(of("/lustre2"), Some((1_000_000_000, 730)));
        assert_eq!(Storage::default().price_of(Path::new("/lustre")), None);
        let bucket =
            read("[[storage.price]]\npath = 's3://bucket'\nusd_per_gib_month = '0.023'\n").expect("a sound file");
        let of = |address: &str| bucket.price_of_address(address).is_some();
        assert_eq!(["s3://bucket/run-7", "s3://bucket2", "file:///x"].map(of), [true, false, false]);
        assert!(storage.price_of_address("file:///lustre/archive").is_some_and(|price| price.month_hours == 720));
        assert_eq!(read("[storage]\nmeasure_every = 'never'").expect("a sound file").measure_every, None);
    }

    #[test]
    fn a_bad_price_says_which_and_why() {
        let refused = |text: &str| read(&format!("[storage]\n{text}")).expect_err("a refusal");
        let price = |rest: &str| refused(&format!("[[storage.price]]\n{rest}"));
        assert!(refused("measure_every = '2d'").contains("from 1s to 24h"));
        assert!(
            price("path = 'x'\nusd_per_gb_month = '1'")
                .ends_with("the price of x: `path` has to be absolute, or an address such as s3://bucket")
        );
        assert!(price("path = '/x'").contains("write one of"));
        assert!(price("path = '/x'\nusd_per_gb_month = '1'\nusd_per_gib_month = '1'").contains("write one of"));
        assert!(price("path = '/x'\nusd_per_gb_month = '-1'").contains("usd_per_gb_month"));
        assert!(price("path = '/x'\nusd_per_gb_month = '1'\nmonth_hours = 30").contains("672 to 744"));
        let one = "[[storage.price]]\npath = '/x'\nusd_per_gb_month = '1'\n";
        assert!(refused(&format!("{one}{one}")).contains("two prices"));
    }
}
