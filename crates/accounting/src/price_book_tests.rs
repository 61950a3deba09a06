//! The built-in prices, their age, and files that are refused.

use super::*;

fn day(text: &str) -> Day {
    text.parse().unwrap()
}

#[test]
fn every_built_in_price_is_possible_and_says_where_it_is_from() {
    let book = PriceBook::built_in();
    assert!(book.accelerators().count() >= 40);
    for price in book.accelerators() {
        let dollars = price.per_hour.nano_dollars() / 10_000_000;
        assert!((20..4000).contains(&dollars), "{}: {}", price.name, price.per_hour);
        assert!(price.origin.source.contains("http"), "{}", price.name);
    }
    let hundred = book.accelerator("H100-SXM5-80GB", Terms::OnDemand);
    assert!(hundred.len() >= 6 && hundred.is_sorted_by_key(|price| price.per_hour));
    assert_eq!(book.storages().count(), 3);
}

#[test]
fn a_price_is_stale_on_the_ninety_first_day() {
    let book = PriceBook::built_in();
    let aws = book.accelerator("H100-SXM5-80GB", Terms::OnDemand).into_iter().find(|price| price.provider == "aws");
    let aws = aws.unwrap();
    assert_eq!((aws.per_hour.to_string(), aws.instance.as_deref()), ("$6.88".to_owned(), Some("p5.48xlarge")));
    assert_eq!(aws.origin.as_of, day("2026-09-10"));
    assert!(!aws.origin.is_stale(day("2026-12-09")));
    assert!(aws.origin.is_stale(day("2026-12-10")));
    assert!(!aws.origin.is_stale(day("2026-01-01")), "a price of tomorrow isn't stale");
}

#[test]
fn tiers_are_paid_step_by_step() {
    let book = PriceBook::built_in();
    let storage = book.storage("s3-standard").unwrap();
    assert_eq!(storage.per_month.cost(Bytes(1_000_000_000_000)).to_string(), "$23.00");
    assert_eq!(storage.per_month.cost(Bytes(60_000_000_000_000)).to_string(), "$1370.00");
    assert_eq!(storage.per_thousand_writes.to_string(), "$0.005000");
    let egress = book.egress("aws").unwrap();
    assert_eq!(egress.transfer.cost(Bytes(100_000_000_000)), Money::ZERO);
    assert_eq!(egress.transfer.cost(Bytes(10_000_000_000_000)).to_string(), "$891.00");
    assert_eq!(egress.transfer.cost(Bytes(u64::MAX)).nano_dollars() / 1_000_000_000_000_000, 922);
    assert_eq!(book.egress("lambda").unwrap().transfer.cost(Bytes(u64::MAX)), Money::ZERO);
}

const MINE: &str = "[[accelerator]]\nname = \"X1\"\nprovider = \"me\"\nterms = \"bare-metal\"\nusd_per_hour = \"1.5\"\n\
    source = \"a letter\"\nas_of = \"2026-11-22\"\n";

#[test]
fn a_file_of_ones_own_adds_and_replaces_prices() {
    let book = PriceBook::built_in().with("mine.toml", MINE).unwrap();
    let book = book.with("mine.toml", &MINE.replace("1.5", "2")).unwrap();
    let prices = book.accelerator("X1", Terms::BareMetal);
    assert_eq!(prices.len(), 1);
    assert_eq!(prices[0].per_hour.to_string(), "$2.00");
    let bare = book.with("mine.toml", &MINE.replace("\"1.5\"", "3.50")).unwrap();
    assert_eq!(bare.accelerator("X1", Terms::BareMetal)[0].per_hour.to_string(), "$3.50");
}

#[test]
fn what_is_no_price_is_refused_with_file_entry_and_field() {
    let refusal = |text: &str| PriceBook::default().with("mine.toml", text).unwrap_err().to_string();
    let unfit = "`usd_per_hour` of X1 at me in mine.toml is \"1,5\": write dollars such as 2.49, at most 1000";
    assert_eq!(refusal(&MINE.replace("1.5", "1,5")), unfit);
    assert!(refusal(&MINE.replace("1.5", "-1")).contains("\"-1\""));
    assert!(refusal(&MINE.replace("1.5", "1001")).contains("at most 1000"));
    assert!(refusal(&MINE.replace("2026-11-22", "2026-02-30")).contains("write a day such as 2026-11-22"));
    for broken in [MINE.replace("bare-metal", "lease"), MINE.replace("source", "sources"), "[".to_owned()] {
        assert_eq!(refusal(&broken), "mine.toml is not a price book");
    }
    assert!(refusal(&" ".repeat(2 << 20)).contains("2097152 bytes"));
    let egress = |tiers: &str| {
        let text =
            format!("[[egress]]\nprovider = \"me\"\ntiers = [{tiers}]\nsource = \"a\"\nas_of = \"2026-11-22\"\n");
        PriceBook::default().with("mine.toml", &text).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(egress("{ usd_per_gb = \"1\" }"), Ok(()));
    for tiers in ["", "{ up_to = \"1TB\", usd_per_gb = \"1\" }", "{ usd_per_gb = \"1\" }, { usd_per_gb = \"1\" }"] {
        assert!(egress(tiers).unwrap_err().contains("tiers that go up, the last without up_to"), "{tiers}");
    }
    let unit = egress("{ up_to = \"10\", usd_per_gb = \"1\" }, { usd_per_gb = \"1\" }").unwrap_err();
    assert!(unit.contains("`up_to` of egress of me in mine.toml is \"10\": write a size with its unit"), "{unit}");
}
