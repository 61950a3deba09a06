//! Long lists of tensors, made short: those whose names differ only in numbers, as layers' do, are one line.

use std::collections::BTreeMap;

/// From so many tensors on, a list is made short unless all of it is asked for.
pub(crate) const LONG: usize = 40;

/// A name with a star for each part that is a number: `model.layers.*.mlp.up.weight`.
pub(crate) fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Groups what has equal keys, in the order in which the first of each group comes.
pub(crate) fn grouped<T, K: Ord + Clone>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> Vec<(K, Vec<T>)> {
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in items {
        let key = key(&item);
        let place = *places.entry(key.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[place].1.push(item);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_fall_together_and_other_names_stay() {
        assert_eq!(pattern("model.layers.12.mlp.w1.weight"), "model.layers.*.mlp.w1.weight");
        assert_eq!(pattern("0..7"), "*..*");
        assert_eq!(pattern("block1"), "block1");
        let groups = grouped(["b.1", "a", "b.2"], |name| pattern(name));
        assert_eq!(groups, [("b.*".to_owned(), vec!["b.1", "b.2"]), ("a".to_owned(), vec!["a"])]);
    }
}
