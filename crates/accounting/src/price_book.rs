//! The price book: prices of accelerators, storage, requests and transfers, each with its source and date.
//!
//! Parses text into values; money is integral. A price counts as stale [`STALE_DAYS`] after it
//! was read, and is shown as stale.

use std::collections::BTreeMap;

use gangline_base::{Bytes, Day, Money};
use serde::Deserialize;

/// The prices that ship with this program.
const BUILT_IN: &str = include_str!("prices.toml");
/// Days after which a price is stale.
pub const STALE_DAYS: i64 = 90;
/// Maximum size of a price file, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of prices of one kind in a file.
const ENTRIES_MAX: usize = 4096;
/// Maximum price of an hour, a gigabyte or a thousand requests; anything above is surely a mistake.
const PRICE_MAX: Money = Money::from_nano_dollars(1_000_000_000_000);
/// Bytes in a gigabyte, as providers bill it.
const GIGABYTE: u128 = 1_000_000_000;

/// The reason a price book can't be read.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// The file is too long.
    #[error("{file} has {bytes} bytes, more than a price book may have ({TEXT_BYTES_MAX})")]
    TooLong {
        /// Name of the file.
        file: String,
        /// Its size.
        bytes: usize,
    },
    /// The file isn't valid TOML of the expected form.
    #[error("{file} is not a price book")]
    Malformed {
        /// Name of the file.
        file: String,
        /// The parser's error, with its position.
        #[source]
        source: toml::de::Error,
    },
    /// A field of an entry has an invalid value.
    #[error("`{field}` of {entry} in {file} is \"{found}\": write {expected}")]
    Unfit {
        /// Name of the file.
        file: String,
        /// Name of the entry.
        entry: String,
        /// Name of the field.
        field: &'static str,
        /// The value found.
        found: String,
        /// The value expected.
        expected: &'static str,
    },
    /// The file has too many entries.
    #[error("{file} has more than {ENTRIES_MAX} prices of a kind")]
    TooMany {
        /// Name of the file.
        file: String,
    },
}

/// Rental terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Terms {
    /// Billed by the hour; can be given back at any time.
    OnDemand,
    /// Committed for a year.
    #[serde(rename = "reserved-1y")]
    ReservedOneYear,
    /// Committed for three years.
    #[serde(rename = "reserved-3y")]
    ReservedThreeYears,
    /// Interruptible: lost as soon as somebody pays more.
    Spot,
    /// A whole machine, rented by the month.
    BareMetal,
}

/// Where a price comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The web page or price list.
    pub source: String,
    /// The day the price was read.
    pub as_of: Day,
}

impl Origin {
    /// Reports whether the price is older than [`STALE_DAYS`] on the given day.
    #[must_use]
    pub const fn is_stale(&self, today: Day) -> bool {
        today.since(self.as_of) > STALE_DAYS
    }
}

/// The price of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceleratorPrice {
    /// Name as in the book of hardware: `H100-SXM5-80GB`.
    pub name: String,
    /// The provider that rents it out.
    pub provider: String,
    /// Rental terms.
    pub terms: Terms,
    /// Price of one accelerator for an hour.
    pub per_hour: Money,
    /// Region, if the source names one.
    pub region: Option<String>,
    /// Instance type, if the source names one: `p5.48xlarge`.
    pub instance: Option<String>,
    /// Where the price comes from.
    pub origin: Origin,
}

/// Prices of a gigabyte, in tiers by the total amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Upper bound of each tier in bytes, and the price of a gigabyte within it; the last tier has no bound.
    steps: Vec<(Option<Bytes>, Money)>,
}

impl Tiers {
    /// Returns the cost of `bytes`, rounded down to a nano-dollar; saturates at the largest amount.
    #[must_use]
    pub fn cost(&self, bytes: Bytes) -> Money {
        let (mut below, mut nanos) = (0_u64, 0_u128);
        for (end, price) in &self.steps {
            let end = end.map_or(u64::MAX, |end| end.0).min(bytes.0);
            let price = u128::try_from(price.nano_dollars()).unwrap_or(0);
            nanos += u128::from(end.saturating_sub(below)) * price / GIGABYTE;
            below = below.max(end);
        }
        Money::from_nano_dollars(i64::try_from(nanos).unwrap_or(i64::MAX))
    }
}

/// The price of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePrice {
    /// Name of the storage class: `s3-standard`.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// Price of a gigabyte for a month.
    pub per_month: Tiers,
    /// Price of a thousand write requests.
    pub per_thousand_writes: Money,
    /// Price of a thousand read requests.
    pub per_thousand_reads: Money,
    /// Where the price comes from.
    pub origin: Origin,
}

/// The price of data that leave a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressPrice {
    /// The provider that the data leave.
    pub provider: String,
    /// Price of a gigabyte, in tiers by the month's total.
    pub transfer: Tiers,
    /// Where the price comes from.
    pub origin: Origin,
}

/// All known prices.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    accelerators: BTreeMap<(String, String, Terms), AcceleratorPrice>,
    storages: BTreeMap<String, StoragePrice>,
    egress: BTreeMap<String, EgressPrice>,
}

impl PriceBook {
    /// Returns the prices that ship with this program.
    ///
    /// # Panics
    /// If they are malformed; a test reads them.
    #[must_use]
    pub fn built_in() -> Self {
        PriceBook::default().with("the built-in price book", BUILT_IN).expect("the built-in prices are read by a test")
    }

    /// Returns these prices, overridden and extended by those of a file's text.
    ///
    /// # Errors
    /// [`PriceError`] names file, entry and field.
    pub fn with(mut self, file: &str, text: &str) -> Result<Self, PriceError> {
        let file = file.to_owned();
        if text.len() > TEXT_BYTES_MAX {
            return Err(PriceError::TooLong { file, bytes: text.len() });
        }
        let written: Written = match toml::from_str(text) {
            Ok(written) => written,
            Err(source) => return Err(PriceError::Malformed { file, source }),
        };
        if [written.accelerator.len(), written.storage.len(), written.egress.len()].iter().any(|n| *n > ENTRIES_MAX) {
            return Err(PriceError::TooMany { file });
        }
        for entry in written.accelerator {
            let price = entry.price(&file)?;
            self.accelerators.insert((price.name.clone(), price.provider.clone(), price.terms), price);
        }
        for entry in written.storage {
            let price = entry.price(&file)?;
            self.storages.insert(price.name.clone(), price);
        }
        for entry in written.egress {
            let price = entry.price(&file)?;
            self.egress.insert(price.provider.clone(), price);
        }
        Ok(self)
    }

    /// Returns all prices of this accelerator on these terms, cheapest first.
    #[must_use]
    pub fn accelerator(&self, name: &str, terms: Terms) -> Vec<&AcceleratorPrice> {
        let mut prices: Vec<_> =
            self.accelerators.values().filter(|price| price.name == name && price.terms == terms).collect();
        prices.sort_by(|left, right| left.per_hour.cmp(&right.per_hour).then(left.provider.cmp(&right.provider)));
        prices
    }

    /// Returns all prices of accelerators, by name, provider and terms.
    pub fn accelerators(&self) -> impl Iterator<Item = &AcceleratorPrice> {
        self.accelerators.values()
    }

    /// Returns the storage class of this name.
    #[must_use]
    pub fn storage(&self, name: &str) -> Option<&StoragePrice> {
        self.storages.get(name)
    }

    /// Returns all storage classes, by name.
    pub fn storages(&self) -> impl Iterator<Item = &StoragePrice> {
        self.storages.values()
    }

    /// Returns the price of data that leave this provider.
    #[must_use]
    pub fn egress(&self, provider: &str) -> Option<&EgressPrice> {
        self.egress.get(provider)
    }
}

/// A price file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    accelerator: Vec<WrittenAccelerator>,
    #[serde(default)]
    storage: Vec<WrittenStorage>,
    #[serde(default)]
    egress: Vec<WrittenEgress>,
}

/// An amount of dollars, written as text or as a number.
#[derive(Deserialize)]
#[serde(from = "toml::Value")]
struct Amount(String);

impl From<toml::Value> for Amount {
    fn from(value: toml::Value) -> Self {
        match value {
            toml::Value::String(text) => Amount(text),
            toml::Value::Float(number) => Amount(number.to_string()),
            toml::Value::Integer(number) => Amount(number.to_string()),
            other => Amount(other.type_str().to_owned()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAccelerator {
    name: String,
    provider: String,
    terms: Terms,
    usd_per_hour: Amount,
    region: Option<String>,
    instance: Option<String>,
    source: String,
    as_of: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStorage {
    name: String,
    provider: String,
    tiers: Vec<WrittenTier>,
    usd_per_1000_writes: Option<Amount>,
    usd_per_1000_reads: Option<Amount>,
    source: String,
    as_of: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEgress {
    provider: String,
    tiers: Vec<WrittenTier>,
    source: String,
    as_of: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTier {
    up_to: Option<String>,
    #[serde(alias = "usd_per_gb_month")]
    usd_per_gb: Amount,
}

impl WrittenAccelerator {
    fn price(self, file: &str) -> Result<AcceleratorPrice, PriceError> {
        let place = Place { file, entry: format!("{} at {}", self.name, self.provider) };
        Ok(AcceleratorPrice {
            per_hour: place.money("usd_per_hour", &self.usd_per_hour)?,
            origin: place.origin(self.source, &self.as_of)?,
            name: self.name,
            provider: self.provider,
            terms: self.terms,
            region: self.region,
            instance: self.instance,
        })
    }
}

impl WrittenStorage {
    fn price(self, file: &str) -> Result<StoragePrice, PriceError> {
        let place = Place { file, entry: self.name.clone() };
        let requests =
            |field, amount: Option<Amount>| amount.map_or(Ok(Money::ZERO), |amount| place.money(field, &amount));
        Ok(StoragePrice {
            per_month: place.tiers(self.tiers)?,
            per_thousand_writes: requests("usd_per_1000_writes", self.usd_per_1000_writes)?,
            per_thousand_reads: requests("usd_per_1000_reads", self.usd_per_1000_reads)?,
            origin: place.origin(self.source, &self.as_of)?,
            name: self.name,
            provider: self.provider,
        })
    }
}

impl WrittenEgress {
    fn price(self, file: &str) -> Result<EgressPrice, PriceError> {
        let place = Place { file, entry: format!("egress of {}", self.provider) };
        let (transfer, origin) = (place.tiers(self.tiers)?, place.origin(self.source, &self.as_of)?);
        Ok(EgressPrice { provider: self.provider, transfer, origin })
    }
}

/// The position of a field, for error messages.
struct Place<'a> {
    file: &'a str,
    entry: String,
}

impl Place<'_> {
    fn unfit(&self, field: &'static str, found: &str, expected: &'static str) -> PriceError {
        let found = found.chars().take(40).collect();
        PriceError::Unfit { file: self.file.to_owned(), entry: self.entry.clone(), field, found, expected }
    }

    fn money(&self, field: &'static str, Amount(text): &Amount) -> Result<Money, PriceError> {
        let expected = "dollars such as 2.49, at most 1000";
        let money: Option<Money> = text.parse().ok().filter(|money| *money <= PRICE_MAX);
        money.ok_or_else(|| self.unfit(field, text, expected))
    }

    fn origin(&self, source: String, as_of: &str) -> Result<Origin, PriceError> {
        let as_of = as_of.parse().map_err(|_| self.unfit("as_of", as_of, "a day such as 2026-11-22"))?;
        Ok(Origin { source, as_of })
    }

    /// Reads tiers: their bounds must increase, and only the last may lack one.
    fn tiers(&self, written: Vec<WrittenTier>) -> Result<Tiers, PriceError> {
        let mut steps: Vec<(Option<Bytes>, Money)> = Vec::new();
        for tier in written {
            let end = tier.up_to.as_deref().map(|text| {
                text.parse::<Bytes>().map_err(|_| self.unfit("up_to", text, "a size with its unit, such as 10TB"))
            });
            steps.push((end.transpose()?, self.money("usd_per_gb", &tier.usd_per_gb)?));
        }
        let is_last_open = steps.last().is_some_and(|(end, _)| end.is_none());
        let ends: Vec<u64> = steps.iter().filter_map(|(end, _)| end.map(|end| end.0)).collect();
        if !is_last_open || ends.len() + 1 != steps.len() || !ends.is_sorted() {
            return Err(self.unfit("tiers", "", "tiers that go up, the last without up_to"));
        }
        Ok(Tiers { steps })
    }
}

#[cfg(test)]
#[path = "price_book_tests.rs"]
mod tests;
