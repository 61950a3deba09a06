//! The store beside a list of everything that was stored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gangline_base::{Step, Timestamp};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{BEGIN, all, ask, open, source, take};
use crate::series::key::{Batch, Row, Series};
use crate::series::query::Query;
use crate::series::rollup::Resolution;
use crate::series::store::Store;

/// Time, step and bits of each point, by series.
type Oracle = BTreeMap<Series, Vec<(u64, Option<Step>, u64)>>;

const JOBS: u64 = 3;
const METRICS: [&str; 4] = ["loss", "lr", "grad/norm", "tokens"];

struct World<'f> {
    random: ChaCha8Rng,
    folder: &'f Path,
    store: Store,
    oracle: Oracle,
    /// The next row of each rank, and the last batch that was sent.
    next: BTreeMap<(u64, u32), (u64, Option<Batch>)>,
    now: Timestamp,
}

impl World<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    fn value(&mut self) -> f64 {
        match self.below(20) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            3 => f64::from_bits(self.random.next_u64()),
            _ => f64::from(u16::try_from(self.below(60_000)).expect("it fits")) / 100.0,
        }
    }

    fn batch(&mut self, first: u64, rank: (u64, u32)) -> Batch {
        let mut rows = Vec::new();
        for _ in 0..self.below(40) {
            self.now = self.now + Duration::from_millis(self.random.next_u64() % 3_000);
            let step = (self.below(5) > 0).then(|| Step(self.random.next_u64() % 1_000));
            // Some rows come late.
            let late = Duration::from_secs(if self.below(10) == 0 { 7_200 } else { 0 });
            let at = Timestamp::from_unix_nanos(self.now.unix_nanos() - u64::try_from(late.as_nanos()).expect("small"));
            let values = (0..4).filter(|_| !self.random.next_u32().is_multiple_of(3)).collect::<Vec<u32>>();
            let values = values.into_iter().map(|name| (name, self.value())).collect();
            rows.push(Row { at, step, values });
        }
        Batch { source: source(rank.0, rank.1), first, names: METRICS.map(str::to_owned).into(), rows }
    }

    fn send(&mut self) {
        let rank = (self.below(JOBS), u32::try_from(self.below(2)).expect("small"));
        let (next, last) = self.next.get(&rank).cloned().unwrap_or_default();
        let mut batch = self.batch(next, rank);
        let mut fresh = batch.rows.clone();
        // The sender didn't hear the last answer, and sends those rows again before the new ones.
        if let Some(last) = last.filter(|_| self.below(4) == 0) {
            fresh = batch.rows;
            batch = Batch { rows: last.rows.into_iter().chain(fresh.clone()).collect(), ..last };
        }
        for row in fresh {
            for (name, value) in row.values {
                let metric = METRICS[usize::try_from(name).expect("small")].to_owned();
                let series = Series { source: batch.source.clone(), metric };
                let point = (row.at.unix_nanos() / 1_000_000, row.step, value.to_bits());
                self.oracle.entry(series).or_default().push(point);
            }
        }
        let stored = take(&mut self.store, batch.clone());
        assert_eq!(stored, batch.first + u64::try_from(batch.rows.len()).expect("small"));
        self.next.insert(rank, (stored, Some(batch)));
    }

    fn check(&self) {
        for job in 0..JOBS {
            let expected: Oracle = self
                .oracle
                .iter()
                .filter(|(series, _)| series.source.scope == source(job, 0).scope)
                .fold(Oracle::new(), |mut all, (series, points)| {
                    let mut points = points.clone();
                    points.sort_unstable();
                    all.insert(series.clone(), points);
                    all
                });
            self.check_points(job, &expected);
            self.check_sums(job, &expected);
        }
    }

    fn check_points(&self, job: u64, expected: &Oracle) {
        let answer = ask(&self.store, &all(job));
        let found = answer.curves.iter().map(|curve| {
            assert_eq!((curve.resolution, curve.unreadable), (Resolution::Point, 0));
            let point = |bucket: &crate::series::Bucket| {
                let step = bucket.steps.map(|(first, _)| first);
                (bucket.at().unix_nanos() / 1_000_000, step, bucket.last.to_bits())
            };
            assert!(curve.buckets.is_sorted_by_key(|bucket| bucket.at()));
            let mut points: Vec<_> = curve.buckets.iter().map(point).collect();
            points.sort_unstable();
            (curve.series.clone(), points)
        });
        assert_eq!(&found.collect::<Oracle>(), expected);
    }

    /// With few points the numbers, extremes and last values are still those of all points.
    fn check_sums(&self, job: u64, expected: &Oracle) {
        for budget in [1, 3, 17] {
            let answer = ask(&self.store, &Query { points_max: budget, ..all(job) });
            assert_eq!(answer.curves.len(), expected.len());
            for curve in answer.curves {
                let points = &expected[&curve.series];
                assert!(curve.buckets.len() <= budget, "{} of {budget}", curve.buckets.len());
                let finite: Vec<f64> =
                    points.iter().map(|point| f64::from_bits(point.2)).filter(|value| value.is_finite()).collect();
                let count: u64 = curve.buckets.iter().map(|bucket| bucket.count).sum();
                let others: u64 = curve.buckets.iter().map(|bucket| bucket.not_finite).sum();
                assert_eq!(count, u64::try_from(finite.len()).expect("small"));
                assert_eq!(count + others, u64::try_from(points.len()).expect("small"));
                let min = curve.buckets.iter().fold(f64::INFINITY, |min, bucket| min.min(bucket.min));
                let max = curve.buckets.iter().fold(f64::NEG_INFINITY, |max, bucket| max.max(bucket.max));
                assert_eq!(min, finite.iter().copied().fold(f64::INFINITY, f64::min));
                assert_eq!(max, finite.iter().copied().fold(f64::NEG_INFINITY, f64::max));
                let newest = points.iter().map(|point| point.0).max().expect("a point");
                let last = curve.buckets.iter().max_by_key(|bucket| bucket.last_at()).expect("a bucket");
                assert_eq!(last.last_at().unix_nanos() / 1_000_000, newest);
                let lasts: Vec<u64> = points.iter().filter(|point| point.0 == newest).map(|point| point.2).collect();
                assert!(lasts.contains(&last.last.to_bits()));
            }
        }
    }
}

/// Any history of batches (some sent twice, some late), segments, merges and crashes leaves exactly what was acknowledged.
#[test]
fn any_history_leaves_every_acknowledged_point_once() {
    for seed in 0..6 {
        let folder = tempfile::tempdir().expect("a folder");
        let mut world = World {
            random: ChaCha8Rng::seed_from_u64(seed),
            folder: folder.path(),
            store: open(folder.path()),
            oracle: Oracle::new(),
            next: BTreeMap::new(),
            now: BEGIN,
        };
        for _ in 0..250 {
            match world.below(12) {
                0 => world.store.flush().expect("a segment"),
                1 => _ = world.store.shared().merge(BEGIN).expect("a merge"),
                2 => world.store = open(world.folder),
                _ => world.send(),
            }
            if world.below(30) == 0 {
                world.check();
            }
        }
        world.store = open(world.folder);
        world.check();
        assert!(world.oracle.values().map(Vec::len).sum::<usize>() > 3_000, "seed {seed} does too little");
    }
}
