//! Sweeps, changes of waiting jobs, and dependencies.

use std::num::NonZeroU64;
use std::sync::Arc;

use gangline_base::{
    Dependency, EarlyStop, EndCondition, Goal, Grid, JobId, MetricValue, Priority, Reduction, Step, SweepId,
    SweepRules, SweepSpec,
};
use gangline_orchestration::{JobChange, MissedRung, Sweep};

use super::{Examples, queue_name};

impl Examples {
    fn rules(&mut self) -> SweepRules {
        let early_stop = self.maybe(|random| EarlyStop {
            metric: random.text(),
            goal: if random.below(2) == 0 { Goal::Minimize } else { Goal::Maximize },
            min_steps: NonZeroU64::new(random.large().max(1)).expect("at least one"),
            reduction: Reduction::new(random.number().max(2)).expect("at least two"),
        });
        SweepRules { max_parallel: self.maybe(Self::positive), early_stop }
    }

    pub(in super::super) fn sweep_spec(&mut self) -> SweepSpec {
        let values = |random: &mut Self| (0..random.below(4)).map(|_| random.text()).collect();
        let grid = Grid::new(vec![(self.text(), values(self)), ("B".to_owned(), values(self))]);
        // Points that are listed are rows: as many values of each.
        let listed = Grid::list(grid.parameters().to_vec()).filter(|_| self.has_network && self.below(2) == 0);
        let grid = listed.unwrap_or(grid);
        SweepSpec { job: Arc::new(self.spec()), grid, rules: self.rules() }
    }

    pub(super) fn metric(&mut self) -> MetricValue {
        if self.below(4) == 0 { MetricValue::Diverged } else { MetricValue::Nanos(self.large().cast_signed()) }
    }

    pub(super) fn missed(&mut self) -> MissedRung {
        let bar = self.maybe(|random| MetricValue::Nanos(random.large().cast_signed()));
        let (step, value) = (Step(self.large()), self.metric());
        MissedRung { step, value, bar, kept: self.number(), seen: self.number() }
    }

    pub(super) fn sweep(&mut self) -> Sweep {
        let rung = |random: &mut Self| (0..random.below(4)).map(|_| (JobId(random.large()), random.metric())).collect();
        let rungs = (0..self.below(4)).map(|number| (number, rung(self))).collect();
        let spec = self.maybe(Self::sweep_spec);
        let rules = spec.as_ref().map_or_else(|| self.rules(), |spec| spec.rules.clone());
        Sweep { id: SweepId(JobId(self.large())), jobs: self.number(), spec: spec.map(Arc::new), rules, rungs }
    }

    pub(super) fn dependency(&mut self) -> Dependency {
        let condition = EndCondition::ALL[usize::try_from(self.below(3)).expect("small")];
        Dependency { job: JobId(self.large()), condition }
    }

    /// Returns one change of each kind.
    pub(super) fn changes(&mut self) -> Vec<JobChange> {
        // Durations are stored in milliseconds.
        let limit = self.maybe(Self::duration);
        vec![
            JobChange::Hold,
            JobChange::Release,
            JobChange::Queue(queue_name()),
            JobChange::Priority(Priority::NORMAL),
            JobChange::TimeLimit(limit),
        ]
    }
}
