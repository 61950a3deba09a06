//! The key `plan`: the rate that a plan says the job should reach, against which its measured one is shown.

use gangline_base::PlannedRate;

use super::field::Field;
use super::problem::{Code, Problems, Refusal, shown};

const RATE: &str = "tokens_per_second_per_accelerator";

pub(super) fn read(field: Field<'_>, problems: &mut Problems) -> Option<PlannedRate> {
    let place = field.place().clone();
    let section = field.section(problems, "plan")?;
    let mfu = section.get_or("mfu", None, |field| field.parsed(problems, |text| number(text, "0.43")).map(Some));
    let Some(rate) = section.get(RATE) else {
        let refusal = Refusal::new(Code::MissingKey, format!("\"plan\" has no \"{RATE}\""));
        problems.add(&place, refusal.hint("gangline plan prints it, in a line for the job file"));
        return None;
    };
    let rate = rate.parsed(problems, |text| number(text, "812"))?;
    let planned = PlannedRate::new(rate, mfu?);
    if planned.is_none() {
        let message =
            format!("\"plan\" has a rate or an mfu that can't be: above 0 up to {:e}, and 0 to 1", PlannedRate::MAX);
        problems.add(&place, Refusal::new(Code::OutOfRange, message));
    }
    planned
}

fn number(text: &str, example: &str) -> Result<f64, Refusal> {
    let wrong = || Refusal::new(Code::BadValue, format!("expects a number, not {}", shown(text)));
    text.parse().map_err(|_| wrong().hint(format!("write a number such as {example}")))
}
