//! One entry of a book of hardware: a table of fields, read by name.

use gangline_base::Day;
use toml::{Table, Value};

use super::amount::{self, POWER, RATE, SIZE, TIME, Units, WORK};
use super::book::{BookError, Fact};
use super::{Accelerator, Fabric, Generation, Peaks, Storage, StorageUnit};
use crate::names::nearest;
use crate::units::{Bandwidth, FlopRate, Seconds, Volume};

/// A table of a book, and where it is.
pub(super) struct Entry<'a> {
    /// The file that said so last.
    pub(super) file: &'a str,
    /// `accelerator`, `fabric` or `storage`.
    pub(super) kind: &'static str,
    /// What it is called.
    pub(super) name: &'a str,
    /// Its fields.
    pub(super) table: &'a Table,
}

pub(super) const ACCELERATOR: [&str; 17] = [
    "names",
    "generation",
    "memory",
    "visible",
    "memory_bandwidth",
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp4",
    "link",
    "link_domain",
    "host_link",
    "power",
    "source",
    "as_of",
];
pub(super) const FABRIC: [&str; 5] = ["names", "per_accelerator", "latency", "source", "as_of"];
pub(super) const STORAGE: [&str; 6] = ["names", "of", "read", "write", "source", "as_of"];

impl Entry<'_> {
    pub(super) fn accelerator(&self) -> Result<Fact<Accelerator>, BookError> {
        self.only(&ACCELERATOR)?;
        let sold = self.needed("memory", &SIZE)?;
        let memory = self.amount("visible", &SIZE)?.unwrap_or(sold);
        let link = self.amount("link", &RATE)?;
        let peak = |field| Ok(self.amount(field, &WORK)?.map(FlopRate::new));
        let peaks = Peaks {
            tf32: peak("tf32")?,
            fp16: peak("fp16")?,
            bf16: peak("bf16")?,
            fp8: peak("fp8")?,
            fp4: peak("fp4")?,
        };
        let value = Accelerator {
            name: self.name.to_owned(),
            generation: self.generation()?,
            memory: Volume::new(memory),
            memory_bandwidth: Bandwidth::new(self.needed("memory_bandwidth", &RATE)?),
            fp32: FlopRate::new(self.amount("fp32", &WORK)?.unwrap_or(0.0)),
            peaks,
            link: Bandwidth::new(link.unwrap_or(0.0)),
            link_domain: self.link_domain(link.is_some())?,
            host_link: Bandwidth::new(self.amount("host_link", &RATE)?.unwrap_or(0.0)),
            watts: self.amount("power", &POWER)?.unwrap_or(0.0),
        };
        self.fact(value)
    }

    pub(super) fn fabric(&self) -> Result<Fact<Fabric>, BookError> {
        self.only(&FABRIC)?;
        let per_accelerator = Bandwidth::new(self.needed("per_accelerator", &RATE)?);
        self.fact(Fabric { per_accelerator, latency: Seconds::new(self.needed("latency", &TIME)?) })
    }

    pub(super) fn storage(&self) -> Result<Fact<Storage>, BookError> {
        self.only(&STORAGE)?;
        let of = match self.word("of")? {
            "node" => StorageUnit::Node,
            "tebibyte" => StorageUnit::Tebibyte,
            "system" => StorageUnit::System,
            "stream" => StorageUnit::Stream,
            _ => return Err(self.unfit("of", "\"node\", \"tebibyte\", \"system\" or \"stream\"")),
        };
        let read = Bandwidth::new(self.needed("read", &RATE)?);
        let write = Bandwidth::new(self.needed("write", &RATE)?);
        self.fact(Storage { name: self.name.to_owned(), of, read, write })
    }

    fn fact<T>(&self, value: T) -> Result<Fact<T>, BookError> {
        let as_of = self.word("as_of")?.parse();
        let as_of: Day = as_of.map_err(|_| self.unfit("as_of", "a day such as \"2026-11-22\""))?;
        Ok(Fact { value, names: self.names()?, source: self.word("source")?.to_owned(), as_of })
    }

    fn generation(&self) -> Result<Generation, BookError> {
        Ok(match self.word("generation")? {
            "volta" => Generation::Volta,
            "turing" => Generation::Turing,
            "ampere" => Generation::Ampere,
            "ada" => Generation::Ada,
            "hopper" => Generation::Hopper,
            "blackwell" => Generation::Blackwell,
            "cdna2" => Generation::Cdna2,
            "cdna3" => Generation::Cdna3,
            "cdna4" => Generation::Cdna4,
            "tpu" => Generation::Tpu,
            "other" => Generation::Other,
            _ => {
                let expected = "volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4, tpu or other";
                return Err(self.unfit("generation", expected));
            }
        })
    }

    /// Accelerators that a link joins: 1 without a link, and at least 1 with it.
    fn link_domain(&self, has_link: bool) -> Result<u32, BookError> {
        let domain = match self.table.get("link_domain") {
            None if has_link => return Err(self.missing("link_domain")),
            None => return Ok(1),
            Some(domain) => domain.as_integer().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0),
        };
        domain.ok_or_else(|| self.unfit("link_domain", "how many accelerators the link joins"))
    }

    fn only(&self, known: &[&str]) -> Result<(), BookError> {
        let Some(field) = self.table.keys().find(|field| !known.contains(&field.as_str())) else { return Ok(()) };
        Err(BookError::UnknownField {
            file: self.file.to_owned(),
            entry: self.called(),
            field: field.clone(),
            nearest: nearest(field, known.iter().copied()),
        })
    }

    fn needed(&self, field: &'static str, units: &Units) -> Result<f64, BookError> {
        self.amount(field, units)?.ok_or_else(|| self.missing(field))
    }

    fn amount(&self, field: &'static str, units: &Units) -> Result<Option<f64>, BookError> {
        let Some(value) = self.table.get(field) else { return Ok(None) };
        let amount = value.as_str().and_then(|text| amount::read(text, units));
        amount.map(Some).ok_or_else(|| self.unfit(field, units.expected))
    }

    fn word(&self, field: &'static str) -> Result<&str, BookError> {
        let value = self.table.get(field).ok_or_else(|| self.missing(field))?;
        value.as_str().ok_or_else(|| self.unfit(field, "a text"))
    }

    fn names(&self) -> Result<Vec<String>, BookError> {
        let Some(value) = self.table.get("names") else { return Ok(Vec::new()) };
        let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let list = list.flatten().ok_or_else(|| self.unfit("names", "a list of names"))?;
        Ok(list.into_iter().map(str::to_owned).collect())
    }

    fn called(&self) -> String {
        format!("{}.{}", self.kind, self.name)
    }

    fn missing(&self, field: &'static str) -> BookError {
        BookError::Missing { file: self.file.to_owned(), entry: self.called(), field }
    }

    fn unfit(&self, field: &'static str, expected: &'static str) -> BookError {
        let found = self.table.get(field).map(shown).unwrap_or_default();
        BookError::Unfit { file: self.file.to_owned(), entry: self.called(), field, found, expected }
    }
}

/// A value as it is written, cut short.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.chars().take(SHOWN_MAX).collect::<String>()),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => format!("a {}", value.type_str()),
    }
}

/// Longest text that an error shows, in characters.
const SHOWN_MAX: usize = 40;
