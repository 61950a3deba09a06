//! A roadmap as text and as JSON.

use std::fmt::Write as _;

use gangline_accounting::procurement::{Growth, Outlook};
use serde_json::{Value, json};

use super::{Advice, Found, Future, Month, Outcome};
use crate::output;

/// What is short from which month on, if it is.
fn first_short(future: &Future, months: &[Month]) -> Option<u32> {
    months.iter().find(|month| month.is_short(&future.roadmap)).map(|month| month.number)
}

/// What an option costs, in dollars.
fn cost(future: &Future, outcome: &Outcome, outlook: Outlook) -> f64 {
    future.roadmap.cost(&outcome.option, outlook, future.devices(), future.node_devices)
}

/// Says when something happens, by outlook.
fn when(months: [Option<u32>; 3]) -> String {
    let [low, likely, high] = months;
    let word =
        |month: Option<u32>| month.map_or_else(|| "not in this time".to_owned(), |month| format!("month {month}"));
    match (low, likely, high) {
        (None, None, None) => "not in this time".to_owned(),
        _ => format!("{} (P10 {}, P90 {})", word(likely), word(low), word(high)),
    }
}

fn hours(seconds: f64) -> String {
    match seconds {
        seconds if seconds.is_infinite() => "no end".to_owned(),
        seconds if seconds < 60.0 => format!("{seconds:.0} s"),
        seconds if seconds < 3_600.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        seconds => format!("{:.1} d", seconds / 86_400.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn growth(growth: &Growth) -> String {
    if growth.low.to_bits() == growth.high.to_bits() {
        return percent(growth.likely);
    }
    format!("{} (P10 {}, P90 {})", percent(growth.likely), percent(growth.low), percent(growth.high))
}

fn dollars(amount: f64) -> String {
    match amount {
        amount if amount >= 1e6 => format!("${:.2} M", amount / 1e6),
        amount => format!("${amount:.0}"),
    }
}

/// By outlook.
fn each<T>(of: impl FnMut(usize) -> T) -> [T; 3] {
    [0, 1, 2].map(of)
}

pub(super) fn text(found: &Found<'_>) -> String {
    let Future { name, cluster, sample, roadmap, months, .. } = found.future;
    let there = found.future.devices();
    let mut text = format!(
        "{} months of {} ({there} devices), from the last {} days of {name} (simulated under its queues and rules)\n\n",
        roadmap.months,
        cluster.name,
        sample.days(),
    );
    let fitted = if found.is_fitted { ", fitted to the past" } else { "" };
    // Writing to a String can't fail.
    let _ = writeln!(text, "jobs grow by {} a month{fitted}", growth(&found.jobs));
    for (what, rate) in [("their sizes", roadmap.growth.sizes), ("their durations", roadmap.growth.durations)] {
        if rate != Growth::default() {
            let _ = writeln!(text, "{what} grow by {} a month", growth(&rate));
        }
    }
    if months.len() <= roadmap.months as usize {
        let _ =
            writeln!(text, "simulated are months {}", months.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    }
    for outcome in &found.outcomes {
        text += &option(found.future, outcome);
    }
    text += &advice(found);
    text
}

fn option(future: &Future, outcome: &Outcome) -> String {
    let roadmap = &future.roadmap;
    let short = each(|outlook| first_short(future, &outcome.months[outlook]));
    let limit = hours(roadmap.wait_p95_hours * 3_600.0);
    let mut text = format!("\n{}\n  waits of more than {limit} (P95): {}\n", outcome.option.name, when(short));
    if let Some(stored) = &roadmap.storage {
        let full = Outlook::ALL.map(|outlook| stored.full_in(roadmap.months, outlook));
        let _ = writeln!(text, "  stored data beyond {} TiB: {}", stored.capacity_tib, when(full));
    }
    let [low, likely, high] = Outlook::ALL.map(|outlook| cost(future, outcome, outlook));
    if high > 0.0 {
        let range =
            if high - low < 0.5 { String::new() } else { format!(" (P10 {}, P90 {})", dollars(low), dollars(high)) };
        let _ = writeln!(text, "  costs {}{range} in all (estimated)", dollars(likely));
    }
    let rows = (0..future.months.len()).map(|index| {
        let [low, likely, high] = each(|outlook| outcome.months[outlook][index]);
        let too_large = if likely.too_large > 0.0 { percent(likely.too_large) } else { "-".to_owned() };
        vec![
            likely.number.to_string(),
            likely.devices.to_string(),
            format!("{:.0}", likely.wanted),
            format!("{:.0} %", likely.busy * 100.0),
            hours(likely.wait_p50),
            hours(likely.wait_p95),
            hours(low.wait_p95),
            hours(high.wait_p95),
            too_large,
        ]
    });
    let headings =
        [">MONTH", ">DEVICES", ">WANTED", ">BUSY", ">WAIT P50", ">WAIT P95", ">IF LOW", ">IF HIGH", ">TOO LARGE"];
    text + "\n" + &output::table(&headings, rows.collect())
}

fn advice(found: &Found<'_>) -> String {
    let roadmap = &found.future.roadmap;
    let limit = hours(roadmap.wait_p95_hours * 3_600.0);
    let needed = |advice: &Option<Advice>| advice.map_or(0, |advice| advice.nodes);
    let [low, likely, high] = each(|outlook| needed(&found.advice[outlook]));
    if high == 0 {
        return format!("\nnothing has to be bought for waits of at most {limit} (P95)\n");
    }
    let order = |advice: &Option<Advice>| advice.map(|advice| advice.month.saturating_sub(roadmap.lead));
    let month = when(each(|outlook| order(&found.advice[outlook])));
    format!(
        "\nfor waits of at most {limit} (P95) until month {}: {likely} more node(s) of {} devices (P10 {low}, P90 {high}); \
         with {} month(s) of lead time, the first is to be ordered in {month}\n",
        roadmap.months, found.future.node_devices, roadmap.lead
    )
}

/// JSON has no infinity: a wait without end is null.
fn finite(seconds: f64) -> Option<f64> {
    Some(seconds).filter(|seconds| seconds.is_finite())
}

pub(super) fn value(found: &Found<'_>) -> Value {
    let future = found.future;
    let names = ["p10", "p50", "p90"];
    let by_outlook = |of: &dyn Fn(usize) -> Value| {
        let pairs = names.iter().enumerate().map(|(outlook, name)| ((*name).to_owned(), of(outlook)));
        Value::Object(pairs.collect())
    };
    let month = |month: &Month| {
        json!({
            "month": month.number, "devices": month.devices, "devices_wanted": month.wanted, "busy": month.busy,
            "wait_p50_seconds": finite(month.wait_p50), "wait_p95_seconds": finite(month.wait_p95), "too_large": month.too_large,
        })
    };
    let option = |outcome: &Outcome| {
        json!({
            "name": outcome.option.name,
            "waits_from_month": by_outlook(&|outlook| json!(first_short(future, &outcome.months[outlook]))),
            "cost_dollars": by_outlook(&|outlook| json!(cost(future, outcome, Outlook::ALL[outlook]))),
            "months": by_outlook(&|outlook| outcome.months[outlook].iter().map(month).collect()),
        })
    };
    let full = |outlook: usize| {
        let stored = future.roadmap.storage.as_ref();
        json!(stored.and_then(|stored| stored.full_in(future.roadmap.months, Outlook::ALL[outlook])))
    };
    json!({
        "past": future.name,
        "days": future.sample.days(),
        "jobs_growth": { "p10": found.jobs.low, "p50": found.jobs.likely, "p90": found.jobs.high },
        "is_growth_fitted": found.is_fitted,
        "storage_full_in_month": by_outlook(&full),
        "options": found.outcomes.iter().map(option).collect::<Vec<_>>(),
        "nodes_needed": by_outlook(&|outlook| json!(found.advice[outlook].map_or(0, |advice| advice.nodes))),
    })
}
