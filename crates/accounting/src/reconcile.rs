//! Compares a provider's bill with what the ledger says of the same nodes and period.
//!
//! Every charge of the bill is in one place: a node's, or one of the groups that no node matches. So the parts sum to the bill.
//! What differs on a node is divided into hours and price: with `H` device-hours and a price `p` a device-hour on either side,
//! `B - L = (H_b - H_l) p_l + H_b (p_b - p_l)`, the first part for time that only one side has, the second for its price.

use std::collections::BTreeMap;

use gangline_base::Timestamp;

/// Overlaps that are named.
const OVERLAPS_TOLD: usize = 10;

/// What a row of a bill is for, in FOCUS's words (`ChargeCategory`, `ChargeClass`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChargeKind {
    /// Usage of a resource.
    Usage,
    /// A purchase: a reservation, a savings plan.
    Purchase,
    /// A tax.
    Tax,
    /// A credit or a refund.
    Credit,
    /// Anything else, adjustments among it.
    Adjustment,
    /// A correction of an earlier bill, of any category.
    Correction,
}

impl ChargeKind {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ChargeKind::Usage => "usage",
            ChargeKind::Purchase => "purchase",
            ChargeKind::Tax => "tax",
            ChargeKind::Credit => "credit",
            ChargeKind::Adjustment => "adjustment",
            ChargeKind::Correction => "correction",
        }
    }
}

/// The amount that a row charges for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// Hours of a machine.
    MachineHours(f64),
    /// Hours of a device.
    DeviceHours(f64),
}

/// A row of a bill.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// Its line in the file.
    pub line: u64,
    /// The resource; empty if it is of none.
    pub resource: &'a str,
    /// What is charged: the SKU, or the service where there is none.
    pub sku: &'a str,
    /// The service, for rows that no node matches.
    pub service: &'a str,
    /// What it is for.
    pub kind: ChargeKind,
    /// Its period.
    pub period: (Timestamp, Timestamp),
    /// The cost, in nano-dollars; negative for credits and corrections.
    pub cost: i128,
    /// The amount, where it is time.
    pub quantity: Option<Quantity>,
}

/// What the ledger says of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Booked {
    /// The number of its devices; 0 if unknown.
    pub devices: u32,
    /// Device time that it offered, in hours.
    pub device_hours: f64,
    /// What that costs, in nano-dollars.
    pub cost: i128,
    /// Whether part of the time has no price.
    pub is_unpriced: bool,
}

/// Two rows for the same resource, SKU and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The resource.
    pub resource: String,
    /// The lines of both.
    pub lines: (u64, u64),
}

/// What a bill says of a resource.
#[derive(Clone, Debug, Default)]
struct Billed {
    cost: i128,
    corrections: i128,
    machine_hours: f64,
    device_hours: f64,
    /// Whether each row of usage says how much time it is for.
    has_unknown_time: bool,
    rows: u64,
    /// Rows of usage by SKU: start, end, line.
    usage: BTreeMap<String, Vec<(Timestamp, Timestamp, u64)>>,
    /// By kind and service, for a resource that isn't a node.
    parts: BTreeMap<(ChargeKind, String), (u64, i128)>,
}

/// Collects the rows of a bill.
#[derive(Clone, Debug, Default)]
pub struct Reconciler {
    resources: BTreeMap<String, Billed>,
    period: Option<(Timestamp, Timestamp)>,
}

/// A node of the ledger beside the bill.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMatch {
    /// The node.
    pub node: String,
    /// What the bill charges, corrections included, in nano-dollars.
    pub billed: i128,
    /// The part of it in corrections of earlier bills.
    pub corrections: i128,
    /// Device-hours of the bill, if all of its rows say them.
    pub billed_hours: Option<f64>,
    /// What the ledger has.
    pub booked: Booked,
    /// The part of the difference that is time which only one side has, in nano-dollars; none where the hours aren't known.
    pub by_time: Option<i128>,
    /// The rest without corrections: the price of the time that both have, and charges that are no usage.
    pub by_price: Option<i128>,
    /// How it compares.
    pub verdict: Verdict,
}

/// How a node's bill and ledger compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They agree within the tolerance.
    Matched,
    /// They differ.
    Differs,
    /// The bill has no row of it.
    NotBilled,
    /// The ledger has no price for part of its time.
    NotPriced,
}

impl Verdict {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Matched => "matched",
            Verdict::Differs => "differs",
            Verdict::NotBilled => "not billed",
            Verdict::NotPriced => "not priced",
        }
    }
}

/// Charges of the bill that are of no node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// The service.
    pub service: String,
    /// What they are for.
    pub kind: ChargeKind,
    /// Rows of the bill.
    pub rows: u64,
    /// Their cost, in nano-dollars.
    pub cost: i128,
}

/// A bill beside the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciliation {
    /// The ledger's nodes, the largest difference first.
    pub nodes: Vec<NodeMatch>,
    /// What no node matches, the most expensive first.
    pub unmatched: Vec<Unmatched>,
    /// The sum of the bill, in nano-dollars: that of the nodes and of what no node matches.
    pub billed: i128,
    /// Rows for the same resource, SKU and time: the first of them.
    pub overlaps: Vec<Overlap>,
    /// The number of all of them.
    pub overlap_count: u64,
}

impl Reconciler {
    /// Adds a row.
    pub fn add(&mut self, charge: &Charge<'_>) {
        let (from, to) = charge.period;
        let period = self.period.get_or_insert((from, to));
        *period = (period.0.min(from), period.1.max(to));
        if !self.resources.contains_key(charge.resource) {
            self.resources.insert(charge.resource.to_owned(), Billed::default());
        }
        let billed = self.resources.get_mut(charge.resource).expect("it was inserted if it was missing");
        billed.rows += 1;
        billed.cost += charge.cost;
        let part = billed.parts.entry((charge.kind, charge.service.to_owned())).or_default();
        *part = (part.0 + 1, part.1 + charge.cost);
        match charge.kind {
            ChargeKind::Correction => billed.corrections += charge.cost,
            ChargeKind::Usage => {
                match charge.quantity {
                    Some(Quantity::MachineHours(hours)) => billed.machine_hours += hours,
                    Some(Quantity::DeviceHours(hours)) => billed.device_hours += hours,
                    None => billed.has_unknown_time = true,
                }
                if !billed.usage.contains_key(charge.sku) {
                    billed.usage.insert(charge.sku.to_owned(), Vec::new());
                }
                billed.usage.get_mut(charge.sku).into_iter().for_each(|rows| rows.push((from, to, charge.line)));
            }
            _ => {}
        }
    }

    /// Returns the period that the rows cover, if there are any.
    #[must_use]
    pub const fn period(&self) -> Option<(Timestamp, Timestamp)> {
        self.period
    }

    /// Compares the rows with the ledger. `resource_of` names the resource that a node is in the bill. Costs whose difference is
    /// at most `tolerance` of the ledger's count as the same.
    #[must_use]
    pub fn finish(
        mut self,
        ledger: &BTreeMap<String, Booked>,
        resource_of: impl Fn(&str) -> String,
        tolerance: f64,
    ) -> Reconciliation {
        let billed = self.resources.values().map(|billed| billed.cost).sum();
        let (overlaps, overlap_count) = self.overlaps();
        let matched = ledger.iter().map(|(node, booked)| {
            let billed = self.resources.remove(&resource_of(node)).unwrap_or_default();
            compare(node, &billed, *booked, tolerance)
        });
        let mut nodes: Vec<NodeMatch> = matched.collect();
        let difference = |node: &NodeMatch| (node.billed - node.booked.cost).abs();
        nodes.sort_by(|left, right| difference(right).cmp(&difference(left)).then_with(|| left.node.cmp(&right.node)));
        let mut others: BTreeMap<(ChargeKind, String), (u64, i128)> = BTreeMap::new();
        for (key, (rows, cost)) in self.resources.into_values().flat_map(|billed| billed.parts) {
            let other = others.entry(key).or_default();
            *other = (other.0 + rows, other.1 + cost);
        }
        let unmatched =
            others.into_iter().map(|((kind, service), (rows, cost))| Unmatched { service, kind, rows, cost });
        let mut unmatched: Vec<Unmatched> = unmatched.collect();
        unmatched.sort_by_key(|other| std::cmp::Reverse(other.cost.abs()));
        Reconciliation { nodes, unmatched, billed, overlaps, overlap_count }
    }

    /// Returns the first rows of usage that overlap with another one of their resource and SKU, and the number of all.
    fn overlaps(&mut self) -> (Vec<Overlap>, u64) {
        let (mut told, mut count) = (Vec::new(), 0);
        for (resource, billed) in self.resources.iter_mut().filter(|(resource, _)| !resource.is_empty()) {
            for (first, second) in billed.usage.values_mut().flat_map(|rows| overlapping(rows)) {
                count += 1;
                if told.len() < OVERLAPS_TOLD {
                    told.push(Overlap { resource: resource.clone(), lines: (first, second) });
                }
            }
        }
        (told, count)
    }
}

/// Returns the lines of each row that begins before an earlier one ends, after that of the earlier one.
fn overlapping(rows: &mut [(Timestamp, Timestamp, u64)]) -> impl Iterator<Item = (u64, u64)> + '_ {
    rows.sort_unstable();
    let mut last: Option<(Timestamp, u64)> = None;
    rows.iter().filter_map(move |(from, to, line)| {
        let found = last.filter(|(end, _)| from < end).map(|(_, earlier)| (earlier, *line));
        if last.is_none_or(|(end, _)| end < *to) {
            last = Some((*to, *line));
        }
        found
    })
}

fn compare(node: &str, billed: &Billed, booked: Booked, tolerance: f64) -> NodeMatch {
    let difference = billed.cost - booked.cost;
    let is_known = !billed.has_unknown_time && (billed.machine_hours == 0.0 || booked.devices > 0);
    let billed_hours =
        (billed.rows > 0 && is_known).then(|| billed.device_hours + billed.machine_hours * f64::from(booked.devices));
    let verdict = match () {
        () if billed.rows == 0 => Verdict::NotBilled,
        () if booked.is_unpriced => Verdict::NotPriced,
        () if as_float(difference).abs() <= tolerance * as_float(booked.cost) => Verdict::Matched,
        () => Verdict::Differs,
    };
    let by_time = billed_hours.filter(|_| booked.device_hours > 0.0 && !booked.is_unpriced).map(|hours| {
        let price = as_float(booked.cost) / booked.device_hours;
        whole((hours - booked.device_hours) * price)
    });
    // Corrections are of other periods.
    let by_price = by_time.map(|by_time| difference - billed.corrections - by_time);
    NodeMatch {
        node: node.to_owned(),
        billed: billed.cost,
        corrections: billed.corrections,
        billed_hours,
        booked,
        by_time,
        by_price,
        verdict,
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares of costs")]
fn as_float(nano_dollars: i128) -> f64 {
    nano_dollars as f64
}

#[expect(clippy::cast_possible_truncation, reason = "costs are far below 2^63")]
fn whole(nano_dollars: f64) -> i128 {
    nano_dollars.round() as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOLLAR: i128 = 1_000_000_000;

    fn hour(count: u64) -> Timestamp {
        Timestamp::from_unix_nanos(count * 3_600_000_000_000)
    }

    fn usage(line: u64, resource: &'static str, hours: (u64, u64), cost: i128) -> Charge<'static> {
        Charge {
            line,
            resource,
            sku: "p5",
            service: "EC2",
            kind: ChargeKind::Usage,
            period: (hour(hours.0), hour(hours.1)),
            cost: cost * DOLLAR,
            quantity: Some(Quantity::MachineHours(f64::from(u32::try_from(hours.1 - hours.0).expect("small")))),
        }
    }

    fn booked(devices: u32, hours: f64, cost: i128) -> Booked {
        Booked { devices, device_hours: hours, cost: cost * DOLLAR, is_unpriced: false }
    }

    fn reconcile(charges: &[Charge<'_>], ledger: &[(&str, Booked)]) -> Reconciliation {
        let mut reconciler = Reconciler::default();
        charges.iter().for_each(|charge| reconciler.add(charge));
        let ledger = ledger.iter().map(|(node, booked)| ((*node).to_owned(), *booked)).collect();
        let result = reconciler.finish(&ledger, |node| format!("i-{node}"), 0.01);
        let nodes: i128 = result.nodes.iter().map(|node| node.billed).sum();
        let others: i128 = result.unmatched.iter().map(|other| other.cost).sum();
        assert_eq!(nodes + others, result.billed, "every charge is in one place");
        result
    }

    /// By hand: 8 devices for 10 hours at $2 are $160 in the ledger. The bill has 12 hours at $2.50 a device, $240: 16
    /// device-hours more are $32, and $0.50 more for each of 96 device-hours $48.
    #[test]
    fn a_difference_is_time_and_price() {
        let result = reconcile(&[usage(2, "i-a", (0, 12), 240)], &[("a", booked(8, 80.0, 160))]);
        let node = &result.nodes[0];
        assert_eq!((node.verdict, node.billed_hours), (Verdict::Differs, Some(96.0)));
        assert_eq!((node.by_time, node.by_price), (Some(32 * DOLLAR), Some(48 * DOLLAR)));
    }

    #[test]
    fn corrections_taxes_and_strangers_are_told_apart() {
        let correction = Charge { kind: ChargeKind::Correction, ..usage(3, "i-a", (0, 1), -5) };
        let tax = Charge { kind: ChargeKind::Tax, resource: "", quantity: None, ..usage(4, "", (0, 10), 30) };
        let stranger = usage(5, "i-z", (0, 10), 7);
        let charges = [usage(2, "i-a", (0, 10), 161), correction, tax, stranger];
        let result = reconcile(&charges, &[("a", booked(8, 80.0, 160)), ("b", booked(8, 80.0, 160))]);
        let of = |name: &str| result.nodes.iter().find(|node| node.node == name).expect("it is there");
        assert_eq!((of("a").billed, of("a").corrections), (156 * DOLLAR, -5 * DOLLAR));
        assert_eq!((of("a").by_time, of("a").by_price), (Some(0), Some(DOLLAR)), "the correction is of another period");
        assert_eq!(of("b").verdict, Verdict::NotBilled);
        let others: Vec<(ChargeKind, i128)> = result.unmatched.iter().map(|o| (o.kind, o.cost / DOLLAR)).collect();
        assert_eq!(others, [(ChargeKind::Tax, 30), (ChargeKind::Usage, 7)]);
    }

    #[test]
    fn rows_for_the_same_time_are_told_and_those_side_by_side_are_not() {
        let other_sku = Charge { sku: "disk", ..usage(5, "i-a", (0, 2), 1) };
        let charges = [usage(2, "i-a", (0, 2), 1), usage(3, "i-a", (2, 4), 1), usage(4, "i-a", (3, 5), 1), other_sku];
        let result = reconcile(&charges, &[("a", booked(8, 32.0, 4))]);
        assert_eq!(result.overlap_count, 1);
        let long = [usage(2, "i-a", (0, 9), 1), usage(3, "i-a", (1, 2), 1), usage(4, "i-a", (3, 4), 1)];
        assert_eq!(reconcile(&long, &[]).overlap_count, 2, "the second one overlaps with the row before its neighbour");
        assert_eq!(result.overlaps, [Overlap { resource: "i-a".to_owned(), lines: (3, 4) }]);
        assert_eq!(result.nodes[0].verdict, Verdict::Matched);
    }

    #[test]
    fn what_is_not_known_is_not_explained() {
        let unknown = Charge { quantity: None, ..usage(2, "i-a", (0, 2), 9) };
        let result = reconcile(&[unknown], &[("a", booked(8, 16.0, 4))]);
        assert_eq!((result.nodes[0].billed_hours, result.nodes[0].by_time), (None, None));
        let unpriced = Booked { is_unpriced: true, ..booked(8, 16.0, 4) };
        let result = reconcile(&[usage(2, "i-a", (0, 2), 4)], &[("a", unpriced)]);
        assert_eq!((result.nodes[0].verdict, result.nodes[0].by_price), (Verdict::NotPriced, None));
    }
}
