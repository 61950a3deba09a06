//! Rows of cost and usage by FOCUS, the FinOps Open Cost and Usage Specification (focus.finops.org), as CSV or as fields for other formats.
//!
//! Versions 1.2 and 1.4 differ, for the columns written here, in the names of the providers only: 1.4 removed `ProviderName`
//! and `PublisherName` for `ServiceProviderName` and `HostProviderName`. A row is the amount of one line of a bill
//! ([`crate::bill::Line`]) on one node, in one folder, or from one
//! dataset, and day. Columns that begin with `x_` are Gangline's own.

use std::fmt::Write as _;

use gangline_base::{Day, Money};

/// A version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Of May 2025.
    V1_2,
    /// Of June 2026.
    V1_4,
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text, or JSON.
    Text,
    /// A decimal number with at most [`DECIMALS_MAX`] places.
    Decimal,
    /// A time in UTC, as ISO 8601 writes it. All are midnights.
    Time,
    /// true or false.
    Flag,
}

/// Whose bill it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The account that pays.
    pub account: String,
    /// Who provides the devices and issues the bill.
    pub provider: String,
}

/// What was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Used {
    /// Device time, in nanoseconds of one device.
    Devices {
        /// The time.
        nanos: i128,
        /// The kind of device, if known.
        accelerator: Option<String>,
        /// Whether no job held the devices.
        is_unheld: bool,
    },
    /// Stored data, in nanoseconds of one byte.
    Storage {
        /// Bytes over time.
        nanos: i128,
        /// The unit of the price: GB-Months or GiB-Months.
        unit: String,
    },
    /// Requests to object storage.
    Requests {
        /// Their number.
        count: u64,
    },
    /// Bytes that were read from object storage.
    Transfer {
        /// The bytes.
        bytes: u64,
        /// The unit of the price: GB or GiB.
        unit: String,
    },
}

/// The device time of a job, or of nobody, in one line on one node and day; or what was stored in a folder, or asked of a dataset's
/// object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The day, in UTC.
    pub day: Day,
    /// The node, the folder, or the address of the dataset.
    pub resource: String,
    /// The line of the bill.
    pub line: String,
    /// The amount.
    pub used: Used,
    /// Price of a device for an hour, of the unit of stored data for a month, of a thousand requests, or of the unit of read bytes.
    pub price: Money,
    /// What the amount cost.
    pub cost: Money,
    /// Whom it belongs to: the job, its name, its user and its queue, as far as they are known.
    pub tags: Vec<(&'static str, String)>,
    /// Whether the job still ran.
    pub is_estimated: bool,
}

/// Columns of a row, in any version.
pub const COLUMN_COUNT: usize = COLUMNS.len() + 2 + OWN_COLUMNS.len();
/// Columns before those of the providers, in the order of the specification's list.
const COLUMNS: [&str; 29] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "Tags",
];
/// Gangline's own columns.
const OWN_COLUMNS: [&str; 4] = ["x_CostKind", "x_GpuSeconds", "x_Estimated", "x_Accelerator"];
/// Decimal places of any number.
pub const DECIMALS_MAX: u32 = 15;
/// Decimal places of device-hours: a nanosecond is 2.8e-13 hours.
const HOUR_DECIMALS: u32 = 15;
/// Decimal places of GiB: a byte is 9.3e-10 GiB.
const BYTE_DECIMALS: u32 = 15;
/// Nanoseconds of an hour.
const NANOS_PER_HOUR: u128 = 3_600_000_000_000;
/// Bytes of a GiB.
const GIB: u128 = 1 << 30;

/// What the columns say of an amount.
struct Columns<'a> {
    quantity: String,
    unit: &'static str,
    pricing_unit: &'a str,
    /// The identifier and the status of the reservation.
    reservation: [&'a str; 2],
    /// The type of resource, and the category and the name of the service.
    service: [&'static str; 3],
    what: String,
}

impl Version {
    const fn providers(self) -> [&'static str; 2] {
        match self {
            Version::V1_2 => ["ProviderName", "PublisherName"],
            Version::V1_4 => ["ServiceProviderName", "HostProviderName"],
        }
    }

    /// Returns the names of the columns, in the order of [`Row::fields`], and the types of their values.
    pub fn columns(self) -> impl Iterator<Item = (&'static str, Kind)> {
        let kind = |name: &str| match name {
            "x_Estimated" => Kind::Flag,
            "x_GpuSeconds" | "ListUnitPrice" => Kind::Decimal,
            _ if name.ends_with("Cost") || name.ends_with("Quantity") => Kind::Decimal,
            _ if name.ends_with("PeriodStart") || name.ends_with("PeriodEnd") => Kind::Time,
            _ => Kind::Text,
        };
        let columns = COLUMNS.into_iter().chain(self.providers()).chain(OWN_COLUMNS);
        columns.map(move |name| (name, kind(name)))
    }

    /// Returns the header of a CSV file, with its line break.
    #[must_use]
    pub fn header(self) -> String {
        self.columns().map(|(name, _)| name).collect::<Vec<_>>().join(",") + "\n"
    }
}

impl Row {
    /// Returns the row as a line of a CSV file.
    #[must_use]
    pub fn csv(&self, issuer: &Issuer) -> String {
        self.fields(issuer).map(|field| quoted(&field)).join(",") + "\n"
    }

    /// Returns a value for each column, in the order that is the same in all versions; empty where there is none.
    #[must_use]
    pub fn fields(&self, issuer: &Issuer) -> [String; COLUMN_COUNT] {
        let cost = dollars(self.cost);
        let (month, next) = self.day.month();
        let (day, after) = (midnight(self.day), midnight(Day::from_days_since_epoch(self.day.days_since_epoch() + 1)));
        let Columns { quantity, unit, pricing_unit, reservation, service, what } = self.columns();
        let [reserved, status] = reservation;
        let [kind, category, name] = service;
        let whose = self.tags.first().map_or_else(|| "nobody".to_owned(), |(_, job)| job.clone());
        let fields: [&str; COLUMN_COUNT] = [
            &cost,
            &issuer.account,
            &issuer.account,
            "USD",
            &midnight(next),
            &midnight(month),
            reserved,
            status,
            "Usage",
            "",
            &format!("{what}, {whose}"),
            "Usage-Based",
            &after,
            &day,
            &quantity,
            unit,
            &cost,
            &cost,
            &issuer.provider,
            &cost,
            &dollars(self.price),
            &self.priced_quantity(),
            pricing_unit,
            &self.resource,
            &self.resource,
            kind,
            category,
            name,
            &self.tags_as_json(),
            &issuer.provider,
            &issuer.provider,
            &self.line,
            &self.gpu_seconds(),
            if self.is_estimated { "true" } else { "false" },
            self.accelerator().unwrap_or(""),
        ];
        fields.map(str::to_owned)
    }

    fn columns(&self) -> Columns<'_> {
        let Row { resource, line, .. } = self;
        match &self.used {
            Used::Devices { nanos, accelerator, is_unheld } => Columns {
                quantity: decimal(*nanos, NANOS_PER_HOUR, HOUR_DECIMALS),
                unit: "GPU-Hours",
                pricing_unit: "GPU-Hours",
                reservation: [resource, if *is_unheld { "Unused" } else { "Used" }],
                service: ["Node", "Compute", "GPU capacity"],
                what: format!("{line} of {} on {resource}", accelerator.as_deref().unwrap_or("device")),
            },
            Used::Storage { nanos, unit } => Columns {
                quantity: decimal(*nanos, NANOS_PER_HOUR * GIB, HOUR_DECIMALS),
                unit: "GiB-Hours",
                pricing_unit: unit,
                reservation: ["", ""],
                service: ["Folder", "Storage", "Storage of training data"],
                what: format!("{line} in {resource}"),
            },
            Used::Requests { count } => Columns {
                quantity: count.to_string(),
                unit: "Requests",
                pricing_unit: "1000 Requests",
                reservation: ["", ""],
                service: ["Dataset", "Storage", "Reading of training data"],
                what: format!("{line} to {resource}"),
            },
            Used::Transfer { bytes, unit } => Columns {
                quantity: decimal(i128::from(*bytes), GIB, BYTE_DECIMALS),
                unit: "GiB",
                pricing_unit: unit,
                reservation: ["", ""],
                service: ["Dataset", "Networking", "Reading of training data"],
                what: format!("{line} from {resource}"),
            },
        }
    }

    fn gpu_seconds(&self) -> String {
        match &self.used {
            Used::Devices { nanos, .. } => decimal(*nanos, 1_000_000_000, 9),
            _ => String::new(),
        }
    }

    fn accelerator(&self) -> Option<&str> {
        match &self.used {
            Used::Devices { accelerator, .. } => accelerator.as_deref(),
            _ => None,
        }
    }

    /// Returns the quantity that the cost pays for, so that cost is price times quantity as the specification demands: costs are
    /// whole nano-dollars, so hours may be some microseconds less than the consumed ones.
    fn priced_quantity(&self) -> String {
        let (cost, price) = (i128::from(self.cost.nano_dollars()), self.price.nano_dollars().unsigned_abs());
        if price == 0 { "0".to_owned() } else { decimal(cost, u128::from(price), HOUR_DECIMALS) }
    }

    fn tags_as_json(&self) -> String {
        let mut json = String::from("{");
        for (key, value) in &self.tags {
            let comma = if json.len() > 1 { "," } else { "" };
            // Writing to a String can't fail.
            let _ = write!(json, "{comma}\"{key}\":\"{}\"", escaped(value));
        }
        json + "}"
    }
}

/// Returns a field as RFC 4180 writes it.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// Returns a text as RFC 8259 writes it within quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            letter if u32::from(letter) < 0x20 => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn midnight(day: Day) -> String {
    format!("{day}T00:00:00Z")
}

/// Returns the exact amount of dollars.
fn dollars(money: Money) -> String {
    decimal(i128::from(money.nano_dollars()), 1_000_000_000, 9)
}

/// Returns a fraction as a decimal number, rounded down in its last place, without trailing zeros.
fn decimal(numerator: i128, denominator: u128, places: u32) -> String {
    let (sign, numerator) = (if numerator < 0 { "-" } else { "" }, numerator.unsigned_abs());
    let (whole, rest) = (numerator / denominator, numerator % denominator);
    let places = usize::try_from(places).unwrap_or(0);
    let scale = (0..places).fold(1_u128, |scale, _| scale.saturating_mul(10));
    let fraction = format!("{:0places$}", rest.saturating_mul(scale) / denominator);
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(
                (of("PricingQuantity"), of("ConsumedQuantity")),
                ("1.5".to_owned(), "1.500000000000277".to_owned())
            );
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
}
