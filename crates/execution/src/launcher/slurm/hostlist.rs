//! Expands Slurm's host list expressions: `n[001-003,7],login`, including several brackets in one name.
//!
//! The rules are those of the man page of `scontrol show hostnames`: a range's bounds may have leading zeros,
//! which the numbers between keep.

/// Maximum number of names in one expression.
const NAMES_MAX: usize = 100_000;

/// Returns the names of an expression, in its order. An error tells what is wrong.
pub(super) fn expand(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(text) {
        let part = part.trim();
        if part.is_empty() {
            return Err(format!("\"{text}\" has an empty name"));
        }
        names.extend(expand_one(part)?);
        if names.len() > NAMES_MAX {
            return Err(format!("\"{text}\" stands for more than {NAMES_MAX} names"));
        }
    }
    Ok(names)
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

/// Returns all names of an expression without commas outside its brackets.
fn expand_one(part: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = part;
    while let Some((before, opened)) = rest.split_once('[') {
        let (inside, after) = opened.split_once(']').ok_or_else(|| format!("\"{part}\" has a [ without a ]"))?;
        let numbers = numbers(part, inside)?;
        if names.len().saturating_mul(numbers.len()) > NAMES_MAX {
            return Err(format!("\"{part}\" stands for more than {NAMES_MAX} names"));
        }
        names =
            names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}"))).collect();
        rest = after;
    }
    if rest.contains(']') {
        return Err(format!("\"{part}\" has a ] without a ["));
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// Expands `001-003,7` to texts as wide as each range's first bound.
fn numbers(part: &str, inside: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let wrong = || format!("\"{part}\" has \"{range}\" where a number or a range such as 1-4 belongs");
            text.parse::<usize>().ok().filter(|_| is_number).ok_or_else(wrong)
        };
        let (from, to, width) = (number(first)?, number(last)?, first.len());
        if to < from {
            return Err(format!("\"{part}\" has the range \"{range}\", which runs backwards"));
        }
        if (to - from).saturating_add(numbers.len()) >= NAMES_MAX {
            return Err(format!("\"{part}\" stands for more than {NAMES_MAX} names"));
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_stands_for_its_names() {
        let check = |text: &str, expected: &[&str]| assert_eq!(expand(text).expect("sound"), expected, "{text}");
        check("tux[0-3,12]", &["tux0", "tux1", "tux2", "tux3", "tux12"]);
        check("n[001-003],login", &["n001", "n002", "n003", "login"]);
        check("n[08-11]", &["n08", "n09", "n10", "n11"]);
        check("r[1-2]n[1-2]-ib", &["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]);
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        let check = |text: &str, part: &str| {
            let message = expand(text).expect_err("a refusal");
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        };
        check("n[1-3", "without a ]");
        check("n1-3]", "without a [");
        check("n[3-1]", "backwards");
        check("n[a-b]", "a range such as 1-4");
        check("n[1,,2]", "a range such as 1-4");
        check("n1,,n2", "empty name");
        check("n[0-99999999999]", "more than");
        check("n[0-999]m[0-999]", "more than");
    }
}
