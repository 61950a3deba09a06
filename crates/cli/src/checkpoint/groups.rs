//! Shortens long lists of tensors: names that differ only in numbers, as layers' do, share one line.

use std::collections::BTreeMap;

/// Length from which a list is shortened, unless all of it is requested.
pub(crate) const LONG: usize = 40;

/// Replaces each part of a name that is a number by a star: `model.layers.*.mlp.up.weight`.
pub(crate) fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

/// Groups items with equal keys, in the order of each group's first item.
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
