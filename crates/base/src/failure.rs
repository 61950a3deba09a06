//! Formatting an error together with its chain of causes.

use std::error::Error;

/// Formats an error and its causes on one line: `save step 7: write x: no space left`.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (**error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Link(&'static str, Option<Box<Link>>);

    impl std::fmt::Display for Link {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|cause| &**cause as &dyn Error)
        }
    }

    #[test]
    fn every_cause_is_named_in_order() {
        let error = Link("save", Some(Box::new(Link("write", Some(Box::new(Link("disk full", None)))))));
        assert_eq!(with_causes(&error), "save: write: disk full");
    }
}
