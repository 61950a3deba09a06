//! Names as people write them: compared without case and separators, and the nearest ones told to who misspells.

/// A name without case and separators: `Meta-Llama-3.1_70B` is `metallama3170b`.
pub(crate) fn folded(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The word of a table for a value; empty if it has none.
pub(crate) fn word_for<T: PartialEq>(value: &T, table: &[(&'static str, T)]) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

/// How many names an error suggests.
const SUGGESTIONS_MAX: usize = 4;
/// Longest name that is compared, in characters; more is cut off.
const COMPARED_MAX: usize = 64;

/// The known names nearest to `name`, best first: fewest letters to change, those that contain it before others.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let wanted = folded(name);
    let mut ranked: Vec<(usize, &str)> =
        known.map(|candidate| (distance(&wanted, &folded(candidate)), candidate)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(SUGGESTIONS_MAX).map(|(_, candidate)| candidate.to_owned()).collect()
}

/// Letters to insert, delete or replace (Levenshtein 1966); half of them where one name contains the other.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(COMPARED_MAX).collect();
    let right_chars: Vec<char> = right.chars().take(COMPARED_MAX).collect();
    let mut row: Vec<usize> = (0..=right_chars.len()).collect();
    for (above, l) in left.iter().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (column, r) in right_chars.iter().enumerate() {
            let replaced = diagonal + usize::from(l != r);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    let letters: String = left.iter().collect();
    let is_part = !letters.is_empty() && (right.contains(&letters) || letters.contains(right));
    let edits = row[right_chars.len()];
    if is_part { edits.div_ceil(2) } else { edits }
}

/// Names for a sentence: `a`, `b` or `c`.
pub(crate) fn listed(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_with_fewest_letters_to_change() {
        let known = ["llama", "mistral", "mixtral", "qwen2", "gpt_neox"];
        assert_eq!(nearest("Mixtrall", known.into_iter())[0], "mixtral");
        assert_eq!(nearest("gpt-neo", known.into_iter())[0], "gpt_neox");
        assert_eq!(nearest("", known.into_iter()).len(), SUGGESTIONS_MAX);
    }

    #[test]
    fn a_long_name_is_compared_by_its_beginning() {
        let long = "x".repeat(1_000_000);
        assert_eq!(nearest(&long, ["llama"].into_iter()), ["llama"]);
    }

    #[test]
    fn names_are_listed_as_in_a_sentence() {
        let three = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(listed(&three), "`a`, `b` or `c`");
        assert_eq!(listed(&three[..1]), "`a`");
    }
}
