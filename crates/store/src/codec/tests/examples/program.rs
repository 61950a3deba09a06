//! Random programs of jobs.

use std::collections::BTreeMap;

use gangline_base::{CodeCopy, Container, PlannedRate, Program, Volume};

use super::Examples;

impl Examples {
    pub(super) fn program(&mut self, envs: BTreeMap<String, String>) -> Program {
        let workdir = self.text();
        let (setup, run) = (self.maybe(Self::text), self.text());
        Program { workdir, code: self.code(), container: self.container(), envs, setup, run }
    }

    fn container(&mut self) -> Option<Container> {
        let volume = |random: &mut Self| {
            let (source, target) = (random.text(), random.text());
            Volume { source, target, is_read_only: random.below(2) == 0 }
        };
        let container = |random: &mut Self| Container {
            image: random.text(),
            volumes: (0..random.below(3)).map(|_| volume(random)).collect(),
        };
        if self.has_network { self.maybe(container) } else { None }
    }

    pub(super) fn planned(&mut self) -> Option<PlannedRate> {
        let rate = |random: &mut Self| PlannedRate {
            milli_tokens_per_second: u64::from(random.number()) + 1,
            mfu_milli: random.maybe(|random| random.below(1_000)),
        };
        if self.has_network { self.maybe(rate) } else { None }
    }

    fn code(&mut self) -> Option<CodeCopy> {
        let copy = |random: &mut Self| {
            let (tree, commit) = (random.text(), random.maybe(Self::text));
            CodeCopy { tree, commit, changed_files: random.number() }
        };
        if self.has_network { self.maybe(copy) } else { None }
    }
}
