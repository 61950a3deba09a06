//! What is part of the job file but not of the Engine yet: checked like everything else and then refused, never ignored.

use gangline_base::Money;

use super::field::{Field, Section, scalar};
use super::problem::{Code, Problems, Refusal, shown};
use super::values;
use super::yaml::Value;

/// The most standby nodes.
const SPARES_MAX: u32 = 1_024;
/// The most jobs of a sweep.
const POINTS_MAX: usize = 1_000;

/// Checks the keys that the Engine does not honour yet and then refuses them.
pub(super) fn refuse(top: &Section<'_>, problems: &mut Problems) {
    if let Some(field) = top.get("spares")
        && field.count(problems, 0..=SPARES_MAX).is_some_and(|spares| spares > 0)
    {
        problems
            .add(field.place(), refusal("\"spares\"", "leave it out; a lost node's gang is placed again elsewhere"));
    }
    if let Some(field) = top.get("budget")
        && is_budget(field, problems)
    {
        problems.add(field.place(), refusal("\"budget\"", "leave it out; time_limit bounds what an attempt can cost"));
    }
    if let Some(field) = top.get("sweep")
        && is_sweep(field, problems)
    {
        problems.add(field.place(), refusal("\"sweep\"", "submit once for each point, with --set envs.NAME=value"));
    }
}

/// The refusal of something that is right but not honoured yet.
pub(super) fn refusal(what: &str, hint: impl Into<String>) -> Refusal {
    Refusal::new(Code::NotYetSupported, format!("not yet supported: {what}")).hint(hint)
}

fn is_budget(field: Field<'_>, problems: &mut Problems) -> bool {
    let Some(section) = field.section(problems, "budget") else { return false };
    let Some(usd) = section.get("usd") else {
        field.refuse(problems, Refusal::new(Code::MissingKey, "has no \"usd\"").hint("write {usd: \"500\"}"));
        return false;
    };
    let amount = usd.parsed(problems, |text| {
        let wrong = || {
            let message = format!("expects an amount of dollars, not {}", shown(text));
            Refusal::new(Code::BadValue, message).hint("write \"500\" or \"0.50\"")
        };
        text.parse::<Money>().map_err(|_| wrong())
    });
    amount.is_some()
}

fn is_sweep(field: Field<'_>, problems: &mut Problems) -> bool {
    let Some(entries) = field.entries(problems) else { return false };
    let mut points: usize = 1;
    for entry in entries {
        let refused = |refusal: Refusal| Refusal { message: format!("\"sweep\": {}", refusal.message), ..refusal };
        let values = match &entry.value.value {
            Value::List(values) if !values.is_empty() => Ok(values),
            _ => Err(Refusal::new(Code::WrongType, format!("{} expects a list of values", shown(&entry.key)))
                .hint("write [1e-4, 3e-4]")),
        };
        let named = problems.keep(&entry.place, values::variable(&entry.key).map_err(refused));
        let Some(values) = problems.keep(&entry.value.place, values.map_err(refused)) else { return false };
        if named.is_none()
            || !values.iter().all(|value| problems.keep(&value.place, scalar(value).map_err(refused)).is_some())
        {
            return false;
        }
        points = points.saturating_mul(values.len());
    }
    if points > POINTS_MAX {
        let message = format!("makes {points} jobs, over the limit of {POINTS_MAX}");
        field.refuse(problems, Refusal::new(Code::OutOfRange, message));
    }
    points <= POINTS_MAX
}
