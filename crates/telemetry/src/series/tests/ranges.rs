//! Which part of which series, how fine, and for how long.

use std::time::Duration;

use gangline_base::{JobId, Step};

use super::{BEGIN, all, ask, losses, numbers, open, source, take};
use crate::series::head::Limits;
use crate::series::key::{Batch, Scope};
use crate::series::merge::Keep;
use crate::series::query::Query;
use crate::series::rollup::Resolution;
use crate::series::store::Store;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_query_asks_for_steps_times_ranks_metrics_and_attempts() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    take(&mut store, losses(1, 0, 50));
    store.flush().expect("a segment");
    take(&mut store, losses(1, 50, 50));
    take(&mut store, Batch { source: source(1, 3), names: vec!["lr".to_owned()], ..losses(1, 0, 100) });
    take(&mut store, losses(2, 0, 10));
    let found = |query: &Query| -> Vec<(Option<u32>, String, Vec<f64>)> {
        let curves = ask(&store, query).curves.into_iter();
        let one = |curve: crate::series::Curve| {
            let values = curve.buckets.iter().map(|bucket| bucket.last).collect();
            (curve.series.source.rank, curve.series.metric, values)
        };
        curves.map(one).collect()
    };
    let both = |range: std::ops::Range<u32>| {
        vec![(Some(0), "loss".to_owned(), numbers(range.clone())), (Some(3), "lr".to_owned(), numbers(range))]
    };
    assert_eq!(found(&all(1)), both(0..100));
    assert_eq!(found(&Query { steps: (Some(Step(45)), Some(Step(54))), ..all(1) }), both(45..55));
    let times = (Some(BEGIN + Duration::from_secs(98)), None);
    assert_eq!(found(&Query { times, ..all(1) }), both(98..100));
    assert_eq!(found(&Query { rank: Some(3), ..all(1) }), both(0..100)[1..]);
    assert_eq!(found(&Query { metrics: vec!["loss".to_owned()], ..all(1) }), both(0..100)[..1]);
    assert_eq!(found(&Query { attempt: Some(gangline_base::AttemptNumber(2)), ..all(1) }), []);
    assert_eq!(found(&Query { scope: Scope::Job(JobId(3)), ..all(1) }), []);
    let limited = ask(&store, &Query { curves_max: 1, ..all(1) });
    assert_eq!((limited.curves.len(), limited.left_out), (1, 1));
}

/// Ten hours at one point a second: a chart has at most its budget, from the coarsest rows that fill it.
#[test]
fn a_budget_is_kept_and_filled() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    for part in 0..4 {
        take(&mut store, losses(1, part * 9_000, 9_000));
        store.flush().expect("a segment");
    }
    let check = |budget: usize, resolution: Resolution, at_least: usize| {
        let curve = ask(&store, &Query { points_max: budget, ..all(1) }).curves.remove(0);
        assert_eq!(curve.resolution, resolution, "{budget}");
        assert!((at_least..=budget).contains(&curve.buckets.len()), "{} of {budget}", curve.buckets.len());
        assert_eq!(curve.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 36_000);
        assert_eq!(curve.buckets.last().map(|bucket| (bucket.last, bucket.max)), Some((35_999.0, 35_999.0)));
        assert_eq!(curve.buckets[0].steps.map(|(first, _)| first), Some(Step(0)));
    };
    check(36_000, Resolution::Point, 36_000);
    check(1_000, Resolution::Point, 900);
    check(320, Resolution::Minute, 300);
    check(8, Resolution::Hour, 5);
    check(1, Resolution::Hour, 1);
    let mean = ask(&store, &Query { points_max: 1, ..all(1) }).curves.remove(0).buckets[0].mean();
    assert_eq!(mean, Some(17_999.5));
}

/// Points go first, then minutes, then hours; an old stretch is shown from what is left of it.
#[test]
fn old_values_go_by_resolution_and_coarser_ones_stand_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let keep = Keep { points: 10 * HOUR, minutes: 100 * HOUR, hours: 1_000 * HOUR, ..Keep::default() };
    let mut store = Store::open(folder.path(), Limits::default(), keep, BEGIN).expect("a store");
    take(&mut store, losses(1, 0, 7_200));
    store.flush().expect("a segment");
    let late = 20 * 3_600;
    take(&mut store, losses(1, 7_200, 0));
    let mut newer = losses(1, 7_200, 600);
    newer.rows.iter_mut().for_each(|row| row.at = row.at + Duration::from_secs(late));
    take(&mut store, newer);
    store.flush().expect("a segment");
    let clean = |store: &Store, now| while store.shared().merge(now).expect("a merge") {};
    let count = |store: &Store| -> (u64, usize) {
        let curve = ask(store, &all(1)).curves.remove(0);
        (curve.buckets.iter().map(|bucket| bucket.count).sum(), curve.buckets.len())
    };
    clean(&store, BEGIN + 5 * HOUR);
    assert_eq!(count(&store), (7_800, 7_800), "everything is young");
    clean(&store, BEGIN + 24 * HOUR);
    assert_eq!(count(&store), (7_800, 720), "120 minutes, and 600 points");
    clean(&store, BEGIN + 110 * HOUR);
    let (points, rows) = count(&store);
    assert!(points == 7_800 && rows < 20, "{points} in {rows}: hours, and the younger stretch's minutes");
    clean(&store, BEGIN + 2_000 * HOUR);
    assert!(ask(&store, &all(1)).curves.is_empty());
    drop(store);
    let mut store = open(folder.path());
    assert_eq!(take(&mut store, losses(1, 0, 10)), 7_800, "it is still known what was stored");
}

/// Proves A-10 for the folder: beyond its limit the oldest stretch loses points, then minutes, then hours, and the youngest stays.
#[test]
fn a_folder_that_is_too_large_loses_the_oldest_and_finest_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    for part in 0..3 {
        take(&mut store, losses(1, part * 7_200, 7_200));
        store.flush().expect("a segment");
    }
    let (_, bytes, _, _) = store.shared().sizes();
    drop(store);
    let limited = |bytes_max| {
        let keep = Keep { bytes_max, ..Keep::default() };
        let store = Store::open(folder.path(), Limits::default(), keep, BEGIN).expect("a store");
        while store.shared().merge(BEGIN).expect("a merge") {}
        let curves = ask(&store, &all(1)).curves;
        let buckets = curves.into_iter().flat_map(|curve| curve.buckets).collect::<Vec<_>>();
        (buckets.iter().map(|bucket| bucket.count).sum::<u64>(), buckets.len(), buckets.last().map(|last| last.last))
    };
    assert_eq!(limited(bytes), (21_600, 21_600, Some(21_599.0)));
    assert_eq!(limited(bytes - 1), (21_600, 120 + 14_400, Some(21_599.0)));
    let (_, few, _) = limited(1);
    assert_eq!(few, 0, "nothing fits into one byte");
}
