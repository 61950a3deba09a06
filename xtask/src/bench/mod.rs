//! `bench NAME`: measurements of the product on this machine, each beside the limit it is measured against.
//!
//! They link the product, so they live behind the feature `bench`: without it, the command builds itself again with it.
//! `planning`, `diagnosis`, `recovery`, `plane`, `stragglers`, `telemetry` and `tensors` alone are built with the features of their names, in seconds.

#[cfg(feature = "bench")]
mod archive;
#[cfg(feature = "bench")]
mod checkpoint;
#[cfg(feature = "bench")]
mod coding;
#[cfg(feature = "diagnosis")]
mod diagnosis;
#[cfg(feature = "bench")]
mod engine;
#[cfg(any(
    test,
    not(any(
        feature = "planning",
        feature = "diagnosis",
        feature = "recovery",
        feature = "stragglers",
        feature = "tensors"
    ))
))]
mod page;
#[cfg(feature = "plane")]
mod plane;
#[cfg(feature = "planning")]
mod planning;
#[cfg(feature = "recovery")]
mod recovery;
#[cfg(any(feature = "bench", feature = "recovery"))]
mod report;
#[cfg(feature = "bench")]
mod scheduler;
#[cfg(feature = "stragglers")]
mod stragglers;
#[cfg(feature = "telemetry")]
mod telemetry;
#[cfg(feature = "tensors")]
mod tensors;
#[cfg(feature = "bench")]
mod training;

/// Runs the named benchmark; without a name, lists them. What goes wrong, the inner command has said.
///
/// # Errors
/// When cargo can't be started.
#[cfg(not(any(
    feature = "planning",
    feature = "diagnosis",
    feature = "recovery",
    feature = "stragglers",
    feature = "tensors"
)))]
pub(crate) fn bench(name: Option<&str>, options: &[String]) -> anyhow::Result<bool> {
    let features = match name {
        Some("planning") => "xtask/planning",
        Some("diagnosis") => "xtask/diagnosis",
        Some("recovery") => "xtask/recovery",
        Some("plane") => "xtask/plane",
        Some("stragglers") => "xtask/stragglers",
        Some("telemetry") => "xtask/telemetry",
        Some("tensors") => "xtask/tensors",
        _ => "xtask/bench",
    };
    let mut command = crate::command::cargo(["run", "--quiet", "--release", "--bin", "xtask", "--features", features]);
    command.args(["--", "bench"]).args(name);
    match name.filter(|_| options.iter().any(|option| option == page::WRITE)) {
        Some(name) => {
            let others = options.iter().filter(|option| *option != page::WRITE);
            page::write(name, options, command.args(others))
        }
        None => crate::command::succeeds(command.args(options)),
    }
}

/// A benchmark takes its options, prints what it measured and returns whether its targets were met.
#[cfg(any(
    test,
    feature = "planning",
    feature = "diagnosis",
    feature = "recovery",
    feature = "stragglers",
    feature = "tensors"
))]
type Bench = fn(&[String]) -> anyhow::Result<bool>;

/// Every benchmark by name.
#[cfg(any(
    feature = "planning",
    feature = "diagnosis",
    feature = "recovery",
    feature = "stragglers",
    feature = "tensors"
))]
const BENCHES: &[(&str, Bench)] = &[
    #[cfg(feature = "bench")]
    ("archive", archive::run),
    #[cfg(feature = "bench")]
    ("checkpoint", checkpoint::run),
    #[cfg(feature = "bench")]
    ("coding", coding::run),
    #[cfg(feature = "diagnosis")]
    ("diagnosis", diagnosis::run),
    #[cfg(feature = "bench")]
    ("engine", engine::run),
    #[cfg(feature = "planning")]
    ("planning", planning::run),
    #[cfg(feature = "plane")]
    ("plane", plane::run),
    #[cfg(feature = "recovery")]
    ("recovery", recovery::run),
    #[cfg(feature = "bench")]
    ("scheduler", scheduler::run),
    #[cfg(feature = "stragglers")]
    ("stragglers", stragglers::run),
    #[cfg(feature = "telemetry")]
    ("telemetry", telemetry::run),
    #[cfg(feature = "tensors")]
    ("tensors", tensors::run),
];

/// Runs the named benchmark; without a name, lists them.
///
/// # Errors
/// When the name isn't known or the benchmark fails.
#[cfg(any(
    feature = "planning",
    feature = "diagnosis",
    feature = "recovery",
    feature = "stragglers",
    feature = "tensors"
))]
pub(crate) fn bench(name: Option<&str>, options: &[String]) -> anyhow::Result<bool> {
    run(BENCHES, name, options)
}

#[cfg(any(
    test,
    feature = "planning",
    feature = "diagnosis",
    feature = "recovery",
    feature = "stragglers",
    feature = "tensors"
))]
fn run(benches: &[(&str, Bench)], name: Option<&str>, options: &[String]) -> anyhow::Result<bool> {
    let names: Vec<&str> = benches.iter().map(|(name, _)| *name).collect();
    let Some(name) = name else {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(true);
    };
    match benches.iter().find(|(known, _)| *known == name) {
        Some((_, bench)) => bench(options),
        None if names.is_empty() => anyhow::bail!("no benchmark \"{name}\": there are none yet"),
        None => anyhow::bail!("no benchmark \"{name}\": there are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[(&str, Bench)] = &[("fast", |_| Ok(true)), ("slow", |options| Ok(options == ["--quick"]))];

    #[test]
    fn a_benchmark_runs_by_name_and_says_whether_it_met_its_target() {
        assert!(run(TWO, Some("fast"), &[]).unwrap());
        assert!(!run(TWO, Some("slow"), &[]).unwrap());
        assert!(run(TWO, Some("slow"), &["--quick".to_owned()]).unwrap());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = run(TWO, Some("fsat"), &[]).unwrap_err().to_string();
        assert_eq!(error, "no benchmark \"fsat\": there are fast, slow");
    }
}
