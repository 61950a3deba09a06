//! Books a rank's device time into buckets as it reports phases and steps. Keeps A-8: at any moment the
//! buckets sum to exactly the wall time since the start, times the rank's devices.
//!
//! The rules:
//! - All time from the start to the end of the first step is `restart`.
//! - After that, the phase determines the bucket. `init` and `restore` are `restart` again (an in-process
//!   restart), `done` is `idle`.
//! - If this attempt or an earlier one had already reached a step, the step's whole interval is `lost_work`,
//!   whatever its phases. The interval of a step begins at the end of the step before.
//! - The time after the last step of a rank that fails, hangs or is killed is `lost_work`: nothing came of it. A
//!   rank that ends well books it by phase, such as a last evaluation or save.
//! - A rank that reports nothing runs an unmodified script: its time is `unreported` from the start of its
//!   process, since nobody knows what it did.
//! - Times in phases that a rank measured itself are taken from the time in which it counts as computing.
//! - After the process has ended, its devices are still allocated: `idle`.

use std::time::Duration;

use gangline_base::{Bucket, Buckets, GpuSeconds, Phase, Step, Timestamp};

/// The clock of one rank. A time earlier than the latest one counts as no time passed.
#[derive(Clone, Debug)]
pub struct PhaseClock {
    devices: u32,
    /// The highest step reached so far, by earlier attempts or by this one.
    high_water_step: Step,
    /// All time before this is booked.
    booked_until: Timestamp,
    /// Device time of finished steps, by bucket.
    booked: Buckets,
    /// Device time since the end of the last step, by phase.
    pending: Buckets,
    stage: Stage,
    last_step: Option<Step>,
}

/// The state of a rank, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The process has not been started.
    Waiting,
    /// The process runs and has not reported anything.
    Silent,
    /// The rank reports phases; this is the current one.
    In(Phase),
    /// The process has ended.
    Ended,
}

impl PhaseClock {
    /// Creates a clock for a rank that holds `devices` from `start` on. `high_water_step` is the highest step
    /// that earlier attempts of the job reached.
    #[must_use]
    pub fn new(start: Timestamp, high_water_step: Step, devices: u32) -> Self {
        PhaseClock {
            devices,
            high_water_step,
            booked_until: start,
            booked: Buckets::default(),
            pending: Buckets::default(),
            stage: Stage::Waiting,
            last_step: None,
        }
    }

    /// Notes that the rank's process was started.
    pub fn process_started(&mut self, now: Timestamp) {
        self.advance(now);
        if self.stage == Stage::Waiting {
            self.stage = Stage::Silent;
        }
    }

    /// Notes that the rank entered `phase`.
    pub fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.advance(now);
        self.break_silence();
        if self.stage != Stage::Ended {
            self.stage = Stage::In(phase);
        }
    }

    /// Notes that of the time since the last step, `time` was spent in `phase` without entering it: a part of what counts
    /// as computing, and no more than there is.
    pub fn spent(&mut self, now: Timestamp, phase: Phase, time: Duration) {
        self.advance(now);
        let computing = self.pending[Bucket::Compute];
        let moved = GpuSeconds::of(self.devices, time).min(computing);
        self.pending[Bucket::Compute] = computing.saturating_sub(moved);
        self.pending[bucket_of(phase)] = self.pending[bucket_of(phase)] + moved;
    }

    /// Notes that the rank finished `step`. A rank that reports steps but no phases counts as computing from
    /// its first step on.
    pub fn step(&mut self, now: Timestamp, step: Step) {
        self.advance(now);
        self.break_silence();
        let interval = std::mem::take(&mut self.pending);
        let booked = match self.whole_interval_bucket(step) {
            Some(bucket) => only(bucket, interval.total()),
            None => interval,
        };
        self.booked = self.booked + booked;
        self.high_water_step = self.high_water_step.max(step);
        self.last_step = Some(step);
        if matches!(self.stage, Stage::In(Phase::Init | Phase::Restore)) {
            self.stage = Stage::In(Phase::Compute);
        }
    }

    /// Notes that the rank's process has ended well: it finished, or saved to be queued again.
    pub fn finish(&mut self, now: Timestamp) {
        self.advance(now);
        self.end(self.pending_as_it_will_be_booked());
    }

    /// Notes that the rank's process has failed or was killed.
    pub fn fail(&mut self, now: Timestamp) {
        self.advance(now);
        let is_in_step = self.last_step.is_some() && matches!(self.stage, Stage::In(_));
        self.end(if is_in_step {
            only(Bucket::LostWork, self.pending.total())
        } else {
            self.pending_as_it_will_be_booked()
        });
    }

    fn end(&mut self, rest: Buckets) {
        self.booked = self.booked + rest;
        self.pending = Buckets::default();
        self.stage = Stage::Ended;
    }

    /// Returns the device time booked so far. It sums to the wall time from the start to the latest time
    /// seen, times the devices.
    #[must_use]
    pub fn usage(&self, now: Timestamp) -> Buckets {
        let mut until_now = self.clone();
        until_now.advance(now);
        until_now.booked + until_now.pending_as_it_will_be_booked()
    }

    /// Returns the last step that this rank finished, if any.
    #[must_use]
    pub fn last_step(&self) -> Option<Step> {
        self.last_step
    }

    /// Books the time since the last call into the bucket of the current stage.
    fn advance(&mut self, now: Timestamp) {
        let passed = GpuSeconds::of(self.devices, now.since(self.booked_until));
        self.booked_until = self.booked_until.max(now);
        match self.stage {
            Stage::Waiting => self.pending[Bucket::Restart] = self.pending[Bucket::Restart] + passed,
            Stage::Silent => self.pending[Bucket::Unreported] = self.pending[Bucket::Unreported] + passed,
            Stage::In(phase) => self.pending[bucket_of(phase)] = self.pending[bucket_of(phase)] + passed,
            Stage::Ended => self.booked[Bucket::Idle] = self.booked[Bucket::Idle] + passed,
        }
    }

    /// Handles the first report of a rank that seemed to be an unmodified script: its silence counts as
    /// `restart`.
    fn break_silence(&mut self) {
        if self.stage == Stage::Waiting || self.stage == Stage::Silent {
            self.pending = only(Bucket::Restart, self.pending.total());
            self.stage = Stage::In(Phase::Compute);
        }
    }

    /// Returns the bucket of a step's whole interval if the phases within it don't matter.
    fn whole_interval_bucket(&self, step: Step) -> Option<Bucket> {
        match self.last_step {
            None => Some(Bucket::Restart),
            Some(_) if step <= self.high_water_step => Some(Bucket::LostWork),
            Some(_) => None,
        }
    }

    /// Returns the unfinished interval, booked as if the next step in order ended it.
    fn pending_as_it_will_be_booked(&self) -> Buckets {
        if matches!(self.stage, Stage::Waiting | Stage::Silent | Stage::Ended) {
            return self.pending;
        }
        let next = Step(self.last_step.map_or(0, |step| step.0.saturating_add(1)));
        match self.whole_interval_bucket(next) {
            Some(bucket) => only(bucket, self.pending.total()),
            None => self.pending,
        }
    }
}

/// Returns buckets with all time in one of them.
fn only(bucket: Bucket, time: GpuSeconds) -> Buckets {
    let mut buckets = Buckets::default();
    buckets[bucket] = time;
    buckets
}

/// Returns the bucket of a phase, once the rank has finished a step.
fn bucket_of(phase: Phase) -> Bucket {
    match phase {
        Phase::Init | Phase::Restore => Bucket::Restart,
        Phase::Data => Bucket::DataStall,
        Phase::Compute => Bucket::Compute,
        Phase::Communication => Bucket::Communication,
        Phase::StragglerWait => Bucket::StragglerWait,
        Phase::Checkpoint => Bucket::CheckpointStall,
        Phase::Done => Bucket::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    /// Returns the buckets that aren't empty, in whole seconds.
    fn seconds(usage: Buckets) -> Vec<(Bucket, u128)> {
        let non_zero = usage.iter().filter(|(_, time)| *time != GpuSeconds::ZERO);
        non_zero.map(|(bucket, time)| (bucket, time.nanos() / 1_000_000_000)).collect()
    }

    #[test]
    fn time_to_the_first_step_is_restart_and_then_goes_by_phase() {
        let mut clock = PhaseClock::new(at(0), Step(0), 2);
        clock.process_started(at(1));
        clock.enter(Phase::Init, at(2));
        clock.enter(Phase::Compute, at(5));
        clock.step(at(10), Step(1));
        clock.enter(Phase::Data, at(11));
        clock.enter(Phase::Checkpoint, at(13));
        clock.enter(Phase::Communication, at(16));
        clock.enter(Phase::StragglerWait, at(20));
        clock.step(at(25), Step(2));
        clock.enter(Phase::Done, at(25));
        clock.finish(at(31));
        let expected = [
            (Bucket::Compute, 2),
            (Bucket::DataStall, 4),
            (Bucket::CheckpointStall, 6),
            (Bucket::Communication, 8),
            (Bucket::StragglerWait, 10),
            (Bucket::Restart, 20),
            (Bucket::Idle, 14),
        ];
        assert_eq!(seconds(clock.usage(at(32))), expected);
    }

    #[test]
    fn steps_done_again_are_lost_work_whatever_their_phases() {
        let mut clock = PhaseClock::new(at(0), Step(12), 1);
        clock.process_started(at(0));
        clock.enter(Phase::Compute, at(1));
        clock.step(at(3), Step(11));
        clock.enter(Phase::Data, at(5));
        assert_eq!(seconds(clock.usage(at(6))), [(Bucket::Restart, 3), (Bucket::LostWork, 3)]);
        clock.step(at(7), Step(12));
        clock.step(at(10), Step(13));
        let expected = [(Bucket::DataStall, 3), (Bucket::Restart, 3), (Bucket::LostWork, 4)];
        assert_eq!(seconds(clock.usage(at(10))), expected);
        clock.step(at(11), Step(9));
        assert_eq!(clock.usage(at(11))[Bucket::LostWork], GpuSeconds::of(1, Duration::from_secs(5)));
    }

    #[test]
    fn what_a_silent_rank_does_is_not_known() {
        let mut clock = PhaseClock::new(at(0), Step(0), 1);
        clock.process_started(at(2));
        clock.finish(at(9));
        assert_eq!(seconds(clock.usage(at(10))), [(Bucket::Restart, 2), (Bucket::Idle, 1), (Bucket::Unreported, 7)]);
    }

    /// A hang of 92 s after 8 s of steps, as a user met it: the goodput is 8 %, not 64 %.
    #[test]
    fn what_a_rank_did_after_its_last_step_is_lost_when_it_fails() {
        let history = || {
            let mut clock = PhaseClock::new(at(0), Step(0), 1);
            clock.process_started(at(0));
            clock.step(at(1), Step(1));
            clock.step(at(9), Step(2));
            clock.enter(Phase::Communication, at(20));
            clock
        };
        let (mut hung, mut ended_well) = (history(), history());
        hung.fail(at(101));
        assert_eq!(
            seconds(hung.usage(at(102))),
            [(Bucket::Compute, 8), (Bucket::Restart, 1), (Bucket::LostWork, 92), (Bucket::Idle, 1)]
        );
        ended_well.finish(at(101));
        assert_eq!(ended_well.usage(at(101))[Bucket::LostWork], GpuSeconds::ZERO);
        let mut never_stepped = PhaseClock::new(at(0), Step(0), 1);
        never_stepped.enter(Phase::Init, at(2));
        never_stepped.fail(at(9));
        assert_eq!(seconds(never_stepped.usage(at(9))), [(Bucket::Restart, 9)], "it never got that far");
    }

    #[test]
    fn measured_times_of_phases_are_taken_from_what_counts_as_computing() {
        let mut clock = PhaseClock::new(at(0), Step(0), 1);
        clock.step(at(4), Step(1));
        clock.spent(at(10), Phase::Data, Duration::from_secs(2));
        clock.spent(at(10), Phase::Communication, Duration::from_secs(1));
        clock.step(at(10), Step(2));
        clock.spent(at(12), Phase::Data, Duration::from_secs(9));
        clock.step(at(12), Step(3));
        let expected = [(Bucket::Compute, 3), (Bucket::DataStall, 4), (Bucket::Communication, 1), (Bucket::Restart, 4)];
        assert_eq!(seconds(clock.usage(at(12))), expected);
    }

    #[test]
    fn a_rank_that_reports_only_steps_computes_after_the_first() {
        let mut clock = PhaseClock::new(at(0), Step(0), 1);
        clock.process_started(at(2));
        clock.step(at(9), Step(1));
        assert_eq!(seconds(clock.usage(at(10))), [(Bucket::Compute, 1), (Bucket::Restart, 9)]);
    }

    /// Proves A-8 for one rank: whatever it reports, in any order and with a clock that jumps, every
    /// nanosecond of its devices is in exactly one bucket.
    #[test]
    fn buckets_sum_to_wall_time_times_devices_in_any_history() {
        for seed in 0..500_u64 {
            let mut random = SplitMix(seed);
            let devices = u32::try_from(random.below(9)).expect("below nine");
            let start = Timestamp::from_unix_nanos(1_000_000 + random.below(1_000_000));
            let mut clock = PhaseClock::new(start, Step(random.below(20)), devices);
            let (mut now, mut latest) = (start, start);
            for _ in 0..random.below(60) {
                // One move in four goes back in time.
                let moved = now.unix_nanos() + random.below(4_000);
                now = Timestamp::from_unix_nanos(moved.saturating_sub(random.below(2) * 2_500));
                match random.below(10) {
                    9 => {
                        let phase = Phase::ALL[usize::try_from(random.below(8)).expect("small")];
                        clock.spent(now, phase, Duration::from_nanos(random.below(9_000)));
                    }
                    0 => clock.process_started(now),
                    1..4 => clock.enter(Phase::ALL[usize::try_from(random.below(8)).expect("small")], now),
                    4..7 => clock.step(now, Step(random.below(30))),
                    7 => clock.finish(now),
                    _ => clock.fail(now),
                }
                latest = latest.max(now);
                let asked = Timestamp::from_unix_nanos(latest.unix_nanos() + random.below(100));
                let expected = GpuSeconds::of(devices, asked.since(start));
                assert_eq!(clock.usage(asked).total(), expected, "seed {seed}");
            }
        }
    }

    /// A small random number generator for seeded histories.
    struct SplitMix(u64);

    impl SplitMix {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % limit
        }
    }
}
