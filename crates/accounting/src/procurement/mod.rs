//! How much capacity to reserve, from hourly demand and prices, and what offers cost in all. When owning pays is planned
//! before a run (`planning/src/sourcing`).
//!
//! Amounts are estimates about the future, so they are floating-point dollars, unlike those of the ledger.

mod demand;
mod offer;
mod reserve;
mod spot;

pub use demand::Demand;
pub use offer::{Offer, OfferError};
pub use reserve::{Plan, Prices, PricesError, reserve};
pub use spot::Spot;
