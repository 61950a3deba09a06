//! How much capacity to reserve, from hourly demand and prices, what offers cost in all, and what is expected of the months to
//! come. When owning pays is planned
//! before a run (`planning/src/sourcing`).
//!
//! Amounts are estimates about the future, so they are floating-point dollars, unlike those of the ledger.

mod demand;
mod offer;
mod owned;
mod reserve;
mod roadmap;
mod spot;

pub use demand::Demand;
pub use offer::{Offer, OfferError};
pub use owned::Owned;
pub use reserve::{Plan, Prices, PricesError, reserve};
pub use roadmap::{FIT_WEEKS_MIN, Growth, Outlook, Purchase, PurchaseOption, Roadmap, RoadmapError, StoredData, Team};
pub use spot::Spot;
