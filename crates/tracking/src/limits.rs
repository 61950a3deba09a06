//! What keys, values and batches may be, with the messages that MLflow's clients know.

use crate::{Entry, Refusal};

/// The most metrics of one batch.
pub const METRICS_MAX: usize = 1000;
/// The most parameters, and the most tags, of one batch.
pub const ENTRIES_MAX: usize = 100;
/// The most of all together in one batch.
pub const BATCH_MAX: usize = 1000;
/// The longest key of a metric, a parameter or a tag, in letters.
pub const KEY_MAX: usize = 250;
/// The longest value of a parameter.
pub const PARAM_MAX: usize = 6000;
/// The longest value of a run's tag.
pub const TAG_MAX: usize = 8000;
/// The longest value of an experiment's tag.
pub const EXPERIMENT_TAG_MAX: usize = 20_000;
/// The longest value of a tag in the registry.
pub const REGISTRY_TAG_MAX: usize = 100_000;
/// The longest name of an experiment.
pub const EXPERIMENT_NAME_MAX: usize = 500;
/// The longest name of a registered model.
pub const MODEL_NAME_MAX: usize = 256;
/// The longest alias.
pub const ALIAS_MAX: usize = 255;
/// The longest URI of an artifact.
pub const URI_MAX: usize = 2048;

/// Checks that a text has at most `longest` letters.
///
/// # Errors
/// Names the field.
pub fn check_length(field: &str, longest: usize, value: &str) -> Result<(), Refusal> {
    // Counting bytes first spares counting letters.
    if value.len() <= longest || value.chars().count() <= longest {
        return Ok(());
    }
    Err(Refusal::invalid(format!("'{field}' exceeds the maximum length of {longest} characters")))
}

/// Cuts a text to at most `longest` letters, as MLflow does with the values of parameters and tags.
pub fn truncated(value: String, longest: usize) -> String {
    match value.char_indices().nth(longest) {
        None => value,
        Some((end, _)) => value[..end].to_owned(),
    }
}

/// Checks how many there are in a batch.
///
/// # Errors
/// Names the kind and the limit.
pub fn check_count(kind: &str, most: usize, count: usize) -> Result<(), Refusal> {
    if count <= most {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "A batch logging request can contain at most {most} {kind}. Got {count} {kind}. Please split up {kind} across \
         multiple requests and try again."
    )))
}

/// Checks the key of a metric, a parameter or a tag.
///
/// # Errors
/// If it has other letters than MLflow's clients can send, or reads as a path to another place.
pub fn check_key(path: &str, key: &str) -> Result<(), Refusal> {
    let invalid =
        |why: String| Refusal::invalid(format!("Invalid value {} for parameter '{path}' supplied: {why}", quoted(key)));
    let is_fine = |letter: char| letter.is_alphanumeric() || "/_.- :".contains(letter);
    if !key.chars().all(is_fine) {
        return Err(invalid(
            "Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), spaces ( ), colon(:) and \
             slashes (/)."
                .into(),
        ));
    }
    let normal = normalised(key);
    if normal != key || normal == "." || normal.starts_with("..") || normal.starts_with('/') {
        return Err(invalid(format!(
            "Names may be treated as files in certain cases, and must not resolve to other names when treated as such. \
             This name would resolve to '{normal}'"
        )));
    }
    check_length(path, KEY_MAX, key)
}

/// Returns a path without empty parts, `.` and `..`, as POSIX reads it.
fn normalised(path: &str) -> String {
    let slashes = path.bytes().take_while(|byte| *byte == b'/').count();
    let root = match slashes {
        0 => "",
        // Two slashes at the beginning mean something else to POSIX, three don't.
        2 => "//",
        _ => "/",
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let may_leave = parts.last().is_some_and(|last| *last != "..");
        match part {
            ".." if may_leave => {
                parts.pop();
            }
            ".." if !root.is_empty() => {}
            _ => parts.push(part),
        }
    }
    let joined = format!("{root}{}", parts.join("/"));
    if joined.is_empty() { ".".to_owned() } else { joined }
}

/// Shows a text as JSON does.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Checks parameters of one request, and cuts what is too long.
///
/// # Errors
/// Names the first that is wrong, or the keys that are there twice.
pub fn check_params(params: Vec<Entry>, path: impl Fn(usize) -> String) -> Result<Vec<Entry>, Refusal> {
    let mut keys: Vec<&str> = params.iter().map(|param| param.key.as_str()).collect();
    keys.sort_unstable();
    let twice: Vec<&str> = keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    if !twice.is_empty() {
        return Err(Refusal::invalid(format!(
            "Duplicate parameter keys have been submitted: {twice:?}. Please ensure the request contains only one param \
             value per param key."
        )));
    }
    let checked = |(index, Entry { key, value }): (usize, Entry)| {
        check_key(&path(index), &key)?;
        Ok(Entry { key, value: truncated(value, PARAM_MAX) })
    };
    params.into_iter().enumerate().map(checked).collect()
}

/// Checks tags of a run, and cuts what is too long.
///
/// # Errors
/// Names the first that is wrong.
pub fn check_tags(tags: Vec<Entry>, path: impl Fn(usize) -> String) -> Result<Vec<Entry>, Refusal> {
    let checked = |(index, Entry { key, value }): (usize, Entry)| {
        check_key(&path(index), &key)?;
        Ok(Entry { key, value: truncated(value, TAG_MAX) })
    };
    tags.into_iter().enumerate().map(checked).collect()
}

/// Checks a tag whose value isn't cut.
///
/// # Errors
/// If its key or its value can't be kept.
pub fn check_tag(tag: &Entry, longest: usize) -> Result<(), Refusal> {
    check_key("key", &tag.key)?;
    check_length("value", longest, &tag.value)
}

/// Checks the name of an experiment.
///
/// # Errors
/// If it is empty or too long.
pub fn check_experiment_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::invalid("Invalid experiment name: ''"));
    }
    check_length("name", EXPERIMENT_NAME_MAX, name)
}

/// Checks the name of a registered model.
///
/// # Errors
/// If it is empty, too long, or has letters that URIs of models need.
pub fn check_model_name(name: &str) -> Result<(), Refusal> {
    if name.trim().is_empty() {
        return Err(Refusal::invalid("Missing value for required parameter 'name'."));
    }
    if name.contains(['/', ':']) {
        return Err(Refusal::invalid(format!("Invalid model name '{name}'. Names cannot contain '/' or ':'.")));
    }
    check_length("name", MODEL_NAME_MAX, name)
}

/// Checks an alias.
///
/// # Errors
/// If it is empty, too long, has letters that URIs of models need, or reads as a version.
pub fn check_alias(alias: &str) -> Result<(), Refusal> {
    if alias.is_empty() {
        return Err(Refusal::invalid("Registered model alias name cannot be empty."));
    }
    let is_fine = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    if !alias.chars().all(is_fine) {
        return Err(Refusal::invalid(format!(
            "Invalid alias name: '{alias}'. Names may only contain alphanumerics, underscores (_), and dashes (-)."
        )));
    }
    check_length("alias", ALIAS_MAX, alias)?;
    if alias.eq_ignore_ascii_case("latest") {
        return Err(Refusal::invalid("'latest' alias name (case insensitive) is reserved."));
    }
    let digits = alias.strip_prefix(['v', 'V']).unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::invalid(format!("Version alias name '{alias}' is reserved.")));
    }
    Ok(())
}

/// Checks the path of an artifact, relative to a root.
///
/// # Errors
/// If it leads out of the root, or could be read as another path.
pub fn check_artifact_path(path: &str) -> Result<(), Refusal> {
    let is_fine = |part: &str| !part.is_empty() && part != "." && part != "..";
    let has_strange_letter = path.contains(['\\', '\0']) || path.chars().any(char::is_control);
    if has_strange_letter || path.contains("%2e") || path.contains("%2E") || !path.split('/').all(is_fine) {
        return Err(Refusal::invalid("Invalid path"));
    }
    check_length("path", URI_MAX, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_read_as_other_paths_are_refused() {
        for key in ["loss", "train/loss", "a b:c-d_e.f", "..a", "é"] {
            // MLflow refuses "..a" too, though it is no other path.
            assert_eq!(check_key("key", key).is_ok(), key != "..a", "{key}");
        }
        for key in ["", ".", "..", "a/../b", "/a", "a//b", "a/", "./a", "a\n", "a;b", "a\\b"] {
            let refusal = check_key("metrics[3].name", key).expect_err(key);
            assert!(refusal.message.contains("for parameter 'metrics[3].name' supplied"), "{}", refusal.message);
        }
        assert!(check_key("key", &"é".repeat(250)).is_ok());
        let long = check_key("key", &"k".repeat(251)).expect_err("too long");
        assert_eq!(long.message, "'key' exceeds the maximum length of 250 characters");
    }

    #[test]
    fn long_values_are_cut_at_a_letter() {
        assert_eq!(truncated("é".repeat(7), 6), "é".repeat(6));
        assert_eq!(truncated("abc".into(), 3), "abc");
    }

    #[test]
    fn parameters_with_one_key_are_refused() {
        let param = |key: &str| Entry { key: key.into(), value: "1".into() };
        let refusal = check_params(vec![param("a"), param("b"), param("a")], |_| "key".into()).expect_err("twice");
        assert!(refusal.message.contains("[\"a\"]"), "{}", refusal.message);
    }

    #[test]
    fn aliases_that_read_as_versions_are_refused() {
        assert!(check_alias("production").is_ok() && check_alias("v1b").is_ok());
        for alias in ["", "a b", "latest", "LATEST", "v1", "V20", "a/b"] {
            assert!(check_alias(alias).is_err(), "{alias}");
        }
    }

    #[test]
    fn paths_out_of_the_root_are_refused() {
        assert!(check_artifact_path("model/MLmodel").is_ok() && check_artifact_path("a..b/c d").is_ok());
        for path in ["", "../a", "a/../b", "/a", "a/", "a//b", ".", "a/./b", "a\\b", "a\0b", "%2e%2e/a"] {
            assert_eq!(check_artifact_path(path).expect_err(path).message, "Invalid path");
        }
    }
}
