//! What it cost: prices, and a ledger in which every GPU-second of an allocation is in exactly one bucket.
//!
//! Pure. Device time and money are integral, so sums are exact in any order.

mod ledger;
mod price_book;

pub use ledger::{Allocation, LedgerEntry, book};
pub use price_book::{
    AcceleratorPrice, EgressPrice, Origin, PriceBook, PriceError, STALE_DAYS, StoragePrice, Terms, Tiers,
};
