//! Prices of accelerators: the price list of the configuration file, and the prices of single nodes.
//!
//! Budgets are counted by the list, bills by the nodes' prices. So that the two agree by default, a node
//! without a price gets the list's, and a kind that isn't on the list gets the highest price of its nodes, if
//! all of them have one.

use std::collections::BTreeMap;

use gangline_base::{AcceleratorKind, Money};
use serde::Deserialize;

use super::{NodeConfig, PRICE_MAX};

/// An entry of `[[price]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceV1 {
    accelerator: String,
    usd_per_hour: String,
}

/// Prices by kind of accelerator.
pub type Prices = BTreeMap<AcceleratorKind, Money>;

/// Returns the price list; an error names the accelerator kind.
pub(super) fn read(written: Vec<PriceV1>) -> Result<Prices, (String, String)> {
    let mut prices = Prices::new();
    for PriceV1 { accelerator, usd_per_hour } in written {
        let refused = |message: String| (accelerator.clone(), message);
        let price: Money = usd_per_hour.parse().map_err(|error| refused(format!("{error}")))?;
        if price > PRICE_MAX {
            return Err(refused(format!("a price above {PRICE_MAX} for an accelerator-hour is surely a mistake")));
        }
        if prices.insert(AcceleratorKind(accelerator.clone()), price).is_some() {
            return Err(refused("there are two prices for it".to_owned()));
        }
    }
    Ok(prices)
}

/// Fills prices missing on the nodes from the list, and prices missing on the list from the nodes.
pub fn agree_on_prices(nodes: &mut [NodeConfig], list: &mut Prices) {
    for node in nodes.iter_mut() {
        node.price_per_hour = node.price_per_hour.or(list.get(&node.capacity.accelerator).copied());
    }
    let mut highest: BTreeMap<AcceleratorKind, Option<Money>> = BTreeMap::new();
    for node in nodes.iter() {
        let kind = highest.entry(node.capacity.accelerator.clone()).or_insert(Some(Money::ZERO));
        *kind = kind.zip(node.price_per_hour).map(|(highest, price)| highest.max(price));
    }
    for (kind, price) in highest {
        if let Some(price) = price {
            list.entry(kind).or_insert(price);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const TWO_KINDS: &str = "[[price]]\naccelerator = 'H100'\nusd_per_hour = '2.50'\n\
        [[node]]\nname = 'a'\naccelerators = 'H100:8'\n[[node]]\nname = 'b'\naccelerators = 'A100:8'\n\
        [[node]]\nname = 'c'\naccelerators = 'A100:8'\nprice_per_accelerator_hour = '1.20'\n";

    fn money(text: &str) -> Option<Money> {
        Some(text.parse().expect("money"))
    }

    fn agreed(text: &str) -> Config {
        let mut config = Config::parse(text).expect("a sound file");
        agree_on_prices(&mut config.nodes, &mut config.sharing.prices);
        config
    }

    #[test]
    fn the_list_and_the_nodes_fill_each_other_in() {
        let check = |config: &Config, kind: &str, price: Option<Money>| {
            assert_eq!(config.sharing.prices.get(&AcceleratorKind(kind.to_owned())).copied(), price, "{kind}");
        };
        let config = agreed(TWO_KINDS);
        assert_eq!(config.nodes[0].price_per_hour, money("2.50"));
        check(&config, "H100", money("2.50"));
        check(&config, "A100", None);
        let b = "accelerators = 'A100:8'\n[[node]]\nname = 'c'";
        let priced = "accelerators = 'A100:8'\nprice_per_accelerator_hour = '1.30'\n[[node]]\nname = 'c'";
        check(&agreed(&TWO_KINDS.replace(b, priced)), "A100", money("1.30"));
    }

    #[test]
    fn a_bad_price_says_of_what() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("[[price]]\naccelerator='H100'\nusd_per_hour='cheap'", "the price of H100: \"cheap\"");
        check("[[price]]\naccelerator='H100'\nusd_per_hour='1000.01'", "mistake");
        check(
            "[[price]]\naccelerator='H100'\nusd_per_hour='1'\n[[price]]\naccelerator='H100'\nusd_per_hour='2'",
            "two",
        );
        check("[[price]]\naccelerator='H100'\nusd='1'", "usd_per_hour");
    }
}
