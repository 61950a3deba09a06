//! `--set key=value`: puts values into the tree before it is checked, so that the same rules apply as in the
//! file.

use super::OVERRIDES_MAX;
use super::problem::{Code, Place, Problems, Refusal, shown};
use super::yaml::{Entry, Node, Scalar, Value};

/// The most levels of a dotted key.
const DEPTH_MAX: usize = 4;

/// Applies the options in their order; a later one wins.
pub(super) fn apply(root: &mut Node, overrides: &[String], problems: &mut Problems) {
    if overrides.len() > OVERRIDES_MAX {
        let message = format!("more than {OVERRIDES_MAX} --set options");
        problems.add(&Place::START, Refusal::new(Code::BadOverride, message).hint("put them into the file"));
        return;
    }
    for option in overrides {
        let place = Place::Override(option.clone());
        let outcome = set(root, option, &place);
        problems.keep(&place, outcome);
    }
}

fn set(root: &mut Node, option: &str, place: &Place) -> Result<(), Refusal> {
    let refused =
        |message: &str| Refusal::new(Code::BadOverride, message).hint("write --set key=value, as in envs.LR=1e-3");
    let (path, text) = option.split_once('=').ok_or_else(|| refused("there is no = between key and value"))?;
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|key| key.trim().is_empty()) {
        return Err(refused("the key is empty"));
    }
    if keys.len() > DEPTH_MAX {
        return Err(refused("the key has too many dots"));
    }
    let mut node = root;
    for (depth, key) in keys.iter().enumerate() {
        let Value::Mapping(entries) = &mut node.value else {
            let outer = keys[..depth].join(".");
            let message = format!("{} is not a mapping in the file, so it has no key {}", shown(&outer), shown(key));
            return Err(Refusal::new(Code::BadOverride, message).hint(format!("set {} itself", shown(&outer))));
        };
        node = value_of(entries, key.trim(), place);
    }
    let scalar = Scalar { text: text.to_owned(), is_plain: true };
    *node = Node { place: place.clone(), value: Value::Scalar(scalar) };
    Ok(())
}

/// Returns the value of a key; a missing key is added with an empty mapping.
fn value_of<'n>(entries: &'n mut Vec<Entry>, key: &str, place: &Place) -> &'n mut Node {
    let index = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
        let value = Node { place: place.clone(), value: Value::Mapping(Vec::new()) };
        entries.push(Entry { key: key.to_owned(), place: place.clone(), value });
        entries.len() - 1
    });
    &mut entries[index].value
}
