//! The tables `[[storage.requests]]` of the configuration file: what requests to object storage cost, and the bytes that they read.

use gangline_base::{Bytes, Money};
use serde::Deserialize;

use super::regions;

/// The most prices.
const PRICES_MAX: usize = 1_000;
/// The highest price of a thousand requests, or of a GB or GiB: above any real one.
const PRICE_MAX: Money = Money::from_nano_dollars(100_000_000_000);

/// Prices of what is below an address; what has none is not priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPrice {
    /// The address, such as `s3://corpus`.
    pub address: String,
    /// What a thousand GET or HEAD requests cost.
    pub per_thousand: Option<Money>,
    /// What a thousand LIST requests cost.
    pub per_thousand_lists: Option<Money>,
    /// What a thousand PUT requests cost.
    pub per_thousand_writes: Option<Money>,
    /// What `unit` of read bytes costs.
    pub per_unit: Option<Money>,
    /// What `unit` of bytes costs that are read in another region.
    pub per_unit_across: Option<Money>,
    /// The unit: a GB or a GiB.
    pub unit: Bytes,
    /// The region that the objects are in, if it is known.
    pub region: Option<String>,
}

impl RequestPrice {
    /// Returns the prices of an address: those of the longest address that it is at or below.
    #[must_use]
    pub fn of<'a>(prices: &'a [RequestPrice], address: &str) -> Option<&'a RequestPrice> {
        let is_below = |price: &&RequestPrice| {
            let rest = address.strip_prefix(price.address.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || price.address.ends_with('/'))
        };
        prices.iter().filter(is_below).max_by_key(|price| price.address.len())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestPriceV1 {
    address: String,
    usd_per_1000: Option<String>,
    usd_per_1000_lists: Option<String>,
    usd_per_1000_writes: Option<String>,
    usd_per_gb: Option<String>,
    usd_per_gib: Option<String>,
    usd_per_gb_across_regions: Option<String>,
    usd_per_gib_across_regions: Option<String>,
    region: Option<String>,
}

/// Returns the prices; an error says which one is invalid.
pub(super) fn read(written: Vec<RequestPriceV1>) -> Result<Vec<RequestPrice>, String> {
    if written.len() > PRICES_MAX {
        return Err(format!("there are more than {PRICES_MAX} prices of requests"));
    }
    let mut prices: Vec<RequestPrice> = Vec::new();
    for price in written {
        let address = price.address.clone();
        let refused = |message: String| format!("the prices of requests to {address}: {message}");
        if prices.iter().any(|known| known.address == address) {
            return Err(refused("they are there twice".to_owned()));
        }
        prices.push(price.read().map_err(refused)?);
    }
    Ok(prices)
}

impl RequestPriceV1 {
    fn read(self) -> Result<RequestPrice, String> {
        if !self.address.contains("://") {
            return Err(
                "`address` has to be that of a remote dataset or an archive, or the beginning of one, such as s3://corpus".to_owned()
            );
        }
        let (of_gb, of_gib) =
            ((self.usd_per_gb, self.usd_per_gb_across_regions), (self.usd_per_gib, self.usd_per_gib_across_regions));
        let (keys, (per_unit, across), unit) = match (of_gb, of_gib) {
            (of_gb, (None, None)) => (["usd_per_gb", "usd_per_gb_across_regions"], of_gb, 1_000_000_000),
            ((None, None), of_gib) => (["usd_per_gib", "usd_per_gib_across_regions"], of_gib, 1 << 30),
            _ => return Err("write prices of bytes for a GB (10^9 bytes) or for a GiB (2^30), not for both".to_owned()),
        };
        if across.is_some() && self.region.is_none() {
            return Err(format!("`{}` needs the `region` that the objects are in", keys[1]));
        }
        let read = RequestPrice {
            address: self.address,
            per_thousand: money("usd_per_1000", self.usd_per_1000)?,
            per_thousand_lists: money("usd_per_1000_lists", self.usd_per_1000_lists)?,
            per_thousand_writes: money("usd_per_1000_writes", self.usd_per_1000_writes)?,
            per_unit: money(keys[0], per_unit)?,
            per_unit_across: money(keys[1], across)?,
            unit: Bytes(unit),
            region: self.region.map(regions::name).transpose()?,
        };
        let requests = [read.per_thousand, read.per_thousand_lists, read.per_thousand_writes];
        let mut prices = requests.into_iter().chain([read.per_unit, read.per_unit_across]);
        if prices.all(|price| price.is_none()) && read.region.is_none() {
            let keys = "`usd_per_1000` (GET and HEAD), `usd_per_1000_lists`, `usd_per_1000_writes`, `usd_per_gb` or `usd_per_gib`";
            return Err(format!("there is no price: write {keys}"));
        }
        Ok(read)
    }
}

fn money(key: &str, text: Option<String>) -> Result<Option<Money>, String> {
    let Some(text) = text else { return Ok(None) };
    let price: Money = text.parse().map_err(|error| format!("`{key}`: {error}"))?;
    if price > PRICE_MAX {
        return Err(format!("`{key}` has to be at most {PRICE_MAX}"));
    }
    Ok(Some(price))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Vec<RequestPrice>, String> {
        Config::parse(text).map(|config| config.billing.storage.requests).map_err(|error| error.to_string())
    }

    #[test]
    fn the_longest_address_with_prices_counts() {
        let text = "[[storage.requests]]\naddress = 's3://'\nusd_per_1000 = '0.0004'\nusd_per_1000_lists = '0.005'\n\
            [[storage.requests]]\naddress = 's3://corpus'\nusd_per_1000 = '0'\nusd_per_gib = '0.09'\n";
        let prices = read(text).expect("a sound file");
        let of = |address: &str| RequestPrice::of(&prices, address).map(|price| price.address.as_str());
        assert_eq!(of("s3://corpus/c4"), Some("s3://corpus"));
        assert_eq!(of("s3://corpus"), Some("s3://corpus"));
        assert_eq!(of("s3://corpus2/c4"), Some("s3://"));
        assert_eq!(of("https://example.org/c4"), None);
        let corpus = &prices[1];
        assert_eq!((corpus.per_thousand, corpus.per_thousand_lists), (Some(Money::ZERO), None), "free isn't unknown");
        assert_eq!((corpus.per_unit, corpus.unit), (Some(Money::from_nano_dollars(90_000_000)), Bytes(1 << 30)));
    }

    #[test]
    fn bad_prices_say_which_and_why() {
        let refused = |text: &str| read(&format!("[[storage.requests]]\n{text}")).expect_err("a refusal");
        let of_corpus = |rest: &str| refused(&format!("address = 's3://corpus'\n{rest}"));
        assert!(refused("address = 'corpus'\nusd_per_1000 = '1'").contains("`address` has to be"));
        assert!(of_corpus("").ends_with("`usd_per_gb` or `usd_per_gib`"));
        assert!(of_corpus("usd_per_gb = '1'\nusd_per_gib = '1'").contains("for a GB (10^9 bytes) or for a GiB"));
        assert!(of_corpus("usd_per_gb_across_regions = '1'\nusd_per_gib = '1'").contains("not for both"));
        let needed = "`usd_per_gb_across_regions` needs the `region`";
        assert!(of_corpus("usd_per_gb_across_regions = '1'").contains(needed));
        assert!(of_corpus("region = 'over there'").contains("the region \"over there\""));
        assert!(of_corpus("usd_per_1000 = 'much'").contains("the prices of requests to s3://corpus: `usd_per_1000`: "));
        assert!(of_corpus("usd_per_1000_lists = '-1'").contains("`usd_per_1000_lists`: "));
        assert!(of_corpus("usd_per_1000 = '101'").contains("`usd_per_1000` has to be at most"));
        let one = "usd_per_1000 = '1'\n[[storage.requests]]\naddress = 's3://corpus'\nusd_per_1000 = '1'";
        assert!(of_corpus(one).contains("they are there twice"));
    }
}
