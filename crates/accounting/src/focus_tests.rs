//! Rows of FOCUS, field by field.

use super::*;

fn row() -> Row {
    Row {
        day: "2026-11-30".parse().expect("a day"),
        resource: "n1".to_owned(),
        line: "compute".to_owned(),
        used: Used::Devices { nanos: 5_400_000_000_001, accelerator: Some("H100".to_owned()), is_unheld: false },
        price: "2.49".parse().expect("a price"),
        cost: "3.735".parse().expect("a cost"),
        tags: vec![("job", "job-7".to_owned()), ("name", "a \"great\", run\n".to_owned())],
        is_estimated: false,
    }
}

fn issuer() -> Issuer {
    Issuer { account: "lab".to_owned(), provider: "Our cluster".to_owned() }
}

/// Reads a line as RFC 4180 says.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut is_quoted) = (vec![String::new()], false);
    let mut letters = line.trim_end_matches('\n').chars().peekable();
    while let Some(letter) = letters.next() {
        let field = fields.last_mut().expect("there is always one");
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            letter => field.push(letter),
        }
    }
    fields
}

#[test]
fn a_row_has_a_field_for_each_column_of_each_version() {
    for version in [Version::V1_2, Version::V1_4] {
        let (header, line) = (version.header(), row().csv(&issuer()));
        let (columns, fields) = (fields(&header), fields(&line));
        assert_eq!(columns.len(), fields.len());
        let of = |column: &str| {
            let index = columns.iter().position(|known| known == column);
            index.map_or_else(|| format!("no {column}"), |index| fields[index].clone())
        };
        assert_eq!(of("BilledCost"), "3.735");
        assert_eq!(of("ListUnitPrice"), "2.49");
        assert_eq!((of("PricingQuantity"), of("ConsumedQuantity")), ("1.5".to_owned(), "1.500000000000277".to_owned()));
        assert_eq!(of("x_GpuSeconds"), "5400.000000001");
        assert_eq!(
            (of("BillingPeriodStart"), of("BillingPeriodEnd")),
            ("2026-11-01T00:00:00Z".to_owned(), "2026-12-01T00:00:00Z".to_owned())
        );
        assert_eq!(
            (of("ChargePeriodStart"), of("ChargePeriodEnd")),
            ("2026-11-30T00:00:00Z".to_owned(), "2026-12-01T00:00:00Z".to_owned())
        );
        assert_eq!(of("CapacityReservationStatus"), "Used");
        assert_eq!(of("Tags"), r#"{"job":"job-7","name":"a \"great\", run\u000a"}"#);
        assert_eq!(of("ProviderName") == "Our cluster", version == Version::V1_2);
        assert_eq!(of("HostProviderName") == "Our cluster", version == Version::V1_4);
    }
}

#[test]
fn stored_data_is_a_row_of_storage() {
    // 2 GiB for a day, at $0.73 for a GiB and a month of 730 hours.
    let used = Used::Storage { nanos: (2 << 30) * 86_400_000_000_000, unit: "GiB-Months".to_owned() };
    let (price, cost) = ("0.73".parse().expect("a price"), "0.048".parse().expect("a cost"));
    let line = "storage_checkpoints".to_owned();
    let row = Row { resource: "/lustre/gpt".to_owned(), line, used, price, cost, ..row() };
    let (columns, fields) = (fields(&Version::V1_2.header()), fields(&row.csv(&issuer())));
    let of = |column: &str| {
        let index = columns.iter().position(|known| known == column).expect("a column");
        fields[index].as_str()
    };
    assert_eq!((of("ConsumedQuantity"), of("ConsumedUnit")), ("48", "GiB-Hours"));
    assert_eq!((of("PricingQuantity"), of("PricingUnit")), ("0.065753424657534", "GiB-Months"));
    assert_eq!((of("ServiceCategory"), of("ResourceId")), ("Storage", "/lustre/gpt"));
    assert_eq!((of("CapacityReservationStatus"), of("x_GpuSeconds")), ("", ""));
}

#[test]
fn requests_and_read_bytes_are_rows_of_their_own() {
    let of = |used, line: &str, price: &str, cost: &str| {
        let (price, cost) = (price.parse().expect("a price"), cost.parse().expect("a cost"));
        let row = Row { resource: "s3://corpus/c4".to_owned(), line: line.to_owned(), used, price, cost, ..row() };
        let (columns, fields) = (fields(&Version::V1_2.header()), fields(&row.csv(&issuer())));
        let wanted = ["ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit", "ServiceCategory"];
        wanted.map(|name| fields[columns.iter().position(|column| column == name).expect("a column")].clone())
    };
    let requests = of(Used::Requests { count: 2_500_000 }, "requests", "0.0004", "1");
    assert_eq!(requests, ["2500000", "Requests", "2500", "1000 Requests", "Storage"]);
    let transfer = of(Used::Transfer { bytes: 3 << 30, unit: "GiB".to_owned() }, "transfer", "0.09", "0.27");
    assert_eq!(transfer, ["3", "GiB", "3", "GiB", "Networking"]);
}

#[test]
fn decimals_are_exact() {
    assert_eq!(dollars(Money::from_nano_dollars(-1)), "-0.000000001");
    assert_eq!(dollars(Money::from_nano_dollars(12_000_000_000)), "12");
    assert_eq!(decimal(1, 3, 5), "0.33333");
}
