//! The known keys of a job file, and suggestions for unknown ones.

/// The mappings of a job file and their keys. `envs`, `sweep.parameters` and the short form of `sweep` accept
/// any variable name and so are missing here.
const LEVELS: [(&str, &[&str]); 15] = [
    (
        "",
        &[
            "name",
            "template",
            "queue",
            "priority",
            "num_nodes",
            "spares",
            "datasets",
            "plan",
            "resources",
            "topology",
            "workdir",
            "image",
            "volumes",
            "envs",
            "setup",
            "run",
            "launch",
            "checkpoint",
            "recovery",
            "time_limit",
            "budget",
            "retention",
            "after",
            "notify",
            "sweep",
        ],
    ),
    ("num_nodes", &["min", "max", "speedup"]),
    ("resources", &["accelerators", "cpus", "memory", "pool"]),
    ("topology", &["require", "prefer", "segment"]),
    ("topology.segment", &["nodes", "level"]),
    ("workdir", &["snapshot", "git", "ref"]),
    ("checkpoint", &["path", "grace", "share"]),
    ("recovery", &["max_faults", "no_progress_limit", "hang_timeout", "evict_stragglers"]),
    ("retention", &["logs", "record", "checkpoints"]),
    ("notify", &["webhook", "email", "on"]),
    ("budget", &["usd"]),
    ("plan", &["tokens_per_second_per_accelerator", "mfu"]),
    ("sweep", &["parameters", "samples", "order", "seed", "max_parallel", "early_stop"]),
    ("range", &["min", "max", "scale"]),
    ("sweep.early_stop", &["metric", "goal", "min_steps", "reduction"]),
];

/// Names that other tools use for the same keys.
const OTHER_WORDS: [(&str, &str); 39] = [
    ("nodes", "num_nodes"),
    ("replicas", "num_nodes"),
    ("command", "run"),
    ("cmd", "run"),
    ("script", "run"),
    ("entrypoint", "run"),
    ("environment", "envs"),
    ("variables", "envs"),
    ("gpus", "resources.accelerators"),
    ("gpu", "resources.accelerators"),
    ("timeout", "time_limit"),
    ("walltime", "time_limit"),
    ("working_dir", "workdir"),
    ("cwd", "workdir"),
    ("file_mounts", "workdir"),
    ("container", "image"),
    ("container_image", "image"),
    ("docker", "image"),
    ("image_id", "image"),
    ("mounts", "volumes"),
    ("repos", "workdir.git"),
    ("branch", "workdir.ref"),
    ("partition", "queue"),
    ("depends_on", "after"),
    ("dependency", "after"),
    ("needs", "after"),
    ("max_restarts", "recovery.max_faults"),
    // Names in Ray Tune, W&B and Optuna.
    ("max_concurrent", "sweep.max_parallel"),
    ("max_concurrent_trials", "sweep.max_parallel"),
    ("parallelism", "sweep.max_parallel"),
    ("num_samples", "sweep.samples"),
    ("trials", "sweep.samples"),
    ("early_terminate", "sweep.early_stop"),
    ("scheduler", "sweep.early_stop"),
    ("mode", "sweep.early_stop.goal"),
    ("grace_period", "sweep.early_stop.min_steps"),
    ("min_iter", "sweep.early_stop.min_steps"),
    ("reduction_factor", "sweep.early_stop.reduction"),
    ("eta", "sweep.early_stop.reduction"),
];

/// Returns the keys of the mapping at `path`.
pub(super) fn known(path: &str) -> &'static [&'static str] {
    LEVELS.iter().find(|(level, _)| *level == path).map_or(&[], |(_, keys)| keys)
}

/// Returns the hint for an unknown key: the nearest key of the same mapping, else the place where such a key
/// belongs, else all known keys.
pub(super) fn hint(path: &str, unknown: &str) -> String {
    let here = nearest(unknown, known(path).iter().copied()).map(|key| joined(path, key));
    let found = here
        .or_else(|| OTHER_WORDS.iter().find(|(word, _)| *word == unknown).map(|(_, key)| (*key).to_owned()))
        .or_else(|| elsewhere(unknown));
    match found {
        Some(key) => format!("did you mean \"{key}\"?"),
        None => format!("known keys: {}", known(path).join(", ")),
    }
}

/// Returns the word nearest to `text`, if at most a third of its letters differ.
pub(super) fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Longer than any word, so nothing is near. This also avoids the distance of a megabyte of text.
    const CHARS_MAX: usize = 40;
    if text.chars().count() > CHARS_MAX {
        return None;
    }
    let allowed = |word: &str| (word.len().max(text.len()) / 3).max(1);
    words
        .map(|word| (distance(&text.to_lowercase(), word), word))
        .filter(|(distance, word)| *distance <= allowed(word))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn elsewhere(unknown: &str) -> Option<String> {
    let level = LEVELS.iter().find(|(_, keys)| keys.contains(&unknown))?;
    Some(joined(level.0, unknown))
}

/// Returns how many letters must be inserted, deleted, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_slips() {
        let check = |a: &str, b: &str, expected: usize| assert_eq!(distance(a, b), expected, "{a} {b}");
        check("run", "run", 0);
        check("rnu", "run", 1);
        check("num_node", "num_nodes", 1);
        check("", "run", 3);
        check("queue", "que", 2);
    }

    #[test]
    fn a_hint_names_the_key_that_was_meant() {
        let check = |path: &str, unknown: &str, expected: &str| assert_eq!(hint(path, unknown), expected);
        check("", "num_node", "did you mean \"num_nodes\"?");
        check("", "NAME", "did you mean \"name\"?");
        check("", "gpus", "did you mean \"resources.accelerators\"?");
        check("", "memory", "did you mean \"resources.memory\"?");
        check("resources", "accelerator", "did you mean \"resources.accelerators\"?");
        check("checkpoint", "zzz", "known keys: path, grace, share");
    }
}
