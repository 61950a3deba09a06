//! Accounting: prices, a ledger that books every GPU-second of an allocation into exactly one bucket, the bill of a
//! period ([`bill`]), a provider's bill beside it ([`reconcile`]), and why a job's time goes where it goes ([`attribution`]).
//!
//! Pure: times are arguments. Device time and money are integers, so sums are exact in any order.

pub mod attribution;
pub mod bill;
pub mod focus;
pub mod goodput;
mod ledger;
mod phase_clock;
mod price_book;
pub mod procurement;
pub mod reconcile;
pub mod sacct;

pub use ledger::{Allocation, LedgerEntry, book};
pub use phase_clock::PhaseClock;
pub use price_book::{
    AcceleratorPrice, EgressPrice, Origin, PriceBook, PriceError, STALE_DAYS, StoragePrice, Terms, Tiers,
};
