//! The key `datasets`: the data sets that a job reads, one name or a list.

use std::collections::BTreeSet;

use super::field::{Field, scalar};
use super::problem::{Code, Problems, Refusal, shown};
use super::yaml::{Node, Value};

/// The most data sets of a job: as many as are remembered for a node.
const DATASETS_MAX: usize = 8;
/// The longest name in bytes: enough for a URL.
const NAME_BYTES_MAX: usize = 256;

pub(super) fn read(field: Field<'_>, problems: &mut Problems) -> Option<BTreeSet<String>> {
    let items = match &field.node.value {
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(field.node),
    };
    if items.len() > DATASETS_MAX {
        let message = format!("names {} datasets, over the limit of {DATASETS_MAX}", items.len());
        field.refuse(problems, Refusal::new(Code::OutOfRange, message).hint("name those it reads most of"));
        return None;
    }
    let names: Vec<Option<String>> = items.iter().map(|item| field.keep(problems, name(item))).collect();
    names.into_iter().collect()
}

fn name(item: &Node) -> Result<String, Refusal> {
    let text = scalar(item)?;
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.contains(char::is_control) {
        let message = format!("is not a dataset's name: {}", shown(text));
        return Err(Refusal::new(Code::BadValue, message)
            .hint(format!("use 1 to {NAME_BYTES_MAX} bytes in one line, such as c4 or s3://bucket/c4")));
    }
    // As the cache of datasets writes addresses.
    Ok(if text.contains("://") { text.trim_end_matches('/') } else { text }.to_owned())
}
