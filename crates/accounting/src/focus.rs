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
    /// Device time that is charged beside its price, in nanoseconds of one device.
    Overhead {
        /// The time.
        nanos: i128,
        /// Whether it is the network's; support's otherwise.
        is_network: bool,
    },
    /// Energy of devices.
    Energy {
        /// In picojoules.
        picojoules: i128,
    },
    /// Time of people who looked after an incident.
    Work {
        /// In nanoseconds.
        nanos: i128,
    },
    /// Bytes that were read from object storage.
    Transfer {
        /// The bytes.
        bytes: u64,
        /// The unit of the price: GB or GiB.
        unit: String,
    },
}

/// The device time of a job, or of nobody, in one line on one node and day; or what was stored in a folder, asked of a dataset's
/// object storage, or done by people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The day, in UTC.
    pub day: Day,
    /// The node, the folder, the address of the dataset, or the job that people looked after.
    pub resource: String,
    /// The line of the bill.
    pub line: String,
    /// The amount.
    pub used: Used,
    /// Price of a device or a person for an hour, of the unit of stored data for a month, of a thousand requests, of the unit of read
    /// bytes, or of a kilowatt-hour.
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
/// Picojoules of a kilowatt-hour.
const KILOWATT_HOUR: u128 = 3_600_000_000_000_000_000;

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
        // Nobody sends an invoice for the time of one's own people.
        let billed = if matches!(self.used, Used::Work { .. }) { "0" } else { &cost };
        let fields: [&str; COLUMN_COUNT] = [
            billed,
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
            Used::Overhead { nanos, is_network } => Columns {
                quantity: decimal(*nanos, NANOS_PER_HOUR, HOUR_DECIMALS),
                unit: "GPU-Hours",
                pricing_unit: "GPU-Hours",
                reservation: ["", ""],
                service: match is_network {
                    true => ["Node", "Networking", "Network between devices"],
                    false => ["Node", "Management and Governance", "Support and surcharges"],
                },
                what: format!("{line} of devices on {resource}"),
            },
            Used::Energy { picojoules } => Columns {
                quantity: decimal(*picojoules, KILOWATT_HOUR, HOUR_DECIMALS),
                unit: "Kilowatt-Hours",
                pricing_unit: "Kilowatt-Hours",
                reservation: ["", ""],
                service: ["Node", "Other", "Energy"],
                what: format!("{line} of devices on {resource}"),
            },
            Used::Work { nanos } => Columns {
                quantity: decimal(*nanos, NANOS_PER_HOUR, HOUR_DECIMALS),
                unit: "Hours",
                pricing_unit: "Hours",
                reservation: ["", ""],
                service: ["Incident", "Other", "Engineering time"],
                what: format!("{line} for {resource}"),
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
#[path = "focus_tests.rs"]
mod tests;
