//! Random programs of jobs.

use std::collections::BTreeMap;

use gangline_base::{CodeCopy, Program};

use super::Examples;

impl Examples {
    pub(super) fn program(&mut self, envs: BTreeMap<String, String>) -> Program {
        let workdir = self.text();
        let (setup, run) = (self.maybe(Self::text), self.text());
        Program { workdir, code: self.code(), envs, setup, run }
    }

    fn code(&mut self) -> Option<CodeCopy> {
        let copy = |random: &mut Self| {
            let (tree, commit) = (random.text(), random.maybe(Self::text));
            CodeCopy { tree, commit, changed_files: random.number() }
        };
        if self.has_network { self.maybe(copy) } else { None }
    }
}
