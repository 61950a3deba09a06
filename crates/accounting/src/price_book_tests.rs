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

/// Published figures: AWS's egress of 100 TB, each of 1,024 GB, is $7,987.20, and Infracost's golden files have 921.60, 3,481.60 and
/// 406.00 for its parts, and 230.00 for 10,000 GB of S3.
#[test]
fn published_bills_of_transfers_and_storage_are_met() {
    let text = "[[egress]]\nprovider = 'aws-1024'\nsource = 's'\nas_of = '2026-11-22'\ntiers = [\
        {up_to = '10240GB', usd_per_gb = '0.09'}, {up_to = '51200GB', usd_per_gb = '0.085'}, {usd_per_gb = '0.07'}]\n";
    let book = PriceBook::built_in().with("mine.toml", text).unwrap();
    let cost = |gigabytes: u64| book.egress("aws-1024").unwrap().transfer.cost(Bytes(gigabytes * 1_000_000_000));
    assert_eq!(cost(102_400).to_string(), "$7987.20");
    assert_eq!(cost(10_240).to_string(), "$921.60");
    assert_eq!((cost(51_200) - cost(10_240)).to_string(), "$3481.60");
    assert_eq!((cost(51_200 + 5_800) - cost(51_200)).to_string(), "$406.00");
    // SkyPilot's function has $0.00 for 10 TB and $23,295.91 for 150 TB.
    assert_eq!(cost(51_200).to_string(), "$4403.20");
    let month = book.storage("s3-standard").unwrap().per_month.cost(Bytes(10_000_000_000_000));
    assert_eq!(month.to_string(), "$230.00");
}

/// A bill never falls as more is used, never jumps, and grows by the tier's price.
#[test]
fn tiers_are_monotone_continuous_and_marginal() {
    let text = "[[egress]]\nprovider = 'odd'\nsource = 's'\nas_of = '2026-11-22'\ntiers = [\
        {up_to = '3GB', usd_per_gb = '0'}, {up_to = '7GB', usd_per_gb = '0.137'}, {up_to = '7500MB', usd_per_gb = '0.011'}, {usd_per_gb = '1'}]\n";
    let book = PriceBook::default().with("odd.toml", text).unwrap();
    let cost = |bytes: u64| book.egress("odd").unwrap().transfer.cost(Bytes(bytes)).nano_dollars();
    let step = 12_345_679;
    let mut last = 0;
    for bytes in (0..10_000_000_000).step_by(step) {
        let now = cost(bytes);
        let price = match bytes {
            0..3_000_000_000 => 0,
            3_000_000_000..7_000_000_000 => 137_000_000,
            7_000_000_000..7_500_000_000 => 11_000_000,
            _ => 1_000_000_000,
        };
        assert!(now >= last && now - last <= i64::try_from(step).unwrap() + 3, "{bytes}");
        let next = cost(bytes + 1_000) - now;
        let is_at_an_end = [3, 7].contains(&((bytes + 1_000) / 1_000_000_000)) && bytes % 1_000_000_000 > 999_999_000;
        assert!(is_at_an_end || (next - price / 1_000_000).abs() <= 2, "{bytes}: {next} beside {price}");
        last = now;
    }
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
