//! The key `template`: names of templates, job files whose keys a job has unless its own file gives them.

use super::Context;
use super::field::scalar;
use super::problem::{Code, Place, Problems, Refusal, shown};
use super::values;
use super::yaml::{self, Entry, Node, Value};

/// The most templates of a job.
const TEMPLATES_MAX: usize = 8;
const KEY: &str = "template";

/// Lays the templates that the file names beneath it, of which a later one wins, and takes the key out.
pub(super) fn apply(root: &mut Node, context: &Context<'_>, problems: &mut Problems) {
    let Value::Mapping(entries) = &mut root.value else { return };
    let Some(index) = entries.iter().position(|entry| entry.key == KEY) else { return };
    let asked = entries.remove(index).value;
    let items = match &asked.value {
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(&asked),
    };
    if items.len() > TEMPLATES_MAX {
        let message = format!("\"template\" names {} templates, over the limit of {TEMPLATES_MAX}", items.len());
        problems.add(&asked.place, Refusal::new(Code::OutOfRange, message).hint("put some of them into one"));
        return;
    }
    for item in items.iter().rev() {
        if let Some(template) = read(item, context, problems) {
            merge(root, template);
        }
    }
}

fn read(item: &Node, context: &Context<'_>, problems: &mut Problems) -> Option<Node> {
    let in_key = |refusal: Refusal| Refusal { message: format!("\"template\" {}", refusal.message), ..refusal };
    let name = scalar(item).and_then(|text| values::name(text).map(|_| text)).map_err(in_key);
    let name = problems.keep(&item.place, name)?;
    let text = (context.template)(name).map_err(|hint| {
        Refusal::new(Code::BadValue, format!("\"template\" names no template that can be read: {}", shown(name)))
            .hint(hint)
    });
    let text = problems.keep(&item.place, text)?;
    let mut own = Problems::new(name);
    let mut template = yaml::read(&text, &mut own);
    if let Some(Node { value: Value::Mapping(entries), .. }) = &template
        && let Some(nested) = entries.iter().find(|entry| entry.key == KEY)
    {
        let refusal = Refusal::new(Code::BadValue, "a template can't name another");
        own.add(&nested.place, refusal.hint("name both in the job file: template: [base, this]"));
        template = None;
    }
    for problem in own.into_sorted() {
        let refusal = Refusal { code: problem.code, message: problem.message, hint: problem.hint };
        problems.add(&within(name, problem.place), refusal);
    }
    let mut template = template?;
    relocate(&mut template, name);
    Some(template)
}

fn within(name: &str, place: Place) -> Place {
    match place {
        Place::File { line, column } => Place::Template { name: name.to_owned(), line, column },
        other => other,
    }
}

/// Says of all places in a tree that they are a template's. The depth of a tree is limited where it is read.
fn relocate(node: &mut Node, name: &str) {
    node.place = within(name, node.place.clone());
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter_mut().for_each(|item| relocate(item, name)),
        Value::Mapping(entries) => entries.iter_mut().for_each(|entry| {
            entry.place = within(name, entry.place.clone());
            relocate(&mut entry.value, name);
        }),
    }
}

/// Adds what `upper` lacks: keys that it doesn't have, and in mappings that both have their keys. Other values of
/// `upper` stay.
fn merge(upper: &mut Node, lower: Node) {
    let (Value::Mapping(own), Value::Mapping(added)) = (&mut upper.value, lower.value) else { return };
    for Entry { key, place, value } in added {
        match own.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => merge(&mut entry.value, value),
            None => own.push(Entry { key, place, value }),
        }
    }
}
