//! Models, hardware and prices: the built-in ones, overridden and extended by the user's files.

use std::path::{Path, PathBuf};

use clap::Args;
use gangline_accounting::{PriceBook, Terms};
use gangline_base::Day;
use gangline_planning::hardware::book::Book;
use gangline_planning::model::{Model, catalog, config};
use gangline_planning::plan::Price;

use crate::failure::Failure;
use crate::output;

/// Maximum size of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Seconds in a day.
const DAY: u64 = 86_400;

/// Files of one's own.
#[derive(Args, Debug)]
pub(crate) struct BookArgs {
    /// Accelerators, networks and storage of your own, over those that come along (TOML)
    #[arg(long, value_name = "FILE")]
    hardware: Option<PathBuf>,
    /// Prices of your own, over those that come along (TOML)
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
}

/// The built-in books together with the user's files.
pub(crate) struct Books {
    pub(crate) hardware: Book,
    own_prices: PriceBook,
    prices: PriceBook,
}

impl Books {
    /// Returns the cheapest known on-demand price of an accelerator; the user's own takes precedence.
    pub(crate) fn price(&self, accelerator: &str) -> Option<Price> {
        price(&self.own_prices, accelerator).or_else(|| price(&self.prices, accelerator))
    }
}

impl BookArgs {
    /// Reads all of them.
    pub(crate) fn read(&self) -> Result<Books, Failure> {
        let hardware = self.hardware()?;
        Ok(Books { own_prices: self.own_prices(&hardware)?, prices: self.prices()?, hardware })
    }

    fn hardware(&self) -> Result<Book, Failure> {
        let Some(path) = &self.hardware else { return Ok(Book::built_in()) };
        Book::built_in().with(&path.display().to_string(), &read(path)?).map_err(|error| wrong(&error))
    }

    pub(crate) fn prices(&self) -> Result<PriceBook, Failure> {
        let Some(path) = &self.prices else { return Ok(PriceBook::built_in()) };
        PriceBook::built_in().with(&path.display().to_string(), &read(path)?).map_err(|error| wrong(&error))
    }

    /// Returns only the user's own prices, which take precedence; each must be of known hardware.
    fn own_prices(&self, hardware: &Book) -> Result<PriceBook, Failure> {
        let Some(path) = &self.prices else { return Ok(PriceBook::default()) };
        let file = path.display().to_string();
        let own = PriceBook::default().with(&file, &read(path)?).map_err(|error| wrong(&error))?;
        for price in own.accelerators() {
            let known = &hardware.accelerator(&price.name).map_err(|error| wrong(&error))?.value.name;
            if *known != price.name {
                let message = format!(
                    "failed to plan: {file} has a price of `{}`, which the book of hardware calls {known}",
                    price.name
                );
                return Err(Failure::coded("G0601", message, format!("write name = \"{known}\"")));
            }
        }
        Ok(own)
    }
}

/// Returns a model by name, or from its `config.json`.
pub(crate) fn model(name: Option<&str>, config: Option<&Path>) -> Result<Model, Failure> {
    match (name, config) {
        (_, Some(path)) => {
            let name = name.map_or_else(|| path.display().to_string(), str::to_owned);
            config::read(&name, &read(path)?).map_err(|error| wrong(&error))
        }
        (Some(name), None) => catalog::find(name).map_err(|error| wrong(&error)),
        (None, None) => Err(Failure::coded(
            "G0601",
            "failed to plan: no model is named",
            "name one with --model, or give its --config",
        )),
    }
}

fn price(book: &PriceBook, accelerator: &str) -> Option<Price> {
    let cheapest = *book.accelerator(accelerator, Terms::OnDemand).first()?;
    let today = today();
    Some(Price {
        hourly: cheapest.per_hour,
        source: format!("{}, on demand", cheapest.provider),
        as_of: Some(cheapest.origin.as_of.to_string()),
        is_stale: cheapest.origin.is_stale(today),
    })
}

/// Returns today's date, read at the edge.
pub(crate) fn today() -> Day {
    let days = output::now().unix_nanos() / (DAY * 1_000_000_000);
    Day::from_days_since_epoch(i64::try_from(days).unwrap_or_default())
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let failed =
        |error: std::io::Error| Failure::coded("G0601", format!("failed to read {}: {error}", path.display()), "");
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        let message = format!("failed to read {}: it has {length} bytes, more than {FILE_BYTES_MAX}", path.display());
        return Err(Failure::coded("G0601", message, ""));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Converts an error about a file or a name.
pub(crate) fn wrong(error: &dyn std::error::Error) -> Failure {
    Failure::coded("G0601", format!("failed to plan: {}", gangline_base::with_causes(error)), "")
}
