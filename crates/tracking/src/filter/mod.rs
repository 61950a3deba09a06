//! The grammar of searches: what a filter and an order mean.
//!
//! A filter is clauses joined by AND; there is no OR. A clause compares what an identifier names (`metrics.loss`,
//! `` tags.`my tag` ``, `start_time`) with a number, a quoted text, or a list of texts. What may be compared with what
//! depends on what is searched: a [`Vocabulary`]. The grammar is that of
//! <https://mlflow.org/docs/latest/ml/search/search-runs/>.

mod lexer;
mod order;
mod parse;
mod vocabulary;

pub use order::{OrderBy, parse_order};
pub use parse::parse;
pub use vocabulary::Vocabulary;

/// What an identifier names: its kind and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// What kind of thing it is.
    pub kind: Kind,
    /// The key, or the name of the attribute, without quotes.
    pub key: String,
}

/// The kinds of things that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The latest value of a metric.
    Metric,
    /// A parameter.
    Param,
    /// A tag.
    Tag,
    /// An attribute of what is searched.
    Attribute,
    /// An attribute of a dataset that a run read.
    Dataset,
}

/// Operators that compare numbers or texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    Unequal,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `LIKE`: `%` stands for any text, `_` for any letter.
    Like,
    /// `ILIKE`: like `LIKE`, whatever the case of ASCII letters.
    LikeAnyCase,
}

/// What a clause asks of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A comparison with a number.
    Number(Operator, f64),
    /// A comparison with a text.
    Text(Operator, String),
    /// It is one of these texts.
    In(Vec<String>),
    /// It is none of these texts.
    NotIn(Vec<String>),
    /// It isn't there.
    IsNull,
    /// It is there.
    IsNotNull,
}

/// One clause of a filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// What is compared.
    pub field: Field,
    /// What it is to be.
    pub condition: Condition,
}
