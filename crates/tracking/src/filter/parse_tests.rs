//! What filters mean, and which are refused.

use super::super::parse_order;
use super::*;

fn runs(filter: &str) -> Result<Vec<Clause>, String> {
    parse(Vocabulary::Runs, filter).map_err(|refusal| refusal.message)
}

fn one(filter: &str) -> (Kind, String, Condition) {
    let mut clauses = runs(filter).unwrap_or_else(|message| panic!("{filter}: {message}"));
    assert_eq!(clauses.len(), 1, "{filter}");
    let Clause { field, condition } = clauses.remove(0);
    (field.kind, field.key, condition)
}

fn text(operator: Operator, value: &str) -> Condition {
    Condition::Text(operator, value.to_owned())
}

#[test]
fn clauses_mean_what_they_mean_to_mlflow() {
    let cases = [
        ("metrics.a > 1", Kind::Metric, "a", Condition::Number(Operator::Greater, 1.0)),
        ("metrics.a > -1.5", Kind::Metric, "a", Condition::Number(Operator::Greater, -1.5)),
        ("metric.`val loss` <= 3e-2", Kind::Metric, "val loss", Condition::Number(Operator::LessOrEqual, 0.03)),
        ("metrics.m > .5", Kind::Metric, "m", Condition::Number(Operator::Greater, 0.5)),
        ("metrics.m > 5.", Kind::Metric, "m", Condition::Number(Operator::Greater, 5.0)),
        ("params.\"a b\" = \"x\"", Kind::Param, "a b", text(Operator::Equal, "x")),
        ("param.b='x'", Kind::Param, "b", text(Operator::Equal, "x")),
        ("tags.a.b LIKE '%x'", Kind::Tag, "a.b", text(Operator::Like, "%x")),
        ("tags.mlflow.user ilike 'A%'", Kind::Tag, "mlflow.user", text(Operator::LikeAnyCase, "A%")),
        ("tags.`a`='it''s'", Kind::Tag, "a", text(Operator::Equal, "it''s")),
        ("params.x is null", Kind::Param, "x", Condition::IsNull),
        ("params.x IS NOT NULL", Kind::Param, "x", Condition::IsNotNull),
        ("start_time > 5", Kind::Attribute, "start_time", Condition::Number(Operator::Greater, 5.0)),
        ("Created > 5", Kind::Attribute, "start_time", Condition::Number(Operator::Greater, 5.0)),
        ("attributes.`Run Name` = 'x'", Kind::Attribute, "run_name", text(Operator::Equal, "x")),
        ("\"run name\" = 'x'", Kind::Attribute, "run_name", text(Operator::Equal, "x")),
        ("attr.status != 'RUNNING'", Kind::Attribute, "status", text(Operator::Unequal, "RUNNING")),
        ("run_id IN ('a', 'b',)", Kind::Attribute, "run_id", Condition::In(vec!["a".into(), "b".into()])),
        ("run_id not in ('a')", Kind::Attribute, "run_id", Condition::NotIn(vec!["a".into()])),
        ("dataset.name IN ('x')", Kind::Dataset, "name", Condition::In(vec!["x".into()])),
        ("tags.order = 'b'", Kind::Tag, "order", text(Operator::Equal, "b")),
    ];
    for (filter, kind, key, condition) in cases {
        assert_eq!(one(filter), (kind, key.to_owned(), condition), "{filter}");
    }
}

#[test]
fn clauses_are_joined_by_and() {
    assert_eq!(runs("metrics.a>1e-3 and params.b='x' AND status = 'FINISHED'").expect("a filter").len(), 3);
    assert_eq!(runs("metrics.a > 1 AND").expect("a filter").len(), 1);
    assert_eq!(runs("").expect("a filter").len(), 0);
}

#[test]
fn what_cannot_be_read_or_compared_is_refused_with_its_place() {
    let cases = [
        ("  ", "Could not be parsed"),
        ("params.a-b='x'", "Invalid clause"),
        ("metrics.a > 1 or metrics.b > 2", "'or metrics.b > 2'"),
        ("1 > metrics.a", "'1 > metrics.a'"),
        ("params.a = x", "Expected quoted string value (e.g. 'my-value') for parameter 'a'. Found x"),
        ("params.a = 5", "Found 5"),
        ("params.a > '5'", "Invalid comparator '>' for parameter 'a'"),
        ("metrics.a = '5'", "Expected numeric value for metric 'a'. Found '5'"),
        ("metrics.a ILIKE 5", "Invalid comparator 'ILIKE' for metric 'a'"),
        ("metrics.a == 5", "Invalid comparator '=='"),
        ("metrics.a <> 5", "Invalid comparator '<>'"),
        ("foo.a = 1", "Invalid entity type 'foo'"),
        ("attributes.foo = 'x'", "Invalid attribute key 'foo'"),
        ("dataset.foo = 'x'", "Invalid dataset key 'foo'"),
        ("metrics.a = 5;", "';'"),
        ("metrics.m > +5", "'+5'"),
        ("metrics.a between 1 and 2", "Invalid clause"),
        ("run_id IN ()", "empty list"),
        ("run_id IN ('a' 'b')", "Invalid clause"),
        ("run_id IN ('a'", "Invalid clause"),
        ("status IN ('a')", "'status' doesn't support comparison with a list"),
        ("(metrics.a = 1)", "Invalid clause"),
        ("metrics.a IS NULL", "only supported for tags and params"),
        ("tags.a = 'x", "Invalid clause"),
        ("tags.a", "Invalid clause"),
        ("tags.a =", "has no value"),
        ("tags.a NOT LIKE 'x'", "Invalid clause"),
    ];
    for (filter, reason) in cases {
        let message = runs(filter).expect_err(filter);
        assert!(message.contains(reason), "{filter}: {message}");
    }
    let long = format!("tags.a = '{}'", "x".repeat(70_000));
    assert!(runs(&long).expect_err("too long").contains("longer than 65536 bytes"));
    let many = "metrics.a > 1 ".repeat(101);
    assert!(runs(&many).expect_err("too many").contains("more than 100 clauses"));
}

#[test]
fn each_vocabulary_has_its_own_names() {
    assert!(parse(Vocabulary::Experiments, "name LIKE 'a%' AND tags.x = 'y' AND creation_time > 5").is_ok());
    assert!(parse(Vocabulary::Experiments, "metrics.a > 1").is_err());
    assert!(parse(Vocabulary::RegisteredModels, "name = 'gpt'").is_ok());
    assert!(parse(Vocabulary::RegisteredModels, "run_id = 'x'").is_err());
    assert!(parse(Vocabulary::ModelVersions, "run_id IN ('a','b') and name='m'").is_ok());
    assert!(parse(Vocabulary::LoggedModels, "metrics.a > 1 AND creation_time > 5").is_ok());
}

#[test]
fn an_order_has_a_field_and_a_direction() {
    let order = |text: &str| {
        let read = parse_order(Vocabulary::Runs, &[text.to_owned()]).map_err(|refusal| refusal.message)?;
        let OrderBy { field, is_descending } = &read[0];
        Ok::<_, String>((field.kind, field.key.clone(), *is_descending))
    };
    use super::super::OrderBy;
    assert_eq!(order("metrics.a"), Ok((Kind::Metric, "a".into(), false)));
    assert_eq!(order("metrics.`a b` desc"), Ok((Kind::Metric, "a b".into(), true)));
    assert_eq!(order("Created ASC"), Ok((Kind::Attribute, "start_time".into(), false)));
    for (text, reason) in [
        ("metrics.a foo", "Invalid ordering key"),
        ("metrics.a desc desc", "Could not be parsed"),
        ("lifecycle_stage", "Invalid attribute key"),
        ("foo.x", "Invalid entity type"),
        ("", "Could not be parsed"),
    ] {
        assert!(order(text).expect_err(text).contains(reason), "{text}");
    }
    let twice = ["metrics.a".to_owned(), "metric.a DESC".to_owned()];
    assert!(parse_order(Vocabulary::Runs, &twice).expect_err("twice").message.contains("duplicate fields"));
}

/// Any text is read or refused, and none stops the parser.
#[test]
fn no_text_stops_the_parser() {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let mut random = ChaCha8Rng::seed_from_u64(27);
    let pieces = [
        "metrics.a",
        "> 1",
        "tags",
        ".",
        "a",
        "`",
        "\"",
        "'",
        " ",
        "=",
        "'x'",
        "!",
        "IN",
        "(",
        ")",
        ",",
        "AND",
        "IS",
        "NULL",
        "-",
        "1",
        "e",
        "é",
        "%",
        "NOT",
        "run_id",
    ];
    let mut read = 0;
    for _ in 0..20_000 {
        let length = random.next_u32() % 12;
        let filter: String = (0..length).map(|_| pieces[random.next_u32() as usize % pieces.len()]).collect();
        for vocabulary in [Vocabulary::Runs, Vocabulary::ModelVersions] {
            read += usize::from(parse(vocabulary, &filter).is_ok_and(|clauses| !clauses.is_empty()));
        }
    }
    assert!(read > 0, "some of them are filters");
}
