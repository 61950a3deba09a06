//! Reads orders: a field, and whether it rises or falls.

use super::lexer::{Token, tokens};
use super::{Field, Vocabulary};
use crate::Refusal;

/// The most orders of a search.
const ORDERS_MAX: usize = 20;

/// What a search is ordered by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderBy {
    /// The field.
    pub field: Field,
    /// Whether larger values come first.
    pub is_descending: bool,
}

/// Reads orders such as `metrics.loss ASC`.
///
/// # Errors
/// Names the one that can't be read, or the field that is there twice.
pub fn parse_order(vocabulary: Vocabulary, orders: &[String]) -> Result<Vec<OrderBy>, Refusal> {
    if orders.len() > ORDERS_MAX {
        return Err(Refusal::invalid(format!("`order_by` has more than {ORDERS_MAX} fields: leave some out")));
    }
    let mut read: Vec<OrderBy> = Vec::new();
    for order in orders {
        let order = parse_one(vocabulary, order)?;
        if read.iter().any(|earlier| earlier.field == order.field) {
            let message = format!("`order_by` contains duplicate fields: {}", orders.join(", "));
            return Err(Refusal::invalid(message));
        }
        read.push(order);
    }
    Ok(read)
}

fn parse_one(vocabulary: Vocabulary, order: &str) -> Result<OrderBy, Refusal> {
    let unread = || Refusal::invalid(format!("Invalid order_by clause '{order}'. Could not be parsed."));
    let tokens = tokens(order).map_err(|_| unread())?;
    let (name, direction) = match tokens.as_slice() {
        [Token::Name(name)] => (name, None),
        [Token::Name(name), Token::Name(direction)] => (name, Some(direction)),
        _ => return Err(unread()),
    };
    let is_descending = match direction.map(|direction| direction.key.to_ascii_uppercase()) {
        None => false,
        Some(direction) if direction == "ASC" => false,
        Some(direction) if direction == "DESC" => true,
        Some(_) => {
            return Err(Refusal::invalid(format!("Invalid ordering key in order_by clause '{order}'.")));
        }
    };
    Ok(OrderBy { field: vocabulary.order_field(name)?, is_descending })
}
