//! The key `notify: {webhook: URL, email: ADDRESS, on: [end, failure, start]}`: who is told of a job.

use std::collections::BTreeSet;

use gangline_base::{EmailAddress, Notify, Occasion, WebhookUrl};

use super::field::{Field, scalar};
use super::problem::{Code, Problems, Refusal};
use super::values;
use super::yaml::Value;

pub(super) fn read(field: Field<'_>, problems: &mut Problems) -> Option<Notify> {
    let section = field.section(problems, "notify")?;
    let wrong = |why: &str| Refusal::new(Code::BadValue, why.to_owned());
    let webhook = section
        .get_or("webhook", None, |field| field.parsed(problems, |text| WebhookUrl::new(text).map(Some).map_err(wrong)));
    let email = section
        .get_or("email", None, |field| field.parsed(problems, |text| EmailAddress::new(text).map(Some).map_err(wrong)));
    let on = section.get_or("on", BTreeSet::from([Occasion::End]), |field| occasions(field, problems));
    let notify = Notify { webhook: webhook?, email: email?, on: on? };
    if notify.is_nobody() {
        let refusal = Refusal::new(Code::MissingKey, "tells nobody anything");
        field.refuse(problems, refusal.hint("write {webhook: URL} or {email: ADDRESS}"));
        return None;
    }
    Some(notify)
}

fn occasions(field: Field<'_>, problems: &mut Problems) -> Option<BTreeSet<Occasion>> {
    match &field.node.value {
        Value::List(items) => {
            let found: Vec<_> =
                items.iter().map(|item| field.keep(problems, scalar(item).and_then(occasion))).collect();
            found.into_iter().collect()
        }
        _ => field.parsed(problems, occasion).map(|one| BTreeSet::from([one])),
    }
}

fn occasion(text: &str) -> Result<Occasion, Refusal> {
    let words = Occasion::ALL.map(Occasion::name);
    let word = values::choice(text, &words)?;
    let found = Occasion::ALL.into_iter().find(|occasion| occasion.name() == word);
    Ok(found.expect("every word is an occasion's name"))
}
