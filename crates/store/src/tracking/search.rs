//! Searches: filters and orders as SQL. Texts of users are always bound, never part of a statement.

use gangline_tracking::Refusal;
use gangline_tracking::filter::{Clause, Condition, Field, Kind, Operator, OrderBy, Vocabulary, parse, parse_order};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::Failure;
use super::entries::Table;

/// What is looked for, and how much of it is shown.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The filter.
    pub filter: String,
    /// The order.
    pub order_by: Vec<String>,
    /// The most results of a page.
    pub count_max: usize,
    /// How many results are on earlier pages.
    pub offset: usize,
}

/// A page of results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The results.
    pub found: Vec<T>,
    /// How many results are on the pages so far, if there are more.
    pub next: Option<usize>,
}

/// What a vocabulary's words are in the tables.
pub(super) struct Scope {
    pub(super) vocabulary: Vocabulary,
    /// The tables with the rows that are looked for.
    pub(super) from: &'static str,
    /// The column that entries and metrics name as their owner.
    pub(super) owner: &'static str,
    pub(super) tags: Table,
    pub(super) params: Option<Table>,
    /// The table of metrics.
    pub(super) metrics: &'static str,
    /// The column of an attribute.
    pub(super) column: fn(&str) -> &'static str,
    /// What decides between equals: a column, and how it orders. One that the user orders by is left out.
    pub(super) ties: &'static [(&'static str, &'static str)],
}

/// A statement in the making.
pub(super) struct Query {
    from: String,
    owner: &'static str,
    columns: Vec<String>,
    column_values: Vec<Value>,
    joined: Vec<Value>,
    conditions: Vec<String>,
    bound: Vec<Value>,
    pub(super) order: Vec<String>,
}

impl<T> Page<T> {
    /// Returns the page with each result replaced.
    pub(super) fn try_map<U>(self, each: impl FnMut(T) -> Result<U, Failure>) -> Result<Page<U>, Failure> {
        let found = self.found.into_iter().map(each).collect::<Result<_, _>>()?;
        Ok(Page { found, next: self.next })
    }
}

impl Scope {
    /// Returns the query of a filter and an order.
    pub(super) fn query(&self, filter: &str, order_by: &[String]) -> Result<Query, Failure> {
        let clauses = parse(self.vocabulary, filter)?;
        let orders = parse_order(self.vocabulary, order_by)?;
        let mut query = Query {
            from: self.from.to_owned(),
            owner: self.owner,
            columns: Vec::new(),
            column_values: Vec::new(),
            joined: Vec::new(),
            conditions: Vec::new(),
            bound: Vec::new(),
            order: Vec::new(),
        };
        let has_prompts = matches!(self.vocabulary, Vocabulary::RegisteredModels | Vocabulary::ModelVersions);
        let (prompt, clauses): (Vec<Clause>, Vec<Clause>) =
            clauses.into_iter().partition(|clause| has_prompts && is_about_prompts(clause));
        if has_prompts {
            let (table, owner) = (self.tags.name(), self.owner);
            let exists =
                format!("EXISTS (SELECT 1 FROM {table} p WHERE p.owner = {owner} AND p.key = ? AND p.value = 'true')");
            let wants_prompts = prompt.iter().any(asks_for_prompts);
            let condition = if wants_prompts { exists } else { format!("NOT {exists}") };
            query.require(&condition, [Value::Text(PROMPT_TAG.to_owned())]);
        }
        for clause in clauses {
            let (condition, values) = self.condition(clause)?;
            query.require(&condition, values);
        }
        for (index, order) in orders.iter().enumerate() {
            self.order(&mut query, index, order);
        }
        for (column, tie) in self.ties {
            let is_ordered = orders
                .iter()
                .any(|order| order.field.kind == Kind::Attribute && (self.column)(&order.field.key) == *column);
            if !is_ordered {
                query.order.push((*tie).to_owned());
            }
        }
        Ok(query)
    }

    fn condition(&self, clause: Clause) -> Result<(String, Vec<Value>), Failure> {
        let Clause { field, condition } = clause;
        let owner = self.owner;
        let table = match field.kind {
            Kind::Attribute => {
                let column = (self.column)(&field.key);
                let is_id = self.vocabulary == Vocabulary::Experiments && field.key == "experiment_id";
                let condition = if is_id { whole(condition)? } else { bound(condition) };
                return Ok((compared(column, &condition), condition.values));
            }
            Kind::Dataset => return Ok(self.dataset(&field, condition)),
            Kind::Metric => self.metrics,
            Kind::Tag => self.tags.name(),
            Kind::Param => self.params.map_or("", Table::name),
        };
        let exists = |condition: &str| {
            format!("EXISTS (SELECT 1 FROM {table} e WHERE e.owner = {owner} AND e.key = ?{condition})")
        };
        let key = Value::Text(field.key);
        Ok(match condition {
            Condition::IsNull => (format!("NOT {}", exists("")), vec![key]),
            Condition::IsNotNull => (exists(""), vec![key]),
            condition => {
                let is_unequal = matches!(condition, Condition::Number(Operator::Unequal, _));
                let condition = bound(condition);
                // NaN, which is kept as NULL, is unequal to every number.
                let nan = if is_unequal { "e.value IS NULL OR " } else { "" };
                let sql = exists(&format!(" AND ({nan}{})", compared("e.value", &condition)));
                (sql, std::iter::once(key).chain(condition.values).collect())
            }
        })
    }

    fn dataset(&self, field: &Field, condition: Condition) -> (String, Vec<Value>) {
        let condition = bound(condition);
        let owner = self.owner;
        let sql = if field.key == "context" {
            let compared = compared("t.value", &condition);
            format!(
                "EXISTS (SELECT 1 FROM input i JOIN input_tag t ON t.owner = i.id AND t.key = 'mlflow.data.context' \
                 WHERE i.run = {owner} AND {compared})"
            )
        } else {
            let compared = compared(if field.key == "name" { "d.name" } else { "d.digest" }, &condition);
            format!(
                "EXISTS (SELECT 1 FROM input i JOIN dataset d ON d.id = i.dataset WHERE i.run = {owner} AND {compared})"
            )
        };
        (sql, condition.values)
    }

    fn order(&self, query: &mut Query, index: usize, order: &OrderBy) {
        let direction = if order.is_descending { "DESC" } else { "ASC" };
        let table = match order.field.kind {
            Kind::Attribute | Kind::Dataset => {
                let column = (self.column)(&order.field.key);
                query.order.push(format!("{column} IS NULL, {column} {direction}"));
                return;
            }
            Kind::Metric => self.metrics,
            Kind::Tag => self.tags.name(),
            Kind::Param => self.params.map_or("", Table::name),
        };
        query
            .from
            .push_str(&format!(" LEFT JOIN {table} o{index} ON o{index}.owner = {} AND o{index}.key = ?", self.owner));
        query.joined.push(Value::Text(order.field.key.clone()));
        // Values come first, then NaN, then what has no value.
        let rank = format!("CASE WHEN o{index}.owner IS NULL THEN 2 WHEN o{index}.value IS NULL THEN 1 ELSE 0 END");
        query.order.push(format!("{rank}, o{index}.value {direction}"));
    }
}

impl Query {
    /// Requires one more condition.
    pub(super) fn require(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.conditions.push(condition.to_owned());
        self.bound.extend(values);
    }

    /// Orders by a value that a subquery finds, before all that it is ordered by so far but `index` values.
    pub(super) fn order_by_value(&mut self, index: usize, value: &str, direction: &str, bound: [Value; 5]) {
        // The subquery is a column, so that its values are bound once.
        self.columns.push(format!("{value} AS by_value_{index}"));
        self.column_values.extend(bound);
        self.order.insert(index, format!("by_value_{index} IS NULL, by_value_{index} {direction}"));
    }

    /// Returns the ids of the rows on a page.
    pub(super) fn page(self, connection: &Connection, search: &Search) -> Result<Page<i64>, Failure> {
        let Query { from, owner, columns, column_values, joined, conditions, bound, order } = self;
        let conditions = if conditions.is_empty() { "TRUE".to_owned() } else { conditions.join(" AND ") };
        let order = order.join(", ");
        let columns = std::iter::once(owner.to_owned()).chain(columns).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {columns} FROM {from} WHERE {conditions} ORDER BY {order} LIMIT ? OFFSET ?");
        let number = |count: usize| Value::Integer(i64::try_from(count).unwrap_or(i64::MAX));
        let limits = [number(search.count_max.saturating_add(1)), number(search.offset)];
        let values = column_values.into_iter().chain(joined).chain(bound).chain(limits);
        let mut statement = connection.prepare_cached(&sql)?;
        let mut found: Vec<i64> =
            statement.query_map(params_from_iter(values), |row| row.get(0))?.collect::<Result<_, _>>()?;
        let has_more = found.len() > search.count_max;
        found.truncate(search.count_max);
        Ok(Page { found, next: has_more.then(|| search.offset + search.count_max) })
    }
}

/// The tag by which MLflow tells prompts, which it keeps beside models, from models. Clients name it in every search.
const PROMPT_TAG: &str = "mlflow.prompt.is_prompt";

fn is_about_prompts(clause: &Clause) -> bool {
    clause.field.kind == Kind::Tag && clause.field.key == PROMPT_TAG
}

/// Reports whether a clause about prompts asks for them; otherwise it asks for models, whether or not they have the tag.
fn asks_for_prompts(clause: &Clause) -> bool {
    match &clause.condition {
        Condition::Text(Operator::Equal, value) => value.eq_ignore_ascii_case("true"),
        Condition::Text(Operator::Unequal, value) => value.eq_ignore_ascii_case("false"),
        _ => false,
    }
}

/// A comparison whose values are bound.
struct Bound {
    operator: &'static str,
    is_any_case: bool,
    values: Vec<Value>,
}

fn bound(condition: Condition) -> Bound {
    let simple = |operator, values| Bound { operator, is_any_case: false, values };
    match condition {
        Condition::Number(operator, value) => simple(sign(operator), vec![Value::Real(value)]),
        Condition::Text(Operator::LikeAnyCase, text) => {
            Bound { operator: "LIKE", is_any_case: true, values: vec![Value::Text(text)] }
        }
        Condition::Text(operator, text) => simple(sign(operator), vec![Value::Text(text)]),
        Condition::In(texts) => simple("IN", texts.into_iter().map(Value::Text).collect()),
        Condition::NotIn(texts) => simple("NOT IN", texts.into_iter().map(Value::Text).collect()),
        Condition::IsNull => simple("IS", vec![Value::Null]),
        Condition::IsNotNull => simple("IS NOT", vec![Value::Null]),
    }
}

/// A comparison of a column of whole numbers that the grammar takes for texts.
fn whole(condition: Condition) -> Result<Bound, Failure> {
    if matches!(condition, Condition::Text(Operator::Like | Operator::LikeAnyCase, _)) {
        return Err(Refusal::invalid("Invalid comparator for experiment_id: LIKE").into());
    }
    let mut bound = bound(condition);
    for value in &mut bound.values {
        let Value::Text(text) = value else { continue };
        *value = Value::Integer(gangline_tracking::ExperimentId::parse(text)?.0);
    }
    Ok(bound)
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Equal => "=",
        Operator::Unequal => "!=",
        Operator::Greater => ">",
        Operator::GreaterOrEqual => ">=",
        Operator::Less => "<",
        Operator::LessOrEqual => "<=",
        Operator::Like | Operator::LikeAnyCase => "LIKE",
    }
}

/// Returns the comparison of a column as SQL.
fn compared(column: &str, Bound { operator, is_any_case, values }: &Bound) -> String {
    match *operator {
        "IN" | "NOT IN" => {
            let places = vec!["?"; values.len()].join(", ");
            format!("{column} {operator} ({places})")
        }
        _ if *is_any_case => format!("lower({column}) LIKE lower(?)"),
        _ => format!("{column} {operator} ?"),
    }
}
