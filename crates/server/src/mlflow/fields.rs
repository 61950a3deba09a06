//! A request's fields, from its body, its query or its path, as MLflow reads them: numbers may be texts, an empty text is no
//! text, and unknown fields are ignored.

use axum::extract::RawPathParams;
use gangline_tracking::{Entry, ExperimentId};
use serde_json::{Map, Value};

use super::answer::MlflowError;
use crate::auth::Reporting;

/// The largest body of a request, in bytes; MLflow's own limit for batches.
const BODY_BYTES_MAX: usize = 1_000_000;

/// The fields of a request or of an object in it.
#[derive(Debug, Default)]
pub(super) struct Fields {
    map: Map<String, Value>,
    /// The attempt whose rank sent the request.
    attempt: Option<Reporting>,
}

impl From<Map<String, Value>> for Fields {
    fn from(map: Map<String, Value>) -> Fields {
        Fields { map, attempt: None }
    }
}

impl Fields {
    /// Reads the fields of a request.
    pub(super) fn of(query: Option<&str>, body: &[u8], path: &RawPathParams) -> Result<Fields, MlflowError> {
        if body.len() > BODY_BYTES_MAX {
            let message = "Batched logging API requests must be at most";
            let size = body.len();
            return Err(MlflowError::invalid(format!(
                "{message} {BODY_BYTES_MAX} bytes, got a request of size {size}."
            )));
        }
        let mut fields = match body {
            [] => Map::new(),
            body => match serde_json::from_slice(body) {
                Ok(Value::Object(fields)) => fields,
                Ok(_) => return Err(MlflowError::invalid("Malformed request: the body is no JSON object")),
                Err(error) => return Err(MlflowError::invalid(format!("Malformed request: {error}"))),
            },
        };
        query.into_iter().for_each(|query| read_query(&mut fields, query));
        fields.extend(path.iter().map(|(name, value)| (name.to_owned(), Value::String(value.to_owned()))));
        Ok(Fields::from(fields))
    }

    /// Reads the fields of a query.
    pub(super) fn of_query(query: Option<&str>) -> Fields {
        let mut fields = Map::new();
        query.into_iter().for_each(|query| read_query(&mut fields, query));
        Fields::from(fields)
    }

    /// Notes whose rank sent the request.
    pub(super) fn sent_by(self, attempt: Option<Reporting>) -> Fields {
        Fields { attempt, ..self }
    }

    /// Returns the attempt whose rank sent the request.
    pub(super) fn attempt(&self) -> Option<Reporting> {
        self.attempt
    }

    /// Returns a text that isn't empty.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, MlflowError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(other) => Err(wrong(name, &other)),
        }
    }

    /// Returns a text that has to be there.
    pub(super) fn required(&mut self, name: &str) -> Result<String, MlflowError> {
        self.text(name)?.ok_or_else(|| MlflowError::missing_parameter(name))
    }

    /// Returns a text or a number as a text: ids and names of enumerations.
    pub(super) fn word(&mut self, name: &str) -> Result<Option<String>, MlflowError> {
        match self.map.remove(name) {
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(value) => {
                self.map.insert(name.to_owned(), value);
                self.text(name)
            }
            None => Ok(None),
        }
    }

    /// Returns a whole number.
    pub(super) fn whole(&mut self, name: &str) -> Result<Option<i64>, MlflowError> {
        let value = match self.map.remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let read = match &value {
            Value::Number(number) => number.as_i64().or_else(|| whole_of(number.as_f64()?)),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        read.map(Some).ok_or_else(|| wrong(name, &value))
    }

    /// Returns a number, which may be `"NaN"`, `"Infinity"` or `"-Infinity"`.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>, MlflowError> {
        let value = match self.map.remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let read = match &value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) if !text.is_empty() => text.parse().ok(),
            _ => None,
        };
        read.map(Some).ok_or_else(|| wrong(name, &value))
    }

    /// Returns whether something is so.
    pub(super) fn is_set(&mut self, name: &str, default: bool) -> Result<bool, MlflowError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(value)) => Ok(value),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(other) => Err(wrong(name, &other)),
        }
    }

    /// Returns an object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Fields>, MlflowError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Fields::from(fields))),
            Some(other) => Err(wrong(name, &other)),
        }
    }

    /// Returns a list of objects.
    pub(super) fn objects(&mut self, name: &str) -> Result<Vec<Fields>, MlflowError> {
        let object = |value| match value {
            Value::Object(fields) => Ok(Fields::from(fields)),
            other => Err(wrong(name, &other)),
        };
        self.list(name)?.into_iter().map(object).collect()
    }

    /// Returns a list of texts. One text alone is a list too, as queries have it.
    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, MlflowError> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            Value::Number(number) => Ok(number.to_string()),
            other => Err(wrong(name, &other)),
        };
        self.list(name)?.into_iter().map(text).collect()
    }

    fn list(&mut self, name: &str) -> Result<Vec<Value>, MlflowError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(text @ Value::String(_)) => Ok(vec![text]),
            Some(other) => Err(wrong(name, &other)),
        }
    }

    /// Returns a list of keys with values. A value that isn't there is empty.
    pub(super) fn entries(&mut self, name: &str) -> Result<Vec<Entry>, MlflowError> {
        let entry = |(index, mut fields): (usize, Fields)| {
            let key = fields.text("key")?;
            let key = key.ok_or_else(|| MlflowError::missing_parameter(&format!("{name}[{index}].key")))?;
            Ok(Entry { key, value: fields.text("value")?.unwrap_or_default() })
        };
        self.objects(name)?.into_iter().enumerate().map(entry).collect()
    }

    /// Returns a key with its value, from the fields themselves.
    pub(super) fn entry(&mut self) -> Result<Entry, MlflowError> {
        Ok(Entry { key: self.required("key")?, value: self.text("value")?.unwrap_or_default() })
    }

    /// Returns the id of a run, which older clients name otherwise.
    pub(super) fn run(&mut self) -> Result<String, MlflowError> {
        let older = self.text("run_uuid")?;
        match self.text("run_id")?.or(older) {
            Some(run) => Ok(run),
            None => Err(MlflowError::missing_parameter("run_id")),
        }
    }

    /// Returns the id of an experiment.
    pub(super) fn experiment(&mut self) -> Result<ExperimentId, MlflowError> {
        let id = self.word("experiment_id")?.ok_or_else(|| MlflowError::missing_parameter("experiment_id"))?;
        Ok(ExperimentId::parse(&id)?)
    }

    /// Returns the ids of experiments.
    pub(super) fn experiments(&mut self) -> Result<Vec<ExperimentId>, MlflowError> {
        let parsed = |text: String| ExperimentId::parse(&text).map_err(MlflowError::from);
        self.texts("experiment_ids")?.into_iter().map(parsed).collect()
    }

    /// Returns how many results a page has at most.
    pub(super) fn count(&mut self, default: usize, most: usize) -> Result<usize, MlflowError> {
        let Some(count) = self.whole("max_results")? else { return Ok(default) };
        let most_whole = i64::try_from(most).unwrap_or(i64::MAX);
        if !(1..=most_whole).contains(&count) {
            return Err(MlflowError::invalid(format!(
                "Invalid value {count} for parameter 'max_results' supplied: it must be between 1 and {most}."
            )));
        }
        Ok(usize::try_from(count).unwrap_or(most))
    }

    /// Returns how many results are on the pages before this one.
    pub(super) fn offset(&mut self) -> Result<usize, MlflowError> {
        let Some(token) = self.text("page_token")? else { return Ok(0) };
        token.parse().map_err(|_| MlflowError::invalid("Invalid page token: it isn't one that a search returned"))
    }
}

/// Reads a query (`application/x-www-form-urlencoded`). A name that is there several times has a list.
fn read_query(fields: &mut Map<String, Value>, query: &str) {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name), Value::String(decoded(value)));
        match fields.get_mut(&name) {
            Some(Value::Array(list)) => list.push(value),
            Some(first) => {
                let first = first.take();
                fields.insert(name, Value::Array(vec![first, value]));
            }
            None => {
                fields.insert(name, value);
            }
        }
    }
}

/// Decodes a percent-encoded text (WHATWG URL, section 5.1). What isn't UTF-8 is replaced.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = |digit: u8| char::from(digit).to_digit(16);
        match (first, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, left @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                let value = hex(*high).unwrap_or_default() * 16 + hex(*low).unwrap_or_default();
                bytes.push(u8::try_from(value).unwrap_or_default());
                rest = left;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn whole_of(number: f64) -> Option<i64> {
    let is_whole = number.fract() == 0.0 && number.abs() < 9e15;
    is_whole.then(|| format!("{number:.0}").parse().ok()).flatten()
}

fn wrong(name: &str, value: &Value) -> MlflowError {
    let kind = match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    };
    let shown: String = value.to_string().chars().take(200).collect();
    MlflowError::invalid(format!(
        "Invalid value {shown} for parameter '{name}' supplied:  Hint: Value was of type '{kind}'. See the API docs for more \
         information about request parameters."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Fields {
        let mut fields = Map::new();
        read_query(&mut fields, text);
        Fields::from(fields)
    }

    #[test]
    fn queries_are_decoded_and_repeated_names_are_lists() {
        let mut fields = query("run_ids=a&run_ids=b%20c&metric_key=train%2Floss+x&max_results=5&odd=%zz%");
        assert_eq!(fields.texts("run_ids").expect("a list"), ["a", "b c"]);
        assert_eq!(fields.required("metric_key").expect("a text"), "train/loss x");
        assert_eq!(fields.count(1, 10).expect("a count"), 5);
        assert_eq!(fields.required("odd").expect("a text"), "%zz%");
        assert_eq!(query("order_by=a").texts("order_by").expect("a list"), ["a"]);
    }

    #[test]
    fn numbers_may_be_texts_and_nothing_else() {
        let mut fields = Fields::from(
            serde_json::from_str::<Map<String, Value>>(
                r#"{"a": "7", "b": 7, "c": 7.0, "d": 7.5, "e": "NaN", "f": "-Infinity", "g": true, "h": ""}"#,
            )
            .expect("an object"),
        );
        for name in ["a", "b", "c"] {
            assert_eq!(fields.whole(name).expect(name), Some(7));
        }
        assert!(fields.whole("d").is_err());
        assert!(fields.number("e").expect("a number").is_some_and(f64::is_nan));
        assert_eq!(fields.number("f").expect("a number"), Some(f64::NEG_INFINITY));
        assert!(fields.number("g").is_err() && fields.number("h").is_err());
    }
}
