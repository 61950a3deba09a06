//! Random programs of jobs.

use std::collections::BTreeMap;

use gangline_base::{CodeCopy, Container, Program, Volume};

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

    fn code(&mut self) -> Option<CodeCopy> {
        let copy = |random: &mut Self| {
            let (tree, commit) = (random.text(), random.maybe(Self::text));
            CodeCopy { tree, commit, changed_files: random.number() }
        };
        if self.has_network { self.maybe(copy) } else { None }
    }
}
