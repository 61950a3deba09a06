//! The rows of what nodes offered: written once, and verified at every read.

use gangline_base::{Money, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::{from_sql, to_sql};
use crate::codec::{CapacityChanged, NodeStateV1, OverheadsV1};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order.
pub(super) const COLUMNS: &str =
    "node, from_unix_nanos, state, accelerator, devices, others, price_nano_dollars_per_hour, overheads, sum";

/// Writes a change; a second one of a node at the same time replaces the first.
pub(crate) fn write_capacity(
    transaction: &Transaction<'_>,
    at: Timestamp,
    changed: &CapacityChanged,
) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO capacity ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)");
    let CapacityChanged { node, state, accelerator, devices, others, price, overheads } = changed;
    let overheads =
        overheads.map(|overheads| serde_json::to_string(&overheads).expect("types of the codec have string keys only"));
    let columns = params![
        node,
        to_sql(at.unix_nanos()),
        state_name(*state),
        accelerator,
        devices,
        others,
        price.map(Money::nano_dollars),
        overheads,
        sum(at, changed)
    ];
    transaction.prepare_cached(&sql)?.execute(columns).map(drop)
}

/// Returns the row of a node at exactly this time, if it is intact.
pub(crate) fn stored_capacity(
    transaction: &Transaction<'_>,
    at: Timestamp,
    node: &str,
) -> rusqlite::Result<Option<CapacityChanged>> {
    let sql = format!("SELECT {COLUMNS} FROM capacity WHERE node = ?1 AND from_unix_nanos = ?2");
    let found = transaction.prepare_cached(&sql)?.query_row(params![node, to_sql(at.unix_nanos())], read).optional();
    found.map(|found| found.map(|(_, changed)| changed))
}

/// Returns the changes that matter to a period, by node and time: those in it, and each node's last one before.
pub(crate) fn read_capacities(
    transaction: &Transaction<'_>,
    period: (Timestamp, Timestamp),
) -> rusqlite::Result<Vec<(Timestamp, CapacityChanged)>> {
    let mut names = transaction.prepare_cached("SELECT DISTINCT node FROM capacity ORDER BY node")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    read_capacities_of(transaction, names.iter().map(String::as_str), period)
}

/// Returns the same of some nodes.
pub(crate) fn read_capacities_of<'a>(
    transaction: &Transaction<'_>,
    nodes: impl IntoIterator<Item = &'a str>,
    (from, to): (Timestamp, Timestamp),
) -> rusqlite::Result<Vec<(Timestamp, CapacityChanged)>> {
    let first = "SELECT max(from_unix_nanos) FROM capacity WHERE node = ?1 AND from_unix_nanos <= ?2";
    let mut first = transaction.prepare_cached(first)?;
    let rows = format!(
        "SELECT {COLUMNS} FROM capacity WHERE node = ?1 AND from_unix_nanos BETWEEN ?2 AND ?3 ORDER BY from_unix_nanos"
    );
    let mut rows = transaction.prepare_cached(&rows)?;
    let [from, to] = [from, to].map(|at| to_sql(at.unix_nanos().min(i64::MAX.unsigned_abs())));
    let mut changes = Vec::new();
    for name in nodes {
        let before: Option<i64> = first.query_row(params![name, from], |row| row.get(0))?;
        let found = rows.query_map(params![name, before.unwrap_or(from), to], read)?;
        changes.extend(found.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(changes)
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Timestamp, CapacityChanged)> {
    let node: String = row.get(0)?;
    let what = || format!("what node {node} offered");
    let text = |column: usize| row.get::<_, String>(column).map_err(|_| damaged(what()));
    let number = |column: usize| row.get::<_, u32>(column).map_err(|_| damaged(what()));
    let price: Option<i64> = row.get(6).map_err(|_| damaged(what()))?;
    let overheads: Option<String> = row.get(7).map_err(|_| damaged(what()))?;
    let overheads = overheads.map(|text| serde_json::from_str::<OverheadsV1>(&text).map_err(|_| damaged(what())));
    let at = Timestamp::from_unix_nanos(from_sql(row.get(1)?));
    let changed = CapacityChanged {
        state: state_of(&text(2)?).ok_or_else(|| damaged(what()))?,
        accelerator: text(3)?,
        devices: number(4)?,
        others: number(5)?,
        price: price.map(Money::from_nano_dollars),
        overheads: overheads.transpose()?,
        node: node.clone(),
    };
    check_row(row.get_ref(8)?, &[&sum_input(at, &changed)], what)?;
    Ok((at, changed))
}

fn sum(at: Timestamp, changed: &CapacityChanged) -> [u8; 8] {
    row_sum(&[&sum_input(at, changed)])
}

/// The time and the journal's own encoding of the change, which never changes.
fn sum_input(at: Timestamp, changed: &CapacityChanged) -> Vec<u8> {
    let mut bytes = at.unix_nanos().to_le_bytes().to_vec();
    bytes.extend(changed.encode());
    bytes
}

const STATES: [(NodeStateV1, &str); 4] = [
    (NodeStateV1::Ready, "ready"),
    (NodeStateV1::Suspect, "suspect"),
    (NodeStateV1::Draining, "draining"),
    (NodeStateV1::Lost, "lost"),
];

fn state_name(state: NodeStateV1) -> &'static str {
    STATES.iter().find(|(known, _)| *known == state).map_or("", |(_, name)| name)
}

fn state_of(name: &str) -> Option<NodeStateV1> {
    STATES.iter().find(|(_, known)| *known == name).map(|(state, _)| *state)
}
