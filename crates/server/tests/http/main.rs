//! The HTTP border, tried over a real socket: what is granted, what is refused and how, what the page shows.

mod access;
mod agents;
mod cost;
mod document;
mod doors;
mod jobs;
mod limits;
mod logs;
mod metrics;
mod once;
mod page;
mod plane;
mod principals;
mod refusals;
mod reports;
mod schedules;
mod sweeps;
mod templates;
mod tracking;
